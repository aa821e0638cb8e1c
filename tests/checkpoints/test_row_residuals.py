"""What row-sparse keys have not sent, row by row, in checkpoints: a run goes on with it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import load_file, save_file

import asyncps
from asyncps import RowSparse
from asyncps.errors import CheckpointError
from asyncps.initializer import Constant, Zero
from asyncps.kvstore import KVStore
from asyncps.roles.keptrows import join_ids, split_ids, summed
from tests.kvstore.compressed_tables import SHAPE, all_rows, kept_of, pushed
from tests.support.cluster import on_cluster

SPECS: dict[str, dict[str, Any]] = {
    "2bit": {"type": "2bit", "threshold": 0.7},
    "topk": {"type": "topk", "ratio": 0.1, "small_bytes": 0},
    "int8": {"type": "int8", "small_bytes": 0, "lr_scaled": True},
    "randomk": {"type": "randomk", "ratio": 0.3, "small_bytes": 0},
}
KEY = "a/t"


@given(st.sets(st.integers(0, (1 << 63) - 2) | st.integers(0, 5), max_size=50))
def test_ids_are_the_same_again(ids: set[int]) -> None:
    which = np.array(sorted(ids), np.int64)
    parts = split_ids(which)
    assert parts.dtype == np.float32
    assert np.isfinite(parts).all()
    assert np.array_equal(join_ids(parts), which)


@pytest.mark.parametrize("bad", [-1, 0.5, 1 << 21, 1e30])
def test_numbers_that_are_no_ids_are_minus_one(bad: float) -> None:
    parts = split_ids(np.array([5, 7], np.int64))
    parts[4] = bad
    assert join_ids(parts).tolist() == [5, -1]


def test_what_two_ranks_have_of_a_row_is_added() -> None:
    most = np.float32(np.finfo("f4").max)
    ids, rests = summed(np.array([1, 5, 1, 3, 5], np.int64),
                        np.array([1, most, 2, 3, most], "f4"), 1)
    assert ids.tolist() == [1, 3, 5]
    assert rests.tolist() == [3, 3, most]


def ready(store: KVStore, spec: Any) -> None:
    store.set_optimizer("sgd", learning_rate=0.1, momentum=0.9)
    store.set_gradient_compression(spec)
    store.init([KEY, "w"], [Constant(1), np.zeros(100, "f4")], shape=SHAPE)


def train(store: KVStore, turns: range) -> Any:
    for turn in turns:
        dense = np.random.default_rng([turn, store.rank]).normal(size=100).astype("f4")
        store.push([KEY, "w"], [pushed(store.rank, turn), dense])
    found = all_rows(store, KEY)
    store.barrier()
    return found


@pytest.mark.parametrize(("name", "first"), [
    *((name, "load") for name in SPECS if name != "randomk"),
    *((name, "compression") for name in SPECS),
])  # fmt: skip
def test_a_run_goes_on_as_if_uninterrupted(tmp_path: Path, name: str, first: str) -> None:
    spec = SPECS[name]

    def run(store: KVStore) -> Any:
        ready(store, spec)
        train(store, range(5))
        store.save(tmp_path / "c")
        return train(store, range(5, 9))

    expected = on_cluster(run, workers=3, order="rank")[0]

    def go_on(store: KVStore) -> Any:
        if first == "load":
            store.load(tmp_path / "c")
            store.set_gradient_compression(spec)
        else:
            ready(store, spec)
            train(store, range(100, 103))  # what was there before is gone
            store.load(tmp_path / "c")
        return train(store, range(5, 9))

    for found in on_cluster(go_on, workers=3, order="rank"):
        assert np.array_equal(found, expected)


def save(store: KVStore, path: Path) -> Any:
    store.init([KEY, "w"], [Zero(), np.zeros(5, "f4")], shape=SHAPE)
    store.set_gradient_compression({"type": "2bit"})
    for turn in (0, 2, 3):
        store.push(KEY, pushed(store.rank, turn))
    store.save(path)
    return kept_of(store, KEY)


def test_files_say_what_each_rank_had_kept_of_which_rows(tmp_path: Path) -> None:
    kept = on_cluster(lambda store: save(store, tmp_path / "c"))
    file = load_file(tmp_path / "c" / "residuals.safetensors")
    assert set(file) == {f"{KEY}/{rank}{end}" for rank in (0, 1) for end in ("", ".extra")}
    for rank in (0, 1):
        rows = np.flatnonzero(kept[rank].any(axis=1))
        assert rows.size
        assert np.array_equal(join_ids(file[f"{KEY}/{rank}.extra"]), rows)
        assert np.array_equal(file[f"{KEY}/{rank}"].reshape(-1, 3), kept[rank][rows])


@pytest.mark.parametrize("workers", [1, 2, 3, 5])
def test_sum_is_kept_on_another_number_of_workers(tmp_path: Path, workers: int) -> None:
    def load(store: KVStore) -> Any:
        store.load(tmp_path / "c")
        store.save(tmp_path / "d")
        coders: Any = store._core.client.compression.coders
        return kept_of(store, KEY) if coders.get(KEY) else np.zeros(SHAPE, "f4")

    saved = on_cluster(lambda store: save(store, tmp_path / "c"), workers=3)
    loaded = on_cluster(load, workers=workers, servers=3)
    names = [load_file(tmp_path / end / "residuals.safetensors").keys() for end in "cd"]
    assert len(names[1]) == 2 * min(workers, 3)
    assert workers < 3 or names[0] == names[1]
    assert np.allclose(sum(each.astype("f8") for each in loaded),
                       sum(each.astype("f8") for each in saved), atol=1e-6)
    if workers >= 3:
        assert all(np.array_equal(a, b) for a, b in zip(loaded, saved, strict=False))


def test_a_local_store_loads_the_rows_of_it(tmp_path: Path) -> None:
    on_cluster(lambda store: save(store, tmp_path / "c"))
    with asyncps.create("local") as store:
        store.load(tmp_path / "c")
        assert store.row_sparse_pull(KEY, [1]).values.shape == (1, 3)


@pytest.mark.parametrize("harm", [
    "nan", "half a row", "no ids", "no rows", "fewer ids", "order", "range", "half", "width",
])  # fmt: skip
def test_what_cannot_be_is_refused_and_nothing_changes(tmp_path: Path, harm: str) -> None:
    path = tmp_path / "c"
    on_cluster(lambda store: save(store, path))
    file = path / "residuals.safetensors"
    arrays = load_file(file)
    rows, ids = arrays[f"{KEY}/1"], arrays[f"{KEY}/1.extra"]
    if harm == "nan":
        rows[3] = np.nan
    elif harm == "half a row":
        arrays[f"{KEY}/1"] = rows[:-1].copy()
    elif harm == "no ids":
        del arrays[f"{KEY}/1.extra"]
    elif harm == "no rows":
        del arrays[f"{KEY}/1"]
    elif harm == "fewer ids":
        arrays[f"{KEY}/1.extra"] = ids[:-3].copy()
    elif harm == "order":
        ids[0:3] = ids[3:6]
    elif harm == "range":
        ids[-3] = 50
    elif harm == "half":
        ids[4] = 0.5
    save_file(arrays, file)

    def load(store: KVStore) -> None:
        shape = (50, 4) if harm == "width" else SHAPE
        store.init(KEY, Constant(1), shape=shape)
        store.set_gradient_compression({"type": "2bit"})
        store.push(KEY, RowSparse([1], np.full((1, shape[1]), 0.3, "f4"), shape))
        store.barrier()
        with pytest.raises(asyncps.errors.AsyncPSError) as raised:
            store.load(path)
        assert harm == "width" or isinstance(raised.value, CheckpointError)
        assert np.allclose(kept_of(store, KEY, shape)[1], 0.3)

    on_cluster(load)
