"""Steps with PyTorch's meaning, for who updates beside a model: by the kernels of the servers.

MXNet's and torch's rules part where the learning rate is taken in, where weight decay joins and
where epsilon stands. Each rule here is put into the numbers that a kernel of ours takes, or into
two kernels, a piece after the other, so that the second finds the piece in the cache. Bounds
(`clip_gradient`, `clip_weights`) torch does not have; they are where MXNet has them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from asyncps.tensor.dtypes import Array
from asyncps.tensor.steps import STEPS, Hyper, State, Update
from asyncps_ext import optim as kernels
from asyncps_ext import reduce

__all__ = ["TORCH_STEPS"]

_PIECE = 32 * 1024  # elements: four arrays of f64 are 1 MiB


class SGDStep:
    """`m = momentum*m + g'; w -= lr*m`, with Nesterov `w -= lr*(g' + momentum*m)`.

    As MXNet's while the rate stays: its momentum is this one times -lr, so they part when it
    changes.
    """

    integers = False

    def state_names(self, hyper: Hyper) -> tuple[str, ...]:
        return ("momentum",) if hyper["momentum"] else ()

    def step(self, out: Array, w: Array, g: Array, state: State, hyper: Hyper, t: int) -> None:
        lr, momentum = hyper["learning_rate"], hyper["momentum"]
        if not momentum:
            kernels.sgd(out, w, g, lr, *_common(hyper))
            return
        kept, ahead = state["momentum"], np.zeros(min(g.size, _PIECE), g.dtype)
        for part in _pieces(g.size):
            if not hyper["nesterov"]:
                # A rate of -1 makes MXNet's momentum torch's; where it went is of no use.
                kernels.sgd_momentum(g[part], w[part], g[part], kept[part], -1.0, momentum,
                                     *_common(hyper), False)
                kernels.test(out[part], w[part], kept[part], -lr)
                continue
            now = _decayed(w[part], g[part], ahead, hyper)
            reduce.scale(kept[part], momentum)
            reduce.add(kept[part], now)
            kernels.test(out[part], w[part], now, -lr)
            kernels.test(out[part], out[part], kept[part], -lr * momentum)


class AdamStep:
    """`w -= lr/(1-b1^t) * m/(sqrt(v)/sqrt(1-b2^t) + eps)`: MXNet's with another epsilon."""

    integers = False

    def state_names(self, hyper: Hyper) -> tuple[str, ...]:
        return ("mean", "variance")

    def step(self, out: Array, w: Array, g: Array, state: State, hyper: Hyper, t: int) -> None:
        rate, eps = _corrected(hyper, t)
        kernels.adam(out, w, g, state["mean"], state["variance"], rate, hyper["beta1"],
                     hyper["beta2"], eps, *_common(hyper))


class AdamWStep:
    """Adam with `lr*wd*w` taken off beside the step; `eta` multiplies both (torch has 1).

    The bias is always corrected: `correct_bias` says nothing here.
    """

    integers = False

    def state_names(self, hyper: Hyper) -> tuple[str, ...]:
        return ("mean", "variance")

    def step(self, out: Array, w: Array, g: Array, state: State, hyper: Hyper, t: int) -> None:
        rate, eps = _corrected(hyper, t)
        wd, rescale, clip = _common(hyper)
        kernels.adamw(out, w, g, state["mean"], state["variance"], rate, hyper["eta"],
                      hyper["beta1"], hyper["beta2"], eps, hyper["learning_rate"] * wd, rescale,
                      clip)


class AdaGradStep:
    """`g' = clip(rescale*g) + wd*w; h += g'*g'; w -= lr*g'/(sqrt(h) + eps)`."""

    integers = False

    def state_names(self, hyper: Hyper) -> tuple[str, ...]:
        return ("history",)

    def step(self, out: Array, w: Array, g: Array, state: State, hyper: Hyper, t: int) -> None:
        history, ahead = state["history"], np.zeros(min(g.size, _PIECE), g.dtype)
        none = np.zeros_like(ahead)
        for part in _pieces(g.size):
            now = _decayed(w[part], g[part], ahead, hyper)
            kernels.adagrad(g[part], w[part], now, history[part], 0.0, 1.0, 0.0, 1.0, -1.0)
            # Adam without its means: the first is now, the second stays as it is.
            kernels.adam(out[part], w[part], now, _zeros(none, now.size), history[part],
                         hyper["learning_rate"], 0.0, 1.0, hyper["eps"], 0.0, 1.0, -1.0)


