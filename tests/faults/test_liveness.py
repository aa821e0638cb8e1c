"""The table of liveness on real processes: who is seen to be gone, by whom, and how soon."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.faults.job import (
    PRELUDE,
    ROOT,
    START_S,
    TRAIN_FOR_EVER,
    TRAIN_UNTIL_FILE,
    Job,
    Stopwatch,
)
from tests.support.processes import ManagedProcess, ProcessGroup, assert_gone

LIMIT_S = 5.0

# What the first two tests show with the settings of every day, the others need not wait for.
QUICK = {"ASYNCPS_RECONNECT_S": 0.5, "ASYNCPS_HEARTBEAT_S": 0.2}

# Worker 1 does something that nobody may mind; both then go on for a few rounds.
INTERRUPTED = PRELUDE + """
import ctypes
store.init("w", np.zeros(30000, "f4"))
def train(rounds):
    for step in range(rounds):
        got = store.pushpull("w", np.full(30000, store.rank + 1, "f4"))
        assert (got == 3).all(), got
train(3)
print("worker", store.rank, "is in training", flush=True)
if store.rank == 1:
    {}
train(3)
print("worker", store.rank, "is done", flush=True)
"""


def test_killed_worker_is_named_by_the_survivors(processes: ProcessGroup) -> None:
    job = Job(processes, workers=3, servers=2)
    scheduler, servers, workers = job.start(TRAIN_FOR_EVER)
    in_training(workers)
    workers[1].kill()
    watch = Stopwatch(LIMIT_S)
    for worker in (workers[0], workers[2]):
        worker.wait_for_line(r"errors\.WorkerLost: worker 1 .*rank 1", watch.left_s)
        assert worker.wait(LIMIT_S) == 1
    for member in (*servers, scheduler):
        assert member.wait(LIMIT_S) == 1
    for server in servers:
        assert "WorkerLost: worker 1" in server.output
    assert "ERROR: worker 1 @" in scheduler.output


def test_launcher_tells_of_a_death_at_once(processes: ProcessGroup) -> None:
    launch = processes.asyncps(
        "launch", "-n", "2", "-s", "1", "--env", "ASYNCPS_RECONNECT_S=60",
        "--", sys.executable, "-c", TRAIN_FOR_EVER + "\n    if step == 50 and store.rank == 1:"
        "\n        os.kill(os.getpid(), signal.SIGKILL)", cwd=ROOT,
    )
    launch.wait_for_line(r"worker 1 .* was killed by signal 9", START_S)
    watch = Stopwatch(3.0)
    family = launch.descendants()
    launch.wait_for_line(r"\[worker 0\] asyncps.errors.WorkerLost: .*rank 1", watch.left_s)
    assert launch.wait(watch.left_s) == 137
    assert_gone(family, 0.5)


def test_killed_scheduler_is_seen_by_everyone(processes: ProcessGroup) -> None:
    job = Job(processes, workers=2, servers=2)
    scheduler, servers, workers = job.start(TRAIN_FOR_EVER)
    in_training(workers)
    scheduler.kill()
    watch = Stopwatch(LIMIT_S)
    for member in (*workers, *servers):
        member.wait_for_line(r"SchedulerLost: the scheduler at 127\.0\.0\.1:", watch.left_s)
        assert member.wait(LIMIT_S) == 1


def test_killed_server_is_named_by_every_worker(processes: ProcessGroup) -> None:
    job = Job(processes, workers=2, servers=2, **QUICK)
    scheduler, servers, workers = job.start(TRAIN_FOR_EVER)
    in_training(workers)
    servers[1].kill()
    watch = Stopwatch(LIMIT_S)
    for worker in workers:
        worker.wait_for_line(r"errors\.ServerLost: server 1 .*rank 1", watch.left_s)
        assert worker.wait(LIMIT_S) == 1
    assert servers[0].wait(LIMIT_S) == 1
    assert scheduler.wait(LIMIT_S) == 1


def test_server_killed_before_the_job_began_is_missed(processes: ProcessGroup) -> None:
    job = Job(processes, workers=2, **QUICK)
    scheduler, server = job.scheduler(), job.server(0)
    worker = job.worker(PRELUDE, 0)
    for name in ("server", "worker"):
        scheduler.wait_for_line(f"{name} 0 @.* joined", START_S)
    server.kill()
    worker.wait_for_line(r"ServerLost: server 0 .*rank 0", LIMIT_S)
    assert worker.wait() == 1
    assert scheduler.wait(LIMIT_S) == 1


def test_frozen_server_is_lost_after_its_limit(processes: ProcessGroup) -> None:
    job = Job(processes, workers=2, ASYNCPS_HEARTBEAT_S=0.2, ASYNCPS_FROZEN_SERVER_S=1.5)
    _, (server,), workers = job.start(TRAIN_FOR_EVER)
    in_training(workers)
    server.freeze()
    watch = Stopwatch(LIMIT_S)
    for worker in workers:
        worker.wait_for_line(r"errors\.ServerLost: .*silent for .*limit 1\.5 s.*rank 0",
                             watch.left_s)


def test_frozen_scheduler_is_lost_after_its_limit(processes: ProcessGroup) -> None:
    job = Job(processes, workers=1, ASYNCPS_HEARTBEAT_S=0.2, ASYNCPS_FROZEN_SERVER_S=1.5)
    scheduler, (server,), (worker,) = job.start(TRAIN_FOR_EVER)
    in_training([worker])
    scheduler.freeze()
    watch = Stopwatch(LIMIT_S)
    for member in (worker, server):
        member.wait_for_line(r"SchedulerLost: .*said nothing for 1\.5 s", watch.left_s)


def test_code_of_a_worker_that_holds_the_gil_changes_nothing(processes: ProcessGroup) -> None:
    # Each limit that would notice if the rule were wrong is shorter than what the worker does.
    job = Job(processes, workers=2, ASYNCPS_HEARTBEAT_S=0.1, ASYNCPS_FROZEN_SERVER_S=1.5,
              ASYNCPS_RECONNECT_S=0.5, ASYNCPS_ANSWER_S=1, ASYNCPS_ROUND_WARNING_S=1,
              ASYNCPS_HANDSHAKE_S=1, ASYNCPS_HOST_DEAD_S=1)
    members = job.start(INTERRUPTED.format("ctypes.PyDLL(None).usleep(3_000_000)"))
    members[2][0].wait_for_line(r"server 0 .*ranks \[1\]", START_S)
    assert_well(*members[2], *members[1], members[0])


def test_worker_that_stops_for_less_than_its_limit_changes_nothing(
    processes: ProcessGroup,
) -> None:
    job = Job(processes, workers=2, ASYNCPS_HEARTBEAT_S=0.1, ASYNCPS_FROZEN_SERVER_S=1,
              ASYNCPS_ROUND_WARNING_S=1.5)
    scheduler, servers, workers = job.start(INTERRUPTED.format("os.kill(os.getpid(), 19)"))
    workers[0].wait_for_line(r"server 0 .*ranks \[1\]", START_S)
    workers[1].thaw()
    assert_well(*workers, *servers, scheduler)


def test_server_that_stops_for_less_than_its_limit_changes_nothing(
    processes: ProcessGroup, tmp_path: Path
) -> None:
    job = Job(processes, workers=1)
    scheduler, (server,), (worker,) = job.start(TRAIN_UNTIL_FILE, str(tmp_path / "stop"))
    in_training([worker])
    server.freeze()
    # Time goes by: somebody starts, asks the scheduler and is refused.
    assert job.worker(PRELUDE, 0).wait(START_S) == 1
    server.thaw()
    (tmp_path / "stop").touch()
    assert_well(worker, server, scheduler)


def test_death_is_seen_though_a_forked_child_lives_on(processes: ProcessGroup) -> None:
    job = Job(processes, workers=2, **QUICK)
    program = TRAIN_FOR_EVER.replace("for step in", """
