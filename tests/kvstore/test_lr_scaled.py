"""lr_scaled=True: what was not sent is multiplied by the old over the new learning rate.

The model is that of the paper's remark (Karimireddy and others 2019): with e' = x - sent of
x = g + e * old / new, weights and the rate times e add up to what all gradients would have done.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import asyncps
from asyncps.errors import ConfigError
from asyncps.kvstore import KVStore
from tests.kvstore.compressed import model_2bit
from tests.support.cluster import on_cluster
from tests.trainer.params import Param

T = 0.5
RATES = (0.5, 0.5, 0.25, 0.25, 1.0, 0.125, 0.125)
SIZES = pytest.mark.parametrize("size", [7, 70_001], ids=["small", "large"])


class Model:
    """One worker's residual and what it sends."""

    def __init__(self, size: int, *, scaled: bool = True) -> None:
        self.residual = np.zeros(size, "f4")
        self.rate: float | None = None
        self.scaled = scaled

    def sent(self, g: Any, rate: float) -> Any:
        if self.rate is not None and self.scaled:
            self.residual *= np.float32(self.rate / rate)
        self.rate = rate
        return model_2bit(self.residual, g, T)


def residual(store: KVStore, key: str) -> Any:
    return store._core.client.compression._coders[key].residual


@SIZES
@pytest.mark.parametrize("scaled", [True, False])
@pytest.mark.parametrize("order", ["arrival", "rank"])
def test_residual_follows_set_hyperparameters(size: int, scaled: bool, order: str) -> None:
    def work(store: KVStore) -> None:
        store.init("w", np.zeros(size, "f4"))
        store.set_optimizer("sgd", learning_rate=RATES[0])
        store.set_gradient_compression({"type": "2bit", "threshold": T, "lr_scaled": scaled})
        chances = [np.random.default_rng(rank) for rank in range(store.num_workers)]
        models = [Model(size, scaled=scaled) for _ in chances]
        value = np.zeros(size, "f4")
        for turn, rate in enumerate(RATES):
            if turn and rate != RATES[turn - 1]:
                store.set_hyperparameters(learning_rate=rate)
            grads = [chance.uniform(-1, 1, size).astype("f4") for chance in chances]
            total = np.zeros(size, "f4")
            for model, g in zip(models, grads, strict=True):
                total += model.sent(g, rate)
            value -= np.float32(rate) * total
            mine = grads[store.rank]
            if turn % 2:
                store.push("w", mine)
                got = store.pull("w")
            else:
                got = store.pushpull("w", mine, out=np.zeros(size, "f4"))
            assert np.allclose(got, value, rtol=1e-6, atol=1e-6), turn
            assert np.array_equal(residual(store, "w"), models[store.rank].residual)

    on_cluster(work, order=order, settings={"chunk_bytes": 65536})


def test_weights_and_what_is_kept_are_worth_what_all_gradients_are() -> None:
    def work(store: KVStore) -> None:
        store.init("w", np.zeros(1000, "f4"))
        store.set_optimizer("sgd", learning_rate=1.0)
        store.set_gradient_compression({"type": "topk", "small_bytes": 0, "lr_scaled": True})
        chance, exact = np.random.default_rng(3), np.zeros(1000)
        for rate in (1.0, 0.1, 0.03, 0.01):
            store.set_hyperparameters(learning_rate=rate)
            for _ in range(3):
                g = chance.normal(size=1000).astype("f4")
                exact -= rate * g.astype("f8")
                store.push("w", g)
            store.pull("w")  # all of them have the rate of their time
        got = store.pull("w").astype("f8") - 0.01 * residual(store, "w")
        assert np.allclose(got, exact, rtol=1e-5, atol=1e-5)

    on_cluster(work, workers=1)


@SIZES
@pytest.mark.parametrize("where", [True, False], ids=["on the store", "at the workers"])
def test_residual_follows_a_trainers_learning_rate(size: int, where: bool) -> None:
    def train(store: KVStore) -> None:
        param = Param(np.zeros(size, "f4"))
        trainer = asyncps.Trainer(
            [param], "sgd", {"learning_rate": 1.0}, kvstore=store, update_on_kvstore=where,
            compression_params={"type": "2bit", "threshold": T, "lr_scaled": True},
        )
        model, value = Model(size), np.zeros(size, "f4")
        for turn, rate in enumerate((1.0, 1.0, 0.5, 0.25)):
            if turn and rate != trainer.learning_rate:
                trainer.set_learning_rate(rate)
            g = np.random.default_rng(turn).uniform(-1, 1, size).astype("f4")
            param.grad = g.copy()
            trainer.step(1)
            value -= np.float32(rate) * store.num_workers * model.sent(g, rate)
            assert np.allclose(param.data, value, atol=1e-6), turn

    on_cluster(train)


def test_factors_by_key_count_and_another_optimizer_begins_anew() -> None:
    def work(store: KVStore) -> None:
        store.init(["a", "b"], [np.zeros(5, "f4"), np.zeros(5, "f4")])
        store.set_optimizer("sgd", learning_rate=1.0)
        store.set_gradient_compression({"type": "2bit", "threshold": T, "lr_scaled": True})

        def push() -> list[float]:
            store.push(["a", "b"], [np.full(5, 0.0, "f4")] * 2)
            return [float(residual(store, key)[0]) for key in ("a", "b")]

        store.push(["a", "b"], [np.full(5, 0.0625, "f4")] * 2)
        store.set_hyperparameters(lr_mult={"b": 0.5})
        assert push() == [0.0625, 0.125]
        store.set_optimizer("adam", learning_rate=0.001)
        assert push() == [0.0625, 0.125]
        store.set_hyperparameters(learning_rate=0.0005)
        assert push() == [0.125, 0.25]

    on_cluster(work, workers=1)


def test_schedules_are_refused_wherever_they_come_from() -> None:
    words = {"type": "2bit", "lr_scaled": True}

    def work(store: KVStore) -> None:
        store.init("w", np.zeros(5, "f4"))
        falls = asyncps.optim.lr.cosine(100, base_lr=0.1)
        store.set_optimizer("sgd", learning_rate=falls)
        with pytest.raises(ConfigError, match="got schedule cosine"):
            store.set_gradient_compression(words)
        store.set_hyperparameters(learning_rate=0.1)
        store.set_gradient_compression(words)
        with pytest.raises(ConfigError, match="got schedule cosine"):
            store.set_hyperparameters(learning_rate=falls)
        with pytest.raises(ConfigError, match="got schedule cosine"):
            store.set_optimizer("sgd", learning_rate=falls)
        store.set_gradient_compression({"type": "2bit"})
        store.set_hyperparameters(learning_rate=falls)

    on_cluster(work, workers=1)


def test_a_trainer_at_the_workers_with_a_schedule_is_refused() -> None:
    def train(store: KVStore) -> None:
        param = Param(np.zeros(5, "f4"))
        trainer = asyncps.Trainer(
            [param], "sgd", {"learning_rate": asyncps.optim.lr.step(5, factor=0.1)},
            kvstore=store, update_on_kvstore=False,
            compression_params={"type": "2bit", "lr_scaled": True},
        )
        param.grad = np.ones(5, "f4")
        with pytest.raises(ConfigError, match="got schedule step"):
            trainer.step(1)

    on_cluster(train, workers=1)
