"""What differs from key to key on the servers: factors, counts, whole keys, f32 weights."""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import asyncps
from asyncps import optim
from asyncps.errors import Disagreement, OptimizerError
from asyncps.kvstore import KVStore
from asyncps.tensor import dtypes, updates
from tests.kvstore import scenarios
from tests.support.cluster import on_cluster

Array = np.ndarray[Any, Any]
both_transports = pytest.mark.parametrize("transport", ["memory", "tcp"])


# ------------------------------------------------------------------------------ factors, schedules


@both_transports
def test_factors_by_key_hold_in_slabs_and_chunks(transport: str) -> None:
    shapes: dict[Any, tuple[int, ...]] = {"a": (3,), 5: (7,), "5": (2, 2), "big": (300_000,)}
    lr_mult, wd_mult = {5: 0.5, "big": 2.0}, {"5": 3.0, "big": 0.0}

    def work(store: KVStore) -> None:
        keys = list(shapes)
        store.init(keys, [np.ones(shapes[key], "f4") for key in keys])
        store.set_optimizer("sgd", lr=0.25, wd=0.5, momentum=0.5, lr_mult=lr_mult, wd_mult=wd_mult)
        w, m = dict.fromkeys(keys, 1.0), dict.fromkeys(keys, 0.0)
        for turn in range(6):
            # Turn 2 names one row alone: the slab is split, and joined again afterwards.
            now = [5] if turn == 2 else keys
            if turn == 4:
                store.set_hyperparameters(wd_mult={5: 4.0})
            for key in now:
                decay = 0.5 * (wd_mult if turn < 4 else {5: 4.0}).get(key, 1.0)
                g = store.num_workers + decay * w[key]
                m[key] = 0.5 * m[key] - 0.25 * lr_mult.get(key, 1.0) * g
                w[key] += m[key]
            got = store.pushpull(now, [np.ones(shapes[key], "f4") for key in now])
            for key, value in zip(now, got, strict=True):
                np.testing.assert_allclose(value, np.full(shapes[key], w[key]), rtol=1e-6)

    on_cluster(work, transport=transport)


@both_transports
def test_schedule_is_followed_by_each_key_at_its_own_count(transport: str) -> None:
    """K19, the schedule being the servers' own."""
    schedule = optim.lr.step(2, 0.5, base_lr=0.5, warmup_steps=2, warmup_begin_lr=0.25)
    rates = [0.375, 0.5, 0.25, 0.25, 0.125, 0.125]  # at updates 1, 2, ...: MXNet's FactorScheduler

    def work(store: KVStore) -> None:
        store.init(["a", "b"], [np.zeros(3, "f4")] * 2)
        store.set_optimizer("sgd", learning_rate=schedule)
        done, w = dict.fromkeys("ab", 0), dict.fromkeys("ab", 0.0)
        for now in ("ab", "a", "a", "b", "ab", "ab"):
            for key in now:
                w[key] -= rates[done[key]] * store.num_workers
                done[key] += 1
            got = store.pushpull(list(now), [np.ones(3, "f4") for _ in now])
            for key, value in zip(now, got, strict=True):
                assert value.tolist() == [w[key]] * 3
        store.set_hyperparameters(learning_rate=1.0)
        assert store.pushpull("a", np.ones(3, "f4")).tolist() == [w["a"] - store.num_workers] * 3

    on_cluster(work, transport=transport)


def test_wrong_words_are_refused_at_the_caller() -> None:
    def work(store: KVStore) -> None:
        with pytest.raises(OptimizerError, match="unknown schedule"):
            store.set_optimizer("sgd", lr={"schedule": "exp"})
        with pytest.raises(OptimizerError, match="must be a dict from key to factor"):
            store.set_optimizer("sgd", lr_mult=0.5)
        store.set_optimizer("sgd")
        with pytest.raises(OptimizerError, match="sgd has no hyper-parameter 'beta1'"):
            store.set_hyperparameters(beta1=0.5)

    on_cluster(work)


def test_different_factors_are_a_disagreement() -> None:
    def work(store: KVStore) -> None:
        with pytest.raises(Disagreement, match="different optimizers"):
            store.set_optimizer("sgd", lr_mult={"w": float(store.rank)})
        store.set_optimizer("sgd", lr_mult={"w": 1, 5: 2} if store.rank else {5: 2, "w": 1})

    on_cluster(work)


# ----------------------------------------------------------------------------------- the other ones


