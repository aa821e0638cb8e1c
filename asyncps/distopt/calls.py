"""The collective calls of one DistOpt, by names of their own.

A worker whose backward pass fails has made fewer calls than the others. By place, its next one
would be taken for one that they made before; by name, what it has not made waits for nobody else.
"""

from __future__ import annotations

import threading
from typing import Any
from weakref import WeakKeyDictionary

from asyncps.collectivecall import OWN
from asyncps.communicator import Communicator
from asyncps.tensor.dtypes import Array

__all__ = ["Calls"]

# How many DistOpts each communicator has had: all workers make them in one order.
_made: WeakKeyDictionary[Communicator, int] = WeakKeyDictionary()
_lock = threading.Lock()


class Calls:
    """A communicator whose calls are named: by DistOpt, verb and place in that verb.

    Args:
        comm: It.

    Attributes:
        world_size: How many workers there are.
    """

    def __init__(self, comm: Communicator) -> None:
        self._comm = comm
        self.world_size = comm.world_size
        with _lock:
            self._number = _made[comm] = _made.get(comm, 0) + 1
        self._verb = self._place = 0

    def begin(self) -> None:
        """The next verb: all workers call the same ones, whether they succeed or not."""
        self._verb += 1
        self._place = 0

    def all_reduce(self, x: Array, op: str) -> Any:
        """Return the handle of a sum or mean in place."""
        return self._comm.all_reduce(x, op=op, name=self._name(), async_op=True)

    def all_gather(self, x: Array) -> Any:
        """Return the handle of the arrays of all, one behind the other."""
        return self._comm.all_gather(x, name=self._name(), async_op=True)

    def broadcast(self, x: Array, root: int) -> None:
        """Let x be that of one worker."""
        self._comm.broadcast(x, root=root, name=self._name())

    def _name(self) -> str:
        self._place += 1
        return f"{OWN}distopt-{self._number}/{self._verb}/{self._place}"
