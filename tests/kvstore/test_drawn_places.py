"""randomk draws its places from the round of a key: all workers of a round draw the same ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from asyncps.initializer import Zero
from asyncps.kvstore import KVStore
from asyncps.tensor.rowsparse import RowSparse
from tests.support.cluster import on_cluster

SPEC = {"type": "randomk", "ratio": 0.1, "small_bytes": 0, "nonfinite": "skip"}
CHUNKS = {"chunk_bytes": 65536}
SIZES = pytest.mark.parametrize("size", [500, 20_000, 50_000], ids=["row", "chunk", "chunks"])
WAYS = pytest.mark.parametrize("copy", [True, False], ids=["copied", "lent"])


def ready(store: KVStore, size: int, keys: Any = "w") -> None:
    names = keys if isinstance(keys, list) else [keys]
    store.init(names, [np.zeros(size, "f4")] * len(names))
    store.set_gradient_compression(SPEC)


def agree(store: KVStore, size: int, keys: Any = "w") -> None:
    """A sum of what all have sent has a tenth of the places, if all have drawn the same."""
    names = keys if isinstance(keys, list) else [keys]
    for _ in range(2):
        for value in store.pushpull(names, [np.ones(size, "f4")] * len(names),
                                    out=[np.zeros(size, "f4") for _ in names]):
            assert np.count_nonzero(value) == size // 10


def bad(size: int) -> Any:
    return np.full(size, np.nan, "f4")


def call_of(store: KVStore, value: Any, copy: bool, key: Any = "w") -> Any:
    """Encode a push as another thread would; it has not begun."""
    return store._core.push(store._core.plan((key,)), key, value, 0, copy)


@SIZES
@WAYS
def test_a_worker_that_skips_a_round_draws_with_the_others(size: int, copy: bool) -> None:
    def work(store: KVStore) -> None:
        ready(store, size)
        agree(store, size)
        mine = bad(size) if store.rank == 0 else np.ones(size, "f4")
        store.push("w", mine, copy=copy).wait(10)
        agree(store, size)

    on_cluster(work, settings=CHUNKS)


@SIZES
@WAYS
@pytest.mark.parametrize("finite", [True, False])
def test_a_worker_whose_push_is_refused_draws_with_the_others(
    size: int, copy: bool, finite: bool
) -> None:
    def work(store: KVStore) -> None:
        ready(store, size)
        agree(store, size)
        if store.rank == 0:
            call = call_of(store, np.ones(size, "f4") if finite else bad(size), copy)
            store._let_go(call)
        agree(store, size)

    on_cluster(work, settings=CHUNKS)


def test_a_refused_first_push_by_another_codec_than_before_counts_for_nothing() -> None:
    def work(store: KVStore) -> None:
        ready(store, 500)
        store.set_gradient_compression({"type": "dgc", "small_bytes": 0, "momentum": 0.0})
        store.push("w", np.ones(500, "f4"))
        store.set_gradient_compression(SPEC)
        if store.rank == 0:
            store._let_go(call_of(store, np.ones(500, "f4"), copy=False))
        agree(store, 500)

    on_cluster(work)


def test_pushes_that_overlap_draw_by_the_rounds_that_they_will_have() -> None:
    def work(store: KVStore) -> None:
        ready(store, 500)
        if store.rank == 0:
            for _ in range(3):
                store.push("w", np.ones(500, "f4"))
        else:
            calls = [call_of(store, value, True) for value in
                     (np.ones(500, "f4"), bad(500), np.ones(500, "f4"))]
            for call in calls:
                store._core.begin(call, store._runtime.call)
        agree(store, 500)

    on_cluster(work)


@SIZES
def test_who_has_joined_draws_with_those_who_went_on(size: int) -> None:
    def work(store: KVStore) -> None:
        ready(store, size)
        for _ in range(2):
            agree(store, size)
            if store.rank:
                for _ in range(3):
                    store.pushpull("w", np.ones(size, "f4"), out=np.zeros(size, "f4"))
            store.join()
        agree(store, size)

    on_cluster(work, settings=CHUNKS)


def test_rows_of_a_slab_draw_by_their_own_rounds() -> None:
    """One worker pushes keys of unequal clocks together, the other one by one."""
    def work(store: KVStore) -> None:
        keys, size = ["a", "b"], 500
        ready(store, size, keys)
        agree(store, size, "a")
        for _ in range(2):
            ones = [np.ones(size, "f4")] * 2
            if store.rank == 0:
                store.push(keys, ones)
            else:
                for key in reversed(keys):
                    store.push(key, ones[0])
            for value in store.pull(keys):
                assert np.count_nonzero(value) == size // 10
        agree(store, size, keys)

    on_cluster(work, servers=1)


def test_a_run_that_is_loaded_draws_by_rounds_too(tmp_path: Path) -> None:
    """Two keys with other numbers than their new rounds', pushed together and apart."""
    def run(store: KVStore) -> list[Any]:
        found = []
        for turn in range(3):
            grads = [np.full(500, 1 + turn, "f4")] * 2
            found += store.pushpull(["a", "b"], grads, out=[np.zeros(500, "f4") for _ in "ab"])
        return found

    def save(store: KVStore) -> list[Any]:
        ready(store, 500, ["a", "b"])
        agree(store, 500, "a")
        store.push("b", np.ones(500, "f4"))
        store.save(tmp_path / "c")
        return run(store)

    def load(store: KVStore) -> list[Any]:
        ready(store, 500, ["a", "b"])
        agree(store, 500, "b")
        store.load(tmp_path / "c")
        found = run(store)
        if store.rank:
            store.push(["a", "b"], [np.ones(500, "f4")] * 2)
        store.join()
        for key in "ab" if store.rank else "ba":
            store.push(key, np.ones(500, "f4"))
        for value in store.pull(["a", "b"]):
            assert np.count_nonzero(value) == 50
        agree(store, 500, ["a", "b"])
        return found

    expected = on_cluster(save, servers=1, order="rank")[0]
    for found in on_cluster(load, servers=1, order="rank"):
        for got, value in zip(found, expected, strict=True):
            assert np.array_equal(got, value)


@pytest.mark.parametrize("what", ["skipped", "empty", "refused", "joined", "small"])
def test_rows_of_a_table_draw_by_its_rounds(what: str) -> None:
    shape, ids = (100, 20), list(range(50))

    def work(store: KVStore) -> None:
        store.init("t", Zero(), shape=shape)
        store.set_gradient_compression({**SPEC, "small_bytes": 1000})

        def push(rows: list[int], value: float = 1.0) -> None:
            values = np.full((len(rows), 20), value, "f4")
            store.push("t", RowSparse(rows, values, shape=shape))

        push(ids)
        if what == "joined":
            if store.rank:
                push(ids)
            store.join()
        elif what == "refused":
            if store.rank == 0:
                rows = RowSparse(ids, np.ones((50, 20), "f4"), shape=shape)
                store._let_go(call_of(store, rows, True, "t"))
        elif store.rank:
            push(ids)
        elif what == "skipped":
            push(ids, np.nan)
        else:
            push([3] if what == "small" else [])
        for _ in range(2):
            push(ids)
            found = store.row_sparse_pull("t", ids).values
            assert np.count_nonzero(found) == 100

    on_cluster(work, servers=2)
