"""ACCEPTANCE C11: a rank is killed, or frozen; every survivor is told in time, and leaves."""

from __future__ import annotations

import time

import numpy as np
import pytest

from asyncps.communicator import Communicator
from asyncps.errors import DeadlineExceeded
from tests.faults.job import Job
from tests.support.group import group, held
from tests.support.processes import ProcessGroup

DEADLINE_S = 4.0

SCRIPT = """
import os, signal, sys, time
import numpy as np
from asyncps.communicator import Communicator
from asyncps.errors import AsyncPSError
comm = Communicator.from_env()
comm.barrier()
lost = comm.world_size - 2
try:
    for step in range(10**6):
        if comm.rank == lost and step == 5:
            os.kill(os.getpid(), getattr(signal, sys.argv[1]))
        began = time.monotonic()
        assert (comm.all_reduce(np.ones(300_000, "f4")) == comm.world_size).all()
except AsyncPSError as error:
    print(type(error).__name__, "after", time.monotonic() - began, "s:", error, flush=True)
    sys.exit(7)
"""


@pytest.mark.slow
@pytest.mark.parametrize("world", [3, 5])
@pytest.mark.parametrize(("how", "kind", "words"), [
    ("SIGKILL", "WorkerLost", "(?:rank|worker) {} is lost"),
    ("SIGSTOP", "DeadlineExceeded", r"lacks ranks \[{}\]"),
])
def test_survivors_are_told_within_twice_the_deadline_and_leave(
    processes: ProcessGroup, world: int, how: str, kind: str, words: str
) -> None:
    lost = world - 2
    job = Job(processes, workers=world, servers=0, ASYNCPS_ROUND_S=DEADLINE_S)
    _, _, ranks = job.start(SCRIPT, how)
    for rank, process in enumerate(ranks):
        if rank == lost:
            continue
        told = process.wait_for_line(rf"{kind} after (\S+) s: .*{words.format(lost)}", 60)
        assert float(told[1]) <= 2 * DEADLINE_S, process.output
        assert process.wait(2 * DEADLINE_S) == 7, process.output


@pytest.mark.parametrize("world", range(2, 9))
def test_a_rank_whose_loop_stands_still_is_named_within_twice_the_deadline(world: int) -> None:
    with group(world, round_s=1.5) as ranks, held(ranks.ranks[-1]):
        def work(comm: Communicator) -> float:
            if comm.rank == world - 1:
                return 0.0
            began = time.monotonic()
            with pytest.raises(DeadlineExceeded, match=rf"lacks ranks \[{world - 1}\]"):
                comm.all_reduce(np.ones(3))
            return time.monotonic() - began

        assert max(ranks.run(work)) <= 3.0
