"""Compression of the store type `allreduce`: ACCEPTANCE K4 to K6 by pushpull, trainers, reports."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import asyncps
from asyncps.allreducestore import AllReduceStore
from asyncps.errors import AsyncPSError, ConfigError, Disagreement, TensorError
from tests.kvstore.compressed import SHAPES, T, model_2bit
from tests.support.cluster import on_cluster
from tests.support.variants import all_on_each_variant
from tests.trainer.params import Param
from tests.trainer.test_compression import sends_what_mxnet_sends

variant = all_on_each_variant(autouse=False)


def on_workers(work: Any, workers: int = 2, **options: Any) -> list[Any]:
    options = {"servers": 0, "transport": "tcp", "type": "allreduce", **options}
    return on_cluster(work, workers=workers, **options)


@pytest.mark.usefixtures("variant")
@pytest.mark.parametrize("workers", [1, 2, 3])
def test_k4_2bit(workers: int) -> None:
    """What is below the threshold stays, and is sent when it has come together."""

    def work(store: AllReduceStore) -> None:
        store.set_gradient_compression({"type": "2bit", "threshold": T})
        for key, shape in SHAPES.items():
            store.init(key, np.zeros(shape, "f4"))
        for grad, sent in ((0, 0), (0.4, 0), (T - 0.4, T), (0.2, 0), (T - 0.2, T), (T, T)):
            for key, shape in SHAPES.items():
                got = store.pushpull(key, np.full(shape, grad, "f4"))
                assert np.all(got == np.float32(workers * sent)), (key, grad)

    on_workers(work, workers)


@pytest.mark.usefixtures("variant")
@pytest.mark.parametrize("async_op", [False, True])
def test_k5_random_gradients(async_op: bool) -> None:
    """Seven rounds; calls of one key may overlap."""

    def work(store: AllReduceStore) -> None:
        store.init(list(SHAPES), [np.zeros(shape, "f4") for shape in SHAPES.values()])
        store.set_gradient_compression({"type": "2bit", "threshold": T}, "*")
        chance = np.random.default_rng(5)
        residuals = {key: np.zeros(shape, "f4") for key, shape in SHAPES.items()}
        under_way = []
        for _ in range(7):
            gs = [chance.uniform(-1, 1, shape).astype("f4") for shape in SHAPES.values()]
            want = [store.num_workers * model_2bit(residuals[key], g, T)
                    for key, g in zip(SHAPES, gs, strict=True)]
            handle = store.pushpull(list(SHAPES), gs, async_op=True)
            under_way.append((handle, want))
            if not async_op:
                handle.wait()
        for handle, want in reversed(under_way):
            for got, expected in zip(handle.wait(), want, strict=True):
                assert np.array_equal(got, expected)

    on_workers(work)


def test_a_mean_of_what_came() -> None:
    def work(store: AllReduceStore) -> None:
        store.init("w", np.zeros(SHAPES["odd"], "f4"))
        store.set_gradient_compression({"type": "topk", "ratio": 1.0}, ["w"])
        got = store.pushpull("w", np.full(SHAPES["odd"], store.rank, "f4"))
        assert np.all(got == 1)

    on_workers(work, 3, reduce="mean")


def test_overlapping_factors_of_one_key_go_one_after_the_other() -> None:
    """powersgd: each begins with the factor that the one before has led to: the bits are those of
    calls that are waited for, one by one."""
    shape, rounds = (200, 150), 5

    def gradient(rank: int, at: int) -> Any:
        return np.random.default_rng((rank, at)).standard_normal(shape).astype("f4")

    def sums(overlapping: bool) -> list[Any]:
        def work(store: AllReduceStore) -> Any:
            store.init("w", np.zeros(shape, "f4"))
            store.set_gradient_compression({"type": "powersgd", "rank": 2})
            handles = []
            for at in range(rounds):
                handles.append(store.pushpull("w", gradient(store.rank, at), async_op=True))
                if not overlapping:
                    handles[-1].wait()
            return [handle.wait() for handle in handles]

        first, second = on_workers(work, settings={"job": "factors"})
        assert all(np.array_equal(a, b) for a, b in zip(first, second, strict=True))
        return first

    for a, b in zip(sums(True), sums(False), strict=True):
        assert np.array_equal(a, b)


@pytest.mark.parametrize("keys", ["fc.w", "fc*", ["fc.w"]], ids=str)
def test_rules_of_a_trainers_parameters_are_of_its_gradients(keys: Any) -> None:
    def work(store: AllReduceStore) -> None:
        store.set_gradient_compression({"type": "topk", "ratio": 0.01, "small_bytes": 0}, keys)
        params = {"fc.w": Param(np.zeros((100, 100), "f4")), "b": Param(np.zeros(5, "f4"))}
        trainer = asyncps.Trainer(params, "sgd", {"learning_rate": 1.0}, kvstore=store)
        for param in params.values():
            param.grad = np.ones_like(param.data)
        trainer.step(1)
        assert np.count_nonzero(params["fc.w"].data) == 100
        report = store.compression_report()
        assert report["fc.w"]["codec"] == "topk"
        assert 0 < report["fc.w"]["bytes_sent"] < 4000
        assert report["b"]["codec"] == "dense"

    on_workers(work)


def test_a_call_that_is_refused_at_its_worker_takes_no_number() -> None:
    def work(store: AllReduceStore) -> None:
        store.init(["v", "w"], [np.zeros((300, 300), "f4")] * 2)
        store.set_gradient_compression({"type": "topk", "ratio": 1.0})
        real = store._calling.comm._in_place
        if store.rank:
            def failing(x: Any, name: Any) -> Any:
                if "'w'" in name:
                    raise MemoryError
                return real(x, name)

            store._calling.comm._in_place = failing  # type: ignore[method-assign]
            with pytest.raises(MemoryError):
                store.pushpull(["v", "w"], [np.ones((300, 300), "f4") for _ in range(2)])
            store._calling.comm._in_place = real  # type: ignore[method-assign]
            handles = [store.pushpull("w", np.ones((300, 300), "f4"), async_op=True)]
        else:
            handles = [store.pushpull(key, np.ones((300, 300), "f4"), async_op=True)
                       for key in ("v", "w")]
        for handle in handles:
            assert np.all(handle.wait() == 2)

    on_workers(work)


@pytest.mark.parametrize("spec", [
    {"type": "f16"}, {"type": "topk", "ratio": 0.25}, {"type": "int8"}, {"type": "onebit"},
    {"type": "randomk", "ratio": 0.25}, {"type": "powersgd", "rank": 1, "small_bytes": 0},
    {"type": "dgc", "ratio": 0.25, "momentum": 0.5},
], ids=lambda spec: str(spec["type"]))  # fmt: skip
def test_a_trainer_converges(spec: dict[str, Any]) -> None:
    """Least squares of two workers with half of the data each: all come to one solution."""
    rng = np.random.default_rng(3)
    truth = rng.standard_normal((20, 2)).astype("f4")
    xs = rng.standard_normal((2, 64, 20)).astype("f4")

    def work(store: AllReduceStore) -> Any:
        param = Param(np.zeros((20, 2), "f4"))
        with asyncps.Trainer([param], "sgd", {"learning_rate": 0.1}, kvstore=store,
                             compression_params={"small_bytes": 0, **spec}) as trainer:
            x = xs[store.rank]
            for _ in range(300):
                param.grad = (x.T @ (x @ param.data - x @ truth)).astype("f4")
                trainer.step(128)
            told = store.compression_report()
            assert list(told) == [0]
            assert told[0]["codec"] == spec["type"]
            assert told[0]["paid"] is None
        return param.data.copy()

    first, second = on_workers(work)
    assert np.array_equal(first, second)
    np.testing.assert_allclose(first, truth, atol=0.05)


def test_a_trainer_sends_what_mxnet_sends() -> None:
    """Small keys too."""
    on_workers(lambda store: sends_what_mxnet_sends(store, (3, 20_000), None))


def test_what_does_not_go_together_is_refused(tmp_path: Path, caplog: Any) -> None:
    def work(store: AllReduceStore) -> None:
        param = Param(np.ones((30, 30), "f4"))
        param.grad = np.ones_like(param.data)
        with pytest.raises(ConfigError, match="has the momentum"):
            asyncps.Trainer([param], "sgd", {"momentum": 0.9}, kvstore=store,
                            compression_params={"type": "dgc"}).step(1)
        store.set_gradient_compression(None)
        with pytest.raises(ConfigError, match="pull"):
            store.set_gradient_compression({"type": "topk", "pull": "f16"})
        with pytest.raises(Disagreement, match="threshold"):
            store.set_gradient_compression({"type": "2bit", "threshold": 1.0 + store.rank})
        store.init("z", np.ones((40, 40), "f4"))
        store.set_gradient_compression({"type": "topk", "ratio": 0.01, "small_bytes": 0}, "z")
        store.pushpull("z", np.ones((40, 40), "f4"))
        trainer = asyncps.Trainer([Param(np.ones((30, 30), "f4"))], "sgd", kvstore=store)
        trainer.save_states(tmp_path / f"states{store.rank}")

    on_workers(work)
    assert "does not write what compression has not sent yet" in caplog.text


def test_rules_of_nobody_are_warned_of(caplog: Any) -> None:
    def work(store: AllReduceStore) -> None:
        store.init("weight", np.ones((40, 40), "f4"))
        store.set_gradient_compression({"type": "topk"}, "wieght*")
        store.pushpull("weight", np.ones((40, 40), "f4"))

    on_workers(work)
    assert caplog.text.count("'wieght*'") == 1


def test_lr_scaled_follows_a_trainers_rate() -> None:
    """What is kept is worth at the new rate what it was worth at the old."""

    def work(store: AllReduceStore) -> None:
        param = Param(np.zeros(1000, "f4"))
        trainer = asyncps.Trainer(
            [param], "sgd", {"learning_rate": 1.0}, kvstore=store,
            compression_params={"type": "threshold", "threshold": 1.0, "lr_scaled": True,
                                "small_bytes": 0})
        param.grad = np.full(1000, 0.5, "f4")
        trainer.step(1)
        assert not param.data.any()
        trainer.set_learning_rate(0.25)
        param.grad = np.zeros(1000, "f4")
        trainer.step(1)  # 0.5 of the old rate is 2 of the new
        np.testing.assert_allclose(param.data, -0.25 * 2.0 * store.num_workers)
        param.grad = np.zeros(1000, "f4")
        with pytest.raises(ConfigError, match="schedule"):
            asyncps.Trainer(
                [param], "sgd", {"learning_rate": {"schedule": "step", "base_lr": 1.0, "step": 2}},
                kvstore=store).step(1)

    on_workers(work)


def test_all_workers_hear_of_a_gradient_that_is_not_finite() -> None:
    def work(store: AllReduceStore) -> None:
        store.init("w", np.zeros((300, 300), "f4"))
        store.set_gradient_compression({"type": "topk", "ratio": 0.5})
        g = np.full((300, 300), store.rank or np.nan, "f4")
        with pytest.raises(TensorError, match="rank 0"):
            store.pushpull("w", g)
        handle = store.pushpull("w", g, async_op=True)
        while not handle.done():
            pass
        assert isinstance(handle.exception(), TensorError)
        with pytest.raises(TensorError):
            handle.wait()
        got = store.pushpull("w", np.full((300, 300), 2.0 + store.rank, "f4"))
        assert np.count_nonzero(got) >= got.size // 2

    on_workers(work)


def test_a_job_of_one_is_asked_for_the_same_words() -> None:
    with asyncps.create("allreduce") as store:
        store.init("w", np.zeros((300, 300), "f4"))
        store.set_gradient_compression({"type": "topk", "ratio": 0.5})
        got = store.pushpull("w", np.arange(90_000, dtype="f4").reshape(300, 300))
        assert np.count_nonzero(got) == 45_000
        with pytest.raises(AsyncPSError, match="unknown type"):
            store.set_gradient_compression({"type": "top"})


@pytest.mark.parametrize("waiting", [False, True])
def test_lr_scaled_is_of_the_rate_at_the_call_also_where_calls_overlap(waiting: bool) -> None:
    def work(store: AllReduceStore) -> None:
        store.init("w", np.zeros(1000, "f4"))
        store.set_gradient_compression({"type": "threshold", "threshold": 1.0, "lr_scaled": True,
                                        "small_bytes": 0})
        found = []
        for rate, value in ((1.0, 0.5), (0.25, 0.0)):
            store._use_own({"learning_rate": rate}, [])
            found.append(store.pushpull("w", np.full(1000, value, "f4"), async_op=True))
            if waiting:
                found[-1].wait()
        assert not found[0].wait().any()
        assert np.all(found[1].wait() == 2.0 * store.num_workers)

    on_workers(work)


def test_overlapping_sums_of_one_key_are_looked_at_one_after_the_other() -> None:
    """What the first has kept and the second brings are no finite number together: all hear it."""
    def work(store: AllReduceStore) -> None:
        store.init("w", np.zeros((300, 300), "f4"))
        store.set_gradient_compression({"type": "topk", "ratio": 0.01})
        value = 2e38 if store.rank == 0 else 0
        handles = [store.pushpull("w", np.full((300, 300), value, "f4"), async_op=True)
                   for _ in range(2)]
        assert np.isfinite(handles[0].wait()).all()
        with pytest.raises(TensorError, match="rank 0"):
            handles[1].wait()
        got = store.pushpull("w", np.zeros((300, 300), "f4"))
        assert np.isfinite(got).all()

    on_workers(work)
