"""Chosen elements of arrays, and sums of such, in plain NumPy.

A *sparse array* is a list of uint32 indices, ascending and each once, beside as many values. What
decides is the *magnitude* of an element: the bits of the float32 without its sign, as an integer.
Numbers have the order of their magnitudes; an infinity lies above them, a NaN above that, by its
payload. Elements are copied bit for bit, -0.0 and NaN too. An array has at most 2**32 elements.

Where indices are read they are checked first: they ascend, come once and lie within the array, or a
ValueError names the place and nothing has been written.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from asyncps_ext.reference.checks import Array, check_apart, check_array, check_dtype, check_like
from asyncps_ext.reference.checks import set_variant as _set_variant
from asyncps_ext.reference.checks import variants as _variants
from asyncps_ext.reference.halves import left, sent_f16
from asyncps_ext.reference.reduce import _widened_f16
from asyncps_ext.reference.select_random import random_indices

__all__ = [
    "_set_variant",
    "_variants",
    "add_at",
    "add_at_f16",
    "count_threshold",
    "dgc_accumulate",
    "dgc_mask",
    "merge",
    "random_indices",
    "set_at",
    "take",
    "take_f16",
    "threshold",
    "topk",
    "topk_difference",
    "topk_sum",
]

Floats = NDArray[np.float32]
Halves = NDArray[np.uint16]
Indices = NDArray[np.uint32]

_MOST = 1 << 32
_MAGNITUDE = np.uint32(0x7FFFFFFF)


# ---------------------------------------------------------------------------- which are the largest


def topk(x: Floats, k: int, indices: Indices, values: Floats) -> None:
    """Choose the k elements of largest magnitude; of equal ones those with the lower index.

    Args:
        x: float32 of n elements.
        k: 0 to n.
        indices: uint32 of k elements, written: where they are, ascending.
        values: float32 of k elements, written: what they are.

    Where x has 65,536 elements or more and k is less than about a fifth of them, the compiled
    kernel borrows memory while it runs: 8 bytes for each of somewhat more than k elements (twice as
    many where k is 1 % of 16 million), never more than 0.7 of the bytes of x. Where it gets none it
    does without, more slowly, with the same result.
    """
    _check_chosen(x, indices, values)
    _check_count(x, k, indices)
    if k == 0:
        return
    size = _bits(x) & _MAGNITUDE
    least = np.partition(size, x.size - k)[x.size - k]
    is_chosen = size > least
    ties = np.flatnonzero(size == least)
    is_chosen[ties[: k - int(is_chosen.sum())]] = True
    _choose(x, is_chosen, indices, values)


def topk_sum(x: Floats, g: Floats, k: int, indices: Indices, values: Floats) -> None:
    """x += g, rounded to float32; then as `topk` of x.

    Args:
        x: float32 of n elements, written, even if k is 0.
        g: float32 of n elements.
        k, indices, values: As `topk` has them. If they are refused x is what it was.
    """
    _check_floats(x, "x", written=True)
    _check_floats(g, "g")
    check_like(g, "g", x, "x")
    check_apart(x, "x", g, "g")
    check_apart(g, "g", indices, "indices")
    check_apart(g, "g", values, "values")
    _check_chosen(x, indices, values)
    _check_count(x, k, indices)
    with np.errstate(all="ignore"):
        x += g
    topk(x, k, indices, values)


def topk_difference(x: Floats, y: Floats, k: int, indices: Indices, values: Floats) -> None:
    """As `topk` of x - y, each rounded to float32; neither is written.

    Args:
        x, y: float32 of n elements.
        k, indices, values: As `topk` has them.

    Raises:
        MemoryError: Where a sample does not tell (see `topk`) 4 bytes an element are borrowed, and
            there are none.
    """
    _check_floats(y, "y")
    _check_chosen(x, indices, values)
    check_like(y, "y", x, "x")
    check_apart(y, "y", indices, "indices")
    check_apart(y, "y", values, "values")
    with np.errstate(all="ignore"):
        topk(x - y, k, indices, values)


def _check_count(x: Floats, k: int, indices: Indices) -> None:
    if not 0 <= k <= x.size:
        raise ValueError(f"k must be from 0 to {x.size}, not {k}")
    if indices.size != k:
        raise ValueError(f"indices has {indices.size} elements, expected {k}")


def threshold(x: Floats, t: float, indices: Indices, values: Floats) -> int:
    """Choose all elements with a magnitude of at least t, that is abs(x) >= t, and every NaN.

    Args:
        x: float32.
        t: Rounded to float32 once; any number, at most 0 chooses all. One above 0 must be so as a
            float32 too: else it would choose the zeros, which nobody asked for.
        indices: uint32 with enough room (`count_threshold`), written: where they are, ascending.
        values: float32 with as much room, written: what they are.

    Returns:
        How many there are; what lies behind them in indices and values is undefined.

    Raises:
        ValueError: There is less room; indices and values are undefined then. Or t is NaN, or a
            number above 0 that is 0 as a float32.
    """
    _check_chosen(x, indices, values)
    is_chosen = _at_least(x, t)
    count = int(is_chosen.sum())
    if count > indices.size:
        raise ValueError(f"indices has {indices.size} elements, expected {count} or more")
    _choose(x, is_chosen, indices[:count], values[:count])
    return count


def count_threshold(x: Floats, t: float) -> int:
    """Return how many elements of x have a magnitude of at least t, see `threshold`."""
    _check_floats(x, "x")
    return int(_at_least(x, t).sum())


# ------------------------------------------------------------------------ what is taken, what stays


def take(x: Floats, indices: Indices, values: Floats) -> None:
    """values = x[indices], and x[indices] = 0, for error feedback: x is what was not sent.

    The sum of what is sent and what stays equals x to the bit where x holds no -0.0: a sum with a
    residual that has none never is one, and the zero left here is 0.0.

    Args:
        x: float32, written.
        indices: uint32, checked as the head of this module says.
        values: float32 of as many elements, written.
    """
    _check_places(x, "x", indices, values, "float32", written=True)
    values[:] = x[indices]
    x[indices] = 0


def take_f16(x: Floats, indices: Indices, values: Halves) -> None:
    """values = x[indices] as float16, and x[indices] -= what values stand for.

    As `quantize.encode_f16` sends and keeps it: to the nearest, ties to even; a number that would
    become infinite is sent as 65504 with its sign, and the rest stays. An infinity is sent as one,
    a NaN as 0x7E00; the NaN 0x7FC00000 stays of either.

    Args:
        x: float32, written.
        indices: uint32, checked as the head of this module says.
        values: uint16 of as many elements, the bits of float16 values, written.
    """
    _check_places(x, "x", indices, values, "uint16", written=True)
    before = x[indices]
    values[:] = sent_f16(before)
    x[indices] = left(before, _widened_f16(values))


def dgc_accumulate(u: Floats, v: Floats, g: Floats, momentum: float) -> None:
    """u = momentum * u + g, then v = v + u, each operation rounded to float32.

    Momentum correction of deep gradient compression (Lin, Han, Mao, Wang, Dally, 2018).

    Args:
        u, v: float32, written: the momentum, and the sum of what has not been sent.
        g: float32, the gradient.
        momentum: Rounded to float32 once.
    """
    _check_floats(u, "u", written=True)
    _check_floats(v, "v", written=True)
    _check_floats(g, "g")
    check_like(v, "v", u, "u")
    check_like(g, "g", u, "u")
    check_apart(u, "u", v, "v")
    check_apart(u, "u", g, "g")
    check_apart(v, "v", g, "g")
    with np.errstate(all="ignore"):
        u[:] = np.float32(momentum) * u + g
        v[:] = v + u


def dgc_mask(u: Floats, v: Floats, indices: Indices, values: Floats) -> None:
    """values = v[indices], and u[indices] = v[indices] = 0: momentum factor masking.

    Args:
        u, v: float32 of one length, written.
        indices: uint32, checked as the head of this module says.
        values: float32 of as many elements as indices, written.
    """
    _check_floats(u, "u", written=True)
    _check_floats(v, "v", written=True)
    check_like(v, "v", u, "u")
    check_apart(u, "u", v, "v")
    check_apart(u, "u", indices, "indices")
    check_apart(u, "u", values, "values")
    _check_places(v, "v", indices, values, "float32", written=True)
    values[:] = v[indices]
    u[indices] = 0
    v[indices] = 0


# ---------------------------------------------------------------------------- sums of what was sent


def add_at(acc: Floats, indices: Indices, values: Floats) -> None:
    """acc[indices] += values, for the sparse array (indices, values).

    Args:
        acc: float32, written.
        indices: uint32, checked as the head of this module says.
        values: float32 of as many elements.
    """
    _check_places(acc, "acc", indices, values, "float32")
    with np.errstate(all="ignore"):
        acc[indices] += values


def add_at_f16(acc: Floats, indices: Indices, values: Halves) -> None:
    """acc[indices] += values, which are the bits of float16 values, each widened before."""
    _check_places(acc, "acc", indices, values, "uint16")
    with np.errstate(all="ignore"):
        acc[indices] += _widened_f16(values)


def set_at(out: Floats, indices: Indices, values: Floats) -> None:
    """out[indices] = values, and 0 elsewhere. Arguments as for `add_at`."""
    _check_places(out, "out", indices, values, "float32")
    out[:] = 0
    out[indices] = values


def merge(
    ia: Indices, va: Floats, ib: Indices, vb: Floats, indices: Indices, values: Floats
) -> int:
    """Add two sparse arrays; where both have an element it becomes va + vb, in this order.

    Args:
        ia, ib: uint32, ascending and each once.
        va, vb: float32, as many as ia and ib.
        indices: uint32 with room for len(ia) + len(ib), written.
        values: float32 with as much room, written.

    Returns:
        How many elements the sum has; what lies behind them in indices and values is undefined.

    Raises:
        ValueError: Indices do not ascend, or there is less room. Nothing has been written then.
    """
    for which, what, name in ((ia, va, "a"), (ib, vb, "b")):
        check_array(which, "i" + name)
        check_dtype(which, "i" + name, "uint32")
        _check_floats(what, "v" + name)
        check_like(what, "v" + name, which, "i" + name)
    check_array(indices, "indices", written=True)
    check_dtype(indices, "indices", "uint32")
    _check_floats(values, "values", written=True)
    room = ia.size + ib.size
    for array, name in ((indices, "indices"), (values, "values")):
        if array.size < room:
            raise ValueError(f"{name} has {array.size} elements, expected {room} or more")
        for other, its in ((ia, "ia"), (va, "va"), (ib, "ib"), (vb, "vb")):
            check_apart(array, name, other, its)
    check_apart(indices, "indices", values, "values")
    _check_ascending(ia, "ia", _MOST)
    _check_ascending(ib, "ib", _MOST)
    union = np.union1d(ia, ib)
    indices[: union.size] = union
    at_a, at_b = np.searchsorted(union, ia), np.searchsorted(union, ib)
    sums = np.empty(union.size, np.float32)
    sums[at_b] = vb
    is_both = np.isin(ia, ib)
    of_b = sums[at_a[is_both]]
    sums[at_a] = va
    with np.errstate(all="ignore"):
        sums[at_a[is_both]] += of_b
    values[: union.size] = sums
    return int(union.size)


# ------------------------------------------------------------------------------------------- checks


def _bits(x: Floats) -> NDArray[np.uint32]:
    return x.view(np.uint32)


def _at_least(x: Floats, t: float) -> NDArray[np.bool_]:
    if math.isnan(t):
        raise ValueError("t must be a number, not nan")
    with np.errstate(over="ignore"):
        least = np.array([max(t, 0.0)], np.float64).astype(np.float32)
    if t > 0 and least[0] == 0:
        raise ValueError(f"t must be above 0 as a float32 too, not {float(t)!r}")
    size: NDArray[np.uint32] = _bits(x) & _MAGNITUDE
    return size >= (_bits(least) & _MAGNITUDE)


def _choose(x: Floats, is_chosen: NDArray[np.bool_], indices: Indices, values: Floats) -> None:
    indices[:] = np.flatnonzero(is_chosen)
    _bits(values)[:] = _bits(x)[is_chosen]


def _check_floats(array: Floats, name: str, *, written: bool = False) -> None:
    check_array(array, name, written=written)
    check_dtype(array, name, "float32")
    if array.size > _MOST:
        raise ValueError(f"{name} has {array.size} elements, expected at most 2**32")


def _check_chosen(x: Floats, indices: Indices, values: Floats) -> None:
    _check_floats(x, "x")
    check_array(indices, "indices", written=True)
    check_dtype(indices, "indices", "uint32")
    _check_floats(values, "values", written=True)
    check_like(values, "values", indices, "indices")
    check_apart(indices, "indices", values, "values")
    check_apart(x, "x", indices, "indices")
    check_apart(x, "x", values, "values")


def _check_places(
    x: Floats, name: str, indices: Indices, values: Array, dtype: str, *, written: bool = False
) -> None:
    _check_floats(x, name, written=True)
    check_array(indices, "indices")
    check_dtype(indices, "indices", "uint32")
    check_array(values, "values", written=written)
    check_dtype(values, "values", dtype)
    check_like(values, "values", indices, "indices")
    check_apart(x, name, indices, "indices")
    check_apart(x, name, values, "values")
    if written:
        check_apart(values, "values", indices, "indices")
    _check_ascending(indices, "indices", x.size)


def _check_ascending(indices: Indices, name: str, limit: int) -> None:
    bad = indices >= limit
    bad[1:] |= indices[1:] <= indices[:-1]
    if not bad.any():
        return
    at = int(bad.argmax())
    if indices[at] >= limit:
        raise ValueError(f"{name}[{at}] is {indices[at]}, expected less than {limit}")
    raise ValueError(
        f"{name}[{at}] is {indices[at]} after {indices[at - 1]}, expected ascending ones"
    )
