"""Trainer on a store without servers: ACCEPTANCE K8 and K9, and the bits of dist_sync."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import asyncps
from asyncps.allreducestore import AllReduceStore
from asyncps.errors import ConfigError, NotYetError
from tests.support.cluster import on_cluster, on_processes
from tests.support.processes import ProcessGroup
from tests.trainer.params import Param, ones

SHAPES = {"a": (2, 3), "b": (7,), "c": (300, 300), "d": (1200, 500)}


def on_workers(work: Any, workers: int = 2, **options: Any) -> list[Any]:
    options = {"servers": 0, "transport": "tcp", "type": "allreduce", **options}
    return on_cluster(work, workers=workers, **options)


@pytest.mark.parametrize("wanted", [None, False])
def test_k9_workers_update(wanted: bool | None) -> None:
    def work(store: AllReduceStore) -> None:
        trainer = asyncps.Trainer([ones(3)], "sgd", kvstore=store, update_on_kvstore=wanted)
        assert trainer.update_on_kvstore is False
        assert trainer.kvstore is store

    on_workers(work)
    for kind in ("allreduce", "horovod"):
        with asyncps.Trainer([ones(3)], "sgd", kvstore=kind, update_on_kvstore=wanted) as trainer:
            assert trainer.update_on_kvstore is False
            assert trainer.kvstore.type == "allreduce"


def test_k9_a_store_that_shall_update_is_a_value_error() -> None:
    def work(store: AllReduceStore) -> None:
        with pytest.raises(ValueError, match="update_on_kvstore with allreduce"):
            asyncps.Trainer([ones(3)], "sgd", kvstore=store, update_on_kvstore=True)
        store.barrier()

    on_workers(work)


def k8(store: AllReduceStore) -> None:
    """K8: weights begin as rank 0's ones; sgd of rate 1, gradient rank+1, step(1)."""
    n = store.num_workers
    for shape in ((2, 3), (300, 300)):
        param = Param(np.full(shape, store.rank + 1, "f4"), np.full(shape, store.rank + 1, "f4"))
        trainer = asyncps.Trainer({f"{shape}": param}, "sgd", {"learning_rate": 1}, kvstore=store)
        assert np.all(param.data == 1)
        trainer.step(1)
        assert np.all(param.data == 1 - n * (n + 1) / 2)
        assert np.all(param.grad == n * (n + 1) / 2)


def changing(store: AllReduceStore) -> None:
    """A changed batch size and rate, with momentum: as one optimizer alone on the sums."""
    n = store.num_workers
    params = {"x": Param(np.full(3, 50 + store.rank, "f4")), "y": Param(np.full((200, 100), 50.0))}
    trainer = asyncps.Trainer(params, "sgd", {"lr": 0.5, "momentum": 0.5}, kvstore=store)
    w, m = 50.0, 0.0
    for batch, rate in ((4, 0.5), (2, 0.5), (4, 0.25), (8, 0.25)):
        if rate != trainer.learning_rate:
            trainer.set_learning_rate(rate)
        for param in params.values():
            param.grad = np.full(param.data.shape, store.rank + 1, param.data.dtype)
        trainer.allreduce_grads()
        trainer.update(batch)
        m = 0.5 * m - rate * (n * (n + 1) / 2) / batch
        w += m
        assert all(np.all(param.data == w) for param in params.values())  # dyadic: exact


def both(store: AllReduceStore) -> None:
    k8(store)
    changing(store)


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_k8_and_changing_batches(workers: int) -> None:
    on_workers(both, workers)


def test_on_real_processes_without_servers(processes: ProcessGroup) -> None:
    on_processes(processes, both, workers=2, servers=0, type="allreduce")


