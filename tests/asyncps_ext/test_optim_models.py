"""AdamW, AdaGrad, RMSProp, FTRL and LAMB, every variant, against scalar models; sums of squares."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from asyncps_ext import optim, reference
from tests.asyncps_ext.arrays import LARGE, SIZES, Array, assert_same, floats, read_only
from tests.asyncps_ext.steps import BODIES, FLOATS, clipped, layouts
from tests.asyncps_ext.steps import variant as variant

# ----------------------------------------------------------- models: one element, one NumPy scalar


def moments(g: Any, m: Any, v: Any, b1: Any, b2: Any) -> tuple[Any, Any]:
    one = type(g)(1)
    return b1 * m + (one - b1) * g, b2 * v + (one - b2) * g * g


def adamw(w: Any, g: Any, m: Any, v: Any, lr: Any, eta: Any, b1: Any, b2: Any, eps: Any, wd: Any,
          rescale: Any, clip: Any) -> tuple[Any, ...]:  # fmt: skip
    m, v = moments(clipped(rescale * g, clip), m, v, b1, b2)
    return w - eta * (lr * m / (np.sqrt(v) + eps) + wd * w), m, v


def adagrad(w: Any, g: Any, h: Any, lr: Any, eps: Any, wd: Any, rescale: Any,
            clip: Any) -> tuple[Any, ...]:  # fmt: skip
    g = clipped(rescale * g, clip)
    h = h + g * g
    return w - lr * (g / np.sqrt(h + eps) + wd * w), h


def rmsprop(w: Any, g: Any, n: Any, lr: Any, gamma1: Any, eps: Any, wd: Any, rescale: Any,
            clip: Any, most: Any) -> tuple[Any, ...]:  # fmt: skip
    g = clipped(rescale * g + wd * w, clip)
    n = gamma1 * n + (type(g)(1) - gamma1) * g * g
    return clipped(w - lr * (g / np.sqrt(n + eps)), most), n


def rmsprop_centered(w: Any, g: Any, n: Any, mean: Any, delta: Any, lr: Any, gamma1: Any,
                     gamma2: Any, eps: Any, wd: Any, rescale: Any, clip: Any,
                     most: Any) -> tuple[Any, ...]:  # fmt: skip
    g = clipped(rescale * g + wd * w, clip)
    mean, n = moments(g, mean, n, gamma1, gamma1)
    delta = gamma2 * delta - lr * (g / np.sqrt(n - mean * mean + eps))
    return clipped(w + delta, most), n, mean, delta


def ftrl(w: Any, g: Any, z: Any, n: Any, lr: Any, lamda1: Any, beta: Any, wd: Any, rescale: Any,
         clip: Any) -> tuple[Any, ...]:  # fmt: skip
    g = clipped(rescale * g, clip)
    more = n + g * g
    z = z + (g - (np.sqrt(more) - np.sqrt(n)) * w / lr)
    sign = -lamda1 if z < 0 else lamda1
    w = (sign - z) / ((beta + np.sqrt(more)) / lr + wd)
    return (type(w)(0) if abs(z) <= lamda1 else w), z, more


def lamb(w: Any, g: Any, m: Any, v: Any, b1: Any, b2: Any, eps: Any, wd: Any, fix1: Any, fix2: Any,
         rescale: Any, clip: Any) -> tuple[Any, ...]:  # fmt: skip
    m, v = moments(clipped(rescale * g, clip), m, v, b1, b2)
    return m / fix1 / (np.sqrt(v / fix2) + eps) + wd * w, m, v


# The model; the states (n: running squares, never negative); the hyper-parameters before the last
# ones, which are bounds.
RULES: dict[str, tuple[Callable[..., tuple[Any, ...]], str, tuple[float, ...], int]] = {
    "adamw": (adamw, "mn", (0.1, 0.5, 0.9, 0.999, 1e-8, 0.01, 1 / 3), 1),
    "adagrad": (adagrad, "n", (0.1, 1e-7, 0.01, 1 / 3), 1),
    "rmsprop": (rmsprop, "n", (0.1, 0.9, 1e-8, 0.01, 1 / 3), 2),
    "rmsprop_centered": (rmsprop_centered, "nmm", (0.1, 0.9, 0.8, 1e-8, 0.01, 1 / 3), 2),
    "ftrl": (ftrl, "mn", (0.1, 0.05, 1.0, 0.01, 1 / 3), 1),
    "lamb_direction": (lamb, "mn", (0.9, 0.999, 1e-6, 0.01, 0.19, 0.002, 1 / 3), 1),
}


@layouts
@FLOATS
@pytest.mark.parametrize("bound", [-1.0, float("nan"), 0.0, 0.75, float("inf")])
@pytest.mark.parametrize("name", RULES)
def test_step_is_that_of_the_model_bit_for_bit(
    name: str, bound: float, dtype: str, layout: Callable[[Array], Array]
) -> None:
    rule, kinds, hyper, bounds = RULES[name]
    words = (*hyper, *[bound] * bounds)
    for size in SIZES:
        w, g = floats(size, dtype, 1), floats(size, dtype, 2)
        states = [floats(size, dtype, 3 + i) for i in range(len(kinds))]
        states = [np.abs(s) if kind == "n" else s for s, kind in zip(states, kinds, strict=True)]
        out, given = layout(np.empty_like(w)), [layout(s) for s in states]
        getattr(optim, name)(out, layout(w), layout(g), *given, *words)
        scalar = w.dtype.type
        with np.errstate(all="ignore"):
            rounded = [scalar(value) for value in words]
            rows = [rule(*e, *rounded) for e in zip(w, g, *states, strict=True)]
        assert all(type(value) is scalar for row in rows for value in row)
        for i, actual in enumerate([out, *given]):
            assert_same(actual, np.array([row[i] for row in rows], dtype))


@BODIES
def test_ftrl_worked_out_by_hand(body: ModuleType) -> None:
    w, g = np.zeros(3), np.array([3.0, -0.5, 0.25])
    z, n = np.zeros(3), np.zeros(3)
    body.ftrl(w, w, g, z, n, 1.0, 0.5, 1.0, 1.0, 1.0, -1.0)
    # z = g, n = g*g; only the first is beyond lamda1: (0.5 - 3)/((1 + 3)/1 + 1)
    assert w.tolist() == [-0.5, 0.0, 0.0]
    assert z.tolist() == [3.0, -0.5, 0.25]
    assert n.tolist() == [9.0, 0.25, 0.0625]


@BODIES
def test_a_nan_is_not_taken_for_a_small_number(body: ModuleType) -> None:
    w, z, n = np.ones(9), np.zeros(9), np.ones(9)
    body.ftrl(w, w, np.full(9, np.nan), z, n, 0.1, 0.5, 1.0, 0.0, 1.0, 1.0)
    assert np.isnan(w).all()


@BODIES
def test_the_direction_of_lamb_may_be_written_over_the_gradient_and_leaves_the_weights(
    body: ModuleType,
) -> None:
    w, g, m, v = np.full(5, 2.0), np.full(5, 3.0), np.zeros(5), np.zeros(5)
    body.lamb_direction(g, w, g, m, v, 0.5, 0.75, 0.0, 0.5, 0.5, 0.25, 1.0, -1.0)
    assert (m[0], v[0], w[0]) == (1.5, 2.25, 2.0)
    assert g.tolist() == [1.5 / 0.5 / 3.0 + 1.0] * 5


# ---------------------------------------------------------------------------------- sums of squares


@layouts
@FLOATS
def test_sum_of_squares_has_the_bits_of_eight_partial_sums(
    dtype: str, layout: Callable[[Array], Array]
) -> None:
    for size in (*SIZES, LARGE):
        x = floats(size, dtype, 1, special=False)
        s = [0.0] * 8
        for i, value in enumerate(x.tolist()):
            s[i % 8] += value * value
        wanted = ((s[0] + s[4]) + (s[2] + s[6])) + ((s[1] + s[5]) + (s[3] + s[7]))
        assert optim.squares(layout(x)) == wanted
        assert reference.squares(x) == wanted


@BODIES
def test_sum_of_squares_of_what_is_no_number(body: ModuleType) -> None:
    assert body.squares(np.array([1.0, np.inf, -0.0])) == np.inf
    assert np.isnan(body.squares(np.array([1, np.nan, np.inf], np.float32)))
    assert body.squares(np.zeros(0)) == 0.0
    assert body.squares(read_only(np.full(3, 3e38, np.float32))) == 3 * float(np.float32(3e38)) ** 2


@BODIES
def test_sum_of_squares_wants_floats(body: ModuleType) -> None:
    for wrong in (np.zeros(3, np.int32), np.zeros(3, np.float16), [1.0], None):
        with pytest.raises(TypeError):
            body.squares(wrong)
    with pytest.raises(ValueError, match="1-d and C-contiguous"):
        body.squares(np.zeros((2, 2)))
