"""Both ends of connections, and what they heard: the ground of the transport tests."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any

from asyncps.errors import AsyncPSError
from asyncps.protocol.frames import Header, Kind
from asyncps.protocol.handshake import Hello
from asyncps.transport.connection import Connection
from asyncps.transport.link import Link
from asyncps.transport.network import Listening, MemoryNetwork, Network, TcpNetwork
from asyncps.transport.request import Request
from asyncps.transport.tcp import Address
from asyncps_ext import wire

TOKEN = "the token of these tests"
HANDSHAKE_S = 10.0
LAST_WAIT_S = 5.0  # of a test that has failed already: it shall end


def network_of(name: str) -> Network:
    """A fresh network: "tcp" or "memory"."""
    return TcpNetwork() if name == "tcp" else MemoryNetwork()


def pack(
    kind: int, payload: Any = b"", *, request: int = 1, table: bytes = b"", unit: int = 0
) -> list[bytes | memoryview]:
    """The parts of a frame."""
    view = memoryview(payload)
    header = wire.pack_header(kind, 0, 1, 0, request, unit, 0, 1, len(table), len(view), 0, 0)
    return [header, *([table] if table else []), *([view] if len(view) else [])]


def send(connection: Connection, kind: int, payload: Any = b"", **fields: Any) -> None:
    """Hand one frame to a connection."""
    parts = pack(kind, payload, **fields)
    connection.send(parts, sum(map(len, parts)))


class End:
    """Owner and sink of one connection; keeps its frames and tells how it ended."""

    def __init__(self) -> None:
        self.connection: Connection | None = None
        self.error: AsyncPSError | None = None
        self.frames: list[tuple[Header, bytes]] = []
        self.place: bytearray | None = None
        self.on_frame: Callable[[End, Header, bytes], None] = lambda end, header, payload: None
        self.on_ready: Callable[[End], None] = lambda end: None
        self._events = {"ready": asyncio.Event(), "began": asyncio.Event(), "lost": asyncio.Event()}
        self._changed = asyncio.Event()

    async def wait(self, event: str) -> None:
        """Wait until it is "ready", has "began" a payload, or is "lost"."""
        await self._events[event].wait()

    async def wait_frames(self, count: int) -> list[tuple[Header, bytes]]:
        """Wait until `count` frames are there."""
        while len(self.frames) < count:
            self._changed.clear()
            await self._changed.wait()
        return self.frames

    def connection_ready(self, connection: Connection) -> End:
        self.connection = connection
        self.on_ready(self)
        self._events["ready"].set()
        return self

    def connection_closed(self, connection: Connection, error: AsyncPSError) -> None:
        self.error = error
        self._events["lost"].set()

    def begin(self, header: Header, table: memoryview) -> memoryview | None:
        self.place = bytearray(header.payload_bytes)
        self._events["began"].set()
        return memoryview(self.place)

    def finish(self, header: Header, table: memoryview) -> None:
        payload = bytes(self.place or b"") if header.payload_bytes else bytes(table)
        self.place = None
        self.frames.append((header, payload))
        self._changed.set()
        self.on_frame(self, header, payload)


class Door:
    """A listening role: makes an `End` for each connection that comes."""

    def __init__(self, network: Network) -> None:
        self.network = network
        self.ends: list[End] = []
        self.token = TOKEN
        self.on_end: Callable[[End], None] = lambda end: None
        self.listening: Listening | None = None
        self._changed = asyncio.Event()

    @property
    def port(self) -> int:
        assert self.listening is not None
        return self.listening.port

    @property
    def last(self) -> End:
        """The newest end."""
        return self.ends[-1]

    async def open(self, handshake_s: float = HANDSHAKE_S) -> None:
        self.listening = await self.network.listen(
            self._accept, Address("127.0.0.1", 0, 0), handshake_s
        )

    async def wait_ends(self, count: int) -> End:
        """Wait for the connection number `count`."""
        while len(self.ends) < count:
            self._changed.clear()
            await self._changed.wait()
        return self.ends[count - 1]

    def _accept(self) -> Connection:
        end = End()
        self.ends.append(end)
        self._changed.set()
        self.on_end(end)
        hello = Hello("server", 0, 5, "job", b"")
        return Connection(_Proving(self, end), hello, self.token, connector=False)


class _Proving:
    """Tells the listener when a connection has proven itself, as a role does."""

    def __init__(self, door: Door, end: End) -> None:
        self.door, self.end = door, end

    def connection_ready(self, connection: Connection) -> End:
        assert self.door.listening is not None
        self.door.listening.proven(connection)
        return self.end.connection_ready(connection)

    def connection_closed(self, connection: Connection, error: AsyncPSError) -> None:
        assert self.door.listening is not None
        self.door.listening.proven(connection)
        self.end.connection_closed(connection, error)


@contextlib.asynccontextmanager
async def open_door(network: Network, handshake_s: float = HANDSHAKE_S) -> AsyncIterator[Door]:
    """Listen; close every connection that is left and wait until it is gone."""
    door = Door(network)
    await door.open(handshake_s)
    try:
        yield door
    finally:
        assert door.listening is not None
        door.listening.close()
        async with asyncio.timeout(LAST_WAIT_S):
            for end in door.ends:
                if end.connection is not None:
                    end.connection.abort()
                    await end.wait("lost")


async def dial(door: Door, end: Any, token: str = TOKEN, port: int = 0) -> Connection:
    """Open a connection whose owner is `end`."""
    hello = Hello("worker", 3, 9, "job", b"")
    return await door.network.connect(
        lambda: Connection(end, hello, token, connector=True), "127.0.0.1", port or door.port
    )


@contextlib.asynccontextmanager
async def open_pair(network: Network) -> AsyncIterator[tuple[End, End]]:
    """A proven connection: the connector's end and the acceptor's."""
    async with open_door(network) as door:
        near = End()
        connection = await dial(door, near)
        await near.wait("ready")
        await (await door.wait_ends(1)).wait("ready")
        try:
            yield near, door.ends[0]
        finally:
            connection.abort()
            async with asyncio.timeout(LAST_WAIT_S):
                await near.wait("lost")


@contextlib.asynccontextmanager
async def spawning() -> AsyncIterator[Callable[[Any, str], None]]:
    """Gives a `spawn` whose tasks end with the block."""
    async with asyncio.TaskGroup() as group:
        running: list[asyncio.Task[Any]] = []

        def spawn(work: Any, name: str) -> None:
            running.append(group.create_task(work, name=name))

        try:
            yield spawn
        finally:
            for task in running:
                task.cancel()


def echo(end: End, header: Header, payload: bytes) -> None:
    """Answer a frame: its payload comes back."""
    assert end.connection is not None
    if header.kind == Kind.CONTROL:
        send(end.connection, Kind.CONTROL, request=header.request, table=b"\x91\x28")
    elif header.kind == Kind.PUSH:
        send(end.connection, Kind.ACK, request=header.request)
    else:
        send(end.connection, Kind.DATA, payload, request=header.request)


class Answers:
    """What requests were answered with, in the order of the answers."""

    def __init__(self) -> None:
        self.all: list[tuple[int, Header | None, AsyncPSError | None]] = []
        self._changed = asyncio.Event()

    def __call__(
        self, request: Request, header: Header | None, message: Any, error: AsyncPSError | None
    ) -> None:
        self.all.append((request.number, header, error))
        self._changed.set()

    async def wait(self, count: int) -> list[tuple[int, Header | None, AsyncPSError | None]]:
        while len(self.all) < count:
            self._changed.clear()
            await self._changed.wait()
        return self.all


def post(
    link: Link, answers: Answers, kind: int = Kind.PUSHPULL, value: Any = b"value",
    out: Any = None, priority: int = 0, unit: Any = None,
) -> Request:
    """Make a request on a link."""
    number = link.number()
    parts = pack(kind, value, request=number)
    place = None if out is None else memoryview(out)
    request = Request(number, priority, parts, sum(map(len, parts)), answers, place, unit)
    link.request(request)
    return request


def link_to(door: Door, spawn: Any, **options: Any) -> Link:
    """A link to whatever listens there."""
    on_message = options.pop("on_message", lambda message, number: None)
    return Link("server 0", lambda link: dial(door, link), on_message, spawn, **options)
