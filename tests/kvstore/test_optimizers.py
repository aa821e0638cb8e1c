"""Optimizers on the servers follow plain NumPy models, and changes keep their state."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from asyncps import optim
from asyncps.kvstore import KVStore
from tests.support.cluster import on_cluster

Array = np.ndarray[Any, Any]
STEPS = 6


class SGDModel:
    """MXNet 1.9.1's sgd_update, sgd_mom_update and nag_mom_update in f64."""

    def __init__(self, w: Array, learning_rate: float = 0.01, momentum: float = 0.0,
                 wd: float = 0.0, rescale_grad: float = 1.0, clip_gradient: float | None = None,
                 nesterov: bool = False) -> None:
        self.w = w.astype("f8")
        self.m = np.zeros_like(self.w)
        self.lr, self.mu, self.wd, self.rescale = learning_rate, momentum, wd, rescale_grad
        self.clip, self.nesterov = clip_gradient, nesterov

    def step(self, g: Array) -> None:
        g = self.rescale * g.astype("f8")
        if self.clip is not None:
            g = np.clip(g, -self.clip, self.clip)
        g = g + self.wd * self.w
        if not self.mu:
            self.w = self.w - self.lr * g
        elif self.nesterov:
            kept, decay = self.mu * self.m, self.wd * self.w
            self.w = self.w - kept + (1 + self.mu) * (kept - self.lr * g)
            # The operator writes the weights first, and takes the decay of those into m.
            self.m = kept - self.lr * (g - decay + self.wd * self.w)
        else:
            self.m = self.mu * self.m - self.lr * g
            self.w = self.w + self.m


class AdamModel:
    """MXNet 1.9.1's adam_update in f64."""

    def __init__(self, w: Array, learning_rate: float = 0.001, beta1: float = 0.9,
                 beta2: float = 0.999, epsilon: float = 1e-8, wd: float = 0.0,
                 rescale_grad: float = 1.0, clip_gradient: float | None = None) -> None:
        self.w = w.astype("f8")
        self.m, self.v = np.zeros_like(self.w), np.zeros_like(self.w)
        self.t = 0
        self.lr, self.b1, self.b2, self.eps = learning_rate, beta1, beta2, epsilon
        self.wd, self.rescale, self.clip = wd, rescale_grad, clip_gradient

    def step(self, g: Array) -> None:
        self.t += 1
        g = self.rescale * g.astype("f8") + self.wd * self.w
        if self.clip is not None:
            g = np.clip(g, -self.clip, self.clip)
        self.m = self.b1 * self.m + (1 - self.b1) * g
        self.v = self.b2 * self.v + (1 - self.b2) * g * g
        rate = self.lr * math.sqrt(1 - self.b2**self.t) / (1 - self.b1**self.t)
        self.w = self.w - rate * self.m / (np.sqrt(self.v) + self.eps)


MODELS = {"sgd": SGDModel, "adam": AdamModel}
KEYS = {"small": (5,), "tiny": (1,), "large": (300, 300), "two chunks": (200_001,)}


def gradient(rank: int, turn: int, key: str) -> Array:
    seed = [rank, turn, list(KEYS).index(key)]
    return np.random.default_rng(seed).standard_normal(KEYS[key]).astype("f4")


def start(key: str) -> Array:
    return np.random.default_rng(len(key)).standard_normal(KEYS[key]).astype("f4")


CASES: list[tuple[str, dict[str, Any]]] = [
    ("sgd", {"learning_rate": 0.1}),
    ("sgd", {"learning_rate": 0.1, "wd": 0.01, "rescale_grad": 0.25}),
    ("sgd", {"learning_rate": 0.1, "momentum": 0.9}),
    ("sgd", {"learning_rate": 0.1, "momentum": 0.9, "wd": 0.01, "clip_gradient": 0.5}),
    ("sgd", {"learning_rate": 0.1, "momentum": 0.9, "nesterov": True, "wd": 0.01}),
    ("adam", {"learning_rate": 0.01}),
    ("adam", {"learning_rate": 0.01, "beta1": 0.5, "beta2": 0.9, "epsilon": 1e-3}),
    ("adam", {"learning_rate": 0.01, "wd": 0.1, "clip_gradient": 0.3, "rescale_grad": 0.5}),
]


@pytest.mark.parametrize(("name", "hyper"), CASES, ids=str)
def test_trajectory_is_that_of_the_model(name: str, hyper: dict[str, Any]) -> None:
    def work(store: KVStore) -> None:
        keys = list(KEYS)
        store.init(keys, [start(key) for key in keys])
        store.set_optimizer(name, **hyper)
        models = {key: MODELS[name](start(key), **hyper) for key in keys}
        for turn in range(STEPS):
            store.push(keys, [gradient(store.rank, turn, key) for key in keys])
            got = store.pull(keys)
            for key, weights in zip(keys, got, strict=True):
                total = sum(gradient(rank, turn, key) for rank in range(store.num_workers))
                models[key].step(np.asarray(total))
                np.testing.assert_allclose(weights, models[key].w, rtol=1e-5, atol=1e-6)

    on_cluster(work, order="rank")


