"""Where connections come from: the real network, or the inside of this process.

Roles are given one of the two and never know which.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from asyncps.errors import TransportError
from asyncps.transport import tcp
from asyncps.transport.connection import Connection
from asyncps.transport.memory import connect_pair

Factory = Callable[[], Connection]


class Listening(Protocol):
    """A place where connections are accepted."""

    port: int

    def proven(self, connection: Connection) -> None:
        """A connection is ready or gone."""

    def sockets(self) -> list[Any]:
        """Return the listening sockets, and those of connections that are not proven."""

    def close(self) -> None:
        """Accept no more."""


class Network(Protocol):
    """Opens and accepts connections.

    Attributes:
        has_sockets: A blocking socket may be opened to the same host and port.
    """

    has_sockets: bool

    async def connect(
        self, factory: Factory, host: str, port: int, control_timeout_s: float | None = None
    ) -> Connection:
        """Open one connection; raise TransportError with address and reason."""

    async def listen(
        self, factory: Factory, address: tcp.Address, handshake_s: float
    ) -> Listening:
        """Accept connections; raise TransportError with address and reason."""


class TcpNetwork:
    """Sockets."""

    has_sockets = True

    async def connect(
        self, factory: Factory, host: str, port: int, control_timeout_s: float | None = None
    ) -> Connection:
        """Open a TCP connection."""
        address = tcp.Address(host, port, port)
        return await tcp.connect(factory, address, control_timeout_s=control_timeout_s)

    async def listen(
        self, factory: Factory, address: tcp.Address, handshake_s: float
    ) -> Listening:
        """Listen on a TCP port."""
        listener = tcp.Listener(factory, handshake_s)
        await listener.open(address)
        return listener


class MemoryNetwork:
    """Ports that exist in this object only, for roles that share one event loop."""

    has_sockets = False

    def __init__(self) -> None:
        self._factories: dict[int, Factory] = {}

    async def connect(
        self, factory: Factory, host: str, port: int, control_timeout_s: float | None = None
    ) -> Connection:
        """Open a connection to a role of this process."""
        if port not in self._factories:
            raise TransportError(f"nobody listens on memory port {port}")
        connection = factory()
        connect_pair(connection, self._factories[port]())
        return connection

    async def listen(
        self, factory: Factory, address: tcp.Address, handshake_s: float
    ) -> Listening:
        """Listen on a free number, or on the one that is asked for."""
        port = address.low or max(self._factories, default=0) + 1
        if port in self._factories:
            raise TransportError(f"memory port {port} is busy")
        self._factories[port] = factory
        return _MemoryListening(self._factories, port)


class _MemoryListening:
    def __init__(self, factories: dict[int, Factory], port: int) -> None:
        self._factories = factories
        self.port = port

    def proven(self, connection: Connection) -> None:
        """Nothing is counted in memory."""

    def sockets(self) -> list[Any]:
        """There are none."""
        return []

    def close(self) -> None:
        """Give the number back."""
        self._factories.pop(self.port, None)
