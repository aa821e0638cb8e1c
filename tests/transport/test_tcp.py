"""Addresses and ports, and the door: who has not proven himself is shown out."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import socket

import pytest

from asyncps.errors import ConfigError, HandshakeError, TransportError
from asyncps.protocol.frames import Kind
from asyncps.protocol.handshake import Hello
from asyncps.transport import tcp
from asyncps.transport.connection import Connection
from asyncps.transport.network import MemoryNetwork, TcpNetwork
from asyncps.transport.tcp import Address, interface_address, is_loopback, parse_address
from tests.transport.ends import TOKEN, Door, End, dial, echo, open_door, send

BOTH_LOOPS = pytest.mark.asyncio(loop_factories=["uvloop", "asyncio"])


@pytest.mark.parametrize(
    ("text", "host", "low", "high"),
    [
        ("node7", "node7", 42, 42), ("node7:80", "node7", 80, 80), ("node7:", "node7", 42, 42),
        ("node7:80-90", "node7", 80, 90), ("node7:0", "node7", 0, 0),
        ("10.0.0.1", "10.0.0.1", 42, 42), ("10.0.0.1:65535", "10.0.0.1", 65535, 65535),
        ("[::1]:9091", "::1", 9091, 9091), ("[::1]", "::1", 42, 42), ("::1", "::1", 42, 42),
        ("[fe80::1%eth0]:5-6", "fe80::1%eth0", 5, 6), ("2001:db8::7", "2001:db8::7", 42, 42),
        ("a.b-c.example:00080", "a.b-c.example", 80, 80), ("node7:7-7", "node7", 7, 7),
    ],
)
def test_address_is_read(text: str, host: str, low: int, high: int) -> None:
    address = parse_address(text, 42)
    assert address == Address(host, low, high)
    assert address.port == low


@pytest.mark.parametrize(
    "text",
    [
        "", ":80", "[]:80", "[::1", "[::1]80", "[::1]x:80", "node7:x", "node7:-1", "node7:80-",
        "node7:-80", "node7:90-80", "node7:65536", "node7:80-65536", "node7:8 0", "node7:1.5",
        "node7:80-90-99", "node7:\u00b2", "node7:\u0668", "node7:" + "9" * 5000, "a:b:c",
        "10.0.0.1:80:90", "http://node7", "[node7:8]:80",
    ],
)
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"not an address|not a port"):
        parse_address(text)


@pytest.mark.parametrize(
    ("address", "text"),
    [
        (Address("node7", 80, 80), "node7:80"), (Address("::1", 80, 80), "[::1]:80"),
        (Address("::1", 80, 90), "[::1]:80-90"),
    ],
)
def test_address_is_told_as_it_is_read(address: Address, text: str) -> None:
    assert str(address) == text
    assert parse_address(text) == address


@pytest.mark.parametrize(
    ("host", "answer"),
    [
        ("127.0.0.1", True), ("127.0.1.1", True), ("::1", True), ("localhost", True),
        ("0.0.0.0", False), ("::", False), ("10.0.0.1", False), ("192.0.2.1", False),
    ],
)
def test_loopback_is_known(host: str, answer: bool) -> None:
    assert is_loopback(host) is answer


@pytest.mark.parametrize("host", ["no-such-host.invalid", "a..b", "x" * 70])
def test_loopback_of_a_name_that_does_not_resolve_is_an_error(host: str) -> None:
    with pytest.raises(TransportError, match=f"the name {host} does not resolve: ."):
        is_loopback(host)


def test_interface_lo_has_the_loopback_address() -> None:
    assert interface_address("lo") == "127.0.0.1"


@pytest.mark.parametrize("name", ["no-such-one", "", "x" * 300])
def test_interface_that_is_not_there_is_refused_with_those_that_are(name: str) -> None:
    with pytest.raises(ConfigError, match=r"network interface.*expected .*lo"):
        interface_address(name)


def has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True


@BOTH_LOOPS
@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.1.1", "localhost", "::1"])
async def test_port_zero_of_any_kind_of_host_can_be_reached(host: str) -> None:
    if host == "::1" and not has_ipv6():
        pytest.skip("this machine has no IPv6")
    async with open_door_at(host) as door:
        assert 0 < door.port < 65536
        near = End()
        hello = Hello("worker", 3, 9, "job", b"")
        connection = await door.network.connect(
            lambda: Connection(near, hello, TOKEN, connector=True), host, door.port, 5.0
        )
        await near.wait("ready")
        sock = connection.socket()
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 5000
        assert is_loopback(connection.local_host())
        far = await door.wait_ends(1)
        await far.wait("ready")
        assert far.connection is not None
        assert far.connection.socket().getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        connection.abort()
        await near.wait("lost")


class open_door_at:
    """`open_door` on another host."""

    def __init__(self, host: str) -> None:
        self.host = host

    async def __aenter__(self) -> Door:
        self.context = open_door(_Elsewhere(self.host))  # type: ignore[arg-type]
        return await self.context.__aenter__()

    async def __aexit__(self, *exc_info: object) -> None:
        await self.context.__aexit__(*exc_info)  # type: ignore[arg-type]


class _Elsewhere(TcpNetwork):
    def __init__(self, host: str) -> None:
        self.host = host

    async def listen(self, factory, address, handshake_s):  # type: ignore[no-untyped-def]
        return await super().listen(factory, Address(self.host, 0, 0), handshake_s)


def two_free_ports() -> tuple[socket.socket, int]:
    """Return a bound socket and its port p, where p + 1 is free."""
    while True:
        taken = socket.socket()
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        if port < 65535:
            try:
                with socket.socket() as probe:
                    probe.bind(("127.0.0.1", port + 1))
            except OSError:
                pass
            else:
                return taken, port
        taken.close()


@BOTH_LOOPS
async def test_range_of_ports_passes_over_a_busy_one() -> None:
    taken, port = two_free_ports()
    with taken:
        listener = tcp.Listener(lambda: None, 5.0)  # type: ignore[arg-type,return-value]
        await listener.open(Address("127.0.0.1", port, port + 1))
        assert listener.port == port + 1
        listener.close()


@BOTH_LOOPS
async def test_busy_port_is_told_with_address_and_reason() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        listener = tcp.Listener(lambda: None, 5.0)  # type: ignore[arg-type,return-value]
        with pytest.raises(TransportError, match=f"cannot listen on 127.0.0.1:{port}: .*in use"):
            await listener.open(Address("127.0.0.1", port, port))
        listener.close()


@BOTH_LOOPS
@pytest.mark.parametrize("host", ["no-such-host.invalid", "a..b", "x" * 70, "192.0.2.1"])
async def test_host_that_is_not_ours_is_told_when_listening(host: str) -> None:
    listener = tcp.Listener(lambda: None, 5.0)  # type: ignore[arg-type,return-value]
    with pytest.raises(TransportError, match=rf"cannot listen on {re.escape(host)}:0: \S"):
        await listener.open(Address(host, 0, 0))


@BOTH_LOOPS
@pytest.mark.parametrize("host", ["no-such-host.invalid", "a..b", "x" * 70])
async def test_name_that_does_not_resolve_is_told_when_connecting(host: str) -> None:
    with pytest.raises(TransportError, match=rf"cannot reach {re.escape(host)}:80: \S"):
        await TcpNetwork().connect(lambda: None, host, 80)  # type: ignore[arg-type,return-value]


@BOTH_LOOPS
async def test_port_where_nobody_listens_is_told_with_address_and_reason() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))  # bound and not listening: nobody else takes it
        port = unused.getsockname()[1]
        with pytest.raises(TransportError, match=f"cannot reach 127.0.0.1:{port}: ."):
            await TcpNetwork().connect(
                lambda: Connection(End(), Hello("worker", 0, 1, "j", b""), "", connector=True),
                "127.0.0.1", port,
            )


async def test_memory_port_is_busy_once_and_given_back() -> None:
    network = MemoryNetwork()
    listening = await network.listen(lambda: None, Address("x", 7, 7), 5.0)  # type: ignore[arg-type,return-value]
    with pytest.raises(TransportError, match="memory port 7 is busy"):
        await network.listen(lambda: None, Address("x", 7, 7), 5.0)  # type: ignore[arg-type,return-value]
    listening.close()
    again = await network.listen(lambda: None, Address("x", 7, 7), 5.0)  # type: ignore[arg-type,return-value]
    again.close()


class Stranger(asyncio.Protocol):
    """Connects and says what it is told to say; hears how it ends."""

    def __init__(self, says: bytes = b"") -> None:
        self.says = says
        self.heard = b""
        self.gone = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        if self.says:
            transport.write(self.says)  # type: ignore[attr-defined]

    def data_received(self, data: bytes) -> None:
        self.heard += data

    def connection_lost(self, exc: Exception | None) -> None:
        self.gone.set()


async def strangers(port: int, count: int, says: bytes = b"") -> list[Stranger]:
    """Open many connections at once."""
    loop = asyncio.get_running_loop()
    async with asyncio.TaskGroup() as group:
        tasks = [
            group.create_task(loop.create_connection(lambda: Stranger(says), "127.0.0.1", port))
            for _ in range(count)
        ]
    return [task.result()[1] for task in tasks]


@BOTH_LOOPS
async def test_connection_that_proves_nothing_is_closed_in_time() -> None:
    async with open_door(TcpNetwork(), handshake_s=0.05) as door:
        silent, slow = await strangers(door.port, 1), await strangers(door.port, 1, b"ASYN")
        for stranger in silent + slow:
            await stranger.gone.wait()
            assert stranger.heard == b""
        for end in door.ends:
            await end.wait("lost")
            assert isinstance(end.error, HandshakeError)
            assert "nothing was proven in time" in str(end.error)


@BOTH_LOOPS
async def test_proven_connection_outlives_the_handshake_deadline() -> None:
    async with open_door(TcpNetwork(), handshake_s=0.05) as door:
        near = End()
        connection = await dial(door, near)
        await near.wait("ready")
        (await door.wait_ends(1)).on_frame = echo
        stranger = (await strangers(door.port, 1))[0]
        await stranger.gone.wait()  # a deadline that began later is over
        send(connection, Kind.PUSHPULL, b"alive")
        assert (await near.wait_frames(1))[0][1] == b"alive"
        connection.abort()
        await near.wait("lost")


@BOTH_LOOPS
async def test_two_hundred_strangers_at_once_hurt_nobody_and_sixty_four_stay() -> None:
    async with open_door(TcpNetwork()) as door:
        near = End()
        connection = await dial(door, near)
        await near.wait("ready")
        (await door.wait_ends(1)).on_frame = echo
        crowd = await strangers(door.port, 200)
        await door.wait_ends(201)
        lost = [end for end in door.ends if end is not door.ends[0]][: 200 - tcp.MAX_UNPROVEN]
        for end in lost:
            await end.wait("lost")
        send(connection, Kind.PUSHPULL, b"alive")
        assert (await near.wait_frames(1))[0][1] == b"alive"
        late = End()
        welcome = await dial(door, late)
        await late.wait("ready")
        still = sum(not stranger.gone.is_set() for stranger in crowd)
        assert tcp.MAX_UNPROVEN - 1 <= still <= 200
        assert door.listening is not None
        door.listening.close()  # the rest is shown out with it
        for stranger in crowd:
            await stranger.gone.wait()
        assert connection.ready
        for own, end in ((connection, near), (welcome, late)):
            own.abort()
            await end.wait("lost")


@BOTH_LOOPS
@pytest.mark.parametrize("says", [b"GET / HTTP/1.1\r\n\r\n", b"\0" * 300, b"\xff" * 9])
async def test_strangers_are_refused_with_a_line_and_no_answer(
    says: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_door(TcpNetwork()) as door:
        with caplog.at_level(logging.WARNING):
            stranger = (await strangers(door.port, 1, says))[0]
            await stranger.gone.wait()
            await (await door.wait_ends(1)).wait("lost")
        assert stranger.heard == b""
        assert caplog.text.count("refused 127.0.0.1:") == 1
        assert "no asyncps peer" in caplog.text


def test_loop_that_does_not_look_at_the_mark_is_made_to() -> None:
    # writelines of the standard loop on 3.12.1 and 3.13.0.
    class Forgetful(asyncio.transports._FlowControlMixin, asyncio.Transport):  # type: ignore[misc,name-defined]
        size = 0

        def writelines(self, parts):  # type: ignore[no-untyped-def]
            self.size += sum(map(len, parts))

        def write(self, data):  # type: ignore[no-untyped-def]
            self.size += len(data)

        def get_write_buffer_size(self) -> int:
            return self.size

        def is_closing(self) -> bool:
            return False

    connection = Connection(End(), Hello("worker", 0, 1, "j", b""), "", connector=True)
    transport = Forgetful(loop=object())
    transport._protocol = connection
    connection.connection_made(transport)
    connection.ready = connection.writable = True
    connection.send([bytes(1 << 20)], 1 << 20)
    connection.send([bytes(1 << 20)], 1 << 20)
    assert not connection.writable


@BOTH_LOOPS
@pytest.mark.parametrize("turns", range(5))
async def test_connection_that_comes_while_its_listener_closes_is_closed(turns: int) -> None:
    """Accepted, and not yet made: the standard loop leaves its socket open if nobody cares."""
    network = TcpNetwork()
    door = Door(network)
    await door.open()
    with socket.create_connection(("127.0.0.1", door.port)) as client:
        for _ in range(turns):
            await asyncio.sleep(0)
        assert door.listening is not None
        door.listening.close()
        client.setblocking(False)
        with contextlib.suppress(ConnectionResetError):
            while await asyncio.get_running_loop().sock_recv(client, 1000):
                pass
        for end in door.ends:
            await end.wait("lost")
