"""Frames that wait for one connection, higher priority first, in order among equals."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Sequence

from asyncps.transport.connection import Connection

# Above every priority, so that what was on its way goes again in the order in which it went.
_AGAIN = 1 << 40

# Answers of rows that may wait for one peer to read them: it has asked and does not listen.
MAX_COPIED_BYTES = 256 << 20


class Outgoing:
    """One frame on its way.

    Attributes:
        priority: Higher goes first.
        parts: Flat byte views: header, table, payload.
        size: Bytes of all parts.
        sent: It was handed to the loop, at least once.
    """

    __slots__ = ("parts", "priority", "sent", "size")

    def __init__(self, priority: int, parts: Sequence[bytes | memoryview], size: int) -> None:
        self.priority = priority
        self.parts = parts
        self.size = size
        self.sent = False


class Copies:
    """Frames that were made of memory of their own, which lives until they are on their way."""

    def __init__(self) -> None:
        self._frames: deque[Outgoing] = deque()
        self._bytes = 0

    def add(self, frame: Outgoing) -> None:
        """One more was posted."""
        self._frames.append(frame)
        self._bytes += frame.size

    @property
    def too_many(self) -> bool:
        """Whether those that still wait take too much."""
        while self._frames and self._frames[0].sent:
            self._bytes -= self._frames.popleft().size
        return self._bytes > MAX_COPIED_BYTES


class Outbox:
    """The queue before one peer; it outlives connections.

    Attributes:
        queued_bytes: Bytes that wait here, not counting what was handed to the loop.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Outgoing]] = []
        self._sequence = 0
        self._connection: Connection | None = None
        self.queued_bytes = 0

    def __len__(self) -> int:
        return len(self._heap)

    @property
    def lowest(self) -> int:
        """The priority by which a frame goes behind all that waits now, and before what comes."""
        return -max((turn for turn, _, _ in self._heap), default=0)

    def attach(self, connection: Connection) -> None:
        """Send over this connection from now on."""
        self._connection = connection
        connection.on_writable = self.pump
        self.pump()

    def detach(self) -> None:
        """The connection is gone: drop what waits. Whoever must, posts it again."""
        self._connection = None
        self._heap.clear()
        self.queued_bytes = 0

    def post_again(self, frame: Outgoing) -> None:
        """Queue a frame that a broken connection may have eaten, before all that is new."""
        self._push(-_AGAIN, frame)

    def post(self, frame: Outgoing) -> None:
        """Send a frame now, or when its turn comes."""
        connection = self._connection
        if connection is not None and connection.writable and not self._heap:
            frame.sent = True
            connection.send(frame.parts, frame.size)
            return
        self._push(-frame.priority, frame)

    def _push(self, turn: int, frame: Outgoing) -> None:
        self._sequence += 1
        heapq.heappush(self._heap, (turn, self._sequence, frame))
        self.queued_bytes += frame.size

    def pump(self) -> None:
        """Hand frames to the loop while it takes them."""
        connection = self._connection
        while self._heap and connection is not None and connection.writable:
            frame = heapq.heappop(self._heap)[2]
            self.queued_bytes -= frame.size
            frame.sent = True
            connection.send(frame.parts, frame.size)
