"""Calls whose large values are encoded chunk by chunk as they are sent.

Encoding all of a value before its first byte travels would leave link and servers idle. So the loop
encodes one chunk, hands it to the socket, looks at what has come, and goes on with the next.

What has begun is finished in its order: a chunk that was not sent yet has no clock, and nothing
else that speaks of its key may take one before. Whoever needs to know that all has been sent, or
must give the caller's memory back, calls `finish`.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Iterator

from asyncps.errors import AsyncPSError
from asyncps.roles.operation import Operation
from asyncps.roles.plan import KeyInfo, Plan

log = logging.getLogger(__name__)


class Staging:
    """The calls of one store that are being sent in steps. Runs on the loop."""

    def __init__(self) -> None:
        self._walks: deque[tuple[Operation, Plan, Iterator[None]]] = deque()
        self._keys: dict[KeyInfo, int] = {}  # large keys of these calls, how often

    def concerns(self, plan: Plan) -> bool:
        """Tell whether a call must go behind those that are here."""
        return bool(self._keys) and any(info in self._keys for _, info in plan.large)

    def add(self, op: Operation, plan: Plan, walk: Iterator[None]) -> None:
        """Send in steps, behind what is here.

        Args:
            op: Whose last part is done when the walk ends.
            plan: What it speaks of.
            walk: Sends a part at each step.
        """
        for _, info in plan.large:
            self._keys[info] = self._keys.get(info, 0) + 1
        self._walks.append((op, plan, walk))
        if len(self._walks) == 1:
            self._go_on()

    def finish(self) -> None:
        """Send all that is here, now."""
        while self._walks:
            self._step()

    def _go_on(self) -> None:
        """Take a step, and let the loop do its other work before the next."""
        if self._walks:
            self._step()
        if self._walks:
            asyncio.get_running_loop().call_soon(self._go_on)

    def _step(self) -> None:
        op, plan, walk = self._walks[0]
        try:
            next(walk)
        except StopIteration:
            pass
        except AsyncPSError as failed:
            op.part_done(failed)
        except Exception as failed:
            log.exception("%s failed", op.verb)
            op.part_done(AsyncPSError(f"{op.verb} failed: {failed!r}"))
        else:
            return
        self._walks.popleft()
        for _, info in plan.large:
            self._keys[info] -= 1
            if not self._keys[info]:
                del self._keys[info]
