"""dgc in stores, beside the model of its paper; and that nobody else has a momentum."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import asyncps
from asyncps.errors import ConfigError, TensorError
from asyncps.kvstore import KVStore
from asyncps.optim import Optimizer
from tests.kvstore.compressed import by_turns
from tests.support.cluster import on_cluster
from tests.support.dgc import Model
from tests.trainer.params import Param

SIZES = {"one": 1, "seven": 7, "row": 257, "chunk": 9000, "large": 100_003}
DGC = {"type": "dgc", "ratio": 0.05, "small_bytes": 0}


def gradient(rank: int, turn: int, key: str, size: int) -> Any:
    return np.random.default_rng([rank, turn, len(key)]).normal(size=size).astype("f4")


def coder(store: KVStore, key: str) -> Any:
    return store._core.client.compression.coders[key]


def rounds(store: KVStore, options: dict[str, Any], turns: int = 6) -> None:
    """All workers' models beside the store: each pull to the bit."""
    keys = list(SIZES)
    store.init(keys, [np.zeros(size, "f4") for size in SIZES.values()])
    store.set_gradient_compression({**DGC, **options})
    store.set_optimizer("test")
    words = {name: value for name, value in {**DGC, **options}.items()
             if name in ("ratio", "momentum", "warmup", "clip")}
    models = {(rank, key): Model(size, **words, workers=store.num_workers)
              for rank in range(store.num_workers) for key, size in SIZES.items()}
    values = {key: np.zeros(size, "f4") for key, size in SIZES.items()}
    for turn in range(turns):
        for key, size in SIZES.items():
            total = np.zeros(size, "f4")
            for rank in range(store.num_workers):
                total += models[rank, key].push(gradient(rank, turn, key, size))
            values[key] += total
        grads = [gradient(store.rank, turn, key, size) for key, size in SIZES.items()]
        got = by_turns(store, keys, grads, turn)
        for key, value in zip(keys, got, strict=True):
            mine = models[store.rank, key]
            if "clip" in options:  # the norm's last bit is the model's own
                assert np.allclose(value, values[key], atol=1e-5), (turn, key)
                continue
            assert np.array_equal(value, values[key]), (turn, key)
            assert np.array_equal(coder(store, key).residual, mine.v), (turn, key)
            assert np.array_equal(coder(store, key).extra, mine.u), (turn, key)
    report = store.compression_report()
    for key in keys:
        assert report[key]["codec"] == "dgc"
        norm = float(np.linalg.norm(models[store.rank, key].v.astype("f8")))
        assert np.isclose(report[key]["error_norm"], norm, rtol=1e-4)


@pytest.mark.parametrize("options", [
    {}, {"momentum": 0.0}, {"warmup": 4}, {"clip": 3.0}, {"ratio": 1.0},
], ids=str)  # fmt: skip
@pytest.mark.parametrize(("workers", "servers"), [(1, 1), (2, 2)])
def test_every_round_is_that_of_the_model(
    workers: int, servers: int, options: dict[str, Any]
) -> None:
    on_cluster(lambda store: rounds(store, options), workers=workers, servers=servers,
               order="rank", settings={"chunk_bytes": 65536})


def test_every_round_is_that_of_the_model_over_sockets() -> None:
    on_cluster(lambda store: rounds(store, {"warmup": 3}), transport="tcp",
               settings={"chunk_bytes": 65536})


@pytest.mark.parametrize("type", ["dist_async", "dist_ssp"])
def test_stores_that_apply_pushes_as_they_come_have_it_too(type: str) -> None:
    def work(store: KVStore) -> None:
        store.init("w", np.zeros(70_001, "f4"))
        store.set_gradient_compression(DGC)
        store.set_optimizer("test")
        models = [Model(70_001, 0.05) for _ in range(store.num_workers)]
        expected = np.zeros(70_001)
        for turn in range(5):
            for rank, model in enumerate(models):
                expected += model.push(gradient(rank, turn, "w", 70_001))
            store.push("w", gradient(store.rank, turn, "w", 70_001))
        store.barrier()
        assert np.allclose(store.pull("w"), expected, atol=1e-5)

    on_cluster(work, type=type)


def test_a_gradient_that_is_skipped_moves_no_momentum() -> None:
    def work(store: KVStore) -> None:
        store.init(["small", "large"], [np.zeros(30, "f4"), np.zeros(70_001, "f4")])
        store.set_gradient_compression({**DGC, "nonfinite": "skip"})
        store.set_optimizer("test")
        for key, size in (("small", 30), ("large", 70_001)):
            store.push(key, gradient(0, 0, key, size))
            before = [array.copy() for array in (coder(store, key).extra,
                                                 coder(store, key).residual)]
            value = store.pull(key)
            store.push(key, np.full(size, np.nan, "f4"))
            assert np.array_equal(store.pull(key), value)
            assert np.array_equal(coder(store, key).extra, before[0])
            assert np.array_equal(coder(store, key).residual, before[1])
            assert coder(store, key).pushes == 1

    on_cluster(work, workers=1)


