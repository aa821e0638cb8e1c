"""Several arrays in one call, all or none, and SINGA's names for sums."""

from __future__ import annotations

import threading
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from asyncps.communicator import Communicator
from asyncps.errors import CollectiveMismatch, ConfigError, DtypeMismatch, TensorError
from tests.support.group import Group, group

SHAPES = [(3, 4), (), (0, 5), (17,), (2, 3, 5)]
LARGE = [(700_000,), (3,), (1000, 900)]


def parts_of(rank: int, shapes: list[tuple[int, ...]], dtype: str) -> list[np.ndarray]:
    rng = np.random.default_rng(rank)
    return [rng.integers(-50, 50, shape).astype(dtype) for shape in shapes]


@pytest.mark.parametrize("shapes", [SHAPES, LARGE], ids=["small", "large"])
@pytest.mark.parametrize("dtype", ["float32", "int64", "float16", "bfloat16"])
def test_a_group_is_reduced_as_each_alone(
    ranks: Group, shapes: list[tuple[int, ...]], dtype: str
) -> None:
    world = len(ranks.ranks)
    each = [parts_of(rank, shapes, dtype) for rank in range(world)]

    def work(comm: Communicator) -> list[np.ndarray]:
        xs = [x.copy() for x in each[comm.rank]]
        got = comm.grouped_all_reduce(xs, name="both")
        assert isinstance(got, list)
        assert all(a is b for a, b in zip(got, xs, strict=True))
        return xs

    for got in ranks.run(work):
        for at, x in enumerate(got):
            wide = np.sum([part[at].astype(np.float64) for part in each], axis=0)
            np.testing.assert_array_equal(x, wide.astype(x.dtype))


def test_factors_means_and_arrays_that_are_not_contiguous(ranks: Group) -> None:
    world = len(ranks.ranks)

    def work(comm: Communicator) -> None:
        a = np.full((6, 4), comm.rank, np.float64)[::2, ::-1]
        b = np.asfortranarray(np.full((3, 5), 2 * comm.rank, np.float64))
        handle = comm.grouped_all_reduce([a, b], op="mean", postscale=3.0, async_op=True)
        assert handle.wait()[1] is b
        assert (a == 3 * (world - 1) / 2).all()
        assert (b == 3 * (world - 1)).all()

    ranks.run(work)


@pytest.mark.parametrize("size", [2, 900_000])
def test_all_or_nothing(three: Group, size: int) -> None:
    """One array of one rank has another shape, of as many elements: no array is reduced."""

    def work(comm: Communicator) -> None:
        a = np.full(size, comm.rank, np.float32)
        b = np.full((2, 3) if comm.rank == 1 else (3, 2), comm.rank, np.float32)
        with pytest.raises(CollectiveMismatch) as caught:
            comm.grouped_all_reduce([a, b], name="pair")
        assert "ranks 0 and 1" in str(caught.value)
        assert "(2, 3)" in str(caught.value)
        assert (a == comm.rank).all()
        assert (b == comm.rank).all()
        assert (comm.all_reduce(np.ones(3)) == 3).all()

    three.run(work)


def test_names_pair_groups_in_any_order(three: Group) -> None:
    def work(comm: Communicator) -> None:
        order = np.random.default_rng(comm.rank).permutation(40)
        handles = {
            i: comm.grouped_all_reduce(
                [np.full(5, i, np.float32), np.full((2, i), i + comm.rank, np.float32)],
                name=f"g{i}", async_op=True)
            for i in order.tolist()
        }
        with pytest.raises(ConfigError, match="under way"):
            comm.all_reduce(np.ones(3), name="g0")
        for i in reversed(range(40)):
            a, b = handles[i].wait()
            assert (a == 3 * i).all()
            assert (b == 3 * i + 3).all()

    three.run(work)


def test_a_group_and_a_single_call_of_one_name_are_a_mismatch(three: Group) -> None:
    def work(comm: Communicator) -> None:
        x = np.ones(6, np.float32)
        one, several = comm.all_reduce, comm.grouped_all_reduce
        with pytest.raises(CollectiveMismatch):
            one(x, name="x") if comm.rank == 2 else several([x[:2], x[2:]], name="x")

    three.run(work)


