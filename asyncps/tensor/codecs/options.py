"""What users say of compression, checked: a type and its options, as plain data."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from asyncps.errors import ConfigError, NotYetError, shown
from asyncps.tensor.codecs.base import Codec
from asyncps.tensor.codecs.bits import BF16, F16, Int8, OneBit, Sign, TwoBit
from asyncps.tensor.codecs.dgc import DGC
from asyncps.tensor.codecs.powersgd import MOST_RANK, PowerSGD
from asyncps.tensor.codecs.skip import Skip
from asyncps.tensor.codecs.sparse import RandomK, Threshold, TopK

KINDS: dict[str, type[Codec]] = {
    kind.name: kind
    for kind in (F16, BF16, Int8, OneBit, TwoBit, Sign, TopK, Threshold, RandomK, DGC, PowerSGD)
}
BY_NUMBER: dict[int, type[Codec]] = {
    **{kind.number: kind for kind in KINDS.values()}, Skip.number: Skip,
}

# Types that pull=True has too, and the option that says how much is sent; None: there is none.
DELTAS: dict[str, str | None] = {
    "topk": "ratio", "threshold": "threshold", "randomk": "ratio", "f16": None, "bf16": None,
    "int8": None, "2bit": "threshold", "onebit": None,
}
# Types whose changes are brought by another's codec: a change has no momentum; and a step of one,
# up or down at each pull, is for a gradient, which a learning rate makes small.
_BROUGHT_BY = {"dgc": "topk", "1bit": "onebit"}

# Options that every type takes.
_COMMON = ("type", "error_feedback", "lr_scaled", "nonfinite", "small_bytes", "pull")
# The type of keys whose compression has ended: what the others say for them.
NONE = "none"
_NONE_WORDS: dict[str, Any] = {
    "type": NONE, "error_feedback": True, "lr_scaled": False, "nonfinite": "error",
    "small_bytes": (1 << 62) - 1, "pull": None,
}

_PULLS = (None, "f16", "bf16")  # how answers travel: None, as they are; or True


def checked(spec: object) -> dict[str, Any]:
    """Return what a user says of a codec, checked and complete: every option of its type.

    Args:
        spec: A map such as {"type": "2bit", "threshold": 0.5}; None is {"type": "none"}.

    Raises:
        ConfigError: An unknown type or option, or a value that cannot be right; it lists the known.
        NotYetError: A documented option that is not there yet.
    """
    if spec is None:
        spec = {"type": NONE}
    if not isinstance(spec, Mapping):
        raise ConfigError("a compression is a map", expected='such as {"type": "2bit"}',
                          got=shown(spec))
    name = spec.get("type")
    is_none = isinstance(name, str) and name == NONE
    kind = KINDS.get(name) if isinstance(name, str) else None
    if kind is None and not is_none:
        raise ConfigError("unknown type of compression", expected=", ".join([*KINDS, NONE]),
                          got=shown(name))
    known = ["type"] if kind is None else [*_COMMON, *kind.options]
    for option in spec:
        if option not in known:
            raise ConfigError(f"unknown option of compression {name}",
                              expected=", ".join(known), got=shown(option))
    if kind is None:
        return dict(_NONE_WORDS)
    found: dict[str, Any] = {
        "type": kind.name,
        "error_feedback": _truth("error_feedback", spec.get("error_feedback", True)),
        "lr_scaled": _truth("lr_scaled", spec.get("lr_scaled", False)),
        "nonfinite": _nonfinite(spec.get("nonfinite", "error")),
        "small_bytes": _size(spec.get("small_bytes", kind.small_bytes)),
        "pull": _pull(kind, spec.get("pull")),
    }
    for option, default in kind.options.items():
        found[option] = _CHECKS[option](kind, spec.get(option, default))
    if kind.owns_momentum and not found["error_feedback"]:
        raise ConfigError(f"error_feedback of compression {kind.name}, which is what it keeps",
                          expected="True", got=False)
    return found


def made(words: Mapping[str, Any], workers: int = 1) -> Codec:
    """Return the codec of what `checked` has returned, at each of so many workers."""
    return KINDS[words["type"]].made({**words, "workers": workers})


def made_for_changes(words: Mapping[str, Any]) -> tuple[Codec, float] | None:
    """Return the codec that changes are pulled by, and how much it sends; None for no changes."""
    if words["pull"] is not True:
        return None
    name = _BROUGHT_BY.get(words["type"], words["type"])
    option = DELTAS[name]
    return KINDS[name].made(dict(words)), 0.0 if option is None else float(words[option])


def made_of_change(told: Codec, amount: float) -> Codec:
    """Return the codec that changes are encoded by, of what a worker says of it.

    Args:
        told: As the head that it sends has it.
        amount: How much is sent; 0 of a type without such an option.

    Raises:
        ConfigError: There is no such codec.
    """
    if told.name not in DELTAS:
        raise ConfigError("changes of another codec", expected=", ".join(DELTAS), got=told.name)
    option, words = DELTAS[told.name], {"type": told.name}
    more: dict[str, Any] = {} if option is None else {option: amount}
    if told.has_half:
        more["values"] = "f16" if told.half else "f32"
    codec = made(checked({**words, **more}))
    if (option is None and amount != 0) or codec.parameter != told.parameter:
        raise ConfigError(f"how much codec {told.name} sends", got=(amount, told.parameter),
                          expected="0" if option is None else f"its {option}, in its head too")
    return codec


def _truth(option: str, value: object) -> bool:
    if not isinstance(value, (bool, np.bool_)):
        raise ConfigError(f"{option} is True or False", got=shown(value))
    return bool(value)


def _nonfinite(value: object) -> str:
    if not isinstance(value, str) or value not in ("error", "skip"):
        raise ConfigError("nonfinite of a compression", expected="error or skip",
                          got=shown(value))
    return value


def _pull(kind: type[Codec], value: object) -> str | bool | None:
    if isinstance(value, (bool, np.bool_)) and value:
        if kind.name not in DELTAS and kind.name not in _BROUGHT_BY:
            raise NotYetError(f"pull=True of compression {kind.name} is not there yet: it is of "
                              f"{', '.join([*DELTAS, *_BROUGHT_BY])}")
        return True
    if value is None or isinstance(value, (bool, np.bool_)):
        return None
    if not isinstance(value, str) or value not in _PULLS:
        raise ConfigError("pull of a compression", expected="f16, bf16, True or None",
                          got=shown(value))
    return str(value)


def _size(value: object) -> int:
    number = _integer(value)
    if number is None or not 0 <= number < 1 << 62:
        raise ConfigError("small_bytes is a number of bytes, 0 or more", got=shown(value))
    return number


def _integer(value: object) -> int | None:
    is_one = isinstance(value, (int, np.integer)) and not isinstance(value, bool)
    return int(value) if is_one else None  # type: ignore[call-overload]


def _number(value: object) -> float:
    """Return a finite float32 as float; NaN for anything else."""
    if isinstance(value, (bool, np.bool_)) or not isinstance(
        value, (int, float, np.integer, np.floating)
    ):
        return math.nan
    try:
        with np.errstate(all="ignore"):
            rounded = float(np.float32(float(value)))
    except OverflowError:
        return math.nan
    return rounded if math.isfinite(rounded) else math.nan


def _threshold(kind: type[Codec], value: object) -> float:
    number = _number(value)
    if kind is OneBit and not math.isnan(number):
        return number
    if kind is TwoBit and number > 0:
        return number
    if kind is Threshold and number >= 0:
        return number
    least = {TwoBit: "above 0, and ", Threshold: "of 0 or more, and "}
    raise ConfigError(f"threshold of compression {kind.name}", got=shown(value),
                      expected=f"a number {least.get(kind, '')}finite, as float32")


def _ratio(kind: type[Codec], value: object) -> float:
    is_one = isinstance(value, (int, float, np.floating)) and not isinstance(value, bool)
    if not is_one or not 0 < value <= 1:  # type: ignore[operator]
        raise ConfigError(f"ratio of compression {kind.name}",
                          expected="a number above 0, at most 1", got=shown(value))
    return float(value)  # type: ignore[arg-type]


def _values(kind: type[Codec], value: object) -> str:
    if not isinstance(value, str) or value not in ("f32", "f16"):
        raise ConfigError(f"values of compression {kind.name}", expected="f32 or f16",
                          got=shown(value))
    return str(value)


def _rank(kind: type[Codec], value: object) -> int:
    number = _integer(value)
    if number is None or not 1 <= number <= MOST_RANK:
        raise ConfigError(f"rank of compression {kind.name}",
                          expected=f"an integer from 1 to {MOST_RANK}", got=shown(value))
    return number


def _start(kind: type[Codec], value: object) -> int:
    number = _integer(value)
    if number is None or not 0 <= number < 1 << 62:
        raise ConfigError(f"start of compression {kind.name}",
                          expected="a number of pushes, 0 or more", got=shown(value))
    return number


def _momentum(kind: type[Codec], value: object) -> float:
    if not 0 <= _number(value) < 1:
        raise ConfigError(f"momentum of compression {kind.name}",
                          expected="a number of 0 or more, below 1", got=shown(value))
    return float(value)  # type: ignore[arg-type]


def _warmup(kind: type[Codec], value: object) -> int:
    number = _integer(value)
    if number is None or not 0 <= number < 1 << 62:
        raise ConfigError(f"warmup of compression {kind.name} is a number of pushes, 0 or more",
                          got=shown(value))
    return number


def _clip(kind: type[Codec], value: object) -> float | None:
    if value is not None and not _number(value) > 0:
        raise ConfigError(f"clip of compression {kind.name}",
                          expected="None, or a number above 0, finite as float32", got=shown(value))
    return None if value is None else float(value)  # type: ignore[arg-type]


_CHECKS: dict[str, Callable[[type[Codec], object], Any]] = {
    "threshold": _threshold, "ratio": _ratio, "values": _values, "momentum": _momentum,
    "warmup": _warmup, "clip": _clip, "rank": _rank, "start": _start,
}
