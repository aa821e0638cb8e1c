"""What codecs send as 16-bit floats and what they keep, for `quantize` and `select`.

Three rules that no conversion of `reduce` has: a number never becomes infinite but the largest
number with its sign; an infinity stays one; and there is one NaN, since which one a sum or a
difference makes differs between processors and with the order of the operands.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from asyncps_ext.reference.reduce import narrow_bf16, narrow_f16

__all__ = ["NAN", "left", "one_nan", "sent_bf16", "sent_f16"]

Floats = NDArray[np.float32]
Halves = NDArray[np.uint16]

NAN = np.array(0x7FC00000, np.uint32).view(np.float32)


def one_nan(x: Floats) -> Floats:
    """Return x with the bits 0x7FC00000 for every NaN; a copy."""
    x = x.copy()
    x.view(np.uint32)[np.isnan(x)] = NAN.view(np.uint32)
    return x


def left(x: Floats, sent: Floats) -> Floats:
    """Return x - sent, what is kept, as one_nan; that is a NaN too where an infinity was sent."""
    with np.errstate(all="ignore"):
        return one_nan(np.subtract(x, sent))


def sent_f16(x: Floats) -> Halves:
    """Return the bits of x as float16, to the nearest, ties to even; a NaN is 0x7E00."""
    halves = np.empty(x.size, np.uint16)
    narrow_f16(halves, x)
    return _sent(halves, x, 0x7C00, 0x7E00)


def sent_bf16(x: Floats) -> Halves:
    """Return the bits of x as bfloat16, to the nearest, ties to even; a NaN is 0x7FC0."""
    halves = np.empty(x.size, np.uint16)
    narrow_bf16(halves, x)
    return _sent(halves, x, 0x7F80, 0x7FC0)


def _sent(halves: Halves, x: Floats, infinite: int, nan: int) -> Halves:
    halves[np.isfinite(x) & (halves & 0x7FFF == infinite)] -= 1
    halves[np.isnan(x)] = nan
    return halves
