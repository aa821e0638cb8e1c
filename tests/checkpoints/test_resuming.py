"""A Trainer whose script begins again from a checkpoint goes on as if it had never stopped."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import asyncps
from asyncps.errors import (
    AsyncPSError,
    ClosedError,
    ClusterError,
    ConfigError,
    DeadlineExceeded,
    Disagreement,
    OptimizerError,
    ShapeMismatch,
)
from asyncps.kvstore import KVStore
from asyncps.tensor import checkpoint
from asyncps.tensor.rowsparse import RowSparse
from tests.support.cluster import on_cluster
from tests.trainer.params import Param

CASES: dict[str, tuple[str, dict[str, Any], str, dict[str, Any]]] = {
    "momentum": ("sgd", {"learning_rate": 0.1, "momentum": 0.9, "wd": 0.01}, "f4", {}),
    "adam": ("adam", {"learning_rate": 0.01}, "f4", {}),
    "master": ("sgd", {"learning_rate": 0.01, "momentum": 0.5}, "f2", {"multi_precision": True}),
    "schedule": ("sgd", {"learning_rate": asyncps.optim.lr.step(2, 0.5, base_lr=0.1)}, "f4", {}),
}
SHAPES = {"a": (3, 4), "b": (20_000,), "fixed": (5,), "rows": (30, 2)}


def parameters(dtype: str, seed: int, *, sparse: bool = True) -> dict[str, Param]:
    """Weights that a seed makes: a script that begins again makes others."""
    rng = np.random.default_rng(seed)
    made = {name: Param(rng.standard_normal(shape).astype(dtype)) for name, shape in SHAPES.items()}
    made["fixed"].grad_req = "null"
    made["rows"].grad_stype = "row_sparse"  # type: ignore[attr-defined]
    if not sparse:
        del made["rows"]
    return made


def train(trainer: asyncps.Trainer, params: dict[str, Param], rank: int, turns: range) -> None:
    """Gradients follow from the weights, as in life: one of old weights is seen afterwards."""
    for turn in turns:
        rng = np.random.default_rng([rank, turn])
        for name, param in params.items():
            if name == "fixed":
                continue
            noise = rng.standard_normal(param.data.shape).astype(param.data.dtype)
            gradient = (param.data - noise) / 4
            if name == "rows":
                ids = np.flatnonzero(rng.random(len(gradient)) < 0.5)
                gradient = RowSparse(ids, gradient[ids], gradient.shape)
            param.grad = gradient
        trainer.step(2 if turn % 2 else 4)


def bits(params: dict[str, Param]) -> dict[str, bytes]:
    return {name: param.data.tobytes() for name, param in params.items()}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("order", ["trainer, load", "load, trainer"])
def test_a_resumed_trainer_has_the_bits_of_the_one_that_never_stopped(
    tmp_path: Path, case: str, order: str
) -> None:
    optimizer, hyper, dtype, options = CASES[case]
    options = {"order": "rank", **options}
    path = tmp_path / "c"

    def begun(store: KVStore, seed: int) -> tuple[dict[str, Param], asyncps.Trainer]:
        params = parameters(dtype, seed)
        return params, asyncps.Trainer(params, optimizer, hyper, kvstore=store)

    def whole(store: KVStore) -> dict[str, bytes]:
        params, trainer = begun(store, 1)
        train(trainer, params, store.rank, range(7))
        return bits(params)

    def first(store: KVStore) -> None:
        params, trainer = begun(store, 1)
        train(trainer, params, store.rank, range(4))
        store.save(path)

    def second(store: KVStore) -> dict[str, bytes]:
        if order == "load, trainer":
            store.load(path)
        params, trainer = begun(store, 2)
        if order == "trainer, load":
            train(trainer, params, store.rank, range(90, 93))  # what is there before is gone
            store.load(path)
        train(trainer, params, store.rank, range(4, 7))
        return bits(params)

    expected = on_cluster(whole, workers=2, servers=2, **options)
    on_cluster(first, workers=2, servers=2, **options)
    assert on_cluster(second, workers=2, servers=3, **options) == expected


@pytest.mark.parametrize("order", ["trainer, load", "load, trainer"])
def test_a_store_of_one_process_resumes_as_well(tmp_path: Path, order: str) -> None:
    hyper = {"learning_rate": 0.1, "momentum": 0.9}
    path = tmp_path / "c"

    def begun(seed: int, loaded: bool = False) -> tuple[dict[str, Param], asyncps.Trainer]:
        params, store = parameters("f4", seed), asyncps.create("local")
        if loaded:
            store.load(path)
        return params, asyncps.Trainer(params, "sgd", hyper, kvstore=store)

    params, trainer = begun(1)
    train(trainer, params, 0, range(7))
    expected = bits(params)

    params, trainer = begun(1)
    train(trainer, params, 0, range(4))
    trainer.kvstore.save(path)

    params, trainer = begun(2, order == "load, trainer")
    if order == "trainer, load":
        train(trainer, params, 0, range(90, 93))
        trainer.kvstore.load(path)
    train(trainer, params, 0, range(4, 7))
    assert bits(params) == expected


def test_hyper_parameters_are_those_that_were_said_last(tmp_path: Path) -> None:
    def first(store: KVStore) -> None:
        params = parameters("f4", 1)
        trainer = asyncps.Trainer(
            params, "sgd", {"learning_rate": 0.5, "lr_mult": {"a": 2.0}}, kvstore=store)
        train(trainer, params, store.rank, range(1, 2))
        trainer.set_learning_rate(0.25)
        store.save(tmp_path / "c")

    def second(store: KVStore) -> None:
        params = parameters("f4", 2)
        trainer = asyncps.Trainer(
            params, "sgd", {"learning_rate": 0.125, "wd_mult": {"b": 3.0}}, kvstore=store)
        store.load(tmp_path / "c")
        assert trainer.learning_rate == 0.25
        assert trainer.optimizer.hyper["rescale_grad"] == 0.5
        assert dict(trainer.optimizer.hyper["lr_mult"]) == {"a": 2.0}
        assert not trainer.optimizer.hyper["wd_mult"]  # the checkpoint has none
        store.set_hyperparameters(learning_rate=0.375)  # past the trainer, who hears of it
        assert trainer.learning_rate == 0.375
        again = asyncps.Trainer(params, "sgd", {"learning_rate": 0.0625}, kvstore=store)
        assert again.learning_rate == store.hyperparameters["learning_rate"] == 0.0625
        with pytest.raises(ConfigError, match="taken over"):
            trainer.step(1)
        before = params["b"].data.copy()
        train(again, params, store.rank, range(1))
        moved = (before - params["b"].data) / params["b"].grad
        # One step of batch size 4, up to the rounding of the weights.
        assert np.median(moved) == pytest.approx(0.0625 / 4, rel=1e-3)

    on_cluster(first, workers=1)
    on_cluster(second, workers=1)


@pytest.mark.parametrize("local", [False, True])
def test_a_checkpoint_of_another_optimizer_is_refused_and_changes_nothing(
    tmp_path: Path, local: bool
) -> None:
    def adam(store: Any) -> None:
        asyncps.Trainer(parameters("f4", 1), "adam", kvstore=store)
        store.save(tmp_path / "c")

    def sgd(store: Any) -> None:
        params = parameters("f4", 2)
        trainer = asyncps.Trainer(params, "sgd", kvstore=store)
        before = bits(params)
        for verb in store.load, store.load_optimizer_states:
            with pytest.raises(OptimizerError, match=r"sgd.*adam|adam.*sgd"):
                verb(tmp_path / "c")
        assert store.optimizer == trainer.optimizer.name == "sgd"
        assert bits(params) == before
        assert store.pull("a").tobytes() == before["a"]
        trainer.close()
        del trainer
        store.load(tmp_path / "c")  # nobody is there who wants another one
        assert store.optimizer == "adam"

    for work in adam, sgd:
        if local:
            work(asyncps.create("local"))
        else:
            on_cluster(work, workers=2)


def test_a_trainer_with_another_optimizer_than_the_store_says_what_it_drops(
    caplog: pytest.LogCaptureFixture
) -> None:
    store = asyncps.create("local")
    store.set_optimizer("adam")
    asyncps.Trainer(parameters("f4", 1), "sgd", kvstore=store)
    (warning,) = [each.getMessage() for each in caplog.records]
    assert "adam" in warning
    assert "sgd" in warning


def test_where_workers_update_the_store_has_no_weights_to_save_or_load(tmp_path: Path) -> None:
    def work(store: KVStore) -> None:
        params = parameters("f4", 1, sparse=False)
        trainer = asyncps.Trainer(
            params, "sgd", {"momentum": 0.5}, kvstore=store, update_on_kvstore=False)
        for verb in store.save, store.load, store.load_optimizer_states:
            with pytest.raises(ConfigError, match="save_states"):
                verb(tmp_path / "c")
        train(trainer, params, store.rank, range(2))
        trainer.close()
        store.save(tmp_path / "c")

    on_cluster(work, workers=2)
    assert checkpoint.show(tmp_path / "c")


def test_every_handle_of_a_store_tells_its_trainers(tmp_path: Path) -> None:
    with asyncps.create("dist_sync") as one:
        params = parameters("f4", 1)
        trainer = asyncps.Trainer(params, "sgd", {"lr": 0.5}, kvstore=one)
        one.save(tmp_path / "c")
        saved = bits(params)
        train(trainer, params, 0, range(2))
        assert bits(params) != saved
        two = asyncps.create("dist_sync")
        two.load(tmp_path / "c")
        assert bits(params) == saved
        two.set_hyperparameters(learning_rate=0.25)
        assert trainer.learning_rate == 0.25
        two.set_optimizer("adam")
        with pytest.raises(OptimizerError, match=r"expected sgd, got adam"):
            trainer.step(1)
        two.close()


def test_what_one_worker_has_against_it_all_hear(tmp_path: Path) -> None:
    def work(store: KVStore) -> None:
        params = parameters("f4", 1, sparse=False)
        trainer = asyncps.Trainer(params, "sgd", kvstore=store, update_on_kvstore=False)
        if store.rank == 1:
            trainer.close()
        for verb in store.save, store.load, store.load_optimizer_states:
            with pytest.raises(ConfigError, match="save_states"):
                verb(tmp_path / "c")
        trainer.close()
        store.save(tmp_path / "c")
        trainer = asyncps.Trainer(params, "sgd", kvstore=store)
        if store.rank == 1:
            params["b"].data = np.zeros(3, "f4")  # its user has put another array there
        with pytest.raises(ShapeMismatch):
            store.load(tmp_path / "c")
        assert store.optimizer == "sgd"

    on_cluster(work, workers=2)


def test_trainers_of_one_store_have_keys_of_their_own_and_the_same_words() -> None:
    def work(store: Any) -> None:
        one, two = Param(np.zeros(3, "f4")), Param(np.full(3, 5, "f4"))
        first = asyncps.Trainer({"one": one}, "sgd", {"lr": 1.0}, kvstore=store)
        for optimizer, words in ("sgd", {"lr": 0.5}), ("adam", {"lr": 1.0}):
            with pytest.raises(ConfigError, match="create"):
                asyncps.Trainer({"two": two}, optimizer, words, kvstore=store)
        second = asyncps.Trainer({"two": two}, "sgd", {"lr": 1.0}, kvstore=store)
        for _ in range(2):  # each with its own batch size
            one.grad, two.grad = np.full(3, 10, "f4"), np.full(3, 100, "f4")
            first.step(10 * store.num_workers)
            second.step(100 * store.num_workers)
        assert one.data.tolist() == [-2] * 3
        assert two.data.tolist() == [3] * 3
        asyncps.Trainer({"two": two}, "sgd", {"lr": 1.0}, kvstore=store)
        with pytest.raises(ConfigError, match="'two'"):
            second.step(1)
        second.close()
        with pytest.raises(ClosedError):
            second.step(1)

    on_cluster(work, workers=2)
    work(asyncps.create("local"))


def test_a_trainer_with_other_words_than_at_the_other_workers_is_refused_at_all() -> None:
    def work(store: KVStore) -> None:
        params = {"w": Param(np.zeros(3, "f4"))}
        asyncps.Trainer(params, "sgd", {"lr": 1.0}, kvstore=store)
        with pytest.raises(Disagreement):
            asyncps.Trainer(params, "sgd", {"lr": 1.0 + store.rank}, kvstore=store)

    on_cluster(work, workers=2)


def test_weights_that_were_changed_by_hand_are_assigned() -> None:
    def work(store: Any) -> list[dict[str, bytes]]:
        params = parameters("f4", store.rank)
        trainer = asyncps.Trainer(params, "sgd", {"lr": 1.0, "momentum": 0.5}, kvstore=store)
        train(trainer, params, store.rank, range(2))
        for param in params.values():
            param.data[...] = 7 + store.rank
        trainer.assign_weights()
        assert all((param.data == 7).all() for param in params.values())
        params["b"].grad = np.zeros(SHAPES["b"], "f4")
        trainer.step(1, ignore_stale_grad=True)
        return [bits(params)]

    one, two = on_cluster(work, workers=2)
    assert one == two
    work(asyncps.create("local"))


def test_a_load_that_was_given_up_bars_the_trainer_until_the_next(tmp_path: Path) -> None:
    def work(store: KVStore) -> None:
        params = parameters("f4", 1)
        trainer = asyncps.Trainer(params, "sgd", kvstore=store)
        store.save(tmp_path / "c")
        if store.rank == 0:
            with pytest.raises(DeadlineExceeded):
                store.load(tmp_path / "c")
            with pytest.raises(ClusterError, match="load again"):
                trainer.step(1)
            came.set()
        else:
            assert came.wait(20)
            with pytest.raises(AsyncPSError):
                store.load(tmp_path / "c")
        store.barrier()
        store.load(tmp_path / "c")
        train(trainer, params, store.rank, range(1))

    came = threading.Event()
    on_cluster(work, workers=2, settings={"round_s": 1.0})


def test_after_a_join_all_have_the_weights_of_the_last_round() -> None:
    def work(store: KVStore) -> list[float]:
        param = Param(np.zeros(3, "f4"), np.ones(3, "f4"))
        trainer = asyncps.Trainer({"w": param}, "sgd", {"lr": 1.0}, kvstore=store)
        seen = []
        for _ in range(2):
            for _ in range(2 + 2 * store.rank):
                trainer.step(1)
            store.join()
            seen.append(float(param.data[0]))
        return seen

    assert on_cluster(work, workers=2) == [[-6, -12], [-6, -12]]

    def apart(store: KVStore) -> None:
        asyncps.Trainer({"w": Param(np.zeros(3, "f4"))}, "sgd", kvstore=store,
                        update_on_kvstore=False)
        with pytest.raises(ConfigError, match="updates at the workers"):
            store.join()

    on_cluster(apart, workers=2)
