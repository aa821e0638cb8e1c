"""Bytes become lines, lines become what is shown."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncps.launch.lines import LineSplitter, show
from asyncps.launch.members import Member

WORKER = Member("worker", 0)


@given(st.lists(st.binary(max_size=30)))
def test_any_split_of_a_stream_gives_the_same_lines(pieces: list[bytes]) -> None:
    splitter = LineSplitter()
    lines = [line for piece in pieces for line in splitter.feed(piece)] + splitter.finish()
    whole = b"".join(pieces).split(b"\n")
    assert lines == (whole if whole[-1] else whole[:-1])


def test_carriage_returns_are_a_part_of_their_line() -> None:
    assert LineSplitter().feed(b"10%\r20%\r\nnext\n") == [b"10%\r20%\r", b"next"]


def test_very_long_line_is_broken_and_memory_is_bounded() -> None:
    splitter = LineSplitter(limit=10)
    assert splitter.feed(b"x" * 25) == [b"x" * 10, b"x" * 10]
    assert splitter.feed(b"y\nz" + b"\n") == [b"x" * 5 + b"y", b"z"]
    assert splitter.feed(b"a" * 12 + b"\nb") == [b"a" * 10, b"a" * 2]


def test_long_line_is_not_broken_inside_of_a_character() -> None:
    splitter = LineSplitter(limit=10)
    text = "€" * 7
    lines = splitter.feed(text.encode()) + splitter.finish()
    assert [line.decode() for line in lines] == ["€€€", "€€€", "€"]


@given(st.binary(max_size=100))
def test_garbage_is_broken_and_shown_without_an_error(data: bytes) -> None:
    splitter = LineSplitter(limit=7)
    lines = splitter.feed(data) + splitter.finish()
    assert b"".join(lines) == data.replace(b"\n", b"")
    for line in lines:
        show(WORKER, line, terminal=True, colour=True).decode()


@pytest.mark.parametrize(
    ("member", "shown"),
    [
        (WORKER, b"[worker 0] a\rb\n"),
        (Member("server", 12), b"[server 12] a\rb\n"),
        (Member("scheduler", 0), b"[scheduler] a\rb\n"),
    ],
)
def test_line_is_prefixed_with_role_and_rank(member: Member, shown: bytes) -> None:
    assert show(member, b"a\rb", terminal=False, colour=False) == shown


def test_redrawn_line_keeps_its_prefix_on_a_terminal() -> None:
    shown = show(WORKER, b"10%\r100%\r", terminal=True, colour=False)
    assert shown == b"[worker 0] 10%\r\x1b[K[worker 0] 100%\n"


def test_colours_differ_between_neighbours_and_roles() -> None:
    members = [WORKER, Member("worker", 1), Member("server", 0), Member("scheduler", 0)]
    prefixes = {
        show(member, b"", terminal=True, colour=True).partition(b"[")[2].partition(b"m")[0]
        for member in members
    }
    assert len(prefixes) == len(members)
