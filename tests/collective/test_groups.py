"""Communicators of the three ways to form a group have the same ranks, and work."""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from asyncps import Communicator, JobTicket, mpi
from tests.support.processes import ProcessGroup
from tests.test_mpi import mpirun, open_mpi

ROOT = Path(__file__).parents[2]
SUM = """
import sys
import numpy as np
from asyncps import Communicator
with Communicator.from_{}() as comm:
    total = comm.all_reduce(np.full(5, comm.rank + 1, "f4"))[0]
    words = "ranks", comm.rank, comm.world_size, comm.local_rank, comm.local_size, "sum", total
    sys.stdout.write(" ".join(map(str, words)) + "\\n")  # at once: mpirun mixes what ranks say
"""


def test_threads_that_hold_a_ticket() -> None:
    found: list[Any] = [None] * 3

    def one(ticket: JobTicket, rank: int) -> None:
        with Communicator.from_ticket(ticket, rank, 3, round_s=20.0) as comm:
            total = comm.all_reduce(np.full(5, rank + 1, "f4"))
            found[rank] = (comm.rank, comm.world_size, comm.local_rank, comm.local_size, total[0])

    with JobTicket() as ticket:
        threads = [threading.Thread(target=one, args=(ticket, rank)) for rank in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert found == [(rank, 3, rank, 3, 6.0) for rank in range(3)]


def test_one_rank_of_mpi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mpi, "_registered", [None])
    for name, value in open_mpi(0, 1, tmp_path).items():
        monkeypatch.setenv(name, value)
    with Communicator.from_mpi() as comm:
        assert (comm.rank, comm.world_size, comm.local_rank, comm.local_size) == (0, 1, 0, 1)
        assert comm.all_reduce(np.ones(3, "f4")).tolist() == [1, 1, 1]
    mpi.finish()
    assert list(tmp_path.iterdir()) == []


def says(output: str) -> list[str]:
    return sorted(line[line.index("ranks ") :] for line in output.splitlines() if "ranks " in line)


@pytest.mark.slow
@pytest.mark.launch
def test_launcher_and_mpirun_say_the_same(processes: ProcessGroup) -> None:
    expected = [f"ranks {rank} 3 {rank} 3 sum 6.0" for rank in range(3)]
    launch = processes.asyncps("launch", "-n", "3", "-s", "0", "--", sys.executable, "-c",
                               SUM.format("env"), cwd=ROOT)
    assert launch.wait(60.0) == 0, launch.output
    assert says(launch.output) == expected
    job = mpirun(processes, 3, "-c", SUM.format("mpi"))
    assert job.wait(60.0) == 0, job.output
    assert says(job.output) == expected
