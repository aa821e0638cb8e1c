"""C1 not in place: sums that go to another array, and leave what they are of as it is."""

from __future__ import annotations

from typing import Any

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
from tests.support.group import Group

LARGE = 700_000  # elements that travel in chunks


def mine(rank: int, count: int, dtype: str) -> np.ndarray:
    return np.random.default_rng([rank, count]).integers(-9, 9, count).astype(dtype)


@pytest.mark.parametrize("count", [0, 17, LARGE])
@pytest.mark.parametrize("dtype", ["float32", "float16", "int64"])
@pytest.mark.parametrize("async_op", [False, True])
def test_the_result_is_in_out_and_the_input_stays(
    ranks: Group, count: int, dtype: str, async_op: bool
) -> None:
    world = len(ranks.ranks)
    parts = [mine(rank, count, dtype) for rank in range(world)]
    total = np.sum([part.astype("f8") for part in parts], axis=0).astype(dtype)

    def work(comm: Communicator) -> np.ndarray:
        x, out = parts[comm.rank].copy(), np.full(count, 5, dtype)
        x.flags.writeable = False
        got = comm.all_reduce(x, async_op=async_op, out=out)
        assert (got.wait() if async_op else got) is out
        np.testing.assert_array_equal(x, parts[comm.rank])
        return out

    for got in ranks.run(work):
        np.testing.assert_array_equal(got, total)


@pytest.mark.parametrize("count", [12, LARGE])
def test_out_may_be_of_any_layout_the_input_itself_or_overlap_it(ranks: Group, count: int) -> None:
    world = len(ranks.ranks)
    total = world * (world + 1) // 2

    def work(comm: Communicator) -> None:
        one = np.arange(count, dtype="f8")
        x = one * (comm.rank + 1)
        strided, fortran = np.zeros(3 * count)[::-3], np.zeros((2, count // 2), order="F")
        assert comm.all_reduce(x, out=strided) is strided
        np.testing.assert_array_equal(strided, one * total)
        comm.all_reduce(x.reshape(2, -1), out=fortran)
        np.testing.assert_array_equal(fortran, (one * total).reshape(2, -1))
        np.testing.assert_array_equal(x, one * (comm.rank + 1))
        both = np.concatenate([x, [0]])
        comm.all_reduce(both[:-1], out=both[1:])
        np.testing.assert_array_equal(both[1:], one * total)
        assert comm.all_reduce(x, "max", out=x) is x
        np.testing.assert_array_equal(x, one * world)
        scalar = np.zeros(())
        comm.all_reduce(2.0, "mean", out=scalar)
        assert scalar == 2

    ranks.run(work)


def frozen(count: int) -> np.ndarray:
    array = np.zeros(count)
    array.flags.writeable = False
    return array


@pytest.mark.parametrize(("out", "error", "words"), [
    (np.zeros(4), ShapeMismatch, r"expected \(3,\), got \(4,\)"),
    (np.zeros((3, 1)), ShapeMismatch, r"expected \(3,\), got \(3, 1\)"),
    (np.zeros(3, "f4"), DtypeMismatch, "expected float64, got float32"),
    (np.zeros(3, ">f8"), DtypeMismatch, ">f8"),
    (frozen(3), TensorError, "read-only"),
    ([0.0, 0.0, 0.0], TensorError, "nothing that can be written"),
    (5, TensorError, "nothing that can be written"),
])
def test_an_out_that_does_not_fit_is_refused(
    three: Group, out: Any, error: type[Exception], words: str
) -> None:
    def work(comm: Communicator) -> None:
        x = np.ones(3)
        with pytest.raises(error, match=words):
            comm.all_reduce(x, out=out)
        with pytest.raises(error, match=words):
            comm.grouped_all_reduce([x, x], out=[np.zeros(3), out])
        assert (comm.all_reduce(x) == 3).all()

    three.run(work)


def test_a_refused_call_has_written_nothing(three: Group) -> None:
    def work(comm: Communicator) -> None:
        out = np.full(3, 5.0)
        with pytest.raises(ConfigError, match="unknown reduction"):
            comm.all_reduce(np.ones(3), "median", out=out)
        with pytest.raises(TensorError):
            comm.all_reduce(object(), out=out)
        with pytest.raises(DtypeMismatch):
            comm.all_reduce(np.ones(3, ">f8"), out=out)
        with pytest.raises(TensorError, match="as many"):
            comm.grouped_all_reduce([np.ones(3)] * 2, out=[out])
        with pytest.raises(TensorError, match="not several arrays"):
            comm.grouped_all_reduce([np.ones(3)], out=out)
        assert out.tolist() == [5, 5, 5]

    three.run(work)


def test_a_mismatch_leaves_the_input_as_it_is(three: Group) -> None:
    def work(comm: Communicator) -> None:
        x = np.full(4 if comm.rank == 1 else 3, 1.0 + comm.rank)
        with pytest.raises(CollectiveMismatch):
            comm.all_reduce(x, name="g", out=np.empty_like(x))
        assert (x == 1 + comm.rank).all()

    three.run(work)


def test_what_is_compressed_goes_to_out_too(three: Group) -> None:
    def work(comm: Communicator) -> None:
        comm.set_gradient_compression({"type": "topk", "ratio": 0.5}, names="out*")
        x, out = np.array([4, 0, 0, 8], "f4"), np.empty(4, "f4")
        assert comm.all_reduce(x, name="out 1", out=out) is out
        assert (out.tolist(), x.tolist()) == ([12, 0, 0, 24], [4, 0, 0, 8])

    three.run(work)


@pytest.mark.parametrize("count", [5, LARGE])
def test_a_group_goes_to_a_list_of_outs(ranks: Group, count: int) -> None:
    world = len(ranks.ranks)

    def work(comm: Communicator) -> None:
        x, y = np.full(count, comm.rank, "f4"), np.full((2, 3), 2 * comm.rank, "f4")
        outs = [np.empty(2 * count, "f4")[::2], np.empty((2, 3), "f4", "F")]
        handle = comm.grouped_all_reduce([x, y], out=outs, async_op=True)
        assert all(one is other for one, other in zip(handle.wait(), outs, strict=True))
        assert (outs[0] == world * (world - 1) // 2).all()
        assert (outs[1] == world * (world - 1)).all()
        assert (x == comm.rank).all()
        assert (y == 2 * comm.rank).all()
        assert comm.grouped_all_reduce([x, y], "max", out=[x, y])[0] is x
        assert (x == world - 1).all()

    ranks.run(work)
