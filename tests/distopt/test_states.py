"""States: a run that goes on has the bits of one that never stopped; other numbers of workers."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from asyncps import optim
from asyncps.distopt import DistOpt
from asyncps.errors import CheckpointError, ConfigError, OptimizerError
from tests.distopt.models import SHAPES, backward, gradients, weights
from tests.distopt.test_update import same
from tests.support.threadgroup import ThreadComm, run

STEPS = 7

UPDATES: dict[str, Callable[[DistOpt, Any], Any]] = {
    "plain": lambda opt, loss: opt.backward_and_update(loss),
    "half": lambda opt, loss: opt.backward_and_update_half(loss),
    "partial": lambda opt, loss: opt.backward_and_partial_update(loss, 10),
    "sparse": lambda opt, loss: opt.backward_and_sparse_update(loss, 10, 0.1, True),
    "local": lambda opt, loss: opt.backward_and_local_update(loss, 3, 1),
    "diloco": lambda opt, loss: opt.backward_and_diloco_update(loss, 2),
}
KINDS = {
    "sgd": optim.SGD(lr=0.1, momentum=0.9), "adam": optim.Adam(lr=0.01), "adamw": optim.AdamW(),
    "adagrad": optim.AdaGrad(lr=0.1), "rmsprop": optim.RMSProp(centered=True),
    "scheduled": optim.SGD(lr=optim.lr.cosine(10, base_lr=0.3), lr_mult={1: 0.5}),
}


def through_a_file(states: dict[str, Any]) -> dict[str, Any]:
    """The states as a script would save and load them: without pickle."""
    file = io.BytesIO()
    np.savez(file, **states)
    file.seek(0)
    with np.load(file, allow_pickle=False) as found:
        return dict(found)


@pytest.mark.parametrize(("update", "kind"), [
    *((update, "sgd") for update in UPDATES), *(("plain", kind) for kind in KINDS),
])
@pytest.mark.parametrize("dtype", ["f4", "f2"])
def test_a_run_that_goes_on_has_the_bits_of_one_that_never_stopped(
    update: str, kind: str, dtype: str
) -> None:
    def work(comm: ThreadComm) -> None:
        def step(opt: DistOpt, params: list[Any], number: int) -> None:
            UPDATES[update](opt, backward(params, gradients(comm.rank, number, dtype)))

        params, opt = weights(dtype), DistOpt(KINDS[kind], communicator=comm)
        for number in range(3):
            step(opt, params, number)
        opt.set_learning_rate(0.02)
        states = through_a_file(opt.get_states())
        others = [each.copy() for each in params]
        again = DistOpt(type(KINDS[kind])(), communicator=comm)
        again.set_states(states)
        assert again.opt.hyper == opt.opt.hyper
        for number in range(3, STEPS):
            step(opt, params, number)
            step(again, others, number)
        same(others, params)

    run(2, work)


def test_states_can_be_set_where_parameters_have_come_already() -> None:
    def work(comm: ThreadComm) -> None:
        params, opt = weights(), DistOpt(KINDS["sgd"], communicator=comm)
        opt(backward(params, gradients(comm.rank, 0)))
        states, before = opt.get_states(), [each.copy() for each in params]
        opt(backward(params, gradients(comm.rank, 1)))
        opt.set_states(states)
        after = [each.copy() for each in params]
        for now, was in zip(params, before, strict=True):
            now[...] = was
        opt(backward(params, gradients(comm.rank, 1)))
        same(params, after)

    run(2, work)


@pytest.mark.parametrize(("before", "after"), [(1, 3), (2, 1), (3, 2), (2, 5), (3, 3)])
def test_the_sum_of_residuals_is_kept_on_another_number_of_workers(before: int, after: int) -> None:
    def first(comm: ThreadComm) -> dict[str, Any]:
        params, opt = weights(), DistOpt(KINDS["sgd"], communicator=comm)
        for step in range(2):
            opt.backward_and_sparse_update(backward(params, gradients(comm.rank, step)), spars=2.0)
        return opt.get_states()

    saved = run(before, first)
    for states in saved[1:]:
        same(list(states.values())[1:], list(saved[0].values())[1:])

    def second(comm: ThreadComm) -> dict[str, Any]:
        opt = DistOpt(KINDS["sgd"], communicator=comm)
        opt.set_states(saved[0])
        return opt.get_states()

    loaded = run(after, second)[0]
    assert {name for name in loaded if name.startswith("residual")} == {
        f"residual.{i}" for i, shape in enumerate(SHAPES) if 0 not in shape}
    for i in (i for i, shape in enumerate(SHAPES) if 0 not in shape):
        rows, others = saved[0][f"residual.{i}"], loaded[f"residual.{i}"]
        assert (len(rows), len(others)) == (before, after)
        np.testing.assert_allclose(others.sum(0, "f8"), rows.sum(0, "f8"), rtol=1e-6, atol=1e-6)
        if before == after:
            np.testing.assert_array_equal(rows, others)


def test_states_of_parameters_that_have_not_come_are_kept() -> None:
    def work(comm: ThreadComm) -> None:
        params, opt = weights(), DistOpt(KINDS["sgd"], communicator=comm)
        opt(backward(params, gradients(0, 0)))
        states = opt.get_states()
        other = DistOpt(KINDS["sgd"], communicator=comm)
        other.set_states(states)
        again = other.get_states()
        assert again.keys() == states.keys()
        same(list(again.values()), list(states.values()))

    run(1, work)


def changed(states: dict[str, Any], **words: Any) -> dict[str, Any]:
    return {**states, **words}


BAD: dict[str, tuple[Callable[[dict[str, Any]], Any], type[Exception], str]] = {
    "nothing": (lambda _: {}, CheckpointError, "not the states of a DistOpt"),
    "no json": (lambda s: changed(s, asyncps=np.zeros(3, "u1")), CheckpointError, "not the states"),
    "another word": (lambda s: changed(s, other=np.zeros(3)), CheckpointError, "none of a DistOpt"),
    "no name": (lambda s: {**s, "state.0": np.zeros(3)}, CheckpointError, "none of a DistOpt"),
    "another size": (lambda s: {**s, "state.0.momentum": np.zeros(3, "f4")}, CheckpointError,
                     "'momentum' of another parameter.*expected 35 of float32"),
    "another dtype": (lambda s: {**s, "state.0.momentum": np.zeros(35, "f8")}, CheckpointError,
                      "'momentum' of another parameter"),
    "not counted": (lambda s: {**s, "state.99.momentum": np.zeros(3, "f4")}, CheckpointError,
                    "not counted"),
    "residual": (lambda s: {**s, "residual.0": np.zeros(35, "f4")}, CheckpointError, "residuals"),
    "outer": (lambda s: {**s, "outer.0.x": np.zeros(35, "f4")}, CheckpointError, "none of a"),
}


@pytest.mark.parametrize("name", BAD)
def test_states_that_are_none_change_nothing(name: str) -> None:
    make, error, words = BAD[name]

    def work(comm: ThreadComm) -> None:
        params, opt = weights(), DistOpt(KINDS["sgd"], communicator=comm)
        opt(backward(params, gradients(0, 0)))
        states = opt.get_states()
        with pytest.raises(error, match=words):
            opt.set_states(make(states))
        same(list(opt.get_states().values()), list(states.values()))

    run(1, work)


def test_states_of_another_optimizer_are_refused() -> None:
    def work(comm: ThreadComm) -> None:
        states = DistOpt(KINDS["adam"], communicator=comm).get_states()
        with pytest.raises(OptimizerError, match=r"another optimizer.*expected sgd, got 'adam'"):
            DistOpt(KINDS["sgd"], communicator=comm).set_states(states)

    run(1, work)


def test_a_residual_of_another_parameter_is_refused_before_anything_is_sent() -> None:
    def work(comm: ThreadComm) -> None:
        opt = DistOpt(KINDS["sgd"], communicator=comm)
        opt.backward_and_sparse_update([(np.zeros(3, "f4"), np.ones(3, "f4"))])
        states = opt.get_states()
        states = {name: each for name, each in states.items() if not name.startswith("state")}
        other = DistOpt(KINDS["sgd"], communicator=comm)
        other.set_states(states)
        with pytest.raises(CheckpointError, match="residual"):
            other.backward_and_sparse_update([(np.zeros(4, "f4"), np.ones(4, "f4"))])

    run(1, work)


def test_accumulated_gradients_are_no_states() -> None:
    def work(comm: ThreadComm) -> None:
        params, opt = weights(), DistOpt(KINDS["sgd"], communicator=comm)
        opt.accumulate(backward(params, gradients(0, 0)))
        with pytest.raises(ConfigError, match=r"flush\(\) first"):
            opt.get_states()

    run(1, work)
