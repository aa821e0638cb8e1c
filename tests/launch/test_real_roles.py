"""The launcher with the real scheduler and servers, as a user starts it."""

from __future__ import annotations

import sys
from pathlib import Path

import psutil
import pytest

from tests.support.processes import ProcessGroup, assert_gone

pytestmark = [pytest.mark.launch, pytest.mark.slow]

ROOT = Path(__file__).parents[2]
TRAIN = """
import os, sys
import numpy as np
import asyncps
store = asyncps.create("dist_sync")
store.init("w", np.zeros(4, "f4"))
for step in range(3):
    if sys.argv[1] == "die" and store.rank == 1 and step == 2:
        os.kill(os.getpid(), 9)
    total = store.pushpull("w", np.full(4, store.rank + 1, "f4"))
print("rank", store.rank, "has", total[0], flush=True)
"""


def test_job_trains_and_everybody_leaves_by_himself(processes: ProcessGroup) -> None:
    launch = processes.asyncps("launch", "-n", "2", "--", sys.executable, "-c", TRAIN, "live",
                               cwd=ROOT)
    for rank in range(2):
        launch.wait_for_line(rf"\[worker {rank}\] rank {rank} has 3.0", 60.0)
    assert launch.wait(30.0) == 0
    assert "still alive" not in launch.output


def test_program_that_does_not_exist_ends_the_job_without_other_words(
    processes: ProcessGroup,
) -> None:
    launch = processes.asyncps("launch", "-n", "2", "--", "no_such_program", cwd=ROOT)
    assert launch.wait(60.0) == 127
    assert "cannot start no_such_program" in launch.output
    assert "cannot reach" not in launch.output


ASYNC = """
import os, select, sys
import numpy as np
import asyncps
store = asyncps.create("dist_async")
rank, n, size = store.rank, store.num_workers, int(sys.argv[1])
store.init("w", np.zeros(size, "f4"))
store.init("rank 0", np.array([os.getpid()]))  # its own value counts
first = int(store.pull("rank 0")[0])
store.set_optimizer("test")
mine = np.zeros(size, "f4")
mine[rank::n] = 1
pushes = 1
store.push("w", mine).wait(10)
if rank == 0:
    assert first == os.getpid()
else:
    try:
        select.select([os.pidfd_open(first)], [], [])  # until it has ended
    except ProcessLookupError:
        pass  # it is gone already
    for _ in range(100):
        store.push("w", mine)
        pushes += 1
    got = store.pull("w")
    assert (got[rank::n] == pushes).all(), got
    assert (got[0::n] == 1).all(), got
print("rank", rank, "pushed", pushes, flush=True)
"""


@pytest.mark.parametrize("size", [7, 300_000])
def test_async_rank_0_ends_first_and_the_others_push_on(
    processes: ProcessGroup, size: int
) -> None:
    launch = processes.asyncps("launch", "-n", "3", "-s", "2", "--", sys.executable, "-c", ASYNC,
                               str(size), cwd=ROOT)
    launch.wait_for_line(r"\[worker 0\] rank 0 pushed 1", 60.0)
    for rank in (1, 2):
        launch.wait_for_line(rf"\[worker {rank}\] rank {rank} pushed 101", 60.0)
    assert launch.wait(30.0) == 0
    assert "still alive" not in launch.output


def test_killed_worker_is_named_by_the_survivors_and_ends_the_job(
    processes: ProcessGroup,
) -> None:
    launch = processes.asyncps("launch", "-n", "2", "-s", "1", "--", sys.executable, "-c", TRAIN,
                               "die", cwd=ROOT)
    launch.wait_for_line("worker 1 .* was killed by signal 9", 60.0)
    family = launch.descendants()
    assert launch.wait(3.0) == 137
    assert_gone(family, 0.1)
    assert "[worker 0] asyncps.errors.WorkerLost" in launch.output


ENDLESS = """
import sys
import numpy as np
import asyncps
store = asyncps.create("dist_sync")
store.init("w", np.zeros(4, "f4"))
try:
    print("training", flush=True)
    while True:
        store.pushpull("w", np.ones(4, "f4"))
except asyncps.errors.SchedulerLost:
    print("saw it", flush=True)
    raise
"""


def test_workers_see_that_the_scheduler_was_killed(processes: ProcessGroup) -> None:
    launch = processes.asyncps("launch", "-n", "2", "--", sys.executable, "-c", ENDLESS, cwd=ROOT)
    for rank in range(2):
        launch.wait_for_line(rf"\[worker {rank}\] training", 60.0)
    scheduler = [child for child in psutil.Process(launch.pid).children(recursive=True)
                 if "scheduler" in child.cmdline()]
    assert len(scheduler) == 1
    scheduler[0].kill()
    assert launch.wait(30.0) == 137
    for rank in range(2):
        assert f"[worker {rank}] saw it" in launch.output
