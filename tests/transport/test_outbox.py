"""Frames wait by priority, in order among equals, and are handed over while the loop takes them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from hypothesis import given
from hypothesis import strategies as st

from asyncps.transport.outbox import Outbox, Outgoing


class Connection:
    """Takes `room` frames, then is not writable until `drain`."""

    def __init__(self, room: int) -> None:
        self.room = room
        self.sent: list[bytes] = []
        self.on_writable: Callable[[], None] | None = None

    @property
    def writable(self) -> bool:
        return self.room > 0

    def send(self, parts: Sequence[bytes], size: int) -> None:
        assert self.writable
        assert size == sum(map(len, parts))
        self.room -= 1
        self.sent.append(b"".join(parts))

    def drain(self, room: int) -> None:
        self.room = room
        assert self.on_writable is not None
        self.on_writable()


def frame(name: str, priority: int = 0) -> Outgoing:
    return Outgoing(priority, [name.encode()], len(name))


def names(connection: Connection) -> str:
    return b"".join(connection.sent).decode()


def attached(room: int) -> tuple[Outbox, Connection]:
    outbox, connection = Outbox(), Connection(room)
    outbox.attach(connection)  # type: ignore[arg-type]
    return outbox, connection


def test_frame_goes_at_once_while_there_is_room() -> None:
    outbox, connection = attached(1)
    first, second = frame("a"), frame("b")
    outbox.post(first)
    outbox.post(second)
    assert names(connection) == "a"
    assert (first.sent, second.sent) == (True, False)
    assert outbox.queued_bytes == 1
    assert len(outbox) == 1


def test_higher_priority_goes_first_and_equals_in_order() -> None:
    outbox, connection = attached(0)
    for name, priority in zip("abcdef", (0, 5, -3, 5, 0, 9), strict=True):
        outbox.post(frame(name, priority))
    connection.drain(100)
    assert names(connection) == "fbdaec"
    assert outbox.queued_bytes == 0


def test_frame_does_not_overtake_those_that_wait() -> None:
    outbox, connection = attached(0)
    outbox.post(frame("a", 1))
    connection.room = 1  # not told yet
    outbox.post(frame("b", 1))
    connection.drain(2)
    assert names(connection) == "ab"


def test_the_lowest_priority_is_behind_what_waits_and_before_what_comes() -> None:
    outbox, connection = Outbox(), Connection(room=0)
    outbox.attach(connection)  # type: ignore[arg-type]
    assert outbox.lowest == 0
    for name, priority in (("a", 5), ("b", -3), ("c", 0)):
        outbox.post(frame(name, priority))
    outbox.post(frame("question", outbox.lowest))
    for name in "de":
        outbox.post(frame(name, -3))
    connection.drain(10)
    assert connection.sent == [b"a", b"c", b"b", b"question", b"d", b"e"]


def test_detach_drops_what_waits() -> None:
    outbox, connection = attached(0)
    outbox.post(frame("lost"))
    outbox.detach()
    assert len(outbox) == outbox.queued_bytes == 0
    connection.drain(9)
    assert names(connection) == ""


def test_frames_wait_while_there_is_no_connection() -> None:
    outbox = Outbox()
    outbox.post(frame("a"))
    outbox.post(frame("b", 1))
    connection = Connection(9)
    outbox.attach(connection)  # type: ignore[arg-type]
    assert names(connection) == "ba"


def test_frames_posted_again_go_first_in_their_old_order() -> None:
    outbox = Outbox()
    outbox.post(frame("n", 1 << 30))
    outbox.post_again(frame("a", 0))
    outbox.post_again(frame("b", 7))
    connection = Connection(9)
    outbox.attach(connection)  # type: ignore[arg-type]
    assert names(connection) == "abn"


@given(st.lists(st.tuples(st.integers(-3, 3), st.integers(0, 2)), max_size=60))
def test_any_course_keeps_count_order_and_priority(course: list[tuple[int, int]]) -> None:
    outbox, connection = attached(0)
    waiting: list[tuple[int, int]] = []
    expected: list[int] = []
    for number, (priority, room) in enumerate(course):
        data = bytes([number])
        outbox.post(Outgoing(priority, [data], 1))
        waiting.append((-priority, number))
        for _ in range(min(room, len(waiting))):
            waiting.sort()
            expected.append(waiting.pop(0)[1])
        connection.drain(min(room, len(expected)))
        connection.room = 0
        assert outbox.queued_bytes == len(outbox) == len(waiting)
    assert list(b"".join(connection.sent)) == expected
