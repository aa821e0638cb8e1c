"""Parcels at a server: each arrives once, in any order of asking and sending, after any cut."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from asyncps.errors import AsyncPSError, ClusterError, RemoteProtocolError
from asyncps.protocol import messages as m
from asyncps.protocol.frames import HEADER_SIZE, Kind
from asyncps.protocol.messages import Collect, Parcel
from asyncps.protocol.parcels import (
    MAX_PARCEL_BYTES,
    MAX_WAITING,
    KeptKey,
    decode_list,
    encode_list,
)
from asyncps.roles.parcels import Parcels
from tests.support.ports import STORE, FakeServer, make_frame, read_answer

ALL = 0b111


class Heard:
    """What a worker hears."""

    def __init__(self) -> None:
        self.came: list[bytes] = []
        self.arrived = 0
        self.errors: list[AsyncPSError] = []

    def take(self, view: memoryview) -> None:
        self.came.append(bytes(view))

    def count(self) -> None:
        self.arrived += 1


def put(parcels: Parcels, heard: Heard, number: int, *, of: int = 0, to: int = 1, course: int = 7,
        members: int = ALL, size: int = 3) -> None:
    told = Parcel(1, to, course, number)
    parcels.check(of, told, size, members)
    parcels.put(of, told, np.full(size, number, "u1"), heard.count, heard.errors.append)


def ask(parcels: Parcels, heard: Heard, number: int, done: int = 0, *, of: int = 0, to: int = 1,
        course: int = 7, members: int = ALL) -> bool:
    return parcels.collect(to, Collect(1, of, course, number, done), members, heard.take,
                           heard.errors.append)


@pytest.mark.parametrize("first", ["giver", "taker"])
def test_whoever_comes_first_waits(first: str) -> None:
    parcels, giver, taker = Parcels(), Heard(), Heard()
    if first == "giver":
        put(parcels, giver, 0)
        assert ask(parcels, taker, 0)
    else:
        assert ask(parcels, taker, 0)
        put(parcels, giver, 0)
    assert taker.came == [bytes(3)]
    assert giver.arrived == 0  # it may be lost on its way
    assert ask(parcels, taker, 1, 1)
    assert giver.arrived == 1
    assert parcels.waiting_bytes == 0
    put(parcels, giver, 0)  # again, after a cut
    assert (giver.arrived, parcels.waiting_bytes) == (2, 0)
    assert not ask(parcels, taker, -1, 1)
    put(parcels, giver, 5)
    assert (giver.arrived, parcels.waiting_bytes) == (3, 0)


def test_pairs_and_courses_are_apart() -> None:
    parcels, giver, taker = Parcels(), Heard(), Heard()
    put(parcels, giver, 0, course=7)
    for other in ({"of": 2}, {"to": 2}, {"course": 8}):
        assert ask(parcels, taker, 0, **other)
    assert taker.came == []
    put(parcels, giver, 0, course=8)
    assert taker.came == [bytes(3)]
    put(parcels, giver, 1, course=7)  # what was given up does not disturb what goes on
    assert ask(parcels, taker, 0, course=8)
    assert taker.came == [bytes(3)] * 2
    put(parcels, giver, 0, course=9)
    assert ask(parcels, taker, 0, course=9)
    assert parcels.waiting_bytes == 6  # of the two newest


def test_only_so_many_wait() -> None:
    parcels, giver, taker = Parcels(), Heard(), Heard()
    for number in range(MAX_WAITING):
        put(parcels, giver, number)
        ask(parcels, taker, number, of=2)
    put(parcels, giver, 0)
    with pytest.raises(RemoteProtocolError, match="too many parcels wait"):
        put(parcels, giver, MAX_WAITING)
    with pytest.raises(RemoteProtocolError, match="no parcel that could come"):
        ask(parcels, taker, MAX_WAITING, of=2)
    for wrong in ({"size": 0}, {"size": MAX_PARCEL_BYTES + 1}, {"number": -1}):
        with pytest.raises(RemoteProtocolError, match="no parcel of ours"):
            put(parcels, giver, **{"number": 0, **wrong})
    assert parcels.waiting_bytes == 3 * MAX_WAITING


def test_who_waits_for_one_that_is_gone_hears_it() -> None:
    parcels, giver, taker, other = Parcels(), Heard(), Heard(), Heard()
    put(parcels, giver, 0, of=0, to=1)
    ask(parcels, taker, 0, of=1, to=2)
    put(parcels, other, 0, of=0, to=2)
    parcels.forget(1)
    for heard in (giver, taker):
        (error,) = heard.errors
        assert isinstance(error, ClusterError)
        assert error.rank == 1
    assert other.errors == []
    for rank in (1, 5, -1):
        with pytest.raises(ClusterError):
            put(parcels, giver, 0, of=0, to=rank, members=0b101)
        with pytest.raises(ClusterError):
            ask(parcels, taker, 0, of=rank, to=2, members=0b101)


async def test_ports_carry_them() -> None:
    server = FakeServer(3)

    def say(rank: int, kind: Kind, message: Any, number: int, payload: bytes = b"") -> None:
        server.deliver(rank, make_frame(kind, number, 0, 0, payload, table=m.encode(message)))

    def hear(rank: int) -> tuple[int, int, bytes, AsyncPSError | None]:
        answer = b"".join(server.answers(rank).popleft())
        found = read_answer([answer[:HEADER_SIZE], answer[HEADER_SIZE:]])
        return found[0], found[1], bytes(found[2]), found[3]

    say(1, Kind.RESTORE, Parcel(STORE, 0, 7, 0), 5, b"abc")
    assert not server.answers(1)
    say(0, Kind.CONTROL, Collect(STORE, 1, 7, 0, 0), 6)
    assert hear(0)[:3] == (Kind.DATA, 6, b"abc")
    assert not server.answers(1)
    say(0, Kind.CONTROL, Collect(STORE, 1, 7, -1, 1), 7)
    assert m.decode(hear(0)[2]) == m.Done()
    assert hear(1)[:2] == (Kind.ACK, 5)
    # Whoever leaves is waited for no longer.
    say(0, Kind.CONTROL, Collect(STORE, 2, 7, 0, 0), 8)
    say(1, Kind.RESTORE, Parcel(STORE, 2, 7, 0), 9, b"abc")
    server.keeper.left(2)
    for rank, number in ((0, 8), (1, 9)):
        _, told, _, error = hear(rank)
        assert told == number
        assert isinstance(error, ClusterError)
    say(1, Kind.RESTORE, Parcel(STORE, 2, 7, 0), 10, b"abc")
    assert isinstance(hear(1)[3], ClusterError)
    say(1, Kind.RESTORE, Collect(STORE, 2, 7, 0, 0), 11, b"abc")
    assert isinstance(hear(1)[3], RemoteProtocolError)


def test_lists_that_cannot_be_are_refused() -> None:
    keys = [KeptKey("a", 3, 1), KeptKey(5, 0, 0)]
    assert decode_list(encode_list(keys)) == keys
    for wrong in (b"", b"\xff", encode_list([KeptKey("a", -1, 0)]),
                  encode_list([KeptKey("a", 1, -1)]), encode_list([KeptKey("a", 1 << 33, 0)])):
        with pytest.raises(RemoteProtocolError):
            decode_list(wrong)


class Machine(RuleBasedStateMachine):
    """A giver and a taker with their windows, and a network that repeats what is unanswered."""

    def __init__(self) -> None:
        super().__init__()
        self.parcels = Parcels()
        self.given = self.acked = 0  # parcels that were begun; all below have arrived
        self.asked = self.had = 0
        self.unacked: set[int] = set()
        self.wanted: set[int] = set()
        self.on_way: list[tuple[int, bytes]] = []  # answers that may be lost
        self.got: dict[int, bytes] = {}

    def _put(self, number: int) -> None:
        told = Parcel(1, 1, 7, number)
        self.parcels.check(0, told, 1, ALL)
        self.parcels.put(0, told, np.full(1, number, "u1"),
                         lambda: self.unacked.discard(number), self._never)

    def _ask(self, number: int) -> None:
        self.parcels.collect(1, Collect(1, 0, 7, number, self.had), ALL,
                             lambda view: self.on_way.append((number, bytes(view))), self._never)

    @staticmethod
    def _never(error: AsyncPSError) -> None:
        raise error

    @rule()
    def give(self) -> None:
        if len(self.unacked) < MAX_WAITING and self.given < 200:
            self.unacked.add(self.given)
            self._put(self.given)
            self.given += 1

    @rule()
    def want(self) -> None:
        if self.asked < self.had + MAX_WAITING:
            self.wanted.add(self.asked)
            self._ask(self.asked)
            self.asked += 1

    @precondition(lambda self: self.on_way)
    @rule(which=st.integers(0, 9), lost=st.booleans())
    def answer_comes(self, which: int, lost: bool) -> None:
        number, data = self.on_way.pop(which % len(self.on_way))
        if lost or number not in self.wanted:
            return
        self.wanted.discard(number)
        self.got[number] = data
        while self.had in self.got:
            self.had += 1

    @rule(giver=st.booleans())
    def cut(self, giver: bool) -> None:
        if giver:
            for number in sorted(self.unacked):
                self._put(number)
            return
        self.on_way.clear()
        for number in sorted(self.wanted):
            self._ask(number)

    @invariant()
    def little_is_kept(self) -> None:
        assert self.parcels.waiting_bytes <= MAX_WAITING

    def teardown(self) -> None:
        for _ in range(3 * MAX_WAITING):
            self.cut(giver=True)
            self.cut(giver=False)
            while self.on_way:
                self.answer_comes(0, lost=False)
            self.give()
            self.want()
        assert self.had >= self.given - MAX_WAITING
        assert all(data == bytes([number]) for number, data in self.got.items())


TestMachine: Any = Machine.TestCase
TestMachine.settings = settings(max_examples=60, stateful_step_count=40)
