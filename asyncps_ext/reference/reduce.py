"""Sums and conversions of arrays, in place, in plain NumPy."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from asyncps_ext.reference.checks import (
    FLOATS,
    SUMS,
    Array,
    check_apart,
    check_array,
    check_dtype,
    check_like,
    check_pair,
)
from asyncps_ext.reference.checks import set_variant as _set_variant
from asyncps_ext.reference.checks import variants as _variants

__all__ = [
    "_set_variant",
    "_variants",
    "add",
    "add_all",
    "add_bf16",
    "add_f16",
    "narrow_bf16",
    "narrow_f16",
    "scale",
    "widen_bf16",
    "widen_f16",
]


def add(acc: Array, x: Array) -> None:
    """acc += x, for float32, float64, int8, uint8, int32 and int64. Integers wrap.

    acc and x may be the same array.
    """
    check_array(acc, "acc", written=True)
    check_array(x, "x")
    check_dtype(acc, "acc", *SUMS)
    check_dtype(x, "x", acc.dtype.name)
    check_like(x, "x", acc, "acc")
    check_apart(acc, "acc", x, "x", may_be_same=True)
    with np.errstate(all="ignore"):
        np.add(acc, x, out=acc)


def add_all(out: Array, parts: Iterable[Array]) -> None:
    """out = parts[0] + parts[1] + ..., in that order, for the dtypes of `add`. Integers wrap.

    There are two parts or more, and `out` may be any of them.
    """
    parts = tuple(parts)
    if len(parts) < 2:
        raise ValueError(f"parts must be two arrays or more, not {len(parts)}")
    check_array(out, "out", written=True)
    check_dtype(out, "out", *SUMS)
    for x in parts:
        check_array(x, "a part")
        check_dtype(x, "a part", out.dtype.name)
        check_like(x, "a part", out, "out")
        check_apart(out, "out", x, "a part", may_be_same=True)
    with np.errstate(all="ignore"):
        total = parts[0] + parts[1]
        for x in parts[2:]:
            np.add(total, x, out=total)
    out[:] = total


def add_f16(acc: NDArray[np.float32], x: NDArray[np.uint16]) -> None:
    """acc += x, where x holds the bits of float16 values, each widened before it is added."""
    check_pair(acc, "acc", "float32", x, "uint16")
    with np.errstate(all="ignore"):
        acc += _widened_f16(x)


def add_bf16(acc: NDArray[np.float32], x: NDArray[np.uint16]) -> None:
    """acc += x, where x holds the bits of bfloat16 values, each widened before it is added."""
    check_pair(acc, "acc", "float32", x, "uint16")
    with np.errstate(all="ignore"):
        acc += _widened_bf16(x)


def widen_f16(out: NDArray[np.float32], x: NDArray[np.uint16]) -> None:
    """out = the float16 values whose bits x holds. Exact; a signalling NaN becomes quiet."""
    check_pair(out, "out", "float32", x, "uint16")
    out.view(np.uint32)[:] = _widened_f16(x).view(np.uint32)


def widen_bf16(out: NDArray[np.float32], x: NDArray[np.uint16]) -> None:
    """out = the bfloat16 values whose bits x holds. Exact, bit for bit."""
    check_pair(out, "out", "float32", x, "uint16")
    out.view(np.uint32)[:] = _widened_bf16(x).view(np.uint32)


def narrow_f16(out: NDArray[np.uint16], x: NDArray[np.float32]) -> None:
    """out = the bits of x as float16.

    To the nearest, ties to even; values from 65520 up become infinite; a NaN stays one, quiet, with
    its sign and the upper ten bits of its payload.
    """
    check_pair(out, "out", "uint16", x, "float32")
    bits = x.view(np.uint32)
    with np.errstate(all="ignore"):
        halves = x.astype(np.float16).view(np.uint16)
    nan = ((bits >> 16) & 0x8000) | 0x7E00 | ((bits >> 13) & 0x03FF)
    out[:] = np.where(np.isnan(x), nan.astype(np.uint16), halves)


def narrow_bf16(out: NDArray[np.uint16], x: NDArray[np.float32]) -> None:
    """out = the bits of x as bfloat16.

    To the nearest, ties to even; what is too large becomes infinite; a NaN stays one, quiet, with
    its sign and the upper seven bits of its payload.
    """
    check_pair(out, "out", "uint16", x, "float32")
    bits = x.view(np.uint32)
    rounded = (bits + (0x7FFF + ((bits >> 16) & 1))) >> 16
    out[:] = np.where(np.isnan(x), (bits >> 16) | 0x0040, rounded).astype(np.uint16)


def scale(x: Array, factor: float) -> None:
    """x *= factor, for float32 and float64; the factor is rounded to the dtype once."""
    check_array(x, "x", written=True)
    check_dtype(x, "x", *FLOATS)
    with np.errstate(all="ignore"):
        np.multiply(x, x.dtype.type(float(factor)), out=x)


def _widened_f16(x: NDArray[np.uint16]) -> NDArray[np.float32]:
    wide = x.view(np.float16).astype(np.float32)
    wide.view(np.uint32)[np.isnan(wide)] |= 0x00400000
    return wide


def _widened_bf16(x: NDArray[np.uint16]) -> NDArray[np.float32]:
    return (x.astype(np.uint32) << 16).view(np.float32)
