"""Optimizers of the user's own in a job of real processes: `--import`."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tests.support.processes import ProcessGroup, clean_environment

pytestmark = [pytest.mark.launch, pytest.mark.slow]

ROOT = Path(__file__).parents[2]
MODULE = """
import os
import asyncps
if os.environ["ASYNCPS_ROLE"] == "server" and os.environ.get("BREAK"):
    raise RuntimeError("no licence here")
class Halving(asyncps.optim.Optimizer):
    def update(self, weight, grad, state, hyper):
        if grad[0] < 0:
            raise ValueError("downhill")
        weight[:] = weight / 2 + hyper["learning_rate"] * grad
"""
TRAIN = """
import numpy as np
import asyncps
store = asyncps.create("dist_sync")
store.init("w", np.ones(4, "f4"))
try:
    store.set_optimizer("halving", lr=0.5)
    print("has", store.pushpull("w", np.ones(4, "f4"))[0], flush=True)
    store.pushpull("w", np.full(4, -1, "f4"))
except asyncps.errors.OptimizerError as error:
    print("refused:", error, flush=True)
store.set_optimizer("test")
print("then", store.pushpull("w", np.ones(4, "f4"))[0], flush=True)
"""


STUCK = """
import asyncps

class Stuck(asyncps.optim.Optimizer):
    def update(self, weight, grad, state, hyper):
        open("a pipe").read()
        weight += grad
"""
WAIT = """
import numpy as np
import asyncps
store = asyncps.create("dist_sync")
store.init(["w", "other"], [np.ones(4, "f4"), np.ones(4, "f4")])
store.set_optimizer("stuck")
try:
    store.pushpull("w", np.ones(4, "f4"))
except asyncps.errors.DeadlineExceeded as error:
    print("late:", error, flush=True)
print("other", store.pull("other")[0], flush=True)
store.barrier()
if store.rank == 0:
    open("a pipe", "w").close()
print("then", store.pull("w")[0], flush=True)
"""


def job(
    processes: ProcessGroup, folder: Path, module: str = MODULE, program: str = TRAIN,
    **env: str,
) -> str:
    (folder / "my_optimizers.py").write_text(module)
    launch = processes.asyncps(
        "launch", "-n", "2", "-s", "1", "--import", "my_optimizers", "--",
        sys.executable, "-c", program,
        env=clean_environment({"PYTHONPATH": f"{folder}:{ROOT}", **env}), cwd=folder,
    )  # fmt: skip
    assert launch.wait(60.0) == 0, launch.output
    return launch.output


def test_it_moves_the_weights_and_its_failure_ends_no_server(
    processes: ProcessGroup, tmp_path: Path
) -> None:
    output = job(processes, tmp_path)
    assert output.count("has 1.5") == 2
    assert output.count("refused: optimizer halving failed: ValueError('downhill')") == 2
    assert output.count("then 3.5") == 2


def test_module_that_fails_on_the_server_is_told_to_the_workers(
    processes: ProcessGroup, tmp_path: Path
) -> None:
    output = job(processes, tmp_path, BREAK="1")
    assert output.count("refused: unknown optimizer; module 'my_optimizers' could not be "
                        "imported: RuntimeError('no licence here')") == 2
    assert output.count("then 3.0") == 2


def test_update_that_is_stuck_keeps_no_server_from_saying_that_it_lives(
    processes: ProcessGroup, tmp_path: Path
) -> None:
    os.mkfifo(tmp_path / "a pipe")
    # The update lasts until both have waited longer than a silent server is given.
    output = job(processes, tmp_path, STUCK, WAIT, ASYNCPS_ROUND_S="5",
                 ASYNCPS_HEARTBEAT_S="0.2", ASYNCPS_FROZEN_SERVER_S="3")
    assert output.count("late: round 1 was not complete within 5 s; server 0") == 2
    assert output.count("waits for its optimizer stuck") == 2
    assert output.count("other 1.0") == 2
    assert output.count("then 3.0") == 2
