"""Lanes with a hand-made server at their other end."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from asyncps.config import Config
from asyncps.errors import AsyncPSError, UnknownKey
from asyncps.protocol import messages
from asyncps.protocol.frames import Kind
from asyncps.protocol.handshake import Handshake, Hello, PeerHello
from asyncps.roles.lane import Lanes, _Lane
from asyncps.transport.blocking import wait_at_most
from asyncps_ext import wire

TOKEN = "a-secret"


def frame(kind: int, request: int, payload: bytes = b"", table: bytes = b"") -> bytes:
    """A frame as a server answers."""
    header = wire.pack_header(kind, 0, 1, 0, request, 0, 0, 1, len(table), len(payload), 0, 0)
    return bytes(header) + table + payload


def error_frame(request: int) -> bytes:
    """A server's typed error."""
    info = messages.error_to_wire(UnknownKey("nobody made it", key="w"), "far")
    return frame(Kind.ERROR, request, table=messages.encode(info))


def fake_node(port: int, token: str = TOKEN, rank: int = 0, **given: Any) -> Any:
    """What lanes need of a worker; `given` are settings of it."""
    member = SimpleNamespace(role="server", rank=0, host="127.0.0.1", port=port)
    return SimpleNamespace(
        members=[member], config=Config(token=token, **given),
        hello=lambda: Hello("worker", rank, 5, "default", b"", 4),
    )


class Pair:
    """Lanes with one open lane, and the server's end of it.

    Args:
        patience_s: How long the lane waits for an answer.
        poll_s: How long it looks for one before it sleeps.
    """

    def __init__(self, patience_s: float = 5.0, poll_s: float = 0.0) -> None:
        ours, self.server = socket.socketpair()
        wait_at_most(ours, patience_s, 0.05)
        self.server.settimeout(5.0)
        self.lanes = Lanes(fake_node(1))
        self.lane = self.lanes._open[0] = _Lane(ours, poll_s)

    def exchange(self, expected: int, *parts: bytes, number: int = 7) -> bytes | None:
        """Ask; the answer as bytes."""
        asked = list(parts) or [b"a request"]
        got = self.lanes.exchange(0, number, asked, sum(map(len, asked)), expected)
        if isinstance(got, AsyncPSError):
            raise got
        return None if got is None else bytes(got)

    @property
    def dropped(self) -> bool:
        """The lane was given up, and its socket closed."""
        assert (self.lane.sock.fileno() < 0) == (0 not in self.lanes._open)
        return 0 not in self.lanes._open

    def close(self) -> None:
        """End both sides."""
        self.lanes.close()
        self.server.close()


class Door:
    """Accepts one connection and behaves as told."""

    def __init__(self, behave: Callable[[socket.socket], None]) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.peer: PeerHello | None = None
        self._behave = behave
        self._thread = threading.Thread(target=self._serve, name="door")

    def __enter__(self) -> Door:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.join()
        self._listener.close()

    def _serve(self) -> None:
        sock, _ = self._listener.accept()
        with sock:
            sock.settimeout(5.0)
            self._behave(sock)


def welcome(sock: socket.socket, token: str = TOKEN) -> PeerHello | None:
    """The acceptor's side of a handshake."""
    handshake = Handshake(Hello("server", 0, 2, "default", b"n" * 32), token, connector=False)
    while not handshake.done:
        data = sock.recv(handshake.wanted)
        if not data:
            return None
        sock.sendall(handshake.receive(data))
    return handshake.peer
