"""A thread beside the loop, where users' own code works: slow or stuck, it stops nobody else."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable
from functools import partial
from queue import SimpleQueue

log = logging.getLogger(__name__)

Call = Callable[[], None]

# How long the end of a server waits for a piece of work that has begun. Nobody needs it any more,
# and nothing can stop it.
END_S = 2.0


class Workshop:
    """Does one piece of work after the other, in the order in which they came.

    Everything but the work itself happens on the loop. The thread starts with the first piece.
    """

    def __init__(self) -> None:
        self._pieces: SimpleQueue[tuple[Call, Call] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ended = asyncio.Event()
        self._closed = False

    def do(self, work: Call, then: Call) -> None:
        """Have a piece of work done.

        Args:
            work: Called in the thread; raises nothing.
            then: Called on the loop afterwards, unless the workshop was closed meanwhile.
        """
        if self._closed:
            return
        if self._thread is None:
            self._loop = asyncio.get_running_loop()
            # A daemon: what never ends must not keep the process.
            self._thread = threading.Thread(
                target=self._run, name="asyncps optimizers", daemon=True
            )
            self._thread.start()
        self._pieces.put((work, then))

    async def close(self) -> None:
        """Drop what has not begun, and wait for the thread; not for ever."""
        self._closed = True
        if self._thread is None:
            return
        self._pieces.put(None)
        try:
            async with asyncio.timeout(END_S):
                await self._ended.wait()
        except TimeoutError:
            log.warning("an optimizer of the user's own is still at work after %g s, and is left "
                        "behind", END_S)
            return
        self._thread.join()

    def _run(self) -> None:
        while (piece := self._pieces.get()) is not None and not self._closed:
            work, then = piece
            work()
            self._tell(partial(self._come_back, then))
        self._tell(self._ended.set)

    def _come_back(self, then: Call) -> None:
        if not self._closed:
            then()

    def _tell(self, what: Call) -> None:
        assert self._loop is not None
        with contextlib.suppress(RuntimeError):  # the loop was closed: nobody is left to hear it
            self._loop.call_soon_threadsafe(what)
