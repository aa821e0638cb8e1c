"""What every transport promises: run on TCP and in memory, on uvloop and on the standard loop."""

from __future__ import annotations

import asyncio
import random

import pytest

from asyncps.errors import ConnectionLost, HandshakeError, RemoteProtocolError
from asyncps.protocol.frames import HEADER_SIZE, Header, Kind
from asyncps.protocol.handshake import PeerHello
from asyncps.transport.connection import HIGH_WATER_BYTES
from asyncps.transport.link import Link
from asyncps.transport.network import Network
from asyncps.transport.outbox import Outbox, Outgoing
from asyncps.transport.request import Request
from tests.transport.ends import (
    End,
    dial,
    echo,
    network_of,
    open_door,
    open_pair,
    pack,
    send,
    spawning,
)

pytestmark = pytest.mark.asyncio(loop_factories=["uvloop", "asyncio"])


@pytest.fixture(params=["tcp", "memory"])
def network(request: pytest.FixtureRequest) -> Network:
    return network_of(request.param)


async def test_both_sides_are_ready_and_know_each_other(network: Network) -> None:
    async with open_pair(network) as (near, far):
        assert near.connection is not None
        assert far.connection is not None
        assert near.connection.peer == PeerHello("server", 0, 5)
        assert far.connection.peer == PeerHello("worker", 3, 9)
        assert near.connection.ready
        assert near.connection.writable
        assert near.connection.describe().startswith("server 0 at ")


async def test_frames_of_many_sizes_come_back_whole_and_in_order(network: Network) -> None:
    sizes = [0, 1, 71, 72, 73, 4095, 65463, 65464, 65465, 65536, 100_001, 1 << 20, 3, 700_000]
    values = [random.Random(size).randbytes(size) for size in sizes]
    async with open_pair(network) as (near, far):
        far.on_frame = echo
        assert near.connection is not None
        for number, value in enumerate(values, 1):
            send(near.connection, Kind.PUSHPULL, value, request=number)
        found = await near.wait_frames(len(values))
        assert [header.request for header, _ in found] == list(range(1, len(values) + 1))
        assert [payload for _, payload in found] == values


@pytest.mark.slow
async def test_sixty_four_mebibytes_come_back(network: Network) -> None:
    value = random.Random(64).randbytes(1 << 20) * 64
    async with open_pair(network) as (near, far):
        far.on_frame = echo
        assert near.connection is not None
        send(near.connection, Kind.PUSHPULL, value)
        assert (await near.wait_frames(1))[0][1] == value
        assert near.connection.received > len(value)
        assert near.connection.sent > len(value)


@pytest.mark.slow
async def test_clogged_peer_stops_the_sender_and_all_arrives_when_it_reads(
    network: Network,
) -> None:
    chunk, count = random.Random(1).randbytes(512 << 10), 100
    async with open_pair(network) as (near, far):
        connection, reader = near.connection, far.connection
        assert connection is not None
        assert reader is not None
        reader.pause_reading()
        outbox = Outbox()
        outbox.attach(connection)
        most = 0
        for number in range(1, count + 1):
            parts = pack(Kind.PUSH, chunk, request=number)
            outbox.post(Outgoing(0, parts, sum(map(len, parts))))
            most = max(most, connection.pending_bytes)
        # The kernel takes what its buffers hold; then it is our turn to wait.
        while connection.writable:
            paused = asyncio.Event()
            asyncio.get_running_loop().call_soon(paused.set)
            await paused.wait()
        most = max(most, connection.pending_bytes)
        assert most <= HIGH_WATER_BYTES + len(chunk) + HEADER_SIZE
        assert outbox.queued_bytes > 20 << 20
        assert len(outbox) == outbox.queued_bytes // (len(chunk) + HEADER_SIZE)
        reader.resume_reading()
        found = await far.wait_frames(count)
        assert [header.request for header, _ in found] == list(range(1, count + 1))
        assert all(payload == chunk for _, payload in found)
        assert outbox.queued_bytes == 0


async def test_cut_inside_a_frame_is_survived_and_the_answer_is_right(network: Network) -> None:
    value, out = random.Random(2).randbytes(300_000), bytearray(300_000)

    def cut_the_first(end: End) -> None:
        if len(door.ends) == 1:
            real = end.begin

            def begin(header: Header, table: memoryview) -> memoryview | None:
                assert end.connection is not None
                end.connection.abort(ConnectionLost("cut"))
                return real(header, table)

            end.begin = begin  # type: ignore[method-assign]
        else:
            end.on_frame = echo

    async with open_door(network) as door, spawning() as spawn:
        door.on_end = cut_the_first
        link = Link("server 0", lambda link: dial(door, link), lambda m, n: None, spawn)
        await link.wait_connected()
        answers: asyncio.Queue[tuple[Header | None, object]] = asyncio.Queue()
        parts = pack(Kind.PUSHPULL, value)
        link.request(Request(
            link.number(), 0, parts, sum(map(len, parts)),
            lambda request, header, message, error: answers.put_nowait((header, error)),
            memoryview(out),
        ))
        header, error = await answers.get()
        assert error is None
        assert header is not None
        assert out == value
        assert len(door.ends) == 2
        assert answers.empty()
        link.close()


