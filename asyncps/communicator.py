"""All-reduce and its like between workers, without servers."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from functools import partial
from types import TracebackType
from typing import Any, NoReturn, Self

import numpy as np

from asyncps.codedverbs import CodedVerbs
from asyncps.collectivecall import CollectiveHandle, rows_of
from asyncps.errors import (
    ClusterError,
    ConfigError,
    DtypeMismatch,
    ShapeMismatch,
    TensorError,
    is_text,
)
from asyncps.forming import Forming
from asyncps.fusing import Fusing, Kind, factor_of, op_of
from asyncps.groupedverbs import host_of, values_like
from asyncps.objectverbs import ObjectVerbs
from asyncps.processset import agree, checked, close_set, refuse_nested
from asyncps.roles.machine import place_on_machine
from asyncps.roles.made import MAX_NAME, Op, Verb
from asyncps.roles.runtime import Runtime
from asyncps.roles.worker import Worker
from asyncps.sparseverbs import SparseVerbs
from asyncps.tensor import dtypes
from asyncps.tensor.arrays import from_host, host_memory, is_repeated, library_of

_MOST_KINDS = 256


class Communicator(CodedVerbs, SparseVerbs, ObjectVerbs, Forming):
    """The collective calls of one rank. Methods may be called from any thread.

    Every rank makes the same calls: those with a name in any order, those without in one order. The
    arrays of small calls that are made one after the other travel together.

    Args:
        worker: This process in its job, connected with all others.
        runtime: The loop that it lives on.
        release: Called by `close`.
    """

    def __init__(
        self, worker: Worker, runtime: Runtime, release: Callable[[], None]
    ) -> None:
        mesh = worker.mesh
        if mesh is None or mesh.collecting is None:
            raise ConfigError("this process has joined without being connected with the others",
                              expected="a communicator, or a store of type allreduce, as the first")
        super().__init__(worker, runtime, release)
        self._collecting = mesh.collecting
        self.rank: int = worker.node.rank
        self.world_size: int = worker.node.num_workers
        self._kinds: dict[tuple[Any, ...], Kind] = {}  # by the words of a reduction
        self._fusing = Fusing(mesh.collecting, runtime, self.rank, self.world_size)
        self._ranks: Sequence[int] = range(self.world_size)  # of the job, by rank here
        self._sets: list[ProcessSet] = []
        self._next_set = 1

    # ---- facts ----

    @property
    def size(self) -> int:
        """How many ranks there are."""
        return self.world_size

    @property
    def local_rank(self) -> int:
        """This rank's number among those of its machine: as the launcher says, else by rank."""
        return self._worker.node.local_rank

    @property
    def local_size(self) -> int:
        """How many ranks are on this machine."""
        return place_on_machine(self._worker.node.members, self.rank)[1]

    # ---- verbs ----

    def all_reduce(
        self, x: Any, op: str = "sum", name: str | None = None, async_op: bool = False,
        prescale: float = 1.0, postscale: float = 1.0, out: Any = None,
    ) -> Any:
        """Reduce an array over all ranks, in place or into `out`: all have the same bits.

        Args:
            x: Of any shape, writable; float16, bfloat16, float32, float64, int8, uint8, int32 or
                int64, the same shape and dtype at all ranks. Lent until the call has ended.
            op: "sum", "mean" (not of integers), "min", "max" or "product", in the order of ranks;
                float16 and bfloat16 are reduced in float32 and rounded once.
            name: Pairs the calls of the ranks; None: by their order.
            async_op: Return a handle instead of waiting.
            prescale, postscale: Factors of the result (of integers it is cut towards zero). The
                first is 1 of a product, and not negative of a minimum or a maximum.
            out: Where the result is to be, of x's shape and dtype, writable; it is lent, and x
                only read, now. It may be x, which is what None means. Undefined after a failure.

        Returns:
            `x`, or `out` if it was given; or a handle whose `wait` returns it.

        Raises:
            ShapeMismatch, DtypeMismatch: An `out` that is not like `x`.
            CollectiveMismatch: The ranks have called differently; all of them hear it, and go on.
            TensorError: An array that cannot be reduced; or, at all ranks, one that is to be
                compressed and is not finite, or has another shape than that name had before.
            ConfigError: An unknown `op`, or a name that is under way.
            NodeLost: A rank is gone.
        """
        handle = self._in_place(x if out is None else out, name)
        kind = self._reduction(Verb.ALL_REDUCE, op, handle.array.dtype, prescale, postscale)
        if out is not None and out is not x:
            np.copyto(handle.array, values_like(handle.array, x))
        if self._coded is not None and name is not None:
            coded = self._coded_sum(self._coded, name, handle, kind[1], kind[4])
            if coded is not None:
                return coded if async_op else coded.wait()
        return self._call(kind, handle, async_op)

    def broadcast(
        self, x: Any, root: int = 0, name: str | None = None, async_op: bool = False
    ) -> Any:
        """Let the array of all ranks be that of one, in place.

        Args:
            x: As in `all_reduce`; that of the root is only read.
            root: Whose array it is.
            name, async_op: As in `all_reduce`.

        Returns:
            `x`, or a handle.

        Raises:
            As `all_reduce`.
        """
        self._check_rank(root)
        handle = self._in_place(x, name, written=root != self.rank)
        dtype = dtypes.name_of(handle.array.dtype)
        return self._call(
            (Verb.BROADCAST, Op.NONE, dtype, self._ranks[root], 1.0), handle, async_op)

    def all_gather(self, x: Any, name: str | None = None, async_op: bool = False) -> Any:
        """Return the arrays of all ranks, one behind the other along the first dimension.

        Args:
            x: One dimension or more; the first may differ between ranks.
            name, async_op: As in `all_reduce`.

        Raises:
            As `all_reduce`.
        """
        handle = self._apart(x, name)
        array = handle.array
        handle._finish = partial(rows_of, array=array)
        return self._call((Verb.ALL_GATHER, Op.NONE, dtypes.name_of(array.dtype), 0, 1.0),
                          handle, async_op)

    def reduce_scatter(
        self, x: Any, op: str = "sum", name: str | None = None, async_op: bool = False,
        prescale: float = 1.0, postscale: float = 1.0,
    ) -> Any:
        """Reduce an array over all ranks, and return this rank's rows of it.

        The first dimension is cut into `world_size` parts; the first ones have a row more where it
        does not go up.

        Args:
            x: One dimension or more, the same shape at all ranks; only read.
            op, name, async_op, prescale, postscale: As in `all_reduce`.

        Raises:
            As `all_reduce`.
        """
        handle = self._apart(x, name)
        handle._finish = partial(rows_of, array=handle.array)
        kind = self._reduction(Verb.REDUCE_SCATTER, op, handle.array.dtype, prescale, postscale)
        return self._call(kind, handle, async_op)

    def all_to_all(
        self, x: Any, splits: Sequence[int] | None = None, name: str | None = None,
        async_op: bool = False,
    ) -> Any:
        """Send rows to each rank; return the rows that came, and how many of each rank.

        Args:
            x: One dimension or more.
            splits: How many rows each rank gets; None: the same number each.
            name, async_op: As in `all_reduce`.

        Returns:
            (rows in the order of ranks, their numbers), or a handle whose `wait` returns that.

        Raises:
            As `all_reduce`.
        """
        handle = self._apart(x, name)
        array = handle.array
        world, rows = self.world_size, array.shape[0]
        if splits is None:
            if rows % world:
                raise ShapeMismatch("rows that cannot be split evenly",
                                    expected=f"a multiple of {world}", got=rows)
            splits = [rows // world] * world
        splits = [int(split) for split in splits]
        if len(splits) != world or min(splits) < 0 or sum(splits) != rows:
            raise ShapeMismatch("splits that are not those of the rows", got=splits,
                                expected=f"{world} that sum to {rows}")
        handle._finish = lambda came: (rows_of(came[0], array), came[1])
        return self._call(
            (Verb.ALL_TO_ALL, Op.NONE, dtypes.name_of(array.dtype), 0, 1.0), handle, async_op,
            splits)

    def barrier(self, timeout: float | None = None) -> None:
        """Wait until all ranks have come.

        Raises:
            DeadlineExceeded: Not within `timeout` seconds; it names who has not come.
        """
        handle = CollectiveHandle(self._fusing, "", np.empty(0, np.uint8), None)
        self._fusing.post((Verb.BARRIER, Op.NONE, "", 0, 1.0), handle, [])
        self.flush()
        handle.wait(timeout)

    def join(self) -> int:
        """Take part in nothing more until all ranks have joined, as one that has run out of data.

        Sums are of those that are left. Returns the rank that was the last.
        """
        self.flush()
        self._fusing.check_open()
        self._before_join()
        last = self._runtime.run(lambda: self._collecting.join(self._fusing.number))
        return self._ranks.index(last)

    def process_set(self, ranks: Sequence[int]) -> ProcessSet | None:
        """Make a communicator of some ranks; all ranks call it, with the same ones, in one order.

        Args:
            ranks: Of this communicator, in any order; the set counts them from 0, ascending.

        Returns:
            The set; None at ranks that are not in it.

        Raises:
            CollectiveMismatch: The ranks name different sets; all of them hear it.
            ClusterError: Some ranks have joined.
            ConfigError: Ranks that are none, or named twice.
        """
        members = checked(ranks, self.world_size)
        number, self._next_set = self._next_set, self._next_set + 1
        try:
            if not agree(self, number, members):
                return None
        except ClusterError:  # who has joined has not counted
            self._next_set = number
            raise
        self._sets.append(ProcessSet(self, number, members))
        return self._sets[-1]

    def flush(self) -> None:
        """Make all small calls that wait for more of them."""
        self._fusing.flush()

    def close(self) -> None:
        """Leave the job; what this rank was called for arrives first."""
        if not self._runtime.forked and self._fusing.is_first_to_close():
            for each in self._sets:
                each._fusing.close()
            self._fusing.close()
            self._release()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    # ---- inside ----

    def _check_rank(self, root: object) -> None:
        if not isinstance(root, int) or not 0 <= root < self.world_size:
            raise ConfigError("no rank of this job", expected=f"0 to {self.world_size - 1}",
                              got=root)

    def _reduction(
        self, verb: Verb, op: object, dtype: np.dtype[Any], prescale: float, postscale: float
    ) -> Kind:
        words = verb, op, dtype, prescale, postscale
        with contextlib.suppress(TypeError):  # words that cannot be kept: they are refused below
            if (kind := self._kinds.get(words)) is not None:
                return kind
        number, name = op_of(op), dtypes.name_of(dtype)
        if number == Op.MEAN and not dtypes.by_name(name).is_float:
            raise DtypeMismatch("there is no mean of integers", expected="floats", got=name)
        kind = int(verb), int(number), name, 0, factor_of(number, prescale, postscale)
        if len(self._kinds) < _MOST_KINDS:  # else factors change from call to call
            self._kinds[words] = kind
        return kind

    def _in_place(
        self, x: Any, name: str | None, *, written: bool = True
    ) -> CollectiveHandle:
        """Return the handle of a call that leaves its result in `x`."""
        if type(x) is np.ndarray and (flags := x.flags).c_contiguous:
            if written and not flags.writeable:
                raise TensorError("the array is read-only", expected="one that can be written")
            return CollectiveHandle(self._fusing, "" if name is None else self._name(name), x, x)
        if written and is_repeated(x):
            raise TensorError("several elements in one place", got=type(x).__name__,
                              expected="an array that is not expanded (a copy of it)")
        if (own := None if isinstance(x, np.ndarray) else host_memory(x)) is not None:
            return CollectiveHandle(self._fusing, self._name(name), own, x)
        host = host_of(x)
        if written and not isinstance(x, np.ndarray) and library_of(x) is None:
            raise TensorError("nothing that can be written", expected="an array", got=type(x))
        if isinstance(x, np.ndarray):
            if written and not x.flags.writeable:
                raise TensorError("the array is read-only", expected="one that can be written")
            if np.may_share_memory(host, x):
                host = host.copy()
        place = host if host.flags.writeable else host.copy()

        def finish(_: Any) -> Any:
            if written:
                from_host(x, place)
            return x

        return CollectiveHandle(self._fusing, self._name(name), place, None, finish)

    def _apart(self, x: Any, name: str | None) -> CollectiveHandle:
        """Return the handle of a call that reads `x` and makes a new array."""
        array = host_of(x)
        if not array.ndim:
            raise ShapeMismatch("a scalar has no rows", expected="one dimension or more", got=())
        return CollectiveHandle(self._fusing, self._name(name), array, None)

    def _name(self, name: str | None) -> str:
        if name is None:
            return ""
        if not is_text(name) or not 0 < len(name) <= MAX_NAME:
            raise ConfigError("not a name", expected=f"1 to {MAX_NAME} characters", got=repr(name))
        return name

    def _call(
        self, kind: Kind, handle: CollectiveHandle, async_op: bool,
        splits: list[int] | None = None,
    ) -> Any:
        self._fusing.post(kind, handle, splits or [])
        if async_op:
            return handle
        return handle.wait()


class ProcessSet(Communicator):
    """Some ranks of a communicator: its verbs among them. `rank` and `root` count within the set;
    errors name ranks of the job. `local_rank` and `local_size` are those of the job.

    `close` leaves the set: others that call it afterwards hear that.

    Args:
        world: The communicator of all.
        number: Of the set.
        ranks: Of the job, ascending.
    """

    def __init__(self, world: Communicator, number: int, ranks: Sequence[int]) -> None:
        SparseVerbs.__init__(self, world._worker, world._runtime, world._release)
        self._world = world
        self._collecting = world._collecting
        self._ranks = ranks
        self.rank, self.world_size = ranks.index(world.rank), len(ranks)
        self._kinds = world._kinds
        self._fusing = Fusing(self._collecting, self._runtime, world.rank, len(ranks), number,
                              world._fusing.ahead)

    local_rank = property(lambda self: self._world.local_rank)
    local_size = property(lambda self: self._world.local_size)

    def process_set(self, ranks: Sequence[int]) -> NoReturn:
        """Refuse: sets are made by the communicator of all."""
        refuse_nested()

    @classmethod
    def _open(cls, settings: Any, clustered: bool = True) -> NoReturn:
        refuse_nested()

    def close(self) -> None:
        """Take part in the set no more."""
        close_set(self._fusing, self._runtime, self._collecting)
