"""K20: a run that is saved and loaded onto other servers goes on as if nothing had happened."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from asyncps import optim
from asyncps.kvstore import KVStore
from tests.checkpoints.runs import begin, same, saved, train, uninterrupted
from tests.support.cluster import on_cluster

CASES: dict[str, tuple[str, dict[str, Any], str, dict[str, Any]]] = {
    "momentum": ("sgd", {"learning_rate": 0.1, "momentum": 0.9, "wd": 1e-3}, "f4", {}),
    "adam": ("adam", {"learning_rate": 0.01}, "f4", {}),
    "adam f64": ("adam", {"learning_rate": 0.01}, "f8", {}),
    "f16 master": ("adam", {"learning_rate": 0.01}, "f2", {"multi_precision": True}),
    "f16": ("sgd", {"learning_rate": 0.01, "momentum": 0.5}, "f2", {}),
    "lamb": ("lamb", {"learning_rate": 0.01}, "f4", {}),
    "schedule": ("sgd", {
        "learning_rate": optim.lr.step(2, 0.5, base_lr=0.1), "momentum": 0.9,
        "lr_mult": {5: 0.1, "5": 2.0}, "wd_mult": {"two": 0.0}, "wd": 0.01,
    }, "f4", {}),
    "mean": ("sgd", {"learning_rate": 0.1}, "f4", {"reduce": "mean"}),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("inited", [False, True], ids=["made by load", "made before"])
def test_trajectory_goes_on_as_if_uninterrupted(tmp_path: Path, case: str, inited: bool) -> None:
    optimizer, hyper, dtype, options = CASES[case]
    path = tmp_path / "step-5"
    saved(path, optimizer, hyper, turns=5, dtype=dtype, **options)
    expected = uninterrupted(optimizer, hyper, turns=9, dtype=dtype, **options)

    def go_on(store: KVStore) -> list[Any]:
        if inited:
            store.set_optimizer(optimizer, **hyper)
            begin(store, dtype)
            train(store, range(100, 103), dtype)  # what is there before is gone
        store.load(path)
        assert store.optimizer == optimizer
        return train(store, range(5, 9), dtype)

    for found in on_cluster(go_on, workers=3, servers=3, order="rank", **options):
        same(found, expected)


def test_it_loads_onto_another_number_of_workers(tmp_path: Path) -> None:
    # Gradients of ones are exact in any order of adding: one worker pushes what three would.
    hyper = {"learning_rate": 0.25, "momentum": 0.5}
    path = tmp_path / "c"

    def push(store: KVStore, value: float, turns: int) -> Any:
        for _ in range(turns):
            store.pushpull("w", np.full(20_000, value, "f4"), out=np.empty(20_000, "f4"))
        return store.pull("w")

    def first(store: KVStore) -> None:
        store.set_optimizer("sgd", **hyper)
        store.init("w", np.ones(20_000, "f4"))
        push(store, 1, 3)
        store.save(path)

    def second(store: KVStore) -> Any:
        store.load(path)
        return push(store, 3, 2)

    def whole(store: KVStore) -> Any:
        store.set_optimizer("sgd", **hyper)
        store.init("w", np.ones(20_000, "f4"))
        return push(store, 1, 5)

    on_cluster(first, workers=3, servers=2)
    expected = on_cluster(whole, workers=3, servers=2)[0]
    (found,) = on_cluster(second, workers=1, servers=5)
    assert np.array_equal(found, expected)


def test_the_job_that_saves_goes_on_unchanged(tmp_path: Path) -> None:
    hyper = {"learning_rate": 0.1, "momentum": 0.9}
    expected = uninterrupted("sgd", hyper, turns=9)

    def work(store: KVStore) -> list[Any]:
        store.set_optimizer("sgd", **hyper)
        begin(store)
        for turn in range(9):
            found = train(store, range(turn, turn + 1))
            store.save(tmp_path / "newest")
            store.save_optimizer_states(str(tmp_path / "states"))
        return found

    for found in on_cluster(work, workers=3, order="rank"):
        same(found, expected)


def test_loading_back_in_the_same_job_repeats_what_came_after(tmp_path: Path) -> None:
    def work(store: KVStore) -> None:
        store.set_optimizer("adam", learning_rate=0.1)
        begin(store)
        train(store, range(3))
        store.save(tmp_path / "c")
        store.set_hyperparameters(learning_rate=0.7)
        first = train(store, range(3, 6))
        store.load(tmp_path / "c")
        store.set_hyperparameters(learning_rate=0.7)
        same(train(store, range(3, 6)), first)

    on_cluster(work, workers=2, servers=3, order="rank", transport="tcp")
