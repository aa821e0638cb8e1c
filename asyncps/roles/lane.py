"""Small values without the loop: a second, blocking connection from a worker to each server.

Measured: through the background thread a 4 KB pushpull costs two thread hops and a turn of the
event loop in the worker, which is more than the network and the server together. So a blocking
pushpull of one small unit is sent and received by the calling thread itself, over a connection of
its own, whenever nothing else of its store is under way.

It is a short cut and no more. When the answer does not come at once (others are late, the
connection broke), the very same request goes the ordinary way over the loop: the server knows the
clock and counts it once. The answer that comes late on the lane is read past the next time.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from asyncps.errors import AsyncPSError, ConfigError, RemoteProtocolError
from asyncps.protocol import messages
from asyncps.protocol.frames import DATA, ERROR, HEADER_SIZE, Header
from asyncps.protocol.handshake import LANE
from asyncps.roles.node import Node
from asyncps.transport.blocking import close_quietly, open_socket, send_parts, wait_at_most
from asyncps.transport.polling import Bet
from asyncps_ext import wire

log = logging.getLogger(__name__)

# The largest value: beyond it the loop's overlap of sending and receiving wins (measured).
LANE_BYTES = 64 << 10

# How long a lane waits for an answer before the loop takes over. In step, answers take a tenth of
# it; a straggler's round is sent twice, which the server recognises.
PATIENCE_S = 0.005

# How long a lane tries to send before it is given up: it is stuck, and the loop's way may not be.
_SEND_S = 0.1

# A lane that could not be opened, or broke, is not tried again for this long.
_PAUSE_S = 1.0

# Requests of lanes are numbered apart from those of the loop.
LANE_NUMBERS = 1 << 62

look: Callable[..., int] = wire.look



class _Lane:
    """One connection and what was read ahead on it."""

    def __init__(self, sock: socket.socket, poll_s: float) -> None:
        self.sock = sock
        self.bet = Bet(poll_s)
        self._buffer = bytearray(2 * (HEADER_SIZE + LANE_BYTES))
        self._view = memoryview(self._buffer)
        self._begin = self._end = 0

    def receive(self, look_s: float) -> tuple[Header, memoryview, memoryview]:
        """Return the next frame: header, table, payload; valid until the next call.

        Args:
            look_s: How long to look for it before sleeping.

        Raises:
            BlockingIOError: None came within the patience; it may come later.
            OSError: The connection is gone.
            RemoteProtocolError: What came is no answer.
        """
        while True:
            have = self._end - self._begin
            if have >= HEADER_SIZE:
                header = self._header()
                size = HEADER_SIZE + header.table_bytes + header.payload_bytes
                if have >= size:
                    start = self._begin
                    middle = start + HEADER_SIZE + header.table_bytes
                    self._begin = start + size
                    view = self._view
                    return header, view[start + HEADER_SIZE : middle], view[middle : start + size]
            if self._begin:
                self._buffer[:have] = self._buffer[self._begin : self._end]
                self._begin, self._end = 0, have
            place = self._view[self._end :]
            count = look(self.sock.fileno(), place, look_s) if look_s else -1
            if count < 0:
                count = self.sock.recv_into(place)
            if not count:
                raise ConnectionError("closed by the server")
            self._end += count

    def _header(self) -> Header:
        try:
            header = Header._make(wire.parse_header(self._view, self._begin))
        except ValueError as error:
            raise RemoteProtocolError(f"not a frame: {error}") from None
        if header.table_bytes + header.payload_bytes > LANE_BYTES:
            raise RemoteProtocolError("an answer too long for a lane", got=header.payload_bytes)
        return header


class Lanes:
    """The lanes of one worker, which all its stores share.

    Args:
        node: This worker.

    Attributes:
        lock: Held by the one thread that uses them; see `shortcut`.
        sent_bytes: Of whole frames, so far; also `received_bytes`.
    """

    def __init__(self, node: Node) -> None:
        self._node = node
        self.lock = threading.Lock()
        self._holder = 0
        self._next = LANE_NUMBERS
        self._open: dict[int, _Lane] = {}
        self._closed_until: dict[int, float] = {}
        self._closed = False
        self._busy = False  # a thread may be looking at a socket by its number
        self._guard = threading.Lock()  # of `_busy` and `_closed`, and while sockets are closed
        self.sent_bytes = self.received_bytes = 0

    @contextmanager
    def held(self) -> Iterator[None]:
        """Hold the lock.

        Raises:
            ConfigError: This thread holds it: a verb in a signal handler, amid another verb.
        """
        me = threading.get_ident()
        if self._holder == me and self.lock.locked():
            raise ConfigError("a verb was called in the middle of another one of the same thread",
                              expected="no verbs of a store in a signal handler")
        with self.lock:
            self._holder = me
            try:
                with self._guard:
                    self._busy = True
                yield
            finally:
                with self._guard:
                    self._busy = False
                    if self._closed:  # meanwhile, by the loop, which left these to us
                        self._close_all()
                self._holder = 0

    def number(self) -> int:
        """Return the number of the next request."""
        self._next += 1
        return self._next

    def sockets(self) -> list[socket.socket]:
        """Return the open sockets, for a forked child to close."""
        return [lane.sock for lane in list(self._open.values())]

    def ready(self, server: int) -> bool:
        """Tell whether there is a lane to this server; open it if not."""
        if server in self._open:
            return True
        if self._closed or time.monotonic() < self._closed_until.get(server, 0.0):
            return False
        node, config = self._node, self._node.config
        member = next(m for m in node.members if m.role == "server" and m.rank == server)
        try:
            hello = replace(node.hello(), features=LANE)
            sock = open_socket(
                member.host, member.port, hello, config.token, min(1.0, config.handshake_s)
            )
            wait_at_most(sock, PATIENCE_S, _SEND_S)
        except (OSError, AsyncPSError) as error:
            log.debug("no lane to server %d: %s", server, error)
            self.drop(server)
            return False
        self._open[server] = _Lane(sock, config.poll_us * 1e-6)
        if self._is_closed():  # meanwhile, by the loop
            self.drop(server)
            return False
        return True

    def _is_closed(self) -> bool:
        return self._closed

    def exchange(
        self, server: int, number: int, parts: Sequence[bytes | memoryview], size: int,
        expected: int,
    ) -> memoryview | AsyncPSError | None:
        """Send a request and wait a little for its answer.

        Args:
            server: To whom.
            number: The request's number.
            parts: Header, table and payload.
            size: Bytes of all parts.
            expected: Bytes of the value that is to come.

        Returns:
            The value, valid until the next exchange; or the server's error, which is returned so
            that it is told from what a signal handler raises; None when the loop must take over.
        """
        lane = self._open.get(server)
        if lane is None:
            return None  # closed meanwhile, by the loop
        sent = False
        try:
            send_parts(lane.sock, parts, size)
            sent = True
            self.sent_bytes += size
            look_s = lane.bet.expect()
            while True:
                header, table, payload = lane.receive(look_s)
                if header.request == number:
                    break  # an older one came late, and somebody has had it over the loop
            lane.bet.came()
            self.received_bytes += HEADER_SIZE + len(table) + len(payload)
        except (OSError, RemoteProtocolError) as error:
            if sent and isinstance(error, BlockingIOError):
                lane.bet.lost()
            else:
                log.debug("the lane to server %d broke: %s", server, error)
                self.drop(server)
            return None
        except BaseException:
            self.drop(server)  # Ctrl-C may have come in the middle of a frame
            raise
        if header.kind == ERROR:
            info = messages.decode(table)
            if isinstance(info, messages.ErrorInfo):
                return messages.error_from_wire(info)
        if header.kind != DATA or len(payload) != expected:
            self.drop(server)
            return None
        return payload

    def drop(self, server: int) -> None:
        """Close one lane; it is opened again later."""
        with self._guard:
            lane = self._open.get(server)
            if lane is not None:
                close_quietly(lane.sock)
                del self._open[server]
        self._closed_until[server] = time.monotonic() + _PAUSE_S

    def close(self) -> None:
        """Close all lanes for good; called by the loop.

        A socket is never closed under a thread that looks at it by its number, which may be another
        file's at once: it is shut down, and that thread closes it.
        """
        self._closed = True
        # With a limit: a signal handler may wait for this, above a thread that has the guard. Then
        # that thread finds them closed and closes the sockets.
        if not self._guard.acquire(timeout=_SEND_S):
            return
        try:
            if self._busy:
                for sock in self.sockets():
                    with contextlib.suppress(OSError):
                        sock.shutdown(socket.SHUT_RDWR)
            else:
                self._close_all()
        finally:
            self._guard.release()

    def _close_all(self) -> None:
        for lane in self._open.values():
            close_quietly(lane.sock)
        self._open.clear()
