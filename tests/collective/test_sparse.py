"""Sums of few rows: by number or in full, in any order of waiting, and SINGA's names."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from asyncps.communicator import Communicator
from asyncps.errors import (
    CollectiveMismatch,
    ConfigError,
    DtypeMismatch,
    ShapeMismatch,
    TensorError,
)
from asyncps.sparsecall import SparseCall
from tests.support.group import Group

SIZE = 50_000  # rows that are not small


@pytest.fixture
def fulls(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sizes of all sums that were made in full."""
    found: list[int] = []
    real = SparseCall._in_full

    def noted(self: SparseCall) -> None:
        found.append(self._size)
        real(self)

    monkeypatch.setattr(SparseCall, "_in_full", noted)
    return found


def rows_of(rank: int, size: int, count: int, row: tuple[int, ...], dtype: str) -> tuple:
    rng = np.random.default_rng(rank)
    return rng.integers(0, size, count), rng.integers(-9, 9, (count, *row)).astype(dtype)


@pytest.mark.parametrize("dtype", ["float32", "float64", "int64", "float16", ml_dtypes.bfloat16])
@pytest.mark.parametrize(("size", "count", "row", "full"), [
    (100, 7, (), True), (SIZE, 300, (), False), (SIZE, 200, (3, 2), False), (SIZE, 0, (), False),
    (SIZE, 200_000, (2,), True), (0, 0, (4,), True),
])  # fmt: skip
def test_rows_are_added_by_number(
    ranks: Group, fulls: list[int], size: int, count: int, row: tuple[int, ...], full: bool,
    dtype: str,
) -> None:
    world = len(ranks.ranks)
    each = [rows_of(rank, size, count + (3 * rank if count else 0), row, dtype)
            for rank in range(world)]
    want = np.zeros((size, *row), np.float64)
    for indices, values in each:
        np.add.at(want, indices, values.astype(np.float64))

    for got in ranks.run(lambda comm: comm.sparse_all_reduce(*each[comm.rank], size)):
        assert got.dtype == each[0][1].dtype
        np.testing.assert_array_equal(got, want.astype(got.dtype))
    assert len(fulls) == (world if full or world == 1 else 0)


