"""How fast links are, from what passed while they had more to do than they could.

A link that takes all at once says nothing of how fast it is. So bytes and seconds are counted only
while one is busy: outwards while the loop holds more than the kernel takes, inwards while a large
payload is half here.
"""

from __future__ import annotations

import time
from collections.abc import Callable

# Below this nothing is said: a few pieces tell more of the loop's turns than of the link.
LEAST_BYTES = 1 << 20

# Smaller payloads are not looked at: they come at once, or the wait is for the first byte.
PAYLOAD_BYTES = 64 << 10


class Pace:
    """One direction of all links of a process: bytes, and the seconds in which any was busy.

    Two links that are busy together share what the host has, so these seconds count once.

    Attributes:
        bytes: What passed while at least one was busy, up to the last time that none was.
        seconds: How long that was.
    """

    def __init__(self) -> None:
        self.bytes = 0
        self.seconds = 0.0
        self._busy = 0
        self._since = 0.0
        self._moved = 0
        self._spoilt = False

    def begin(self, now: float) -> None:
        """One more link is busy."""
        if not self._busy:
            self._since, self._moved, self._spoilt = now, 0, False
        self._busy += 1

    def end(self, moved: int | None, now: float) -> None:
        """One is busy no longer.

        Args:
            moved: Bytes that it has moved since it began to be; None if it was cut, and nobody
                knows. Then nothing of this span counts.
            now: Seconds.
        """
        self._busy -= 1
        self._spoilt = self._spoilt or moved is None
        self._moved += max(0, moved or 0)
        if not self._busy and not self._spoilt:
            self.bytes += self._moved
            self.seconds += max(0.0, now - self._since)

    @property
    def rate(self) -> float | None:
        """Bytes a second; None while too little is known."""
        moved, seconds = self.bytes, self.seconds
        return moved / seconds if moved >= LEAST_BYTES and seconds > 0 else None


class Paces:
    """Both directions.

    Args:
        now: A clock, in seconds.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self.now = now
        self.out = Pace()
        self.into = Pace()

    @property
    def link_bytes_s(self) -> float | None:
        """What is sent, in bytes a second; as long as that never had to wait, what comes."""
        found = self.out.rate
        return self.into.rate if found is None else found


class Meter:
    """Tells `Paces` of one connection.

    Args:
        paces: Of all links of a process.
    """

    __slots__ = ("_missing", "_paces", "_payload", "_taken")

    def __init__(self, paces: Paces) -> None:
        self._paces = paces
        self._taken: int | None = None  # of what was handed over, when it began to wait
        self._payload: object = None  # the frame whose payload is half here
        self._missing = 0

    def full(self, taken: int) -> None:
        """The kernel takes no more; so far it has taken so many bytes."""
        if self._taken is None:
            self._taken = taken
            self._paces.out.begin(self._paces.now())

    def drained(self, taken: int) -> None:
        """It has taken most of what waited."""
        before, self._taken = self._taken, None
        if before is not None:
            self._paces.out.end(taken - before, self._paces.now())

    def read(self, payload: object, missing: int) -> None:
        """Bytes have come.

        Args:
            payload: The frame whose payload is under way, None if that is no large one. What was
                there of it when it was first seen had come before.
            missing: Bytes of it that are still to come.
        """
        if payload is self._payload:
            return
        into, now = self._paces.into, self._paces.now()
        if self._payload is not None:
            into.end(self._missing, now)
        self._payload, self._missing = payload, missing
        if payload is not None:
            into.begin(now)

    def lost(self) -> None:
        """The connection is gone."""
        now = self._paces.now()
        if self._taken is not None:
            self._paces.out.end(None, now)
        if self._payload is not None:
            self._paces.into.end(None, now)
        self._taken = self._payload = None
