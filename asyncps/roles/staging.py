"""Calls whose large values are encoded chunk by chunk as they are sent.

Encoding all of a value before its first byte travels would leave link and servers idle. So the loop
encodes one chunk, hands it to the socket, looks at what has come, and goes on with the next.

What has begun is finished in its order: a chunk that was not sent yet has no clock, and nothing
else that speaks of its key may take one before. Whoever needs to know that all has been sent, or
must give the caller's memory back, calls `finish`.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator

from asyncps.errors import AsyncPSError
from asyncps.roles.operation import Operation, no_worker, why_failed
from asyncps.roles.plan import KeyInfo, Plan


class Staging:
    """The calls of one store that are being sent in steps. Runs on the loop.

    Args:
        give_up: Ends this worker, when a call that counts cannot be sent.
    """

    def __init__(self, give_up: Callable[[Exception], AsyncPSError] = no_worker) -> None:
        self._give_up = give_up
        self._error: AsyncPSError | None = None  # why nothing can be sent any more
        self._stepping = False
        self._walks: deque[tuple[Operation, Plan, Iterator[None]]] = deque()
        self._keys: dict[KeyInfo, int] = {}  # keys of these calls, how often

    def concerns(self, plan: Plan) -> bool:
        """Tell whether a call must go behind those that are here."""
        return bool(self._keys) and any(info in self._keys for info in plan.infos)

    def add(self, op: Operation, plan: Plan, walk: Iterator[None]) -> None:
        """Send in steps, behind what is here.

        Args:
            op: Whose last part is done when the walk ends.
            plan: What it speaks of.
            walk: Sends a part at each step.
        """
        for info in plan.infos:
            self._keys[info] = self._keys.get(info, 0) + 1
        self._walks.append((op, plan, walk))
        if len(self._walks) == 1:
            self._go_on()

    def finish(self) -> None:
        """Send all that is here, now."""
        while self._walks:
            self._step()

    def fail(self, error: AsyncPSError) -> None:
        """End all that is here: nothing can be sent any more."""
        self._error = error
        if not self._stepping:  # else the step that we are called from ends first
            self.finish()

    def _go_on(self) -> None:
        """Take a step, and let the loop do its other work before the next."""
        if self._error is not None:
            self.finish()
        if self._walks:
            self._step()
        if self._walks:
            asyncio.get_running_loop().call_soon(self._go_on)

    def _step(self) -> None:
        op, plan, walk = self._walks[0]
        if self._take_step(op, walk):
            return
        self._walks.popleft()
        for info in plan.infos:
            self._keys[info] -= 1
            if not self._keys[info]:
                del self._keys[info]

    def _take_step(self, op: Operation, walk: Iterator[None]) -> bool:
        """Take one step, and tell whether there are more."""
        if self._error is not None:
            op.part_done(self._error)
            return False
        self._stepping = True
        try:
            next(walk)
        except StopIteration:
            return False
        except Exception as failed:  # noqa: BLE001 - `why_failed` tells it
            op.part_done(why_failed(op, failed, self._give_up))
            return False
        finally:
            self._stepping = False
        return True
