"""The in-process twin of TCP: two connections whose bytes are copied from one to the other.

It keeps TCP's promises and troubles (any split of the stream, back-pressure, abrupt ends), so that
whatever runs on it runs on sockets.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable
from typing import Any

from asyncps.transport.connection import Connection


class MemoryTransport(asyncio.Transport):
    """One side of a pair."""

    def __init__(self, loop: asyncio.AbstractEventLoop, protocol: Connection) -> None:
        super().__init__()
        self._loop = loop
        self._protocol = protocol
        self._other: MemoryTransport | None = None
        self._queue: deque[memoryview] = deque()
        self._size = 0
        self._high, self._low = 64 << 10, 16 << 10
        self._paused_writing = False
        self._reading = True
        self._closing = self._eof = False
        self._lost = False
        self._scheduled = False

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """There is no socket behind it."""
        return default

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """As asyncio's."""
        self._high = 64 << 10 if high is None else high
        self._low = self._high // 4 if low is None else low

    def get_write_buffer_size(self) -> int:
        """Bytes that the other side has not taken."""
        return self._size

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Queue bytes; they are kept, not copied."""
        self.writelines([data])

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview]) -> None:
        """Queue several byte views."""
        if self._closing:
            return
        for data in list_of_data:
            view = memoryview(data)
            if view.nbytes:
                self._queue.append(view)
                self._size += view.nbytes
        if self._size > self._high and not self._paused_writing:
            self._paused_writing = True
            self._protocol.pause_writing()
        self._schedule()

    def write_eof(self) -> None:
        """Say that nothing more comes, when all is delivered."""
        self._eof = True
        self._schedule()

    def is_closing(self) -> bool:
        """As asyncio's."""
        return self._closing

    def close(self) -> None:
        """Close when all is delivered."""
        self._closing = True
        self._schedule()

    def abort(self) -> None:
        """Close at once."""
        self._closing = True
        self._queue.clear()
        self._size = 0
        self._schedule()

    def pause_reading(self) -> None:
        """Let the other side wait."""
        self._reading = False

    def resume_reading(self) -> None:
        """Take bytes again."""
        self._reading = True
        if self._other is not None:
            self._other._schedule()

    def is_reading(self) -> bool:
        """As asyncio's."""
        return self._reading

    def _schedule(self) -> None:
        if not self._scheduled and not self._lost:
            self._scheduled = True
            self._loop.call_soon(self._pump)

    def _pump(self) -> None:
        """Deliver what the other side takes now."""
        self._scheduled = False
        other = self._other
        if self._lost or other is None:
            return
        if other._closing:  # it reads no more: what it did not take is lost, as on a socket
            self._queue.clear()
            self._size = 0
        elif self._queue and other._reading:
            self._deliver(other)
        if self._closing and not self._queue:
            self._lose()
            other._peer_gone()
        elif self._eof and not self._queue:
            self._eof = False
            if not other._protocol.eof_received():
                other.close()
        elif self._paused_writing and self._size <= self._low:
            self._paused_writing = False
            self._protocol.resume_writing()

    def _deliver(self, other: MemoryTransport) -> None:
        view = self._queue[0]
        target = other._protocol.get_buffer(-1)
        count = min(len(target), len(view))
        target[:count] = view[:count]
        if count == len(view):
            self._queue.popleft()
        else:
            self._queue[0] = view[count:]
        self._size -= count
        if self._queue:
            self._schedule()
        other._protocol.buffer_updated(count)

    def _peer_gone(self) -> None:
        self._closing = True
        self._queue.clear()
        self._size = 0
        self._loop.call_soon(self._lose)

    def _lose(self) -> None:
        if not self._lost:
            self._lost = True
            self._protocol.connection_lost(None)


def connect_pair(connector: Connection, acceptor: Connection) -> None:
    """Connect two protocols of the running loop to each other."""
    loop = asyncio.get_running_loop()
    one, two = MemoryTransport(loop, connector), MemoryTransport(loop, acceptor)
    one._other, two._other = two, one
    acceptor.connection_made(two)
    connector.connection_made(one)
