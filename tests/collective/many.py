"""Very many calls of all verbs and of many sizes, and what a process keeps of them.

`python -m tests.collective.many FOLDER` makes them as one rank of the job that the environment
names. What there was before them and afterwards goes to a file of its rank.
"""

from __future__ import annotations

import ctypes
import gc
import json
import random
import sys
from collections.abc import Callable
from functools import partial, reduce
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import psutil

from asyncps.communicator import Communicator
from tests.support.leaks import running_tasks

WARM_UP = 5_000  # until pools are full
CALLS = 20_000
BATCH = 40  # calls that are made before the first of them is waited for

# Of most arrays, of a tenth of them, and of one in a hundred: beyond what travels at once, so that
# these go in chunks.
SMALL_BYTES, MIDDLE_BYTES, LARGE_BYTES = 2_000, 200_000, ((2 << 20) + 8, 6 << 20)

Array = npt.NDArray[Any]

DTYPES = [np.dtype(name) for name in ("f4", "f8", "f2", "i1", "i4", "i8")]
PATTERN = (np.arange(LARGE_BYTES[1]) % 23).astype(np.int8)
OPS = {"sum": np.add, "min": np.minimum, "max": np.maximum}

Verb = Callable[[Communicator, list[Array], int], tuple[Callable[..., Any], Any]]
Call = tuple[Callable[..., Any], str | None, Any]  # what is called, its name, what it is to bring


# Each verb is made ready with the arrays of all ranks, whose sums are exact in every dtype: what is
# to be called, and what it is to bring.


