"""How ranks of one host meet by a file: whole, this user's alone, and of a process that lives."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import msgspec
import pytest

from asyncps.errors import ClusterError, ConfigError, RendezvousTimeout
from asyncps.session import Meeting, Written, directory_of, wait_for
from tests.support.processes import ProcessGroup

ROOT = Path(__file__).parents[1]
MEETING = Meeting("127.0.0.1:5", "the-secret", "mpi-1", 3)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
def test_only_this_user_can_read_it_and_nothing_stays(tmp_path: Path, umask: int) -> None:
    directory = tmp_path / "d"
    before = os.umask(umask)
    try:
        written = Written(directory, "group-1.json", MEETING)
    finally:
        os.umask(before)
    assert (mode(directory), mode(directory / "group-1.json")) == (0o700, 0o600)
    assert [path.name for path in directory.iterdir()] == ["group-1.json"]
    assert wait_for(directory, "group-1.json", 5.0, "rank 0") == MEETING
    written.remove()
    written.remove()
    assert not directory.exists()


def test_the_secret_is_not_shown() -> None:
    assert repr(MEETING) == "<Meeting of 3 at 127.0.0.1:5>"


def test_the_others_wait_for_it(tmp_path: Path) -> None:
    directory, found = tmp_path / "d", []
    threads = [threading.Thread(
        target=lambda: found.append(wait_for(directory, "g", 20.0, "rank 0"))) for _ in range(3)]
    for thread in threads:
        thread.start()
    written = Written(directory, "g", MEETING)
    for thread in threads:
        thread.join()
    written.remove()
    assert found == [MEETING] * 3


def test_nobody_comes(tmp_path: Path) -> None:
    with pytest.raises(RendezvousTimeout, match=r"rank 0 of 3 did not tell within 0\.1 s") as error:
        wait_for(tmp_path / "d", "g", 0.1, "rank 0 of 3")
    assert str(tmp_path / "d" / "g") in str(error.value)
    assert "left behind" not in str(error.value)


KILLED = """
import os, signal, sys
from pathlib import Path
from asyncps.session import Meeting, Written
written = Written(Path(sys.argv[1]), "g", Meeting("127.0.0.1:4", "old", "old", 3))
os.kill(os.getpid(), signal.SIGKILL)
"""


def leave_behind(directory: Path) -> None:
    done = subprocess.run([sys.executable, "-c", KILLED, str(directory)], cwd=ROOT, check=False,
                          env={**os.environ, "PYTHONPATH": str(ROOT)})
    assert done.returncode == -9
    assert (directory / "g").exists()


@pytest.mark.slow
def test_what_a_killed_process_left_behind_counts_for_nothing(tmp_path: Path) -> None:
    directory = tmp_path / "d"
    leave_behind(directory)
    with pytest.raises(RendezvousTimeout, match="left behind by a process that has ended"):
        wait_for(directory, "g", 0.1, "rank 0")
    written = Written(directory, "g", MEETING)  # and is replaced
    assert wait_for(directory, "g", 5.0, "rank 0") == MEETING
    written.remove()
    assert not directory.exists()


def test_two_that_live_do_not_write_the_same(tmp_path: Path) -> None:
    written = Written(tmp_path / "d", "g", MEETING)
    with pytest.raises(ClusterError, match="another process that lives has written"):
        Written(tmp_path / "d", "g", MEETING)
    other = Written(tmp_path / "d", "h", MEETING)
    written.remove()
    assert (tmp_path / "d" / "h").exists()
    other.remove()
    assert not (tmp_path / "d").exists()


def test_a_file_that_another_one_has_replaced_is_not_removed(tmp_path: Path) -> None:
    written = Written(tmp_path / "d", "g", MEETING)
    (tmp_path / "d" / "g").unlink()
    other = Written(tmp_path / "d", "g", MEETING)
    written.remove()
    assert (tmp_path / "d" / "g").exists()
    other.remove()


@pytest.mark.parametrize("wrong", [0o755, 0o710, 0o701])
def test_a_directory_that_is_open_to_others_is_refused(tmp_path: Path, wrong: int) -> None:
    directory = tmp_path / "d"
    directory.mkdir()
    directory.chmod(wrong)
    with pytest.raises(ConfigError, match=r"not this user's alone.*got owner \d+, mode 07"):
        Written(directory, "g", MEETING)
    with pytest.raises(ConfigError, match="not this user's alone"):
        wait_for(directory, "g", 5.0, "rank 0")
    assert list(directory.iterdir()) == []


def test_links_and_open_files_are_refused(tmp_path: Path) -> None:
    directory, mine = tmp_path / "d", tmp_path / "mine"
    mine.mkdir(mode=0o700)
    directory.symlink_to(mine)
    with pytest.raises(ConfigError, match="not this user's alone"):
        Written(directory, "g", MEETING)
    text = msgspec.json.encode(MEETING)
    (mine / "elsewhere").write_bytes(text)
    (mine / "g").symlink_to("elsewhere")
    with pytest.raises(ClusterError, match="cannot read"):
        wait_for(mine, "g", 5.0, "rank 0")
    (mine / "h").write_bytes(text)
    (mine / "h").chmod(0o644)
    with pytest.raises(ConfigError, match=r"mode 0644"):
        wait_for(mine, "h", 5.0, "rank 0")
    os.mkfifo(mine / "i", 0o600)
    with pytest.raises(ConfigError, match="not this user's alone"):
        wait_for(mine, "i", 5.0, "rank 0")


@pytest.mark.parametrize("text", [b"", b"{}", b"[1]", b'{"address": 5}', b"\xff" * 5000])
def test_what_is_no_meeting_is_refused(tmp_path: Path, text: bytes) -> None:
    written = Written(tmp_path / "d", "g", MEETING)
    os.ftruncate(written.fileno(), 0)
    os.pwrite(written.fileno(), text, 0)
    with pytest.raises(ClusterError, match="tells nothing that can be read") as error:
        wait_for(tmp_path / "d", "g", 5.0, "rank 0")
    assert "the-secret" not in str(error.value)
    written.remove()


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(ClusterError, match=r"cannot write .*: No such file"):
        Written(tmp_path / "no" / "d", "g", MEETING)


def test_directories_are_named_after_user_and_job(tmp_path: Path) -> None:
    directory = directory_of("7.3", str(tmp_path))
    assert directory.parent == tmp_path
    assert directory.name.startswith(f"asyncps-{os.geteuid()}-7.3-")
    names = ("7.4", "7/3", "../7.3", "7_3", "x" * 999)
    others = [directory_of(name, str(tmp_path)) for name in names]
    assert len({directory, *others}) == 6
    assert all(other.parent == tmp_path and len(other.name) < 100 for other in others)
    for base in ("", str(tmp_path / "missing")):
        assert directory_of("7.3", base).parent == Path(tempfile.gettempdir())


FORKED = """
import os, sys
from pathlib import Path
from asyncps.config import Config
from asyncps.hosting import Host
from asyncps.session import Meeting, Written
host = Host(Config(role="scheduler", scheduler="127.0.0.1:0", token="t", num_servers=0))
written = Written(Path(sys.argv[1]), "g", Meeting(host.address, "t", "j", 1))
host.also_closes_in_child(written)
if os.fork() == 0:
    print("forked", flush=True)
    os.read(os.pipe()[0], 1)
print("parent", flush=True)
os.waitpid(-1, 0)
"""


@pytest.mark.slow
def test_a_forked_child_does_not_keep_its_parents_lock(
    processes: ProcessGroup, tmp_path: Path
) -> None:
    parent = processes.python("-W", "ignore", "-c", FORKED, str(tmp_path / "d"), cwd=ROOT)
    parent.wait_for_line("forked", 30.0)
    parent.wait_for_line("parent", 30.0)
    written = None
    parent.kill()
    while written is None:
        try:
            written = Written(tmp_path / "d", "g", MEETING)
        except ClusterError:
            continue  # it is on its way out
    written.remove()
