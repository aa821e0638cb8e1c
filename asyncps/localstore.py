"""The store of one process: `local` and `device`, for scripts that run alone."""

from __future__ import annotations

import copy
import threading
from collections.abc import Mapping, Sequence
from typing import Any, Self

import numpy as np

from asyncps import optim
from asyncps.compressionverbs import LocalCompressionVerbs
from asyncps.core import is_capable
from asyncps.errors import (
    ClosedError,
    ConfigError,
    DtypeMismatch,
    OptimizerError,
    TensorError,
)
from asyncps.following import Followers
from asyncps.localcheckpoints import LocalCheckpointVerbs, Updater
from asyncps.localtables import LocalHandle, LocalRowVerbs, LocalTable, LocalTables
from asyncps.localvalues import Kind, Value, alone, check_outs, check_same
from asyncps.state.keys import check_key, unknown_key
from asyncps.tablevalues import check_shape
from asyncps.tensor import updates
from asyncps.values import (
    Array,
    Key,
    as_keys,
    as_values,
    check_text,
    device_values,
    host_array,
    merged,
)


class LocalStore(LocalCheckpointVerbs, LocalRowVerbs, LocalCompressionVerbs):
    """A store whose only worker is this process; the verbs mean what they mean in `KVStore`.

    Args:
        type: "local" or "device"; both keep values in host memory.
        reduce: "sum" or "mean" (the same with one worker; integers have no mean).
        multi_precision: Keep f32 weights of f16 and bf16 values.
    """

    rank = 0
    num_workers = 1
    local_rank = 0

    def __init__(
        self, type: str, reduce: str = "sum", multi_precision: bool = False
    ) -> None:
        self.type = type
        self._reduce = reduce
        self._values: dict[Key, Value] = {}
        self._tables = LocalTables()
        self._optimizer: Kind | None = None
        self._hyper: Mapping[str, Any] = {}
        self._updater: Updater | None = None
        self._multi_precision = multi_precision
        self._closed = False
        self._rounds = 0
        self._followers = Followers()
        self._lock = threading.RLock()

    @alone
    def init(
        self, key: Any, value: Any, *, shape: Any = None, dtype: Any = np.float32
    ) -> None:
        """Initialise keys; one that exists is checked and not changed."""
        self._check_open()
        keys, listed = as_keys(key)
        check_text(keys)
        for name in keys:
            check_key(name)
        made: dict[Key, Value] = {}
        tables: dict[Key, LocalTable] = {}
        values = as_values(len(keys), value, listed)
        check_shape(shape, values)
        for name, given in zip(keys, values, strict=True):
            table = self._tables.made(name, given, shape, dtype, self._reduce, self._values)
            if table is not None:
                tables[name] = table
                continue
            array = host_array(device_values(given, name)[0], name)
            fresh = Value(name, array.copy())
            if self._reduce == "mean" and not fresh.dtype.is_float:
                raise DtypeMismatch("the mean of integers", key=name, expected="a float dtype",
                                    got=array.dtype)
            if name in self._values:
                check_same(name, self._values[name].array, array)
            else:
                made[name] = fresh
        self._values.update(made)
        self._tables.add(tables)

    @alone
    def assign(self, key: Any, value: Any) -> None:
        """Overwrite values."""
        keys, arrays = self._arrays(key, value)
        for name, array in zip(keys, arrays, strict=True):
            if name in self._tables:
                self._tables.find(name).assign(array)
                continue
            self._values[name].array = array.copy()
            self._values[name].state.pop(updates.MASTER, None)

    @alone
    def push(self, key: Any, value: Any, priority: int = 0, copy: bool = True) -> LocalHandle:
        """Replace values by what is pushed, or let the optimizer or the updater use it."""
        keys, arrays = self._arrays(key, value)
        for name in keys if self._optimizer is not None else ():
            self._check_usable(name)
        if self._updater is not None:
            self._tables.refuse_updater(keys)
        for name, array in zip(keys, arrays, strict=True):
            if name in self._tables:
                self._tables.find(name).push(
                    array, self._optimizer, self._hyper, self._multi_precision)
            elif self._updater is not None:
                self._updater(name, array.copy(), self._values[name].array)
            else:
                self._apply(self._values[name], array)
        self._rounds += 1
        return LocalHandle()

    @alone
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

    @alone
    def pushpull(
        self, key: Any, value: Any, out: Any = None, priority: int = 0, async_op: bool = False
    ) -> Any:
        """Push, then pull; without `out` into the value."""
        keys, listed = as_keys(key)
        if any(name in self._tables for name in keys):
            result = self._tables.pushpull(self, keys, listed, value, out)
            return LocalHandle(result) if async_op else result
        out = value if out is None else out
        self._outs(keys, listed, out)  # a wrong one must not cost a push
        self.push(key, value, priority)
        return self.pull(key, out, priority, async_op)

    @alone
    def broadcast(self, key: Any, value: Any, out: Any = None, priority: int = 0) -> Any:
        """`init`, then `pull` into `out`."""
        self.init(key, value)
        return self.pull(key, out, priority)

    @alone
    def set_optimizer(
        self, optimizer: str | optim.Optimizer, optimizer_params: Mapping[str, Any] | None = None,
        **hyper: Any,
    ) -> None:
        """Let pushes be gradients; state of an earlier optimizer, or an updater, is dropped."""
        self._check_open()
        self._use(optim.resolve(optimizer, optim.words_of(optimizer_params, hyper)), keep=False)

    @alone
    def _take_optimizer(self, optimizer: optim.Optimizer) -> None:
        """As `set_optimizer`; but what is kept for one of that name stays."""
        self._use(optimizer, keep=self.optimizer == optimizer.name)

    def _use(self, chosen: optim.Optimizer, *, keep: bool) -> None:
        self._optimizer, self._hyper = type(chosen), updates.prepared(chosen.hyper)
        self._updater = None
        if not keep:
            self._forget()
        self._tell_followers()

    def _tell_followers(self, *, weights: bool = False) -> None:
        self._followers.changed(self.optimizer, self.hyperparameters, weights=weights)

    @alone
    def set_hyperparameters(self, **hyper: Any) -> None:
        """Change some hyper-parameters and keep the optimizer's state."""
        self._check_open()
        if self._optimizer is None:
            raise OptimizerError("no optimizer is set", expected="set_optimizer first")
        changed = {**self._hyper, **optim.checked(self._optimizer, hyper)}
        self._hyper = updates.prepared(changed)
        self._tell_followers()

    @alone
    def set_updater(self, updater: Updater | None) -> None:
        """Let a function make the new values: `updater(key, input, stored)` on each push.

        Args:
            updater: Changes `stored`, the store's own array, in place; `input` is what was pushed
                (of several devices the sum), a copy that it may use up. It takes the place of an
                optimizer, whose state is dropped; None: pushes replace values again. What it
                raises comes out of `push`; keys before that one have been updated by then.
        """
        self._check_open()
        if updater is not None and not callable(updater):
            raise ConfigError("an updater is a function of key, input, stored",
                              got=type(updater).__name__)
        self._updater, self._optimizer, self._hyper = updater, None, {}
        self._forget()
        self._tell_followers()

    _set_updater = set_updater

    def barrier(self) -> None:
        """There is nobody to wait for."""
        self._check_open()

    _barrier = barrier

    def join(self) -> int:
        """There is nobody to wait for: this worker, 0, is the last to join."""
        self._check_open()
        return 0

    @alone
    def close(self) -> None:
        """Forget all values."""
        self._closed = True
        self._values.clear()
        self._tables.by_key.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @alone
    def statistics(self) -> dict[str, Any]:
        """Return plain data."""
        self._check_open()
        return {
            "type": self.type, "rank": 0, "keys": len(self._values) + len(self._tables.by_key),
            "rounds": self._rounds,
            "sent_bytes": 0, "received_bytes": 0, "queued_bytes": 0, "queued_frames": 0,
            "unanswered": 0, "budget_used_bytes": 0, "waited_s": {}, "waiting_s": {}, "servers": [],
        }

    @property
    def optimizer(self) -> str | None:
        """As `KVStore.optimizer`."""
        return None if self._optimizer is None else self._optimizer.name

    @property
    def hyperparameters(self) -> dict[str, Any]:
        """As `KVStore.hyperparameters`."""
        return copy.deepcopy(optim.as_given(self._hyper))

    def is_capable(self, capability: str) -> bool:
        """As `KVStore.is_capable`."""
        return is_capable(capability)

    def num_dead_node(self) -> int:
        """Nobody can be lost."""
        return 0

    @alone
    def adopt(self, key: Key, array: Array) -> None:
        """Keep the caller's own array as a key's value, so that updates write into it.

        Args:
            key: It may exist, then with this dtype and shape; what the optimizer keeps stays.
            array: C-contiguous and writable; lent until the store is closed.
        """
        known = self._values.get(key)
        if known is None:
            self._values[key] = Value(key, array)
        elif known.array is not array:
            check_same(key, known.array, array)
            known.array = array

    def _forget(self) -> None:
        for value in self._values.values():
            value.forget()
        self._tables.forget()

    def _arrays(self, key: Any, value: Any) -> tuple[tuple[Key, ...], list[Any]]:
        self._check_open()
        keys, listed = as_keys(key)
        arrays: list[Any] = []
        for name, given in zip(keys, as_values(len(keys), value, listed), strict=True):
            if name in self._tables:
                arrays.append(self._tables.find(name).checked(given))
                continue
            array = merged(given, name)
            check_same(name, self._find(name).array, array)
            arrays.append(array)
        return keys, arrays

    def _apply(self, value: Value, gradient: Array) -> None:
        if self._optimizer is None:
            value.array = gradient.copy()
            value.state.pop(updates.MASTER, None)
            return
        name, hyper, dtype = self._optimizer.name, self._hyper, value.dtype
        total = dtype.widened(gradient.reshape(-1))
        weights = value.array.reshape(-1).view(dtype.bits)
        updates.run(
            name, dtype, weights, weights, total, value.state, hyper, value.updates + 1,
            ((value.key, 0, weights.size),), self._multi_precision,
        )
        value.updates += 1

    def _check_usable(self, key: Key) -> None:
        assert self._optimizer is not None
        try:
            if key in self._tables:
                self._tables.check_usable(key, self._optimizer, self._hyper)
                return
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
        check_outs(keys, stored, outs)
        return outs

    def _find(self, key: Key) -> Value:
        value = self._values.get(key)
        if key in self._tables:
            raise TensorError("pull of a row-sparse key", key=key,
                              expected="row_sparse_pull(key, row_ids)")
        if value is None:
            raise unknown_key(key, self._values)
        return value

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError("the store is closed")
