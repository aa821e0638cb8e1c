"""What optimizers do to rows on servers: lazily or not, by key, by schedule, in every dtype."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

import asyncps
from asyncps import RowSparse
from asyncps.initializer import Constant, Normal, One
from asyncps.kvstore import KVStore
from tests.kvstore.table_scenarios import BF16, rows
from tests.support.cluster import on_cluster

SHAPE = (12, 4)
FREE = pytest.mark.parametrize(
    "options", [{"type": "dist_async"}, {"type": "dist_ssp", "staleness": 1}],
    ids=["async", "ssp"],
)


class Momentum:
    """SGD with momentum and weight decay, row by row, in NumPy."""

    def __init__(self, start: Any, lr: float, momentum: float, wd: float, lazy: bool) -> None:
        self.weight = np.array(start, "f4")
        self.speed = np.zeros_like(self.weight)
        self.lr, self.momentum, self.wd, self.lazy = map(np.float32, (lr, momentum, wd, lazy))

    def step(self, gradient: np.ndarray[Any, Any], touched: Any, lr: float | None = None) -> None:
        which = touched if self.lazy else np.arange(len(self.weight))
        rate = self.lr if lr is None else np.float32(lr)
        g = gradient[which] + self.wd * self.weight[which]
        self.speed[which] = self.momentum * self.speed[which] - rate * g
        self.weight[which] += self.speed[which]


@pytest.mark.parametrize("lazy", [True, False])
@pytest.mark.parametrize("kind", ["local", "dist_sync"])
def test_lazy_updates_touch_rows_with_a_gradient_and_full_ones_touch_all(
    kind: str, lazy: bool
) -> None:
    def work(store: Any) -> None:
        n = store.num_workers
        store.init("t", Normal(1.0), shape=SHAPE)
        model = Momentum(store.row_sparse_pull("t", range(12)).values, 0.5, 0.9, 0.1, lazy)
        store.set_optimizer("sgd", lr=0.5, momentum=0.9, wd=0.1, lazy_update=lazy)
        for step in range(5):
            gradient = np.zeros(SHAPE, "f4")
            touched = sorted({(rank + step) % 4 for rank in range(n)})
            for rank in range(n):
                gradient[(rank + step) % 4] += rank + 1
            store.push("t", rows([(store.rank + step) % 4], store.rank + 1, SHAPE))
            model.step(gradient, touched)
            found = store.row_sparse_pull("t", range(12)).values
            np.testing.assert_allclose(found, model.weight, rtol=2e-6, atol=1e-6)

    if kind == "local":
        with asyncps.create("local") as store:
            work(store)
    else:
        on_cluster(work, workers=3, servers=2)


@pytest.mark.parametrize("name", ["adam", "adamw", "adagrad", "rmsprop", "ftrl"])
def test_a_table_pushed_whole_is_updated_as_a_dense_key(name: str) -> None:
    def work(store: KVStore) -> None:
        start = np.random.default_rng(1).standard_normal(SHAPE).astype("f4")
        store.init("d", start)
        store.init("t", RowSparse(range(12), start, SHAPE))
        schedule = asyncps.optim.lr.step(base_lr=0.1, step=2, factor=0.5)
        store.set_optimizer(name, lr=schedule, wd=0.01, lr_mult={"d": 0.5, "t": 0.5},
                            wd_mult={"d": 2, "t": 2}, rescale_grad=0.5, clip_gradient=0.8)
        rng = np.random.default_rng(store.rank)
        for _ in range(5):
            gradient = rng.standard_normal(SHAPE).astype("f4")
            store.push("d", gradient)
            store.push("t", RowSparse(range(12), gradient, SHAPE))
            np.testing.assert_allclose(store.row_sparse_pull("t", range(12)).values,
                                       store.pull("d"), rtol=1e-6)

    on_cluster(work, order="rank")


@pytest.mark.parametrize("dtype", [np.dtype("f2"), BF16], ids=str)
@pytest.mark.parametrize("kept", [True, False])
def test_multi_precision_keeps_f32_rows(kept: bool, dtype: Any) -> None:
    def work(store: KVStore) -> None:
        one = np.ones(SHAPE, dtype)
        store.init("d", one)
        store.init("t", One(), shape=SHAPE, dtype=dtype)
        store.set_optimizer("sgd", lr=1e-4)
        for step in range(20):
            store.push("d", one)
            store.push("t", RowSparse(range(12), one, SHAPE))
            if step == 10:
                store.barrier()
                if store.rank == 0:
                    store.assign("t", rows([3], 2, SHAPE, dtype))
                store.barrier()
        found = store.row_sparse_pull("t", range(12)).values
        dense = store.pull("d")
        others = [row for row in range(12) if row != 3]
        assert (found[others] == dense[others]).all()
        assert (float(found[0, 0]) < 1) is kept
        assert float(found[3, 0]) > 1.9

    on_cluster(work, multi_precision=kept)


def test_the_mean_divides_by_the_workers_and_not_by_those_with_a_row() -> None:
    def work(store: KVStore) -> None:
        store.init("t", Constant(0.0), shape=SHAPE)
        store.push("t", rows([store.rank, 5], 3, SHAPE))
        found = store.row_sparse_pull("t", [0, 1, 2, 5, 6]).values[:, 0]
        assert found.tolist() == [1, 1, 1, 3, 0]

    on_cluster(work, workers=3, reduce="mean")


def test_hyper_parameters_change_and_the_state_stays() -> None:
    def work(store: KVStore) -> None:
        store.init("t", One(), shape=SHAPE)
        store.set_optimizer("sgd", lr=0.5, momentum=0.9)
        model = Momentum(np.ones(SHAPE), 0.5, 0.9, 0, True)
        for step in range(4):
            if step == 2:
                store.set_hyperparameters(lr=0.25)
            store.push("t", rows([1, 2], 1, SHAPE))
            gradient = np.full(SHAPE, 2, "f4")
            model.step(gradient, [1, 2], 0.5 if step < 2 else 0.25)
            np.testing.assert_allclose(
                store.row_sparse_pull("t", range(12)).values, model.weight, rtol=1e-6)

    on_cluster(work)


@FREE
@pytest.mark.parametrize("transport", ["memory", "tcp"])
def test_k14_every_push_of_rows_counts_once(options: dict[str, Any], transport: str) -> None:
    def work(store: KVStore) -> None:
        n = store.num_workers
        store.init("t", One(), shape=SHAPE)
        store.set_optimizer("test", rescale_grad=2)
        for _ in range(6):
            store.push("t", rows([store.rank, 7], store.rank + 1, SHAPE))
        store.barrier()
        store.row_sparse_pull("t", [0])
        store.barrier()
        found = store.row_sparse_pull("t", range(9)).values[:, 0].tolist()
        mine = [1.0 + 12 * (rank + 1) if rank < n else 1.0 for rank in range(7)]
        assert found == [*mine, 1 + 12 * n * (n + 1) / 2, 1]

    on_cluster(work, workers=3, servers=2, transport=transport, **options)


@FREE
def test_a_worker_sees_its_own_push_and_needs_an_optimizer(options: dict[str, Any]) -> None:
    def work(store: KVStore) -> None:
        store.init("t", One(), shape=SHAPE)
        with pytest.raises(asyncps.errors.OptimizerError):
            store.push("t", rows([0], 1, SHAPE))
        store.set_optimizer("test", rescale_grad=1)
        for step in range(3):
            store.push("t", rows([store.rank], 1, SHAPE))
            found = store.row_sparse_pull("t", [store.rank])
            assert (found.values == 2 + step).all()

    on_cluster(work, transport="tcp", **options)


def test_several_threads_and_pulls_under_way() -> None:
    def work(store: KVStore) -> None:
        store.init("t", One(), shape=(1000, 3))
        handles = [store.row_sparse_pull("t", range(i, 1000, 3), async_op=True) for i in range(30)]
        failed: list[Exception] = []

        def ask() -> None:
            try:
                for i in range(20):
                    assert (store.row_sparse_pull("t", [i, 999]).values == 1).all()
            except Exception as error:  # noqa: BLE001 - told below
                failed.append(error)

        threads = [threading.Thread(target=ask) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not failed
        for i, handle in enumerate(handles):
            assert handle.wait(20).rows.tolist() == list(range(i, 1000, 3))

    on_cluster(work, transport="tcp")
