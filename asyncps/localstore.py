"""The store of one process: `local` and `device`, for scripts that run alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

import numpy as np

from asyncps import optim
from asyncps.core import is_capable
from asyncps.errors import (
    ClosedError,
    DtypeMismatch,
    OptimizerError,
    ShapeMismatch,
    TensorError,
    UnknownKey,
)
from asyncps.later import LaterVerbs
from asyncps.tensor import dtypes, updates
from asyncps.values import Array, Key, as_keys, as_values, host_array, key_spec, merged

_Kind = type[optim.Optimizer]


class _Value:
    """One key: its value and what the optimizer keeps for it."""

    __slots__ = ("array", "dtype", "state", "updates")

    def __init__(self, key: Key, array: Array) -> None:
        self.array = array
        self.dtype = dtypes.by_name(key_spec(key, array).dtype)
        self.state: dict[str, Array] = {}
        self.updates = 0


class LocalHandle:
    """A verb that has ended already, with the face of a Handle."""

    def __init__(self, result: Any = None) -> None:
        self._result = result

    def wait(self, timeout: float | None = None) -> Any:
        """Return the result."""
        return self._result

    def done(self) -> bool:
        """Always True."""
        return True

    def exception(self) -> None:
        """Nothing went wrong, or the verb would have raised."""


class LocalStore(LaterVerbs):
    """A store whose only worker is this process; the verbs mean what they mean in `KVStore`.

    Args:
        type: "local" or "device"; both keep values in host memory.
        reduce: "sum" or "mean" (the same with one worker; integers have no mean).
    """

    rank = 0
    num_workers = 1
    local_rank = 0

    def __init__(self, type: str, reduce: str = "sum") -> None:
        self.type = type
        self._reduce = reduce
        self._values: dict[Key, _Value] = {}
        self._optimizer: _Kind | None = None
        self._hyper: dict[str, float | bool] = {}
        self._closed = False
        self._rounds = 0

    def init(self, key: Any, value: Any) -> None:
        """Initialise keys; one that exists is checked and not changed."""
        self._check_open()
        keys, listed = as_keys(key)
        made: dict[Key, _Value] = {}
        for name, given in zip(keys, as_values(len(keys), value, listed), strict=True):
            first = given[0] if isinstance(given, (list, tuple)) and given else given
            array = host_array(first, name)
            fresh = _Value(name, array.copy())
            if self._reduce == "mean" and not fresh.dtype.is_float:
                raise DtypeMismatch("the mean of integers", key=name, expected="a float dtype",
                                    got=array.dtype)
            if name in self._values:
                _same(name, self._values[name].array, array)
            else:
                made[name] = fresh
        self._values.update(made)

    def assign(self, key: Any, value: Any) -> None:
        """Overwrite values."""
        keys, arrays = self._arrays(key, value)
        for name, array in zip(keys, arrays, strict=True):
            self._values[name].array = array.copy()

    def push(self, key: Any, value: Any, priority: int = 0, copy: bool = True) -> LocalHandle:
        """Replace values by what is pushed, or let the optimizer use it."""
        keys, arrays = self._arrays(key, value)
        for name in keys if self._optimizer is not None else ():
            self._check_usable(name)
        for name, array in zip(keys, arrays, strict=True):
            self._apply(self._values[name], array)
        self._rounds += 1
        return LocalHandle()

    def pull(
        self, key: Any, out: Any = None, priority: int = 0, async_op: bool = False
    ) -> Any:
        """Fetch values."""
        keys, listed = as_keys(key)
        outs = self._outs(keys, listed, out)
        for name, given in zip(keys, outs, strict=True):
            for target in given if isinstance(given, (list, tuple)) else [given]:
                np.copyto(target, self._values[name].array)
        result = outs if listed else outs[0]
        return LocalHandle(result) if async_op else result

    def pushpull(
        self, key: Any, value: Any, out: Any = None, priority: int = 0, async_op: bool = False
    ) -> Any:
        """Push, then pull; without `out` into the value."""
        out = value if out is None else out
        keys, listed = as_keys(key)
        self._outs(keys, listed, out)  # a wrong one must not cost a push
        self.push(key, value, priority)
        return self.pull(key, out, priority, async_op)

    def broadcast(self, key: Any, value: Any, out: Any = None, priority: int = 0) -> Any:
        """`init`, then `pull` into `out`."""
        self.init(key, value)
        return self.pull(key, out, priority)

    def set_optimizer(self, optimizer: str | optim.Optimizer, **hyper: Any) -> None:
        """Let pushes be gradients; state of an earlier optimizer is dropped."""
        self._check_open()
        chosen = optim.resolve(optimizer, hyper)
        self._optimizer, self._hyper = type(chosen), dict(chosen.hyper)
        for value in self._values.values():
            value.state.clear()
            value.updates = 0

    def set_hyperparameters(self, **hyper: Any) -> None:
        """Change some hyper-parameters and keep the optimizer's state."""
        self._check_open()
        if self._optimizer is None:
            raise OptimizerError("no optimizer is set", expected="set_optimizer first")
        self._hyper.update(optim.checked(self._optimizer, hyper))

    def barrier(self) -> None:
        """There is nobody to wait for."""
        self._check_open()

    def close(self) -> None:
        """Forget all values."""
        self._closed = True
        self._values.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def statistics(self) -> dict[str, Any]:
        """Return plain data."""
        self._check_open()
        return {
            "type": self.type, "rank": 0, "keys": len(self._values), "rounds": self._rounds,
            "sent_bytes": 0, "received_bytes": 0, "queued_bytes": 0, "queued_frames": 0,
            "unanswered": 0, "budget_used_bytes": 0, "waited_s": {}, "waiting_s": {}, "servers": [],
        }

    def is_capable(self, capability: str) -> bool:
        """As `KVStore.is_capable`."""
        return is_capable(capability)

    def num_dead_node(self) -> int:
        """Nobody can be lost."""
        return 0

    def _arrays(self, key: Any, value: Any) -> tuple[tuple[Key, ...], list[Array]]:
        self._check_open()
        keys, listed = as_keys(key)
        arrays = []
        for name, given in zip(keys, as_values(len(keys), value, listed), strict=True):
            array = merged(given, name)
            _same(name, self._find(name).array, array)
            arrays.append(array)
        return keys, arrays

    def _apply(self, value: _Value, gradient: Array) -> None:
        if self._optimizer is None:
            value.array = gradient.copy()
            return
        name, hyper, dtype = self._optimizer.name, self._hyper, value.dtype
        stored = gradient.reshape(-1).view(dtype.bits)
        total = stored.copy()
        if dtype.widen is not None:
            total = np.empty(stored.size, dtype.sum)
            dtype.widen(total, stored)
        weights = value.array.reshape(-1).view(dtype.bits)
        value.updates += 1
        updates.run(name, dtype, weights, weights, total, value.state, hyper, value.updates)

    def _check_usable(self, key: Key) -> None:
        assert self._optimizer is not None
        try:
            updates.check_usable(self._optimizer.name, self._values[key].dtype, self._hyper)
        except OptimizerError as error:
            error.key = key
            raise

    def _outs(self, keys: tuple[Key, ...], listed: bool, out: Any) -> Sequence[Any]:
        """Return one array (or list of device arrays) a key that can take its value."""
        self._check_open()
        stored = [self._find(name).array for name in keys]
        if out is None:
            return [np.empty_like(array) for array in stored]
        outs = as_values(len(keys), out, listed)
        for name, array, given in zip(keys, stored, outs, strict=True):
            targets = given if isinstance(given, (list, tuple)) else [given]
            if not targets:
                raise TensorError("an empty list of arrays", key=name)
            for target in targets:
                if not isinstance(target, np.ndarray) or not target.flags.writeable:
                    raise TensorError("out must be a writable NumPy array", key=name,
                                      got=type(target).__name__)
                _same(name, array, target)
        return outs

    def _find(self, key: Key) -> _Value:
        value = self._values.get(key)
        if value is None:
            raise UnknownKey("this key was never initialised", key=key)
        return value

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError("the store is closed")


def _same(key: Key, stored: Array, given: Array) -> None:
    if stored.dtype != given.dtype:
        raise DtypeMismatch("a value of another dtype than its key", key=key,
                            expected=stored.dtype, got=given.dtype)
    if stored.shape != given.shape:
        raise ShapeMismatch("a value of another shape than its key", key=key,
                            expected=stored.shape, got=given.shape)
