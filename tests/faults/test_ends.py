"""How processes end: by themselves, by an exception, by a signal; and what the others see."""

from __future__ import annotations

import re
import signal
import sys

import pytest

from tests.faults.job import PRELUDE, ROOT, START_S, TRAIN_FOR_EVER, Job, ReservedPort
from tests.support.processes import ManagedProcess, ProcessGroup, assert_gone

ROUNDS = PRELUDE + """
store.init("w", np.zeros(1000, "f4"))
for step in range(3):
    got = store.pushpull("w", np.full(1000, store.rank + 1, "f4"))
print("worker", store.rank, "has", got[0], flush=True)
"""


def test_worker_that_just_ends_leaves_cleanly(processes: ProcessGroup) -> None:
    job = Job(processes, workers=2)
    scheduler, servers, workers = job.start(ROUNDS)
    assert_well(*workers, *servers, scheduler)
    assert "worker 0 @" in scheduler.output
    assert len(re.findall(r"worker \d @\S+ left", scheduler.output)) == 2
    assert "lost" not in scheduler.output


def test_push_before_the_end_counts_though_nobody_waited(processes: ProcessGroup) -> None:
    job = Job(processes, workers=2)
    program = PRELUDE + """
store.init("w", np.zeros(300_000, "f4"))
store.push("w", np.full(300_000, store.rank + 1, "f4"))
if store.rank == 0:
    print("worker 0 has", set(store.pull("w")), flush=True)
"""
    scheduler, servers, workers = job.start(program)
    workers[0].wait_for_line(r"worker 0 has \{.*3\.0\)?\}", START_S)
    assert_well(*workers, *servers, scheduler)


def test_close_twice_is_close_once(processes: ProcessGroup) -> None:
    job = Job(processes)
    program = ROUNDS + """
store.close()
store.close()
for attempt in range(3):
    for verb in (lambda: store.pull("w"), lambda: store.push("w", got), store.barrier):
        try:
            verb()
        except asyncps.errors.ClosedError:
            print("closed", flush=True)
"""
    scheduler, servers, (worker,) = job.start(program)
    assert_well(worker, *servers, scheduler)
    assert worker.output.count("closed\n") == 9


FAILS = PRELUDE + """
store.init(["a", "b"], [np.zeros(1000, "f4")] * 2)
if store.rank == 1:
    handle = store.pushpull("a", np.ones(1000, "f4"), async_op=True)
    print("worker 1 is in training", flush=True)
    raise ValueError("worker 1 has had enough")
store.pushpull("b", np.ones(1000, "f4"))
"""


def test_exception_in_a_worker_ends_the_job_without_a_launcher(processes: ProcessGroup) -> None:
    job = Job(processes, workers=2, ASYNCPS_RECONNECT_S=0.5)
    scheduler, servers, workers = job.start(FAILS)
    workers[1].wait_for_line("worker 1 has had enough", START_S)
    assert workers[1].wait(5.0) == 1
    workers[0].wait_for_line(r"errors\.WorkerLost: worker 1 .*rank 1", 5.0)
    for member in (workers[0], *servers, scheduler):
        assert member.wait(5.0) == 1


def test_exception_in_a_worker_ends_the_launch(processes: ProcessGroup) -> None:
    launch = processes.asyncps("launch", "-n", "2", "-s", "1", "--", sys.executable, "-c", FAILS,
                               cwd=ROOT)
    launch.wait_for_line(r"worker 1 .* exited with code 1", START_S)
    family = launch.descendants()
    assert launch.wait(3.0) == 1
    assert_gone(family, 0.5)
    assert "[worker 0] asyncps.errors.WorkerLost" in launch.output