def test_what_cannot_be_a_group(three: Group) -> None:
    comm = three.ranks[0]
    with pytest.raises(TensorError, match="one or more"):
        comm.grouped_all_reduce([])
    with pytest.raises(TensorError):
        comm.grouped_all_reduce(np.ones((2, 2)))
    with pytest.raises(DtypeMismatch, match="float32, int64"):
        comm.grouped_all_reduce([np.ones(2, np.float32), np.ones(2, np.int64)])
    with pytest.raises(DtypeMismatch, match="mean"):
        comm.grouped_all_reduce([np.ones(2, np.int64)], op="mean")
    with pytest.raises(DtypeMismatch, match="halves"):
        comm.fusedSynchHalf([np.ones(2, np.float32), np.ones(2, np.int64)], send=False)
    fixed = np.ones(2)
    fixed.flags.writeable = False
    with pytest.raises(TensorError, match="read-only"):
        comm.fusedSynch([np.ones(2), fixed], send=False)


# ---- SINGA's names ----


def test_synch_and_fused_synch_until_wait(ranks: Group) -> None:
    world = len(ranks.ranks)

    def work(comm: Communicator) -> None:
        a, b, c = np.ones(3), np.full((2, 2), comm.rank, np.float32), np.arange(4, dtype=np.float32)
        comm.synch(a)
        comm.fusedSynch([b, c], send=False)
        comm.fusedSynch([b, c])
        comm.wait()
        comm.wait()
        assert (a == world).all()
        assert (b == world * (world - 1) / 2).all()
        np.testing.assert_array_equal(c, world * np.arange(4))

    ranks.run(work)


def test_halves_are_rounded_added_in_f32_and_rounded_once(ranks: Group) -> None:
    world = len(ranks.ranks)
    parts = [np.random.default_rng(rank).normal(size=1000).astype(np.float32)
             for rank in range(world)]
    total = np.zeros(1000, np.float32)
    for part in parts:
        total += part.astype(np.float16).astype(np.float32)

    def work(comm: Communicator) -> np.ndarray:
        x, y = parts[comm.rank].copy(), np.full(3, 60000.0, np.float64)
        b = np.full((2, 1), comm.rank, ml_dtypes.bfloat16)
        comm.synchHalf(x)
        comm.fusedSynchHalf([y, b])
        comm.wait()
        np.testing.assert_allclose(y, world * 60000, rtol=2**-11)  # beyond float16
        assert (b == world * (world - 1) / 2).all()
        return x

    for got in ranks.run(work):
        # Subnormals of the divided sum lose bits: at most 2**-25 times the divisor.
        np.testing.assert_allclose(got, total.astype(np.float16), rtol=0, atol=4 * 2**-25)
        large = np.abs(total) > 0.01
        np.testing.assert_array_equal(got[large], total.astype(np.float16)[large])


def test_wait_ends_all_though_one_fails(three: Group) -> None:
    def work(comm: Communicator) -> None:
        bad, good = np.ones(2 + comm.rank), np.ones(4)
        comm.synch(bad)
        comm.synch(good)
        with pytest.raises(CollectiveMismatch):
            comm.wait()
        assert (good == 3).all()
        comm.wait()

    three.run(work)


def test_a_small_call_is_made_though_nobody_waits_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The loop may look for calls to make before the one that woke it has gone on."""
    with group(2) as both:
        for comm in both.ranks:
            runtime = comm._runtime
            call = runtime.call

            def loop_first(work: Any, runtime: Any = runtime, call: Any = call) -> None:
                call(work)
                seen = threading.Event()
                call(seen.set)
                if threading.get_ident() != runtime.thread_ident:
                    assert seen.wait(10)

            monkeypatch.setattr(runtime, "call", loop_first)
        handles = [comm.all_reduce(np.ones(3), async_op=True) for comm in both.ranks]
        others_turn = threading.Event()
        while not all(handle.done() for handle in handles):
            others_turn.wait(0.001)
        monkeypatch.undo()
