"""Connections over real sockets: the loop sleeps through a large payload and misses nothing."""

from __future__ import annotations

import asyncio
import random
import socket
from collections.abc import AsyncIterator

import pytest

from asyncps.errors import ConnectionLost
from asyncps.protocol.frames import Kind
from asyncps.transport import connection as module
from asyncps.transport.connection import Connection
from asyncps.transport.network import MemoryNetwork, TcpNetwork
from tests.transport.ends import End, network_of, open_pair, pack, send

pytestmark = pytest.mark.asyncio(loop_factories=["uvloop", "asyncio"])

MIB = 1 << 20
LARGE, MOST = module._LARGE_BYTES, module._MOST_BYTES


class Ends:
    """Who receives, and who sends a frame in pieces."""

    def __init__(self, near: End, far: End) -> None:
        assert near.connection is not None
        assert far.connection is not None
        self.near, self.far = near, far
        self.ours: Connection = near.connection
        self.theirs: Connection = far.connection

    @property
    def wakes_at(self) -> int:
        """For how many bytes the receiving loop wakes."""
        found: int = self.ours.socket().getsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT)
        return found

    def piece(self, data: bytes | memoryview) -> None:
        """Send some bytes."""
        if len(data):
            self.theirs.send([data], len(data))

    async def begin(self, value: bytes, request: int = 1) -> memoryview:
        """Send a header and the first byte of its payload, alone; return the rest."""
        header, payload = pack(Kind.DATA, value, request=request)
        self.piece(bytes(header) + bytes(payload[:1]))
        reader = self.ours.reader
        assert reader is not None
        while not reader.missing:
            await turn()
        return memoryview(payload)[1:]

    async def gone(self) -> None:
        """Wait until the kernel has what was sent, and both loops had their chance."""
        while self.theirs.pending_bytes:
            await turn()
        for _ in range(5):
            await turn()


async def turn() -> None:
    """Let the loop go round once."""
    turned = asyncio.Event()
    asyncio.get_running_loop().call_soon(turned.set)
    await turned.wait()


@pytest.fixture
async def ends() -> AsyncIterator[Ends]:
    """Two ends of a socket."""
    async with open_pair(TcpNetwork()) as (near, far):
        yield Ends(near, far)


@pytest.mark.parametrize(("size", "wakes_at"), [
    (1000, 1), (LARGE - 1, 1), (LARGE, LARGE - 1), (MOST, MOST - 1), (MOST + 1, MOST),
    (3 * MOST, MOST),
])  # fmt: skip
async def test_loop_wakes_for_all_that_is_missing_of_a_large_payload_up_to_a_limit(
    ends: Ends, size: int, wakes_at: int
) -> None:
    assert ends.wakes_at == 1
    value = random.Random(size).randbytes(size)
    rest = await ends.begin(value)
    assert ends.wakes_at == wakes_at
    ends.piece(rest)
    ((_, payload),) = await ends.near.wait_frames(1)
    assert payload == value
    assert ends.wakes_at == 1


@pytest.mark.parametrize("size", [LARGE, MIB, MIB + 1, 3 * MIB + 5])
async def test_last_byte_that_is_held_back_and_small_frames_behind_it_arrive(
    ends: Ends, size: int
) -> None:
    value = random.Random(size).randbytes(size)
    rest = await ends.begin(value)
    for begin in range(0, len(rest) - 1, 100_000):
        ends.piece(rest[begin : min(begin + 100_000, len(rest) - 1)])
        await turn()
    await ends.gone()
    assert ends.near.frames == []
    ends.piece(rest[-1:])
    await ends.near.wait_frames(1)
    for request in range(2, 6):
        send(ends.theirs, Kind.DATA, b"small", request=request)
        await ends.near.wait_frames(request)
    assert [(h.request, p) for h, p in ends.near.frames] == [
        (1, value), *((request, b"small") for request in range(2, 6))
    ]
    assert ends.wakes_at == 1


async def test_small_frames_in_one_piece_with_the_last_byte_arrive(ends: Ends) -> None:
    value = random.Random(1).randbytes(MIB)
    rest = await ends.begin(value)
    small = [b"".join(pack(Kind.DATA, b"small", request=request)) for request in range(2, 6)]
    ends.piece(rest[:-1])
    await ends.gone()
    ends.piece(bytes(rest[-1:]) + b"".join(small))
    found = await ends.near.wait_frames(5)
    assert [h.request for h, _ in found] == [1, 2, 3, 4, 5]
    assert found[0][1] == value


async def test_large_payloads_behind_each_other_arrive(ends: Ends) -> None:
    values = [random.Random(size).randbytes(size) for size in (MIB, 700_000, 2 * MIB + 7, 5, MIB)]
    for number, value in enumerate(values, 1):
        send(ends.theirs, Kind.DATA, value, request=number)
    found = await ends.near.wait_frames(len(values))
    assert [payload for _, payload in found] == values
    assert ends.wakes_at == 1


@pytest.mark.parametrize("held_back", [1, 300_000, MIB - 1])
async def test_rest_of_an_abandoned_payload_and_the_next_frame_arrive(
    ends: Ends, held_back: int
) -> None:
    rest = await ends.begin(bytes(MIB))
    ends.piece(rest[: len(rest) - held_back])
    await ends.gone()
    reader = ends.ours.reader
    assert reader is not None
    assert reader.abandon_payload()
    ends.piece(rest[len(rest) - held_back :])
    await ends.gone()
    send(ends.theirs, Kind.DATA, b"the next one", request=2)
    found = await ends.near.wait_frames(1)
    assert [(h.request, p) for h, p in found] == [(2, b"the next one")]
    assert ends.wakes_at == 1
    value = random.Random(2).randbytes(MIB)
    send(ends.theirs, Kind.DATA, value, request=3)
    assert (await ends.near.wait_frames(2))[1][1] == value


