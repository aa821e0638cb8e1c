"""powersgd in stores: beside a model of the paper, on every way that a key travels."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from asyncps.errors import TensorError
from asyncps.kvstore import KVStore
from asyncps_ext.seeds import seed_of
from tests.kvstore.scenarios import BF16
from tests.support.cluster import on_cluster
from tests.tensor.powersgd_model import Model, first_q, payload_bytes

# Large ones, which chunks cut in the middle of rows: square, tall, wide, of a convolution; and
# small ones, which share a slab.
SHAPES: dict[str, tuple[int, ...]] = {
    "square": (211, 200), "tall": (3001, 17), "wide": (40, 1500), "conv": (512, 4, 3, 3),
    "small": (30, 20), "flat conv": (64, 1, 3, 3),
}
CUT = {"chunk_bytes": 65536}


def coder_of(store: KVStore, key: Any) -> Any:
    return store._core.client.compression._coders[key]


def matrix_of(value: Any) -> Any:
    value = np.squeeze(value)
    return value.reshape(len(value), -1).astype("f8")


def gradient(rank: int, turn: int, key: str, dtype: Any = "f4") -> Any:
    seed = [rank, turn, list(SHAPES).index(key)]
    return np.random.default_rng(seed).normal(size=SHAPES[key]).astype(dtype)


def models(store: KVStore, rank: int) -> dict[str, Model]:
    """One for each key of a worker: its first factor is that of job, store and key."""
    job, number = store._core.client.compression._seed
    return {key: Model(first_q(matrix_of(np.zeros(shape)).shape[1], rank,
                               seed_of(job, number, key)))
            for key, shape in SHAPES.items()}


@pytest.mark.parametrize(("workers", "servers", "transport"), [
    (1, 1, "memory"), (2, 2, "memory"), (2, 2, "tcp"), (3, 2, "memory"),
])  # fmt: skip
@pytest.mark.parametrize("order", ["arrival", "rank"])
def test_the_sum_is_that_of_what_the_paper_says(
    workers: int, servers: int, transport: str, order: str
) -> None:
    def work(store: KVStore) -> None:
        keys = list(SHAPES)
        store.init(keys, [np.zeros(shape, "f4") for shape in SHAPES.values()])
        store.set_gradient_compression({"type": "powersgd", "rank": 2, "small_bytes": 0})
        store.set_optimizer("test")
        workers_of = [models(store, 2) for _ in range(store.num_workers)]
        weights = {key: np.zeros(shape) for key, shape in SHAPES.items()}
        for turn in range(3):
            mine = [gradient(store.rank, turn, key) for key in keys]
            if turn == 0:
                store.push(keys, mine)
                got = store.pull(keys)
            elif turn == 1:
                got = store.pushpull(keys, mine, out=[np.empty_like(g) for g in mine])
            else:
                got = [store.pushpull(key, g) for key, g in zip(keys, mine, strict=True)]
            for key, value in zip(keys, got, strict=True):
                for rank, each in enumerate(workers_of):
                    sent = each[key].push(matrix_of(gradient(rank, turn, key)))
                    weights[key] += sent.reshape(weights[key].shape)
                assert np.allclose(value, weights[key], atol=1e-4), (key, turn)
                left = workers_of[store.rank][key].error.reshape(-1)
                assert np.allclose(coder_of(store, key).residual, left, atol=1e-4), (key, turn)
        report = store.compression_report()
        assert {report[key]["codec"] for key in keys} == {"powersgd"}
        for key in keys:
            info = store._core.client.keys[key]
            n = matrix_of(np.zeros(SHAPES[key])).shape[1]
            expected = sum(payload_bytes(begin, stop, n, 2) for begin, stop in info.cuts)
            assert report[key]["bytes_sent"] == 3 * expected, key
            assert (len(info.cuts) > 1) == (4 * math.prod(SHAPES[key]) > 65536), key

    on_cluster(work, workers=workers, servers=servers, transport=transport, settings=CUT,
               order=order)


@pytest.mark.parametrize("dtype", ["f4", "f2", BF16], ids=["f32", "f16", "bf16"])
@pytest.mark.parametrize("type", ["dist_sync", "dist_async"])
def test_nothing_is_lost(dtype: Any, type: str) -> None:
    def work(store: KVStore) -> None:
        keys = list(SHAPES)
        store.init(keys, [np.zeros(shape).astype(dtype) for shape in SHAPES.values()])
        store.set_gradient_compression({"type": "powersgd", "rank": 2, "small_bytes": 0})
        store.set_optimizer("test")
        totals = {key: np.zeros(shape) for key, shape in SHAPES.items()}
        for turn in range(4):
            for key in keys:
                g = gradient(store.rank, turn, key, dtype)
                totals[key] += g.astype("f8")
                store.push(key, g)
        store.barrier()
        for key in keys:
            totals[key] -= coder_of(store, key).residual.reshape(totals[key].shape)
        told = [f"{key} told" for key in keys]  # what all have sent, by keys that are f32 and dense
        store.init(told, [np.zeros(shape, "f4") for shape in SHAPES.values()])
        store.set_gradient_compression({"type": "f16", "small_bytes": 1 << 40}, keys=told)
        store.push(told, [totals[key].astype("f4") for key in keys])
        store.barrier()
        off = {"f4": 1e-5, "f2": 2e-3}.get(dtype if isinstance(dtype, str) else "", 1e-2)
        for key, other in zip(keys, told, strict=True):
            sent, expected = np.float32(store.pull(key)), store.pull(other)
            assert np.abs(sent - expected).max() <= off * np.abs(expected).max(), key

    on_cluster(work, settings=CUT, type=type, multi_precision=True)


def test_what_goes_dense_says_why() -> None:
    def work(store: KVStore) -> None:
        keys = ["bias", "two", "nearly", "long rows", "fits", "small"]
        shapes = [(20_000,), (2, 20_000), (5, 9_000), (6, 40_000), (200, 200), (4, 4)]
        store.init(keys, [np.zeros(shape, "f4") for shape in shapes])
        store.set_gradient_compression({"type": "powersgd", "rank": 4}, keys=["nearly"])
        store.set_gradient_compression({"type": "powersgd"}, keys=["bias", "two", "long rows"])
        store.set_gradient_compression({"type": "powersgd", "rank": 8}, keys=["fits", "small"])
        report = store.compression_report()
        assert {key: report[key].get("why") for key in keys} == {
            "bias": "a vector", "two": "a matrix of 2 x 20000 has no more than rank 2",
            "nearly": "factors of rank 4 take no fewer bytes",
            "long rows": "factors of rank 2 take no fewer bytes",  # whose chunks are shorter
            "fits": None, "small": "smaller than 65536 bytes"}
        grads = [np.random.default_rng(i).normal(size=shape).astype("f4")
                 for i, shape in enumerate(shapes)]
        for key, got, g in zip(keys, store.pushpull(keys, grads), grads, strict=True):
            if key != "fits":
                assert np.array_equal(got, g), key
        cuts = store._core.client.keys["fits"].cuts
        assert store.compression_report()["fits"]["bytes_sent"] == sum(
            payload_bytes(begin, stop, 200, 8) for begin, stop in cuts)

    on_cluster(work, workers=1, settings=CUT)


def test_first_pushes_dense_and_all_workers_begin_alike() -> None:
    """Workers with the same gradients send the same: their sum is of the rank of one."""

    def work(store: KVStore) -> None:
        shape = (120, 200)
        store.init("w", np.zeros(shape, "f4"))
        store.set_gradient_compression({"type": "powersgd", "rank": 3, "start": 2})
        for turn in range(4):
            g = np.random.default_rng(turn).normal(size=shape).astype("f4")
            got = store.pushpull("w", g, out=np.zeros(shape, "f4"))
            if turn < 2:
                assert np.array_equal(got, 2 * g)
            else:
                assert np.linalg.matrix_rank(got, tol=1e-2) == 3
            assert (coder_of(store, "w").residual.any()) == (turn >= 2)

    on_cluster(work, settings=CUT)


def test_a_gradient_that_is_not_finite_changes_nothing() -> None:
    def work(store: KVStore) -> None:
        store.init("w", np.zeros((120, 200), "f4"))
        store.set_gradient_compression({"type": "powersgd"})
        g = np.random.default_rng(1).normal(size=(120, 200)).astype("f4")
        store.push("w", g)
        coder = coder_of(store, "w")
        before = coder.residual.copy(), coder.extra.copy(), coder.pushes
        g[5, 5] = np.inf
        with pytest.raises(TensorError, match="key 'w', rank 0"):
            store.push("w", g)
        assert np.array_equal(coder.residual, before[0])
        assert np.array_equal(coder.extra, before[1])
        assert coder.pushes == before[2]

    on_cluster(work, workers=1)


def test_it_works_with_other_options() -> None:
    """Pulls in half the bytes; a residual that follows the learning rate; none at all."""

    def work(store: KVStore) -> None:
        names, shape = ["half", "scaled", "lost"], (120, 200)
        store.init(names, [np.zeros(shape, "f4")] * 3)
        store.set_optimizer("sgd", learning_rate=0.5)
        for name, options in zip(names, ({"pull": "f16"}, {"lr_scaled": True},
                                         {"error_feedback": False}), strict=True):
            store.set_gradient_compression({"type": "powersgd", **options}, keys=[name])
        g = np.random.default_rng(1).normal(size=shape).astype("f4")
        got = store.pushpull(names, [g, g, g], out=[np.zeros(shape, "f4") for _ in names])
        assert np.array_equal(got[0], got[0].astype("f2").astype("f4"))
        assert not np.array_equal(got[1], got[1].astype("f2").astype("f4"))
        kept = coder_of(store, "scaled").residual.copy()
        store.set_hyperparameters(learning_rate=0.05)
        zero = np.zeros(shape, "f4")
        store.push(names, [zero, zero, zero])
        total = store.pull("scaled") / -0.05 + coder_of(store, "scaled").residual.reshape(shape)
        assert np.allclose(total, 10 * g, atol=1e-3)  # worth at 0.05 what it was at 0.5
        assert np.linalg.norm(kept) > 1
        assert coder_of(store, "lost").residual is None
        assert np.array_equal(store.pull("lost"), got[2])  # nothing was left to be sent

    on_cluster(work, workers=1, servers=1)


def test_a_linear_model_learns() -> None:
    """Sixty inputs, forty outputs: as far with a sixth of the bytes as with all of them."""

    def work(store: KVStore) -> tuple[float, float]:
        chance = np.random.default_rng(store.rank)
        truth = np.random.default_rng(77).normal(size=(60, 40)).astype("f4")
        x = chance.normal(size=(400, 60)).astype("f4")
        y = x @ truth
        store.init(["coded", "plain"], [np.zeros((60, 40), "f4")] * 2)
        store.set_gradient_compression(
            {"type": "powersgd", "rank": 4, "small_bytes": 0}, keys=["coded"])
        store.set_optimizer("sgd", learning_rate=0.02)
        w = [np.zeros((60, 40), "f4")] * 2
        for _ in range(600):
            w = store.pushpull(["coded", "plain"], [x.T @ (x @ each - y) / 400 for each in w])
        report = store.compression_report()
        assert report["coded"]["bytes_sent"] == 600 * (12 + 4 * 4 * 100)
        return tuple(float(np.abs(each - truth).max()) for each in w)

    for coded, plain in on_cluster(work):
        assert plain < 1e-3
        assert coded < 1e-2
