"""A table larger than any memory: rows exist from their first use on."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from asyncps import RowSparse
from asyncps.initializer import Normal
from asyncps.kvstore import KVStore
from tests.support.cluster import on_cluster

SHAPE = (100_000_000, 64)


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def test_rows_are_made_when_they_are_used() -> None:
    def work(store: KVStore) -> None:
        store.init("t", Normal(0.01), shape=SHAPE)
        store.set_optimizer("adam", lr=0.1)
        rng = np.random.default_rng(store.rank)
        ids = np.unique(rng.integers(0, SHAPE[0], 1000))
        store.push("t", RowSparse(ids, np.ones((ids.size, 64), "f4"), SHAPE))
        found = store.row_sparse_pull("t", ids)
        assert found.rows.tolist() == ids.tolist()
        assert (found.values < -0.02).all()

    before = resident_bytes()
    on_cluster(work, workers=2, servers=2)
    # 25.6 GB if they all existed. The rows with state take 1.5 MB; the rest is a page of the index
    # for each, and what the process grows by anyway.
    assert resident_bytes() - before < 128 << 20
