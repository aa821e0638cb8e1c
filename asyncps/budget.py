"""How much a worker may have on its way that is not accepted yet."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

from asyncps.errors import DeadlineExceeded
from asyncps.roles.operation import Operation


class Budget:
    """Bytes of copies that may wait to be accepted; a push beyond it waits.

    Args:
        limit: The budget in bytes; one push larger than all of it goes alone.
        whom: Names the servers that have not accepted yet, for messages.
    """

    def __init__(self, limit: int, whom: Callable[[], str]) -> None:
        self._limit = limit
        self._whom = whom
        self._used = 0
        self._condition = threading.Condition()
        self._waiting: list[asyncio.Future[None]] = []

    @property
    def used(self) -> int:
        """Bytes in use."""
        return self._used

    def wait(self, op: Operation, size: int, deadline_s: float) -> None:
        """Block this thread until there is room, and take it until the operation ends."""
        taken = False

        def give() -> None:
            if taken:
                self._give(size)

        op.finally_(give)  # first: a signal handler may raise anywhere behind
        with self._condition:
            if not self._condition.wait_for(lambda: self._fits(size), deadline_s):
                raise self._exceeded(size, deadline_s)
            self._used += size
            taken = True

    async def acquire(self, op: Operation, size: int, deadline_s: float) -> None:
        """The same on the loop."""
        try:
            async with asyncio.timeout(deadline_s):
                while not self._fits(size):
                    room = asyncio.get_running_loop().create_future()
                    self._waiting.append(room)
                    await room
        except TimeoutError:
            raise self._exceeded(size, deadline_s) from None
        self._used += size
        op.finally_(lambda: self._give(size))

    def _fits(self, size: int) -> bool:
        return self._used == 0 or self._used + size <= self._limit

    def _give(self, size: int) -> None:
        with self._condition:
            self._used -= size
            self._condition.notify_all()
        waiting, self._waiting = self._waiting, []
        for room in waiting:
            if not room.done():
                room.set_result(None)

    def _exceeded(self, size: int, deadline_s: float) -> DeadlineExceeded:
        return DeadlineExceeded(
            f"{self._whom()} did not accept earlier pushes within {deadline_s:g} s",
            expected=f"room for {size} bytes in a send budget of {self._limit}",
            got=f"{self._used} bytes not accepted yet",
        )
