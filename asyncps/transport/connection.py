"""One connection: a handshake, then frames; the same over TCP and over memory.

It is an `asyncio.BufferedProtocol`, so that the loop reads straight into the memory that the frame
reader names, and writes flat views by one vectored write that keeps them and does not copy (uvloop;
the standard loop copies what a socket does not take at once).

What was handed over may not change until the peer has acknowledged it; that is the sender's duty.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import logging
import os
import socket
import sys
import termios
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Protocol, cast

from asyncps.errors import (
    AsyncPSError,
    ConnectionLost,
    HandshakeError,
    ProtocolError,
)
from asyncps.protocol.handshake import NONCE_BYTES, Handshake, Hello, PeerHello
from asyncps.protocol.reader import FrameReader, Sink
from asyncps.transport.pace import PAYLOAD_BYTES, Meter, Paces
from asyncps_ext import wire

log = logging.getLogger(__name__)

# Bytes handed to the loop: below this it takes one chunk more, so that the socket never runs dry.
# A message of higher priority waits for two chunks at most.
HIGH_WATER_BYTES = 1 << 20
LOW_WATER_BYTES = 512 << 10

# A loop that wakes for each piece of a chunk pays for the wake and the call each time: with chunks
# of 512 KiB a fifth of the processor time of a large round (docs/BENCHMARKS.md). A smaller payload
# is read as it comes: keys of one or two chunks have little else that would overlap with sending.
_LARGE_BYTES, _MOST_BYTES = 640 << 10, 2 << 20

# Who is refused is held that long before he is shown the door, and not read: else whoever comes
# back at once takes the time of a loop that has work to do. A listener bounds how many there are.
REFUSED_S = 0.5

# Who has said its last word waits so long for the peer to answer or to close: to close with bytes
# unread would have the kernel drop that word.
LAST_WORD_S = 1.0

wake_at: Callable[..., None] = wire.wake_at


class Owner(Protocol):
    """Whoever opened or accepted a connection."""

    def connection_ready(self, connection: Connection) -> Sink:
        """The peer has proven itself; return who takes its frames.

        Raises:
            AsyncPSError: It is not wanted; the connection is closed.
        """

    def connection_closed(self, connection: Connection, error: AsyncPSError) -> None:
        """The connection is gone, whether it was ready or not."""


class Connection(asyncio.BufferedProtocol):
    """One connection between two processes of a job.

    Args:
        owner: Told when it is ready and when it is gone.
        hello: What this side says of itself; its nonce is replaced by fresh random bytes.
        token: The job's secret.
        connector: True for the side that opened it.
        paces: Told how fast it is, if anybody wants to know.

    Attributes:
        peer: Who is on the other side, once ready.
        ready: The handshake is done and it is not closed.
        writable: The loop takes more bytes now; when that comes back, `on_writable` is called.
        received: Bytes that came, for liveness and metrics.
        sent: Bytes that were handed over.
    """

    def __init__(
        self, owner: Owner, hello: Hello, token: str, *, connector: bool,
        paces: Paces | None = None,
    ) -> None:
        fresh = replace(hello, nonce=os.urandom(NONCE_BYTES))
        self._owner = owner
        self._handshake: Handshake | None = Handshake(fresh, token, connector=connector)
        self._accepted = not connector
        self._farewell: asyncio.TimerHandle | None = None
        self._hello_buffer = bytearray(512)
        self._reader: FrameReader | None = None
        self._transport: asyncio.Transport | None = None
        self._error: AsyncPSError | None = None
        self._closed = False
        self._fd = -1  # of its socket, if it has one
        self._resumes_later = False
        self._wakes_at = 1
        self._meter = None if paces is None else Meter(paces)
        self.peer: PeerHello | None = None
        self.ready = False
        self.writable = False
        self.on_writable: Callable[[], None] | None = None
        self.received = 0
        self.sent = 0
        self.remote = ""

    # ---- asyncio's side ----

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin the handshake."""
        self._transport = cast(asyncio.Transport, transport)
        name = transport.get_extra_info("peername")
        self.remote = f"{name[0]}:{name[1]}" if isinstance(name, tuple) else "memory"
        self._transport.set_write_buffer_limits(HIGH_WATER_BYTES, LOW_WATER_BYTES)
        sock = transport.get_extra_info("socket")
        self._fd = -1 if sock is None else sock.fileno()
        # The standard loop asks for more in the middle of a write. What fails in that moment, or is
        # closed, it would close once more when it goes on with that write (seen on 3.11).
        self._resumes_later = type(transport).__module__.startswith("asyncio.")
        if self._closed:  # aborted between accept and here
            self._transport.abort()
            return
        assert self._handshake is not None
        if hello := self._handshake.start():
            self._transport.write(hello)

    def get_buffer(self, sizehint: int) -> memoryview:
        """Name the memory for the next bytes."""
        if self._reader is not None:
            return self._reader.get_buffer()
        assert self._handshake is not None
        return memoryview(self._hello_buffer)[: max(1, self._handshake.wanted)]

    def buffer_updated(self, nbytes: int) -> None:
        """Take bytes; anything that breaks the rules closes the connection."""
        self.received += nbytes
        if self._closed:
            return
        try:
            if self._reader is not None:
                self._reader.buffer_updated(nbytes)
                self._wake_at(self._reader)
                if self._meter is not None:
                    header = self._reader.current
                    large = header is not None and header.payload_bytes >= PAYLOAD_BYTES
                    self._meter.read(header if large else None, self._reader.missing)
            else:
                self._greet(bytes(self._hello_buffer[:nbytes]))
        except HandshakeError as error:
            self._refuse(error)
        except ProtocolError as error:
            log.warning("%s broke the protocol: %s", self.describe(), error)
            self.abort(error)

    def eof_received(self) -> bool:
        """Half-open connections are of no use: close."""
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell the owner, once."""
        self.ready = self.writable = False
        self._closed = True
        if self._meter is not None:
            self._meter.lost()
        if self._farewell is not None:
            self._farewell.cancel()
        self._transport = None
        self._reader = None
        self._fd = -1
        reason = self._error or ConnectionLost(
            f"the connection to {self.describe()} closed" + (f": {exc}" if exc else "")
        )
        self._owner.connection_closed(self, reason)

    def pause_writing(self) -> None:
        """The loop holds enough."""
        self.writable = False
        if self._meter is not None:
            self._meter.full(self.sent - self.pending_bytes)

    def resume_writing(self) -> None:
        """The loop wants more."""
        if self._meter is not None:
            self._meter.drained(self.sent - self.pending_bytes)
        if self._resumes_later:
            asyncio.get_running_loop().call_soon(self._resume)
        else:
            self._resume()

    def _resume(self) -> None:
        self.writable = self.ready and not self._closed
        if self.writable and self.on_writable is not None:
            self.on_writable()

    # ---- our side ----

    def send(self, parts: Sequence[bytes | memoryview], size: int) -> None:
        """Hand over a frame, without a copy on uvloop.

        Args:
            parts: Flat, C-contiguous byte views; they stay with the loop until written. They are
                dropped if the connection has failed, which its owner is told in a moment.
            size: Bytes in all.
        """
        transport = self._transport
        assert transport is not None
        if transport.is_closing():  # it has failed; the loop has not told us yet
            self.writable = False
            return
        self.sent += size
        transport.writelines(parts)
        if self.writable and transport.get_write_buffer_size() > HIGH_WATER_BYTES:
            # writelines of the standard loop does not look at the mark on 3.12.1 and 3.13.0.
            transport.set_write_buffer_limits(HIGH_WATER_BYTES, LOW_WATER_BYTES)

    @property
    def pending_bytes(self) -> int:
        """Bytes that were handed over and not yet taken by the kernel."""
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    @property
    def lying_bytes(self) -> int:
        """Bytes that have come and wait in the kernel, such as a part of a large payload."""
        if self._fd < 0:
            return 0
        with contextlib.suppress(OSError):
            found = fcntl.ioctl(self._fd, termios.FIONREAD, bytes(4))
            return int.from_bytes(found, sys.byteorder)
        return 0

    @property
    def reader(self) -> FrameReader | None:
        """The receiving side, once ready."""
        return self._reader

    def describe(self) -> str:
        """Name the peer for people."""
        if self.peer is None:
            return self.remote
        rank = f" {self.peer.rank}" if self.peer.rank >= 0 else ""
        return f"{self.peer.role}{rank} at {self.remote}"

    def local_host(self) -> str:
        """Return the local address of the socket, "" in memory."""
        name = self._transport.get_extra_info("sockname") if self._transport else None
        return str(name[0]) if isinstance(name, tuple) else ""

    def socket(self) -> Any:
        """Return the socket, None in memory."""
        return self._transport.get_extra_info("socket") if self._transport else None

    def bound_unread(self, size: int) -> None:
        """Let the kernel take about so many bytes that the peer has not read, if it is a socket."""
        sock = self.socket()
        if sock is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, size)

    def pause_reading(self) -> None:
        """Let the peer wait."""
        if self._transport is not None:
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        """Read on."""
        if self._transport is not None:
            self._transport.resume_reading()

    def close(self) -> None:
        """Close once everything handed over is written."""
        self._closed = True
        self.writable = False
        if self._transport is not None:
            self._transport.close()

    def abort(self, error: AsyncPSError | None = None) -> None:
        """Close at once; what was not written is lost."""
        self._error = self._error or error
        self._closed = True
        self.ready = self.writable = False
        if self._transport is not None:
            self._transport.abort()

    def last_word(self, frame: bytes) -> bool:
        """Send one frame more; the peer closes when it has it, or this side does soon.

        What the sink has lent is not read into and not written from after this; it still gets what
        comes, and may close. Returns False if the frame cannot be sent, since others wait to be
        written or the connection is gone: it is closed at once.
        """
        transport = self._transport
        half_written = self.sent and self.pending_bytes  # else it is the handshake's, and its own
        if transport is None or transport.is_closing() or not self.ready or half_written:
            self.abort()
            return False
        self.send([frame], len(frame))
        try:
            transport.write_eof()
        except OSError:  # the standard loop's, where the peer has gone and we have not seen it
            self.abort()
            return False
        self.ready = self.writable = False
        if self._reader is not None:
            self._reader.abandon_payload()
            self._wake_at(self._reader)
        transport.resume_reading()
        self._farewell = asyncio.get_running_loop().call_later(LAST_WORD_S, transport.abort)
        return True

    def _wake_at(self, reader: FrameReader) -> None:
        """Read the rest of a large payload at once, not as it trickles in."""
        header = reader.current
        large = header is not None and header.payload_bytes >= _LARGE_BYTES
        count = min(reader.missing, _MOST_BYTES) if large else 1
        if count != self._wakes_at and self._fd >= 0:
            self._wakes_at = count
            wake_at(self._fd, count)

    def _greet(self, data: bytes) -> None:
        handshake, transport = self._handshake, self._transport
        assert handshake is not None
        assert transport is not None
        answer = handshake.receive(data)
        if handshake.done:
            self.peer = handshake.peer
        if answer:
            transport.write(answer)
        if not handshake.done:
            return
        self._handshake = None
        self.ready = self.writable = True
        try:
            self._reader = FrameReader(self._owner.connection_ready(self))
        except AsyncPSError as error:
            log.warning("%s is not wanted: %s", self.describe(), error)
            self.abort(error)

    def _refuse(self, error: HandshakeError) -> None:
        log.warning("refused %s: %s", self.remote, error)
        assert self._handshake is not None
        self._error = error
        self._closed = True
        transport = self._transport
        if transport is None:
            return
        if farewell := self._handshake.refusal():
            transport.write(farewell)
        if not self._accepted:
            transport.close()
            return
        transport.pause_reading()
        self._farewell = asyncio.get_running_loop().call_later(REFUSED_S, transport.close)

