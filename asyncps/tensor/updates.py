"""How servers carry out optimizers: one class each, with its state and its fused kernel.

The registry is keyed by the names of `asyncps.optim`; a new optimizer is one entry in each.
Values of f16 and bf16 are widened to f32 for the step and rounded once to be stored; their state
is f32.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np

from asyncps.errors import OptimizerError
from asyncps.tensor.dtypes import Array, Dtype
from asyncps_ext import optim as kernels

Hyper = Mapping[str, Any]


class Update(Protocol):
    """One optimizer on a server."""

    integers: bool  # works on integer values

    def state_names(self, hyper: Hyper) -> tuple[str, ...]:
        """Name the state arrays that a value needs, each of its size, beginning at zero."""

    def step(
        self, out: Array, w: Array, g: Array, state: dict[str, Array], hyper: Hyper, t: int
    ) -> None:
        """Write the next value into `out` (which may be `w`); `t` counts updates from 1."""


class TestUpdate:
    """`w += rescale_grad * g`."""

    __test__ = False
    integers = True

    def state_names(self, hyper: Hyper) -> tuple[str, ...]:
        return ()

    def step(
        self, out: Array, w: Array, g: Array, state: dict[str, Array], hyper: Hyper, t: int
    ) -> None:
        kernels.test(out, w, g, hyper["rescale_grad"])


class SGDUpdate:
    """SGD with or without momentum."""

    integers = False

    def state_names(self, hyper: Hyper) -> tuple[str, ...]:
        return ("momentum",) if hyper["momentum"] else ()

    def step(
        self, out: Array, w: Array, g: Array, state: dict[str, Array], hyper: Hyper, t: int
    ) -> None:
        lr, wd, rescale = hyper["learning_rate"], hyper["wd"], hyper["rescale_grad"]
        clip = hyper["clip_gradient"]
        if not hyper["momentum"]:
            kernels.sgd(out, w, g, lr, wd, rescale, clip)
            return
        kernels.sgd_momentum(
            out, w, g, state["momentum"], lr, hyper["momentum"], wd, rescale, clip,
            hyper["nesterov"],
        )


class AdamUpdate:
    """Adam."""

    integers = False

    def state_names(self, hyper: Hyper) -> tuple[str, ...]:
        return ("mean", "variance")

    def step(
        self, out: Array, w: Array, g: Array, state: dict[str, Array], hyper: Hyper, t: int
    ) -> None:
        beta1, beta2 = hyper["beta1"], hyper["beta2"]
        rate = hyper["learning_rate"] * math.sqrt(1.0 - beta2**t) / (1.0 - beta1**t)
        kernels.adam(
            out, w, g, state["mean"], state["variance"], rate, beta1, beta2, hyper["epsilon"],
            hyper["wd"], hyper["rescale_grad"], hyper["clip_gradient"],
        )


UPDATES: dict[str, Update] = {"test": TestUpdate(), "sgd": SGDUpdate(), "adam": AdamUpdate()}


def check_usable(name: str, dtype: Dtype, hyper: Hyper) -> None:
    """Refuse an optimizer that cannot work on values of a dtype.

    Raises:
        OptimizerError: It says which optimizer, and for what.
    """
    if dtype.is_float:
        return
    if not UPDATES[name].integers:
        raise OptimizerError(f"{name} cannot update {dtype.name} values",
                             expected="a floating dtype, or the test optimizer", got=dtype.name)
    if hyper["rescale_grad"] != int(hyper["rescale_grad"]):
        raise OptimizerError(f"rescale_grad must be whole for {dtype.name} values",
                             got=hyper["rescale_grad"])


def run(
    name: str, dtype: Dtype, out: Array, w: Array, g: Array, state: dict[str, Array],
    hyper: Hyper, t: int,
) -> None:
    """Carry out one step on stored values.

    Args:
        name: The optimizer.
        dtype: Of the stored values.
        out: Stored values to write, `dtype.bits`; may be `w`.
        w: Stored values, `dtype.bits`.
        g: The sum of the round, `dtype.sum`.
        state: State arrays by name, `dtype.sum`; missing ones are made.
        hyper: Hyper-parameters by canonical name.
        t: How many updates this value has had, this one included.
    """
    update = UPDATES[name]
    for key in update.state_names(hyper):
        if key not in state:
            state[key] = np.zeros(w.size, dtype.sum)
    if dtype.widen is None or dtype.narrow is None:
        update.step(out, w, g, state, hyper, t)
        return
    wide = np.empty(w.size, dtype.sum)
    dtype.widen(wide, w)
    update.step(wide, wide, g, state, hyper, t)
    dtype.narrow(out, wide)
