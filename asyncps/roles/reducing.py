"""The reduction of some ranks' elements, in the order of ranks, rounded once."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from asyncps.protocol.collective import Op
from asyncps.tensor.dtypes import Array, Dtype
from asyncps.tensor.pool import Bytes
from asyncps_ext import reduce

_PAIRS: dict[int, Callable[..., Array]] = {
    Op.SUM: np.add, Op.MEAN: np.add, Op.MIN: np.minimum, Op.MAX: np.maximum,
    Op.PRODUCT: np.multiply,
}
_BLOCK = 16384  # elements that are widened at once: they stay in the cache


def reduce_into(
    dtype: Dtype, op: int, parts: Sequence[Bytes], out: Bytes, factor: float
) -> None:
    """out = op(parts) * factor.

    f16 and bf16 are reduced in float32 and rounded once, other dtypes in their own; an integer is
    multiplied in float64 and cut towards zero. A mean divides by how many parts there are, before
    that rounding.

    Args:
        dtype: Of the elements.
        op: A number of `Op`.
        parts: The bytes of each rank's elements, in the order of ranks; only read, but that `out`
            may be one of them.
        out: As many bytes.
        factor: What the result is multiplied by.
    """
    if op == Op.MEAN:
        factor /= len(parts)
    pair = _PAIRS[op]
    if dtype.widen is None:
        arrays = [part.view(dtype.bits) for part in parts]
        to = out.view(dtype.bits)
        _reduce(pair, arrays, to)
        _multiply(to, factor)
        return
    assert dtype.narrow is not None
    halves, to = [part.view(np.uint16) for part in parts], out.view(np.uint16)
    acc = np.empty(min(to.size, _BLOCK), np.float32)
    wide = np.empty_like(acc)
    for begin in range(0, to.size, _BLOCK):
        stop = min(begin + _BLOCK, to.size)
        a, b = acc[: stop - begin], wide[: stop - begin]
        dtype.widen(a, halves[0][begin:stop])
        for half in halves[1:]:
            if pair is np.add:
                dtype.add(a, half[begin:stop])
            else:
                dtype.widen(b, half[begin:stop])
                pair(a, b, out=a)
        _multiply(a, factor)
        dtype.narrow(to[begin:stop], a)


def _reduce(pair: Callable[..., Array], arrays: Sequence[Array], to: Array) -> None:
    with np.errstate(all="ignore"):  # infinities and NaN travel
        if len(arrays) == 1:
            if to.ctypes.data != arrays[0].ctypes.data:
                to[:] = arrays[0]
        elif pair is np.add:
            reduce.add_all(to, arrays)
        elif len(arrays) == 2 or not any(np.may_share_memory(to, other) for other in arrays[2:]):
            pair(arrays[0], arrays[1], out=to)
            for other in arrays[2:]:
                pair(to, other, out=to)
        else:  # `to` is read later: it is written last
            acc = pair(arrays[0], arrays[1])
            for other in arrays[2:-1]:
                pair(acc, other, out=acc)
            pair(acc, arrays[-1], out=to)


def _multiply(x: Array, factor: float) -> None:
    if factor == 1.0:
        return
    with np.errstate(all="ignore"):
        if x.dtype.kind == "f":
            x *= x.dtype.type(factor)
        else:
            x[:] = (x * np.float64(factor)).astype(x.dtype)
