"""When the lane may be taken, and what is known afterwards: the rules, without a socket."""

from __future__ import annotations

import contextlib
import threading
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from asyncps.errors import AsyncPSError, ClosedError, ConfigError, UnknownKey
from asyncps.protocol.frames import HEADER_SIZE, PUSH, Flag, Header, Kind
from asyncps.protocol.messages import KeySpec, Piece
from asyncps.roles.held import Held
from asyncps.roles.lane import LANE_BYTES
from asyncps.roles.operation import Operation
from asyncps.roles.plan import KeyInfo, Plan, RemoteUnit
from asyncps.roles.shortcut import Attempt, Shortcut
from asyncps.state.requests import Step
from asyncps.state.rounds import CLOCK_WINDOW
from asyncps_ext import wire

ROW = 8


class FakeLanes:
    """Lanes that answer with what a test says."""

    def __init__(self) -> None:
        self.open = True
        self.lock = threading.Lock()
        self.answer: Any = b"12345678"
        self.sent: list[tuple[Header, bytes, bytes]] = []
        self.now_sending: Any = None

    def held(self) -> threading.Lock:
        """The lock that a try holds."""
        return self.lock

    def ready(self, server: int) -> bool:
        """Whether there is a lane."""
        return self.open

    def number(self) -> int:
        """The next number."""
        return 100 + len(self.sent)

    def exchange(self, server: int, number: int, parts: Any, size: int, expected: int) -> Any:
        """Keep the frame and answer."""
        assert server == 3
        whole = b"".join(parts)
        assert len(whole) == size
        header = Header._make(wire.parse_header(whole))
        assert header.request == number
        middle = HEADER_SIZE + header.table_bytes
        self.sent.append((header, whole[HEADER_SIZE:middle], whole[middle:]))
        assert expected == header.payload_bytes
        if self.now_sending is not None:
            self.now_sending()
        if self.answer is None or isinstance(self.answer, AsyncPSError):
            return self.answer
        return memoryview(self.answer)


class Store:
    """One store with a slab of three rows and a chunk, and its shortcut."""

    def __init__(self) -> None:
        self.link = SimpleNamespace(unanswered={})
        self.node = SimpleNamespace(failure=None)
        self.client = SimpleNamespace(
            closed=False, joining=None, incarnation=5, number=2, hyper_version=4
        )
        self.lanes = FakeLanes()
        self.started: list[int] = []  # tries that the loop was given
        self.last: Attempt | None = None
        self.shortcut = Shortcut(self.node, self.client, self.lanes)  # type: ignore[arg-type]
        self.slab = RemoteUnit(self.link, 3, 17, True)  # type: ignore[arg-type]
        self.slab.grow(3)
        self.chunk = RemoteUnit(self.link, 3, 18, False)  # type: ignore[arg-type]
        self.rows = [self._info(f"r{i}", self.slab, i, (2,)) for i in range(3)]
        self.large = self._info("c", self.chunk, -1, (2,))

    def _info(self, key: str, unit: RemoteUnit, row: int, shape: tuple[int, ...]) -> KeyInfo:
        return KeyInfo(KeySpec(key, "float32", shape, 4), [(unit, Piece(3, unit.number, 0, ROW,
                                                                        row, 0))])

    def plan(self, *keys: Any) -> Plan:
        """The plan of rows by number, or of the chunk ("c")."""
        return Plan([self.large if key == "c" else self.rows[key] for key in keys])

    def try_lane(self, *keys: Any, value: bytes = b"abcdefgh") -> Attempt:
        """One try under the lock."""
        attempt = Attempt(Operation("pushpull", lent=True), lambda: self.started.append(1))
        with self.shortcut.held():
            try:
                self.shortcut.pushpull(self.plan(*keys), memoryview(value), attempt)
            finally:
                self.last = attempt
                self.shortcut.settle(lambda start: start())
        return attempt


@pytest.fixture
def store() -> Store:
    """A store with nothing under way."""
    return Store()


def untouched(store: Store, attempt: Attempt) -> bool:
    """Nothing was begun: the loop does it all."""
    return attempt.step is None and attempt.value is None and not store.lanes.sent


def test_frame_says_all_that_the_loop_would_say(store: Store) -> None:
    attempt = store.try_lane("c")
    assert bytes(attempt.value or b"") == b"12345678"
    ((header, table, value),) = store.lanes.sent
    assert header == (Kind.PUSHPULL, 0, 5, 2, 100, 18, 0, 1, 0, 8, 1, 4)
    assert (table, value) == (b"", b"abcdefgh")
    store.try_lane("c")
    header = store.lanes.sent[1][0]
    assert (header.clock, header.acked) == (2, 2)  # everything below round 2 has arrived


def test_some_rows_are_named_and_a_whole_slab_is_not(store: Store) -> None:
    store.try_lane(2, 0, value=b"x" * 16)
    header, table, _ = store.lanes.sent[0]
    assert header.flags == Flag.ROWS
    assert np.frombuffer(table, "<u4").tolist() == [0, 2]
    store.try_lane(1)
    store.try_lane(2, 1, 0, value=b"x" * 24)
    header, table, _ = store.lanes.sent[2]
    assert (header.flags, header.clock, table) == (0, 2, b"")


