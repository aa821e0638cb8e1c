"""Which calls of one store have encoded values, or are about to, that the loop has not seen yet.

Encoding changes what a worker has not sent, and callers' threads encode. So whoever saves or loads
says first that the store stands still, and then waits until nothing here is under way; and whoever
encodes is here first, and then looks whether the store stands still. One of the two sees the other,
and neither needs a lock that the loop, a signal handler or the garbage collector could wait for.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools

from asyncps.errors import DeadlineExceeded
from asyncps.roles.operation import resolve

_Waiting = tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]


class Encodings:
    """Of one store; any thread may begin and end one."""

    def __init__(self) -> None:
        self._numbers = itertools.count()
        self._under_way: set[int] = set()
        self._waiting: _Waiting | None = None

    def begin(self) -> Encoding:
        """Take note that a call is about to encode; it may not, if the store stands still now."""
        number = next(self._numbers)
        encoding = Encoding(self, number)
        self._under_way.add(number)
        return encoding

    def end(self, number: int) -> None:
        """Take note that a call was sent, or put back; once more does no harm."""
        self._under_way.discard(number)
        waiting = self._waiting
        if waiting is not None and not self._under_way:
            loop, over = waiting
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits
                loop.call_soon_threadsafe(resolve, over)

    @property
    def waited_for(self) -> bool:
        """Whether somebody waits until nothing is under way."""
        return self._waiting is not None

    async def over(self, limit_s: float) -> None:
        """Wait until nothing is under way. Runs on the loop; one at a time may wait.

        Args:
            limit_s: For how many seconds.

        Raises:
            DeadlineExceeded: A call neither began nor was given up in that time.
        """
        if not self._under_way:
            return
        loop = asyncio.get_running_loop()
        over: asyncio.Future[None] = loop.create_future()
        self._waiting = loop, over
        try:
            if self._under_way:  # what ended before that told nobody
                await asyncio.wait({over}, timeout=limit_s)
        finally:
            self._waiting = None
        if self._under_way:
            raise DeadlineExceeded(
                f"pushes of other threads are encoded and have not begun within {limit_s:g} s",
                expected="none", got=len(self._under_way))


class Encoding:
    """One call that encodes, until it is sent or put back.

    It ends too when nobody knows it any more: a signal handler may raise anywhere.
    """

    __slots__ = ("_number", "_of")

    def __init__(self, of: Encodings, number: int) -> None:
        self._of = of
        self._number = number

    def end(self) -> None:
        """It was sent, or put back."""
        self._of.end(self._number)

    def __del__(self) -> None:
        self._of.end(self._number)
