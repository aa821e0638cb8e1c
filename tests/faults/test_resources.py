"""Work that goes on for long takes no more than work that has just begun."""

from __future__ import annotations

import gc
import os
import random
import threading
from pathlib import Path
from typing import Any

import numpy as np

import asyncps
from tests.support.leaks import open_fds, pending_tasks

SIZES = [1, 7, 300, 5_000, 20_000, 150_000]


def usage() -> tuple[int, int, int]:
    """Descriptors, threads and tasks of this process."""
    return len(open_fds()), threading.active_count(), len(pending_tasks())


def resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def test_two_thousand_operations_of_varying_size_leave_nothing_behind() -> None:
    seen: list[tuple[int, int, int]] = []
    memory: list[int] = []
    together = threading.Barrier(2)

    def train(store: Any) -> None:
        chance = random.Random(5)  # the same choices at both workers
        store.init([str(size) for size in SIZES], [np.zeros(size, "f4") for size in SIZES])
        for step in range(1000):
            size = chance.choice(SIZES)
            key, value = str(size), np.full(size, store.rank + 1, "f4")
            if chance.random() < 0.5:
                store.push(key, value)
                got = store.pull(key)
            else:
                got = store.pushpull(key, value)
            assert got[0] == got[-1] == 3
            if step in (300, 999):
                together.wait()
                if store.rank == 0:
                    gc.collect()
                    seen.append(usage())
                    memory.append(resident_bytes())
                together.wait()

    with asyncps.LocalCluster(servers=2, workers=2, transport="tcp") as cluster:
        cluster.run(train)
    assert seen[0] == seen[1]
    assert memory[1] - memory[0] < 24 << 20


def test_more_stores_than_a_job_may_have_open_come_and_go_without_a_trace() -> None:
    with asyncps.create("dist_sync", name="stays") as base:
        base.init("w", np.zeros(10, "f4"))
        before = None
        for number in range(300):  # of 256 at once
            with asyncps.create("dist_sync", name=f"store {number}") as store:
                store.init("w", np.zeros(10, "f4"))
                assert (store.pushpull("w", np.ones(10, "f4")) == 1).all()
            if number == 5:
                before = usage()
        assert usage() == before
        assert (base.pushpull("w", np.ones(10, "f4")) == 1).all()


def test_embedded_clusters_come_and_go_without_a_trace() -> None:
    before: tuple[int, int, int] | None = None
    for number in range(30):
        with asyncps.create("dist_sync") as store:
            store.init("w", np.zeros(10, "f4"))
            assert (store.pushpull("w", np.ones(10, "f4")) == 1).all()
        if number == 3:
            gc.collect()
            before = usage()
    gc.collect()
    assert usage() == before
