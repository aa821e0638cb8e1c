"""What every benchmark pushes, and what must come back. Runs under Python 3.8 to 3.13.

A gradient is a float32 whose bits are a bijection of (rank, key, element): all values of one
case differ, over all ranks and keys, so a swapped, lost or doubled piece cannot pass a check.
They lie in [2**-16, 1). The models of the optimizers are closed forms in float64 for a
gradient that is the same in every round and weights that start at zero.
"""

from __future__ import annotations

import numpy as np

LEARNING_RATE = 1e-4
MOMENTUM = 0.9
BETA1, BETA2 = 0.9, 0.999
# Large enough for Adam's step to depend on the gradient's size: with 1e-8 every step of a
# constant gradient is the learning rate, whatever arrived.
EPSILON = 1e-3

_BITS = 27
_LOWEST = (127 - 16) << 23  # the bits of 2**-16
_SPREAD = 0x9E3779B1  # odd, so that multiplying is a bijection modulo 2**27
_BLOCK = 1 << 18  # elements a check looks at in one go: stays in the cache


class WrongValueError(Exception):
    """A benchmark got a value that it must not get; its figures are worth nothing."""


def gradients(sizes, rank=0, workers=1):
    """One float32 array a key; `sizes` are element counts, values are unique (see above)."""
    if sum(sizes) * workers > 1 << _BITS:
        raise ValueError(f"{sum(sizes)} elements are too many for unique values")
    out, start = [], 0
    for size in sizes:
        bits = np.arange(start, start + size, dtype=np.uint32)
        bits *= np.uint32(workers)
        bits += np.uint32(rank)
        bits *= np.uint32(_SPREAD)
        bits &= np.uint32((1 << _BITS) - 1)
        bits += np.uint32(_LOWEST)
        out.append(bits.view(np.float32))
        start += size
    return out


def total(sizes, workers):
    """The sum over ranks, one float32 array a key (exact for up to two workers)."""
    out = gradients(sizes, 0, workers)
    for rank in range(1, workers):
        for acc, grad in zip(out, gradients(sizes, rank, workers)):  # noqa: B905 (3.8)
            acc += grad
    return out


def sgd_model(grad, rounds):
    """Weights after `rounds` steps of SGD with momentum, from zero, in float64."""
    decayed = MOMENTUM**rounds
    steps = (rounds - MOMENTUM * (1 - decayed) / (1 - MOMENTUM)) / (1 - MOMENTUM)
    return -LEARNING_RATE * steps * grad.astype(np.float64)


def adam_model(grad, rounds):
    """Weights after `rounds` steps of Adam as MXNet writes it, from zero, in float64.

    The betas of the moments are rounded to float32 first, as any float32 kernel has them: 1 - beta2
    moves by 5e-5 of itself with that. The step size is computed by the caller of a kernel.
    """
    grad = grad.astype(np.float64)
    beta1, beta2 = float(np.float32(BETA1)), float(np.float32(BETA2))
    out = np.zeros_like(grad)
    for t in range(1, rounds + 1):
        step = LEARNING_RATE * (1 - BETA2**t) ** 0.5 / (1 - BETA1**t)
        root = (1 - beta2**t) ** 0.5
        out -= step * (1 - beta1**t) * grad / (root * grad + EPSILON)
    return out


def check(outs, sizes, workers, model="sum", rounds=1, factor=1.0, who=""):
    """Raise WrongValueError unless `outs` is what `rounds` rounds of all workers must give.

    Args:
      outs: one array a key.
      model: "sum" (of this round), "sgd" or "adam".
      rounds: how many rounds these keys have had; used by the optimizers.
      factor: what all gradients were multiplied by (a power of two; "sum" only).
    """
    # float32 rounds once a step, and each rounding is at most half an ulp of the weight
    rtol = 2e-6 + rounds * 1.2e-7
    for key, (out, grad) in enumerate(zip(outs, total(sizes, workers))):  # noqa: B905 (3.8)
        out = np.asarray(out).reshape(-1)
        if out.shape != grad.shape:
            raise WrongValueError(f"{who} key {key}: shape {out.shape}, not {grad.shape}")
        for start in range(0, grad.size, _BLOCK):
            got, part = out[start : start + _BLOCK], grad[start : start + _BLOCK]
            if model == "sum":
                want = part * np.float32(factor)
                good = got == want if workers <= 2 else np.isclose(got, want, rtol=1e-6, atol=0)
            else:
                want = sgd_model(part, rounds) if model == "sgd" else adam_model(part, rounds)
                good = np.isclose(got, want, rtol=rtol, atol=1e-12)
            if not good.all():
                bad = int(np.flatnonzero(~good)[0])
                text = "%s %s, round %d, key %d, element %d: expected %r, got %r"
                raise WrongValueError(
                    text % (who, model, rounds, key, start + bad, want[bad], got[bad])
                )


def check_sgd_step(before, weight, after, sizes, workers, who=""):
    """One momentum step between three successive weights: m' = mu*m - lr*g, w' = w + m'.

    For peers whose earlier rounds pushed something else than the gradient (MXNet writes what
    it pulls over what was pushed).
    """
    for key, grad in enumerate(total(sizes, workers)):
        old, mid, new = (
            np.asarray(x[key]).reshape(-1).astype(np.float64) for x in (before, weight, after)
        )
        want = mid + MOMENTUM * (mid - old) - LEARNING_RATE * grad.astype(np.float64)
        slack = 1e-6 * np.maximum(np.abs(mid), np.abs(old)) + 1e-9
        bad = np.flatnonzero(~(np.abs(new - want) <= slack))
        if bad.size:
            text = "%s sgd step, key %d, element %d: expected %r, got %r"
            raise WrongValueError(text % (who, key, bad[0], want[bad[0]], new[bad[0]]))
