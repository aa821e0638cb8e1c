"""Quantizers: few bits for a float32, what is lost kept for the next time, in plain NumPy.

An encoder works on x = g + residual, added in float32, and writes residual = x - (what it sends).
With residual None it works on x = g and keeps nothing. Where nothing else is said:

* g, residual, out and acc are float32 arrays of one length n; payloads are uint8 or int8 arrays of
  exactly the bytes that n values take (else ValueError, and nothing is touched); what is written
  shares no memory with anything else;
* the first value of a byte has its top bits; payloads of 1 and 2 bits a value are whole words of
  32 bits, 0 behind the last value;
* thresholds and scales are rounded to float32 once and must be finite then (else ValueError);
* NaN and infinities are the caller's to refuse (`count_nonfinite`); what becomes of them is told.

What an encoder sends of an x that is no number, and what it keeps, in every variant the same; a NaN
that is kept has the bits 0x7FC00000, whichever it was:

* 2bit: of a NaN nothing, of an infinity the threshold with its sign; both are kept;
* 1bit and onebit: -1 and -scale of a NaN, +-1 and +-scale of an infinity; both are kept;
* int8: the whole block of 256 is sent as NaN and kept as NaN;
* f16 and bf16: the infinity, or the one NaN 0x7E00 and 0x7FC0; a NaN is kept of either.

Sources: MXNet 1.9.1's gradient compression for the formats of 2bit and 1bit (Strom 2015; Seide and
others 2014); Karimireddy and others 2019 for onebit with mean(abs(x)) as its scale.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from asyncps_ext.reference import reduce
from asyncps_ext.reference.checks import (
    Array,
    check_apart,
    check_array,
    check_dtype,
    check_floats,
    check_like,
)
from asyncps_ext.reference.checks import set_variant as _set_variant
from asyncps_ext.reference.checks import variants as _variants
from asyncps_ext.reference.halves import NAN, left, one_nan, sent_bf16, sent_f16
from asyncps_ext.reference.quantize_scan import count_nonfinite, first_nonfinite, largest

__all__ = [
    "BLOCK",
    "_set_variant",
    "_variants",
    "add_1bit",
    "add_2bit",
    "add_int8",
    "add_onebit",
    "count_nonfinite",
    "decode_1bit",
    "decode_2bit",
    "decode_int8",
    "decode_onebit",
    "encode_1bit",
    "encode_2bit",
    "encode_bf16",
    "encode_f16",
    "encode_int8",
    "encode_onebit",
    "first_nonfinite",
    "largest",
    "onebit_prepare",
]

Floats = NDArray[np.float32]
Bytes = NDArray[Any]

BLOCK = 256  # values that share a scale in int8
LANES = 8  # partial sums of onebit_prepare
_WORD_BITS = 32
# The largest scale: times 127 it is finite still, and the next float is not.
_MOST_SCALE = np.array(0x7C010203, np.uint32).view(np.float32)


def encode_2bit(payload: Bytes, residual: Floats | None, g: Floats, threshold: float) -> None:
    """Send +threshold, -threshold or nothing, in the format of MXNet's 2bit.

    11 where x >= threshold, 10 where x <= -threshold, else 00, NaN included.

    Args:
        payload: 4*ceil(n/16) bytes, written.
        residual: Read and written, or None.
        g: The gradient.
        threshold: Above 0.
    """
    _check_source(residual, g)
    _check_bytes(payload, "payload", _words(g.size, 2), written=True)
    t = _threshold(threshold)
    _check_target(payload, "payload", residual, g)
    x = _sum(residual, g)
    up, down = x >= t, x <= -t
    codes = np.zeros(-(-g.size // 16) * 16, np.uint8)
    codes[: g.size] = np.where(up, 3, np.where(down, 2, 0))
    fours = codes.reshape(-1, 4) << np.array([6, 4, 2, 0], np.uint8)
    payload.view(np.uint8)[:] = np.bitwise_or.reduce(fours, axis=1)
    _keep(residual, x, np.where(up, t, np.where(down, -t, np.float32(0))))


def decode_2bit(out: Floats, payload: Bytes, threshold: float) -> None:
    """out = what encode_2bit sent: +threshold, -threshold or 0, which also 01 is."""
    _check_decode(out, "out", payload, 2)
    out[:] = _values_2bit(payload, out.size, _threshold(threshold))


def add_2bit(acc: Floats, payload: Bytes, threshold: float) -> None:
    """acc += what encode_2bit sent."""
    _check_decode(acc, "acc", payload, 2)
    _add(acc, _values_2bit(payload, acc.size, _threshold(threshold)))


def encode_1bit(payload: Bytes, residual: Floats | None, g: Floats, threshold: float) -> None:
    """Send +1 or -1, in the format of MXNet's 1bit.

    1 where x > threshold, else 0, NaN included; whatever the threshold is, 1 stands for +1 and 0
    for -1.

    Args:
        payload: 4*ceil(n/32) bytes, written.
        residual: Read and written, or None.
        g: The gradient.
        threshold: Any finite number.
    """
    _check_source(residual, g)
    _check_bytes(payload, "payload", _words(g.size, 1), written=True)
    t = _finite(threshold, "threshold")
    _check_target(payload, "payload", residual, g)
    x = _sum(residual, g)
    _send_signs(payload, residual, x, x > t, np.float32(1))


def decode_1bit(out: Floats, payload: Bytes) -> None:
    """out = what encode_1bit sent: +1 or -1."""
    _check_decode(out, "out", payload, 1)
    out[:] = _signs(payload, out.size, np.float32(1))


def add_1bit(acc: Floats, payload: Bytes) -> None:
    """acc += what encode_1bit sent."""
    _check_decode(acc, "acc", payload, 1)
    _add(acc, _signs(payload, acc.size, np.float32(1)))


def onebit_prepare(residual: Floats | None, g: Floats) -> float:
    """residual += g, the first step of onebit; returns the sum of the magnitudes.

    The scale of a key is that sum over all its values (in f64) divided by their number. Value i
    goes to partial sum i mod 8, and these are added as `squares` does, so that every variant has
    the same bits. With residual None only the sum of the magnitudes of g is made.
    """
    _check_source(residual, g)
    x = _sum(residual, g)
    if residual is not None:
        residual[:] = one_nan(x)
    padded = np.zeros((-(-x.size // LANES) + 1, LANES))
    padded.reshape(-1)[LANES : LANES + x.size] = np.abs(x)
    with np.errstate(all="ignore"):
        s = np.add.accumulate(padded, axis=0)[-1]
        return float(((s[0] + s[4]) + (s[2] + s[6])) + ((s[1] + s[5]) + (s[3] + s[7])))


def encode_onebit(payload: Bytes, x: Floats, scale: float, keep: bool = True) -> None:
    """Send signs, the second step of onebit.

    1 where x >= 0, -0.0 included, else 0, NaN included; 1 stands for +scale and 0 for -scale. With
    a scale of 0 nothing is lost: x stays as it is.

    Args:
        payload: 4*ceil(n/32) bytes, written; the scale itself travels beside it.
        x: What onebit_prepare made of residual; of it what is sent is taken away. With keep False
            the gradient, which is only read.
        scale: Mean of the magnitudes of the whole key.
        keep: Whether x is written.
    """
    check_floats(x, "x", written=keep)
    _check_bytes(payload, "payload", _words(x.size, 1), written=True)
    check_apart(payload, "payload", x, "x")
    _send_signs(payload, x if keep else None, x, x >= 0, _finite(scale, "scale"))


def decode_onebit(out: Floats, payload: Bytes, scale: float) -> None:
    """out = what encode_onebit sent: +scale or -scale."""
    _check_decode(out, "out", payload, 1)
    out[:] = _signs(payload, out.size, _finite(scale, "scale"))


def add_onebit(acc: Floats, payload: Bytes, scale: float) -> None:
    """acc += what encode_onebit sent."""
    _check_decode(acc, "acc", payload, 1)
    _add(acc, _signs(payload, acc.size, _finite(scale, "scale")))


def encode_int8(payload: Bytes, scales: Floats, residual: Floats | None, g: Floats) -> None:
    """Send multiples from -127 to 127 of a scale, one scale for each 256 values.

    scale = max(abs(x)) / 127, in float32, and at most the largest that times 127 is finite;
    q = x / scale, rounded to the nearest whole number, ties to even, and bounded (a scale below
    2^-126 has few digits); residual = x - q*scale. Where the scale is 0, q is 0 and all of x is
    kept. A block with a NaN or an infinity is sent, and kept, as NaN: its scale is one, q is 0.

    Args:
        payload: n bytes, written.
        scales: ceil(n/256) values, written.
        residual: Read and written, or None.
        g: The gradient.
    """
    _check_source(residual, g)
    _check_bytes(payload, "payload", g.size, written=True)
    _check_scales(scales, g.size, written=True)
    _check_target(payload, "payload", residual, g)
    _check_target(scales, "scales", residual, g)
    check_apart(payload, "payload", scales, "scales")
    x = _sum(residual, g)
    blocks = np.zeros((scales.size, BLOCK), np.float32)
    blocks.reshape(-1)[: x.size] = x
    with np.errstate(all="ignore"):
        most = np.abs(blocks).max(axis=1)
        units = np.minimum(most / np.float32(127), _MOST_SCALE)
        scales[:] = np.where(np.isfinite(most), units, NAN)
        per_value = np.repeat(scales, BLOCK)[: x.size]
        ratio = np.where(per_value > 0, x / per_value, np.float32(0))
        q = np.clip(np.rint(ratio), -127, 127).astype(np.int8)
        payload.view(np.int8)[:] = q
        _keep(residual, x, q.astype(np.float32) * per_value)


def decode_int8(out: Floats, payload: Bytes, scales: Floats) -> None:
    """out = what encode_int8 sent: q*scale."""
    _check_decode(out, "out", payload, 8)
    _check_scales(scales, out.size)
    check_apart(out, "out", scales, "scales")
    out[:] = _values_int8(payload, scales)


def add_int8(acc: Floats, payload: Bytes, scales: Floats) -> None:
    """acc += what encode_int8 sent."""
    _check_decode(acc, "acc", payload, 8)
    _check_scales(scales, acc.size)
    check_apart(acc, "acc", scales, "scales")
    _add(acc, _values_int8(payload, scales))


def encode_f16(payload: NDArray[np.uint16], residual: Floats | None, g: Floats) -> None:
    """Send the bits of x as float16.

    To the nearest, ties to even; a number that would become infinite is sent as the largest one
    with its sign, and the residual keeps the rest. An infinity is sent as one, a NaN as 0x7E00.

    Args:
        payload: n uint16, written.
        residual: Read and written, or None.
        g: The gradient.
    """
    x = _check_half(payload, residual, g)
    payload[:] = sent_f16(x)
    sent = np.empty_like(x)
    reduce.widen_f16(sent, payload)
    _keep(residual, x, sent)


def encode_bf16(payload: NDArray[np.uint16], residual: Floats | None, g: Floats) -> None:
    """Send the bits of x as bfloat16; as encode_f16, and a NaN as 0x7FC0."""
    x = _check_half(payload, residual, g)
    payload[:] = sent_bf16(x)
    sent = np.empty_like(x)
    reduce.widen_bf16(sent, payload)
    _keep(residual, x, sent)


def _sum(residual: Floats | None, g: Floats) -> Floats:
    with np.errstate(all="ignore"):
        return g.copy() if residual is None else g + residual


def _keep(residual: Floats | None, x: Floats, sent: Floats) -> None:
    if residual is not None:
        residual[:] = left(x, sent)


def _add(acc: Floats, values: Floats) -> None:
    with np.errstate(all="ignore"):
        acc += values


def _values_2bit(payload: Bytes, n: int, t: np.float32) -> Floats:
    codes = (payload.view(np.uint8)[:, None] >> np.array([6, 4, 2, 0], np.uint8)) & 3
    values: Floats = np.array([0, 0, -t, t], np.float32)[codes.reshape(-1)[:n]]
    return values


def _send_signs(
    payload: Bytes, residual: Floats | None, x: Floats, up: NDArray[np.bool_], scale: np.float32
) -> None:
    bits = np.zeros(8 * payload.size, np.uint8)
    bits[: x.size] = up
    payload.view(np.uint8)[:] = np.packbits(bits)
    _keep(residual, x, np.where(up, scale, -scale))


def _signs(payload: Bytes, n: int, scale: np.float32) -> Floats:
    up = np.unpackbits(payload.view(np.uint8), count=n) if n else np.empty(0, np.uint8)
    return np.where(up, scale, -scale)


def _values_int8(payload: Bytes, scales: Floats) -> Floats:
    with np.errstate(all="ignore"):
        per_value = np.repeat(scales, BLOCK)[: payload.size]
        return payload.view(np.int8).astype(np.float32) * per_value


def _words(n: int, bits: int) -> int:
    """Bytes of n values of so many bits, in whole words."""
    return -(-n * bits // _WORD_BITS) * 4


def _finite(value: float, name: str) -> np.float32:
    with np.errstate(all="ignore"):
        rounded = np.float32(float(value))
    if not math.isfinite(rounded):
        raise ValueError(f"{name} must be a finite float32, not {float(value)!r}")
    return rounded


def _threshold(value: float) -> np.float32:
    rounded = _finite(value, "threshold")
    if not rounded > 0:
        raise ValueError(f"threshold must be above 0, not {float(value)!r}")
    return rounded


def _check_bytes(array: Array, name: str, size: int, *, written: bool = False) -> None:
    check_array(array, name, written=written)
    check_dtype(array, name, "uint8", "int8")
    if array.size != size:
        raise ValueError(f"{name} has {array.size} bytes, expected {size}")


def _check_scales(scales: Array, n: int, *, written: bool = False) -> None:
    check_floats(scales, "scales", written=written)
    expected = -(-n // BLOCK)
    if scales.size != expected:
        raise ValueError(f"scales has {scales.size} elements, expected {expected}")


def _check_source(residual: Array | None, g: Array) -> None:
    check_floats(g, "g")
    if residual is not None:
        check_floats(residual, "residual", written=True)
        check_like(residual, "residual", g, "g")
        check_apart(residual, "residual", g, "g")


def _check_target(written: Array, name: str, residual: Array | None, g: Array) -> None:
    check_apart(written, name, g, "g")
    if residual is not None:
        check_apart(written, name, residual, "residual")


def _check_decode(out: Array, name: str, payload: Array, bits: int) -> None:
    check_floats(out, name, written=True)
    _check_bytes(payload, "payload", out.size if bits == 8 else _words(out.size, bits))
    check_apart(out, name, payload, "payload")


def _check_half(payload: Array, residual: Array | None, g: Array) -> Floats:
    _check_source(residual, g)
    check_array(payload, "payload", written=True)
    check_dtype(payload, "payload", "uint16")
    check_like(payload, "payload", g, "g")
    _check_target(payload, "payload", residual, g)
    return _sum(residual, g)