if store.rank == 1 and os.fork() == 0:
    print("the child lives", flush=True)
    signal.pause()
for step in""")
    _, _, workers = job.start(program)
    in_training(workers)
    workers[1].wait_for_line("the child lives", START_S)
    workers[1].kill()
    workers[0].wait_for_line(r"errors\.WorkerLost: worker 1 .*rank 1", LIMIT_S)
    assert len(workers[1].descendants()) == 0  # it is an orphan now: the group's end takes it


def test_store_of_a_forked_child_is_closed_and_the_parents_goes_on(
    processes: ProcessGroup,
) -> None:
    job = Job(processes, workers=1)
    program = PRELUDE + """
store.init("w", np.zeros(10, "f4"))
child = os.fork()
if not child:
    for verb in (lambda: store.pull("w"), lambda: store.push("w", np.ones(10, "f4")),
                 lambda: store.barrier(), lambda: store.pull("never seen"),
                 lambda: asyncps.create("dist_sync").rank):
        try:
            verb()
        except asyncps.errors.AsyncPSError as error:
            print("the child got", type(error).__name__, flush=True)
    store.close()
    sys.exit(0)
assert os.waitpid(child, 0)[1] == 0
for step in range(3):
    assert (store.pushpull("w", np.ones(10, "f4")) == 1).all()
print("the parent is done", flush=True)
"""
    scheduler, servers, (worker,) = job.start(program)
    worker.wait_for_line("the parent is done", START_S)
    assert worker.output.count("the child got ClosedError") == 4
    assert worker.output.count("the child got RankTaken") == 1
    assert_well(worker, *servers, scheduler)


def in_training(workers: list[ManagedProcess]) -> None:
    for worker in workers:
        worker.wait_for_line("is in training", START_S)


def assert_well(*members: ManagedProcess) -> None:
    for member in members:
        assert member.wait(START_S) == 0, member.output
