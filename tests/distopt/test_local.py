"""Partial updates, local SGD, DiLoCo: parameters are averaged, gradients stay at home."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from asyncps import optim
from asyncps.distopt import DistOpt
from asyncps.errors import ConfigError, OptimizerError
from tests.distopt.models import backward, gradients, local_sgd, weights
from tests.distopt.test_update import close, same
from tests.support.threadgroup import ThreadComm, run

STEPS = 6
WORLDS = pytest.mark.parametrize("world", [1, 2, 3])
FOUR = ((20,), (2, 3), (6,), (5,))  # with a threshold of 10: [20], [6, 6], [5]


def sgd() -> optim.SGD:
    return optim.SGD(lr=0.1, momentum=0.9, weight_decay=1e-3)



def model(world: int, steps: int, parts: Any, *, momentum: bool, shapes: Any = FOUR) -> list[Any]:
    """The weights of all ranks when the parameters `parts(step)` are averaged after a step."""
    params = [[each.astype("f8") for each in weights(shapes=shapes)] for _ in range(world)]
    kept = [[np.zeros(each.shape) for each in mine] for mine in params]
    for step in range(steps):
        for rank in range(world):
            for i, grad in enumerate(gradients(rank, step, shapes=shapes)):
                w, m = params[rank][i], kept[rank][i]
                m[...] = 0.9 * m + (grad + 1e-3 * w)
                w -= 0.1 * m
        for i in parts(step):
            for arrays in [params, kept] if momentum else [params]:
                mean = sum(mine[i] for mine in arrays) / world
                for mine in arrays:
                    mine[i][...] = mean
    return params


@WORLDS
def test_partial_updates_with_one_partition_are_synchronous(world: int) -> None:
    def work(comm: ThreadComm) -> list[Any]:
        params, opt = weights(), DistOpt(sgd(), communicator=comm)
        for step in range(STEPS):
            opt.backward_and_partial_update(backward(params, gradients(comm.rank, step)))
        return params

    for params in run(world, work):
        close(params, local_sgd(world, STEPS, 0.1, 0.9, 1e-3))


@WORLDS
@pytest.mark.parametrize("momentum", [False, True])
def test_partial_updates_average_one_part_after_the_other(world: int, momentum: bool) -> None:
    def work(comm: ThreadComm) -> list[Any]:
        params, opt = weights(shapes=FOUR), DistOpt(sgd(), communicator=comm)
        for step in range(STEPS + 1):
            opt.backward_and_partial_update(
                backward(params, gradients(comm.rank, step, shapes=FOUR)), 10, momentum)
        return params

    parts = [[0], [1, 2], [3]]
    wanted = model(world, STEPS + 1, lambda step: parts[step % 3], momentum=momentum)
    for found, right in zip(run(world, work), wanted, strict=True):
        close(found, right)


def test_only_the_part_of_a_call_is_sent() -> None:
    def work(comm: ThreadComm) -> list[Any]:
        opt, params = DistOpt(sgd(), communicator=comm), weights(shapes=FOUR)
        for _ in range(4):
            opt.backward_and_partial_update(backward(params, params), 10)
        opt.backward_and_partial_update(backward(params, params), 10, average_momentum=True)
        return [(op, shape) for op, shape, _ in comm.calls]

    assert run(1, work) == [[("mean", (20,)), ("mean", (12,)), ("mean", (5,)), ("mean", (20,)),
                             ("mean", (24,))]]


@WORLDS
@pytest.mark.parametrize(("period", "warmup"), [(1, 0), (2, 0), (3, 0), (2, 3), (4, 1)])
@pytest.mark.parametrize("momentum", [False, True])
def test_local_sgd(world: int, period: int, warmup: int, momentum: bool) -> None:
    def averaged(step: int) -> bool:
        return step < warmup or (step - warmup + 1) % period == 0

    def work(comm: ThreadComm) -> list[Any]:
        params, opt = weights(shapes=FOUR), DistOpt(sgd(), communicator=comm)
        for step in range(STEPS):
            loss = backward(params, gradients(comm.rank, step, shapes=FOUR))
            assert averaged(step) is opt.backward_and_local_update(
                loss, period, warmup, 10, momentum)
        return params

    wanted = model(world, STEPS, lambda step: range(4) if averaged(step) else [],
                   momentum=momentum)
    for found, right in zip(run(world, work), wanted, strict=True):
        close(found, right)


@pytest.mark.parametrize("dtype", ["f4", "f8", "f2"])
def test_diloco_with_an_outer_step_of_one_is_local_sgd(dtype: str) -> None:
    def work(comm: ThreadComm) -> tuple[list[Any], list[Any]]:
        found = []
        for outer in (True, False):
            params, opt = weights(dtype), DistOpt(sgd(), communicator=comm)
            for step in range(STEPS):
                loss = backward(params, gradients(comm.rank, step, dtype))
                if outer:
                    opt.backward_and_diloco_update(loss, 3, outer_lr=1, outer_momentum=0)
                else:
                    opt.backward_and_local_update(loss, 3)
            found.append(params)
        return found[0], found[1]

    loose = {"rtol": 5e-3, "atol": 5e-3} if dtype == "f2" else {}
    for one, other in run(3, work):
        close(one, other, **loose)


@WORLDS
def test_diloco_is_nesterov_over_the_ways_of_all(world: int) -> None:
    """By hand: a local rate of 1 and constant gradients, so each way is period * gradient."""
    def work(comm: ThreadComm) -> list[float]:
        opt, param = DistOpt(optim.SGD(lr=1.0), communicator=comm), np.zeros(1, "f4")
        found = []
        for step in range(6):
            outer = opt.backward_and_diloco_update(
                [(param, np.full(1, comm.rank + 1, "f4"))], 2, 0.5, 0.5)
            assert outer is (step % 2 == 1)
            if outer:
                found.append(float(param[0]))
        return found

    way = 2 * (world + 1) / 2
    wanted, anchor, kept = [], 0.0, 0.0
    for _ in range(3):
        kept = 0.5 * kept + way
        anchor -= 0.5 * (way + 0.5 * kept)
        wanted.append(anchor)
    for found in run(world, work):
        np.testing.assert_allclose(found, wanted, rtol=1e-6)


def test_replicas_are_apart_between_two_averages_only() -> None:
    def work(comm: ThreadComm) -> list[list[Any]]:
        params, opt, found = weights(), DistOpt(sgd(), communicator=comm), []
        for step in range(4):
            opt.backward_and_local_update(backward(params, gradients(comm.rank, step)), 2)
            found.append([each.copy() for each in params])
        return found

    one, two = run(2, work)
    same(one[1], two[1])
    same(one[3], two[3])
    assert not np.array_equal(one[0][0], two[0][0])
    assert not np.array_equal(one[2][0], two[2][0])


@pytest.mark.parametrize("words", [{"period": 0}, {"period": 1.5}, {"period": 1, "warmup": -1}])
def test_periods_that_cannot_be_right(words: Any) -> None:
    def work(comm: ThreadComm) -> None:
        with pytest.raises(ConfigError):
            DistOpt(sgd(), communicator=comm).backward_and_local_update([], **words)

    run(1, work)


@pytest.mark.parametrize("words", [{"outer_momentum": 1}, {"outer_momentum": -0.1},
                                   {"outer_lr": "x"}, {"outer_lr": np.nan}])
def test_outer_words_that_cannot_be_right(words: Any) -> None:
    def work(comm: ThreadComm) -> None:
        with pytest.raises(OptimizerError):
            DistOpt(sgd(), communicator=comm).backward_and_diloco_update([], 2, **words)

    run(1, work)
