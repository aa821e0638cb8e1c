"""A TCP proxy that freezes, cuts and resets connections between a client and a real server."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Literal, Self

Direction = Literal["up", "down"]
"""`up` is from the client to the server, `down` is back."""

_READ_BYTES = 64 * 1024  # small enough that a frozen proxy swallows little
_LINGER_RESET = struct.pack("ii", 1, 0)  # close() sends RST and drops what is queued


@dataclass(eq=False)
class _Link:
    """One client's connection and its twin to the server."""

    writers: list[asyncio.StreamWriter] = field(default_factory=list)
    is_cut: bool = False

    def abort(self, *, reset: bool = False) -> None:
        self.is_cut = True
        for writer in self.writers:
            if reset:
                with contextlib.suppress(OSError):
                    sock = writer.get_extra_info("socket")
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_RESET)
            writer.transport.abort()


@dataclass(frozen=True, slots=True)
class _Cut:
    """A cut that comes when `direction` has passed `at_bytes` bytes."""

    direction: Direction
    at_bytes: int
    reset: bool
    alone: bool = False


class TcpProxy:
    """Listens on a port of its own and passes bytes to `target` and back.

    Args:
        target: host and port of the real server; connected anew for each client.
        listen_host: address to listen on, such as `127.0.0.1` or `::1`.
        listen_port: its port, 0 for the system's choice.

    Everything but the waits is synchronous and must be called on the proxy's own loop.
    """

    def __init__(
        self, target: tuple[str, int], *, listen_host: str = "127.0.0.1", listen_port: int = 0
    ) -> None:
        self.target = target
        self.listen_host = listen_host
        self.port = listen_port
        self.connections = 0  # accepted so far
        self._bytes: dict[Direction, int] = {"up": 0, "down": 0}
        self._links: set[_Link] = set()
        self._handlers: set[asyncio.Task[None]] = set()
        self._flowing = asyncio.Event()
        self._flowing.set()
        self._refusing = False
        self._changed = asyncio.Event()
        self._cut_at: _Cut | None = None
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(
            self._start_link, self.listen_host, self.port, limit=_READ_BYTES
        )
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        assert self._server is not None
        self._server.close()
        self._refusing = True
        self._flowing.set()
        self.cut()
        for handler in list(self._handlers):
            handler.cancel()
        if self._handlers:
            await asyncio.wait(self._handlers)
        await self._server.wait_closed()

    @property
    def address(self) -> tuple[str, int]:
        """Host and port that clients connect to."""
        return self.listen_host, self.port

    @property
    def bytes_up(self) -> int:
        """Bytes passed from clients to the server."""
        return self._bytes["up"]

    @property
    def bytes_down(self) -> int:
        """Bytes passed from the server to clients."""
        return self._bytes["down"]

    @property
    def open_connections(self) -> int:
        """Connections that pass bytes now."""
        return len(self._links)

    def freeze(self) -> None:
        """Passes nothing more; connections stay open, new ones are accepted and wait."""
        self._flowing.clear()

    def thaw(self) -> None:
        """Passes bytes again, those that came meanwhile first."""
        self._flowing.set()

    def cut(self, *, reset: bool = False) -> None:
        """Closes all connections of this moment, on both sides; later ones are passed as usual.

        Args:
            reset: send RST instead of FIN. Bytes still in the system's queues are lost.
        """
        for link in self._links:
            link.abort(reset=reset)
        self._links.clear()
        self._announce()

    def cut_after(
        self, nbytes: int, direction: Direction = "up", *, reset: bool = False,
        alone: bool = False,
    ) -> None:
        """Passes exactly `nbytes` more in `direction`, over all connections, then cuts once.

        Args:
            nbytes: at least 1.
            direction: whose bytes count.
            reset: as in `cut`.
            alone: cut only the connection over which the last of these bytes went.
        """
        if nbytes <= 0:
            raise ValueError(f"cut_after needs at least one byte, got {nbytes}; cut() cuts now")
        self._cut_at = _Cut(direction, self._bytes[direction] + nbytes, reset, alone)

    def refuse(self) -> None:
        """Closes each new connection at once, until `accept`."""
        self._refusing = True

    def accept(self) -> None:
        """Takes new connections again."""
        self._refusing = False

    async def wait_bytes(self, nbytes: int, direction: Direction = "up") -> None:
        """Waits until `nbytes` have passed in `direction` since the start."""
        await self._wait_until(lambda: self._bytes[direction] >= nbytes)

    async def wait_connections(self, count: int) -> None:
        """Waits until `count` connections have been accepted since the start."""
        await self._wait_until(lambda: self.connections >= count)

    async def wait_open(self, count: int) -> None:
        """Waits until exactly `count` connections are open, for instance 0 after a cut."""
        await self._wait_until(lambda: len(self._links) == count)

    async def before(self, direction: Direction, nbytes: int) -> None:
        """Called before bytes are passed; for proxies that decide by themselves when to fail."""

    async def _wait_until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            await self._changed.wait()

    def _announce(self) -> None:
        # Whoever waits holds the old event; the next wait takes the new one.
        self._changed.set()
        self._changed = asyncio.Event()

    def _start_link(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # A task of our own, since 3.11's streams log the cancellation of theirs as an error.
        task = asyncio.create_task(self._serve(reader, writer), name="proxy-link")
        self._handlers.add(task)
        task.add_done_callback(self._handlers.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        link = _Link(writers=[writer])
        try:
            if not self._refusing:
                await self._pass_both_ways(link, reader, writer)
        finally:
            link.abort()
            self._links.discard(link)
            self._announce()

    async def _pass_both_ways(
        self, link: _Link, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self.connections += 1
        self._links.add(link)
        self._announce()
        await self._flowing.wait()
        with contextlib.suppress(OSError):
            server_reader, server_writer = await asyncio.open_connection(
                *self.target, limit=_READ_BYTES
            )
            link.writers.append(server_writer)
            if link.is_cut:  # while it was being connected
                return
            for side in link.writers:
                # drain() then waits until the last byte is the system's: cut_after can count.
                side.transport.set_write_buffer_limits(high=0)
            async with asyncio.TaskGroup() as both:
                both.create_task(self._pump(link, reader, server_writer, "up"), name="proxy-up")
                both.create_task(self._pump(link, server_reader, writer, "down"), name="proxy-down")

    async def _pump(
        self,
        link: _Link,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        direction: Direction,
    ) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(_READ_BYTES):
                await self._flowing.wait()
                await self.before(direction, len(data))
                if link.is_cut:
                    return
                cut = self._cut_reached(direction, len(data))
                if cut is not None:
                    data = data[: cut.at_bytes - self._bytes[direction]]
                    self._cut_at = None
                self._bytes[direction] += len(data)
                writer.write(data)
                await writer.drain()
                if cut is not None and cut.alone:
                    link.abort(reset=cut.reset)
                elif cut is not None:
                    self.cut(reset=cut.reset)
                self._announce()
            if not link.is_cut:
                writer.write_eof()

    def _cut_reached(self, direction: Direction, nbytes: int) -> _Cut | None:
        cut = self._cut_at
        if cut is None or cut.direction != direction:
            return None
        return cut if self._bytes[direction] + nbytes >= cut.at_bytes else None


class ThreadProxy:
    """A `TcpProxy` on a loop and thread of its own, for tests whose own thread blocks.

    Args:
        target: host and port of the real server.
        listen_host: address to listen on.
        kind: makes the proxy.
    """

    def __init__(
        self, target: tuple[str, int], *, listen_host: str = "127.0.0.1",
        kind: Callable[..., TcpProxy] = TcpProxy,
    ) -> None:
        self._target = target
        self._listen_host = listen_host
        self._kind = kind
        self._ready: Future[tuple[asyncio.AbstractEventLoop, TcpProxy]] = Future()
        self._thread = threading.Thread(target=self._run, name="proxy")

    def __enter__(self) -> Self:
        self._thread.start()
        self._loop, self._proxy = self._ready.result()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._loop.call_soon_threadsafe(self._closing.set)
        self._thread.join()

    @property
    def address(self) -> tuple[str, int]:
        """Host and port that clients connect to."""
        return self._proxy.address

    @property
    def port(self) -> int:
        """The port that clients connect to."""
        return self._proxy.port

    @property
    def connections(self) -> int:
        """Connections accepted so far."""
        return self._proxy.connections

    @property
    def open_connections(self) -> int:
        """Connections that pass bytes now."""
        return self._proxy.open_connections

    @property
    def bytes_up(self) -> int:
        """Bytes passed from clients to the server."""
        return self._proxy.bytes_up

    @property
    def bytes_down(self) -> int:
        """Bytes passed from the server to clients."""
        return self._proxy.bytes_down

    def freeze(self) -> None:
        """As `TcpProxy.freeze`; it holds when this returns."""
        self._call(self._proxy.freeze)

    def thaw(self) -> None:
        """As `TcpProxy.thaw`."""
        self._call(self._proxy.thaw)

    def cut(self, *, reset: bool = False) -> None:
        """As `TcpProxy.cut`."""
        self._call(lambda: self._proxy.cut(reset=reset))

    def cut_after(self, nbytes: int, direction: Direction = "up", *, reset: bool = False) -> None:
        """As `TcpProxy.cut_after`."""
        self._call(lambda: self._proxy.cut_after(nbytes, direction, reset=reset))

    def refuse(self) -> None:
        """As `TcpProxy.refuse`."""
        self._call(self._proxy.refuse)

    def accept(self) -> None:
        """As `TcpProxy.accept`."""
        self._call(self._proxy.accept)

    def wait_bytes(self, nbytes: int, direction: Direction = "up", timeout_s: float = 10.0) -> None:
        """As `TcpProxy.wait_bytes`, with a TimeoutError."""
        self._wait(lambda: self._proxy.wait_bytes(nbytes, direction), timeout_s)

    def wait_connections(self, count: int, timeout_s: float = 10.0) -> None:
        """As `TcpProxy.wait_connections`, with a TimeoutError."""
        self._wait(lambda: self._proxy.wait_connections(count), timeout_s)

    def wait_open(self, count: int, timeout_s: float = 10.0) -> None:
        """As `TcpProxy.wait_open`, with a TimeoutError."""
        self._wait(lambda: self._proxy.wait_open(count), timeout_s)

    def _call(self, action: Callable[[], None]) -> None:
        done: Future[None] = Future()

        def act() -> None:
            try:
                done.set_result(action())
            except Exception as error:  # noqa: BLE001 - raised in the caller's thread
                done.set_exception(error)

        self._loop.call_soon_threadsafe(act)
        done.result()

    def _wait(self, condition: Callable[[], Coroutine[None, None, None]], timeout_s: float) -> None:
        bounded = asyncio.wait_for(condition(), timeout_s)
        asyncio.run_coroutine_threadsafe(bounded, self._loop).result()

    def _run(self) -> None:
        try:
            asyncio.run(self._main())
        except BaseException as error:
            if self._ready.done():
                raise
            self._ready.set_exception(error)  # raised in the caller's thread

    async def _main(self) -> None:
        self._closing = asyncio.Event()
        async with self._kind(self._target, listen_host=self._listen_host) as proxy:
            self._ready.set_result((asyncio.get_running_loop(), proxy))
            await self._closing.wait()
