"""Lanes that look before they sleep, and lanes that are closed under whoever looks."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace

import pytest

from asyncps.protocol.frames import Kind
from asyncps.roles import lane as module
from asyncps.roles.lane import Lanes
from asyncps.transport import polling
from tests.roles.lanes import Door, Pair, fake_node, frame, welcome

POLL_S = 0.25
LONG_S = 8.0  # of a look whose end is known to come


class Looks:
    """Every look on a lane: how long it may take, and what it found."""

    def __init__(self) -> None:
        self.asked: list[float] = []
        self.found: list[int] = []
        self.before: Callable[[int], None] = lambda fd: None
        self._look = module.look

    def __call__(self, fd: int, place: memoryview, look_s: float) -> int:
        self.asked.append(look_s)
        self.before(fd)
        count = self._look(fd, place, look_s)
        self.found.append(count)
        return count


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> Looks:
    """All looks under watch."""
    made = Looks()
    monkeypatch.setattr(module, "look", made)
    return made


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """What bets take for the time: `now`."""
    made = SimpleNamespace(now=1000.0)
    monkeypatch.setattr(polling, "time", SimpleNamespace(monotonic=lambda: made.now))
    return made


@pytest.fixture
def make() -> Iterator[Callable[..., Pair]]:
    """Makes lanes that are closed with the test."""
    with contextlib.ExitStack() as stack:

        def made(**given: float) -> Pair:
            pair = Pair(**given)
            stack.callback(pair.close)
            return pair

        yield made


def elsewhere(work: Callable[[], object]) -> None:
    """Do it in another thread, as the loop would, and wait for its end."""
    thread = threading.Thread(target=work, name="elsewhere")
    thread.start()
    thread.join()


# ---- looking ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("poll_us", "asked"), [(0, []), (2000, [0.002])])
def test_lane_looks_as_long_as_the_setting_says(
    looks: Looks, poll_us: int, asked: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PATIENCE_S", LONG_S)
    over = threading.Event()

    def serve(sock: socket.socket) -> None:
        welcome(sock)
        sock.sendall(frame(Kind.DATA, 7, b"12345678"))
        assert over.wait(LONG_S)

    with Door(serve) as door:
        lanes = Lanes(fake_node(door.port, poll_us=poll_us))
        assert lanes.ready(0)
        got = lanes.exchange(0, 7, [b"a request"], 9, 8)
        assert got is not None
        assert bytes(got) == b"12345678"
        over.set()
        lanes.close()
    assert looks.asked[:1] == pytest.approx(asked)


def test_lane_sleeps_when_a_look_found_nothing(
    looks: Looks, make: Callable[..., Pair], clock: SimpleNamespace
) -> None:
    pair = make(poll_s=POLL_S)
    looks._look = lambda fd, place, look_s: -1
    pair.server.sendall(frame(Kind.DATA, 7, b"12345678"))
    assert pair.exchange(8) == b"12345678"
    assert looks.found == [-1]


def test_answer_after_a_late_one_is_not_looked_for(
    looks: Looks, make: Callable[..., Pair], clock: SimpleNamespace
) -> None:
    pair = make(poll_s=POLL_S)
    waits_s = iter([2 * POLL_S, 0.0, 0.0])

    def ask(number: int) -> None:
        pair.server.sendall(frame(Kind.DATA, number, b"12345678"))
        assert pair.exchange(8, number=number) == b"12345678"

    looks.before = lambda fd: setattr(clock, "now", clock.now + next(waits_s))
    ask(1)
    assert len(looks.asked) == 1
    ask(2)  # nobody looks, and the answer is there
    assert len(looks.asked) == 1
    ask(3)
    ask(4)
    assert looks.asked == [POLL_S] * 3


def test_answer_that_stays_away_ends_the_looking(
    looks: Looks, make: Callable[..., Pair], clock: SimpleNamespace
) -> None:
    pair = make(patience_s=0.001, poll_s=0.0001)
    looks.before = lambda fd: setattr(clock, "now", clock.now + 1.0)
    assert pair.exchange(8, number=1) is None
    assert len(looks.asked) == 1
    assert pair.exchange(8, number=2) is None
    assert len(looks.asked) == 1


# ---- closing ------------------------------------------------------------------------------------


def test_whoever_looks_while_the_lanes_are_closed_gets_no_foreign_bytes(
    looks: Looks, make: Callable[..., Pair]
) -> None:
    pair = make(poll_s=POLL_S)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(frame(Kind.DATA, 7, b"foreign!"))

        def closed_meanwhile(fd: int) -> None:
            elsewhere(pair.lanes.close)
            if pair.lane.sock.fileno() != fd:
                os.dup2(ours.fileno(), fd)  # the number was free: the next file has it

        looks.before = closed_meanwhile
        with pair.lanes.held():
            assert pair.exchange(8) is None  # the loop takes over
        assert looks.found == [0]
    assert pair.dropped
    assert pair.lanes.sockets() == []
    assert pair.server.recv(100) == b"a request"
    assert pair.server.recv(100) == b""


def test_look_that_is_under_way_ends_when_the_lanes_are_closed(
    looks: Looks, make: Callable[..., Pair]
) -> None:
    pair = make(poll_s=LONG_S)
    looking, got = threading.Event(), []
    looks.before = lambda fd: looking.set()

    def ask() -> None:
        with pair.lanes.held():
            got.append(pair.exchange(8))

    thread = threading.Thread(target=ask)
    thread.start()
    assert looking.wait(LONG_S)
    pair.lanes.close()
    thread.join()
    assert got == [None]
    assert looks.found == [0]
    assert pair.dropped
    assert not pair.lanes.ready(0)


@pytest.mark.parametrize("error", [None, KeyboardInterrupt])
def test_sockets_are_open_while_they_are_held_and_closed_behind(
    make: Callable[..., Pair], error: type[BaseException] | None
) -> None:
    pair = make()
    with pytest.raises(error) if error else contextlib.nullcontext():
        with pair.lanes.held():
            number = pair.lane.sock.fileno()
            elsewhere(pair.lanes.close)
            assert pair.lane.sock.fileno() == number
            assert pair.server.recv(100) == b""  # it is over, though
            elsewhere(pair.lanes.close)
            assert pair.lanes.sockets() == [pair.lane.sock]
            if error:
                raise error
    assert pair.dropped
    assert pair.lanes.sockets() == []


def test_lanes_that_nobody_holds_are_closed_at_once(make: Callable[..., Pair]) -> None:
    pair = make()
    with pair.lanes.held():
        pass
    assert not pair.dropped
    elsewhere(pair.lanes.close)
    assert pair.dropped
    with pair.lanes.held():  # still possible, and of no use
        assert not pair.lanes.ready(0)
