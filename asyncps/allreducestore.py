"""AllReduceStore: a store without servers; what workers push together is summed between them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Self

import numpy as np

from asyncps.allended import wait_for_all
from asyncps.allreducecalls import (
    Calling,
    CallsHandle,
    Copies,
    copies_of,
    place_of,
    without_empty,
)
from asyncps.codedstore import CodedStoreVerbs
from asyncps.collectivecall import CollectiveHandle
from asyncps.core import is_capable
from asyncps.errors import (
    ClosedError,
    CollectiveMismatch,
    DtypeMismatch,
    NodeLost,
    ShapeMismatch,
)  # fmt: skip
from asyncps.following import Followers
from asyncps.initializer import Initializer
from asyncps.localvalues import check_outs, check_same
from asyncps.roles.made import Op
from asyncps.state.keys import check_key, unknown_key
from asyncps.tensor import dtypes
from asyncps.tensor.rowsparse import RowSparse
from asyncps.values import (
    Array,
    Key,
    as_keys,
    as_priority,
    as_values,
    check_text,
    device_values,
    host_array,
    key_spec,
    merged,
)
from asyncps.withoutservers import WithoutServers

_MOST_DIMENSIONS = 63  # NumPy's 64, and one more that says that no element travels

_FEW = 32  # handles that nobody has waited for, before it is looked which have ended


class AllReduceStore(CodedStoreVerbs, WithoutServers):
    """A store whose workers sum among themselves: `pushpull` is an all-reduce.

    Nothing is kept but the dtypes and shapes of keys, and what compression has not sent. Made by
    `asyncps.create("allreduce")` or `LocalCluster.run`. May be used from several threads. Every
    worker makes the same calls; those of one key in one order, those of different keys in any.

    Args:
        calling: What the stores of this worker share.
        name: Stores of one name are one store for all workers.
        reduce: "sum" or "mean".
        on_close: Called at the end, with whether it is a good one.
    """

    type = "allreduce"
    optimizer = None
    keeps_values = False  # what a trainer looks at

    def __init__(
        self, calling: Calling, name: str, reduce: str, on_close: Callable[[bool], None]
    ) -> None:
        self._calling = calling
        self._comm = calling.comm
        self._name = name
        self._reduce = reduce
        self._op = Op.MEAN if reduce == "mean" else Op.SUM
        self._on_close = on_close
        self._keys: dict[Key, Array] = {}  # an array of one element, repeated: dtype and shape
        self._open: set[CallsHandle] = set()  # of which nobody has heard the end
        self._most_open = _FEW
        self._closed = False
        self._followers = Followers()

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: worker {self.rank} of {self.num_workers}>"

    # ---- facts ----

    @property
    def rank(self) -> int:
        """This worker's number, from 0."""
        return self._comm.rank

    @property
    def num_workers(self) -> int:
        """How many workers there are."""
        return self._comm.world_size

    @property
    def local_rank(self) -> int:
        """This worker's number on its machine, from 0."""
        return self._comm.local_rank

    @property
    def hyperparameters(self) -> dict[str, Any]:
        """Empty: there is no optimizer here."""
        return {}

    def is_capable(self, capability: str) -> bool:
        """Tell whether the store can do something: "optimizer", which MXNet asks, it cannot."""
        is_capable(capability)
        return False

    def num_dead_node(self) -> int:
        """Return how many nodes are known to be lost."""
        node = self._calling.worker.node
        return len(node.gone) + (1 if isinstance(node.failure, NodeLost) else 0)

    # ---- values ----

    def init(
        self, key: Any, value: Any, *, shape: Any = None, dtype: Any = np.float32
    ) -> None:
        """Tell dtypes and shapes of keys; every worker calls this with the same ones.

        Args:
            key: A str or 64-bit int, or a list of them; 5 and "5" are two keys.
            value: An array (dtype f16 bf16 f32 f64 i8 u8 i32 i64, any shape), or a list of them;
                only looked at. To have rank 0's values everywhere call `broadcast`.
            shape, dtype: Of row-sparse keys, which are not there yet.

        Returns when all have called. A key that exists is checked.

        Raises:
            CollectiveMismatch: Workers say different things of a key; all hear it, with ranks.
            ShapeMismatch, DtypeMismatch: The key exists here and is different.
        """
        if shape is not None:
            self.refuse_tables()
        keys, listed = as_keys(key)
        _, fresh = self._declared(keys, as_values(len(keys), value, listed))
        specs = [fresh[name] if name in fresh else self._keys[name] for name in keys]
        calls = [(name, np.empty((0, *spec.shape), spec.dtype))
                 for name, spec in zip(keys, specs, strict=True)]
        with self._learning(fresh):
            self._begin("init", calls, self._share, [], None).wait()

    def broadcast(self, key: Any, value: Any, out: Any = None, priority: int = 0) -> Any:
        """Let all workers have rank 0's values; every worker calls this.

        Args:
            key: A key or a list of keys; those that do not exist are made, as by `init`.
            value: As in `init`; of rank 0 it is read, of others only looked at.
            out: An array of the key's dtype and shape (or several: all are filled), or a list of
                such, one a key; None makes new arrays. It may be the value.
            priority: Means nothing here.

        Returns:
            The array, or list of arrays.

        Raises:
            As `init`.
        """
        as_priority(priority)
        keys, listed = as_keys(key)
        arrays, fresh = self._declared(keys, as_values(len(keys), value, listed))
        outs: Sequence[Any] = [np.empty(array.shape, array.dtype) for array in arrays]
        if out is not None:
            outs = as_values(len(keys), out, listed)
        check_outs(keys, arrays, outs)
        finishing: Copies = []
        calls = []
        for name, array, given in zip(keys, arrays, outs, strict=True):
            targets = device_values(given, name)
            place = array if self.rank == 0 else place_of(targets)
            finishing += copies_of(place, targets)
            calls.append((name, place))
        with self._learning(fresh):
            return self._begin("broadcast", calls, self._share, finishing,
                               outs if listed else outs[0]).wait()

    def pushpull(
        self, key: Any, value: Any, out: Any = None, priority: int = 0, async_op: bool = False
    ) -> Any:
        """Sum values over all workers, in the order of ranks: all have the same bits.

        Args:
            key: A key or a list of keys that exist.
            value: An array of the key's dtype and shape, or a list (one a key). A list of arrays
                for one key is the values of several local devices, summed first.
            out: As in `broadcast`; None writes into the value. Written until this returns or the
                handle resolves; it is then as far as it was if that fails.
            priority: Means nothing here: what is called first goes first.
            async_op: Return a handle instead of waiting; it need not be the last call of its key.

        Returns:
            The array (or list of arrays), or a handle whose `wait()` returns that.

        Raises:
            UnknownKey: A key that was never initialised.
            ShapeMismatch, DtypeMismatch: A value or `out` that is not as its key; nothing is sent.
            CollectiveMismatch: The workers have called differently; all hear it, and go on.
            TensorError: A value of a compressed key is not finite; all hear it, and go on.
            NodeLost: A worker is gone.
        """
        self._check_open()
        as_priority(priority)
        keys, listed = as_keys(key)
        values = as_values(len(keys), value, listed)
        outs = values if out is None else as_values(len(keys), out, listed)
        specs = [self._find(name) for name in keys]
        arrays = [merged(given, name) for name, given in zip(keys, values, strict=True)]
        for name, spec, array in zip(keys, specs, arrays, strict=True):
            check_same(name, spec, array)
        check_outs(keys, specs, outs)
        read = {id(array): at for at, array in enumerate(arrays)}
        finishing: Copies = []
        calls = []
        for at, (name, array) in enumerate(zip(keys, arrays, strict=True)):
            targets = device_values(outs[at], name)
            place = place_of(targets)
            if read.get(id(place), at) != at:  # the value of another key, which is still read
                place = np.empty(array.shape, array.dtype)
            if place is not array:
                np.copyto(place, array)
            finishing += copies_of(place, targets)
            calls.append((name, place))
        handle = self._begin("pushpull", calls, self._sum, finishing, outs if listed else outs[0])
        if not async_op:
            return handle.wait()
        self._note(handle)
        return handle

    # ---- the job ----

    def barrier(self) -> None:
        """Wait for all workers.

        Raises:
            DeadlineExceeded: Somebody has not come in time (`round_s`); it names who.
        """
        with self._calling.lock:
            self._check_open()
            handle = self._comm.all_reduce(
                np.empty(0, np.uint8), name=self._calling.name(f"barrier of store {self._name!r}"),
                async_op=True)
        handle.wait()

    _barrier = barrier

    def join(self) -> int:
        """Say that this worker has no more data, and wait until all workers have said so.

        Sums and barriers are of those that are left; of all stores without servers of this
        process, for the worker is one. When all have joined everybody counts again.

        Returns:
            The rank of the worker that joined last: of those that made most calls the highest.

        Raises:
            ConfigError: A trainer of this store updates here; it would miss the others' steps.
            WorkerLost: A worker was lost.
        """
        self._check_open()
        self._followers.check_join()
        return self._calling.join()

    def close(self) -> None:
        """Wait until what was begun has ended, then leave for good.

        Raises:
            AsyncPSError: Something had failed that nobody has waited for; it has left all the same.
        """
        self._on_close(True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        """Close; after an exception go without a goodbye, so that the others hear of a loss."""
        self._on_close(kind is None)

    # ---- inside ----

    def _finish(self) -> None:
        """Refuse calls from now on, and wait for those that were made."""
        with self._calling.lock:
            self._closed = True
            handles, self._open = self._open, set()
        wait_for_all(handles)

    def _abandon(self) -> None:
        self._closed = True
        self._open = set()

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError("the store is closed")

    def _find(self, key: Key) -> Array:
        spec = self._keys.get(key)
        if spec is None:
            raise unknown_key(key, self._keys)
        return spec

    def _declared(
        self, keys: Sequence[Key], values: Sequence[Any]
    ) -> tuple[list[Array], dict[Key, Array]]:
        """Return the first device's array of each key, and what keys are that do not exist yet."""
        self._check_open()
        check_text(keys)
        arrays: list[Array] = []
        fresh: dict[Key, Array] = {}
        for name, given in zip(keys, values, strict=True):
            check_key(name)
            first = device_values(given, name)[0]
            if isinstance(first, (RowSparse, Initializer)):
                self.refuse_tables()
            array = host_array(first, name)
            arrays.append(array)
            if name in self._keys:
                check_same(name, self._keys[name], array)
                continue
            dtype = dtypes.by_name(key_spec(name, array).dtype)
            if self._reduce == "mean" and not dtype.is_float:
                raise DtypeMismatch("the mean of integers", key=name, expected="a float dtype",
                                    got=array.dtype)
            if array.ndim > _MOST_DIMENSIONS:
                raise ShapeMismatch("too many dimensions", key=name, got=array.ndim,
                                    expected=f"at most {_MOST_DIMENSIONS}")
            fresh[name] = np.broadcast_to(np.zeros((), array.dtype), array.shape)
        return arrays, fresh

    @contextlib.contextmanager
    def _learning(self, fresh: dict[Key, Array]) -> Iterator[None]:
        """Know new keys once all workers agree on them."""
        try:
            yield
        except CollectiveMismatch as error:
            told = error.again()
            told.message = without_empty(told.message)
            raise told from None
        self._keys.update(fresh)
        if self._coded is not None:
            for name, spec in fresh.items():
                self._coded.know(name, spec)

    def _begin(
        self, verb: str, calls: Sequence[tuple[Key, Array]],
        make: Callable[[Key, Array, str], CollectiveHandle], finishing: Copies, result: Any,
    ) -> CallsHandle:
        """Make one collective call a key, behind each other."""
        handles: list[CollectiveHandle] = []
        with self._calling.lock:
            self._check_open()
            try:
                for key, array in calls:
                    handles.append(self._calling.made(
                        f"key {key!r} of store {self._name!r}", partial(make, key, array)))
            except BaseException:
                self._note(CallsHandle(verb, handles, (), None, self._heard))
                raise
        return CallsHandle(verb, handles, finishing, result, self._heard)

    def _share(self, key: Key, array: Array, name: str) -> CollectiveHandle:
        handle: CollectiveHandle = self._comm.broadcast(array, name=name, async_op=True)
        return handle

    def _sum(self, key: Key, array: Array, name: str) -> CollectiveHandle:
        comm, coded = self._comm, self._coded
        handle: CollectiveHandle | None = None
        if coded is not None and coded.is_set:
            coded.look()
            handle = comm._coded_sum(coded, key, comm._in_place(array, name), self._op, 1.0)
        if handle is None:
            handle = comm.all_reduce(array, self._reduce, name, async_op=True)
        return handle

    def _note(self, handle: CallsHandle) -> None:
        """Keep a handle until it is waited for: who drops it shall hear of a failure at the end."""
        with self._calling.lock:
            if len(self._open) >= self._most_open:
                self._open = {each for each in list(self._open)
                              if not each.ended or each.has_failed}
                self._most_open = max(_FEW, 2 * len(self._open))
            self._open.add(handle)

    def _heard(self, handle: CallsHandle) -> None:
        self._open.discard(handle)
