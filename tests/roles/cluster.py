"""Roles on this test's loop over real sockets, and a peer that says what a test wants."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

from asyncps.config import Config
from asyncps.embedded import Scope
from asyncps.errors import AsyncPSError
from asyncps.protocol.frames import Header
from asyncps.protocol.handshake import Hello
from asyncps.protocol.messages import AnyMessage, decode
from asyncps.roles.scheduler import Scheduler
from asyncps.roles.server import Server
from asyncps.transport.connection import Connection
from asyncps.transport.network import TcpNetwork

TOKEN = "a-secret"


def settings(**given: Any) -> Config:
    """Settings of one job on loopback."""
    return Config.from_env({}, **{"scheduler": "127.0.0.1:0", "token": TOKEN, **given})


class Bench:
    """A scheduler, and servers as a test starts them."""

    def __init__(self, scope: Scope, config: Config) -> None:
        self.scope = scope
        self.network = TcpNetwork()
        self.config = config
        self.scheduler = Scheduler(config.replace(role="scheduler"), self.network, scope.spawn)
        scope.roles.append(self.scheduler)

    async def start(self) -> None:
        """Start the scheduler."""
        await self.scheduler.start()
        self.config = self.config.replace(scheduler=f"127.0.0.1:{self.scheduler.port}")

    def server(self, rank: int = 0) -> Server:
        """Make a server and start it in the background."""
        server = Server(self.config.replace(role="server", rank=rank), self.network,
                        self.scope.spawn)
        self.scope.roles.append(server)

        async def start() -> None:
            with contextlib.suppress(AsyncPSError):
                await server.start()

        self.scope.spawn(start(), f"start server {rank}")
        return server

    async def peer(
        self, role: str, rank: int, incarnation: int = 0, *, port: int | None = None,
        token: str = TOKEN,
    ) -> Peer:
        """Connect as somebody."""
        peer = Peer()
        hello = Hello(role, rank, incarnation, self.config.job, b"")
        await self.network.connect(
            lambda: Connection(peer, hello, token, connector=True), "127.0.0.1",
            self.scheduler.port if port is None else port,
        )
        await asyncio.wait_for(peer.up.wait(), 5.0)
        return peer


class Peer:
    """The test's end of a connection: it keeps what comes."""

    def __init__(self) -> None:
        self.up = asyncio.Event()
        self.down = asyncio.Event()
        self.connection: Connection | None = None
        self.error: AsyncPSError | None = None
        self.frames: asyncio.Queue[tuple[Header, AnyMessage | None]] = asyncio.Queue()

    def connection_ready(self, connection: Connection) -> Peer:
        """It is proven."""
        self.connection = connection
        self.up.set()
        return self

    def connection_closed(self, connection: Connection, error: AsyncPSError) -> None:
        """It is gone."""
        self.error = error
        self.up.set()
        self.down.set()

    def begin(self, header: Header, table: memoryview) -> memoryview | None:
        """Take any payload and forget it."""
        return None

    def finish(self, header: Header, table: memoryview) -> None:
        """Keep a frame."""
        self.frames.put_nowait((header, decode(table) if header.table_bytes else None))

    def say(self, *parts: bytes) -> None:
        """Send bytes."""
        assert self.connection is not None
        self.connection.send(list(parts), sum(map(len, parts)))

    async def hear(self, kind: type[Any] | None = None) -> Any:
        """Wait for the next message of a kind, or for a bare frame."""
        while True:
            header, message = await asyncio.wait_for(self.frames.get(), 5.0)
            if kind is None and message is None:
                return header
            if kind is not None and isinstance(message, kind):
                return message

    async def wait_gone(self) -> None:
        """Wait until the other side has closed."""
        await asyncio.wait_for(self.down.wait(), 5.0)

    def close(self) -> None:
        """Cut the connection."""
        if self.connection is not None:
            self.connection.abort()


@contextlib.asynccontextmanager
async def bench(**given: Any) -> AsyncIterator[Bench]:
    """A running scheduler."""
    async with Scope() as scope:
        made = Bench(scope, settings(**given))
        await made.start()
        yield made
