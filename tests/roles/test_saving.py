"""What a server tells of its units, and takes back; and what it refuses."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from asyncps import optim
from asyncps.errors import RemoteProtocolError, UnknownKey
from asyncps.protocol import messages as m
from asyncps.protocol.frames import HEADER_SIZE, Kind
from tests.support.ports import STORE, FakeServer, make_frame, read_answer

ONES = np.ones(3, "f4").tobytes()


class Bench:
    """A server with a chunk (unit 0) and a slab of two rows (unit 1) of three f32 each."""

    def __init__(self) -> None:
        self.server = FakeServer(1)
        self.server.init(0, "float32", [ONES], slab=False)
        self.server.init(1, "float32", [ONES, ONES], slab=True)
        self.keeper = self.server.keepers[STORE]
        self.request = 100

    def ask(self, message: m.Message) -> Any:
        """A question: bytes, a message, or an error."""
        return self.say(Kind.CONTROL, message)

    def put(self, payload: bytes, **told: Any) -> Any:
        """A RESTORE."""
        return self.say(Kind.RESTORE, value(**{"size": len(payload), **told}), payload)

    def say(self, kind: Kind, message: m.Message, payload: bytes = b"") -> Any:
        self.request += 1
        frame = make_frame(kind, self.request, 0, 0, payload, table=m.encode(message))
        self.server.deliver(0, frame)
        answer = b"".join(self.server.answers(0).popleft())
        found, _, body, error = read_answer([answer[:HEADER_SIZE], answer[HEADER_SIZE:]])
        if error is not None or found == Kind.ACK:
            return error
        return body if found == Kind.DATA else m.decode(body)

    def push(self, unit: int, rows: Any, clock: int, count: int) -> None:
        self.request += 1
        self.server.deliver(0, make_frame(Kind.PUSH, self.request, unit, clock, ONES * count,
                                          rows=rows))
        self.server.answers(0).popleft()


def value(**told: Any) -> m.StateRange:
    return m.StateRange(**{"store": STORE, "unit": 0, "name": "", "dtype": "", "begin": 0,
                           "size": 12, **told})


@pytest.fixture
async def bench() -> Bench:
    """A server."""
    return Bench()


async def test_rows_that_stand_alike_are_told_of_together(bench: Bench) -> None:
    bench.keeper.install(m.Install(STORE, m.StoreConfig("dist_sync", "arrival", "sum"), "sgd", {
        **optim.SGD().hyper, "momentum": 0.5}))
    bench.push(1, None, 1, 2)
    told = bench.ask(m.AskUnits(STORE, -1))
    assert told.optimizer == "sgd"
    assert told.units == [m.UnitState(0, [m.PartState([0], 0, {})]),
                          m.UnitState(1, [m.PartState([0, 1], 1, {"momentum": "float32"})])]
    bench.push(1, [1], 2, 1)
    (unit,) = bench.ask(m.AskUnits(STORE, 0)).units
    assert [part.updates for part in unit.parts] == [1, 2]
    assert bench.ask(m.AskUnits(STORE, 1)).units == []


async def test_bytes_of_a_slab_are_the_same_whole_and_in_rows(bench: Bench) -> None:
    both = np.arange(6, dtype="f4").tobytes()
    assert bench.put(both, unit=1) is None
    assert bench.ask(value(unit=1, size=24)) == both
    slab: Any = bench.keeper.units[1]
    assert slab.whole is None
    assert slab.join()
    for begin in range(0, 24, 5):
        wanted = value(unit=1, begin=begin, size=min(7, 24 - begin))
        whole = bench.ask(wanted)
        slab.split()
        assert bench.ask(wanted) == whole == both[begin : begin + 7]
        slab.join()


async def test_state_that_nobody_has_made_is_zeros_and_the_master_is_the_value(
    bench: Bench,
) -> None:
    assert bench.ask(value(name="momentum", dtype="float64", size=24)) == bytes(24)
    bench.server.init(2, "float16", [np.arange(5, dtype="f2").tobytes()], slab=False)
    whole = bench.ask(value(unit=2, name="master", dtype="float32", size=20))
    assert np.frombuffer(whole, "f4").tolist() == [0, 1, 2, 3, 4]
    part = bench.ask(value(unit=2, name="master", dtype="float32", begin=6, size=9))
    assert part == whole[6:15]


async def test_value_that_an_answer_is_made_of_is_not_written_over(bench: Bench) -> None:
    pull = make_frame(Kind.PULL, 1, 0, 0, size=12)
    bench.server.deliver(0, pull)
    answer = bench.server.answers(0).popleft()
    assert bench.put(np.full(3, 7, "f4").tobytes()) is None
    assert read_answer(answer)[2] == ONES
    bench.server.deliver(0, make_frame(Kind.PULL, 2, 0, 0, size=12))
    assert read_answer(bench.server.answers(0).popleft())[2] == np.full(3, 7, "f4").tobytes()


async def test_written_value_drops_the_master_until_that_is_written(bench: Bench) -> None:
    unit: Any = bench.keeper.units[0]
    assert bench.put(ONES, name="master", dtype="float32") is None
    assert unit.state["master"].tolist() == [1, 1, 1]
    assert bench.put(ONES) is None
    assert unit.state == {}


async def test_clocks_are_told_by_row(bench: Bench) -> None:
    assert bench.ask(m.SetClocks(STORE, 1, [1], [5])) == m.Done()
    slab: Any = bench.keeper.units[1]
    assert [row.updates for row in slab.rows] == [0, 5]
    assert bench.ask(m.SetClocks(STORE, 0, [0], [3])) == m.Done()
    assert bench.keeper.units[0].updates == 3  # type: ignore[union-attr]


@pytest.mark.parametrize("told", [
    {"begin": -1}, {"begin": 1}, {"begin": 1 << 62}, {"size": 13}, {"size": 0}, {"size": -1},
    {"size": 1 << 40}, {"name": "m", "dtype": "object"}, {"name": "m", "dtype": "nothing"},
    {"name": "m", "dtype": ">f4"}, {"name": "m", "dtype": "V4"}, {"name": "m", "dtype": ""},
])
async def test_range_that_is_not_there_is_refused(bench: Bench, told: dict[str, Any]) -> None:
    assert isinstance(bench.ask(value(**told)), RemoteProtocolError)
    if told.get("size", 1) > 0:
        assert isinstance(bench.put(ONES, **told), RemoteProtocolError)
    assert bench.ask(value()) == ONES


@pytest.mark.parametrize(("optimizer", "told"), [
    (None, {"name": "momentum"}), ("sgd", {"name": "junk"}), ("sgd", {"name": "mean"}),
    ("sgd", {"name": "momentum", "dtype": "float64"}), ("adam", {"name": "momentum"}),
    (None, {"name": "master", "dtype": "float64"}), ("own", {"name": "x" * 101}),
    ("own", {"name": "a/b"}), ("own", {"name": "x", "dtype": "float128"}),
])
async def test_state_that_no_optimizer_keeps_costs_nothing(
    bench: Bench, optimizer: str | None, told: dict[str, Any]
) -> None:
    bench.keeper.rules.optimizer = optimizer
    error = bench.put(bytes(16)[: told.get("size", 12)], **{"dtype": "float32", **told})
    assert isinstance(error, RemoteProtocolError)
    assert bench.keeper.units[0].state == {}  # type: ignore[union-attr]


async def test_states_that_optimizers_keep_are_taken_and_of_own_ones_a_bounded_number(
    bench: Bench,
) -> None:
    unit: Any = bench.keeper.units[0]
    for optimizer, names in (("sgd", ["momentum"]), ("adam", ["mean", "variance"]),
                             ("rmsprop", ["variance", "mean", "delta"]), ("ftrl", ["z", "n"])):
        bench.keeper.rules.optimizer = optimizer
        unit.state.clear()
        for name in names:
            assert bench.put(ONES, name=name, dtype="float32") is None
        assert set(unit.state) == set(names)
    bench.keeper.rules.optimizer = "own"
    unit.state.clear()
    for number in range(16):
        assert bench.put(b"abc", name=f"s{number}", dtype="int8") is None
    assert isinstance(bench.put(b"abc", name="one more", dtype="int8"), RemoteProtocolError)
    assert len(unit.state) == 16


async def test_unit_that_is_not_there_is_refused(bench: Bench) -> None:
    for message in (value(unit=9), m.SetClocks(STORE, 9, [0], [1])):
        assert isinstance(bench.ask(message), UnknownKey)
    assert isinstance(bench.put(ONES, unit=9), UnknownKey)
    for rows, updates in (([2], [1]), ([-1], [1]), ([0], [-1]), ([0], [1 << 53]), ([0, 1], [1])):
        assert isinstance(bench.ask(m.SetClocks(STORE, 1, rows, updates)), RemoteProtocolError)
    assert isinstance(bench.say(Kind.RESTORE, m.Done(), ONES), RemoteProtocolError)