@pytest.mark.parametrize("reset", [False, True], ids=["closed", "aborted"])
async def test_end_in_the_middle_of_a_large_payload_is_seen(ends: Ends, reset: bool) -> None:
    rest = await ends.begin(bytes(MIB))
    ends.piece(rest[:1000])
    if reset:
        ends.theirs.abort()
    else:
        ends.theirs.close()
    await ends.near.wait("lost")
    assert isinstance(ends.near.error, ConnectionLost)
    assert ends.near.frames == []


async def test_small_frames_cost_no_call_and_a_large_one_a_call_for_each_change(
    ends: Ends, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[int] = []

    def counted(fd: int, count: int) -> None:
        assert fd == ends.ours.socket().fileno()
        calls.append(count)
        wake_at(fd, count)

    wake_at = module.wake_at
    monkeypatch.setattr(module, "wake_at", counted)
    for request in range(1, 21):
        send(ends.theirs, Kind.DATA, bytes(10_000), request=request)
    await ends.near.wait_frames(20)
    assert calls == []
    rest = await ends.begin(bytes(MIB), request=21)
    ends.piece(rest)
    await ends.near.wait_frames(21)
    assert (calls[0], calls[-1]) == (MIB - 1, 1)
    assert len(calls) == len(set(calls))


async def test_connection_in_memory_has_no_socket_to_set(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    monkeypatch.setattr(module, "wake_at", lambda fd, count: calls.append(count))
    async with open_pair(MemoryNetwork()) as (near, far):
        assert far.connection is not None
        send(far.connection, Kind.DATA, bytes(3 * MIB))
        assert len((await near.wait_frames(1))[0][1]) == 3 * MIB
    assert calls == []


async def test_bytes_that_lie_in_the_kernel_are_known(ends: Ends) -> None:
    rest = await ends.begin(bytes(MIB))
    received = ends.ours.received
    assert ends.ours.lying_bytes == 0
    ends.piece(rest[:300_000])
    while ends.ours.lying_bytes < 300_000:
        await turn()
    assert ends.ours.lying_bytes == 300_000
    assert ends.ours.received == received  # the loop was not woken for them
    ends.piece(rest[300_000:])
    await ends.near.wait_frames(1)
    assert ends.ours.lying_bytes == 0
    ends.ours.abort()
    await ends.near.wait("lost")
    assert ends.ours.lying_bytes == 0


@pytest.mark.parametrize("network", ["tcp", "memory"])
async def test_last_word_arrives_though_nobody_has_read_what_the_peer_sends(network: str) -> None:
    async with open_pair(network_of(network)) as (near, far):
        ours, theirs = near.connection, far.connection
        assert ours is not None
        assert theirs is not None
        ours.pause_reading()
        for request in range(40):
            send(theirs, Kind.DATA, bytes(MIB), request=request)
        while theirs.writable:
            await turn()
        assert ours.last_word(b"".join(pack(Kind.CONTROL, table=b"\x91\x28")))
        assert not ours.ready
        assert not ours.writable
        ((header, table),) = await far.wait_frames(1)
        assert (header.kind, table) == (Kind.CONTROL, b"\x91\x28")
        await far.wait("lost")
        await near.wait("lost")


async def test_last_word_reads_into_nobodys_memory(ends: Ends) -> None:
    rest = await ends.begin(b"\x01" * MIB)
    place = ends.near.place
    assert place is not None
    before = bytes(place)
    assert ends.ours.last_word(b"".join(pack(Kind.CONTROL, table=b"\x91\x28")))
    assert ends.wakes_at == 1
    ends.piece(rest)
    await ends.near.wait("lost")
    assert bytes(place) == before
    assert ends.near.frames == []


async def test_there_is_no_last_word_behind_what_is_half_written(ends: Ends) -> None:
    ends.theirs.pause_reading()
    while not ends.ours.pending_bytes:
        send(ends.ours, Kind.DATA, bytes(MIB))
        await turn()
    assert not ends.ours.last_word(b"".join(pack(Kind.CONTROL)))
    assert not ends.ours.last_word(b"".join(pack(Kind.CONTROL)))
    await ends.near.wait("lost")
    assert not ends.ours.last_word(b"".join(pack(Kind.CONTROL)))


async def test_who_does_not_hear_a_last_word_is_not_waited_for(
    ends: Ends, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LAST_WORD_S", 0.01)
    ends.theirs.pause_reading()
    assert ends.ours.last_word(b"".join(pack(Kind.CONTROL)))
    await ends.near.wait("lost")


async def fill(ends: Ends) -> None:
    """Send until the loop holds enough, to a peer that does not read yet."""
    ends.theirs.pause_reading()
    while ends.ours.writable:
        send(ends.ours, Kind.DATA, bytes(MIB))
        await turn()


async def test_who_gives_up_when_the_loop_wants_more_is_closed_once(ends: Ends) -> None:
    # The standard loop asks for more from within its write, and goes on with that write after it.
    ends.ours.on_writable = ends.ours.abort
    await fill(ends)
    ends.theirs.resume_reading()
    await ends.near.wait("lost")
    await ends.far.wait("lost")


async def test_peer_that_has_reset_gets_nothing_more_written(
    ends: Ends, caplog: pytest.LogCaptureFixture
) -> None:
    # The loop sees the end when it writes; whoever posts then goes on until it is told of the end.
    ends.ours.pause_reading()
    ends.theirs.abort()
    await ends.far.wait("lost")
    while ends.near.error is None:
        for _ in range(10):
            send(ends.ours, Kind.DATA, bytes(10))
        await turn()
    assert "socket.send() raised" not in caplog.text
    assert not ends.ours.writable
