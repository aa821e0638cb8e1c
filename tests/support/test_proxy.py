"""The proxy passes, counts, freezes, cuts and resets; what tests of faults rest on."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import AsyncIterator, Iterator

import pytest

from tests.support.proxy import TcpProxy, ThreadProxy

BOTH_LOOPS = pytest.mark.asyncio(loop_factories=["uvloop", "asyncio"])


class EchoServer:
    """Answers each byte, and keeps how each connection ended."""

    def __init__(self) -> None:
        self.answers = True
        self.received = 0
        self.ends: asyncio.Queue[BaseException | None] = asyncio.Queue()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        end: BaseException | None = None
        try:
            while data := await reader.read(65536):
                self.received += len(data)
                if self.answers:
                    writer.write(data)
                    await writer.drain()
        except OSError as error:
            end = error
        finally:
            writer.close()
            self.ends.put_nowait(end)


@pytest.fixture
async def echo() -> AsyncIterator[tuple[EchoServer, tuple[str, int]]]:
    server = EchoServer()
    listener = await asyncio.start_server(server.serve, "127.0.0.1", 0)
    yield server, listener.sockets[0].getsockname()
    listener.close()
    await listener.wait_closed()


Echo = tuple[EchoServer, tuple[str, int]]


@BOTH_LOOPS
@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
async def test_bytes_pass_and_are_counted(echo: Echo, host: str) -> None:
    async with TcpProxy(echo[1], listen_host=host) as proxy:
        assert proxy.address[0] == host
        reader, writer = await asyncio.open_connection(*proxy.address)
        writer.write(b"x" * 300_000)
        assert await reader.readexactly(300_000) == b"x" * 300_000
        assert (proxy.bytes_up, proxy.bytes_down) == (300_000, 300_000)
        assert (proxy.connections, proxy.open_connections) == (1, 1)
        writer.close()
        await writer.wait_closed()
        await proxy.wait_open(0)


@BOTH_LOOPS
async def test_half_close_travels_and_the_answer_still_comes(echo: Echo) -> None:
    async with TcpProxy(echo[1]) as proxy:
        reader, writer = await asyncio.open_connection(*proxy.address)
        writer.write(b"last words")
        writer.write_eof()
        assert await reader.read() == b"last words"
        writer.close()
        await writer.wait_closed()


@BOTH_LOOPS
async def test_cut_ends_both_sides_and_later_connections_pass(echo: Echo) -> None:
    server, target = echo
    async with TcpProxy(target) as proxy:
        reader, writer = await asyncio.open_connection(*proxy.address)
        writer.write(b"a")
        await reader.readexactly(1)
        proxy.cut()
        assert await reader.read() == b""
        assert await server.ends.get() is None
        assert proxy.open_connections == 0
        writer.close()
        await writer.wait_closed()

        reader, writer = await asyncio.open_connection(*proxy.address)
        writer.write(b"b")
        assert await reader.readexactly(1) == b"b"
        assert proxy.connections == 2
        writer.close()
        await writer.wait_closed()


@BOTH_LOOPS
async def test_reset_is_a_connection_reset_on_both_sides(echo: Echo) -> None:
    server, target = echo
    async with TcpProxy(target) as proxy:
        reader, writer = await asyncio.open_connection(*proxy.address)
        writer.write(b"a")
        await reader.readexactly(1)
        proxy.cut(reset=True)
        with pytest.raises(ConnectionResetError):
            await reader.read()
        assert isinstance(await server.ends.get(), ConnectionResetError)
        writer.close()


@BOTH_LOOPS
@pytest.mark.parametrize("nbytes", [1, 1000, 200_001])
async def test_cut_after_passes_exactly_so_many_bytes_up(echo: Echo, nbytes: int) -> None:
    server, target = echo
    server.answers = False
    async with TcpProxy(target) as proxy:
        _, writer = await asyncio.open_connection(*proxy.address)
        proxy.cut_after(nbytes, "up")
        writer.write(b"x" * 500_000)
        await server.ends.get()
        assert server.received == proxy.bytes_up == nbytes
        writer.close()


@BOTH_LOOPS
async def test_cut_after_counts_from_now_and_cuts_once(echo: Echo) -> None:
    async with TcpProxy(echo[1]) as proxy:
        reader, writer = await asyncio.open_connection(*proxy.address)
        writer.write(b"0123456789")
        await reader.readexactly(10)
        proxy.cut_after(5, "down")
        writer.write(b"0123456789")
        assert await reader.read() == b"01234"
        writer.close()

        reader, writer = await asyncio.open_connection(*proxy.address)
        writer.write(b"0123456789")
        assert await reader.readexactly(10) == b"0123456789"
        writer.close()
        await writer.wait_closed()


@BOTH_LOOPS
async def test_cut_after_with_reset_breaks_the_stream_in_its_middle(echo: Echo) -> None:
    async with TcpProxy(echo[1]) as proxy:
        reader, writer = await asyncio.open_connection(*proxy.address)
        proxy.cut_after(4, "down", reset=True)
        writer.write(b"0123456789")
        with pytest.raises(ConnectionResetError):
            await reader.readexactly(10)
        assert proxy.bytes_down == 4
        writer.close()


@BOTH_LOOPS
async def test_cut_after_refuses_a_count_below_one(echo: Echo) -> None:
    async with TcpProxy(echo[1]) as proxy:
        with pytest.raises(ValueError, match="at least one byte"):
            proxy.cut_after(0)


@BOTH_LOOPS
async def test_frozen_proxy_passes_nothing_until_thawed(echo: Echo) -> None:
    server, target = echo
    async with TcpProxy(target) as proxy:
        reader, writer = await asyncio.open_connection(*proxy.address)
        writer.write(b"a")
        await reader.readexactly(1)
        proxy.freeze()
        writer.write(b"b")
        late, late_writer = await asyncio.open_connection(*proxy.address)
        late_writer.write(b"c")
        await proxy.wait_connections(2)
        # The server answers what it gets: a byte past the proxy, on a way around it, proves
        # that the loop has had its turns.
        around, around_writer = await asyncio.open_connection(*target)
        around_writer.write(b"d")
        await around.readexactly(1)
        assert (proxy.bytes_up, server.received) == (1, 2)

        proxy.thaw()
        assert await reader.readexactly(1) == b"b"
        assert await late.readexactly(1) == b"c"
        for each in (writer, late_writer, around_writer):
            each.close()
            await each.wait_closed()


@BOTH_LOOPS
async def test_frozen_connection_can_be_cut(echo: Echo) -> None:
    server, target = echo
    async with TcpProxy(target) as proxy:
        reader, writer = await asyncio.open_connection(*proxy.address)
        writer.write(b"a")
        await reader.readexactly(1)
        proxy.freeze()
        writer.write(b"lost")
        proxy.cut()
        with pytest.raises((asyncio.IncompleteReadError, ConnectionResetError)):
            await reader.readexactly(1)
        await server.ends.get()
        proxy.thaw()
        assert server.received == 1
        writer.close()


@BOTH_LOOPS
async def test_refusing_proxy_closes_new_connections_until_it_accepts(echo: Echo) -> None:
    async with TcpProxy(echo[1]) as proxy:
        proxy.refuse()
        reader, writer = await asyncio.open_connection(*proxy.address)
        assert await reader.read() == b""
        writer.close()
        assert proxy.connections == 0
        proxy.accept()
        reader, writer = await asyncio.open_connection(*proxy.address)
        writer.write(b"a")
        assert await reader.readexactly(1) == b"a"
        writer.close()


@BOTH_LOOPS
async def test_client_of_a_server_that_is_gone_sees_its_connection_closed() -> None:
    with socket.socket() as unheard:
        unheard.bind(("127.0.0.1", 0))  # bound and not listening: nobody else can have the port
        async with TcpProxy(unheard.getsockname()) as proxy:
            reader, writer = await asyncio.open_connection(*proxy.address)
            assert await reader.read() == b""
            writer.close()


@BOTH_LOOPS
async def test_leaving_a_frozen_proxy_with_open_connections_ends_everything(echo: Echo) -> None:
    async with TcpProxy(echo[1]) as proxy:
        _, writer = await asyncio.open_connection(*proxy.address)
        writer.write(b"a")
        await proxy.wait_bytes(1)
        proxy.freeze()
        writer.write(b"b")
    writer.close()


@pytest.fixture
def blocking_echo() -> Iterator[tuple[str, int]]:
    """An echo server of one connection at a time, in a thread."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with connection:
                try:
                    while data := connection.recv(65536):
                        connection.sendall(data)
                except OSError:
                    pass

    thread = threading.Thread(target=serve, name="echo")
    thread.start()
    yield listener.getsockname()
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()
    thread.join()


