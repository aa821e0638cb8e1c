"""A script as one rank or two, by each of the ways to start them."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.processes import clean_environment

ROOT = Path(__file__).parents[2]
STARTERS = {
    "alone": [],
    "launch": [sys.executable, "-m", "asyncps", "launch", "-n", "2", "-s", "0", "--"],
    "mpirun": ["mpirun", "-n", "2", "--oversubscribe"],
}


def lines_of(how: str, script: Path, *words: str) -> list[str]:
    """Run it to its end, which must be a good one; returns the lines that it prints.

    Args:
        how: Of STARTERS.
        script: The file.
        words: Its arguments.
    """
    if how == "mpirun" and shutil.which("mpirun") is None:
        pytest.skip("no mpirun here")
    env = clean_environment({"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1",
                             "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"})
    done = subprocess.run([*STARTERS[how], sys.executable, str(script), *words], env=env,
                          timeout=40, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.splitlines()
