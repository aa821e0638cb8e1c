"""The end of the compression of row-sparse keys: each push decides whether something is left."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from asyncps import RowSparse
from asyncps.initializer import Zero
from asyncps.kvstore import KVStore
from tests.support.cluster import on_cluster

TWO = {"type": "2bit", "threshold": 0.5, "small_bytes": 0}
NONE = {"type": "none"}
HALVES = pytest.mark.parametrize("dtype", ["f4", "f2"])


def ready(store: KVStore, dtype: Any = "f4") -> None:
    store.init("t", Zero(), shape=(100, 3), dtype=np.dtype(dtype))
    store.set_gradient_compression(TWO)
    store.set_optimizer("test")


def rows(value: float, *which: int, dtype: Any = "f4") -> RowSparse:
    return RowSparse(which, np.full((len(which), 3), value, dtype), (100, 3))


def push(store: KVStore, value: float, *which: int, dtype: Any = "f4") -> None:
    store.push("t", rows(value, *which, dtype=dtype)).wait(10)


def row(store: KVStore, which: int) -> Any:
    return store.row_sparse_pull("t", [which]).values


def test_rows_that_come_back_from_a_push_that_did_not_begin_go_with_the_next() -> None:
    def work(store: KVStore) -> None:
        ready(store)
        core = store._core
        call = core.push(core.plan(("t",)), "t", rows(0.5, 1), 0, True)  # type: ignore[arg-type]
        store.set_gradient_compression(NONE)
        push(store, 0, 1)  # nothing is left
        store._let_go(call)
        assert store.compression_report()["t"]["error_norm"] > 0
        push(store, 0, 1)
        assert (row(store, 1) == 0.5).all()
        assert store.compression_report()["t"]["error_norm"] == 0

    on_cluster(work, workers=1)


def test_rows_that_are_loaded_go_with_the_next(tmp_path: Path) -> None:
    def work(store: KVStore) -> None:
        ready(store)
        push(store, 0.25, 1)
        store.save(tmp_path / "c")
        store.set_gradient_compression(NONE)
        for turn in (1, 2):
            push(store, 0.25, 1)
            store.set_gradient_compression(NONE)  # the plan is made anew, by what is left now
            assert (row(store, 1) == 0.25 + 0.25 * turn).all()
        told = store.compression_report()["t"]
        assert told["why"] == "no compression is set for it"
        assert told["bytes_before"] == 3 * 12
        store.load(tmp_path / "c")
        push(store, 0, 1)
        assert (row(store, 1) == 0.25).all()

    on_cluster(work, workers=1)


def test_rows_that_go_as_they_are_are_copied() -> None:
    def work(store: KVStore) -> None:
        ready(store)
        store.set_gradient_compression(NONE)
        core = store._core
        value = np.full((1, 3), 0.5, "f4")
        call = core.push(core.plan(("t",)), "t", RowSparse([1], value, (100, 3)), 0, True)  # type: ignore[arg-type]
        value[:] = 7
        core.begin(call, store._runtime.call)
        call.op.wait()
        assert (row(store, 1) == 0.5).all()

    on_cluster(work, workers=1)


@HALVES
def test_a_nan_goes_as_it_is_whether_something_is_left_or_not(dtype: str) -> None:
    def work(store: KVStore) -> None:
        ready(store, dtype)
        push(store, 0.25, 1, 2, 3, dtype=dtype)
        store.set_gradient_compression(NONE)
        push(store, np.nan, 1, dtype=dtype)
        assert np.isnan(row(store, 1)).all()
        assert store.compression_report()["t"]["error_norm"] == pytest.approx(0.25 * 6**0.5)
        push(store, 0.5, 2, 3, dtype=dtype)
        assert (row(store, 2) == 0.75).all()
        push(store, np.nan, 3, dtype=dtype)  # nothing is left any more
        assert np.isnan(row(store, 3)).all()

    on_cluster(work, workers=1)
