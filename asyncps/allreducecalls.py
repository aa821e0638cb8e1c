"""What stores without servers share: one communicator a worker, names for its calls, their ends.

Calls of one key are paired by their order, so each carries its number. A worker that has joined
has made fewer than the others; so all begin to count anew when all have joined.
"""

from __future__ import annotations

import hashlib
import re
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from asyncps.collectivecall import CollectiveHandle
from asyncps.communicator import Communicator
from asyncps.errors import AsyncPSError, ClusterError
from asyncps.roles.made import MAX_NAME
from asyncps.roles.worker import Worker
from asyncps.tensor.dtypes import Array

Copies = list[Callable[[], None]]


class Calling:
    """The calls of all stores of one worker that have no servers. Any thread.

    Args:
        comm: Its connections with the other workers.
        worker: This process in its job.

    Attributes:
        lock: Held while a store names calls and makes them.
    """

    def __init__(self, comm: Communicator, worker: Worker) -> None:
        self.comm = comm
        self.worker = worker
        self.lock = threading.RLock()
        self._counts: dict[str, int] = {}
        self._epoch = 0  # how often all have joined
        self._joining = False

    def name(self, of: str) -> str:
        """Name the next call of something; the lock is held.

        Raises:
            ClusterError: This worker has joined, and not all have.
        """
        if self._joining:
            raise ClusterError("a call of a worker that has joined: it counts again when all have")
        count = self._counts[of] = self._counts.get(of, 0) + 1
        name = f"{of}, {self._epoch}.{count}"
        if len(name) > MAX_NAME:  # of a key that nobody can read
            name = hashlib.sha256(name.encode()).hexdigest()
        return name

    def made(self, of: str, make: Callable[[str], CollectiveHandle]) -> CollectiveHandle:
        """Name a call and make it; one that cannot be made takes no number. The lock is held."""
        name = self.name(of)
        try:
            return make(name)
        except BaseException:
            self._counts[of] -= 1
            raise

    def join(self) -> int:
        """Join, with all stores; return who was the last."""
        with self.lock:
            if self._joining:
                raise ClusterError("this worker has joined already, and waits for the others")
            self._joining = True
        last = self.comm.join()
        with self.lock:
            self._epoch += 1
            self._counts.clear()
            self._joining = False
        return last


class CallsHandle:
    """A verb of a store without servers: one collective call a key, all under way.

    Args:
        verb: What it is.
        handles: Of the calls.
        finishing: Copies to be made when all have ended.
        result: What the verb returns.
        heard: Called with this when somebody hears how it ended.
    """

    def __init__(
        self, verb: str, handles: Sequence[CollectiveHandle],
        finishing: Sequence[Callable[[], None]], result: Any,
        heard: Callable[[CallsHandle], None],
    ) -> None:
        self._verb = verb
        self._handles = handles
        self._finishing = finishing
        self._result = result
        self._heard = heard
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        state = "under way"
        if self.ended:
            error = self.error
            state = "done" if error is None else repr(error)
        return f"<Handle of a {self._verb}: {state}>"

    def wait(self, timeout: float | None = None) -> Any:
        """Wait for the end and return the result.

        Args:
            timeout: Seconds; None waits as long as the job's own deadline (`round_s`).

        Raises:
            DeadlineExceeded: It has not ended in time, and names who has not called; it goes on,
                and may be waited for again.
            CollectiveMismatch: The workers have called differently.
            AsyncPSError: Why it failed; raised when all its keys have ended, for until then arrays
                are being written.
        """
        end = None if timeout is None else time.monotonic() + timeout
        for handle in self._handles:
            if not handle.ended:
                left = None if end is None else max(0.0, end - time.monotonic())
                try:
                    handle.wait(left)
                except AsyncPSError:
                    if not handle.ended:
                        raise
        self._heard(self)
        if self.error is not None:
            raise self.error.again()
        self._settle()
        return self._result

    def done(self) -> bool:
        """Tell whether it has ended, well or not."""
        over = all([handle.done() for handle in self._handles])
        if over and self.error is None:
            self._settle()
        return over

    def exception(self) -> AsyncPSError | None:
        """Return why it failed, None when it did not or has not ended."""
        if not self.ended:
            return None
        self._heard(self)
        return self.error

    # ---- the store's ----

    @property
    def ended(self) -> bool:
        """Whether all calls have ended."""
        return all(handle.ended for handle in self._handles)

    @property
    def has_failed(self) -> bool:
        """Whether one has, as far as is known without looking at results."""
        return any(handle.has_failed for handle in self._handles)

    @property
    def error(self) -> AsyncPSError | None:
        """Why the first one failed that did; what came of all others is in its place."""
        found = [handle.exception() for handle in self._handles]
        return next((error for error in found if error is not None), None)

    def _settle(self) -> None:
        with self._lock:
            for copy in self._finishing:
                copy()
            self._finishing = ()


_EMPTY = re.compile(r"shape \(0,(?: ([^)]*))?\) and \(0,(?: ([^)]*))?\)")


def without_empty(message: str) -> str:
    """Write shapes that differ without the dimension that says that no element travels."""
    return re.sub(_EMPTY, _shapes, message)


def _shapes(found: re.Match[str]) -> str:
    one, other = (f"({text}{',' if text.isdigit() else ''})" for text in found.groups(""))
    return f"shape {one} and {other}"


def place_of(targets: Sequence[Array]) -> Array:
    """Return where a result may be made: the first place, or memory beside it."""
    first = targets[0]
    if type(first) is np.ndarray and first.flags.c_contiguous:
        return first
    return np.empty(first.shape, first.dtype)


def copies_of(place: Array, targets: Sequence[Array]) -> Copies:
    """Return what brings a result from there to its other places."""
    return [partial(np.copyto, target, place) for target in targets if target is not place]
