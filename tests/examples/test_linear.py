"""The example of Trainer: it learns the plane, alone and with others, who all have it."""

from __future__ import annotations

import sys
from pathlib import Path

import linear
import numpy as np
import pytest

from tests.support.cluster import on_cluster
from tests.support.processes import ProcessGroup

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("workers", [1, 2])
def test_plane_is_found_by_all_workers(workers: int) -> None:
    planes = on_cluster(linear.train, workers=workers)
    assert len(planes) == workers
    for slopes, height in planes:
        np.testing.assert_allclose(slopes, [2, -1, 0.5], atol=0.02)
        np.testing.assert_allclose(height, [3], atol=0.02)
        np.testing.assert_array_equal(slopes, planes[0][0])


def test_two_workers_take_half_of_the_steps_each() -> None:
    def steps(store) -> int:
        linear.train(store, epochs=1)
        return store.statistics()["rounds"]

    (alone,) = on_cluster(steps, workers=1, servers=1)
    assert set(on_cluster(steps, workers=2, servers=1)) == {alone // 2}


@pytest.mark.slow
@pytest.mark.launch
def test_it_runs_as_its_first_lines_say(processes: ProcessGroup) -> None:
    launch = processes.asyncps("launch", "-n", "2", "-s", "1", "--", sys.executable,
                               "examples/linear.py", cwd=ROOT)
    assert launch.wait(60.0) == 0, launch.output
    for rank in (0, 1):
        assert (f"[worker {rank}] worker {rank} of 2, epoch 4: slopes [ 2.  -1.   0.5], "
                "height [3.]") in launch.output