def test_set_optimizer_takes_an_object_and_both_spellings() -> None:
    def work(store: KVStore) -> None:
        store.init("w", np.ones(3, "f4"))
        if store.rank:
            store.set_optimizer("sgd", lr=0.5, weight_decay=0.25)
        else:
            store.set_optimizer(optim.SGD(learning_rate=0.5, wd=0.25))
        n = store.num_workers
        got = store.pushpull("w", np.ones(3, "f4"))
        assert np.all(got == 1 - 0.5 * (n + 0.25))

    on_cluster(work)


@pytest.mark.parametrize("key", ["small", "two chunks"])
def test_changed_hyper_parameters_keep_the_state(key: str) -> None:
    """K19: the trajectory equals a local optimizer with the same schedule."""
    def work(store: KVStore) -> None:
        store.init(key, start(key))
        store.set_optimizer("sgd", learning_rate=0.1, momentum=0.9)
        model = SGDModel(start(key), learning_rate=0.1, momentum=0.9)
        for turn in range(STEPS):
            if turn == 2:
                store.set_hyperparameters(lr=0.01)
                model.lr = 0.01
            if turn == 4:
                store.set_hyperparameters(momentum=0.5, wd=0.1)
                model.mu, model.wd = 0.5, 0.1
            total = sum(gradient(rank, turn, key) for rank in range(store.num_workers))
            model.step(np.asarray(total))
            got = store.pushpull(key, gradient(store.rank, turn, key))
            np.testing.assert_allclose(got, model.w, rtol=1e-5, atol=1e-6)

    on_cluster(work, order="rank")


def test_round_uses_the_newest_version_that_a_contributor_had() -> None:
    def work(store: KVStore) -> None:
        store.init("w", np.zeros(3, "f4"))
        store.set_optimizer("test", rescale_grad=1.0)
        if store.rank == 1:
            store.set_hyperparameters(rescale_grad=10.0)
        assert np.all(store.pushpull("w", np.ones(3, "f4")) == 20)

    on_cluster(work)


def test_another_optimizer_drops_the_state() -> None:
    def work(store: KVStore) -> None:
        store.init("small", start("small"))
        hyper = {"learning_rate": 0.1, "momentum": 0.9}
        for _ in range(2):
            store.set_optimizer("sgd", **hyper)
            model = SGDModel(store.pull("small"), **hyper)  # type: ignore[arg-type]
            store.barrier()
            for turn in range(3):
                got = store.pushpull("small", gradient(store.rank, turn, "small"))
                total = sum(gradient(r, turn, "small") for r in range(store.num_workers))
                model.step(np.asarray(total))
                np.testing.assert_allclose(got, model.w, rtol=1e-5, atol=1e-6)

    on_cluster(work, order="rank")


def test_adam_counts_the_updates_of_each_key() -> None:
    def work(store: KVStore) -> None:
        store.init(["a", "b"], [np.zeros(3, "f4"), np.zeros(3, "f4")])
        store.set_optimizer("adam", learning_rate=0.1)
        models = {key: AdamModel(np.zeros(3), learning_rate=0.1) for key in "ab"}
        for turn in range(6):
            for key in "ab" if turn % 3 == 2 else "a":
                g = np.array([1, -2, turn], "f4")
                got = store.pushpull(key, g.copy())
                models[key].step(g * store.num_workers)
                np.testing.assert_allclose(got, models[key].w, rtol=1e-5, atol=1e-6)
        outs = store.pushpull(["a", "b"], [np.ones(3, "f4"), np.ones(3, "f4")])
        for key, got in zip("ab", outs, strict=True):
            models[key].step(np.full(3, store.num_workers))
            np.testing.assert_allclose(got, models[key].w, rtol=1e-5, atol=1e-6)

    on_cluster(work)


@pytest.mark.parametrize("dtype", ["f2", "f8"])
@pytest.mark.parametrize("name", ["sgd", "adam"])
def test_other_float_dtypes_follow_the_model_within_their_precision(
    dtype: str, name: str
) -> None:
    def work(store: KVStore) -> None:
        store.init("w", np.ones(50, dtype))
        store.set_optimizer(name, learning_rate=0.125)
        model = MODELS[name](np.ones(50), learning_rate=0.125)
        for turn in range(3):
            g = np.random.default_rng(turn).standard_normal(50).astype(dtype)
            got = store.pushpull("w", g.copy())
            model.step(g.astype("f8") * store.num_workers)
            exact = 1e-12 if dtype == "f8" else 5e-3
            np.testing.assert_allclose(got.astype("f8"), model.w, rtol=exact, atol=exact)

    on_cluster(work)
