"""ACCEPTANCE sections 2 and 3 by their rows: any number of ranks up to eight, processes too."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from asyncps.communicator import Communicator
from asyncps.errors import DeadlineExceeded
from tests.collective.rows import ROWS
from tests.distopt.rules import RULES
from tests.support.group import Group, group
from tests.support.processes import ProcessGroup, clean_environment

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module", params=range(1, 9), ids="of{}".format)
def some(request: pytest.FixtureRequest) -> Iterator[Group]:
    with group(request.param) as opened:
        yield opened


@pytest.mark.parametrize("row", ROWS)
def test_rows_of_all_numbers_of_ranks(some: Group, row: str) -> None:
    some.run(ROWS[row])


def test_c10_of_all_numbers_of_ranks(some: Group) -> None:
    """A barrier waits for the last rank; the others are told at 10 ms that it is missing."""
    world = len(some.ranks)
    late = threading.Barrier(world)

    def work(comm: Communicator) -> None:
        if comm.rank < world - 1:
            with pytest.raises(DeadlineExceeded, match=rf"lacks ranks \[.*{world - 1}\]"):
                comm.barrier(timeout=0.01)
        late.wait(20)
        if comm.rank == world - 1:
            comm.barrier()  # the one that the others have called
        comm.barrier()

    some.run(work)


@pytest.mark.launch
@pytest.mark.parametrize("world", [3, pytest.param(5, marks=pytest.mark.slow)])
def test_rows_and_rules_on_processes(world: int, processes: ProcessGroup) -> None:
    job = processes.asyncps(
        "launch", "-n", str(world), "-s", "0", "--", sys.executable, "-m", "tests.collective.rows",
        env=clean_environment({"PYTHONPATH": str(ROOT)}), cwd=ROOT,
    )  # fmt: skip
    assert job.wait(28 if world == 3 else 120) == 0, job.output
    for name in (*ROWS, *RULES):
        assert f"{name} of {world} ranks" in job.output
