"""When load refuses nothing has changed, at anybody; and what it takes over."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import asyncps
from asyncps import optim
from asyncps.errors import (
    AsyncPSError,
    CheckpointError,
    DtypeMismatch,
    OptimizerError,
    ShapeMismatch,
)
from asyncps.kvstore import KVStore
from asyncps.tensor import checkpoint
from tests.checkpoints.runs import begin, same, train
from tests.support.cluster import on_cluster

CLOCKS = [["w", 3], ["v", 3]]
SGD = {"name": "sgd", "hyper": {"learning_rate": 0.5, "momentum": 0.5}}
V = np.full(300_000, 8, "f4")


def write(path: Path, **changed: Any) -> None:
    """A checkpoint that would fit, but for what is changed."""
    told: dict[str, Any] = {
        "weights": {"w": np.full(3, 9, "f4"), "v": V},
        "state": {"w": {"momentum": np.full(3, 1, "f4")}},
        "meta": {"optimizer": SGD, "clocks": CLOCKS}, **changed,
    }
    checkpoint.write(path, told["weights"], told["state"], told["meta"])


BAD: dict[str, tuple[dict[str, Any], type[AsyncPSError]]] = {
    "shape": ({"weights": {"w": np.zeros((3, 1), "f4"), "v": V}}, ShapeMismatch),
    "dtype": ({"weights": {"w": np.zeros(3, "f8"), "v": V}}, DtypeMismatch),
    "lacks a key": ({"weights": {"v": V}, "state": {}}, CheckpointError),
    "lacks a clock": ({"meta": {"optimizer": SGD, "clocks": [["v", 1]]}}, CheckpointError),
    "clock below 0": ({"meta": {"optimizer": SGD, "clocks": [["v", -1], ["w", 1]]}},
                      CheckpointError),
    "no clocks": ({"meta": {"optimizer": SGD}}, CheckpointError),
    "state of nobody": ({"state": {"x": {"momentum": np.ones(3, "f4")}}}, CheckpointError),
    "state of another size": ({"state": {"w": {"momentum": np.ones(4, "f4")}}}, CheckpointError),
    "state of another dtype": ({"state": {"w": {"momentum": np.ones(3, "f8")}}}, CheckpointError),
    "state without optimizer": ({"meta": {"optimizer": None, "clocks": CLOCKS}}, CheckpointError),
    "unknown optimizer": (
        {"meta": {"optimizer": {"name": "sgdd", "hyper": {}}, "clocks": CLOCKS}}, OptimizerError),
    "unknown word": ({"meta": {"optimizer": {"name": "sgd", "hyper": {"x": 1}}, "clocks": CLOCKS}},
                     OptimizerError),
    "needs whole keys": (
        {"meta": {"optimizer": {"name": "lamb", "hyper": {}}, "clocks": CLOCKS}, "state": {}},
        OptimizerError),
}


@pytest.mark.parametrize("case", BAD)
def test_what_does_not_fit_changes_nothing(tmp_path: Path, case: str) -> None:
    changed, kind = BAD[case]
    write(tmp_path / "bad", **changed)
    write(tmp_path / "good")

    def work(store: KVStore) -> None:
        store.set_optimizer("sgd", learning_rate=1.0, momentum=0.5)
        store.init(["w", "v"], [np.zeros(3, "f4"), np.zeros(300_000, "f4")])
        store.pushpull("w", np.ones(3, "f4"))  # w = m = -2
        with pytest.raises(kind):
            store.load(tmp_path / "bad")
        assert store.pull("w").tolist() == [-2, -2, -2]
        assert store.pushpull("w", np.ones(3, "f4")).tolist() == [-5, -5, -5]
        store.load(tmp_path / "good")
        assert store.pull("w").tolist() == [9, 9, 9]
        assert np.array_equal(store.pull("v"), V)
        # m = 0.5 * 1 - 0.5 * 2
        assert store.pushpull("w", np.ones(3, "f4")).tolist() == [8.5, 8.5, 8.5]

    on_cluster(work, workers=2)


def test_what_cannot_be_read_is_an_error_of_all(tmp_path: Path) -> None:
    write(tmp_path / "cut")
    whole = (tmp_path / "cut" / "weights.safetensors").read_bytes()
    (tmp_path / "cut" / "weights.safetensors").write_bytes(whole[:-1])

    def work(store: KVStore) -> None:
        store.init("w", np.zeros(3, "f4"))
        for name in ("cut", "not there"):
            for verb in (store.load, store.load_optimizer_states):
                with pytest.raises(CheckpointError):
                    verb(tmp_path / name)
        assert store.pushpull("w", np.ones(3, "f4")).tolist() == [2, 2, 2]

    on_cluster(work, workers=2)


@pytest.mark.parametrize("clock", [-1, 1 << 53, 1.5, "3", None, True, float("inf")])
def test_clock_that_no_store_has_written_is_refused_by_all(tmp_path: Path, clock: Any) -> None:
    checkpoint.write(tmp_path / "c", {"w": np.ones(3, "f4")}, {}, {
        "store": "dist_sync", "optimizer": None, "clocks": [["w", 0]]})
    path = tmp_path / "c" / "checkpoint.json"
    told = json.loads(path.read_bytes())
    told["meta"]["clocks"] = [["w", clock]]
    path.write_text(json.dumps(told))

    def work(store: KVStore) -> None:
        with pytest.raises(CheckpointError, match="no store has written"):
            store.load(tmp_path / "c")

    on_cluster(work, workers=2, servers=1)
    with pytest.raises(CheckpointError, match="no store has written"):
        asyncps.create("local").load(tmp_path / "c")


def test_checkpoint_without_an_optimizer_leaves_the_stores_which_starts_anew(
    tmp_path: Path,
) -> None:
    write(tmp_path / "c", state={}, meta={"optimizer": None, "clocks": CLOCKS})

    def work(store: KVStore) -> None:
        store.set_optimizer("sgd", learning_rate=1.0, momentum=0.5)
        store.init("w", np.zeros(3, "f4"))
        store.pushpull("w", np.ones(3, "f4"))
        store.load(tmp_path / "c")
        assert store.optimizer == "sgd"
        assert store.pushpull("w", np.ones(3, "f4")).tolist() == [7, 7, 7]
        assert store.pushpull("w", np.ones(3, "f4")).tolist() == [4, 4, 4]  # m = 0.5 * 2 + 2

    on_cluster(work, workers=2)


def test_states_alone_leave_the_values(tmp_path: Path) -> None:
    checkpoint.write(tmp_path / "none", {}, {}, {"optimizer": None, "clocks": []})

    def work(store: KVStore) -> None:
        store.set_optimizer("adam", learning_rate=0.1)
        begin(store)
        train(store, range(3))
        store.save(tmp_path / "all")
        store.save_optimizer_states(tmp_path / "states")
        first = train(store, range(3, 6))
        store.load(tmp_path / "all")
        store.set_optimizer("sgd")
        store.load_optimizer_states(tmp_path / "states")
        assert store.optimizer == "adam"
        same(train(store, range(3, 6)), first)
        with pytest.raises(OptimizerError):
            store.load_optimizer_states(tmp_path / "none")

    on_cluster(work, workers=2, servers=3, order="rank")


def test_hyperparameters_that_were_changed_are_saved_and_reach_all(tmp_path: Path) -> None:
    def first(store: KVStore) -> None:
        store.set_optimizer("sgd", learning_rate=1.0)
        store.init("w", np.zeros(3, "f4"))
        store.set_hyperparameters(learning_rate=0.25)
        store.pushpull("w", np.ones(3, "f4"))
        store.save(tmp_path / "c")

    def second(store: KVStore) -> None:
        store.load(tmp_path / "c")
        assert store._core.client.hyper["learning_rate"] == 0.25
        assert store.pushpull("w", np.ones(3, "f4")).tolist() == [-1, -1, -1]
        store.set_hyperparameters(learning_rate=1.0)
        assert store.pushpull("w", np.ones(3, "f4")).tolist() == [-3, -3, -3]

    on_cluster(first, workers=2)
    on_cluster(second, workers=2)


def test_pull_that_is_under_way_keeps_its_value(tmp_path: Path) -> None:
    write(tmp_path / "c", state={}, meta={"optimizer": None, "clocks": CLOCKS})

    def work(store: KVStore) -> None:
        store.init(["w", "v"], [np.zeros(3, "f4"), np.zeros(300_000, "f4")])
        handles = [store.pull("v", async_op=True) for _ in range(4)]
        store.load(tmp_path / "c")
        for handle in handles:
            got = handle.wait(5)
            assert np.isin(got, (0, 8)).all()  # each chunk was answered before or after
        assert (store.pull("v") == 8).all()

    on_cluster(work, workers=2, transport="tcp")


@pytest.mark.usefixtures("registered")
def test_optimizer_of_the_users_own_has_state_of_its_own_dtypes(tmp_path: Path) -> None:
    class Counting(optim.Optimizer):
        def init(self, spec: optim.Spec) -> dict[str, Any]:
            return {"count": np.full(spec.shape, 5, "u2"), "sum": np.ones(spec.shape, "f8")}

        def update(self, weight: Any, grad: Any, state: Any, hyper: Any) -> None:
            state["count"] += 1
            state["sum"] += grad
            weight[:] = state["count"] + state["sum"]

    def first(store: KVStore) -> None:
        store.set_optimizer("counting")
        store.init(["w", "v", "x"], [np.zeros(3, "f4"), np.zeros(300_000, "f4"), np.zeros(2, "f4")])
        store.pushpull(["w", "v"], [np.ones(3, "f4"), np.ones(300_000, "f4")])
        store.save(tmp_path / "c")

    def second(store: KVStore) -> None:
        store.load(tmp_path / "c")
        for key, size in (("w", 3), ("v", 300_000)):
            got = store.pushpull(key, np.ones(size, "f4"))
            assert (got == 7 + 5).all()  # two updates of two workers each
        assert store.pushpull("x", np.ones(2, "f4")).tolist() == [9, 9]  # its state begins now

    on_cluster(first, workers=2)
    assert checkpoint.read(tmp_path / "c").state["v"]["count"].dtype == np.dtype("u2")
    on_cluster(second, workers=2, servers=3)