def test_both_ways_have_the_same_bits(three: Group, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = [np.random.default_rng(rank) for rank in range(3)]
    each = [(r.integers(0, SIZE, 4000), r.normal(size=4000).astype(np.float16)) for r in rng]

    def work(comm: Communicator) -> np.ndarray:
        return comm.sparse_all_reduce(*each[comm.rank], SIZE, op="mean")

    few = three.run(work)
    monkeypatch.setattr("asyncps.sparsecall.SMALL_BYTES", 1 << 30)
    full = three.run(work)
    for got in (*few, *full):
        np.testing.assert_array_equal(got + np.float16(0), few[0] + np.float16(0))


def test_sums_are_waited_for_in_any_order_and_beside_other_calls(three: Group) -> None:
    def work(comm: Communicator) -> None:
        order = np.random.default_rng(comm.rank).permutation(20).tolist()
        sparse = {i: comm.sparse_all_reduce([i], np.ones(1, np.float32), SIZE, name=f"s{i}",
                                            async_op=True) for i in order}
        unnamed = [comm.sparse_all_reduce([comm.rank], np.full(1, i, np.int64), SIZE,
                                          async_op=True) for i in range(20)]
        plain = [comm.all_reduce(np.full(3, i, np.float32), async_op=True) for i in range(20)]
        np.random.default_rng(10 + comm.rank).shuffle(order)
        for i in order:
            assert unnamed[i].wait()[:4].tolist() == [i, i, i, 0]
            got = sparse[i].wait()
            assert got[i] == got.sum() == 3
            assert (plain[i].wait() == 3 * i).all()

    three.run(work)


def test_a_rank_that_has_joined_brings_nothing(three: Group) -> None:
    def work(comm: Communicator) -> None:
        early = comm.sparse_all_reduce([comm.rank], np.ones(1, np.float32), SIZE, async_op=True)
        if comm.rank != 1:
            got = comm.sparse_all_reduce([5], np.full(1, 2, np.float32), SIZE, op="mean")
            assert got[5] == 2
            assert got.sum() == 2
        comm.join()
        assert early.wait()[:4].tolist() == [1, 1, 1, 0]
        assert comm.sparse_all_reduce([1], np.ones(1, np.float32), SIZE)[1] == 3

    three.run(work)


@pytest.mark.parametrize(("odd", "says"), [
    (lambda: ([1], np.ones(1, np.float64), SIZE), "dtype"),
    (lambda: ([1], np.ones(1, np.float32), SIZE + 1), f"size {SIZE} and {SIZE + 1}"),
    (lambda: ([1], np.ones((1, 2), np.float32), SIZE), "shape"),
    (lambda: ([1], np.ones(1, np.float32), 7), "verb"),
])  # fmt: skip
def test_a_mismatch_is_heard_by_all_and_the_next_call_works(three: Group, odd, says: str) -> None:
    def work(comm: Communicator) -> None:
        given = odd() if comm.rank == 2 else ([1], np.ones(1, np.float32), SIZE)
        with pytest.raises(CollectiveMismatch, match=says) as caught:
            comm.sparse_all_reduce(*given)
        assert "2" in str(caught.value)
        assert comm.sparse_all_reduce([1], np.ones(1, np.float32), SIZE)[1] == 3

    three.run(work)


def test_what_cannot_be_rows(three: Group) -> None:
    comm = three.ranks[0]
    one = np.ones(1, np.float32)
    for indices, values, size, kind in (
        ([5], one, 5, TensorError), ([-1], one, 5, TensorError), ([0.5], one, 5, TensorError),
        ([[0]], one, 5, TensorError), ([0, 1], one, 5, ShapeMismatch), ([0], one[0], 5, None),
        ([0], one, -1, TensorError), ([0], one, 2**33, TensorError), ([0], one, "5", TensorError),
    ):
        with pytest.raises(kind or ShapeMismatch):
            comm.sparse_all_reduce(indices, values, size)
    with pytest.raises(ConfigError, match="sum, mean"):
        comm.sparse_all_reduce([0], one, 5, op="max")
    with pytest.raises(DtypeMismatch, match="mean"):
        comm.sparse_all_reduce([0], np.ones(1, np.int32), 5, op="mean")


# ---- SINGA's names ----


@pytest.mark.parametrize("size", [40, 60_000])
@pytest.mark.parametrize("topk", [True, False])
def test_sparsification_keeps_what_is_not_sent(ranks: Group, size: int, topk: bool) -> None:
    world = len(ranks.ranks)
    steps = 3
    grads = [[np.random.default_rng([rank, step]).normal(size=size).astype(np.float32)
              for step in range(steps)] for rank in range(world)]
    spars = 0.1 if topk else 1.5
    kept = [np.zeros(size, np.float32) for _ in range(world)]
    want = []
    for step in range(steps):
        total = np.zeros(size, np.float32)
        for rank in range(world):
            x = grads[rank][step] + kept[rank]
            if topk:
                chosen = np.argsort(-np.abs(x), kind="stable")[: -(-size // 10)]
            else:
                chosen = np.flatnonzero(np.abs(x) >= spars)
            total[chosen] += x[chosen]
            kept[rank] = x
            kept[rank][chosen] = 0
        want.append(total)

    def work(comm: Communicator) -> np.ndarray:
        residual = np.zeros(size, np.float32)
        for step in range(steps):
            x = grads[comm.rank][step].copy()
            a, b = x[:10].reshape(5, 2), x[10:].astype(np.float64)
            comm.fusedSparsification([a, b], residual, spars, topk)
            comm.wait()
            np.testing.assert_array_equal(np.concatenate([a.reshape(-1), b]), want[step])
        comm.sparsification(x, None, spars, topk)
        comm.wait()
        return residual

    for rank, got in enumerate(ranks.run(work)):
        np.testing.assert_array_equal(got, kept[rank])


def test_what_is_not_finite_changes_nothing_anywhere(three: Group) -> None:
    def work(comm: Communicator) -> None:
        x = np.arange(6, dtype=np.float32)
        residual = np.ones(6, np.float32)
        if comm.rank == 1:
            x[2] = np.inf
        before = x.copy()
        comm.sparsification(x, residual, 0.5, True)
        with pytest.raises(TensorError, match="not finite"):
            comm.wait()
        np.testing.assert_array_equal(x, before)
        assert (residual == 1).all()

    three.run(work)


def test_what_cannot_be_sparsified(three: Group) -> None:
    comm = three.ranks[0]
    with pytest.raises(ConfigError, match="spars"):
        comm.sparsification(np.ones(3), None, 0.0, True)
    with pytest.raises(ShapeMismatch, match="accumulation"):
        comm.sparsification(np.ones(3), np.ones(4, np.float32), 0.5, True)
    with pytest.raises(DtypeMismatch):
        comm.sparsification(np.ones(3, np.int64), None, 0.5, True)
