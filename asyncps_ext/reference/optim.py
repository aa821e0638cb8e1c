"""Fused update steps of the servers, in plain NumPy."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from asyncps_ext.reference.checks import FLOATS, SUMS, Array, check_apart, check_state, check_step
from asyncps_ext.reference.checks import set_variant as _set_variant
from asyncps_ext.reference.checks import variants as _variants

__all__ = ["_set_variant", "_variants", "adam", "sgd", "sgd_momentum", "test"]


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
    m = k - lr*g'; out = (w - k) + (momentum + 1)*m.

    Arguments as for `sgd`; m is the momentum, read and written.
    """
    check_step(out, w, g, *FLOATS)
    check_state(m, "m", out, w, g)
    lr, momentum, wd, rescale = _rounded(w, lr, momentum, wd, rescale)
    with np.errstate(all="ignore"):
        grad = _bounded(rescale * g, clip) + wd * w
        kept = momentum * m
        np.subtract(kept, lr * grad, out=m)
        if nesterov:
            np.add(w - kept, (momentum + w.dtype.type(1)) * m, out=out)
        else:
            np.add(w, m, out=out)


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
    check_state(m, "m", out, w, g)
    check_state(v, "v", out, w, g)
    check_apart(m, "m", v, "v")
    lr_t, beta1, beta2, eps, wd, rescale = _rounded(w, lr_t, beta1, beta2, eps, wd, rescale)
    one = w.dtype.type(1)
    with np.errstate(all="ignore"):
        grad = _bounded(rescale * g + wd * w, clip)
        np.add(beta1 * m, (one - beta1) * grad, out=m)
        np.add(beta2 * v, (one - beta2) * grad * grad, out=v)
        np.subtract(w, lr_t * m / (np.sqrt(v) + eps), out=out)


def _rounded(w: Array, *hyper: float) -> tuple[Any, ...]:
    with np.errstate(all="ignore"):
        return tuple(w.dtype.type(float(value)) for value in hyper)


def _bounded(x: Array, clip: float) -> Array:
    if not clip >= 0:
        return x
    limit = x.dtype.type(clip)
    x = np.where(x > limit, limit, x)
    return np.where(x < -limit, -limit, x)
