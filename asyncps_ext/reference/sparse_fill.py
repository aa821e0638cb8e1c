"""Random first values of rows, in plain NumPy: a function of key and row id, and of nothing else.

Element j of row i comes of word j % 4 of Philox 4x32-10 (Salmon, Moraes, Dror, Shaw, "Parallel
random numbers: as easy as 1, 2, 3", 2011) with the counter (i mod 2**32, i // 2**32, j // 4, 0)
and the two halves of a 64-bit key. A word x stands for u = (x + 1/2) / 2**32. All further
arithmetic is float64 with +, -, *, / and sqrt in the order written here, so that every machine
and instruction set gives the same bits; the result is rounded to the dtype of `out` once.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from asyncps_ext.reference.checks import FLOATS, Array, check_apart, check_array, check_dtype
from asyncps_ext.reference.checks import set_variant as _set_variant
from asyncps_ext.reference.checks import variants as _variants

__all__ = ["_set_variant", "_variants", "fill_normal", "fill_uniform"]

Ids = NDArray[np.int64]
Floats = NDArray[np.float64]

_LOW = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)
_TAIL = 0.02425
_MIDDLE = (
    (-3.969683028665376e01, 2.209460984245205e02, -2.759285104469687e02, 1.383577518672690e02,
     -3.066479806614716e01, 2.506628277459239e00),
    (-5.447609879822406e01, 1.615858368580409e02, -1.556989798598866e02, 6.680131188771972e01,
     -1.328068155288572e01, 1.0),
)  # fmt: skip
_TAILS = (
    (-7.784894002430293e-03, -3.223964580411365e-01, -2.400758277161838e00,
     -2.549732539343734e00, 4.374664141464968e00, 2.938163982698783e00),
    (7.784695709041462e-03, 3.224671290700398e-01, 2.445134137142996e00, 3.754408661907416e00,
     1.0),
)  # fmt: skip
_ATANH = tuple(1.0 / n for n in range(19, 0, -2))
_WIDEST = 1 << 34  # blocks of four elements are counted in 32 bits


def fill_uniform(out: Array, ids: Ids, width: int, key: int, scale: float) -> None:
    """Rows of numbers evenly spread over (-scale, scale): (2*u - 1) * scale.

    Args:
        out: float32 or float64, one row for each id, written.
        ids: int64, which rows.
        width: Elements of a row, 1 to 2**34.
        key: 0 to 2**64 - 1.
        scale: Any number.
    """
    u = _numbers(out, ids, width, key)
    _write(out, (2.0 * u - 1.0) * scale)


def fill_normal(out: Array, ids: Ids, width: int, key: int, sigma: float) -> None:
    """Rows of numbers of the normal distribution with mean 0 and deviation sigma.

    The inverse distribution of u as P. J. Acklam approximates it (2003, relative error below
    1.2e-9), times sigma; nothing lies beyond 6.4 sigma. Arguments as for `fill_uniform`.
    """
    u = _numbers(out, ids, width, key)
    q = u - 0.5
    values = _polynomial(_MIDDLE[0], q * q) * q / _polynomial(_MIDDLE[1], q * q)
    is_low, is_high = u < _TAIL, u > 1.0 - _TAIL
    values[is_low] = _tail(u[is_low])
    values[is_high] = -_tail(1.0 - u[is_high])
    _write(out, values * sigma)


def _tail(p: Floats) -> Floats:
    t = np.sqrt(-2.0 * _log(p))
    result: Floats = _polynomial(_TAILS[0], t) / _polynomial(_TAILS[1], t)
    return result


def _log(p: Floats) -> Floats:
    """Logarithms without a library's: of the mantissa by the series of atanh."""
    mantissa, exponent = np.frexp(p)
    is_small = 2.0 * mantissa <= 1.4142135623730951
    m = np.where(is_small, 2.0 * mantissa, mantissa)
    power = exponent - is_small.astype(np.float64)
    s = (m - 1.0) / (m + 1.0)
    result: Floats = power * 0.6931471805599453 + 2.0 * s * _polynomial(_ATANH, s * s)
    return result


def _polynomial(coefficients: tuple[float, ...], x: Floats) -> Floats:
    value = np.full_like(x, coefficients[0])
    for coefficient in coefficients[1:]:
        value = value * x + coefficient
    return value


def _numbers(out: Array, ids: Ids, width: int, key: int) -> Floats:
    """Check the arguments and return u of every element."""
    check_array(out, "out", written=True)
    check_array(ids, "ids")
    check_dtype(ids, "ids", "int64")
    check_dtype(out, "out", *FLOATS)
    if not 1 <= width <= _WIDEST:
        raise ValueError(f"width must be from 1 to 2**34, not {width}")
    if out.size != ids.size * width:
        raise ValueError(f"out has {out.size} elements, expected {ids.size} rows of {width}")
    check_apart(out, "out", ids, "ids")
    if not 0 <= key < 1 << 64:
        raise OverflowError(f"key must be from 0 to 2**64 - 1, not {key}")
    rows = ids.view(np.uint64)[:, None] if ids.flags.aligned else ids.copy().view("u8")[:, None]
    blocks = np.arange(-(-width // 4), dtype=np.uint64)[None, :]
    words = _philox(rows & _LOW, rows >> _HALF, blocks, key & 0xFFFFFFFF, key >> 32)
    flat = words.reshape(ids.size, 4 * blocks.size)[:, :width].reshape(-1)
    result: Floats = (flat.astype(np.float64) + 0.5) * 2.0**-32
    return result


def _philox(
    low: NDArray[np.uint64], high: NDArray[np.uint64], block: NDArray[np.uint64], k0: int, k1: int
) -> NDArray[np.uint64]:
    """The four words of each counter, along a new last axis."""
    x0, x1, x2 = np.broadcast_arrays(low, high, block)
    x3 = np.zeros_like(x0)
    for _ in range(10):
        p0, p1 = x0 * np.uint64(0xD2511F53), x2 * np.uint64(0xCD9E8D57)
        x0, x1 = (p1 >> _HALF) ^ x1 ^ np.uint64(k0), p1 & _LOW
        x2, x3 = (p0 >> _HALF) ^ x3 ^ np.uint64(k1), p0 & _LOW
        k0, k1 = (k0 + 0x9E3779B9) & 0xFFFFFFFF, (k1 + 0xBB67AE85) & 0xFFFFFFFF
    return np.stack([x0, x1, x2, x3], axis=-1)


def _write(out: Array, values: Floats) -> None:
    with np.errstate(all="ignore"):
        out[:] = values
