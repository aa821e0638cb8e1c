"""What a server tells of its tables, and takes back; and what it refuses."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from asyncps import optim
from asyncps.errors import (
    AsyncPSError,
    OptimizerError,
    RemoteProtocolError,
    TensorError,
    UnknownKey,
)
from asyncps.initializer import Constant, Normal, One
from asyncps.protocol import messages as m
from asyncps.protocol import rows
from asyncps.protocol.frames import HEADER_SIZE, Flag, Header, Kind
from asyncps.roles import tableunit
from asyncps_ext import wire
from tests.roles.own_machine import ManualWorkshop, serve
from tests.support.ports import STORE, FakeServer, make_frame, read_answer

TABLE, CHUNK = 0, 1
FIRST, STOP, WIDTH = 10, 30, 3


class Bench:
    """A server with the rows 10 to 29 of a table of three numbers a row, and a chunk."""

    def __init__(self, dtype: str = "float32", server: Any = None) -> None:
        self.server = server or FakeServer(1)
        self.request = 100
        spec = m.TableSpec("t", dtype, (40, WIDTH), Constant(5.0), FIRST, STOP)
        assert self.say(Kind.INIT, spec, unit=TABLE) is None
        self.server.init(CHUNK, "float32", [np.ones(3, "f4").tobytes()], slab=False)
        self.dtype = np.dtype(dtype)

    def ask(self, message: m.Message) -> Any:
        """A question: bytes, a message, or an error."""
        return self.say(Kind.CONTROL, message)

    def say(self, kind: Kind, message: m.Message, payload: bytes = b"", unit: int = 0) -> Any:
        self.request += 1
        frame = make_frame(kind, self.request, unit, 0, payload, table=m.encode(message))
        self.server.deliver(0, frame)
        return self.answer()

    def answer(self) -> Any:
        answer = b"".join(self.server.answers(0).popleft())
        found, _, body, error = read_answer([answer[:HEADER_SIZE], answer[HEADER_SIZE:]])
        if error is not None or found == Kind.ACK:
            return error
        return body if found == Kind.DATA else m.decode(body)

    def put(self, ids: list[int], value: float, part: str = "values", dtype: str = "") -> Any:
        """A RESTORE."""
        values = np.full((len(ids), WIDTH), value, dtype or self.dtype)
        payload = rows.pack(np.array(ids, np.int64), 40) + values.tobytes()
        return self.say(Kind.RESTORE, m.TableRows(STORE, TABLE, part), payload)

    def push(self, clock: int, ids: list[int], value: float = 1) -> Any:
        payload = rows.pack(np.array(ids, np.int64), 40)
        payload += np.full((len(ids), WIDTH), value, self.dtype).tobytes()
        self.request += 1
        self.server.deliver(0, make_frame(Kind.PUSH, self.request, TABLE, clock, payload))
        return self.answer()

    def pull(self, clock: int, ids: list[int]) -> Any:
        self.request += 1
        table = rows.pack(np.array(ids, np.int64), 40)
        header = Header(Kind.PULL, Flag.IDS, 7, STORE, self.request, TABLE, 0, clock,
                        len(table), 0, 0, len(ids) * WIDTH * self.dtype.itemsize)
        packed = Header._make(wire.parse_header(wire.pack_header(*header)))
        self.server.deliver(0, (packed, table, b""))
        found = self.answer()
        return found if isinstance(found, Exception) else np.frombuffer(
            found, self.dtype)[::WIDTH].tolist()


def wanted(**told: Any) -> m.TableRange:
    return m.TableRange(**{"store": STORE, "unit": TABLE, "part": "values", "count": 3, "begin": 0,
                           "number": 3, **told})


@pytest.fixture
async def bench() -> Bench:
    """A server."""
    return Bench()


async def test_rows_are_told_in_the_order_of_ids_and_counted_in_that_of_first_use(
    bench: Bench,
) -> None:
    assert bench.put([20], 2) is None
    assert bench.put([12, 29], 3) is None
    (unit, _) = bench.ask(m.AskUnits(STORE, -1)).units
    assert unit == m.UnitState(TABLE, [m.PartState([0], 0, {})], 3, Constant(5.0))
    assert bench.pull(0, [10, 11]) == [5, 5]  # makes two more
    ids = np.frombuffer(bench.ask(wanted(part="rows")), "i8")
    assert ids.tolist() == [12, 20, 29]
    values = np.frombuffer(bench.ask(wanted(begin=1, number=2)), "f4")
    assert values.tolist() == [2, 2, 2, 3, 3, 3]
    assert np.frombuffer(bench.ask(wanted(part="rows", count=5, number=5)), "i8").tolist() == [
        10, 11, 12, 20, 29]


async def test_state_that_nobody_has_made_is_zeros_and_the_master_is_the_value() -> None:
    bench = Bench("float16")
    bench.put([12, 13, 14], 2)
    assert bench.ask(wanted(part="state.momentum")) == bytes(36)
    assert np.frombuffer(bench.ask(wanted(part="state.master")), "f4").tolist() == [2] * 9
    assert bench.put([13], 7, "state.master", "f4") is None
    assert np.frombuffer(bench.ask(wanted(part="state.master")), "f4")[::3].tolist() == [2, 7, 2]
    assert bench.put([13], 4) is None  # a value that is written is what its f32 weights are
    assert np.frombuffer(bench.ask(wanted(part="state.master")), "f4")[::3].tolist() == [2, 4, 2]


async def test_reset_forgets_rows_states_and_updates(bench: Bench) -> None:
    bench.server.keeper.install(m.Install(
        STORE, m.StoreConfig("dist_sync", "arrival", "sum"), "sgd",
        {**optim.SGD(learning_rate=1).hyper, "momentum": 0.5}))
    assert bench.push(1, [12]) is None
    assert bench.pull(1, [12, 13]) == [4, 5]
    assert bench.ask(m.ResetTable(STORE, TABLE, One())) == m.Done()
    (unit, _) = bench.ask(m.AskUnits(STORE, -1)).units
    assert unit == m.UnitState(TABLE, [m.PartState([0], 0, {})], 0, One())
    assert bench.pull(1, [12, 13]) == [1, 1]
    assert bench.ask(m.SetClocks(STORE, TABLE, [0], [4])) == m.Done()
    assert bench.push(2, [12]) is None  # rounds go on where they were
    assert bench.pull(2, [12]) == [0]
    kept: Any = bench.server.keeper.units[TABLE]
    assert kept.updates == 5


@pytest.mark.parametrize("told", [
    {"begin": -1}, {"begin": 1}, {"begin": 1 << 62}, {"number": 0}, {"number": -1}, {"count": 4},
    {"number": 1 << 62, "count": 1 << 62}, {"part": ""}, {"part": "state."}, {"part": "x"},
    {"part": "state.a/b"}, {"part": "state." + 200 * "x"}, {"unit": CHUNK},
])
async def test_rows_that_are_not_there_are_refused(bench: Bench, told: dict[str, Any]) -> None:
    bench.put([12, 20, 29], 2)
    assert isinstance(bench.ask(wanted(**told)), RemoteProtocolError)
    assert isinstance(bench.ask(wanted(unit=9)), UnknownKey)


@pytest.mark.parametrize("ids", [[9], [30], [12, 12], [13, 12], [-1]])
async def test_rows_of_others_are_not_restored(bench: Bench, ids: list[int]) -> None:
    payload = np.array([8, 0, len(ids), *ids], "<i8").tobytes() + bytes(4 * WIDTH * len(ids))
    for part in ("values", "state.momentum"):
        told = m.TableRows(STORE, TABLE, part)
        assert isinstance(bench.say(Kind.RESTORE, told, payload), AsyncPSError)
    assert bench.ask(m.AskUnits(STORE, -1)).units[0].used == 0


async def test_restores_that_cannot_be_are_refused(bench: Bench) -> None:
    good = rows.pack(np.array([12], np.int64), 40) + bytes(12)
    for part, unit, payload in (
        ("rows", TABLE, good), ("x", TABLE, good), ("values", CHUNK, good),
        ("state.momentum", TABLE, good),
        ("values", TABLE, good[:-1]), ("values", TABLE, good + bytes(4)),
        ("values", TABLE, b"x"), ("values", TABLE, bytes(24 << 20)),
    ):
        told = m.TableRows(STORE, unit, part)
        assert isinstance(bench.say(Kind.RESTORE, told, payload), RemoteProtocolError)
    assert isinstance(bench.say(Kind.RESTORE, m.TableRows(STORE, 9, "values"), good), UnknownKey)
    assert isinstance(bench.ask(m.ResetTable(STORE, CHUNK, One())), RemoteProtocolError)
    integers = Bench("int32")
    assert isinstance(integers.ask(m.ResetTable(STORE, TABLE, Normal())), AsyncPSError)
    assert bench.say(Kind.RESTORE, m.TableRows(STORE, TABLE, "values"), good) is None
    assert bench.pull(0, [12, 13]) == [0, 5]


async def test_ids_are_copied_only_for_a_request_that_may_wait(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, copied = rows.Named.to_ids, 0

    def to_ids(named: rows.Named) -> Any:
        nonlocal copied
        copied += 1
        return real(named)

    monkeypatch.setattr(rows.Named, "to_ids", to_ids)
    monkeypatch.setattr(tableunit, "MAX_WAITING_BYTES", 2 * (8 + 4 * WIDTH))
    ids = rows.pack(np.array([12, 20], np.int64), 40)
    answers = []
    for request in (901, 902):
        header = Header(Kind.PULL, Flag.IDS, 7, STORE, request, TABLE, 0, 1, len(ids), 0, 0,
                        2 * WIDTH * 4)
        packed = Header._make(wire.parse_header(wire.pack_header(*header)))
        bench.server.deliver(0, (packed, ids, b""))
        answers.append(copied)
    assert isinstance(bench.answer(), TensorError)
    assert answers == [1, 1]


@pytest.mark.usefixtures("registered")
@pytest.mark.parametrize("type", ["dist_sync", "dist_async"])
async def test_an_optimizer_of_the_users_own_is_a_typed_error_of_the_round(type: str) -> None:
    """Workers refuse such a push; a round that was open when the optimizer came is met here."""
    workshop = ManualWorkshop()
    bench = Bench(server=serve(1, workshop, type=type))
    pushed = bench.push(1, [12])
    assert not workshop.pieces
    found = bench.pull(1, [12, 13])
    assert isinstance(found, OptimizerError) or isinstance(pushed, OptimizerError)
    unit: Any = bench.server.keeper.units[TABLE]
    assert unit.updates == 0
