"""Schedules of the learning rate: named plain data, carried out where the step is taken.

    store.set_optimizer("sgd", learning_rate=asyncps.optim.lr.cosine(10_000, base_lr=0.1))

The rate is that of MXNet 1.9.1's schedulers at `t`, which counts the updates of each key from 1 (in
MXNet it is the largest count of all keys). Every schedule may begin with a warm-up: below
`warmup_steps` updates the rate grows from `warmup_begin_lr` to `base_lr` ("linear"), or stays at
`warmup_begin_lr` ("constant").
"""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

from asyncps.errors import OptimizerError, shown

__all__ = ["checked", "constant", "cosine", "multistep", "polynomial", "rate", "step"]

Schedule = dict[str, Any]

_REQUIRED = object()
_COMMON = {
    "base_lr": 0.01, "warmup_steps": 0, "warmup_begin_lr": 0.0, "warmup_mode": "linear",
}
_SCHEDULES: dict[str, dict[str, Any]] = {
    "constant": {},
    "step": {"step": _REQUIRED, "factor": 1.0, "stop_factor_lr": 1e-8},
    "multistep": {"step": _REQUIRED, "factor": 1.0},
    "polynomial": {"max_update": _REQUIRED, "pwr": 2.0, "final_lr": 0.0},
    "cosine": {"max_update": _REQUIRED, "final_lr": 0.0},
}
_MODES = ("linear", "constant")
_MOST_STEPS = 10_000  # of a multistep: it travels with each change of a hyper-parameter


def constant(base_lr: float = 0.01, **warmup: Any) -> Schedule:
    """`base_lr`, after a warm-up."""
    return checked({"schedule": "constant", "base_lr": base_lr, **warmup})


def step(
    step: int, factor: float = 1.0, stop_factor_lr: float = 1e-8, base_lr: float = 0.01,
    **warmup: Any,
) -> Schedule:
    """The rate times `factor` after every `step` updates, never below `stop_factor_lr`."""
    return checked({"schedule": "step", "step": step, "factor": factor,
                    "stop_factor_lr": stop_factor_lr, "base_lr": base_lr, **warmup})


def multistep(
    step: Sequence[int], factor: float = 1.0, base_lr: float = 0.01, **warmup: Any
) -> Schedule:
    """The rate times `factor` after each of these numbers of updates, which ascend."""
    return checked({"schedule": "multistep", "step": step, "factor": factor, "base_lr": base_lr,
                    **warmup})


def polynomial(
    max_update: int, base_lr: float = 0.01, pwr: float = 2, final_lr: float = 0.0, **warmup: Any
) -> Schedule:
    """From `base_lr` to `final_lr` at `max_update` updates, by a power of what is left."""
    return checked({"schedule": "polynomial", "max_update": max_update, "base_lr": base_lr,
                    "pwr": pwr, "final_lr": final_lr, **warmup})


def cosine(
    max_update: int, base_lr: float = 0.01, final_lr: float = 0.0, **warmup: Any
) -> Schedule:
    """From `base_lr` to `final_lr` at `max_update` updates, along half a cosine."""
    return checked({"schedule": "cosine", "max_update": max_update, "base_lr": base_lr,
                    "final_lr": final_lr, **warmup})


def checked(schedule: Mapping[str, Any]) -> Schedule:
    """Return a schedule with all its words, each checked.

    Raises:
        OptimizerError: An unknown schedule or word (the known ones are listed), or a value that
            cannot be right.
    """
    name = schedule.get("schedule")
    if not isinstance(name, str) or name not in _SCHEDULES:
        raise OptimizerError("unknown schedule of the learning rate", got=shown(name),
                             expected=", ".join(_SCHEDULES))
    defaults = {**_COMMON, **_SCHEDULES[name]}
    unknown = [word for word in schedule if word != "schedule" and word not in defaults]
    if unknown:
        raise OptimizerError(f"schedule {name} has no {unknown[0]!r}", got=unknown[0],
                             expected=", ".join(defaults))
    found = {word: schedule.get(word, default) for word, default in defaults.items()}
    for word, value in found.items():
        found[word] = _value(name, word, value)
    if found["warmup_begin_lr"] > found["base_lr"]:
        raise OptimizerError("warmup_begin_lr is above base_lr", got=found["warmup_begin_lr"],
                             expected=f"at most {found['base_lr']}")
    if found.get("max_update", math.inf) <= found["warmup_steps"]:
        raise OptimizerError("max_update must come after the warm-up", got=found["max_update"],
                             expected=f"more than {found['warmup_steps']}")
    return {"schedule": name, **found}


def rate(schedule: Mapping[str, Any], t: int) -> float:
    """Return the rate at the `t`-th update of a key (from 1), of a checked schedule."""
    base: float = schedule["base_lr"]
    warmup: int = schedule["warmup_steps"]
    if t < warmup:
        begin: float = schedule["warmup_begin_lr"]
        return begin + (base - begin) * t / warmup if schedule["warmup_mode"] == "linear" else begin
    name = schedule["schedule"]
    if name == "constant":
        return base
    if name == "step":
        times = (t - 1) // schedule["step"]
        lowered: float = base * schedule["factor"] ** times
        return max(lowered, schedule["stop_factor_lr"]) if times else base
    if name == "multistep":
        return float(base * schedule["factor"] ** bisect.bisect_left(schedule["step"], t))
    final: float = schedule["final_lr"]
    done = (min(t, schedule["max_update"]) - warmup) / (schedule["max_update"] - warmup)
    if name == "polynomial":
        return float(final + (base - final) * (1 - done) ** schedule["pwr"])
    return final + (base - final) * (1 + math.cos(math.pi * done)) / 2


def _value(name: str, word: str, value: Any) -> Any:
    if value is _REQUIRED:
        raise OptimizerError(f"schedule {name} needs {word}", got="nothing")
    if word == "warmup_mode":
        if value not in _MODES:
            raise OptimizerError("unknown warmup_mode", expected=", ".join(_MODES),
                                 got=shown(value))
        return value
    if word == "step" and name == "multistep":
        if isinstance(value, (str, bytes)) or not isinstance(value, Sequence) or not value:
            raise OptimizerError("step must be a list of numbers of updates", got=shown(value))
        if len(value) > _MOST_STEPS:
            raise OptimizerError("too many steps", expected=f"at most {_MOST_STEPS}",
                                 got=len(value))
        steps = [_whole(word, item, 1) for item in value]
        if any(b <= a for a, b in itertools.pairwise(steps)):
            raise OptimizerError("the numbers of step must ascend", got=shown(value))
        return steps
    if word in ("step", "max_update"):
        return _whole(word, value, 1)
    if word == "warmup_steps":
        return _whole(word, value, 0)
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        raise OptimizerError(f"{word} must be a number", got=shown(value)) from None
    if not math.isfinite(number) or (word == "pwr" and number < 0):
        raise OptimizerError(f"{word} is out of range", got=shown(value))
    if word == "factor" and not 0 < number <= 1:
        raise OptimizerError("factor is out of range", expected="above 0, at most 1",
                             got=shown(value))
    return number


def _whole(word: str, value: Any, least: int) -> int:
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise OptimizerError(f"{word} must be a whole number", got=shown(value))
    number = int(value)
    if not least <= number < 1 << 62:
        raise OptimizerError(f"{word} is out of range", expected=f"at least {least}, below 2**62",
                             got=shown(number))
    return number
