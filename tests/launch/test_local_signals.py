"""Ctrl-C, SIGTERM and SIGKILL of the launcher, and of its guardian, leave nobody alive."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.launch.jobs import ROOT, launcher_command, python
from tests.support.processes import (
    ManagedProcess,
    ProcessGroup,
    assert_gone,
    children_of,
    is_alive,
)

pytestmark = pytest.mark.launch

# A worker with a grandchild that tries to get away: its own session, a clean environment, an
# orphan, deaf to SIGTERM.
RUNAWAY = """
import os, signal, sys
signal.signal(signal.SIGTERM, signal.SIG_IGN)
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        code = "import os, signal; print('runaway', os.getpid(), flush=True); signal.pause()"
        os.execve(sys.executable, [sys.executable, "-I", "-S", "-c", code], {})
    os._exit(0)
os.wait()
print("worker", os.getpid(), flush=True)
while True: signal.pause()
"""
OBEDIENT = "import os, signal; print('worker', os.getpid(), flush=True); signal.pause()"


class Launch:
    """A launcher in a process of its own, and the pids of its family."""

    def __init__(self, processes: ProcessGroup, script: str, workers: int = 2) -> None:
        self.process: ManagedProcess = processes.start(
            *launcher_command(python(script), workers=workers), cwd=ROOT
        )
        for rank in range(workers):
            self.process.wait_for_line(rf"\[worker {rank}\] worker \d+")
            if "runaway" in script:
                self.process.wait_for_line(rf"\[worker {rank}\] runaway \d+")
        words = [line.split() for line in self.process.output.splitlines()]
        self.told = [int(w[-1]) for w in words if w[-2] in ("worker", "runaway")]
        self.family = self.process.descendants()
        assert set(self.told) < set(self.family)
        (self.guardian,) = children_of(self.process.pid)


@pytest.mark.parametrize("script", [OBEDIENT, RUNAWAY], ids=["obedient", "runaway"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signal_ends_the_job_with_128_and_the_signal(
    processes: ProcessGroup, number: signal.Signals, script: str
) -> None:
    launch = Launch(processes, script)
    launch.process.send_signal(number)
    assert launch.process.wait(3.0) == 128 + number
    assert_gone(launch.family, 0.1)
    assert f"asyncps: {number.name}: ending the job" in launch.process.output


def test_ctrl_c_of_the_terminal_reaches_the_launcher_only(processes: ProcessGroup) -> None:
    script = (
        "import os, signal\n"
        "def tell(number, frame):\n"
        "    os.write(1, f'got {signal.Signals(number).name}\\n'.encode()); os._exit(0)\n"
        "for number in (signal.SIGINT, signal.SIGTERM): signal.signal(number, tell)\n"
        "os.write(1, f'worker {os.getpid()}\\n'.encode())\n"
        "while True: signal.pause()\n"
    )
    launch = Launch(processes, script, workers=1)
    launch.process.interrupt_group()
    assert launch.process.wait(3.0) == 130
    assert "[worker 0] got SIGTERM" in launch.process.output
    assert "[worker 0] got SIGINT" not in launch.process.output


def test_second_ctrl_c_ends_the_job_at_once(processes: ProcessGroup) -> None:
    launch = Launch(processes, RUNAWAY)
    launch.process.send_signal(signal.SIGINT)
    launch.process.wait_for_line("SIGINT: ending the job")
    launch.process.send_signal(signal.SIGINT)
    assert launch.process.wait(3.0) == 130
    assert_gone(launch.family, 0.1)


@pytest.mark.parametrize("script", [OBEDIENT, RUNAWAY], ids=["obedient", "runaway"])
def test_sigkill_of_the_launcher_leaves_nobody_alive(
    processes: ProcessGroup, script: str
) -> None:
    launch = Launch(processes, script)
    launch.process.kill()
    assert_gone(launch.family, 3.0)


def test_stopped_processes_are_ended_too(processes: ProcessGroup) -> None:
    launch = Launch(processes, OBEDIENT)
    for pid in launch.told:
        os.kill(pid, signal.SIGSTOP)
    launch.process.kill()
    assert_gone(launch.family, 3.0)


def test_sigkill_of_the_guardian_ends_the_job(processes: ProcessGroup) -> None:
    launch = Launch(processes, RUNAWAY)
    os.kill(launch.guardian, signal.SIGKILL)
    assert launch.process.wait(3.0) == 1
    assert_gone(launch.family, 0.1)
    assert "the guardian of this launch was killed" in launch.process.output


def test_guardian_ignores_signals_that_ask_to_end(processes: ProcessGroup) -> None:
    launch = Launch(processes, OBEDIENT)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        os.kill(launch.guardian, number)
    launch.process.send_signal(signal.SIGINT)
    assert launch.process.wait(3.0) == 130


def test_two_launches_do_not_end_each_other(processes: ProcessGroup) -> None:
    first, second = Launch(processes, RUNAWAY), Launch(processes, RUNAWAY)
    first.process.kill()
    assert_gone(first.family, 3.0)
    assert all(is_alive(pid) for pid in second.family)
    second.process.send_signal(signal.SIGINT)
    assert second.process.wait(3.0) == 130
    assert_gone(second.family, 0.1)


def test_launch_inside_of_a_launch_is_ended_with_it(processes: ProcessGroup) -> None:
    inner = launcher_command(python(OBEDIENT), workers=1)
    outer = processes.start(*launcher_command(inner, workers=1), cwd=ROOT)
    outer.wait_for_line(r"\[worker 0\] \[worker 0\] worker \d+")
    family = outer.descendants()
    assert len(family) == 9  # the outer worker is the inner launcher
    outer.kill()
    assert_gone(family, 3.0)


@pytest.fixture
def stuck_reader() -> Iterator[int]:
    """The write end of a pipe that nobody reads."""
    read_end, write_end = os.pipe()
    yield write_end
    os.close(read_end)
    os.close(write_end)


def test_reader_that_stopped_reading_does_not_hold_the_end(
    processes: ProcessGroup, stuck_reader: int, tmp_path: Path
) -> None:
    # sh hands the launcher the stuck pipe as stdout; stderr stays ours.
    flood = python("import os\nos.write(2, b'flooding\\n')\nwhile True: print('x' * 1000)")
    process = processes.start(
        "sh", "-c", f'exec "$@" > /proc/{os.getpid()}/fd/{stuck_reader}', "sh",
        *launcher_command(flood), cwd=ROOT,
    )  # fmt: skip
    process.wait_for_line(r"\[worker 0\] flooding")
    family = process.descendants()
    process.send_signal(signal.SIGINT)
    assert process.wait(3.0) == 130
    assert_gone(family, 0.1)
