"""TCP: open and accept connections, addresses and ports."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import ipaddress
import logging
import os
import socket
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from asyncps.errors import ConfigError, HandshakeError, TransportError
from asyncps.transport.connection import Connection

log = logging.getLogger(__name__)

# Connections that have not proven themselves yet, at most, per listening role.
MAX_UNPROVEN = 64

_SIOCGIFADDR = 0x8915


@dataclass(frozen=True, slots=True)
class Address:
    """A host (name, IPv4 or IPv6 address) and a port or a range of ports (0: any)."""

    host: str
    low: int
    high: int

    @property
    def port(self) -> int:
        """The first port."""
        return self.low

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.low}" if self.low == self.high else f"{host}:{self.low}-{self.high}"


def parse_address(text: str, default_port: int = 0) -> Address:
    """Read `host`, `host:port`, `host:low-high`, `[::1]:port` or a bare IPv6 address.

    Raises:
        ConfigError: It cannot be read.
    """
    host, port = text, ""
    if text.startswith("["):
        host, bracket, rest = text[1:].partition("]")
        if not bracket or (rest and not rest.startswith(":")):
            raise ConfigError("not an address", expected="[IPv6]:port", got=text)
        port = rest[1:]
    elif text.count(":") == 1:
        host, port = text.split(":")
    low, dash, high = port.partition("-")
    bad_port = (port and not _is_number(low)) or (dash and not _is_number(high))
    if not host or bad_port or (":" in host and not _is_ipv6(host)):
        raise ConfigError("not an address", expected="host, host:port or host:low-high", got=text)
    first = int(low) if low else default_port
    last = int(high) if dash else first
    if not 0 <= first <= last <= 65535:
        raise ConfigError("not a port", expected="0 to 65535, low before high", got=port)
    return Address(host, first, last)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 5


def _is_ipv6(host: str) -> bool:
    try:
        ipaddress.IPv6Address(host)
    except ValueError:
        return False
    return True


def is_loopback(host: str) -> bool:
    """Tell whether a host is this machine only; names are looked up."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        pass
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise TransportError(f"the name {host} does not resolve: {_reason(error)}") from None
    return all(ipaddress.ip_address(item[4][0]).is_loopback for item in found)


def interface_address(name: str) -> str:
    """Return the IPv4 address of a network interface (Linux).

    Raises:
        ConfigError: There is no such interface, or it has no address.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        request = struct.pack("256s", name.encode()[:15])
        try:
            answer = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, request)
        except OSError as error:
            known = ", ".join(item[1] for item in socket.if_nameindex())
            raise ConfigError(f"network interface {name!r} has no IPv4 address: {error.strerror}",
                              expected=known, got=name) from None
    return socket.inet_ntoa(answer[20:24])


async def connect(
    factory: Callable[[], Connection], address: Address, *, control_timeout_s: float | None = None
) -> Connection:
    """Open one connection; the handshake goes on in the background.

    Args:
        factory: Makes the protocol.
        address: Where to.
        control_timeout_s: For control connections: TCP_USER_TIMEOUT, so that a dead host is seen.
            Data connections leave it unset, since it kills a live peer that does not read.

    Raises:
        TransportError: It names address and reason.
    """
    loop = asyncio.get_running_loop()
    try:
        transport, protocol = await loop.create_connection(factory, address.host, address.port)
        sock = transport.get_extra_info("socket")
        if sock is not None and not transport.is_closing():  # else its owner knows
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if control_timeout_s is not None:
                set_user_timeout(sock, control_timeout_s)
    except (OSError, UnicodeError) as error:  # UnicodeError: a name that cannot be one
        raise TransportError(f"cannot reach {address}: {_reason(error)}") from None
    return protocol


def _reason(error: Exception) -> str:
    number = getattr(error, "errno", None)
    if number and number > 0:
        return os.strerror(number)  # the standard loop has words of its own
    return getattr(error, "strerror", None) or str(error)


def set_user_timeout(sock: socket.socket, seconds: float) -> None:
    """Have the kernel close a connection whose bytes nobody acknowledges."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(seconds * 1000))


class Listener:
    """Accepts connections.

    Args:
        factory: Makes the protocol of an accepted connection.
        handshake_s: How long a connection may prove nothing.
    """

    def __init__(self, factory: Callable[[], Connection], handshake_s: float) -> None:
        self._factory = factory
        self._handshake_s = handshake_s
        self._server: asyncio.Server | None = None
        self._closed = False
        self._unproven: dict[Connection, asyncio.TimerHandle] = {}
        self.port = 0

    async def open(self, address: Address) -> None:
        """Listen on the first free port of the address.

        Raises:
            TransportError: It names address and reason.
        """
        loop = asyncio.get_running_loop()
        last: Exception | None = None
        for port in range(address.low, address.high + 1):
            try:
                self._server = await self._listen(loop, address.host, port)
            except (OSError, UnicodeError) as error:
                last = error
                if getattr(error, "errno", None) not in (errno.EADDRINUSE, errno.EACCES):
                    break
                continue
            self.port = self._server.sockets[0].getsockname()[1]
            return
        assert last is not None
        raise TransportError(f"cannot listen on {address}: {_reason(last)}") from None

    async def _listen(
        self, loop: asyncio.AbstractEventLoop, host: str, port: int
    ) -> asyncio.Server:
        """Listen on one port.

        A name is looked up in a thread of libuv's, which a forked child would join at its end and
        does not have. So an address is not looked up.
        """
        try:
            family = (socket.AF_INET6 if ipaddress.ip_address(host).version == 6
                      else socket.AF_INET)
        except ValueError:
            return await loop.create_server(self._accept, host, port, backlog=512)
        sock = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)  # so: TCP_NODELAY
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            sock.bind((host, port))
            return await loop.create_server(self._accept, sock=sock, backlog=512)
        except BaseException:
            sock.close()
            raise

    def close(self) -> None:
        """Stop listening; connections that have proven themselves live on."""
        self._closed = True
        if self._server is not None:
            _stop(self._server)
            self._server = None
        for connection in list(self._unproven):
            connection.abort()
            self.proven(connection)

    def sockets(self) -> list[Any]:
        """Return the listening sockets, and those of connections that are not proven."""
        servers = [] if self._server is None else self._server.sockets
        listening = [getattr(sock, "_sock", sock) for sock in servers]  # the standard loop wraps it
        found = [connection.socket() for connection in self._unproven]
        return [*listening, *(sock for sock in found if sock is not None)]

    def proven(self, connection: Connection) -> None:
        """A connection is ready or gone: it no longer counts against the limit."""
        timer = self._unproven.pop(connection, None)
        if timer is not None:
            timer.cancel()

    def _accept(self) -> Connection:
        connection = self._factory()
        if self._closed:  # it came in the same moment
            connection.abort()
            return connection
        if len(self._unproven) >= MAX_UNPROVEN:
            self._expire(next(iter(self._unproven)))
        loop = asyncio.get_running_loop()
        timer = loop.call_later(self._handshake_s, self._expire, connection)
        self._unproven[connection] = timer
        return connection

    def _expire(self, connection: Connection) -> None:
        self.proven(connection)
        connection.abort(HandshakeError("nothing was proven in time"))


def _stop(server: asyncio.Server) -> None:
    """Close a server.

    On the standard loop a connection that it has accepted, and not yet made, must be made first:
    else its making fails, and nobody closes its socket (seen on 3.11).
    """
    loop = server.get_loop()
    if isinstance(loop, asyncio.SelectorEventLoop):
        for sock in server.sockets:
            loop.remove_reader(sock.fileno())
        loop.call_soon(server.close)
    else:
        server.close()
