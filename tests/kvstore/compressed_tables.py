"""Compressed pushes of row-sparse keys, as functions of a store, against models by row in NumPy."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from asyncps import RowSparse
from asyncps.initializer import Constant, Zero
from asyncps.kvstore import KVStore
from tests.kvstore.compressed import model_2bit

SHAPE = (50, 3)
T = 0.5


def pushed(rank: int, turn: int, shape: tuple[int, ...] = SHAPE, dtype: Any = "f4") -> RowSparse:
    """What a rank pushes: no rows, a few, rows of one server only, or all."""
    chance = np.random.default_rng([rank, turn])
    what = chance.integers(5)
    most = shape[0] if what < 4 else 5
    many = (0, shape[0], 7, 12, 4)[what]
    ids = np.sort(chance.choice(most, many, replace=False)).astype(np.int64)
    values = chance.normal(size=(many, *shape[1:])).astype(dtype)
    return RowSparse(ids, values, shape)


class Model:
    """The residuals of all workers, by row, and the table."""

    def __init__(self, workers: int, first: float = 0.0) -> None:
        self.kept = [np.zeros(SHAPE, "f4") for _ in range(workers)]
        self.table = np.full(SHAPE, first, "f4")
        self.momentum = np.zeros(SHAPE, "f4")

    def sent(self, rank: int, rows: RowSparse) -> Any:
        """What 2bit makes of it."""
        left = self.kept[rank][rows.rows]
        found = model_2bit(left, rows.values, T)
        self.kept[rank][rows.rows] = left
        return found

    def round(self, given: list[RowSparse]) -> tuple[Any, Any]:
        """The rows of a round, and their sums."""
        total, named = np.zeros(SHAPE, "f4"), np.zeros(SHAPE[0], bool)
        for rank, rows in enumerate(given):
            total[rows.rows] += self.sent(rank, rows)
            named[rows.rows] = True
        return np.flatnonzero(named), total


def kept_of(store: KVStore, key: str, shape: tuple[int, ...] = SHAPE) -> Any:
    """What a worker has not sent of a table."""
    coder: Any = store._core.client.compression.coders[key]
    return coder.rests.gather(np.arange(shape[0], dtype=np.int64)).reshape(shape)


def all_rows(store: KVStore, key: str = "t", shape: tuple[int, ...] = SHAPE) -> Any:
    return store.row_sparse_pull(key, range(shape[0])).values


def rounds_of_2bit(store: KVStore) -> None:
    """Every round's table, and what is kept, are those of a model by row."""
    workers = range(store.num_workers)
    store.init("t", Constant(2), shape=SHAPE)
    store.set_gradient_compression({"type": "2bit", "threshold": T}, keys="t*")
    store.set_optimizer("test", rescale_grad=2)
    model = Model(store.num_workers, 2.0)
    for turn in range(12):
        mine = pushed(store.rank, turn)
        ids, total = model.round([pushed(rank, turn) for rank in workers])
        model.table[ids] += 2 * total[ids]
        if turn % 2:
            store.push("t", mine)
        else:
            found = store.pushpull("t", mine)
            assert np.array_equal(found.rows, mine.rows)
            assert np.array_equal(found.values, model.table[mine.rows])
        assert np.array_equal(all_rows(store), model.table), turn
        assert np.array_equal(kept_of(store, "t"), model.kept[store.rank])
    report = store.compression_report()["t"]
    assert report["codec"] == "2bit"
    norm = np.linalg.norm(model.kept[store.rank].astype("f8"))
    assert math.isclose(report["error_norm"], norm, rel_tol=1e-6)
    assert report["bytes_before"] == 4 * SHAPE[1] * sum(
        len(pushed(store.rank, turn)) for turn in range(12))
    assert 0 < report["bytes_sent"] < report["bytes_before"] / 8
    assert report["encode_s"] > 0