def lamb(w: Array, grads: list[Array], rate: float, wd: float) -> Array:
    m, v = np.zeros_like(w), np.zeros_like(w)
    for t, g in enumerate(grads, 1):
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
        r = m / (1 - 0.9**t) / (np.sqrt(v / (1 - 0.999**t)) + 1e-6) + wd * w
        w = w - rate * math.sqrt((w * w).sum()) / math.sqrt((r * r).sum()) * r
    return w


@both_transports
def test_lamb_takes_the_norm_of_each_key_whole(transport: str) -> None:
    shapes = {"a": (3,), "b": (40,), "big": (700, 700)}

    def work(store: KVStore) -> None:
        store.set_optimizer("lamb", lr=0.1, wd=0.01)  # before the keys: none is cut
        rng = np.random.default_rng(0)
        begin = {key: rng.standard_normal(shape) for key, shape in shapes.items()}
        grads = [{key: rng.standard_normal(shape) for key, shape in shapes.items()}
                 for _ in range(3)]
        keys = list(shapes)
        store.init(keys, [begin[key].astype("f4") for key in keys])
        for g in grads:
            got = store.pushpull(keys, [(g[key] / store.num_workers).astype("f4") for key in keys])
        for key, value in zip(keys, got, strict=True):
            wanted = lamb(begin[key], [g[key] for g in grads], 0.1, 0.01)
            np.testing.assert_allclose(value, wanted, rtol=2e-4, atol=2e-5)

    on_cluster(work, transport=transport)


def test_lamb_refuses_a_key_that_was_cut() -> None:
    def work(store: KVStore) -> None:
        store.init(["w", "big"], [np.ones(3, "f4"), np.ones(700_000, "f4")])
        with pytest.raises(OptimizerError, match=r"cut into chunks.*chunk_bytes.*key 'big'"):
            store.set_optimizer("lamb")
        store.set_optimizer("adam")
        assert store.pushpull("w", np.ones(3, "f4")).shape == (3,)

    on_cluster(work)


@pytest.mark.parametrize("type", ["local", "dist_sync"])
@pytest.mark.parametrize("name", ["adamw", "adagrad", "rmsprop", "ftrl", "lamb"])
def test_one_worker_moves_as_the_same_steps_on_plain_arrays(name: str, type: str) -> None:
    """The rules themselves: tests/tensor/test_golden.py."""
    rng = np.random.default_rng(1)
    w = rng.standard_normal(50).astype("f4")
    hyper = optim.by_name(name)(lr=0.1, wd=0.01, clip_gradient=1.0).hyper
    state: dict[str, Array] = {}
    with asyncps.create(type, name=f"steps of {name}") as store:
        store.set_optimizer(name, lr=0.1, weight_decay=0.01, clip_gradient=1.0)
        store.init("w", w)
        for t in range(1, 5):
            g = rng.standard_normal(50).astype("f4")
            got = store.pushpull("w", g.copy())
            updates.run(name, dtypes.by_name("float32"), w, w, g, state, hyper, t)
            assert got.tobytes() == w.tobytes()


# -------------------------------------------------------------------------------------- f32 weights


@both_transports
def test_k1_with_multi_precision(transport: str) -> None:
    on_cluster(scenarios.k1_exact_sums, transport=transport, multi_precision=True)


@pytest.mark.slow
def test_k1_seven_workers_with_multi_precision() -> None:
    on_cluster(
        scenarios.k1_seven_workers, workers=7, servers=7, multi_precision=True,
        settings={"round_s": 120.0, "answer_s": 60.0},
    )


@both_transports
@pytest.mark.parametrize("dtype", [np.dtype("f2"), np.dtype(ml_dtypes.bfloat16)], ids=str)
def test_steps_below_the_precision_of_a_value_add_up(dtype: Any, transport: str) -> None:
    def work(store: KVStore) -> None:
        for key, size in (("small", 5), ("big", 600_000)):
            store.init(key, np.ones(size, dtype))
        store.set_optimizer("sgd", lr=2.0**-14 / store.num_workers)
        for turn in range(1, 131):
            keys = ["small"] if turn % 64 else ["small", "big"]
            got = store.pushpull(keys, [np.ones(5 if key == "small" else 600_000, dtype)
                                        for key in keys])
            exact = np.float32(1 - turn * 2.0**-14)
            assert np.all(got[0] == exact.astype(dtype))
        assert got[0][0] < 1
        # A changed optimizer goes on from the f32 weights, an assigned value from itself.
        store.set_optimizer("test", rescale_grad=0.0)
        assert np.all(store.pushpull("small", np.ones(5, dtype)) == exact.astype(dtype))
        store.set_optimizer("test", rescale_grad=2.0**-14 / store.num_workers)
        got = store.pushpull("small", np.ones(5, dtype))
        assert np.all(got == np.float32(1 - 129 * 2.0**-14).astype(dtype))
        store.barrier()
        if store.rank == 0:
            store.assign("small", np.full(5, 3, dtype))
        store.barrier()
        assert np.all(store.pushpull("small", np.zeros(5, dtype)) == 3)

    on_cluster(work, transport=transport, multi_precision=True)


