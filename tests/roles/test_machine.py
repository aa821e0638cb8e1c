"""Which machine a process is on, and its number there: not by the name of the host."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from asyncps.protocol.messages import Join, Member, decode, encode
from asyncps.roles.machine import identity, machine_id, place_on_machine


def member(rank: int, machine: str, hostname: str = "host", role: str = "worker") -> Member:
    return Member(role, rank, 1, "", 0, hostname, 1, machine)


def test_it_is_the_same_for_every_process_and_whatever_the_host_is_called(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = machine_id()
    machine_id.cache_clear()
    monkeypatch.setattr(socket, "gethostname", lambda: "another")
    assert machine_id() == before
    assert len(before) == 32


def test_the_first_file_that_says_something_counts(tmp_path: Path) -> None:
    boot, disk, empty = tmp_path / "boot", tmp_path / "disk", tmp_path / "empty"
    boot.write_text("one\n")
    disk.write_text("two\n")
    empty.write_text("\n")
    missing = str(tmp_path / "missing")
    first = identity([missing, str(empty), str(boot), str(disk)], "h")
    assert first == identity([str(boot)], "other")
    assert first != identity([str(disk)], "h")
    assert identity([missing], "one") == first  # where there is no file the name has to do
    boot.write_bytes(b"\xff\xfe")
    assert identity([str(boot), str(disk)], "h") == identity([str(disk)], "h")


def test_it_tells_nothing_of_what_it_is_made_of() -> None:
    path = Path("/proc/sys/kernel/random/boot_id")
    if not path.exists():
        pytest.skip("no boot id here")
    assert path.read_text().strip().replace("-", "") != machine_id()


def test_workers_are_counted_by_machine_and_in_the_order_of_ranks() -> None:
    members = [
        member(0, "b", "x"), member(3, "a", "same"), member(1, "a", "same"), member(2, "b", "same"),
        member(0, "a", "x", role="server"), member(4, "a", "y"),
    ]  # fmt: skip
    places = {rank: place_on_machine(members, rank) for rank in range(5)}
    assert places == {0: (0, 2), 2: (1, 2), 1: (0, 3), 3: (1, 3), 4: (2, 3)}


def test_whoever_does_not_say_it_is_known_by_the_name_of_its_host() -> None:
    members = [member(0, "", "x"), member(1, "", "y"), member(2, "", "x")]
    assert [place_on_machine(members, rank) for rank in range(3)] == [(0, 2), (0, 1), (1, 2)]


def test_older_words_have_no_machine() -> None:
    words = encode(Join("worker", 0, 0, "h", 1, "host", 2, "m", 4))
    assert decode(words) == Join("worker", 0, 0, "h", 1, "host", 2, "m", 4)
    older = bytes([words[0] - 2]) + words[1:].removesuffix(b"\xa1m\x04")
    assert decode(older) == Join("worker", 0, 0, "h", 1, "host", 2)
