"""join() and row-sparse keys: K18 with rows, and no rows of a worker that has joined."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from asyncps import RowSparse
from asyncps.errors import ClusterError
from asyncps.initializer import Zero
from asyncps.kvstore import KVStore
from tests.kvstore.scenarios import all_are, wait_joined
from tests.support.cluster import on_cluster

both_transports = pytest.mark.parametrize("transport", ["memory", "tcp"])
SHAPE = (1000, 4)


def rows(ids: list[int], number: float) -> RowSparse:
    return RowSparse(np.asarray(ids), np.full((len(ids), SHAPE[1]), number, "f4"), SHAPE)


@both_transports
def test_rows_of_those_still_in(transport: str) -> None:
    batches = [3, 6]

    def work(store: KVStore) -> None:
        store.init("t", Zero(), shape=SHAPE, dtype="f4")
        store.set_optimizer("test", rescale_grad=1.0)
        for epoch in range(1, 3):
            for _ in range(batches[store.rank]):
                store.push("t", rows([1, 500, 999], store.rank + 1))
                store.row_sparse_pull("t", [1, 500])
            store.join()
            got = store.row_sparse_pull("t", [1, 2, 500, 999])
            all_are(got.values[[0, 2, 3]], epoch * (3 + 2 * 6))
            all_are(got.values[1], 0)
            store.barrier()

    on_cluster(work, transport=transport)


@both_transports
def test_rows_of_a_worker_that_has_joined_are_refused_before_they_are_sent(transport: str) -> None:
    joined = threading.Event()

    def work(store: KVStore) -> None:
        store.init("t", Zero(), shape=SHAPE, dtype="f4")
        store.set_optimizer("test", rescale_grad=1.0)
        if store.rank == 1:
            assert joined.wait(10)
            store.join()
        else:
            thread = threading.Thread(target=store.join)
            thread.start()
            wait_joined(store)
            handle = store.push("t", rows([1], 5))
            with pytest.raises(ClusterError, match="push of a worker that has joined"):
                handle.wait(10)
            with pytest.raises(ClusterError, match="assign of a worker that has joined"):
                store.assign("t", rows([1], 5))
            all_are(store.row_sparse_pull("t", [1]).values, 0)
            joined.set()
            thread.join()
        store.push("t", rows([1], 1))
        all_are(store.row_sparse_pull("t", [1]).values, 2)

    on_cluster(work, transport=transport)
