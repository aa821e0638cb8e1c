"""Row-sparse keys as functions of a store: ACCEPTANCE K2, K3, and what a round of rows means."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

import asyncps
from asyncps import RowSparse
from asyncps.initializer import Constant, Normal, One, Zero
from asyncps.kvstore import KVStore

RATE = 2
BF16 = np.dtype(ml_dtypes.bfloat16)
DTYPES: dict[str, Any] = {
    "f4": np.dtype("f4"), "f8": np.dtype("f8"), "f2": np.dtype("f2"), "bf2": BF16,
    "i4": np.dtype("i4"),
}


def rows(ids: Any, value: float, shape: tuple[int, ...], dtype: Any = "f4") -> RowSparse:
    """Rows of one number."""
    return RowSparse(ids, np.full((len(ids), *shape[1:]), value, dtype), shape)


def check(found: RowSparse, expected: dict[int, float], shape: tuple[int, ...]) -> None:
    """Exactly these rows, each of one number."""
    assert found.shape == shape
    assert found.rows.dtype == np.int64
    assert found.rows.tolist() == sorted(expected)
    for row, value in zip(found.rows.tolist(), found.values, strict=True):
        assert (value == np.asarray(expected[row]).astype(found.dtype)).all(), (row, value)


def k2_rows_of_odd_and_even_ranks(store: KVStore) -> None:
    """K2: push row rank%2 only; pull random ids, repeated and unsorted, none, and all."""
    n, rng = store.num_workers, np.random.default_rng(store.rank)
    for name, dtype in DTYPES.items():
        for shape in ((5, 3), (40, 2, 3), (3,)):
            key = f"{name} {shape}"
            if len(shape) == 2:
                store.init(key, rows(range(shape[0]), 1, shape, dtype))
            else:
                store.init(key, One(), shape=shape, dtype=dtype)
    store.set_optimizer("test", rescale_grad=RATE)
    for repeat in range(3):
        for name, dtype in DTYPES.items():
            for shape in ((5, 3), (40, 2, 3), (3,)):
                key = f"{name} {shape}"
                store.push(key, rows([store.rank % 2], store.rank + 1, shape, dtype))
                model = {
                    row: 1 + sum((rank + 1) * RATE * (repeat + 1)
                                 for rank in range(n) if rank % 2 == row)
                    for row in range(shape[0])
                }
                asked = rng.integers(0, shape[0], 10)
                found = store.row_sparse_pull(key, asked)
                check(found, {row: model[row] for row in set(asked.tolist())}, shape)
                dense = found.to_dense()
                for row in set(range(shape[0])) - set(asked.tolist()):
                    assert (dense[row] == 0).all()
                check(store.row_sparse_pull(key, []), {}, shape)
                check(store.row_sparse_pull(key, range(shape[0])), model, shape)


def k3_no_rows_at_all(store: KVStore) -> None:
    """K3: everybody pushes no rows; values stay, the rounds complete."""
    shape = (30, 4)
    store.init("t", One(), shape=shape)
    store.set_optimizer("test", rescale_grad=RATE)
    for _ in range(3):
        store.push("t", rows([], 0, shape))
        check(store.row_sparse_pull("t", [29, 0, 7]), {0: 1, 7: 1, 29: 1}, shape)
    store.barrier()
    assert store.statistics()["rounds"] >= 3


def table_becomes_the_sum(store: KVStore) -> None:
    """Without an optimizer the table becomes the sum of the round; other rows are zero."""
    n, shape = store.num_workers, (20, 3)
    store.init("t", Constant(7), shape=shape)
    check(store.row_sparse_pull("t", [0, 19]), {0: 7, 19: 7}, shape)
    for turn in range(3):
        mine = [store.rank, 10 + turn]
        store.push("t", rows(mine, turn + 1, shape))
        model = dict.fromkeys(range(20), 0.0)
        for rank in range(n):
            model[rank] += turn + 1
        model[10 + turn] += n * (turn + 1)
        check(store.row_sparse_pull("t", range(20)), model, shape)
    store.push("t", rows([], 0, shape))
    check(store.row_sparse_pull("t", [0, 12]), {0: 0, 12: 0}, shape)


def lists_and_devices(store: KVStore) -> None:
    """Lists of keys with lists of ids; several devices; dense keys beside row-sparse ones."""
    n, shape = store.num_workers, (9, 2)
    store.init(["a", "d", "b"], [Zero(), np.zeros(4, "f4"), Zero()], shape=shape)
    store.set_optimizer("test", rescale_grad=1)
    devices = [rows([0, 4], 1, shape), rows([4, 8], 2, shape)]
    store.push(["a", "d", "b"], [devices, np.ones(4, "f4"), rows([5], 3, shape)])
    a, b = store.row_sparse_pull(["a", "b"], [[8, 4, 0, 4], np.array([5, 0], "u1")])
    check(a, {0: n, 4: 3 * n, 8: 2 * n}, shape)
    check(b, {0: 0, 5: 3 * n}, shape)
    assert (store.pull("d") == n).all()
    found = store.pushpull(["a", "b"], [rows([8], 1, shape), devices])
    check(found[0], {8: 3 * n}, shape)
    check(found[1], {0: n, 4: 3 * n, 8: 2 * n}, shape)
    out = np.zeros((2, 2), "f4")
    handle = store.row_sparse_pull("a", [8, 0], out=out, async_op=True)
    found = handle.wait(10)
    assert found.values is out
    check(found, {0: n, 8: 3 * n}, shape)


def assigned_rows(store: KVStore) -> None:
    """assign writes rows, and the others stay."""
    shape = (50, 2)
    store.init("t", One(), shape=shape)
    store.barrier()
    if store.rank == 0:
        store.assign("t", rows([3, 40], 5, shape))
    store.barrier()
    check(store.row_sparse_pull("t", [3, 4, 40]), {3: 5, 4: 1, 40: 5}, shape)
    store.barrier()
    store.init("t", One(), shape=shape)  # exists: nothing changes
    check(store.row_sparse_pull("t", [3, 4]), {3: 5, 4: 1}, shape)


def twice_before_the_others(store: KVStore) -> None:
    """K16 for rows, up to the clock window and beyond it."""
    n, last, shape = store.num_workers, store.num_workers - 1, (12, 2)
    store.init("t", Zero(), shape=shape)
    store.set_optimizer("test", rescale_grad=1)
    turns = [rows([turn, 6 + turn], turn + 1, shape) for turn in range(4)]
    model = dict.fromkeys(range(12), 0.0)
    for turn in range(4):
        model[turn] = model[6 + turn] = n * (turn + 1)
    for turn in turns[:2] if store.rank == last else []:
        store.push("t", turn).wait(10)
    store.barrier()
    for turn in turns[2:] if store.rank == last else turns:
        store.push("t", turn)
    check(store.row_sparse_pull("t", range(12)), model, shape)
    store.barrier()


def whole_table(store: KVStore) -> None:
    """A table that is pushed and pulled whole travels as neighbours; values unlike each other."""
    n, shape = store.num_workers, (70_001, 3)
    whole = np.arange(shape[0] * 3, dtype="f4").reshape(shape)
    store.init("t", Zero(), shape=shape)
    store.push("t", RowSparse(np.arange(shape[0]), whole * (store.rank + 1), shape))
    found = store.row_sparse_pull("t", np.arange(shape[0]))
    assert np.array_equal(found.values, whole * (n * (n + 1) / 2))
    step = RowSparse(np.arange(100, 60_000), whole[100:60_000].copy(), shape)
    store.set_optimizer("sgd", learning_rate=0.5)
    store.push("t", step, copy=False).wait(20)
    whole = whole * np.float32(n * (n + 1) / 2)
    whole[100:60_000] -= np.float32(0.5) * (n * step.values)
    some = np.random.default_rng(3).permutation(shape[0])[:50_000]
    found = store.row_sparse_pull("t", some)
    assert np.allclose(found.values, whole[np.sort(some)], rtol=1e-6)


def same_first_rows(store: KVStore) -> None:
    """A random row is the same for everybody, however it comes about."""
    shape = (1000, 4)
    store.init("t", Normal(0.5, seed=3), shape=shape)
    ids = np.random.default_rng(store.rank).permutation(1000)[:300]
    mine = store.row_sparse_pull("t", ids)
    everything = store.row_sparse_pull("t", range(1000))
    assert np.array_equal(everything.values[np.sort(ids)], mine.values)
    assert 0.4 < everything.values.std() < 0.6
    with asyncps.create("local") as local:
        local.init("t", Normal(0.5, seed=3), shape=shape)
        assert np.array_equal(local.row_sparse_pull("t", ids).values, mine.values)


def only_one_table(store: KVStore) -> None:
    """More servers than rows, one row, no rows."""
    n = store.num_workers
    store.init("one", One(), shape=(1, 2))
    store.init("none", One(), shape=(0, 2))
    store.push("one", rows([0], 1, (1, 2)))
    store.push("none", rows([], 1, (0, 2)))
    check(store.row_sparse_pull("one", [0, 0]), {0: n}, (1, 2))
    check(store.row_sparse_pull("none", []), {}, (0, 2))


ALL = (
    k2_rows_of_odd_and_even_ranks, k3_no_rows_at_all, table_becomes_the_sum, lists_and_devices,
    assigned_rows, twice_before_the_others, whole_table, only_one_table,
)
