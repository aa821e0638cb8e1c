"""K20 for row-sparse keys: from some servers onto others, and on as if uninterrupted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from asyncps import RowSparse
from asyncps.initializer import Normal
from asyncps.kvstore import KVStore
from tests.support.cluster import on_cluster

Array = np.ndarray[Any, Any]

SHAPES: dict[int | str, tuple[int, ...]] = {"t": (301, 2, 3), 7: (50, 4), "two": (2, 5),
                                            "none": (0, 3)}
CASES: dict[str, tuple[str, dict[str, Any], str, dict[str, Any]]] = {
    "momentum": ("sgd", {"learning_rate": 0.1, "momentum": 0.9, "wd": 1e-3}, "f4", {}),
    "momentum of all": ("sgd", {"learning_rate": 0.1, "momentum": 0.9, "wd": 1e-3,
                                "lazy_update": False}, "f4", {}),
    "adam": ("adam", {"learning_rate": 0.01}, "f4", {}),
    "adam of all": ("adam", {"learning_rate": 0.01, "lazy_update": False}, "f4", {}),
    "adam f64": ("adam", {"learning_rate": 0.01}, "f8", {}),
    "f16 master": ("adam", {"learning_rate": 0.01}, "f2", {"multi_precision": True}),
    "f16": ("sgd", {"learning_rate": 0.01, "momentum": 0.5}, "f2", {}),
    "no momentum": ("sgd", {"learning_rate": 0.1}, "f4", {"reduce": "mean"}),
}


def begin(store: KVStore, dtype: str = "f4") -> None:
    for key, shape in SHAPES.items():
        store.init(key, Normal(0.5, seed=3), shape=shape, dtype=dtype)
    store.init("dense", np.ones((70, 3), dtype))


def train(store: KVStore, turns: range, dtype: str = "f4") -> None:
    """Push a few rows of each table, every third turn not of all."""
    for turn in turns:
        for place, (key, shape) in enumerate(SHAPES.items()):
            if turn % 3 == 0 and key == 7:
                continue
            rng = np.random.default_rng([store.rank, turn, place])
            ids = np.sort(rng.choice(shape[0], min(shape[0], 6), replace=False))
            values = rng.standard_normal((ids.size, *shape[1:])).astype(dtype)
            store.push(key, RowSparse(ids, values, shape))
        store.pushpull("dense", np.full((70, 3), turn + store.rank, dtype))


def everything(store: KVStore) -> list[Array]:
    found = [store.row_sparse_pull(key, range(shape[0])).values for key, shape in SHAPES.items()]
    return [*found, np.asarray(store.pull("dense"))]


def same(found: list[Array], expected: list[Array]) -> None:
    assert [(each.dtype, each.shape, each.tobytes()) for each in found] == [
        (each.dtype, each.shape, each.tobytes()) for each in expected]


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("inited", [False, True], ids=["made by load", "made before"])
def test_trajectory_of_rows_goes_on_as_if_uninterrupted(
    tmp_path: Path, case: str, inited: bool
) -> None:
    optimizer, hyper, dtype, options = CASES[case]

    def save(store: KVStore) -> None:
        store.set_optimizer(optimizer, **hyper)
        begin(store, dtype)
        train(store, range(5), dtype)
        store.save(tmp_path / "c")

    def whole(store: KVStore) -> list[Array]:
        store.set_optimizer(optimizer, **hyper)
        begin(store, dtype)
        train(store, range(9), dtype)
        return everything(store)

    def go_on(store: KVStore) -> list[Array]:
        if inited:
            store.set_optimizer(optimizer, **hyper)
            begin(store, dtype)
            train(store, range(100, 103), dtype)  # what is there before is gone
            everything(store)
        store.load(tmp_path / "c")
        train(store, range(5, 9), dtype)
        return everything(store)

    expected = on_cluster(whole, workers=2, servers=2, order="rank", **options)[0]
    on_cluster(save, workers=2, servers=2, order="rank", **options)
    for found in on_cluster(go_on, workers=2, servers=3, order="rank", **options):
        same(found, expected)
