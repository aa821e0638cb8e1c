"""Wrong use of row-sparse keys: typed errors at the caller, and the store works afterwards."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import asyncps
from asyncps import RowSparse, optim
from asyncps.errors import (
    AsyncPSError,
    ConfigError,
    Disagreement,
    DtypeMismatch,
    OptimizerError,
    ShapeMismatch,
    TensorError,
    UnknownKey,
)
from asyncps.initializer import Normal, One, Zero
from asyncps.kvstore import KVStore
from asyncps.roles import tablework
from tests.support.cluster import on_cluster

SHAPE = (10, 2)


def rows(ids: Any = (1,), dtype: Any = "f4", shape: Any = SHAPE) -> RowSparse:
    return RowSparse(ids, np.ones((len(ids), *shape[1:]), dtype), shape)


MISTAKES: dict[str, tuple[Callable[[Any], Any], type[AsyncPSError], str]] = {
    "pull": (lambda s: s.pull("t"), TensorError, "row_sparse_pull"),
    "dense push": (lambda s: s.push("t", np.ones(SHAPE, "f4")), TensorError, "RowSparse"),
    "dense pushpull": (lambda s: s.pushpull("t", np.ones(SHAPE, "f4")), TensorError, "RowSparse"),
    "dense assign": (lambda s: s.assign("t", np.ones(SHAPE, "f4")), TensorError, "RowSparse"),
    "rows for a dense key": (lambda s: s.push("d", rows()), TensorError, "not row-sparse"),
    "large dense key": (lambda s: s.push("D", rows()), TensorError, "not row-sparse"),
    "rows of a dense key": (lambda s: s.row_sparse_pull("d", [1]), TensorError, "not row-sparse|"
                            "no row-sparse"),
    "unknown key": (lambda s: s.row_sparse_pull("x", [1]), UnknownKey, "x"),
    "float ids": (lambda s: s.row_sparse_pull("t", [1.0]), DtypeMismatch, "integers"),
    "float array": (lambda s: s.row_sparse_pull("t", np.ones(2)), DtypeMismatch, "integers"),
    "id too high": (lambda s: s.row_sparse_pull("t", [3, 10]), TensorError, "0 to 9.*10"),
    "negative id": (lambda s: s.row_sparse_pull("t", [-1, 2]), TensorError, "0 to 9.*-1"),
    "another shape": (lambda s: s.push("t", rows(shape=(11, 2))), ShapeMismatch, "11"),
    "another dtype": (lambda s: s.push("t", rows(dtype="f8")), DtypeMismatch, "float64"),
    "out's shape": (lambda s: s.row_sparse_pull("t", [1], out=np.ones((2, 2), "f4")),
                    ShapeMismatch, "1, 2"),
    "out's dtype": (lambda s: s.row_sparse_pull("t", [1], out=np.ones((1, 2))),
                    DtypeMismatch, "float64"),
    "out is no array": (lambda s: s.row_sparse_pull("t", [1], out=[1]), TensorError, "out"),
    "mixed pushpull": (lambda s: s.pushpull(["t", "d"], [rows(), np.ones(4, "f4")]),
                       TensorError, "call of their own"),
    "dense init": (lambda s: s.init("t", np.ones(SHAPE, "f4")), Disagreement, "another kind"),
    "row-sparse init": (lambda s: s.init("d", One(), shape=(4,)), Disagreement, "another kind"),
    "other rows": (lambda s: s.init("t", Normal(), shape=SHAPE), Disagreement, "Normal"),
    "init's shape": (lambda s: s.init("t", One(), shape=(10, 3)), ShapeMismatch, "10, 3"),
    "init's dtype": (lambda s: s.init("t", One(), shape=SHAPE, dtype="f2"), DtypeMismatch, "16"),
    "no shape": (lambda s: s.init("n", One()), ConfigError, "shape"),
    "a shape too many": (lambda s: s.init("n", np.ones(3, "f4"), shape=3), ConfigError, "shape"),
    "empty rows": (lambda s: s.init("n", One(), shape=(3, 0)), ShapeMismatch, "3, 0"),
    "a float shape": (lambda s: s.init("n", One(), shape=(5.0, 2)), ShapeMismatch, "whole.*5.0"),
    "a float size": (lambda s: s.init("n", One(), shape=5.0), ShapeMismatch, "whole.*5.0"),
    "no dtype": (lambda s: s.init("n", One(), shape=3, dtype="c8"), DtypeMismatch, "complex"),
    "random integers": (lambda s: s.init("n", Normal(), shape=3, dtype="i4"), ConfigError, "int32"),
}


@pytest.mark.parametrize("what", MISTAKES)
@pytest.mark.parametrize("kind", ["local", "dist_sync"])
def test_a_mistake_raises_at_the_caller_and_changes_nothing(kind: str, what: str) -> None:
    wrong, error, text = MISTAKES[what]
    with asyncps.create(kind) as store:
        store.init(["d", "D", "t"], [np.ones(4, "f4"), np.ones(10_000, "f4"), One()], shape=SHAPE)
        if what == "rows of a dense key" and kind == "local":
            error = UnknownKey
        with pytest.raises(error, match=text):
            wrong(store)
        assert (store.row_sparse_pull("t", [1]).values == 1).all()
        store.push("t", rows([2]))
        assert store.row_sparse_pull("t", [1, 2]).values.tolist() == [[0, 0], [1, 1]]


def test_workers_that_say_different_things_hear_of_it() -> None:
    def work(store: KVStore) -> str:
        try:
            store.init("t", One() if store.rank == 0 else Zero(), shape=SHAPE)
        except Disagreement as error:
            return str(error)
        return ""

    first, second = on_cluster(work, transport="tcp")
    assert not first
    assert "One()" in second
    assert "Zero()" in second


@pytest.mark.parametrize("before", [True, False])
def test_lamb_and_tables_do_not_go_together(before: bool) -> None:
    with asyncps.create("dist_sync") as store:
        if before:
            store.set_optimizer("lamb")
            with pytest.raises(OptimizerError, match="row-sparse"):
                store.init("t", One(), shape=SHAPE)
        else:
            store.init("t", One(), shape=SHAPE)
            with pytest.raises(OptimizerError, match="row-sparse"):
                store.set_optimizer("lamb")
            store.set_optimizer("sgd", lr=1)
            store.push("t", rows([0]))
            assert store.row_sparse_pull("t", [0, 1]).values[:, 0].tolist() == [0, 1]


@pytest.mark.parametrize("kind", ["local", "dist_sync"])
def test_an_optimizer_of_the_users_own_is_refused_before_anything_is_sent(kind: str) -> None:
    class OfRows(optim.Optimizer):
        def update(self, weight: Any, grad: Any, state: Any, hyper: Any) -> None:
            weight -= grad

    try:
        with asyncps.create(kind) as store:
            store.init("t", One(), shape=SHAPE)
            store.set_optimizer("ofrows")
            with pytest.raises(OptimizerError, match="cannot update row-sparse"):
                store.push("t", rows())
            store.set_optimizer("test")
            store.push("t", rows())
            assert (store.row_sparse_pull("t", [1]).values == 2).all()
    finally:
        optim.REGISTRY.pop("ofrows")


def test_integers_have_no_mean() -> None:
    for kind in ("local", "dist_sync"):
        with asyncps.create(kind, reduce="mean") as store:
            with pytest.raises(DtypeMismatch, match="mean of integers"):
                store.init("t", One(), shape=SHAPE, dtype="i4")
            store.init("t", One(), shape=SHAPE)


def test_an_updater_knows_no_rows() -> None:
    with asyncps.create("local") as store:
        store.init("t", One(), shape=SHAPE)
        store.set_updater(lambda key, given, stored: None)
        with pytest.raises(ConfigError, match="row-sparse"):
            store.push("t", rows())


def test_more_rows_than_a_frame_holds_are_refused_by_name(monkeypatch: Any) -> None:
    monkeypatch.setattr(tablework, "MAX_PAYLOAD_BYTES", 200)
    with asyncps.create("dist_sync") as store:
        store.init("t", One(), shape=(100, 2))
        with pytest.raises(TensorError, match=r"at most 8 rows of a server, 200 bytes"):
            store.push("t", rows(range(20), shape=(100, 2)))
        store.push("t", rows(range(5), shape=(100, 2)))
        assert (store.row_sparse_pull("t", [1]).values == 1).all()


def test_large_pulls_are_cut_and_a_few_are_under_way(monkeypatch: Any) -> None:
    monkeypatch.setattr(tablework, "PULL_BYTES", 80)
    monkeypatch.setattr(tablework, "ASSIGN_BYTES", 64)
    most, lock, seen = [0], threading.Lock(), []
    post = tablework.Pulling._post

    def counted(self: Any, begin: int) -> None:
        with lock:
            seen.append(begin)
            most[0] = max(most[0], self._under_way)
        post(self, begin)

    monkeypatch.setattr(tablework.Pulling, "_post", counted)
    whole = np.arange(2000, dtype="f4").reshape(1000, 2)

    def work(store: KVStore) -> None:
        store.init("t", RowSparse(range(1000), whole, whole.shape))
        ids = np.random.default_rng(store.rank).permutation(1000)[:900]
        assert np.array_equal(store.row_sparse_pull("t", ids).values, whole[np.sort(ids)])

    on_cluster(work, transport="tcp")
    assert len(seen) >= 2 * 90
    assert most[0] == tablework.PULLS_UNDER_WAY
