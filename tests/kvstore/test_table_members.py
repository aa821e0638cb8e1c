"""Row-sparse keys when workers join, or are lost and the others go on."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

from asyncps import RowSparse
from asyncps.initializer import One, Zero
from asyncps.kvstore import KVStore
from tests.support.cluster import on_cluster

SHAPE = (20, 2)
kinds = pytest.mark.parametrize("kind", ["dist_sync", "dist_async", "dist_ssp"])


class Enough(Exception):
    """What the lost worker ends by."""


def rows(ids: list[int], value: float) -> RowSparse:
    return RowSparse(ids, np.full((len(ids), 2), value, "f4"), SHAPE)


def column(store: KVStore, ids: Any, key: str = "t") -> Any:
    return store.row_sparse_pull(key, ids).values[:, 0].tolist()


@kinds
def test_rounds_of_rows_do_not_wait_for_who_has_joined(kind: str) -> None:
    batches = [3, 8]

    def work(store: KVStore) -> None:
        store.init("t", One(), shape=SHAPE)
        store.set_optimizer("test", rescale_grad=1)
        for epoch in (1, 2):
            for _ in range(batches[store.rank]):
                store.push("t", rows([store.rank, 15], 1))
                column(store, [store.rank])
            assert store.join() in (0, 1)
            # What all have is what everybody has pushed.
            assert column(store, [0, 1, 2, 15]) == [1 + 3 * epoch, 1 + 8 * epoch, 1, 1 + 11 * epoch]
            store.barrier()
        store.push("t", rows([7], 1))
        store.barrier()
        if kind == "dist_sync":
            assert column(store, [7]) == [3]
            # 8 rounds an epoch, of which one has pushed 3; and the last.
            tracks = [unit.track for unit in store._core.client.units.values()]
            assert [track.furthest for track in tracks] == [17, 17]

    options: dict[str, Any] = {"staleness": 2} if kind == "dist_ssp" else {}
    on_cluster(work, transport="tcp", type=kind, **options)


def test_table_becomes_the_sum_of_those_still_in() -> None:
    """Without an optimizer; and a table that one learns of after the join of the other."""
    def work(store: KVStore) -> None:
        store.init("t", Zero(), shape=SHAPE)
        if store.rank == 0:
            store.init("late", Zero(), shape=SHAPE)
        store.barrier()
        for turn in range(1, [2, 5][store.rank] + 1):
            store.push("t", rows([store.rank], turn))
        store.join()
        assert column(store, range(3)) == [0, 5, 0]
        for turn in range(2):
            for key in ("t", "late"):
                store.push(key, rows([store.rank, 3], turn + 1))
                assert column(store, range(4), key) == [turn + 1, turn + 1, 0, 2 * turn + 2]

    on_cluster(work, transport="tcp")


def test_key_that_is_learnt_after_a_join_stands_at_the_servers_clock() -> None:
    def work(store: KVStore) -> None:
        store.init("known", np.zeros(5, "f4"))
        if store.rank == 0:
            store.init("new", Zero(), shape=SHAPE)
        store.barrier()
        if store.rank == 1:
            store.join()
        else:
            for turn in range(1, 4):
                store.push("new", rows([3], turn))
                assert column(store, [3], "new") == [turn]
            store.join()
        for turn in range(3):
            store.push("new", rows([store.rank, 3], turn + 1))
            assert column(store, [0, 1, 3], "new") == [turn + 1, turn + 1, 2 * turn + 2]

    on_cluster(work, transport="tcp")


@kinds
@pytest.mark.parametrize("order", ["arrival", "rank"])
def test_others_go_on_with_rows_without_a_worker_that_failed(kind: str, order: str) -> None:
    seen = {}
    pushed = threading.Barrier(3)

    def work(store: KVStore) -> None:
        store.init("t", One(), shape=SHAPE)
        store.set_optimizer("test", rescale_grad=1)
        for step in range(1, 7):
            if step == 4:
                store.barrier()
                assert column(store, [0, 1, 2, 15]) == [4, 4, 4, 10]
                pushed.wait(10)
                if store.rank == 1:
                    raise Enough
            store.push("t", rows([store.rank, 15], 1))
            column(store, [0])
        store.barrier()
        seen[store.rank] = column(store, [0, 1, 2, 15])

    options: dict[str, Any] = {"staleness": 2} if kind == "dist_ssp" else {}
    with pytest.raises(Enough):
        on_cluster(work, workers=3, transport="tcp", type=kind, order=order,
                   settings={"on_worker_lost": "continue", "reconnect_s": 0.2}, **options)
    assert seen == {0: [7, 4, 7, 16], 2: [7, 4, 7, 16]}
