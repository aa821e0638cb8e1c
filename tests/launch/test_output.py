"""The merged output: streams kept apart, logs, terminals, readers that are gone."""

from __future__ import annotations

import os
import pty
from collections.abc import Iterator
from pathlib import Path

import pytest

from asyncps.launch.members import Member
from asyncps.launch.output import Output

WORKER = Member("worker", 0)


def write_and_close(ends: tuple[int, int], out: bytes = b"", err: bytes = b"") -> None:
    for end, data in zip(ends, (out, err), strict=True):
        os.write(end, data)
        os.close(end)


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    ends = os.pipe()
    yield ends
    for end in ends:
        os.close(end)


def test_stdout_and_stderr_are_kept_apart(pipe: tuple[int, int], tmp_path: Path) -> None:
    with (tmp_path / "err").open("wb") as err:
        with Output(stdout_fd=pipe[1], stderr_fd=err.fileno()) as output:
            write_and_close(output.open(WORKER), b"out\n", b"err\n")
            output.say("mine\ntoo")
            output.drain(5.0)
        assert os.read(pipe[0], 100) == b"[worker 0] out\n"
    lines = (tmp_path / "err").read_text().splitlines()
    assert sorted(lines) == ["[worker 0] err", "asyncps: mine", "asyncps: too"]


def test_reader_that_left_does_not_end_the_job(tmp_path: Path) -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)
    with Output(stdout_fd=write_end, stderr_fd=write_end, log_dir=tmp_path) as output:
        write_and_close(output.open(WORKER), b"lost\n")
        output.drain(5.0)
    os.close(write_end)
    assert (tmp_path / "worker-0.log").read_bytes() == b"lost\n"


def test_pipe_that_somebody_keeps_open_is_not_waited_for(pipe: tuple[int, int]) -> None:
    with Output(stdout_fd=pipe[1], stderr_fd=pipe[1]) as output:
        out, err = output.open(WORKER)
        os.write(out, b"unfinished")
        os.close(err)
        output.drain(0.1)
        os.close(out)
    assert os.read(pipe[0], 100) == b"[worker 0] unfinished\n"


def test_line_that_is_taken_is_hidden_but_logged(pipe: tuple[int, int], tmp_path: Path) -> None:
    with Output(stdout_fd=pipe[1], stderr_fd=pipe[1], log_dir=tmp_path) as output:
        ends = output.open(WORKER, on_line=lambda line: line == "take me")
        write_and_close(ends, b"before\ntake me\ntake me\n")
        output.drain(5.0)
    assert os.read(pipe[0], 100) == b"[worker 0] before\n"
    assert (tmp_path / "worker-0.log").read_bytes() == b"before\ntake me\ntake me\n"


def test_tail_holds_the_last_lines_of_both_streams(pipe: tuple[int, int]) -> None:
    with Output(stdout_fd=pipe[1], stderr_fd=pipe[1]) as output:
        write_and_close(output.open(WORKER), b"".join(b"%d\n" % i for i in range(30)))
        output.drain(5.0)
        os.read(pipe[0], 4096)
        output.show_tail(WORKER)
        output.show_tail(Member("worker", 1))  # who never started has said nothing
    expected = b"".join(b"[worker 0] %d\n" % i for i in range(10, 30))
    assert os.read(pipe[0], 4096) == expected


@pytest.mark.parametrize(
    ("colour", "shown"),
    [(True, b"\x1b[36m[worker 0]\x1b[0m hi\r\n"), (False, b"[worker 0] hi\r\n")],
)
def test_prefix_is_coloured_on_a_terminal_unless_told_otherwise(
    colour: bool, shown: bytes
) -> None:
    master, terminal = pty.openpty()
    try:
        with Output(stdout_fd=terminal, stderr_fd=terminal, colour=colour) as output:
            write_and_close(output.open(WORKER), b"hi\n")
            output.drain(5.0)
        assert os.read(master, 100) == shown
    finally:
        os.close(master)
        os.close(terminal)