def test_rows_at_different_clocks_go_over_the_loop(store: Store) -> None:
    store.slab.track.push([1])
    assert untouched(store, store.try_lane(0, 1, value=b"x" * 16))
    assert store.slab.track.pull([0])[0].clock == 0


@pytest.mark.parametrize("reason", [
    "closed", "failed", "live", "unanswered", "held", "no lane", "large", "window", "two units",
    "empty",
])
def test_lane_is_left_alone_and_no_clock_moves(store: Store, reason: str) -> None:
    value = b"abcdefgh"
    keys: tuple[Any, ...] = ("c",)
    before = 0
    match reason:
        case "closed":
            store.client.closed = True
        case "failed":
            store.node.failure = ClosedError("over")
        case "live":
            store.shortcut.note(Operation("push", lent=False))
        case "unanswered":
            store.link.unanswered[1] = object()
        case "held":
            push = Operation("push", lent=False)
            store.chunk.held.append(Held(push, PUSH, Step(1, None, 0), 8, None, None, None, 0))
        case "no lane":
            store.lanes.open = False
        case "large":
            value = bytes(LANE_BYTES + 1)
        case "window":
            for _ in range(CLOCK_WINDOW):
                store.chunk.track.push()
            before = CLOCK_WINDOW
        case "two units":
            keys = ("c", 0)
        case "empty":
            keys = ()
    assert untouched(store, store.try_lane(*keys, value=value))
    assert store.chunk.track.pull()[0].clock == before


def test_largest_value_may_take_it(store: Store) -> None:
    assert store.try_lane("c", value=bytes(LANE_BYTES)).value is not None


def test_answer_that_stays_away_leaves_the_round_to_the_loop(store: Store) -> None:
    store.lanes.answer = None
    attempt = store.try_lane("c")
    assert attempt.value is None
    assert attempt.unanswered == (1, None, 0)
    assert store.started == [1]
    assert store.chunk.track.floor(attempt.unanswered) == 1  # nothing waits on the lane any more
    assert store.chunk.track.pull()[0].clock == 1


def test_error_of_the_server_ends_the_round(store: Store) -> None:
    store.lanes.answer = UnknownKey("no")
    attempt = store.try_lane("c")
    assert attempt.error is store.lanes.answer
    assert attempt.unanswered is None
    assert not store.started
    assert store.chunk.track.floor(store.chunk.track.push()[0]) == 2


@pytest.mark.parametrize("raised", [KeyboardInterrupt(), TimeoutError(), ConfigError("a verb")])
def test_what_a_signal_handler_raises_leaves_the_round_to_the_loop(
    store: Store, raised: BaseException
) -> None:
    store.lanes.now_sending = raise_it(raised)
    with pytest.raises(type(raised)):
        store.try_lane("c")
    assert store.last is not None
    assert store.last.unanswered == (1, None, 0)
    assert store.started == [1]
    assert not store.chunk.track.waits
    assert store.chunk.track.pull()[0].clock == 1


def test_second_signal_leaves_the_round_to_the_next_verb(store: Store) -> None:
    store.lanes.now_sending = raise_it(KeyboardInterrupt())
    attempt = Attempt(Operation("pushpull", lent=True), lambda: store.started.append(1))
    with pytest.raises(KeyboardInterrupt):
        store.shortcut.pushpull(store.plan("c"), memoryview(b"abcdefgh"), attempt)
    with pytest.raises(KeyboardInterrupt):
        store.shortcut.settle(lambda _: raise_it(KeyboardInterrupt())())
    assert not store.started
    for _ in range(2):
        store.shortcut.settle(lambda start: start())
    assert store.started == [1]


def raise_it(error: BaseException) -> Any:
    """Something to call that raises."""
    def call() -> None:
        raise error
    return call


def test_answers_open_the_clock_window(store: Store) -> None:
    for turn in range(3 * CLOCK_WINDOW):
        assert store.try_lane("c").value is not None, turn


def test_operations_close_the_lane_until_they_end(store: Store) -> None:
    first, second = Operation("push", lent=False), Operation("pull", lent=False)
    for op in (first, second):
        store.shortcut.note(op)
    first.part_done()
    assert untouched(store, store.try_lane("c"))
    second.part_done(ClosedError("failed"))
    assert store.try_lane("c").value is not None


def test_change_of_the_keys_waits_for_a_try_and_keeps_the_lane_closed(store: Store) -> None:
    order: list[str] = []
    began = threading.Event()

    def change() -> None:
        began.set()
        with store.shortcut.closed():
            order.append("change")

    thread = threading.Thread(target=change)

    def sending() -> None:
        thread.start()
        assert began.wait(5.0)
        order.append("sent")

    store.lanes.now_sending = sending
    store.try_lane("c")
    thread.join()
    assert order == ["sent", "change"]
    store.lanes.now_sending = None
    store.lanes.sent.clear()
    with contextlib.suppress(UnknownKey), store.shortcut.closed():
        assert untouched(store, store.try_lane("c"))
        raise UnknownKey("init failed")
    assert store.try_lane("c").value is not None
