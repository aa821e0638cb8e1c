"""Real processes are watched, stopped, killed, and never survive their test."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.support.processes import (
    ManagedProcess,
    ProcessGroup,
    assert_gone,
    clean_environment,
    is_alive,
    wait_gone,
)

COUNT = "import sys\nfor line in ('one', 'two', 'three'): print(line, flush=True)\n"
WAIT = "import sys, threading; print('ready', flush=True); threading.Event().wait()"
# A child in a session of its own, out of reach of its grandparent's process group.
PARENT = (
    "import subprocess, sys, threading\n"
    "child = subprocess.Popen(['sleep', '60'], start_new_session=True)\n"
    "print('child', child.pid, flush=True)\n"
    "threading.Event().wait()\n"
)


def test_line_is_found_whether_it_came_before_or_after(processes: ProcessGroup) -> None:
    process = processes.python("-c", COUNT)
    assert process.wait_for_line("two").string == "two\n"
    assert process.wait_for_line("on.").group() == "one"
    assert process.wait() == 0
    assert process.output == "one\ntwo\nthree\n"


def test_stderr_is_part_of_the_output(processes: ProcessGroup) -> None:
    process = processes.python("-c", "import sys; sys.exit('it went wrong')")
    process.wait_for_line("it went wrong")
    assert process.wait() == 1


def test_wait_for_line_tells_what_came_instead_when_the_process_ends(
    processes: ProcessGroup,
) -> None:
    process = processes.python("-c", COUNT)
    with pytest.raises(AssertionError, match=r"(?s)ended without .*'four'.*three"):
        process.wait_for_line("four")


def test_wait_for_line_has_a_deadline(processes: ProcessGroup) -> None:
    process = processes.python("-c", WAIT)
    process.wait_for_line("ready")
    with pytest.raises(AssertionError, match=r"no line like 'steady' within 0\.01 s"):
        process.wait_for_line("steady", timeout_s=0.01)


def test_wait_has_a_deadline(processes: ProcessGroup) -> None:
    process = processes.python("-c", WAIT)
    with pytest.raises(AssertionError, match=r"still runs after 0\.01 s"):
        process.wait(timeout_s=0.01)


def test_killed_process_has_the_exit_code_of_its_signal(processes: ProcessGroup) -> None:
    process = processes.python("-c", WAIT)
    process.kill()
    assert process.wait() == -signal.SIGKILL


def test_interrupt_reaches_the_whole_group(processes: ProcessGroup) -> None:
    process = processes.python("-c", PARENT.replace(", start_new_session=True", ""))
    child = int(process.wait_for_line(r"child (\d+)")[1])
    process.interrupt_group()
    assert process.wait() == -signal.SIGINT
    assert "KeyboardInterrupt" in process.output
    assert_gone([child], within_s=5)


def test_frozen_process_is_stopped_and_goes_on_when_thawed(processes: ProcessGroup) -> None:
    process = processes.python("-c", WAIT)
    process.wait_for_line("ready")
    process.freeze()
    state = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0]
    assert state == "T"
    assert is_alive(process.pid)
    process.thaw()
    process.send_signal(signal.SIGTERM)
    assert process.wait() == -signal.SIGTERM


def test_frozen_process_is_killed_on_leaving() -> None:
    with ManagedProcess(["sleep", "60"]) as process:
        process.freeze()
    assert_gone([process.pid], within_s=0)


def test_leaving_ends_grandchildren_in_sessions_of_their_own() -> None:
    with ProcessGroup() as group:
        process = group.python("-c", PARENT)
        child = int(process.wait_for_line(r"child (\d+)")[1])
        assert process.descendants() == [process.pid, child]
    assert_gone([process.pid, child], within_s=0)


def test_zombie_counts_as_gone() -> None:
    pid = os.posix_spawn("/bin/true", ["true"], os.environ)
    assert_gone([pid], within_s=5)
    assert Path(f"/proc/{pid}").exists()
    os.waitpid(pid, 0)
    assert not is_alive(pid)


def test_assert_gone_names_who_is_alive(processes: ProcessGroup) -> None:
    process = processes.start("sleep", "60")
    with pytest.raises(AssertionError, match=rf"{process.pid}: sleep 60"):
        assert_gone([process.pid], within_s=0.01)
    process.kill()
    assert wait_gone([process.pid], within_s=5) == []


def test_environment_has_no_cluster_in_it(
    monkeypatch: pytest.MonkeyPatch, processes: ProcessGroup
) -> None:
    monkeypatch.setenv("ASYNCPS_ROLE", "worker")
    monkeypatch.setenv("DMLC_ROLE", "worker")
    monkeypatch.setenv("ASYNCPS_PURE", "1")
    assert not {"ASYNCPS_ROLE", "DMLC_ROLE"} & clean_environment().keys()
    process = processes.start("env", env={"ASYNCPS_RANK": "3"})
    process.wait()
    assert "ASYNCPS_RANK=3\n" in process.output
    assert "ASYNCPS_PURE=1\n" in process.output
