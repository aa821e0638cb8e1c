"""on_worker_lost="continue" on real processes: a killed worker, one that wakes up, a join.

With "fail" the same events are tested in test_ends and test_liveness.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest

from tests.faults.job import PRELUDE, ROOT, START_S, Job
from tests.support.processes import ProcessGroup, assert_gone

QUICK = {"ASYNCPS_RECONNECT_S": 0.5, "ASYNCPS_HEARTBEAT_S": 0.2, "ASYNCPS_ROUND_S": 20.0,
         "ASYNCPS_ON_WORKER_LOST": "continue"}

# Worker 1 dies in round 5. What it has pushed of that round may stand in some units and not in
# others; from round 8 on (the clock window is two) none can have anything of it. A mean is one of
# those who contributed, whoever they are: all push 7.
KILLED = PRELUDE + """
sizes = [7, 50, 20_000, 1_500_000]
names = ["a", "b", "chunk", "big"]
store.init(names, [np.zeros(size, "f4") for size in sizes])
means = None if len(sys.argv) < 2 else asyncps.create("dist_sync", name="means", reduce="mean")
if means is not None:
    means.init(names, [np.zeros(size, "f4") for size in sizes])
ranks = range(store.num_workers)
everybody, survivors = sum(r + 1 for r in ranks), sum(r + 1 for r in ranks if r != 1)
for step in range(1, 13):
    if step == 5 and store.rank == 1:
        for name, size in zip(names, sizes):
            store.push(name, np.full(size, 2, "f4"), copy=False)
        os.kill(os.getpid(), signal.SIGKILL)
    outs = [np.zeros(size, "f4") for size in sizes]
    store.pushpull(names, [np.full(size, store.rank + 1, "f4") for size in sizes], out=outs)
    found = {float(x) for out in outs for x in np.unique(out)}
    if step < 5:
        assert found == {everybody}, (step, found)
    elif step == 5:
        assert found <= {everybody, survivors}, (step, found)
    else:
        assert found == {survivors}, (step, found)
    if means is not None and step >= 5:
        for got in means.pushpull(names, [np.full(size, 7, "f4") for size in sizes]):
            assert (got == 7).all(), got
store.barrier()
store.set_optimizer("test")
dead = store.num_dead_node()
last = store.join()
print("worker", store.rank, "went on without", dead, "and joined", last, flush=True)
"""


def test_survivors_of_a_killed_worker_go_on_and_the_launch_ends_well(
    processes: ProcessGroup,
) -> None:
    launch = processes.asyncps(
        "launch", "-n", "3", "-s", "2", "--on-worker-lost", "continue",
        "--", sys.executable, "-c", KILLED, cwd=ROOT,
        env={"ASYNCPS_ROUND_S": "20"},
    )  # fmt: skip
    launch.wait_for_line(r"worker 1 \(pid \d+\) on .* was killed by signal 9 .*: the job goes on",
                         START_S)
    family = launch.descendants()
    assert launch.wait(START_S) == 0, launch.output
    for rank in (0, 2):
        assert f"worker {rank} went on without 1 and joined" in launch.output
    assert "the job lost worker 1" in launch.output
    assert "WorkerLost" not in launch.output
    assert_gone(family, 0.5)


def test_means_are_those_of_who_contributed(processes: ProcessGroup) -> None:
    job = Job(processes, workers=3, servers=2, **QUICK)
    scheduler, servers, workers = job.start(KILLED, "means")
    assert workers[1].wait(START_S) == -signal.SIGKILL
    for member in (workers[0], workers[2], *servers, scheduler):
        assert member.wait(START_S) == 0, member.output
    assert "is lost: cut off" in scheduler.output


def test_worker_that_fails_is_lost_and_its_exit_code_is_not_the_launchers(
    processes: ProcessGroup,
) -> None:
    program = PRELUDE + """
store.init("w", np.zeros(5, "f4"))
store.pushpull("w", np.ones(5, "f4"))
if store.rank == 1:
    raise ValueError("enough")
for step in range(20):
    store.pushpull("w", np.ones(5, "f4"))
print("worker 0 has", store.pull("w")[0], flush=True)
"""
    launch = processes.asyncps(
        "launch", "-n", "2", "-s", "1", "--on-worker-lost", "continue",
        "--", sys.executable, "-c", program, cwd=ROOT,
    )  # fmt: skip
    launch.wait_for_line("worker 0 has 1.0", START_S)
    assert launch.wait(START_S) == 0, launch.output
    assert "ValueError: enough" in launch.output
    assert "the job lost worker 1" in launch.output


def test_launch_whose_workers_are_all_lost_fails(processes: ProcessGroup) -> None:
    program = PRELUDE + """
store.barrier()
os.kill(os.getpid(), signal.SIGKILL)
"""
    launch = processes.asyncps(
        "launch", "-n", "2", "-s", "1", "--on-worker-lost", "continue",
        "--", sys.executable, "-c", program, cwd=ROOT,
    )  # fmt: skip
    assert launch.wait(START_S) == 137, launch.output


# Worker 1 is stopped from outside, as soon as it says that it trains.
STOPPED = PRELUDE + """
names = ["small", "large"]
store.init(names, [np.zeros(7, "f4"), np.zeros(30000, "f4")])
step, went_on = 0, 0
try:
    while not os.path.exists(sys.argv[1]):
        store.pushpull(names, [np.ones(7, "f4"), np.ones(30000, "f4")])
        step += 1
        if step == 5:
            print("worker", store.rank, "is in training", flush=True)
        if store.num_dead_node():
            went_on += 1
            if went_on == 5:
                print("worker", store.rank, "goes on without", store.num_dead_node(), flush=True)