def test_sums_that_would_be_infinite_are_refused_by_key_and_rank() -> None:
    def work(store: KVStore) -> None:
        store.init("w", np.zeros(50, "f4"))
        store.set_gradient_compression(DGC)
        store.set_optimizer("test")
        for _ in range(2):
            store.push("w", np.full(50, 1e38, "f4"))
        with pytest.raises(TensorError, match=r"key 'w', rank 0.*beside 2.9.*e\+38 that was not"):
            store.push("w", np.full(50, 1e38, "f4"))
        assert np.isfinite(coder(store, "w").residual).all()

    on_cluster(work, workers=1)


def test_v_and_u_follow_the_learning_rate() -> None:
    rates = (0.5, 0.5, 0.25, 0.25, 1.0, 0.125)

    def work(store: KVStore) -> None:
        store.init("w", np.zeros(300, "f4"))
        store.set_optimizer("sgd", learning_rate=rates[0])
        store.set_gradient_compression({**DGC, "lr_scaled": True})
        model, value, exact = Model(300, 0.05), np.zeros(300, "f4"), np.zeros(300)
        moved = np.zeros(300)  # MXNet's momentum: of weights, so a rate counts when it holds
        for turn, rate in enumerate(rates):
            if turn and rate != rates[turn - 1]:
                store.set_hyperparameters(learning_rate=rate)
                factor = np.float32(rates[turn - 1] / rate)
                model.u, model.v = model.u * factor, model.v * factor
            masked = model.u == 0
            g = gradient(0, turn, "w", 300)
            sent = model.push(g)
            moved = np.where(masked, 0, np.float32(0.9) * moved) + rate * g
            exact -= moved
            value -= np.float32(rate) * sent
            got = store.pushpull("w", g, out=np.zeros(300, "f4"))
            assert np.allclose(got, value, atol=1e-6), turn
            assert np.array_equal(coder(store, "w").extra, model.u)
            assert np.array_equal(coder(store, "w").residual, model.v)
            assert np.allclose(got - rate * coder(store, "w").residual, exact, atol=1e-5)

    on_cluster(work, workers=1)


def test_pulls_of_changes_are_those_of_topk() -> None:
    def work(store: KVStore) -> None:
        store.init("w", np.zeros(100_000, "f4"))
        store.set_gradient_compression({"type": "dgc", "ratio": 0.01, "pull": True})
        store.set_optimizer("sgd", learning_rate=0.5)
        weights, model = store.pull("w"), Model(100_000)
        value, base = np.zeros(100_000, "f4"), np.zeros(100_000, "f4")
        for turn in range(4):
            g = gradient(0, turn, "w", 100_000)
            value -= np.float32(0.5) * model.push(g)
            change = value - base
            places = np.argsort(-np.abs(change), kind="stable")[:1000]
            base[places] += change[places]
            store.pushpull("w", g, out=weights)
            assert np.allclose(weights, base, atol=1e-6), turn
        assert np.count_nonzero(weights) > 1000

    on_cluster(work, workers=1, servers=1)


# --------------------------------------------------------------------------- who has the momentum


MOMENTA: list[tuple[str, dict[str, Any], str]] = [
    ("sgd", {"momentum": 0.9}, "momentum"), ("sgd", {"momentum": 0.5, "nesterov": True}, "mom"),
    ("adam", {}, "beta1"), ("adamw", {}, "beta1"), ("lamb", {}, "beta1"),
    ("rmsprop", {"centered": True}, "gamma2"),
]
NONE: list[tuple[str, dict[str, Any]]] = [
    ("sgd", {}), ("test", {}), ("adagrad", {}), ("ftrl", {}), ("rmsprop", {}),
    ("adam", {"beta1": 0.0}), ("rmsprop", {"centered": True, "gamma2": 0.0}),
]


@pytest.mark.parametrize(("name", "hyper", "word"), MOMENTA, ids=str)
def test_an_optimizer_with_a_momentum_is_refused(
    name: str, hyper: dict[str, Any], word: str
) -> None:
    def work(store: KVStore) -> None:
        store.init("w", np.zeros(5, "f4"))
        words = rf"compression dgc has the momentum \(0.9\), and so has the optimizer.*{word}"
        store.set_optimizer(name, **hyper)
        with pytest.raises(ConfigError, match=words) as found:
            store.set_gradient_compression(DGC, keys="fc*")
        assert isinstance(found.value, ValueError)
        store.set_optimizer("sgd")
        store.set_gradient_compression(DGC, keys="fc*")
        with pytest.raises(ConfigError, match=words):
            store.set_optimizer(name, **hyper)
        assert store.optimizer == "sgd"
        store.push("w", np.ones(5, "f4"))

    on_cluster(work, workers=1)


