"""Optimizers that step here as they do on servers: FTRL, LAMB, and those of a user's own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from asyncps import optim
from asyncps.distopt import DistOpt
from asyncps.errors import OptimizerError
from tests.distopt.models import SHAPES, backward, gradients, weights
from tests.distopt.test_update import close
from tests.support.threadgroup import ThreadComm, run

STEPS = 5


def ftrl(w: Any, g: Any, state: dict[str, Any], t: int) -> None:
    z, n = state.setdefault("z", np.zeros(w.shape)), state.setdefault("n", np.zeros(w.shape))
    z += g - (np.sqrt(n + g * g) - np.sqrt(n)) * w / 0.1
    n += g * g
    w[...] = np.where(np.abs(z) > 0.3, (np.sign(z) * 0.3 - z) / ((1 + np.sqrt(n)) / 0.1 + 0.01), 0)


def lamb(w: Any, g: Any, state: dict[str, Any], t: int) -> None:
    m, v = state.setdefault("m", np.zeros(w.shape)), state.setdefault("v", np.zeros(w.shape))
    m[...] = 0.9 * m + 0.1 * g
    v[...] = 0.999 * v + 0.001 * g * g
    ahead = m / (1 - 0.9**t) / (np.sqrt(v / (1 - 0.999**t)) + 1e-6) + 0.01 * w
    length, step = np.sqrt((w * w).sum()), np.sqrt((ahead * ahead).sum())
    w -= 0.1 * (length / step if length and step else 1) * ahead


def own(w: Any, g: Any, state: dict[str, Any], t: int) -> None:
    signs = state.setdefault("signs", np.zeros(w.shape))
    signs += np.sign(g)
    w -= 0.1 / t * signs


@pytest.fixture
def signed(registered: None) -> optim.Optimizer:
    """An optimizer of a user's own."""
    class Signed(optim.Optimizer):
        def init(self, spec: optim.Spec) -> dict[str, Any]:
            return {"signs": np.zeros(spec.shape, spec.dtype)}

        def update(self, weight: Any, grad: Any, state: Any, hyper: Any) -> None:
            if np.isnan(grad).any():
                raise ValueError("no sign")
            state["signs"] += np.sign(grad)
            weight -= hyper["learning_rate"] / hyper["t"] * state["signs"]

    return Signed(lr=0.1)


def trained(world: int, opt: optim.Optimizer, dtype: str) -> list[list[Any]]:
    """The weights of all ranks, the states among the steps there and back."""
    def work(comm: ThreadComm) -> list[Any]:
        params, mine = weights(dtype), DistOpt(opt, communicator=comm)
        for step in range(STEPS):
            mine(backward(params, gradients(comm.rank, step, dtype)))
            states, mine = mine.get_states(), DistOpt(opt, communicator=comm)
            mine.set_states(states)
        return params

    return run(world, work)


def wanted(world: int, step_of: Callable[..., None], dtype: str) -> list[Any]:
    """In f64."""
    params = [each.astype("f8") for each in weights(dtype)]
    states: list[dict[str, Any]] = [{} for _ in SHAPES]
    for step in range(STEPS):
        of_all = [gradients(rank, step, dtype) for rank in range(world)]
        for i, (param, state) in enumerate(zip(params, states, strict=True)):
            mean = np.mean([each[i].astype("f8") for each in of_all], axis=0)
            step_of(param, mean, state, step + 1)
    return params


@pytest.mark.parametrize("world", [1, 3, 8])
@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_ftrl_and_lamb_take_the_servers_steps(world: int, dtype: str) -> None:
    for opt, step_of in (
        (optim.FTRL(lr=0.1, lamda1=0.3, wd=0.01), ftrl), (optim.LAMB(lr=0.1, wd=0.01), lamb),
    ):
        for params in trained(world, opt, dtype):
            close(params, wanted(world, step_of, dtype), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("world", [1, 3, 8])
@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_optimizers_of_ones_own_step_with_the_mean(
    world: int, dtype: str, signed: optim.Optimizer
) -> None:
    for params in trained(world, signed, dtype):
        close(params, wanted(world, own, dtype))


def test_what_an_optimizer_of_ones_own_raises_is_told(signed: optim.Optimizer) -> None:
    def work(comm: ThreadComm) -> None:
        param, opt = np.ones(3, "f4"), DistOpt(signed, communicator=comm)
        with pytest.raises(OptimizerError, match="no sign"):
            opt([(param, np.full(3, np.nan, "f4"))])
        assert param.tolist() == [1, 1, 1]
        opt([(param, np.ones(3, "f4"))])
        np.testing.assert_array_equal(param, np.full(3, 1 - np.float32(0.1), "f4"))

    run(2, work)