def test_thread_proxy_serves_blocking_code(blocking_echo: tuple[str, int]) -> None:
    with ThreadProxy(blocking_echo) as proxy:
        with socket.create_connection(proxy.address, timeout=10) as client:
            client.sendall(b"a")
            assert client.recv(1) == b"a"
            proxy.wait_connections(1)
            proxy.wait_bytes(1, "down")
            proxy.freeze()
            client.sendall(b"b")
            assert proxy.bytes_up == 1
            proxy.thaw()
            assert client.recv(1) == b"b"
            proxy.cut()
            assert client.recv(1) == b""
        proxy.wait_open(0)
        with socket.create_connection(proxy.address, timeout=10) as client:
            proxy.cut_after(2, "up", reset=True)
            client.sendall(b"abcdef")
            with pytest.raises(ConnectionResetError):
                client.makefile("rb").read(10)
        assert (proxy.bytes_up, proxy.connections) == (4, 2)


def test_thread_proxy_passes_on_errors_of_its_calls(blocking_echo: tuple[str, int]) -> None:
    with (
        ThreadProxy(blocking_echo) as proxy,
        pytest.raises(ValueError, match="at least one byte"),
    ):
        proxy.cut_after(0)


def test_thread_proxy_tells_when_it_cannot_listen() -> None:
    proxy = ThreadProxy(("127.0.0.1", 1), listen_host="192.0.2.1")  # TEST-NET-1: nobody's
    with pytest.raises(OSError, match=r"192\.0\.2\.1"), proxy:
        pass


def test_thread_proxy_wait_has_a_deadline(blocking_echo: tuple[str, int]) -> None:
    with ThreadProxy(blocking_echo) as proxy, pytest.raises(TimeoutError):
        proxy.wait_connections(1, timeout_s=0.01)
