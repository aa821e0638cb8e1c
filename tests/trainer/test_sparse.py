"""A trainer whose gradients are RowSparse: ACCEPTANCE K8 and K9."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import asyncps
from asyncps import RowSparse
from asyncps.errors import TensorError
from asyncps.kvstore import KVStore
from tests.support.cluster import on_cluster, on_processes
from tests.support.processes import ProcessGroup
from tests.trainer.params import Param, ones

SHAPE = (10, 3)


def rows(ids: Any, value: float, dtype: Any = "f4") -> RowSparse:
    return RowSparse(ids, np.full((len(ids), 3), value, dtype), SHAPE)


def sparse(value: float = 1.0) -> Param:
    return Param(np.ones(SHAPE, "f4"), rows(range(10), value))


def k8_sparse(store: KVStore) -> None:
    """K8: ones, sgd lr 1, gradient = rank+1, step(1)."""
    n = store.num_workers
    parameter = sparse(store.rank + 1)
    trainer = asyncps.Trainer([parameter], "sgd", {"learning_rate": 1}, kvstore=store)
    assert trainer.update_on_kvstore is True
    trainer.step(1)
    assert (parameter.data == 1 - n * (n + 1) / 2).all()


def rows_beside_dense(store: KVStore) -> None:
    """A few rows a step, another parameter that is dense, and one that is late."""
    n = store.num_workers
    table, dense, late = sparse(), ones(7), Param(np.ones(SHAPE, "f4"))
    late.grad_stype = "row_sparse"  # type: ignore[attr-defined]
    trainer = asyncps.Trainer({"t": table, "d": dense, "l": late}, "sgd", {"lr": 1}, kvstore=store)
    expected = np.ones(SHAPE, "f4")
    for step in range(3):
        table.grad = rows([store.rank, 5 + step], 2)
        trainer.step(2, ignore_stale_grad=True)
        for rank in range(n):
            expected[rank] -= 1
        expected[5 + step] -= n
        assert np.array_equal(table.data, expected)
        assert np.allclose(dense.data, 1 - (step + 1) * n / 2)
    assert (late.data == 1).all()


@pytest.mark.parametrize("work", [k8_sparse, rows_beside_dense])
@pytest.mark.parametrize("workers", [1, 2, 3])
def test_sparse_gradients_on_a_cluster(workers: int, work: Any) -> None:
    on_cluster(work, workers=workers, transport="tcp")


@pytest.mark.slow
def test_k8_sparse_for_seven_workers_and_seven_servers() -> None:
    on_cluster(k8_sparse, workers=7, servers=7)


@pytest.mark.slow
@pytest.mark.launch
def test_k8_sparse_on_real_processes(processes: ProcessGroup) -> None:
    on_processes(processes, k8_sparse, workers=3, servers=2)


@pytest.mark.parametrize("kind", [None, "local", "device"])
def test_sparse_gradients_of_one_process(kind: str | None) -> None:
    parameter = sparse(1)
    trainer = asyncps.Trainer([parameter], "sgd", {"lr": 0.5}, kvstore=kind)
    assert trainer.update_on_kvstore is True
    trainer.step(1)
    assert (parameter.data == 0.5).all()
    parameter.grad = rows([3], 1)
    trainer.set_learning_rate(1.0)
    trainer.step(1)
    assert parameter.data[:, 0].tolist() == [0.5] * 3 + [-0.5] + [0.5] * 6


def test_sparse_gradients_of_two_devices() -> None:
    parameter = Param([np.ones(SHAPE, "f4") for _ in range(2)], [rows([1], 1), rows([1, 2], 1)])
    asyncps.Trainer([parameter], "sgd", {"lr": 1}, kvstore="device").step(1)
    for data in parameter.data:
        assert data[:4, 0].tolist() == [1, -1, 0, 1]


@pytest.mark.parametrize("kind", [None, "local", "dist_sync", "dist_async"])
def test_k9_a_sparse_gradient_cannot_be_updated_at_the_worker(kind: str | None) -> None:
    with pytest.raises(ValueError, match="update_on_kvstore"):
        asyncps.Trainer([sparse()], "sgd", kvstore=kind, update_on_kvstore=False)


def test_a_gradient_of_another_kind_is_refused_and_nothing_is_sent() -> None:
    parameter = sparse()
    trainer = asyncps.Trainer([parameter], "sgd", {"lr": 1}, kvstore="local")
    parameter.grad = np.ones(SHAPE, "f4")
    with pytest.raises(TensorError, match="RowSparse"):
        trainer.step(1)
    parameter.grad = rows([0], 1)
    trainer.step(1)
    assert parameter.data[:2, 0].tolist() == [0, 1]
    dense = asyncps.Trainer([other := ones(10, 3)], "sgd", {"lr": 1}, kvstore="local")
    other.grad = rows([0], 1)
    with pytest.raises(TensorError, match="grad_stype"):
        dense.step(1)


def compressed_rows(store: KVStore) -> None:
    """What 2bit does not send of a row comes with a later step, beside a dense parameter."""
    n = store.num_workers
    table, dense = sparse(), ones(7)
    trainer = asyncps.Trainer({"t": table, "d": dense}, "sgd", {"lr": 1}, kvstore=store,
                              compression_params={"type": "2bit", "threshold": 0.5})
    for step in range(4):
        table.grad = rows([1, 8], 0.25)
        dense.grad[:] = 0.25
        trainer.step(1)
        sent = 0.5 * ((step + 1) // 2) * n
        assert np.array_equal(table.data[[1, 8]], np.full((2, 3), 1 - sent, "f4"))
        assert (table.data[[0, 2, 9]] == 1).all()
        assert np.allclose(dense.data, 1 - sent)
    assert {told["codec"] for told in store.compression_report().values()} == {"2bit"}


@pytest.mark.parametrize("workers", [1, 2])
def test_sparse_gradients_are_compressed(workers: int) -> None:
    on_cluster(compressed_rows, workers=workers)