def trained(
    store: Any, dtype: str, optimizer: str, hyper: dict[str, Any], devices: int = 1
) -> list[bytes]:
    """Train some steps on random gradients; return weights and last sums."""
    rng = np.random.default_rng(store.rank)
    params = {}
    for key, shape in SHAPES.items():
        data = [rng.standard_normal(shape).astype(dtype) for _ in range(devices)]
        params[key] = Param(data if devices > 1 else data[0])
    trainer = asyncps.Trainer(params, optimizer, hyper, kvstore=store, update_on_kvstore=False)
    for _ in range(3):
        for key, param in params.items():
            grads = [rng.standard_normal(SHAPES[key]).astype(dtype) for _ in range(devices)]
            param.grad = grads if devices > 1 else grads[0]
        trainer.step(32 * store.num_workers)
    return [np.asarray(array).tobytes() for param in params.values()
            for array in (param.data, param.grad)]


@pytest.mark.parametrize("workers", [1, 2, 3])
@pytest.mark.parametrize(("dtype", "optimizer", "hyper"), [
    ("float32", "sgd", {"lr": 0.1, "momentum": 0.9, "wd": 1e-4}), ("float16", "adam", {}),
    ("float64", "rmsprop", {}),
])  # fmt: skip
def test_the_bits_of_dist_sync_in_the_order_of_ranks(
    workers: int, dtype: str, optimizer: str, hyper: dict[str, Any]
) -> None:
    def work(store: Any) -> list[bytes]:
        return trained(store, dtype, optimizer, hyper)

    ours = on_workers(work, workers)
    assert ours[1:] == ours[:-1]
    assert ours == on_cluster(work, workers=workers, order="rank")


def test_several_local_devices_have_the_bits_of_dist_sync_too() -> None:
    def work(store: Any) -> list[bytes]:
        return trained(store, "float32", "sgd", {"lr": 0.1}, devices=2)

    assert on_workers(work) == on_cluster(work, order="rank")


def test_weights_changed_by_hand_are_rank_0s_again() -> None:
    def work(store: AllReduceStore) -> None:
        param = Param([np.full(3, 1.0), np.full(3, 1.0)], [np.ones(3), np.ones(3)])
        fixed = Param(np.full(4, store.rank + 2.0), grad_req="null")
        trainer = asyncps.Trainer([param], "sgd", {"lr": 1}, kvstore=store)
        for array in param.data:
            array[:] = store.rank + 5
        trainer.assign_weights()
        assert all(np.all(array == 5) for array in param.data)
        trainer.step(1)
        assert all(np.all(array == 1) for array in param.data)
        asyncps.Trainer({"f": fixed}, "sgd", kvstore=store).step(1)
        assert np.all(fixed.data == 2)

    on_workers(work)


def test_a_missing_gradient_counts_as_zeros_and_states_are_kept(tmp_path: Path) -> None:
    def work(store: AllReduceStore) -> None:
        param = Param(np.full(3, 8.0), None if store.rank else np.full(3, 2.0))
        words = "sgd", {"lr": 1.0, "momentum": 0.5}
        trainer = asyncps.Trainer([param], *words, kvstore=store)
        trainer.step(1, ignore_stale_grad=True)
        assert np.all(param.data == 6)
        path = tmp_path / str(store.rank)
        trainer.save_states(path)
        trainer = asyncps.Trainer([param], *words, kvstore=store)
        trainer.load_states(path)
        param.grad = np.zeros(3)
        trainer.step(1)
        assert np.all(param.data == 5)

    on_workers(work)


def test_what_is_not_there_yet_says_so() -> None:
    def work(store: AllReduceStore) -> None:
        sparse = Param(np.ones((3, 2), "f4"))
        sparse.grad_stype = "row_sparse"
        with pytest.raises(NotYetError, match="row-sparse"):
            asyncps.Trainer([sparse], "sgd", kvstore=store)
        trainer = asyncps.Trainer([ones(3)], "sgd", {"lr": 1}, kvstore=store)
        with pytest.raises(ConfigError, match="join"):
            store.join()
        trainer.step(1)

    on_workers(work)
