"""Sparse updates against a NumPy model: what is sent, what stays, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from asyncps import optim
from asyncps.distopt import DistOpt
from asyncps.distopt.sparse import Choice, apart
from asyncps.errors import CodecError, ConfigError, TensorError
from tests.distopt.models import backward, gradients, weights
from tests.support.threadgroup import ThreadComm, run

STEPS = 5
SHAPES = ((40,), (7,), (3,), (30,))


def chosen(x: Any, spars: float, topk: bool) -> Any:
    """Which elements are sent, as a mask."""
    if not topk:
        return np.abs(x) >= np.float32(spars)
    count = min(x.size, max(1, int(np.ceil(spars * x.size - 1e-9))))
    mask = np.zeros(x.size, bool)
    mask[np.argsort(-np.abs(x), kind="stable")[:count]] = True  # of equals the lower index
    return mask


def model(world: int, threshold: int, spars: float, topk: bool, corr: bool) -> list[Any]:
    """Weights after some steps of SGD with a rate of 1."""
    params = weights(shapes=SHAPES)
    buckets: list[list[int]] = [[]]
    alone = []
    for i, param in enumerate(params):  # the rule, by hand
        if param.size > threshold:
            alone.append([i])
            continue
        buckets[-1].append(i)
        if sum(params[j].size for j in buckets[-1]) > threshold:
            buckets.append([])
    groups = alone + [each for each in buckets if each]
    rests = {(rank, g): np.float32(0) for rank in range(world) for g in range(len(groups))}
    for step in range(STEPS):
        grads = [gradients(rank, step, shapes=SHAPES) for rank in range(world)]
        for g, group in enumerate(groups):
            total = np.float32(0)
            for rank in range(world):
                x = np.concatenate([grads[rank][i].ravel() for i in group]) + rests[rank, g]
                mask = chosen(x, spars, topk)
                total = total + np.where(mask, x, np.float32(0))
                rests[rank, g] = np.where(mask, np.float32(0), x) if corr else np.float32(0)
            mean, begin = total / np.float32(world), 0
            for i in group:
                params[i] -= mean[begin : begin + params[i].size].reshape(params[i].shape)
                begin += params[i].size
    return params


@pytest.mark.parametrize("world", [1, 2, 3])
@pytest.mark.parametrize("threshold", [0, 9, 1000])
@pytest.mark.parametrize(("spars", "topk"), [(0.1, True), (0.5, True), (1e-9, True), (1.0, False),
                                             (50.0, False)])
@pytest.mark.parametrize("corr", [True, False])
def test_updates_are_those_of_the_model(
    world: int, threshold: int, spars: float, topk: bool, corr: bool
) -> None:
    def work(comm: ThreadComm) -> list[Any]:
        opt, params = DistOpt(optim.SGD(lr=1.0), communicator=comm), weights(shapes=SHAPES)
        for step in range(STEPS):
            loss = backward(params, gradients(comm.rank, step, shapes=SHAPES))
            opt.backward_and_sparse_update(loss, threshold, spars, topk, corr)
        return params

    wanted = model(world, threshold, spars, topk, corr)
    for params in run(world, work):
        for found, right in zip(params, wanted, strict=True):
            np.testing.assert_array_equal(found, right)


@given(
    steps=st.lists(hnp.arrays("f4", 12, elements=st.floats(-100, 100, width=32)), min_size=1,
                   max_size=5),
    spars=st.floats(0.01, 1), topk=st.booleans(), threshold=st.sampled_from([0, 3, 100]),
)
def test_what_was_sent_and_what_stays_are_all_gradients(
    steps: list[Any], spars: float, topk: bool, threshold: int
) -> None:
    def work(comm: ThreadComm) -> None:
        opt = DistOpt(optim.SGD(lr=1.0), communicator=comm)
        params = [np.zeros(5, "f4"), np.zeros(3, "f4"), np.zeros(4, "f4")]
        for x in steps:
            opt.backward_and_sparse_update(
                zip(params, np.split(x.copy(), [5, 8]), strict=True), threshold, spars, topk)
        rests = [opt.get_states()[f"residual.{i}"][0] for i in range(3)]
        sent = -np.concatenate(params).astype("f8")
        np.testing.assert_allclose(sent + np.concatenate(rests), np.sum(steps, 0, "f8"),
                                   rtol=1e-6, atol=1e-4)

    run(1, work)


def test_of_equal_magnitudes_the_lower_index_goes() -> None:
    def work(comm: ThreadComm) -> list[float]:
        param = np.zeros(6, "f4")
        DistOpt(optim.SGD(lr=1.0), communicator=comm).backward_and_sparse_update(
            [(param, np.array([1, -2, 2, 2, -2, 0], "f4"))], spars=0.34, topK=True)
        return param.tolist()

    assert run(1, work) == [[0, 2, -2, -2, 0, 0]]


def test_a_residual_outlives_another_threshold_and_calls_without_it() -> None:
    """It belongs to a parameter, not to a bucket."""
    def work(comm: ThreadComm) -> list[float]:
        opt = DistOpt(optim.SGD(lr=1.0), communicator=comm)
        a, b = np.zeros(2, "f4"), np.zeros(2, "f4")
        small = np.array([0.25, 1.0], "f4")
        for threshold, spars, corr in ((0, 0.5, True), (100, 0.5, False), (100, 0.5, True)):
            opt.backward_and_sparse_update([(a, small), (b, small)], threshold, spars, corr=corr)
        assert a.tolist() == b.tolist()
        return a.tolist()

    assert run(1, work) == [[-0.5, -3.0]]


@pytest.mark.parametrize("topk", [True, False])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_is_told_to_all_and_kept_by_none(topk: bool, bad: float) -> None:
    def work(comm: ThreadComm) -> list[Any]:
        opt = DistOpt(optim.SGD(lr=1.0), communicator=comm)
        params = [np.zeros(20, "f4"), np.zeros(2, "f4"), np.zeros(3, "f4")]

        def step(third: list[float]) -> None:
            grads = [np.linspace(0, 1, 20, dtype="f4"), np.ones(2, "f4"), np.array(third, "f4")]
            opt.backward_and_sparse_update(backward(params, grads), 4, 0.5, topk)

        step([1, 2, 3])
        before = [each.copy() for each in params], opt.get_states()
        with pytest.raises(TensorError, match="gradient of parameter 2 is not finite") as error:
            step([1, bad if comm.rank == 1 else 1, 1])
        assert error.value.rank == 1
        for now, was in zip(params, before[0], strict=True):
            np.testing.assert_array_equal(now, was)
        for name, array in opt.get_states().items():
            np.testing.assert_array_equal(array, before[1][name])
        step([1, 2, 3])
        return params

    for params in run(3, work):
        assert np.isfinite(np.concatenate(params)).all()


@pytest.mark.parametrize(("spars", "topk"), [
    (0, True), (-0.1, True), (1.1, True), (np.nan, True), ("x", True), (None, True),
    (-1, False), (np.nan, False), (np.inf, False),
])
def test_spars_that_cannot_be_right(spars: Any, topk: bool) -> None:
    with pytest.raises(ConfigError, match="spars with" + ("" if topk else "out")):
        Choice(spars, topk)


@pytest.mark.parametrize("words", [
    [], [1], [1, 0], [1, 0, 5], [0, 0, 0], [-1, -1], [2, 0, 1, 2, 3], [1, 7, 0, 0],
])
def test_gathered_words_that_are_no_gradients(words: list[int]) -> None:
    with pytest.raises(CodecError):
        apart(np.array(words, np.int32), 1)


@pytest.mark.parametrize(("spars", "topk"), [(0.5, True), (1.0, True), (0.5, False), (50, False)])
def test_what_is_larger_than_buff_size_is_cut_and_has_the_same_bits(
    spars: float, topk: bool
) -> None:
    def work(comm: ThreadComm) -> list[tuple[int, ...]]:
        found = []
        for words in ({}, {"buffSize": 7}):
            params, opt = weights(), DistOpt(optim.SGD(lr=0.1), communicator=comm, **words)
            tensor = np.concatenate([each.ravel() for each in params])
            rest = np.zeros_like(tensor)
            before = len(comm.calls)
            for step in range(STEPS):
                grads = gradients(comm.rank, step)
                opt.backward_and_sparse_update(backward(params, grads), 30, spars, topk)
                opt.sparsification(tensor, rest, spars, topk)
                opt.wait()
            found.append([*params, tensor, rest, *opt.get_states().values()])
            sizes = [shape for op, shape, _ in comm.calls[before:] if op == "gather"]
        for one, other in zip(*found, strict=True):
            np.testing.assert_array_equal(one, other)
        return sizes

    for sizes in run(3, work):
        words = [shape[0] - 2 for shape in sizes if len(shape) == 1]
        assert len(words) > 2 * STEPS
        assert max(words) <= 2 * 7  # of each element its index and its value
        assert all(shape[1] <= 7 for shape in sizes if len(shape) == 2)  # of states


def test_a_nan_in_a_later_piece_is_told_of_the_first_rank_that_has_one() -> None:
    def work(comm: ThreadComm) -> int | None:
        opt, x = DistOpt(optim.SGD(), communicator=comm, buffSize=4), np.ones(20, "f4")
        if comm.rank:
            x[20 - 8 * comm.rank] = np.nan  # of rank 2 in a piece before that of rank 1
        with pytest.raises(TensorError, match="parameter 0 is not finite") as error:
            opt.backward_and_sparse_update([(np.zeros(20, "f4"), x)], spars=0.5)
        return error.value.rank

    assert run(3, work) == [1] * 3
