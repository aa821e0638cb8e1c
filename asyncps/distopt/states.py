"""What DistOpt keeps, as a flat dict of arrays; and back, onto any number of workers."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from asyncps.distopt.buckets import cut
from asyncps.distopt.local import LocalVerbs
from asyncps.distopt.outer import Outer
from asyncps.distopt.parameters import Kept
from asyncps.distopt.sparse import Residuals
from asyncps.errors import CheckpointError, ConfigError, OptimizerError, shown
from asyncps.tensor.dtypes import Array

__all__ = ["StateVerbs"]

_ABOUT, _VERSION = "asyncps", 1
_NAME = re.compile(r"(state|residual|outer)\.(\d+)(?:\.(.+))?")
_COUNTS = ("partial", "partitions", "local", "updates")


class StateVerbs(LocalVerbs):
    """get_states and set_states."""

    def __init__(self, *args: Any, **words: Any) -> None:
        super().__init__(*args, **words)
        self._residuals = Residuals()

    def get_states(self) -> dict[str, Array]:
        """Return what a run needs to go on, beside its weights; all workers call it.

        Returns:
            NumPy arrays by name, copies: what `numpy.savez` or safetensors write as they are.
            `state.<parameter>.<name>` is what this worker's optimizer keeps, `residual.<parameter>`
            what sparse updates have not sent, a row for each worker, `outer.<parameter>.<name>`
            what DiLoCo keeps; `asyncps` is JSON: hyper-parameters and counters.

        Raises:
            ConfigError: There are accumulated gradients: `flush` first.
        """
        self._begin()
        if self._accumulated.batches:
            raise ConfigError("states while gradients are accumulated", expected="flush() first",
                              got=f"{self._accumulated.batches} batches")
        kept = self._parameters.kept()
        about = {
            "version": _VERSION, "optimizer": self.opt.name, "hyper": self.opt.hyper,
            "counts": {str(number): updates for number, (updates, _) in kept.items()},
            "world_size": self.world_size, "partial": self._partial,
            "partitions": self._partitions, "local": self._local, "updates": self._updates,
            "apart": self._is_apart,
        }
        found: dict[str, Array] = {
            _ABOUT: np.frombuffer(json.dumps(about).encode(), np.uint8).copy(),
        }
        for number, (_, state) in kept.items():
            found |= {f"state.{number}.{name}": array.copy() for name, array in state.items()}
        for number, array in sorted(self._residuals.of.items()):
            found[f"residual.{number}"] = np.concatenate(
                [self._calls.all_gather(piece.reshape(1, -1)).wait()
                 for piece in cut(array, self._most)], axis=1)
        if self._outer is not None:
            for name, arrays in (("anchor", self._outer.anchors),
                                 ("momentum", self._outer.momenta)):
                found |= {f"outer.{number}.{name}": array.copy()
                          for number, array in arrays.items()}
        return found

    def set_states(self, states: Mapping[str, Any]) -> None:
        """Go on from what `get_states` returned, on this or another number of workers.

        Args:
            states: The same arrays for all workers, or each worker's own. Residuals of other
                numbers of workers are dealt out so that their sum stays. Parameters are told
                apart by the order in which they come.

        Raises:
            OptimizerError: They are another optimizer's.
            CheckpointError: They are no such states, or of other parameters.
        """
        self._begin()
        about, counts = _about(states)
        if about.get("optimizer") != self.opt.name:
            raise OptimizerError("states of another optimizer", expected=self.opt.name,
                                 got=shown(about.get("optimizer")))
        hyper = type(self.opt)(**about["hyper"]).hyper
        kept: dict[int, Kept] = {number: (count, {}) for number, count in counts.items()}
        residuals, outer = Residuals(), Outer()
        for name, given in states.items():
            if name == _ABOUT:
                continue
            kind, number, rest = _parsed(name)
            array = np.asarray(given)
            if kind == "residual":
                residuals.of[number] = self._dealt(number, array)
            elif kind == "state":
                if number not in kept:
                    raise CheckpointError("a state of a parameter that is not counted", got=name)
                kept[number][1][rest] = array
            else:
                (outer.anchors if rest == "anchor" else outer.momenta)[number] = array.copy()
        self._parameters.take(kept)
        self._optimizer.change(hyper)
        self._residuals = residuals
        self._outer = outer if outer.anchors else None
        self._partial, self._partitions, self._local, self._updates = (
            about[word] for word in _COUNTS)
        self._is_apart = bool(about.get("apart"))
        self._accumulated.clear()

    def _dealt(self, number: int, rows: Array) -> Array:
        """Return this worker's part of the residuals of all."""
        if rows.ndim != 2 or rows.dtype != np.float32 or len(rows) == 0:
            raise CheckpointError("no residuals", key=number, expected="a row of f32 each worker",
                                  got=f"{rows.shape} of {rows.dtype}")
        mine = np.zeros(rows.shape[1], np.float32)
        for row in rows[self.global_rank :: self.world_size]:
            mine += row
        return mine


def _about(states: Mapping[str, Any]) -> tuple[dict[str, Any], dict[int, int]]:
    """Return what is said about states, checked, and the counts of updates by parameter."""
    try:
        about = json.loads(np.asarray(states[_ABOUT], np.uint8).tobytes())
        counts = {int(number): _whole(count) for number, count in about["counts"].items()}
        for word in _COUNTS:
            about[word] = _whole(about[word])
        if about["version"] != _VERSION or not isinstance(about["hyper"], dict):
            raise ValueError(f"version {about['version']}")
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CheckpointError(f"not the states of a DistOpt: {error!r}") from None
    return about, counts


def _whole(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ValueError(f"a count of {value!r}")
    return value


def _parsed(name: str) -> tuple[str, int, str]:
    found = _NAME.fullmatch(str(name))
    named = found is not None and found[3] is not None
    if found is None or named == (found[1] == "residual") or (
        found[1] == "outer" and found[3] not in ("anchor", "momentum")
    ):
        raise CheckpointError("an array that is none of a DistOpt", got=shown(name))
    return found[1], int(found[2]), found[3] or ""
