"""Looking for the next message for a moment, before the thread goes to sleep.

On an idle machine, waking a thread that sleeps costs tens of microseconds: a virtual processor has
to be started again. For a small message that is more than all the work (docs/BENCHMARKS.md). So
whoever expects a message soon looks for it again and again, and gives the processor away each time
to whoever else wants it (sched_yield).

Each look is a small bet that nothing takes long; one that is lost is not repeated at once.
"""

from __future__ import annotations

import asyncio
import os
import time

# Larger frames keep the processors awake by themselves.
SMALL_BYTES = 640 << 10


# A look that found nothing is not repeated for the next message, then for three, up to so many.
MOST_PASSED = 63


class Bet:
    """Whether it is worth looking for the next message.

    Args:
        limit_s: How long to look for it; 0 never looks.

    Attributes:
        since: When a message was last expected.
    """

    __slots__ = ("_limit_s", "_looked", "_pass", "_passes", "since")

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self.since = 0.0
        self._looked = False
        self._pass = 0  # messages still to be slept for
        self._passes = 0  # how many that were after the last look

    def expect(self) -> float:
        """A message is expected from now on; return how many seconds to look for it."""
        self.since = time.monotonic()
        self._looked = self._limit_s > 0 and not self._pass
        if self._looked:
            return self._limit_s
        self._pass = max(0, self._pass - 1)
        return 0.0

    def came(self) -> None:
        """It came: while it was looked for, or only later?"""
        if self._looked and time.monotonic() - self.since <= self._limit_s:
            self._passes = 0
        else:
            self.lost()

    def lost(self) -> None:
        """It did not come while it was looked for."""
        if self._looked:
            self._passes = self._pass = min(MOST_PASSED, 2 * self._passes + 1)
            self._looked = False


class Polling:
    """Keeps an event loop from sleeping while a message is expected soon.

    The loop runs whatever else is ready between two looks.

    Args:
        limit_s: How long to look; 0 never looks.
    """

    __slots__ = ("_bet", "_loop", "_turning", "_until")

    def __init__(self, limit_s: float) -> None:
        self._bet = Bet(limit_s)
        self._loop = asyncio.get_running_loop()
        self._until = 0.0
        self._turning = False

    def expect(self) -> None:
        """A message is expected from now on."""
        look_s = self._bet.expect()
        if look_s:
            self._until = self._bet.since + look_s
            if not self._turning:
                self._turning = True
                self._loop.call_soon(self._turn)

    def came(self) -> None:
        """It came; nothing more is expected."""
        self._bet.came()
        self._until = 0.0

    def _turn(self) -> None:
        if time.monotonic() < self._until:
            os.sched_yield()
            self._loop.call_soon(self._turn)  # a loop with something to call does not sleep
        else:
            self._turning = False