def test_without_multi_precision_such_steps_are_lost() -> None:
    def work(store: KVStore) -> None:
        store.init("w", np.ones(5, "f2"))
        store.set_optimizer("sgd", lr=2.0**-14 / store.num_workers)
        for _ in range(5):
            assert np.all(store.pushpull("w", np.ones(5, "f2")) == 1)

    on_cluster(work)


def test_local_store_keeps_f32_weights_too() -> None:
    with asyncps.create("local", multi_precision=True) as store:
        store.init("w", np.ones(5, "f2"))
        store.set_optimizer("sgd", lr=2.0**-14)
        for turn in range(1, 40):
            store.push("w", np.ones(5, "f2"))
            assert np.all(store.pull("w") == np.float32(1 - turn * 2.0**-14).astype("f2"))
        store.assign("w", np.full(5, 3, "f2"))
        store.push("w", np.zeros(5, "f2"))
        assert np.all(store.pull("w") == 3)


# ------------------------------------------------------------------------- optimizers of one's own


@both_transports
@pytest.mark.usefixtures("registered")
def test_optimizer_of_the_users_own_moves_the_weights_and_its_failure_reaches_all(
    transport: str,
) -> None:
    class Signs(optim.Optimizer):
        """Moves by the sign of the sum of all gradients so far; refuses gradients of 99."""

        def init(self, spec: optim.Spec) -> dict[str, Any]:
            return {"sum": np.zeros(spec.shape, spec.dtype)}

        def update(self, weight: Any, grad: Any, state: Any, hyper: Any) -> None:
            state["sum"] += hyper["rescale_grad"] * grad
            weight += hyper["learning_rate"] * np.sign(state["sum"])
            if grad.max(initial=0) >= 99:
                raise RuntimeError("that is too much")

    def work(store: KVStore) -> None:
        shapes = {"a": (3,), "b": (2, 2), "big": (300_000,)}
        keys = list(shapes)
        store.init(keys, [np.zeros(shapes[key], "f4") for key in keys])
        store.set_optimizer("signs", lr=1.0, lr_mult={"b": 2.0})
        for push, wanted in ((1, 1), (-3, 0), (1, -1)):
            got = store.pushpull(keys, [np.full(shapes[key], push, "f4") for key in keys])
            for key, value in zip(keys, got, strict=True):
                assert np.all(value == wanted * (2 if key == "b" else 1))
        for key in ("a", "big"):
            with pytest.raises(OptimizerError, match=r"signs failed.*that is too much"):
                store.pushpull(key, np.full(shapes[key], 99, "f4"))
            # Neither weights nor state have moved, nor are they counted as if.
            assert np.all(store.pushpull(key, np.full(shapes[key], 5, "f4")) == 0)

    on_cluster(work, transport=transport)


@pytest.mark.parametrize("key", ["\udcff", 2**70, -(2**63) - 1], ids=ascii)
@pytest.mark.parametrize("kind", ["local", "dist_sync"])
def test_factor_of_a_key_that_no_store_can_have_is_refused_at_the_caller(
    kind: str, key: Any
) -> None:
    with asyncps.create(kind) as store:
        store.init("w", np.zeros(3, "f4"))
        store.set_optimizer("sgd", lr=1.0)
        for words in ({"lr_mult": {key: 1.0}}, {"wd_mult": {key: 1.0}}):
            with pytest.raises(OptimizerError, match="keys of the store"):
                store.set_hyperparameters(**words)
            with pytest.raises(OptimizerError, match="keys of the store"):
                store.set_optimizer("sgd", **words)
        with pytest.raises(OptimizerError, match="unknown optimizer"):
            store.set_optimizer("\udcff")
        store.push("w", np.ones(3, "f4"))
        assert store.pull("w").tolist() == [-1, -1, -1]
