"""What is written when a job fails: each fact once, and the user's own lines to be seen."""

from __future__ import annotations

import signal
import sys

import pytest

from tests.faults.job import PRELUDE, ROOT, START_S, TRAIN_FOR_EVER, Job
from tests.support.processes import ProcessGroup

FAILS = PRELUDE + """
store.init("w", np.zeros(3, "f4"))
if store.rank == 1:
    raise ValueError("worker 1 has had enough")
store.pushpull("w", np.ones(3, "f4"))
"""


@pytest.mark.launch
def test_roles_do_not_repeat_what_the_launcher_has_said(processes: ProcessGroup) -> None:
    launch = processes.asyncps("launch", "-n", "2", "-s", "2", "--", sys.executable, "-c", FAILS,
                               cwd=ROOT)
    assert launch.wait(START_S) == 1
    lines = launch.output.splitlines()
    told = [line for line in lines if "exited with code 1" in line]
    assert not [line for line in told if line.startswith(("[scheduler]", "[server"))], told
    assert [line for line in told if line.startswith("[worker 0] asyncps.errors.WorkerLost")]


@pytest.mark.launch
def test_ctrl_c_is_no_error_of_the_roles(processes: ProcessGroup) -> None:
    launch = processes.asyncps("launch", "-n", "2", "-s", "2", "--", sys.executable, "-c",
                               TRAIN_FOR_EVER, cwd=ROOT)
    launch.wait_for_line("worker 0 is in training", START_S)
    launch.send_signal(signal.SIGINT)
    assert launch.wait(5.0) == 130
    assert "ERROR" not in launch.output


def test_scheduler_by_hand_says_a_loss_once(processes: ProcessGroup) -> None:
    job = Job(processes, workers=2, ASYNCPS_RECONNECT_S=0.5)
    scheduler, _, workers = job.start(FAILS)
    assert scheduler.wait(START_S) == 1
    assert scheduler.output.count("cut off; it did not come back") == 1
    assert workers[0].wait(5.0) == 1
    trace = workers[0].output
    assert 'File "<string>"' in trace
    assert "asyncps/roles/client.py" not in trace


def test_error_of_a_blocking_verb_shows_no_frame_of_the_loop(processes: ProcessGroup) -> None:
    program = PRELUDE + """
import traceback
try:
    store.init("w", np.zeros(3, "f4"))
    store.pull("x")
except asyncps.errors.UnknownKey:
    traceback.print_exc()
"""
    process = processes.python("-c", program, cwd=ROOT)
    assert process.wait() == 0
    assert "errors.UnknownKey: " in process.output
    assert "roles/worker.py" not in process.output
    assert "roles/link.py" not in process.output


@pytest.mark.parametrize(("count", "warned"), [("5", True), ("2", False)])
def test_worker_with_another_count_than_the_scheduler_is_warned(
    processes: ProcessGroup, count: str, warned: bool
) -> None:
    job = Job(processes, workers=2)
    scheduler = job.scheduler()
    server = job.server(0)
    workers = [job.worker(PRELUDE, rank, ASYNCPS_NUM_WORKERS=count) for rank in range(2)]
    for member in (*workers, server, scheduler):
        assert member.wait(START_S) == 0
    text = "worker 1 was told num_workers=5, and the scheduler 2, which counts"
    assert (text in workers[1].output) is warned