@pytest.mark.parametrize(("name", "hyper"), NONE, ids=str)
def test_an_optimizer_without_one_is_not(name: str, hyper: dict[str, Any]) -> None:
    def work(store: KVStore) -> None:
        store.set_optimizer(name, **hyper)
        store.set_gradient_compression(DGC)
        store.set_optimizer(name, **hyper)
        store.init("w", np.ones(5, "f4"))
        store.push("w", np.ones(5, "f4"))
        assert np.isfinite(store.pull("w")).all()

    on_cluster(work, workers=1)


def test_it_is_refused_when_it_is_set_later() -> None:
    def work(store: KVStore) -> None:
        store.set_optimizer("sgd", learning_rate=0.1)
        store.set_gradient_compression(DGC)
        store.init("w", np.ones(5, "f4"))
        with pytest.raises(ConfigError, match=r"got momentum=0.5"):
            store.set_hyperparameters(momentum=0.5)
        store.set_hyperparameters(learning_rate=0.2)
        store.set_optimizer("rmsprop", centered=True, gamma2=0.0)
        with pytest.raises(ConfigError, match=r"got gamma2=0.5"):
            store.set_hyperparameters(gamma2=0.5)

    on_cluster(work, workers=1)


def test_a_rule_that_no_longer_counts_is_none() -> None:
    def work(store: KVStore) -> None:
        store.set_gradient_compression(DGC, keys="fc*")
        store.set_gradient_compression({"type": "topk"})  # of all keys
        store.set_optimizer("sgd", momentum=0.9)
        with pytest.raises(ConfigError, match=r"got momentum=0.9"):
            store.set_gradient_compression(DGC)
        store.set_hyperparameters(momentum=0.0)
        store.set_gradient_compression(DGC)
        store.set_gradient_compression({"type": "topk"}, keys="fc*")  # of some only
        with pytest.raises(ConfigError, match=r"got momentum=0.9"):
            store.set_hyperparameters(momentum=0.9)
        store.set_gradient_compression({"type": "topk"})
        store.set_hyperparameters(momentum=0.9)

    on_cluster(work, workers=1)


@pytest.mark.usefixtures("registered")
def test_the_momentum_of_an_optimizer_of_the_users_own_counts() -> None:
    class Heavy(Optimizer):
        """Any."""

        defaults = {"momentum": 0.8}

        def update(
            self, weight: Any, grad: Any, state: dict[str, Any], hyper: dict[str, Any]
        ) -> None:
            weight += grad

    def work(store: KVStore) -> None:
        store.set_gradient_compression(DGC)
        with pytest.raises(ConfigError, match=r"got momentum=0.8"):
            store.set_optimizer(Heavy())
        store.set_optimizer(Heavy(momentum=0.0))

    on_cluster(work, workers=1)


@pytest.mark.parametrize("where", [True, False], ids=["on the store", "at the workers"])
def test_a_trainer_with_a_momentum_is_refused(where: bool) -> None:
    def train(store: KVStore) -> None:
        def step(momentum: float, words: Any) -> Any:
            param = Param(np.zeros(70_001, "f4"))
            trainer = asyncps.Trainer(
                [param], "sgd", {"learning_rate": 1.0, "momentum": momentum}, kvstore=store,
                update_on_kvstore=where, compression_params=words)
            param.grad = gradient(0, 0, "w", 70_001)
            trainer.step(1)
            return param

        with pytest.raises(ConfigError, match=r"dgc has the momentum.*got momentum=0.9"):
            step(0.9, DGC)
        param = step(0.0, DGC)
        sent = Model(70_001, 0.05).push(gradient(0, 0, "w", 70_001))
        assert np.allclose(param.data, -store.num_workers * sent, atol=1e-6)

    on_cluster(train)


def test_a_checkpoint_whose_optimizer_has_a_momentum_is_refused(tmp_path: Path) -> None:
    def work(store: KVStore) -> None:
        store.init("w", np.zeros(5, "f4"))
        store.set_optimizer("sgd", momentum=0.9)
        store.save(tmp_path / "c")
        store.set_optimizer("sgd", momentum=0.0)
        store.set_gradient_compression(DGC)
        store.pushpull("w", np.ones(5, "f4"), out=np.zeros(5, "f4"))
        kept, value = coder(store, "w").residual.copy(), store.pull("w")
        with pytest.raises(ConfigError, match=r"got momentum=0.9"):
            store.load(tmp_path / "c")
        assert store.hyperparameters["momentum"] == 0
        assert np.array_equal(coder(store, "w").residual, kept)
        assert np.array_equal(store.pull("w"), value)

    on_cluster(work)
