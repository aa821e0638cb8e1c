"""Worker ports of a server, one for the loop's connection and one for the lane."""

from __future__ import annotations

from collections import deque
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from asyncps.errors import RemoteProtocolError, UnknownKey
from asyncps.protocol import messages
from asyncps.protocol.frames import Header, Kind
from asyncps.roles import port as module
from asyncps.roles.lane import LANE_NUMBERS
from asyncps.roles.port import WorkerPort
from asyncps.roles.slab import Slab
from asyncps.transport.polling import SMALL_BYTES
from tests.support.ports import STORE, FakeConnection, FakeServer, Frame, make_frame, read_answer

SIZE = 8


class Ports:
    """A server of two workers, both with a lane."""

    def __init__(self) -> None:
        self.server = FakeServer(2)
        self.server.init(0, "float32", [value(0, 0)], slab=False)
        self.server.init(1, "float32", [value(0), value(0)], slab=True)
        self.lanes: dict[int, WorkerPort] = {}
        for rank in range(2):
            self.lanes[rank] = WorkerPort(self.server, rank)  # type: ignore[arg-type]
            self.lanes[rank].attach(FakeConnection())  # type: ignore[arg-type]
        self.server.lanes = self.lanes  # type: ignore[attr-defined]

    def say(self, port: WorkerPort, frame: Frame) -> None:
        """A whole frame has come."""
        header, table, payload = frame
        if payload:
            place = port.begin(header, memoryview(table))
            if place is None:
                return
            place[:] = payload
        port.finish(header, memoryview(table))

    def heard(self, port: WorkerPort) -> list[tuple[int, int, Any]]:
        """Kind, request and value or error of what a port sent; forgotten afterwards."""
        connection: Any = port.connection
        frames: deque[Any] = connection.sent_frames
        found: list[tuple[int, int, Any]] = []
        while frames:
            kind, request, body, error = read_answer(frames.popleft())
            numbers = np.frombuffer(body, "f4").tolist() if kind == Kind.DATA else None
            found.append((kind, request, error or numbers))
        return found


def value(*numbers: float) -> bytes:
    return np.asarray(numbers, "f4").tobytes()


@pytest.fixture
async def ports() -> Ports:
    """Two workers, two ways."""
    return Ports()


def pushpull(request: int, clock: int, *numbers: float, unit: int = 0, **more: Any) -> Frame:
    return make_frame(Kind.PUSHPULL, request, unit, clock, value(*numbers), **more)


async def test_answer_goes_where_it_was_asked_for(ports: Ports) -> None:
    loop, lane = ports.server.ports, ports.lanes
    ports.say(lane[0], pushpull(LANE_NUMBERS + 1, 1, 1, 2))
    assert lane[0].parked == {LANE_NUMBERS + 1}
    ports.say(loop[1], pushpull(5, 1, 10, 20))
    assert ports.heard(lane[0]) == [(Kind.DATA, LANE_NUMBERS + 1, [11, 22])]
    assert ports.heard(loop[1]) == [(Kind.DATA, 5, [11, 22])]
    assert ports.heard(loop[0]) == ports.heard(lane[1]) == []
    assert lane[0].parked == loop[1].parked == set()


@pytest.mark.parametrize("first", ["lane", "loop"])
async def test_round_that_comes_both_ways_counts_once_and_is_answered_on_both(
    ports: Ports, first: str
) -> None:
    loop, lane = ports.server.ports[0], ports.lanes[0]
    asked = [(lane, LANE_NUMBERS + 1), (loop, 7)]
    for port, number in asked if first == "lane" else reversed(asked):
        ports.say(port, pushpull(number, 1, 1, 2))
    ports.say(ports.lanes[1], pushpull(LANE_NUMBERS + 9, 1, 10, 20))
    for port, number in asked:
        assert ports.heard(port) == [(Kind.DATA, number, [11, 22])]


async def test_late_frame_of_a_lane_changes_nothing(ports: Ports) -> None:
    """The loop was quicker by two rounds; what the lane says is counted already."""
    loop, lane = ports.server.ports, ports.lanes
    late = pushpull(LANE_NUMBERS + 1, 1, 1, 2)
    for clock in (1, 2):
        ports.say(loop[0], pushpull(clock, clock, clock, 2, acked=clock))
        ports.say(lane[1], pushpull(LANE_NUMBERS + clock, clock, 10, 20, acked=clock))
    ports.say(lane[0], late)
    ports.say(loop[0], pushpull(3, 3, 1, 1, acked=3))
    ports.say(loop[1], pushpull(3, 3, 1, 1, acked=3))
    assert ports.heard(loop[0])[-1] == (Kind.DATA, 3, [2, 2])
    ((kind, number, _),) = ports.heard(lane[0])
    assert (kind, number) == (Kind.DATA, LANE_NUMBERS + 1)  # of no use to anybody