def _all_reduce(
    comm: Communicator, arrays: list[Array], number: int
) -> tuple[Callable[..., Any], Any]:
    op = list(OPS)[number // 20 % 3]  # some in a row are alike, and may travel together
    wanted = reduce(OPS[op], arrays)
    return partial(comm.all_reduce, arrays[comm.rank], op), wanted


def _grouped_all_reduce(
    comm: Communicator, arrays: list[Array], number: int
) -> tuple[Callable[..., Any], Any]:
    cuts = [arrays[0].size // 3, arrays[0].size // 2]
    wanted = np.split(reduce(np.add, arrays), cuts)
    return partial(comm.grouped_all_reduce, np.split(arrays[comm.rank], cuts)), wanted


def _broadcast(
    comm: Communicator, arrays: list[Array], number: int
) -> tuple[Callable[..., Any], Any]:
    root = number // 20 % comm.world_size
    return partial(comm.broadcast, arrays[comm.rank], root), arrays[root].copy()


def _all_gather(
    comm: Communicator, arrays: list[Array], number: int
) -> tuple[Callable[..., Any], Any]:
    rows = [array[: array.size // (1 + rank)] for rank, array in enumerate(arrays)]
    return partial(comm.all_gather, rows[comm.rank]), np.concatenate(rows)


def _reduce_scatter(
    comm: Communicator, arrays: list[Array], number: int
) -> tuple[Callable[..., Any], Any]:
    wanted = np.array_split(reduce(np.add, arrays), comm.world_size)[comm.rank]
    return partial(comm.reduce_scatter, arrays[comm.rank]), wanted


def _all_to_all(
    comm: Communicator, arrays: list[Array], number: int
) -> tuple[Callable[..., Any], Any]:
    cuts = [np.array_split(array, comm.world_size) for array in arrays]
    came = [cut[comm.rank] for cut in cuts]
    wanted = np.concatenate(came), [each.size for each in came]
    splits = [each.size for each in cuts[comm.rank]]
    return partial(comm.all_to_all, arrays[comm.rank], splits), wanted


def _sparse_all_reduce(
    comm: Communicator, arrays: list[Array], number: int
) -> tuple[Callable[..., Any], Any]:
    # Beyond 64 KiB one row in ten travels with its number, and one in two goes in full.
    size, step = arrays[0].size, (10, 2)[number % 2]
    rows = [np.arange(rank % step, size, step) for rank in range(comm.world_size)]
    wanted = np.zeros(size, arrays[0].dtype)
    for each, array in zip(rows, arrays, strict=True):
        wanted[each] += array[each]
    mine = rows[comm.rank]
    return partial(comm.sparse_all_reduce, mine, arrays[comm.rank][mine], size), wanted


VERBS: list[Verb] = [
    _all_reduce, _all_reduce, _all_reduce, _grouped_all_reduce, _broadcast, _all_gather,
    _reduce_scatter, _all_to_all, _sparse_all_reduce,
]


class Caller:
    """Makes calls at one rank, the same ones as at the others.

    Args:
        comm: Whose calls they are.

    Attributes:
        made: How many.
    """

    def __init__(self, comm: Communicator) -> None:
        self._comm = comm
        self._alike = random.Random(5)  # all ranks draw the same
        self._own = random.Random(comm.rank)
        self.made = 0

    def make(self, count: int) -> None:
        """Make so many calls more, and look at what they bring."""
        last = self.made + count
        while self.made < last:
            self._comm.barrier()
            self.made += 1
            self._batch(min(BATCH, last - self.made))

    def _batch(self, count: int) -> None:
        calls = self._calls(count)
        if self._alike.randrange(3) == 0:
            for call, name, wanted in calls:
                _compare(call(name=name), wanted)
            return
        # Each rank makes those with a name in an order of its own, and waits in one of its own.
        named = [each for each in calls if each[1] is not None]
        self._own.shuffle(named)
        unnamed = [each for each in calls if each[1] is None]
        handles = [(call(name=name, async_op=True), wanted)
                   for call, name, wanted in (*unnamed, *named)]
        self._own.shuffle(handles)
        for handle, wanted in handles:
            if self._own.randrange(50):  # else nobody ever waits for it
                _compare(handle.wait(), wanted)

    def _calls(self, count: int) -> list[Call]:
        found: list[Call] = []
        first = self.made
        while len(found) < count:
            verb, dtype = self._alike.choice(VERBS), self._alike.choice(DTYPES)
            has_names = self._alike.randrange(3) == 0
            for number in range(first + len(found), first + count)[: self._alike.randrange(1, 9)]:
                size = self._size() // dtype.itemsize
                arrays = [PATTERN[:size].astype(dtype) + dtype.type(number % 10 + rank)
                          for rank in range(self._comm.world_size)]
                call, wanted = verb(self._comm, arrays, number)
                found.append((call, f"call {number}" if has_names else None, wanted))
        self.made = first + count
        return found

    def _size(self) -> int:
        kind = self._alike.randrange(100)
        if kind < 1:
            return self._alike.randrange(*LARGE_BYTES)
        if kind < 10:
            return self._alike.randrange(MIDDLE_BYTES)
        return self._alike.randrange(SMALL_BYTES if kind < 90 else 10)


def _compare(found: Any, wanted: Any) -> None:
    if isinstance(wanted, np.ndarray):
        assert np.array_equal(found, wanted), (found, wanted)
        return
    assert len(found) == len(wanted)
    for one, other in zip(found, wanted, strict=True):
        _compare(one, np.asarray(other))


def kept(comm: Communicator) -> dict[str, int]:
    """Return how much the process holds of what calls may leave behind; all ranks ask together."""
    for _ in range(10):  # what was sent before has arrived, and its sender knows that
        comm.barrier()

    async def count() -> int:
        return len(running_tasks())

    tasks = comm._runtime.run(count)
    gc.collect()
    _trim()
    process, pool = psutil.Process(), comm._collecting.pool
    pooled = sum(buffer.nbytes for buffers in pool._free.values() for buffer in buffers)
    assert pooled == pool.free_bytes <= pool.keep_bytes
    found = {
        "tasks": tasks, "threads": process.num_threads(), "descriptors": process.num_fds(),
        "objects": sys.getallocatedblocks(), "resident": process.memory_info().rss - pooled,
        "open": len(open_calls(comm)),
    }
    comm.barrier()  # nobody goes on while others look
    return found


def _trim() -> None:
    """Have the C library give back to the system what it keeps, if it can."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def open_calls(comm: Communicator) -> list[Any]:
    """Return whatever is still there of this rank's calls."""
    calls = comm._fusing
    made = calls._collecting
    found = [calls._names, calls._pending, calls.ahead.bytes, made._made, made._open,
             made._running, made._early._waiting, made._early._rooms,
             [each for ranks in made.sets.values() for each in ranks.matching.missing()],
             comm._fusing._several,
             [peer for peer in made.peers.values() if len(peer._kept) > 16]]
    return [each for each in found if each]


def main(folder: str) -> None:
    """Be one rank."""
    with Communicator.from_env() as comm:
        caller = Caller(comm)
        caller.make(WARM_UP)
        kept(comm)  # what looking takes is there from now on
        found = {"before": kept(comm) | {"calls": caller.made}}
        caller.make(CALLS)
        found["after"] = kept(comm) | {"calls": caller.made}
        Path(folder, f"{comm.rank}.json").write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1])