class RMSPropStep:
    """`n = gamma1*n + (1-gamma1)*g'*g'; w -= lr*g'/(sqrt(n) + eps)`, torch's alpha being gamma1.

    Centered: `delta = gamma2*delta + g'/(sqrt(n - mean*mean) + eps); w -= lr*delta`, torch's
    momentum being gamma2.
    """

    integers = False

    def state_names(self, hyper: Hyper) -> tuple[str, ...]:
        return STEPS["rmsprop"].state_names(hyper)

    def step(self, out: Array, w: Array, g: Array, state: State, hyper: Hyper, t: int) -> None:
        variance, first = state["variance"], np.zeros(min(g.size, _PIECE), g.dtype)
        lr, gamma1, eps = hyper["learning_rate"], hyper["gamma1"], hyper["epsilon"]
        for part in _pieces(g.size):
            if hyper["centered"]:
                self._centered(out[part], w[part], g[part],
                               {name: array[part] for name, array in state.items()}, hyper)
                continue
            now = _zeros(first, g[part].size)  # Adam without its mean, which is the gradient then
            kernels.adam(out[part], w[part], g[part], now, variance[part], lr, 0.0, gamma1, eps,
                         *_common(hyper))
        if hyper["clip_weights"] >= 0:
            np.clip(out, -hyper["clip_weights"], hyper["clip_weights"], out=out)

    def _centered(self, out: Array, w: Array, g: Array, state: State, hyper: Hyper) -> None:
        wd, rescale, clip = _common(hyper)
        now = rescale * g + wd * w
        if clip >= 0:
            np.clip(now, -clip, clip, out=now)
        for name, value in (("variance", now * now), ("mean", now)):
            state[name] *= hyper["gamma1"]
            state[name] += (1 - hyper["gamma1"]) * value
        apart = np.sqrt(np.maximum(state["variance"] - state["mean"] ** 2, 0))
        state["delta"] *= hyper["gamma2"]
        state["delta"] += now / (apart + hyper["epsilon"])
        np.subtract(w, hyper["learning_rate"] * state["delta"], out=out)


def _pieces(size: int) -> Iterator[slice]:
    for begin in range(0, size, _PIECE):
        yield slice(begin, min(size, begin + _PIECE))


def _zeros(room: Array, size: int) -> Array:
    """Return zeros: what the piece before has left, NaN say, must not come into this one."""
    room[:size] = 0
    return room[:size]


def _decayed(w: Array, g: Array, room: Array, hyper: Hyper) -> Array:
    """Return `clip(rescale*g) + wd*w` in `room`; g is lost."""
    now = _zeros(room, g.size)
    kernels.sgd_momentum(g, w, g, now, -1.0, 0.0, *_common(hyper), False)
    return now


def _corrected(hyper: Hyper, t: int) -> tuple[float, float]:
    """Return rate and epsilon of Adam at update t, with both corrections of the bias in them."""
    second = math.sqrt(1.0 - hyper["beta2"] ** t)
    rate: float = hyper["learning_rate"] * second / (1.0 - hyper["beta1"] ** t)
    return rate, hyper["epsilon"] * second


def _common(hyper: Hyper) -> tuple[float, float, float]:
    return hyper["wd"], hyper["rescale_grad"], hyper["clip_gradient"]


# What torch has no optimizer for (ftrl, lamb, test) is as on the servers.
TORCH_STEPS: dict[str, Update] = {
    **STEPS, "sgd": SGDStep(), "adam": AdamStep(), "adamw": AdamWStep(), "adagrad": AdaGradStep(),
    "rmsprop": RMSPropStep(),
}
