"""How fast links are: what counts as busy, on links of a known rate and by a clock of our own."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncps.errors import AsyncPSError
from asyncps.protocol.frames import Kind
from asyncps.protocol.handshake import Hello
from asyncps.transport.connection import Connection
from asyncps.transport.network import MemoryNetwork
from asyncps.transport.pace import LEAST_BYTES, PAYLOAD_BYTES, Meter, Pace, Paces
from tests.transport.ends import open_pair, pack

MIB = 1 << 20
RATE = 12.5e6  # 100 Mbit/s


class Clock:
    """Seconds that pass when told."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class ThrottledLink(asyncio.Transport):
    """A socket of a kernel that takes so many bytes at once, and then so many a second."""

    def __init__(self, connection: Connection, clock: Clock, rate: float, at_once: int) -> None:
        super().__init__()
        self._connection, self._clock, self._rate, self._room = connection, clock, rate, at_once
        self._waits: deque[int] = deque()
        self._size = self._high = self._low = 0
        self._full = False

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high, self._low = high or 0, low or 0

    def get_write_buffer_size(self) -> int:
        return self._size

    def is_closing(self) -> bool:
        return False

    def write(self, data: Any) -> None:
        self.writelines([data])

    def writelines(self, list_of_data: Iterable[Any]) -> None:
        size = sum(len(data) for data in list_of_data)
        taken = min(size, self._room) if not self._size else 0
        self._room -= taken
        self._size += size - taken
        if self._size > self._high and not self._full:
            self._full = True
            self._connection.pause_writing()

    def run(self, seconds: float) -> None:
        """Let time pass, in steps in which a loop would look."""
        for _ in range(round(seconds * 1000)):
            self._clock.now += 0.001
            self._size = max(0, self._size - round(self._rate / 1000))
            if self._full and self._size <= self._low:
                self._full = False
                self._connection.resume_writing()


class Nobody:
    def connection_ready(self, connection: Connection) -> Any:
        raise AssertionError

    def connection_closed(self, connection: Connection, error: AsyncPSError) -> None:
        pass


def throttled(paces: Paces, clock: Clock, rate: float, at_once: int = 0) -> Any:
    connection = Connection(Nobody(), Hello("worker", 0, 1, "j", b""), "", connector=True,
                            paces=paces)
    link = ThrottledLink(connection, clock, rate, at_once)
    connection.connection_made(link)
    return connection, link


def send(connection: Connection, size: int) -> None:
    connection.send([memoryview(bytes(size))], size)


@pytest.mark.parametrize("at_once", [0, 200_000])
def test_a_full_link_is_as_fast_as_it_is(at_once: int) -> None:
    clock = Clock()
    paces = Paces(clock)
    connection, link = throttled(paces, clock, RATE, at_once)
    for _ in range(4):  # pauses between the rounds are no time of the link
        send(connection, 3 * MIB)
        link.run(1)
        clock.now += 50
    assert paces.link_bytes_s == pytest.approx(RATE, rel=0.02)


def test_two_links_that_are_full_together_share_what_there_is() -> None:
    clock = Clock()
    paces = Paces(clock)
    ends = [throttled(paces, clock, RATE / 2) for _ in range(2)]
    for connection, _ in ends:
        send(connection, 3 * MIB)
    for _ in range(1000):
        for _, link in ends:
            clock.now -= 0.0005  # each step of a link is half a step of the clock
            link.run(0.001)
            clock.now -= 0.0005
        clock.now += 0.001
    assert paces.out.bytes >= 4 * MIB
    assert paces.link_bytes_s == pytest.approx(RATE, rel=0.02)


def test_a_link_that_takes_all_at_once_is_unknown() -> None:
    clock = Clock()
    paces = Paces(clock)
    connection, link = throttled(paces, clock, RATE, 1 << 40)
    for _ in range(20):
        send(connection, MIB)
        link.run(0.01)
    assert paces.link_bytes_s is None


def test_little_says_nothing() -> None:
    pace = Pace()
    pace.begin(1.0)
    pace.end(LEAST_BYTES - 1, 2.0)
    assert pace.rate is None
    pace.begin(3.0)
    pace.end(1, 4.0)
    assert pace.rate == LEAST_BYTES / 2


def test_what_was_cut_does_not_count() -> None:
    clock = Clock()
    paces = Paces(clock)
    connection, link = throttled(paces, clock, RATE)
    send(connection, 3 * MIB)
    link.run(0.05)
    clock.now += 1000
    connection.connection_lost(None)
    assert (paces.out.bytes, paces.out.seconds) == (0, 0.0)
    fresh, link = throttled(paces, clock, RATE)
    send(fresh, 3 * MIB)
    link.run(1)
    assert paces.link_bytes_s == pytest.approx(RATE, rel=0.02)


def test_of_a_payload_counts_what_comes_after_it_was_first_seen() -> None:
    clock = Clock()
    paces = Paces(clock)
    meter = Meter(paces)
    first, second = object(), object()
    meter.read(None, 0)
    clock.now += 30
    for payload in (first, second):
        meter.read(payload, 900_000)  # some had come while nobody looked
        clock.now += 0.04
        meter.read(payload, 400_000)
        clock.now += 0.032
    meter.read(None, 0)
    assert (paces.into.bytes, paces.into.seconds) == (1_800_000, pytest.approx(0.144))
    assert paces.link_bytes_s == pytest.approx(RATE)
    paces.out.begin(0)
    paces.out.end(2 * MIB, 1)  # what was sent says more of sending
    assert paces.link_bytes_s == 2 * MIB


@pytest.mark.asyncio(loop_factories=["uvloop", "asyncio"])
async def test_a_connection_tells_of_payloads_that_come_in_pieces() -> None:
    clock = Clock()
    paces = Paces(clock)
    async with open_pair(MemoryNetwork()) as (near, far):
        assert near.connection is not None
        assert far.connection is not None
        near.connection._meter = Meter(paces)
        for request, size in enumerate((PAYLOAD_BYTES - 1, 3 * MIB), 1):
            data = b"".join(pack(Kind.DATA, bytes(size), request=request))
            far.connection.send([data[:1000]], 1000)
            await near.wait("began")
            clock.now += 0.25
            far.connection.send([data[1000:]], len(data) - 1000)
            await near.wait_frames(request)
            near._events["began"].clear()
            clock.now += 10
    assert (paces.into.bytes, paces.into.seconds) == (3 * MIB - (1000 - 72), 0.25)


@given(st.lists(st.tuples(st.floats(0.01, 5), st.sampled_from("be")), max_size=60))
def test_seconds_are_those_in_which_any_was_busy(steps: list[tuple[float, str]]) -> None:
    pace, now, busy, seconds, span, moved, total = Pace(), 0.0, 0, 0.0, 0.0, 0, 0
    for passed, step in steps:
        now += passed
        span += passed if busy else 0.0
        if step == "b":
            pace.begin(now)
            busy += 1
        elif busy:
            busy -= 1
            pace.end(10, now)
            moved += 10
            if not busy:
                seconds, span, total = seconds + span, 0.0, moved
    assert pace.seconds == pytest.approx(seconds)
    assert pace.bytes == total
