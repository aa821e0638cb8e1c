"""A communicator of threads: the ranks of a group in one process, computed by NumPy."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import numpy as np

Result = TypeVar("Result")


class Done:
    """The handle of a call that is over."""

    def __init__(self, value: Any) -> None:
        self._value = value

    def wait(self, timeout: float | None = None) -> Any:
        return self._value

    def done(self) -> bool:
        return True


class ThreadComm:
    """One rank. Every call waits for all ranks, which call in one order.

    Attributes:
        calls: Verb, shape and dtype of each call.
    """

    def __init__(self, group: ThreadGroup, rank: int) -> None:
        self._group = group
        self.rank = self.local_rank = rank
        self.world_size = self.size = self.local_size = group.size
        self.calls: list[tuple[str, tuple[int, ...], str]] = []
        self.closed = False
        self._names: set[Any] = set()

    def all_reduce(self, x: Any, op: str = "sum", name: Any = None, async_op: bool = False) -> Any:
        assert x.flags.c_contiguous
        assert x.flags.writeable
        self._check_name(name)
        self.calls.append((op, x.shape, x.dtype.name))
        wide = np.float32 if x.dtype.itemsize == 2 else x.dtype
        total = np.zeros(x.shape, wide)
        with np.errstate(over="ignore"):
            for part in self._group.exchange(self.rank, x.astype(wide)):
                total += part
            x[...] = total / self.world_size if op == "mean" else total
        return Done(x) if async_op else x

    def all_gather(self, x: Any, name: Any = None, async_op: bool = False) -> Any:
        self._check_name(name)
        self.calls.append(("gather", x.shape, x.dtype.name))
        found = np.concatenate(self._group.exchange(self.rank, x.copy()))
        found.flags.writeable = False
        return Done(found) if async_op else found

    def broadcast(self, x: Any, root: int = 0, name: Any = None, async_op: bool = False) -> Any:
        self._check_name(name)
        self.calls.append(("broadcast", x.shape, x.dtype.name))
        x[...] = self._group.exchange(self.rank, x.copy())[root]
        return Done(x) if async_op else x

    def close(self) -> None:
        self.closed = True

    def _check_name(self, name: Any) -> None:
        """All ranks say the same name, and each once."""
        assert name not in self._names
        self._names.add(name)
        assert set(self._group.exchange(self.rank, name)) == {name}


class ThreadGroup:
    """Ranks as threads, which meet in each call."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._slots: list[Any] = [None] * size
        self._barrier = threading.Barrier(size, timeout=20)

    def exchange(self, rank: int, value: Any) -> list[Any]:
        """Hand in one value, and get those of all ranks."""
        self._slots[rank] = value
        self._barrier.wait()
        found = list(self._slots)
        self._barrier.wait()
        return found

    def run(self, work: Callable[[ThreadComm], Result]) -> list[Result]:
        """Run something on all ranks; what fails at one ends the others too."""

        def one(rank: int) -> Result:
            try:
                return work(ThreadComm(self, rank))
            except BaseException:
                self._barrier.abort()
                raise

        with ThreadPoolExecutor(self.size) as pool:
            futures = [pool.submit(one, rank) for rank in range(self.size)]
        failed = [error for each in futures if (error := each.exception()) is not None]
        for error in failed:
            if not isinstance(error, threading.BrokenBarrierError):
                raise error
        return [each.result() for each in futures]


def run(size: int, work: Callable[[ThreadComm], Result]) -> list[Result]:
    """Run something on `size` ranks; returns what each returned, in rank order."""
    return ThreadGroup(size).run(work)
