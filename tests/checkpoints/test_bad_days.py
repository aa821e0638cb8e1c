"""Processes are killed: what stood is what stands, and survivors hear who is gone."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from asyncps.tensor import checkpoint
from tests.faults.job import PRELUDE, START_S, Job
from tests.support.processes import ProcessGroup

# Every worker saves again and again; the value tells which save it was.
SAVES_FOR_EVER = PRELUDE + """
store.set_optimizer("test")
store.init(["small", "large"], [np.zeros(3, "f4"), np.zeros(3_000_000, "f4")])
ones = [np.ones(3, "f4"), np.ones(3_000_000, "f4")]
for step in range(1 << 40):
    store.save(sys.argv[1])
    print("worker", store.rank, "has saved", step, flush=True)
    store.pushpull(["small", "large"], ones, out=[each.copy() for each in ones])
"""

LOADS = PRELUDE + """
store.load(sys.argv[1])
small, large = store.pull(["small", "large"])
assert (small == small[0]).all() and (large == small[0]).all()
store.save(sys.argv[1])
print("worker", store.rank, "has loaded", int(small[0]), flush=True)
"""


def stands_whole(path: Path) -> float:
    """Some save stands there whole; returns which."""
    found = checkpoint.read(path)
    (step,) = set(np.concatenate([found.weights["small"], found.weights["large"]]).tolist())
    return float(step)


@pytest.mark.slow
@pytest.mark.parametrize("turn", range(4))
def test_killed_writer_leaves_the_old_one_or_the_new_one(
    processes: ProcessGroup, tmp_path: Path, turn: int
) -> None:
    target = tmp_path / "newest"
    job = Job(processes, workers=2, servers=2)
    _, _, (first, second) = job.start(SAVES_FOR_EVER, str(target))
    # The other hears of a save when it is done: then the next one is about to begin.
    second.wait_for_line(f"worker 1 has saved {2 + turn}", START_S)
    first.kill()
    second.wait_for_line(r"errors\.WorkerLost: worker 0 .*rank 0", 5.0)
    assert stands_whole(target) >= 2 * (2 + turn)
    left = [path for path in tmp_path.iterdir() if path != target]
    assert all(path.name.startswith(".newest.") for path in left)
    again = Job(processes, workers=1, servers=3)
    _, _, (worker,) = again.start(LOADS, str(target))
    worker.wait_for_line("worker 0 has loaded", START_S)
    assert worker.wait(START_S) == 0
    assert [path for path in tmp_path.iterdir() if path != target] == []


@pytest.mark.slow
def test_worker_that_does_not_write_is_killed_in_the_midst(
    processes: ProcessGroup, tmp_path: Path
) -> None:
    target = tmp_path / "newest"
    job = Job(processes, workers=2, servers=2)
    _, _, (first, second) = job.start(SAVES_FOR_EVER, str(target))
    first.wait_for_line("worker 0 has saved 2", START_S)
    second.kill()
    first.wait_for_line(r"errors\.WorkerLost: worker 1 .*rank 1", 5.0)
    first.wait(START_S)
    stands_whole(target)
    assert [path for path in tmp_path.iterdir() if path != target] == []


@pytest.mark.slow
def test_killed_server_is_seen_by_every_worker_and_the_last_checkpoint_loads(
    processes: ProcessGroup, tmp_path: Path
) -> None:
    target = tmp_path / "newest"
    job = Job(processes, workers=3, servers=2)
    _, servers, workers = job.start(SAVES_FOR_EVER, str(target))
    for rank, worker in enumerate(workers):
        worker.wait_for_line(f"worker {rank} has saved 3", START_S)
    servers[1].kill()
    for worker in workers:
        worker.wait_for_line(r"errors\.ServerLost: server 1 ", 5.0)
    assert workers[0].wait(START_S) == 1
    step = stands_whole(target)
    assert step >= 9
    again = Job(processes, workers=2, servers=3)
    _, _, workers = again.start(LOADS, str(target))
    for rank, worker in enumerate(workers):
        worker.wait_for_line(f"worker {rank} has loaded {int(step)}", START_S)
    assert [path for path in tmp_path.iterdir() if path != target] == []
