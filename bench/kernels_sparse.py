"""The kernels of sparse rows for bench/kernels.py: rows in random order, each result checked."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

import harness
import numpy as np

from asyncps_ext import reference, sparse, sparse_fill, sparse_index

Ops = dict[str, tuple[Callable[[], object], Callable[[], None], int]]
WIDTH = 64
# The modules of rows by the suffix of their records: the compiled ones, and the NumPy twins.
BODIES = {
    "": (sparse, sparse_index, sparse_fill),
    "@numpy": (reference.sparse, reference.sparse_index, reference.sparse_fill),
}


def sparse_ops(
    n: int, sparse: ModuleType, sparse_index: ModuleType, sparse_fill: ModuleType
) -> Ops:
    """name -> (operation, check, bytes it reads and writes), for n float32 in rows of 64.

    The rows lie in a table four times as large. Ids count as 8 bytes read, slots as 8 written.
    """
    rng = np.random.default_rng(n)
    rows = n // WIDTH
    table = rng.random(4 * n, dtype=np.float32)
    slots = rng.permutation(4 * rows)[:rows]
    ascending = np.sort(slots)
    values = rng.random(n, dtype=np.float32)
    out, union = np.zeros(n, np.float32), np.zeros(2 * rows, np.int64)
    sums = np.zeros(2 * n, np.float32)
    other = np.sort(rng.permutation(4 * rows)[:rows])
    ones, one_slots = np.zeros(n, np.float32), rng.integers(0, 4 * n, n)
    far_ids = rng.integers(0, 2**40, n)
    near_ids = rng.integers(0, 4 * n, n)
    places = np.zeros(n, np.int64)
    by_hash, by_range = sparse_index.RowIndex(), sparse_index.RangeIndex(0, 4 * n)
    by_hash.insert(far_ids, places)
    by_range.insert(near_ids, places)

    def gather() -> None:
        sparse.gather_rows_at([table], WIDTH, slots, out)

    def gather_ones() -> None:
        sparse.gather_rows_at([table], 1, one_slots, ones)

    def scatter() -> None:
        sparse.scatter_set_at([table], WIDTH, slots, values)

    def scatter_add() -> None:
        sparse.scatter_add_at([table], WIDTH, slots, values)

    def merge() -> int:
        return sparse.merge_rows(ascending, values, other, values, WIDTH, union, sums)

    def check_gather() -> None:
        gather()
        gather_ones()
        rows_of = table.reshape(-1, WIDTH)
        harness.require(np.array_equal(out, rows_of[slots].reshape(-1)), "gather_rows_at")
        harness.require(np.array_equal(ones, table[one_slots]), "gather_rows_at of width 1")

    def check_scatter() -> None:
        scatter()
        check_gather()
        harness.require(np.array_equal(out, values), "scatter_set_at")
        scatter_add()
        gather()
        harness.require(np.array_equal(out, values + values), "scatter_add_at")

    def check_merge() -> None:
        want = np.zeros((4 * rows, WIDTH), np.float32)
        want[ascending] = values.reshape(-1, WIDTH)
        want[other] += values.reshape(-1, WIDTH)
        k = merge()
        harness.require(np.array_equal(union[:k], np.union1d(ascending, other)), "merged ids")
        harness.require(np.array_equal(sums[: k * WIDTH], want[union[:k]].reshape(-1)), "merge")

    def check_unique() -> None:
        for ids in (near_ids, far_ids):
            for got, want in zip(
                sparse.unique_rows(ids), np.unique(ids, return_inverse=True), strict=True
            ):
                harness.require(np.array_equal(got, want), "unique_rows")

    def check_indexes() -> None:
        for index, ids in ((by_hash, far_ids), (by_range, near_ids)):
            index.lookup(ids, places)
            harness.require(np.array_equal(index.items()[places], ids), "lookup")

    def check_fill() -> None:
        sparse_fill.fill_normal(out, slots, WIDTH, 1, 1.0)
        harness.require(n < 4096 or abs(float(out.std()) - 1) < 0.1, "fill_normal")

    ids_read = 8 * rows
    return {
        "gather_rows_64": (gather, check_gather, 8 * n + ids_read),
        "gather_rows_1": (gather_ones, check_gather, 16 * n),
        "scatter_set_64": (scatter, check_scatter, 8 * n + ids_read),
        "scatter_add_64": (scatter_add, check_scatter, 12 * n + ids_read),
        "merge_rows_64": (merge, check_merge, 16 * n + 4 * ids_read),
        "unique_near": (lambda: sparse.unique_rows(near_ids), check_unique, 24 * n),
        "unique_far": (lambda: sparse.unique_rows(far_ids), check_unique, 24 * n),
        "lookup_hash": (lambda: by_hash.lookup(far_ids, places), check_indexes, 16 * n),
        "lookup_range": (lambda: by_range.lookup(near_ids, places), check_indexes, 16 * n),
        "fill_normal": (
            lambda: sparse_fill.fill_normal(out, slots, WIDTH, 1, 1.0), check_fill, 4 * n,
        ),
    }  # fmt: skip