def test_exit_code_of_a_worker_is_the_launchers(processes: ProcessGroup) -> None:
    program = FAILS.replace('raise ValueError("worker 1 has had enough")', "sys.exit(3)").replace(
        "handle = store.pushpull(\"a\", np.ones(1000, \"f4\"), async_op=True)\n", "pass\n")
    launch = processes.asyncps("launch", "-n", "2", "-s", "1", "--", sys.executable, "-c", program,
                               cwd=ROOT)
    launch.wait_for_line(r"worker 1 .* exited with code 3", START_S)
    family = launch.descendants()
    assert launch.wait(3.0) == 3
    assert_gone(family, 0.5)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_roles_started_by_hand_end_on_a_signal(
    processes: ProcessGroup, number: int, code: int
) -> None:
    job = Job(processes, workers=2)
    scheduler, server = job.scheduler(), job.server(0)
    scheduler.wait_for_line("server 0 @.* joined", START_S)
    server.send_signal(number)
    assert server.wait(5.0) == code
    scheduler.send_signal(number)
    assert scheduler.wait(5.0) == code
    assert "Traceback" not in server.output + scheduler.output


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_server_that_waits_for_its_scheduler_ends_on_a_signal(
    processes: ProcessGroup, number: int
) -> None:
    with ReservedPort() as port:
        job = Job(processes)
        job.address = f"127.0.0.1:{port.number}"
        server = processes.asyncps("server", "--log-level", "debug", cwd=ROOT,
                                   env={**job.env, "ASYNCPS_SCHEDULER": job.address,
                                        "ASYNCPS_TOKEN": ""})
        server.wait_for_line("looking for the scheduler", START_S)
        server.send_signal(number)
        assert server.wait(5.0) == 128 + number


def test_server_that_is_told_to_end_in_mid_job_is_named(processes: ProcessGroup) -> None:
    job = Job(processes)
    _, (server,), (worker,) = job.start(TRAIN_FOR_EVER)
    worker.wait_for_line("is in training", START_S)
    server.send_signal(signal.SIGTERM)
    worker.wait_for_line(r"errors\.ServerLost: server 0 ", 5.0)
    assert server.wait(5.0) == 143
    assert worker.wait(5.0) == 1


def test_ctrl_c_in_a_blocking_pull_gives_the_memory_back(processes: ProcessGroup) -> None:
    job = Job(processes, workers=2, ASYNCPS_ROUND_WARNING_S=0.3)
    program = PRELUDE + """
store.init("w", np.zeros(30000, "f4"))
if store.rank == 1:
    store.barrier()  # not before worker 0 has let go
else:
    store.push("w", np.ones(30000, "f4")).wait()
    out = np.full(30000, -1, "f4")
    try:
        store.pull("w", out)
    except KeyboardInterrupt:
        print("worker 0 was interrupted", flush=True)
    store.barrier()
store.push("w", np.ones(30000, "f4"))
got = store.pull("w") if store.rank else None
if store.rank == 0:
    store.push("w", np.ones(30000, "f4"))
    store.barrier()
    assert (out == -1).all(), out
else:
    store.push("w", np.ones(30000, "f4"))
    store.barrier()
    assert (got == 2).all(), got
print("worker", store.rank, "is done", flush=True)
"""
    scheduler, servers, workers = job.start(program)
    workers[0].wait_for_line(r"server 0 .*ranks \[1\]", START_S)
    workers[1].wait_for_line("this is worker 1", START_S)
    workers[0].send_signal(signal.SIGINT)
    workers[0].wait_for_line("worker 0 was interrupted", 5.0)
    assert_well(*workers, *servers, scheduler)


def test_uncaught_ctrl_c_ends_a_worker_that_waits(processes: ProcessGroup) -> None:
    job = Job(processes, workers=2, ASYNCPS_RECONNECT_S=0.5)
    program = PRELUDE + """
store.init("w", np.zeros(30000, "f4"))
if store.rank == 1:
    store.barrier()
print("worker 0 waits", flush=True)
store.pushpull("w", np.ones(30000, "f4"))
"""
    _, _, workers = job.start(program)
    workers[0].wait_for_line("worker 0 waits", START_S)
    workers[0].send_signal(signal.SIGINT)
    assert workers[0].wait(5.0) in (130, -signal.SIGINT, 1)
    workers[1].wait_for_line(r"errors\.(WorkerLost: worker 0|ClusterError: worker 0 left)", 5.0)
    assert workers[1].wait(5.0) == 1


def assert_well(*members: ManagedProcess) -> None:
    for member in members:
        assert member.wait(START_S) == 0, member.output
