"""DistOpt under the launcher: processes over TCP have the bits of the model of threads."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from tests.distopt.ways import APART, NEAR, SUMS, UPDATES, trained
from tests.support import threadgroup
from tests.support.processes import ProcessGroup, clean_environment

ROOT = Path(__file__).parents[2]


@pytest.mark.launch
@pytest.mark.parametrize("world", [2, pytest.param(7, marks=pytest.mark.slow)])
def test_all_ways_have_the_bits_of_the_model(
    world: int, processes: ProcessGroup, tmp_path: Path
) -> None:
    job = processes.asyncps(
        "launch", "-n", str(world), "-s", "0", "--",
        sys.executable, "-m", "tests.distopt.program", str(tmp_path),
        env=clean_environment({"PYTHONPATH": str(ROOT)}), cwd=ROOT,
    )  # fmt: skip
    assert job.wait(100 if world > 2 else 25) == 0, job.output
    ranks = []
    for rank in range(world):
        with np.load(tmp_path / f"{rank}.npz", allow_pickle=False) as file:
            ranks.append(dict(file))
    for name in UPDATES:
        wanted = threadgroup.run(world, lambda comm, name=name: trained(comm, name))
        for rank, params in enumerate(wanted):
            right, found = np.concatenate([each.ravel() for each in params]), ranks[rank][name]
            if name in SUMS:
                np.testing.assert_array_equal(found, right)
            np.testing.assert_allclose(found, right, **NEAR.get(name, {"rtol": 1e-6, "atol": 1e-7}))
            if name not in APART:
                np.testing.assert_array_equal(found, ranks[0][name])