async def test_close_writes_everything_first(network: Network) -> None:
    value = random.Random(3).randbytes(3 << 20)
    async with open_pair(network) as (near, far):
        assert near.connection is not None
        send(near.connection, Kind.PUSH, value)
        near.connection.close()
        assert not near.connection.writable
        await near.wait("lost")
        await far.wait("lost")
        assert [payload for _, payload in far.frames] == [value]
        assert isinstance(near.error, ConnectionLost)
        assert isinstance(far.error, ConnectionLost)
        assert not near.connection.ready


async def test_close_on_both_sides_at_once_ends_both(network: Network) -> None:
    async with open_pair(network) as (near, far):
        for end in (near, far):
            assert end.connection is not None
            send(end.connection, Kind.PUSH, bytes(1000))
        for end in (near, far):
            assert end.connection is not None
            end.connection.close()
        await near.wait("lost")
        await far.wait("lost")


async def test_abort_ends_both_sides_and_gives_its_reason_here(network: Network) -> None:
    async with open_pair(network) as (near, far):
        assert near.connection is not None
        near.connection.abort(RemoteProtocolError("we had enough"))
        assert not near.connection.ready
        await near.wait("lost")
        await far.wait("lost")
        assert isinstance(near.error, RemoteProtocolError)
        assert isinstance(far.error, ConnectionLost)


async def test_nothing_lands_in_memory_after_abort(network: Network) -> None:
    async with open_pair(network) as (near, far):
        assert near.connection is not None
        assert far.connection is not None
        header, payload = pack(Kind.DATA, b"x" * 400_000)
        far.connection.send([header, payload[:1]], len(header) + 1)
        await near.wait("began")
        place = near.place
        assert place is not None
        far.connection.send([payload[1:]], len(payload) - 1)
        near.connection.abort()
        kept = bytes(place)
        await near.wait("lost")
        await far.wait("lost")
        assert place == kept


async def test_abandoned_payload_is_dropped_and_the_connection_goes_on(network: Network) -> None:
    async with open_pair(network) as (near, far):
        assert near.connection is not None
        assert far.connection is not None
        header, payload = pack(Kind.DATA, b"x" * 900_000, request=1)
        far.connection.send([header, payload[:1]], len(header) + 1)
        await near.wait("began")
        place, reader = near.place, near.connection.reader
        assert place is not None
        assert reader is not None
        kept = bytes(place)
        assert reader.abandon_payload()
        far.connection.send([payload[1:]], len(payload) - 1)
        send(far.connection, Kind.DATA, b"the next one", request=2)
        found = await near.wait_frames(1)
        assert [(h.request, p) for h, p in found] == [(2, b"the next one")]
        assert place == kept


async def test_frame_that_breaks_the_rules_closes_this_connection_only(network: Network) -> None:
    async with open_door(network) as door:
        bad, good = End(), End()
        first = await dial(door, bad)
        second = await dial(door, good)
        await bad.wait("ready")
        await good.wait("ready")
        (await door.wait_ends(2)).on_frame = echo
        first.send([b"x" * 100], 100)
        await bad.wait("lost")
        await door.ends[0].wait("lost")
        assert isinstance(door.ends[0].error, RemoteProtocolError)
        send(second, Kind.PUSHPULL, b"alive")
        assert (await good.wait_frames(1))[0][1] == b"alive"
        second.abort()
        await good.wait("lost")


async def test_wrong_token_is_told_to_both_owners(
    network: Network, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_door(network) as door:
        near = End()
        await dial(door, near, token="another")
        await near.wait("lost")
        far = await door.wait_ends(1)
        await far.wait("lost")
        for end in (near, far):
            assert isinstance(end.error, HandshakeError)
            assert end.connection is None
        assert "wrong token" in caplog.text
        assert "another" not in caplog.text


async def test_owner_that_does_not_want_a_peer_closes_it(network: Network) -> None:
    def refuse(end: End) -> None:
        raise RemoteProtocolError("not you")

    async with open_door(network) as door:
        door.on_end = lambda end: setattr(end, "on_ready", refuse)
        near = End()
        await dial(door, near)
        await near.wait("lost")
        far = await door.wait_ends(1)
        await far.wait("lost")
        assert isinstance(far.error, RemoteProtocolError)


async def test_closed_before_it_was_made_never_lives(network: Network) -> None:
    async with open_door(network) as door:
        near = End()
        connect = network.connect

        async def connect_aborted(factory, host, port):  # type: ignore[no-untyped-def]
            def make():  # type: ignore[no-untyped-def]
                connection = factory()
                connection.abort(ConnectionLost("too late"))
                return connection

            return await connect(make, host, port)

        network.connect = connect_aborted  # type: ignore[method-assign]
        await dial(door, near)
        await near.wait("lost")
        assert str(near.error) == "too late"
        await (await door.wait_ends(1)).wait("lost")


async def test_port_where_nobody_listens_any_more_is_a_connection_error(network: Network) -> None:
    async with open_door(network) as door:
        port = door.port
    with pytest.raises(ConnectionError, match=str(port)):
        await dial(door, End(), port=port)
