"""How jobs with allreduce stores end: early exits, forks, lost workers, stores of both kinds."""

from __future__ import annotations

import gc
import sys
import weakref
from pathlib import Path

import numpy as np
import pytest

import asyncps
from asyncps.allreducestore import AllReduceStore
from tests.kvstore.test_allreduce import on_workers
from tests.support.cluster import on_processes
from tests.support.processes import ProcessGroup, clean_environment

ROOT = Path(__file__).parents[2]

BEGINS = """
import os, signal, sys
import numpy as np
import asyncps
from asyncps.errors import AsyncPSError, ClosedError
store = asyncps.create("allreduce")
keys = ["large", "small"]
large, small = np.ones(300_000, "f4"), np.ones(3, "f4")
store.init(keys, [large, small])
"""

EXITS = """
if store.rank == 1:
    store.pushpull("large", large, async_op=True)
    store.pushpull("small", small, async_op=True)
else:
    store.pushpull(["small", "large"], [small, large])
    assert (small == 3).all() and (large == 3).all()
    print("right at rank", store.rank, flush=True)
"""

FORKS = """
child = os.fork()
if not child:
    for verb in (store.barrier, lambda: store.pushpull("small", small),
                 lambda: store.pushpull("large", large, async_op=True).wait()):
        try:
            verb()
        except ClosedError as error:
            assert "forked child" in str(error)
        else:
            os._exit(1)
    store.close()
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
assert (store.pushpull("small", small) == 3).all()
print("right at rank", store.rank, flush=True)
"""

DIES = """
try:
    for step in range(10**6):
        if step == 5 and store.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        store.pushpull(keys, [large, small])
except AsyncPSError as error:
    print(f"rank {store.rank} hears {type(error).__name__} of rank {error.rank}", flush=True)
    sys.exit(7)
"""


def run(processes: ProcessGroup, program: str) -> tuple[int, str]:
    launch = processes.asyncps(
        "launch", "-n", "3", "-s", "0", "--", sys.executable, "-c", BEGINS + program,
        env=clean_environment(), cwd=ROOT,
    )  # fmt: skip
    return launch.wait(30), launch.output


@pytest.mark.parametrize(("program", "ranks"), [(EXITS, (0, 2)), (FORKS, (0, 1, 2))])
def test_who_ends_early_or_forks_spoils_no_sum(
    processes: ProcessGroup, program: str, ranks: tuple[int, ...]
) -> None:
    code, output = run(processes, program)
    assert code == 0, output
    assert all(f"right at rank {rank}" in output for rank in ranks), output


def test_a_killed_worker_is_named_by_all_survivors(processes: ProcessGroup) -> None:
    code, output = run(processes, DIES)
    assert code == 137, output
    for rank in (0, 2):
        assert f"rank {rank} hears WorkerLost of rank 1" in output, output


def beside_servers(store: AllReduceStore) -> None:
    """Stores of both kinds in one process, closed in an order of their own."""
    n = store.num_workers
    other = asyncps.create("dist_sync", name="other")
    beside = asyncps.create("allreduce", name="beside")
    assert other.rank == store.rank
    for _ in range(3):
        for each in (other, beside, store):
            each.init("w", np.zeros(3))
            assert np.all(each.pushpull("w", np.ones(3)) == n)
    store.close()
    beside.close()
    assert np.all(other.pushpull("w", np.ones(3)) == n)
    again = asyncps.create("allreduce", name="beside")
    again.init("w", np.zeros(4))
    other.close()
    assert np.all(again.pushpull("w", np.ones(4)) == n)
    again.close()


def test_stores_of_both_kinds_share_their_worker(processes: ProcessGroup) -> None:
    on_processes(processes, beside_servers, workers=2, servers=1, type="allreduce")


def test_handles_that_nobody_waits_for_keep_no_memory() -> None:
    def work(store: AllReduceStore) -> tuple[int, int]:
        kept = []
        store.init("w", np.zeros(3, "f4"))
        for waits in (True, False):
            for _ in range(200):
                value = np.ones(3, "f4")
                kept.append(weakref.ref(value))
                handle = store.pushpull("w", value, async_op=True)
                if waits:
                    handle.wait()
                else:
                    store.barrier()
            del value, handle
            if waits:
                gc.collect()
                assert sum(each() is not None for each in kept) <= 2
        gc.collect()
        return len(store._open), sum(each() is not None for each in kept)

    for open_, alive in on_workers(work):
        assert open_ <= 33
        assert alive <= 40


def test_done_means_that_all_outs_are_written() -> None:
    def work(store: AllReduceStore) -> None:
        outs = [np.zeros(3), np.zeros(6)[::2]]
        store.init("w", outs[0])
        handle = store.pushpull("w", np.ones(3), outs, async_op=True)
        while not handle.done():
            pass
        assert all(np.all(out == 2) for out in outs)

    on_workers(work)
