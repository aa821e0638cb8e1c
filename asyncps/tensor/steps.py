"""The steps of the optimizers that are there: one class each, with its state and its kernels."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np

from asyncps.tensor.dtypes import Array
from asyncps_ext import optim as kernels

Hyper = Mapping[str, Any]
State = dict[str, Array]


class Update(Protocol):
    """One optimizer on a server."""

    integers: bool  # works on integer values

    def state_names(self, hyper: Hyper) -> tuple[str, ...]:
        """Name the state arrays that a value needs, each of its size, beginning at zero."""

    def step(self, out: Array, w: Array, g: Array, state: State, hyper: Hyper, t: int) -> None:
        """Write the next value into `out`, which may be `w`; `g` is of no use afterwards.

        Args:
            out, w, g: Of one float dtype (or of one integer dtype). Where `out` is `w` both may be
                rows of a table, `asyncps_ext.optim.Rows`, and the state is so too then.
            state: By name, of the same dtype and size.
            hyper: Plain numbers.
            t: Counts updates from 1.
        """


class TestStep:
    """`w += rescale_grad * g`."""

    __test__ = False
    integers = True

    def state_names(self, hyper: Hyper) -> tuple[str, ...]:
        return ()

    def step(self, out: Array, w: Array, g: Array, state: State, hyper: Hyper, t: int) -> None:
        kernels.test(out, w, g, hyper["rescale_grad"])


class SGDStep:
    """SGD with or without momentum."""

    integers = False

    def state_names(self, hyper: Hyper) -> tuple[str, ...]:
        return ("momentum",) if hyper["momentum"] else ()

    def step(self, out: Array, w: Array, g: Array, state: State, hyper: Hyper, t: int) -> None:
        lr, rest = hyper["learning_rate"], _common(hyper)
        if not hyper["momentum"]:
            kernels.sgd(out, w, g, lr, *rest)
            return
        kernels.sgd_momentum(
            out, w, g, state["momentum"], lr, hyper["momentum"], *rest, hyper["nesterov"]
        )


class AdamStep:
    """Adam."""

    integers = False

    def state_names(self, hyper: Hyper) -> tuple[str, ...]:
        return ("mean", "variance")

    def step(self, out: Array, w: Array, g: Array, state: State, hyper: Hyper, t: int) -> None:
        kernels.adam(
            out, w, g, state["mean"], state["variance"], hyper["learning_rate"] * _bias(hyper, t),
            hyper["beta1"], hyper["beta2"], hyper["epsilon"], *_common(hyper),
        )


class AdamWStep:
    """AdamW."""

    integers = False

    def state_names(self, hyper: Hyper) -> tuple[str, ...]:
        return ("mean", "variance")

    def step(self, out: Array, w: Array, g: Array, state: State, hyper: Hyper, t: int) -> None:
        if hyper["rescale_grad"] == 0:
            _keep(out, w)
            return
        rate = hyper["learning_rate"] * (_bias(hyper, t) if hyper["correct_bias"] else 1.0)
        kernels.adamw(
            out, w, g, state["mean"], state["variance"], rate, hyper["eta"], hyper["beta1"],
            hyper["beta2"], hyper["epsilon"], *_common(hyper),
        )


class AdaGradStep:
    """AdaGrad."""

    integers = False

    def state_names(self, hyper: Hyper) -> tuple[str, ...]:
        return ("history",)

    def step(self, out: Array, w: Array, g: Array, state: State, hyper: Hyper, t: int) -> None:
        kernels.adagrad(
            out, w, g, state["history"], hyper["learning_rate"], hyper["eps"], *_common(hyper)
        )


class RMSPropStep:
    """RMSProp, plain or centered."""

    integers = False

    def state_names(self, hyper: Hyper) -> tuple[str, ...]:
        return ("variance", "mean", "delta") if hyper["centered"] else ("variance",)

    def step(self, out: Array, w: Array, g: Array, state: State, hyper: Hyper, t: int) -> None:
        lr, gamma1, most = hyper["learning_rate"], hyper["gamma1"], hyper["clip_weights"]
        if hyper["centered"]:
            kernels.rmsprop_centered(
                out, w, g, state["variance"], state["mean"], state["delta"], lr, gamma1,
                hyper["gamma2"], hyper["epsilon"], *_common(hyper), most,
            )
            return
        kernels.rmsprop(
            out, w, g, state["variance"], lr, gamma1, hyper["epsilon"], *_common(hyper), most
        )


class FTRLStep:
    """FTRL."""

    integers = False

    def state_names(self, hyper: Hyper) -> tuple[str, ...]:
        return ("z", "n")

    def step(self, out: Array, w: Array, g: Array, state: State, hyper: Hyper, t: int) -> None:
        if hyper["learning_rate"] == 0:
            _keep(out, w)  # the rule divides by the rate
            return
        kernels.ftrl(
            out, w, g, state["z"], state["n"], hyper["learning_rate"], hyper["lamda1"],
            hyper["beta"], *_common(hyper),
        )


class LAMBStep:
    """LAMB; the arrays are those of a whole key."""

    integers = False

    def state_names(self, hyper: Hyper) -> tuple[str, ...]:
        return ("mean", "variance")

    def step(self, out: Array, w: Array, g: Array, state: State, hyper: Hyper, t: int) -> None:
        beta1, beta2 = hyper["beta1"], hyper["beta2"]
        fix1, fix2 = (1 - beta1**t, 1 - beta2**t) if hyper["bias_correction"] else (1.0, 1.0)
        wd, rescale, clip = _common(hyper)
        # The direction takes the place of the gradient, which has done its work.
        kernels.lamb_direction(
            g, w, g, state["mean"], state["variance"], beta1, beta2, hyper["epsilon"], wd, fix1,
            fix2, rescale, clip,
        )
        rate, length, ahead = hyper["learning_rate"], _norm(w), _norm(g)
        if hyper["lower_bound"] >= 0:
            length = max(length, hyper["lower_bound"])
        if hyper["upper_bound"] >= 0:
            length = min(length, hyper["upper_bound"])
        if length != 0 and ahead != 0:
            rate *= length / ahead
        kernels.test(out, w, g, -rate)


def _common(hyper: Hyper) -> tuple[float, float, float]:
    return hyper["wd"], hyper["rescale_grad"], hyper["clip_gradient"]


def _keep(out: Array, w: Array) -> None:
    if out is not w:  # which may be rows of a table
        np.copyto(out, w)


def _bias(hyper: Hyper, t: int) -> float:
    correction: float = math.sqrt(1.0 - hyper["beta2"] ** t) / (1.0 - hyper["beta1"] ** t)
    return correction


def _norm(x: Array) -> float:
    return math.sqrt(kernels.squares(x))


# Hyper-parameters with which an optimizer keeps all that it ever may.
_ALL_KEPT = {"momentum": 1.0, "centered": True}

STEPS: dict[str, Update] = {
    "test": TestStep(), "sgd": SGDStep(), "adam": AdamStep(), "adamw": AdamWStep(),
    "adagrad": AdaGradStep(), "rmsprop": RMSPropStep(), "ftrl": FTRLStep(), "lamb": LAMBStep(),
}


def states_ever(name: str | None) -> tuple[str, ...]:
    """Name the state arrays that an optimizer of ours needs with any hyper-parameters."""
    return STEPS[name].state_names(_ALL_KEPT) if name in STEPS else ()