async def test_half_a_frame_on_a_lane_that_is_cut_counts_on_the_loop_only(ports: Ports) -> None:
    loop, lane = ports.server.ports[0], ports.lanes[0]
    header, table, _ = pushpull(LANE_NUMBERS + 1, 1, 1, 2)
    place = lane.begin(header, memoryview(table))
    assert place is not None
    place[:3] = b"\xff\xff\xff"
    lane.detach()
    ports.say(loop, pushpull(7, 1, 1, 2))
    ports.say(ports.server.ports[1], pushpull(7, 1, 10, 20))
    assert ports.heard(loop) == [(Kind.DATA, 7, [11, 22])]


async def test_half_a_frame_that_ends_after_the_loop_has_said_it_all_counts_once(
    ports: Ports,
) -> None:
    loop, lane = ports.server.ports[0], ports.lanes[0]
    frame = pushpull(LANE_NUMBERS + 1, 1, 1, 2, unit=1)
    place = lane.begin(frame[0], memoryview(frame[1]))
    assert place is not None
    place[:] = frame[2]
    ports.say(loop, pushpull(7, 1, 1, 2, unit=1))
    lane.finish(frame[0], memoryview(b""))
    ports.say(ports.lanes[1], pushpull(LANE_NUMBERS + 2, 1, 10, unit=1, rows=[0]))
    ports.say(ports.lanes[1], pushpull(LANE_NUMBERS + 3, 1, 20, unit=1, rows=[1]))
    assert ports.heard(loop) == [(Kind.DATA, 7, [11, 22])]
    assert ports.heard(lane) == [(Kind.DATA, LANE_NUMBERS + 1, [11, 22])]


async def test_answer_to_a_lane_that_is_gone_goes_nowhere(ports: Ports) -> None:
    lane = ports.lanes[0]
    ports.say(lane, pushpull(LANE_NUMBERS + 1, 1, 1, 2))
    lane.detach()
    ports.say(ports.lanes[1], pushpull(LANE_NUMBERS + 1, 1, 10, 20))
    assert lane.parked == set()
    assert ports.heard(ports.server.ports[0]) == []


async def test_new_lane_takes_the_place_of_the_old_and_not_of_the_other_connection(
    ports: Ports,
) -> None:
    class Seen(FakeConnection):
        error: Exception | None = None

        def abort(self, error: Exception) -> None:
            self.error = error

    old, new = Seen(), Seen()
    lane: Any = ports.lanes[0]
    lane.attach(old)
    lane.attach(new)
    assert isinstance(old.error, Exception)
    assert new.error is None
    ports.say(lane, pushpull(LANE_NUMBERS + 1, 1, 1, 2))
    ports.say(ports.server.ports[1], pushpull(1, 1, 1, 2))
    assert len(new.sent_frames) == 1
    assert not old.sent_frames


async def test_error_is_answered_on_the_lane_and_names_key_and_host(ports: Ports) -> None:
    lane = ports.lanes[0]
    ports.say(lane, pushpull(LANE_NUMBERS + 1, 2, 1, 2))
    ports.say(lane, pushpull(LANE_NUMBERS + 2, 1, 1, 2, unit=77))
    ports.say(lane, pushpull(LANE_NUMBERS + 3, 1, 1, 2, 3))
    answers = ports.heard(lane)
    assert [(kind, number - LANE_NUMBERS) for kind, number, _ in answers] == [
        (Kind.ERROR, 1), (Kind.ERROR, 2), (Kind.ERROR, 3)]
    skips, unknown, size = (error for _, _, error in answers)
    assert isinstance(skips, RemoteProtocolError)
    assert (skips.key, skips.host) == ("key 0.0", "here")
    assert isinstance(unknown, UnknownKey)
    assert isinstance(size, RemoteProtocolError)
    assert lane.parked == set()


