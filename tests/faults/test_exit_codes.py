"""The exit code of a worker that has not closed its store decides whether it has left."""

from __future__ import annotations

import os
import signal
import sys

import pytest

from tests.faults.job import PRELUDE, ROOT, START_S, Job
from tests.support.processes import ProcessGroup, assert_gone

# Worker 1 ends after a round; worker 0 tells whether its next one is complete without it.
ENDS = PRELUDE + """
store.init("w", np.zeros(3, "f4"))
store.pushpull("w", np.ones(3, "f4"))
if store.rank == 1:
    %s
print("alone:", store.pushpull("w", np.ones(3, "f4"))[0], flush=True)
"""
LOST = r"errors\.WorkerLost: worker 1 is lost: exited with code 3"


@pytest.mark.parametrize("end", ["sys.exit(3)", "raise SystemExit(3)", "sys.exit('no more')"])
def test_worker_that_exits_with_a_code_is_lost(processes: ProcessGroup, end: str) -> None:
    program = ENDS % end
    launch = processes.asyncps("launch", "-n", "2", "-s", "1", "--", sys.executable, "-c", program,
                               cwd=ROOT)
    code = 3 if "3" in end else 1
    launch.wait_for_line(f"worker 1 .* exited with code {code}: ending the job", START_S)
    family = launch.descendants()
    assert launch.wait(3.0) == code
    assert_gone(family, 0.5)
    assert f"errors.WorkerLost: worker 1 is lost: exited with code {code}" in launch.output
    assert "alone" not in launch.output


@pytest.mark.parametrize("end", ["sys.exit(0)", "sys.exit()", "store.close(); sys.exit(0)"])
def test_worker_that_exits_with_0_has_left(processes: ProcessGroup, end: str) -> None:
    launch = processes.asyncps("launch", "-n", "2", "-s", "1", "--", sys.executable, "-c",
                               ENDS % end, cwd=ROOT)
    launch.wait_for_line(r"\[worker 0\] alone: 1", START_S)
    assert launch.wait(START_S) == 0
    assert "lost" not in launch.output


def test_shell_of_a_launch_that_goes_on_gives_the_code(processes: ProcessGroup) -> None:
    """A loss counts as one, and the other worker goes on."""
    script = f"{sys.executable} -c \"$PROGRAM\"; code=$?; true; exit $code"
    launch = processes.asyncps(
        "launch", "-n", "2", "-s", "1", "--on-worker-lost", "continue", "--", "sh", "-c", script,
        env={"PROGRAM": ENDS % "sys.exit(3)"}, cwd=ROOT,
    )
    launch.wait_for_line(r"\[worker 0\] alone: 1", START_S)
    assert launch.wait(START_S) == 0
    assert "exited with code 3: the job goes on" in launch.output


PYTHON, SHELL = [sys.executable, "-c"], ["sh", "-c", f"{sys.executable} -c \"$0\"; exit $?"]


# Nobody knows which worker a shell has started that has no rank: that one says goodbye itself.
@pytest.mark.parametrize(("command", "ranked"), [(PYTHON, True), (PYTHON, False), (SHELL, True)])
def test_worker_by_hand_tells_how_its_program_ended(
    processes: ProcessGroup, command: list[str], ranked: bool
) -> None:
    job = Job(processes, workers=2, ASYNCPS_RECONNECT_S=20)
    scheduler = job.scheduler()
    server = job.server(0)
    workers = []
    for rank in range(2):
        worker = job.reaped_worker(rank if ranked else None, *command, ENDS % "sys.exit(3)")
        workers.append(worker)
        scheduler.wait_for_line(f"worker {rank} @.* joined", START_S)
    assert workers[1].wait(START_S) == 3
    workers[0].wait_for_line(LOST, 5.0)
    for member in (workers[0], server, scheduler):
        assert member.wait(5.0) == 1


def test_workers_by_hand_that_end_with_0_leave(processes: ProcessGroup) -> None:
    job = Job(processes, workers=2)
    scheduler = job.scheduler()
    server = job.server(0)
    workers = [job.reaped_worker(rank, sys.executable, "-c", ENDS % "sys.exit(0)")
               for rank in range(2)]
    workers[0].wait_for_line("alone: 1", START_S)
    for member in (*workers, server, scheduler):
        assert member.wait(START_S) == 0, member.output


def test_program_of_a_killed_parent_ends_too_and_is_lost(processes: ProcessGroup) -> None:
    job = Job(processes, workers=1, ASYNCPS_RECONNECT_S=0.3)
    scheduler, server = job.scheduler(), job.server(0)
    worker = job.reaped_worker(0, sys.executable, "-c", PRELUDE + "signal.pause()")
    worker.wait_for_line("this is worker 0", START_S)
    family = worker.descendants()
    worker.kill()
    assert_gone(family, 2.0)
    for member in (server, scheduler):
        assert member.wait(5.0) == 1
    assert "worker 0 @" in scheduler.output
    assert " is lost: " in scheduler.output


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGUSR1])
def test_signal_to_the_parent_comes_to_the_program_once(
    processes: ProcessGroup, number: signal.Signals
) -> None:
    program = f"""
import signal
signal.pthread_sigmask(signal.SIG_BLOCK, [{int(number)}])
print("ready", flush=True)
signal.sigwait([{int(number)}])
again = signal.sigtimedwait([{int(number)}], 0.3)
print("again" if again else "once", flush=True)
raise SystemExit(5)
"""
    worker = Job(processes, ASYNCPS_SCHEDULER="127.0.0.1:1").reaped_worker(
        0, sys.executable, "-c", program)
    worker.wait_for_line("ready", START_S)
    os.kill(worker.pid, number)
    assert worker.wait(5.0) == 5
    assert "once" in worker.output


def test_bare_program_says_goodbye_since_it_cannot_know_its_code(processes: ProcessGroup) -> None:
    job = Job(processes, workers=2)
    _, _, workers = job.start(ENDS % "sys.exit(3)")
    workers[0].wait_for_line("alone: 1", START_S)
    assert workers[1].wait(5.0) == 3
