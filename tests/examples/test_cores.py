"""How many threads of BLAS a worker takes, by whatever has started it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import cores
import pytest

from tests.support.processes import clean_environment

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.parametrize(("env", "threads"), [
    ({}, 16), ({"ASYNCPS_NUM_WORKERS": "4"}, 4), ({"DMLC_NUM_WORKER": "2"}, 8),
    ({"OMPI_COMM_WORLD_SIZE": "8", "OMPI_COMM_WORLD_LOCAL_SIZE": "4"}, 4),
    ({"MPI_LOCALNRANKS": "2"}, 8), ({"SLURM_STEP_TASKS_PER_NODE": "4(x2),1"}, 4),
    ({"ASYNCPS_NUM_WORKERS": "", "MPI_LOCALNRANKS": "64"}, 1),
])  # fmt: skip
def test_workers_of_one_machine_share_its_cores(
    env: dict[str, str], threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 16)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(16)))
    for name in (*cores.WORKERS_HERE, *env):
        monkeypatch.setenv(name, env.get(name, ""))
    assert cores.threads() == str(threads)
    assert cores.threads(8) == "2"


def test_a_worker_that_is_bound_to_some_cores_takes_no_more(
    monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 16)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {3, 4})
    for name in cores.WORKERS_HERE:
        monkeypatch.setenv(name, "")
    assert cores.threads() == "2"
    monkeypatch.setenv("OMPI_COMM_WORLD_LOCAL_SIZE", "4")
    assert cores.threads() == "2"


@pytest.mark.parametrize("example", ["mnist_cnn", "mnist_allreduce", "mnist_distopt"])
def test_every_example_takes_its_share_before_numpy_is_loaded(example: str) -> None:
    look = ("import builtins, os, sys, cores; cores.threads = lambda: '7'\n"
            "real = builtins.__import__\n"
            "def seen(name, *rest):\n"
            "    if name == 'numpy' and 'numpy' not in sys.modules:\n"
            "        print('threads', os.environ.get('OMP_NUM_THREADS'), flush=True)\n"
            "    return real(name, *rest)\n"
            f"builtins.__import__ = seen; import {example}")
    env = clean_environment({"PYTHONPATH": os.pathsep.join([str(EXAMPLES), *sys.path])})
    env.pop("OMP_NUM_THREADS", None)
    done = subprocess.run([sys.executable, "-c", look], env=env, capture_output=True, text=True,
                          timeout=25, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[0] == "threads 7"