async def test_next_push_is_expected_soon_after_one_of_a_small_value_and_no_other_frame(
    ports: Ports,
) -> None:
    events: list[str] = []
    ports.server.polling = SimpleNamespace(  # type: ignore[assignment]
        came=lambda: events.append("came"), expect=lambda: events.append("expect")
    )
    loop, lane = ports.server.ports[0], ports.lanes[0]
    ports.server.init(2, "float32", [bytes(SMALL_BYTES)], slab=False)
    ports.server.init(3, "float32", [bytes(SMALL_BYTES + 4)], slab=False)
    assert events == []
    ports.say(lane, pushpull(LANE_NUMBERS + 1, 1, 1, 2))
    assert events == ["came", "expect"]
    ports.say(loop, make_frame(Kind.PUSH, 1, 2, 1, bytes(SMALL_BYTES)))
    assert events == ["came", "expect"] * 2
    ports.say(loop, pushpull(2, 1, 1, 2))  # a replay
    ports.say(loop, make_frame(Kind.PUSH, 3, 3, 1, bytes(SMALL_BYTES + 4)))
    ports.say(loop, make_frame(Kind.PULL, 4, 0, 0, size=SIZE))
    ports.say(loop, pushpull(5, 9, 1, 2))  # refused
    assert events == ["came", "expect"] * 2


async def test_parked_requests_are_bounded(
    ports: Ports, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_MAX_PARKED", 3)
    port = ports.server.ports[0]
    most = 3 + 4 * len(ports.server.keeper.units)
    for number in range(1, most + 2):
        ports.say(port, make_frame(Kind.PULL, number, 0, 1, size=SIZE))
    ports.say(port, pushpull(100, 1, 1, 2))
    first, second = ports.heard(port)
    assert (first[:2], second[:2]) == ((Kind.ERROR, most + 1), (Kind.ERROR, 100))
    assert "too many requests" in str(first[2])
    assert port.parked == set(range(1, most + 1))
    unit: Any = ports.server.keeper.units[0]
    assert not unit.open  # what was refused is not counted


async def test_statistics_count_both_connections(ports: Ports) -> None:
    for sent, port in enumerate([*ports.server.ports.values(), *ports.lanes.values()]):
        connection: Any = port.connection
        connection.received, connection.sent = 10**sent, 2 * 10**sent
    ports.lanes[1].detach()  # what a closed connection brought still counts
    ports.say(ports.lanes[0], pushpull(LANE_NUMBERS + 1, 1, 1, 2))
    table = messages.encode(messages.AskStatistics(STORE))
    port = ports.server.ports[1]
    header = Header(Kind.CONTROL, 0, 7, 0, 3, 0, 0, 0, len(table), 0, 0, 0)
    port.finish(header, memoryview(table))
    connection = port.connection
    body = b"".join(connection.sent_frames.pop()[:])[72:]
    told = messages.decode(memoryview(body))
    assert isinstance(told, messages.ServerStatistics)
    assert (told.received_bytes, told.sent_bytes) == (1111, 2222)
    assert (told.parked, told.units, told.value_bytes) == (1, 2, 16)


@pytest.mark.parametrize("kind", [Kind.DATA, Kind.PULL, Kind.CONTROL])
async def test_payload_where_none_belongs_is_refused(ports: Ports, kind: Kind) -> None:
    port = ports.server.ports[0]
    header, _, _ = make_frame(kind, 9, 0, 1, b"12345678")
    assert port.begin(header, memoryview(b"")) is None
    ((answer, number, error),) = ports.heard(port)
    assert (answer, number) == (Kind.ERROR, 9)
    assert isinstance(error, RemoteProtocolError)


@pytest.mark.parametrize("kind", [Kind.PULL, Kind.WAIT])
@pytest.mark.parametrize("slab", [False, True], ids=["chunk", "slab"])
async def test_question_that_says_what_has_arrived_frees_versions(kind: Kind, slab: bool) -> None:
    server = FakeServer(1)
    values = [bytes(8), bytes(8)] if slab else [bytes(8)]
    size = 8 * len(values)
    server.init(0, "float32", values, slab=slab)
    server.deliver(0, make_frame(Kind.PUSHPULL, 1, 0, 1, bytes(size), acked=1))
    found = server.keeper.units[0]
    unit = found.whole if isinstance(found, Slab) else found
    assert unit is not None
    server.deliver(0, make_frame(Kind.WAIT, 2, 0, 1, size=size, acked=1))
    assert unit.current.owed == 1
    server.deliver(0, make_frame(Kind.PUSH, 3, 0, 2, bytes(size), acked=1))
    assert [version.clock for version in unit.old] == [1]
    server.deliver(0, make_frame(kind, 4, 0, 2, size=size, acked=2))
    assert unit.old == []
