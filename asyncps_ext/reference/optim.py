"""Fused update steps of the servers, in plain NumPy; of arrays, or of `Rows` of tables."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from asyncps_ext.reference.checks import (
    FLOATS,
    SUMS,
    Array,
    check_apart,
    check_array,
    check_dtype,
    check_state,
    check_step,
)
from asyncps_ext.reference.checks import set_variant as _set_variant
from asyncps_ext.reference.checks import variants as _variants
from asyncps_ext.reference.optim_rows import Rows, takes_rows

__all__ = [
    "Rows", "_set_variant", "_variants", "adagrad", "adam", "adamw", "ftrl", "lamb_direction",
    "rmsprop", "rmsprop_centered", "sgd", "sgd_momentum", "squares", "test",
]

LANES = 8  # partial sums of `squares`


@takes_rows
def test(out: Array, w: Array, g: Array, rescale: float) -> None:
    """out = w + rescale*g: the step that MXNet's "test" optimizer takes.

    For float32 and float64, and for int8, uint8, int32 and int64 with an integral rescale (else
    ValueError); integers wrap. out may be w or g.
    """
    check_step(out, w, g, *SUMS)
    if w.dtype.kind == "f":
        with np.errstate(all="ignore"):
            np.add(w, w.dtype.type(float(rescale)) * g, out=out)
        return
    if not math.isfinite(rescale) or rescale != int(rescale):
        raise ValueError(f"rescale must be integral for {w.dtype}, not {rescale!r}")
    unsigned = np.dtype(f"u{w.dtype.itemsize}")
    factor = unsigned.type(int(rescale) % (1 << (8 * unsigned.itemsize)))
    with np.errstate(all="ignore"):
        np.add(w.view(unsigned), factor * g.view(unsigned), out=out.view(unsigned))


@takes_rows
def sgd(out: Array, w: Array, g: Array, lr: float, wd: float, rescale: float, clip: float) -> None:
    """g' = clip(rescale*g) + wd*w; out = w - lr*g'.

    Args:
        out: float32 or float64, written; may be w or g.
        w: Weights, same dtype.
        g: Gradient, same dtype.
        lr, wd, rescale: Rounded to the dtype once.
        clip: Largest magnitude of rescale*g; negative or NaN for none. NaN elements pass.

    Formulas are evaluated as written, from left to right, in the dtype, without fused operations.
    """
    check_step(out, w, g, *FLOATS)
    lr, wd, rescale = _rounded(w, lr, wd, rescale)
    with np.errstate(all="ignore"):
        grad = _bounded(rescale * g, clip) + wd * w
        np.subtract(w, lr * grad, out=out)


@takes_rows
def sgd_momentum(
    out: Array,
    w: Array,
    g: Array,
    m: Array,
    lr: float,
    momentum: float,
    wd: float,
    rescale: float,
    clip: float,
    nesterov: bool,
) -> None:
    """g' = clip(rescale*g) + wd*w; m = momentum*m - lr*g'; out = w + m.

    With nesterov, the step of MXNet 1.9.1's operator `nag_mom_update` (NAGMomKernel in
    src/operator/optimizer_op-inl.h), where k = momentum*m is taken of the old m:
    out = (w - k) + (momentum + 1)*(k - lr*g'); m = k - lr*(clip(rescale*g) + wd*out). The decay
    that enters m is that of the new weights, because MXNet always has that operator write over the
    old ones first.

    Arguments as for `sgd`; m is the momentum, read and written.
    """
    check_step(out, w, g, *FLOATS)
    check_state(m, "m", out, w, g)
    lr, momentum, wd, rescale = _rounded(w, lr, momentum, wd, rescale)
    with np.errstate(all="ignore"):
        grad = _bounded(rescale * g, clip)
        kept = momentum * m
        moved = kept - lr * (grad + wd * w)
        if nesterov:
            np.add(w - kept, (momentum + w.dtype.type(1)) * moved, out=out)
            np.subtract(kept, lr * (grad + wd * out), out=m)
        else:
            np.add(w, moved, out=out)
            m[:] = moved


@takes_rows
def adam(
    out: Array,
    w: Array,
    g: Array,
    m: Array,
    v: Array,
    lr_t: float,
    beta1: float,
    beta2: float,
    eps: float,
    wd: float,
    rescale: float,
    clip: float,
) -> None:
    """g' = clip(rescale*g + wd*w), then the moments m and v, and the step.

    m = beta1*m + (1-beta1)*g'; v = beta2*v + (1-beta2)*g'*g'; out = w - lr_t*m/(sqrt(v)+eps).

    As MXNet's operator `adam_update`: lr_t already holds the correction of the bias, weight decay
    comes before the clipping. Arguments otherwise as for `sgd`; m and v are read and written.
    """
    check_step(out, w, g, *FLOATS)
    _check_states(out, w, g, m=m, v=v)
    lr_t, beta1, beta2, eps, wd, rescale = _rounded(w, lr_t, beta1, beta2, eps, wd, rescale)
    with np.errstate(all="ignore"):
        _moments(m, v, _bounded(rescale * g + wd * w, clip), beta1, beta2)
        np.subtract(w, lr_t * m / (np.sqrt(v) + eps), out=out)


@takes_rows
def adamw(
    out: Array, w: Array, g: Array, m: Array, v: Array, lr: float, eta: float, beta1: float,
    beta2: float, eps: float, wd: float, rescale: float, clip: float,
) -> None:  # fmt: skip
    """g' = clip(rescale*g), the moments m and v of Adam, and a step with the decay beside it.

    m = beta1*m + (1-beta1)*g'; v = beta2*v + (1-beta2)*g'*g';
    out = w - eta*(lr*m/(sqrt(v)+eps) + wd*w).

    As MXNet's operator `contrib.adamw_update`. Arguments otherwise as for `adam`.
    """
    check_step(out, w, g, *FLOATS)
    _check_states(out, w, g, m=m, v=v)
    lr, eta, beta1, beta2 = _rounded(w, lr, eta, beta1, beta2)
    eps, wd, rescale = _rounded(w, eps, wd, rescale)
    with np.errstate(all="ignore"):
        _moments(m, v, _bounded(rescale * g, clip), beta1, beta2)
        np.subtract(w, eta * (lr * m / (np.sqrt(v) + eps) + wd * w), out=out)


@takes_rows
def adagrad(
    out: Array, w: Array, g: Array, h: Array, lr: float, eps: float, wd: float, rescale: float,
    clip: float,
) -> None:  # fmt: skip
    """g' = clip(rescale*g); h = h + g'*g'; out = w - lr*(g'/sqrt(h+eps) + wd*w).

    As MXNet's AdaGrad. h is read and written; other arguments as for `sgd`.
    """
    check_step(out, w, g, *FLOATS)
    _check_states(out, w, g, h=h)
    lr, eps, wd, rescale = _rounded(w, lr, eps, wd, rescale)
    with np.errstate(all="ignore"):
        grad = _bounded(rescale * g, clip)
        np.add(h, grad * grad, out=h)
        np.subtract(w, lr * (grad / np.sqrt(h + eps) + wd * w), out=out)


@takes_rows
def rmsprop(
    out: Array, w: Array, g: Array, n: Array, lr: float, gamma1: float, eps: float, wd: float,
    rescale: float, clip: float, clip_weights: float,
) -> None:  # fmt: skip
    """g' = clip(rescale*g + wd*w); n = gamma1*n + (1-gamma1)*g'*g'; out = w - lr*(g'/sqrt(n+eps)).

    The result is bounded by clip_weights (negative or NaN for no bound). As MXNet's operator
    `rmsprop_update`. n is read and written; other arguments as for `sgd`.
    """
    check_step(out, w, g, *FLOATS)
    _check_states(out, w, g, n=n)
    lr, gamma1, eps, wd, rescale = _rounded(w, lr, gamma1, eps, wd, rescale)
    one = w.dtype.type(1)
    with np.errstate(all="ignore"):
        grad = _bounded(rescale * g + wd * w, clip)
        np.add(gamma1 * n, (one - gamma1) * grad * grad, out=n)
        out[:] = _bounded(w - lr * (grad / np.sqrt(n + eps)), clip_weights)


@takes_rows
def rmsprop_centered(
    out: Array, w: Array, g: Array, n: Array, mean: Array, delta: Array, lr: float, gamma1: float,
    gamma2: float, eps: float, wd: float, rescale: float, clip: float, clip_weights: float,
) -> None:  # fmt: skip
    """As `rmsprop`, divided by the variance around the mean gradient, and with momentum.

    mean = gamma1*mean + (1-gamma1)*g'; delta = gamma2*delta - lr*(g'/sqrt(n - mean*mean + eps));
    out = w + delta. As MXNet's operator `rmspropalex_update`. n, mean and delta are read and
    written.
    """
    check_step(out, w, g, *FLOATS)
    _check_states(out, w, g, n=n, mean=mean, delta=delta)
    lr, gamma1, gamma2, eps, wd, rescale = _rounded(w, lr, gamma1, gamma2, eps, wd, rescale)
    one = w.dtype.type(1)
    with np.errstate(all="ignore"):
        grad = _bounded(rescale * g + wd * w, clip)
        np.add(gamma1 * n, (one - gamma1) * grad * grad, out=n)
        np.add(gamma1 * mean, (one - gamma1) * grad, out=mean)
        np.subtract(gamma2 * delta, lr * (grad / np.sqrt(n - mean * mean + eps)), out=delta)
        out[:] = _bounded(w + delta, clip_weights)


@takes_rows
def ftrl(
    out: Array, w: Array, g: Array, z: Array, n: Array, lr: float, lamda1: float, beta: float,
    wd: float, rescale: float, clip: float,
) -> None:  # fmt: skip
    """g' = clip(rescale*g); z = z + (g' - (sqrt(n + g'*g') - sqrt(n))*w/lr); n = n + g'*g'.

    out = (sign(z)*lamda1 - z)/((beta + sqrt(n))/lr + wd) where abs(z) > lamda1, else 0; NaN stays
    NaN. As MXNet's operator `ftrl_update`. z and n are read and written.
    """
    check_step(out, w, g, *FLOATS)
    _check_states(out, w, g, z=z, n=n)
    lr, lamda1, beta, wd, rescale = _rounded(w, lr, lamda1, beta, wd, rescale)
    with np.errstate(all="ignore"):
        grad = _bounded(rescale * g, clip)
        more = n + grad * grad
        np.add(z, grad - (np.sqrt(more) - np.sqrt(n)) * w / lr, out=z)
        n[:] = more
        shrunk = np.where(z < 0, -lamda1, lamda1) - z
        moved = shrunk / ((beta + np.sqrt(more)) / lr + wd)
        out[:] = np.where(np.abs(z) <= lamda1, w.dtype.type(0), moved)


@takes_rows
def lamb_direction(
    out: Array, w: Array, g: Array, m: Array, v: Array, beta1: float, beta2: float, eps: float,
    wd: float, fix1: float, fix2: float, rescale: float, clip: float,
) -> None:  # fmt: skip
    """g' = clip(rescale*g), the moments of Adam, and where LAMB goes, before its length is known.

    out = (m/fix1)/(sqrt(v/fix2) + eps) + wd*w: MXNet's operator `lamb_update_phase1`, with
    fix1 = 1-beta1^t and fix2 = 1-beta2^t, or 1 without correction of the bias.
    """
    check_step(out, w, g, *FLOATS)
    _check_states(out, w, g, m=m, v=v)
    beta1, beta2, eps, wd, fix1, fix2, rescale = _rounded(
        w, beta1, beta2, eps, wd, fix1, fix2, rescale
    )
    with np.errstate(all="ignore"):
        _moments(m, v, _bounded(rescale * g, clip), beta1, beta2)
        np.add(m / fix1 / (np.sqrt(v / fix2) + eps), wd * w, out=out)


def squares(x: Array) -> float:
    """Return the sum of squares of a float32 or float64 array, added in f64.

    Element i goes to partial sum i mod 8; these are added in pairs, ((0+4) + (2+6)) + ((1+5) +
    (3+7)), so that every variant has the same bits.
    """
    check_array(x, "x")
    check_dtype(x, "x", *FLOATS)
    padded = np.zeros((-(-x.size // LANES) + 1, LANES))
    padded.reshape(-1)[LANES : LANES + x.size] = x
    with np.errstate(all="ignore"):
        # Not a sum along the axis, whose order NumPy does not promise.
        s = np.add.accumulate(padded * padded, axis=0)[-1]
        return float(((s[0] + s[4]) + (s[2] + s[6])) + ((s[1] + s[5]) + (s[3] + s[7])))


def _check_states(out: Array, w: Array, g: Array, **states: Array) -> None:
    seen: dict[str, Array] = {}
    for name, state in states.items():
        check_state(state, name, out, w, g)
        for other, before in seen.items():
            check_apart(before, other, state, name)
        seen[name] = state


def _moments(m: Array, v: Array, grad: Array, beta1: Any, beta2: Any) -> None:
    one = m.dtype.type(1)
    np.add(beta1 * m, (one - beta1) * grad, out=m)
    np.add(beta2 * v, (one - beta2) * grad * grad, out=v)


def _rounded(w: Array, *hyper: float) -> tuple[Any, ...]:
    with np.errstate(all="ignore"):
        return tuple(w.dtype.type(float(value)) for value in hyper)


def _bounded(x: Array, clip: float) -> Array:
    if not clip >= 0:
        return x
    limit = x.dtype.type(clip)
    x = np.where(x > limit, limit, x)
    return np.where(x < -limit, -limit, x)