except asyncps.errors.StaleIncarnation as error:
    print("worker", store.rank, "is stale:", error.rank, flush=True)
    try:
        store.push("small", np.ones(7, "f4")).wait(10)
    except asyncps.errors.StaleIncarnation:
        print("worker", store.rank, "stays stale", flush=True)
    raise
"""


def test_stopped_worker_that_wakes_up_after_its_loss_is_fenced_and_ends(
    processes: ProcessGroup, tmp_path: Path
) -> None:
    job = Job(processes, workers=3, servers=2, **QUICK, ASYNCPS_FROZEN_WORKER_S=1.5)
    over = tmp_path / "over"
    scheduler, servers, workers = job.start(STOPPED, str(over))
    for worker in workers:
        worker.wait_for_line("is in training", START_S)
    workers[1].freeze()
    for worker in (workers[0], workers[2]):
        worker.wait_for_line("goes on without 1", START_S)
    assert "worker 1 @" in scheduler.output
    assert "is lost: silent for" in scheduler.output
    workers[1].thaw()
    workers[1].wait_for_line("worker 1 is stale: 1", 5.0)
    assert workers[1].wait(START_S) == 1
    assert "stays stale" in workers[1].output
    over.touch()
    for member in (workers[0], workers[2], *servers, scheduler):
        assert member.wait(START_S) == 0, member.output


@pytest.mark.slow
def test_stopped_worker_does_not_hold_the_launcher(
    processes: ProcessGroup, tmp_path: Path
) -> None:
    over = tmp_path / "over"
    program = STOPPED.replace(
        "step, went_on = 0, 0", "step, went_on = 0, 0\nprint('pid', store.rank, os.getpid())")
    launch = processes.asyncps(
        "launch", "-n", "2", "-s", "1", "--on-worker-lost", "continue", "--env",
        "ASYNCPS_FROZEN_WORKER_S=1.5", "--", sys.executable, "-c", program, str(over), cwd=ROOT,
    )  # fmt: skip
    pid = int(launch.wait_for_line(r"\[worker 1\] pid 1 (\d+)", START_S)[1])
    launch.wait_for_line("worker 1 is in training", START_S)
    os.kill(pid, signal.SIGSTOP)
    launch.wait_for_line("asyncps: worker 1 .* was declared lost: silent .*the job goes on",
                         START_S)
    launch.wait_for_line("worker 0 goes on without 1", START_S)
    family = launch.descendants()
    over.touch()
    assert launch.wait(START_S) == 0, launch.output
    assert "ending worker 1: still alive" in launch.output
    assert_gone(family, 0.5)


def test_init_of_a_lost_rank_0_is_worker_lost_and_others_go_on(processes: ProcessGroup) -> None:
    program = PRELUDE + """
store.init("known", np.zeros(5, "f4"))
store.barrier()
if store.rank == 0:
    os.kill(os.getpid(), signal.SIGKILL)
for attempt in range(2):
    try:
        store.init("never", np.zeros(5, "f4"))
    except asyncps.errors.WorkerLost as error:
        print("worker", store.rank, "hears of the loss of", error.rank, flush=True)
for step in range(5):
    got = store.pushpull("known", np.ones(5, "f4"))
assert (got == 2).all(), got
"""
    job = Job(processes, workers=3, servers=1, **QUICK)
    scheduler, servers, workers = job.start(program)
    assert workers[0].wait(START_S) == -signal.SIGKILL
    for member in (*workers[1:], *servers, scheduler):
        assert member.wait(START_S) == 0, member.output
    for worker in workers[1:]:
        assert worker.output.count("hears of the loss of 0") == 2


@pytest.mark.parametrize("going_on", [True, False])
def test_worker_that_is_lost_while_others_wait_in_join(
    processes: ProcessGroup, going_on: bool, tmp_path: Path
) -> None:
    program = PRELUDE + """
store.init("w", np.zeros(5, "f4"))
store.pushpull("w", np.ones(5, "f4"))
if store.rank == 1:
    open(sys.argv[1]).read()  # until both of the others have joined
    os.kill(os.getpid(), signal.SIGKILL)
print("worker", store.rank, "joins", flush=True)
try:
    last = store.join()
except asyncps.errors.WorkerLost as error:
    print("worker", store.rank, "hears of the loss of", error.rank, flush=True)
    raise
got = store.pushpull("w", np.ones(5, "f4"))
assert (got == 2).all(), got
print("worker", store.rank, "goes on", last, flush=True)
"""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    job = Job(processes, workers=3, servers=2,
              **{**QUICK, "ASYNCPS_ON_WORKER_LOST": "continue" if going_on else "fail"})
    _, _, workers = job.start(program, str(pipe))
    for worker in (workers[0], workers[2]):
        worker.wait_for_line("joins", START_S)
    pipe.write_text("go")
    for worker in (workers[0], workers[2]):
        worker.wait_for_line("goes on [02]" if going_on else "hears of the loss of 1", 10.0)
        assert worker.wait(START_S) == (0 if going_on else 1), worker.output