def lazy_momentum(store: KVStore) -> None:
    """sgd touches the rows that somebody has pushed, even if nothing of them was sent."""
    store.init("t", Constant(1), shape=SHAPE)
    store.set_gradient_compression({"type": "2bit", "threshold": T})
    store.set_optimizer("sgd", learning_rate=0.1, momentum=0.9, wd=0.01)
    model = Model(store.num_workers, 1.0)
    for turn in range(8):
        ids, total = model.round([pushed(rank, turn) for rank in range(store.num_workers)])
        w, m = model.table[ids], model.momentum[ids]
        m = 0.9 * m - 0.1 * (total[ids] + 0.01 * w)
        model.table[ids], model.momentum[ids] = w + m, m
        store.push("t", pushed(store.rank, turn))
        assert np.allclose(all_rows(store), model.table, atol=1e-5), turn


def without_an_optimizer(store: KVStore) -> None:
    """The table becomes the sum of what was sent; rows that nobody pushed are zero."""
    store.init("t", Constant(7), shape=SHAPE)
    store.set_gradient_compression({"type": "2bit", "threshold": T})
    model = Model(store.num_workers)
    for turn in range(6):
        _, total = model.round([pushed(rank, turn) for rank in range(store.num_workers)])
        store.push("t", pushed(store.rank, turn))
        assert np.array_equal(all_rows(store), total), turn


def topk_of_a_push(store: KVStore) -> None:
    """The largest of all values of one push, on however many servers these are."""
    store.init("t", Zero(), shape=SHAPE)
    store.set_gradient_compression({"type": "topk", "ratio": 0.1, "small_bytes": 0})
    table = np.zeros(SHAPE, "f4")
    store.set_optimizer("test")
    kept = [np.zeros(SHAPE, "f4") for _ in range(store.num_workers)]
    for turn in range(8):
        for rank in range(store.num_workers):
            rows = pushed(rank, turn)
            if not len(rows):
                continue
            x = (kept[rank][rows.rows] + rows.values).reshape(-1)
            many = min(x.size, max(1, math.ceil(0.1 * x.size - 1e-9)))
            chosen = np.lexsort((np.arange(x.size), -np.abs(x)))[:many]
            sent = np.zeros_like(x)
            sent[chosen] = x[chosen]
            table[rows.rows] += sent.reshape(-1, SHAPE[1])
            kept[rank][rows.rows] = (x - sent).reshape(-1, SHAPE[1])
        store.push("t", pushed(store.rank, turn))
        assert np.allclose(all_rows(store), table, atol=1e-5), turn
        assert np.array_equal(kept_of(store, "t"), kept[store.rank])


def onebit_of_a_push(store: KVStore) -> None:
    """One scale for all values of a push."""
    store.init("t", Zero(), shape=SHAPE)
    store.set_gradient_compression({"type": "onebit", "small_bytes": 0})
    for turn in range(4):
        total = np.zeros(SHAPE, "f4")
        if not turn:  # nothing is kept yet
            for rank in range(store.num_workers):
                rows = pushed(rank, 4)
                scale = np.abs(rows.values).mean(dtype="f8") if len(rows) else 0
                total[rows.rows] += np.where(rows.values > 0, scale, -scale)
        store.push("t", pushed(store.rank, 4))
        if not turn:
            assert np.allclose(all_rows(store), total, atol=1e-6)


def few_rows_go_as_they_are(store: KVStore) -> None:
    """A small push brings along what a large one has not sent of its rows; the others wait."""
    shape = (2000, 10)
    store.init("t", Zero(), shape=shape)
    store.set_gradient_compression({"type": "topk", "ratio": 0.001})
    store.set_optimizer("test")
    large = np.random.default_rng(1).normal(size=shape).astype("f4")
    store.push("t", RowSparse(range(shape[0]), large, shape))
    kept = kept_of(store, "t", shape)
    assert np.count_nonzero(kept) == kept.size - 20
    n = store.num_workers
    some = RowSparse([0, 3, 1999], np.ones((3, 10), "f4"), shape)
    store.push("t", some)
    told = n * (large[some.rows] + 1)
    assert np.allclose(all_rows(store, "t", shape)[some.rows], told, atol=1e-5)
    left = kept_of(store, "t", shape)
    assert not left[some.rows].any()
    kept[some.rows] = 0
    assert np.array_equal(left, kept)
    report = store.compression_report()["t"]
    assert report["bytes_before"] == 80_000 + 120
    assert report["bytes_sent"] == 160 + 120


