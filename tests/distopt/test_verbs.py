"""SINGA's verbs on single tensors: parameter 10, gradient 1, rate .1 make 9.9 by each of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from asyncps import optim
from asyncps.distopt import DistOpt
from asyncps.errors import ConfigError, DtypeMismatch, ShapeMismatch, TensorError
from tests.support.threadgroup import ThreadComm, run

WORLDS = pytest.mark.parametrize("world", [1, 2, 3])

WAYS: dict[str, Callable[[DistOpt, Any], None]] = {
    "fp32": lambda opt, x: opt.all_reduce(x),
    "fused": lambda opt, x: opt.fused_all_reduce([x]),
    "fused as SINGA writes it": lambda opt, x: (
        opt.fused_all_reduce([x], send=False), opt.fused_all_reduce([x]))[1],
    "fp16": lambda opt, x: opt.all_reduce_half(x),
    "fused fp16": lambda opt, x: (
        opt.fused_all_reduce_half([x], send=False), opt.fused_all_reduce_half([x]))[1],
    "threshold": lambda opt, x: opt.sparsification(x, None, 0.05, False),
    "topk": lambda opt, x: opt.sparsification(x, None, 1, True),
    "fused threshold": lambda opt, x: opt.fused_sparsification([x], None, 0.05, False),
    "fused topk": lambda opt, x: opt.fused_sparsification([x], None, 1, True),
}


@WORLDS
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("dtype", ["f4", "f8", "f2"])
def test_ten_minus_a_tenth(world: int, way: str, dtype: str) -> None:
    def work(comm: ThreadComm) -> list[float]:
        opt = DistOpt(optim.SGD(lr=0.1), communicator=comm)
        param, grad = np.full((2, 3), 10, dtype), np.ones((2, 3), dtype)
        WAYS[way](opt, grad)
        opt.wait()
        np.testing.assert_array_equal(grad, np.full((2, 3), world))
        opt.update(param, grad)
        np.testing.assert_array_equal(grad, np.full((2, 3), world))
        return param.ravel().tolist()

    rounded = np.array(10, dtype) - np.array(0.1, dtype)
    assert run(world, work) == [[float(rounded)] * 6] * world


def test_update_waits_for_what_is_under_way() -> None:
    def work(comm: ThreadComm) -> float:
        opt, param = DistOpt(optim.SGD(lr=0.5), communicator=comm), np.zeros(1, "f4")
        grad = np.full(1, comm.rank, "f4")
        opt.all_reduce_half(grad)
        opt.update(param, grad)
        return float(param[0])

    assert run(3, work) == [-0.5] * 3


@pytest.mark.parametrize("world", [2, 7])
def test_sums_of_halves_may_be_beyond_them(world: int) -> None:
    def work(comm: ThreadComm) -> float:
        opt, x = DistOpt(optim.SGD(), communicator=comm), np.full(3, 60000, "f4")
        opt.all_reduce_half(x)
        opt.wait()
        return float(x[0])

    assert run(world, work) == [60000.0 * world] * world


def test_many_tensors_of_several_kinds_in_any_layout() -> None:
    def work(comm: ThreadComm) -> list[Any]:
        opt = DistOpt(optim.SGD(), communicator=comm, buffSize=4)
        wide = np.zeros((3, 4), "f4")
        tensors = [np.full(5, comm.rank, "f4"), wide[:, 1], np.array(comm.rank, "f8"),
                   np.full((2, 3), comm.rank, "f2").T, np.zeros((0, 2), "f4"),
                   np.full(2, comm.rank, ">f4")]
        tensors[1][...] = comm.rank
        opt.fused_all_reduce(tensors)
        opt.fused_all_reduce([])
        opt.wait()
        assert wide.sum() == 9
        return [each.tolist() for each in tensors]

    wanted = [[3] * 5, [3] * 3, 3, [[3, 3]] * 3, [], [3, 3]]
    assert run(3, work) == [wanted] * 3


def test_accumulation_holds_what_was_not_sent() -> None:
    def work(comm: ThreadComm) -> list[Any]:
        opt, found = DistOpt(optim.SGD(), communicator=comm), []
        rest = np.zeros(5, "f4")
        for _ in range(2):
            one, two = np.array([0.25, 2.0, 0], "f4"), np.array([[-0.5], [0.125]], "f4")
            opt.fused_sparsification([one, two], rest, 0.5, False)
            opt.wait()
            found += [one.tolist(), two.ravel().tolist(), rest.tolist()]
        return found

    (found, _) = run(2, work)
    assert found == [[0, 4, 0], [-1, 0], [0.25, 0, 0, 0, 0.125],
                     [1, 4, 0], [-1, 0], [0, 0, 0, 0, 0.25]]


def test_a_tensor_that_is_not_finite_is_refused_by_all() -> None:
    def work(comm: ThreadComm) -> None:
        opt, rest = DistOpt(optim.SGD(), communicator=comm), np.full(2, 0.25, "f4")
        x = np.array([1, np.nan if comm.rank else 1], "f4")
        before = x.copy()
        opt.sparsification(x, rest, 0.5, False)
        with pytest.raises(TensorError, match="not finite") as error:
            opt.wait()
        assert error.value.rank == 1
        np.testing.assert_array_equal(x, before)
        assert rest.tolist() == [0.25, 0.25]
        opt.wait()  # it is told once

    run(2, work)


def test_broadcast_gives_all_the_weights_of_one() -> None:
    def work(comm: ThreadComm) -> list[Any]:
        opt = DistOpt(optim.SGD(), communicator=comm)
        params = {"a": np.full(3, comm.rank, "f4"), "b": np.full((2, 2), comm.rank, "f2").T}
        opt.broadcast_parameters(params, root=1)
        found = [each.ravel().tolist() for each in params.values()]
        params["b"][...] = 10 * comm.rank
        opt.broadcast_parameters(list(params.values()), root=2)
        return found + [each.ravel().tolist() for each in params.values()]

    assert run(3, work) == [[[1] * 3, [1] * 4, [1] * 3, [20] * 4]] * 3


def test_weights_are_broadcast_in_pieces_of_buff_size() -> None:
    def work(comm: ThreadComm) -> list[tuple[int, ...]]:
        opt = DistOpt(optim.SGD(), communicator=comm, buffSize=4)
        params = [np.full(9, comm.rank, "f4"), np.full((2, 3), comm.rank, "f8"), np.zeros(0, "f4")]
        opt.broadcast_parameters(params, root=1)
        assert [each.ravel().tolist() for each in params] == [[1] * 9, [1] * 6, []]
        return [shape for _, shape, _ in comm.calls]

    assert run(2, work) == [[(4,), (4,), (1,), (4,), (2,), (0,)]] * 2


@pytest.mark.parametrize(("call", "error", "words"), [
    (lambda opt: opt.all_reduce(np.ones(3, "i4")), DtypeMismatch, "no floats"),
    (lambda opt: opt.all_reduce("x"), TensorError, "no array|cannot be stored"),
    (lambda opt: opt.fused_all_reduce(np.ones(3, "f4")), TensorError, "a list of tensors"),
    (lambda opt: opt.all_reduce(np.broadcast_to(np.float32(1), 3)), TensorError, "read-only"),
    (lambda opt: opt.sparsification(np.ones(3, "f4"), np.ones(2, "f4"), 1, True), ShapeMismatch,
     "expected 3 of f32, got 2 of float32"),
    (lambda opt: opt.sparsification(np.ones(3, "f4"), None, 0, True), ConfigError, "spars"),
])
def test_arguments_that_cannot_be_right(
    call: Callable[[DistOpt], None], error: type[Exception], words: str
) -> None:
    def work(comm: ThreadComm) -> None:
        opt = DistOpt(optim.SGD(), communicator=comm)
        with pytest.raises(error, match=words):
            call(opt)
        opt.wait()

    run(1, work)