def beyond_the_window(store: KVStore) -> None:
    """Encoded pushes step aside and go in their order."""
    store.init("t", Zero(), shape=SHAPE)
    store.init("skipped", Zero(), shape=SHAPE)
    store.set_gradient_compression({"type": "2bit", "threshold": T, "nonfinite": "skip"})
    store.set_optimizer("test")
    turns = range(6)
    bad = RowSparse([4], np.full((1, 3), np.nan, "f4"), SHAPE)
    if store.rank == 0:
        for turn in turns:
            store.push("t", pushed(0, turn))
            store.push("skipped", bad if turn == 4 else pushed(0, turn))
        store.init("there", np.zeros(1, "f4"))
    else:
        store.init("there", np.zeros(1, "f4"))  # rank 0 has pushed all of its own
        for turn in turns:
            store.push("t", pushed(store.rank, turn))
            store.push("skipped", pushed(store.rank, turn))
    for key in ("t", "skipped"):
        model = Model(store.num_workers)
        for turn in turns:
            skips = key == "skipped" and turn == 4
            given = [pushed(rank, turn) for rank in range(store.num_workers)]
            if skips:
                given[0] = RowSparse([], np.zeros((0, 3), "f4"), SHAPE)
            ids, total = model.round(given)
            if not skips:
                model.table[ids] += total[ids]
        assert np.array_equal(all_rows(store, key), model.table), key
    assert store.compression_report()["skipped"]["skipped"] == (store.rank == 0)


def mixed_calls(store: KVStore) -> None:
    """Dense keys beside tables in one call, several devices, and a dtype that is not encoded."""
    n = store.num_workers
    store.init(["d", "t", "large"], [np.zeros(4, "f4"), Zero(), np.zeros(70_000, "f4")],
               shape=SHAPE)
    store.init("ints", Zero(), shape=(5, 2), dtype="i4")
    store.set_gradient_compression({"type": "2bit", "threshold": T})
    store.set_optimizer("test")
    rows = RowSparse([1, 30], np.full((2, 3), 0.2, "f4"), SHAPE)
    ints = RowSparse([1], np.full((1, 2), 3, "i4"), (5, 2))
    large = np.full(70_000, 0.3, "f4")
    for copy in (True, False):
        handle = store.push(["d", "t", "large", "ints"],
                            [np.full(4, 0.3, "f4"), [rows, rows], large, ints], copy=copy)
        handle.wait(10)
    assert (store.pull("d") == n * T).all()
    assert (store.pull("large") == n * T).all()
    assert (store.row_sparse_pull("t", [1, 30]).values == n * T).all()
    assert (store.row_sparse_pull("ints", [1]).values == 6 * n).all()
    report = store.compression_report()
    assert {key: told["codec"] for key, told in report.items()} == {
        "d": "2bit", "large": "2bit", "t": "2bit", "ints": "dense"}
    assert report["ints"]["why"] == "its dtype is int32"
    more = RowSparse([1, 30], np.full((2, 3), 0.1, "f4"), SHAPE)
    handle = store.push("t", more)  # encoded: the caller may write at once
    more.values[:], more.rows[:] = 9, (2, 3)
    handle.wait(10)
    assert np.allclose(kept_of(store, "t")[[1, 30]], 0.8 - T + 0.1)


ALL = (rounds_of_2bit, lazy_momentum, without_an_optimizer, topk_of_a_push, onebit_of_a_push,
       few_rows_go_as_they_are, beyond_the_window, mixed_calls)


def totals(
    store: KVStore, spec: dict[str, Any], dtype: Any, turns: int = 8
) -> tuple[Any, Any, Any]:
    """All that this worker has pushed, what it has kept, and what the table has come to."""
    store.init("t", Zero(), shape=SHAPE, dtype=dtype)
    store.set_gradient_compression({**spec, "small_bytes": 0})
    in_step = store.type == "dist_sync"
    if not in_step:
        store.set_optimizer("test")
    mine, table = np.zeros(SHAPE), np.zeros(SHAPE)
    for turn in range(turns):
        rows = pushed(store.rank, turn, dtype=dtype)
        mine[rows.rows] += rows.values.astype("f8")
        store.push("t", rows)
        if in_step:  # the table is the sum of this round
            table += all_rows(store).astype("f8")
    if not in_step:
        store.barrier()
        table = all_rows(store).astype("f8")
    store.barrier()
    return mine, kept_of(store, "t").astype("f8"), table
