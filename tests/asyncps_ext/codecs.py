"""What the tests of quantizers share: the variants, and every codec as one pair of functions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from asyncps_ext import quantize, reduce, reference
from tests.asyncps_ext.arrays import LARGE, SIZES, Array, each_variant

BODIES = pytest.mark.parametrize(
    "body", [quantize, reference.quantize], ids=["chosen", "reference"]
)
BLOCK = 256
EVERY_SIZE = (*SIZES, 255, 256, 257, 511, 513, LARGE)


variant = each_variant(quantize)


def word_bytes(n: int, bits: int) -> int:
    """Bytes of n values of so many bits, in whole words of 32."""
    return 4 * ((n * bits + 31) // 32)


def plain(size: int, seed: int) -> Array:
    """Values of the size of gradients."""
    return np.random.default_rng([seed, size]).standard_normal(size).astype(np.float32)


def bit_patterns(seed: int) -> Array:
    """Every exponent with either sign, also of denormals and NaN; the mantissas at random."""
    rng = np.random.default_rng(seed)
    exponents = np.arange(512, dtype=np.uint32) << 23
    mantissas = rng.integers(0, 1 << 23, (16, 512), dtype=np.uint32)
    return (exponents | mantissas).ravel().view(np.float32)


@dataclass(frozen=True)
class Codec:
    """A quantizer as tests use it.

    Attributes:
        buffers: Arrays that what n values become is written to.
        encode: (body, buffers, residual or None, g); may return a number that travels too.
        decode: (body, out, buffers, that number).
        add: The same into an accumulator.
    """

    buffers: Callable[[int], list[Array]]
    encode: Callable[[ModuleType, list[Array], Any, Array], Any]
    decode: Callable[[ModuleType, Array, list[Array], Any], None]
    add: Callable[[ModuleType, Array, list[Array], Any], None]


def encode_onebit(body: ModuleType, sent: list[Array], residual: Any, g: Array) -> float:
    """Both steps, with the scale of these values alone."""
    with np.errstate(all="ignore"):
        scale = float(np.float32(body.onebit_prepare(residual, g) / max(g.size, 1)))
    scale = scale if np.isfinite(scale) else 1.0
    if residual is None:
        body.encode_onebit(sent[0], g, scale, False)
    else:
        body.encode_onebit(sent[0], residual, scale)
    return scale


def bits_of(n: int, bits: int) -> list[Array]:
    """One payload."""
    return [np.full(word_bytes(n, bits), 0xAA, np.uint8)]


CODECS = {
    "2bit": Codec(
        lambda n: bits_of(n, 2),
        lambda body, sent, residual, g: body.encode_2bit(sent[0], residual, g, 0.3),
        lambda body, out, sent, _: body.decode_2bit(out, sent[0], 0.3),
        lambda body, acc, sent, _: body.add_2bit(acc, sent[0], 0.3),
    ),
    "1bit": Codec(
        lambda n: bits_of(n, 1),
        lambda body, sent, residual, g: body.encode_1bit(sent[0], residual, g, 0.1),
        lambda body, out, sent, _: body.decode_1bit(out, sent[0]),
        lambda body, acc, sent, _: body.add_1bit(acc, sent[0]),
    ),
    "onebit": Codec(
        lambda n: bits_of(n, 1),
        encode_onebit,
        lambda body, out, sent, scale: body.decode_onebit(out, sent[0], scale),
        lambda body, acc, sent, scale: body.add_onebit(acc, sent[0], scale),
    ),
    "int8": Codec(
        lambda n: [np.full(n, 99, np.int8), np.full(-(-n // BLOCK), 99, np.float32)],
        lambda body, sent, residual, g: body.encode_int8(sent[0], sent[1], residual, g),
        lambda body, out, sent, _: body.decode_int8(out, sent[0], sent[1]),
        lambda body, acc, sent, _: body.add_int8(acc, sent[0], sent[1]),
    ),
    "f16": Codec(
        lambda n: [np.full(n, 99, np.uint16)],
        lambda body, sent, residual, g: body.encode_f16(sent[0], residual, g),
        lambda body, out, sent, _: reduce.widen_f16(out, sent[0]),
        lambda body, acc, sent, _: reduce.add_f16(acc, sent[0]),
    ),
    "bf16": Codec(
        lambda n: [np.full(n, 99, np.uint16)],
        lambda body, sent, residual, g: body.encode_bf16(sent[0], residual, g),
        lambda body, out, sent, _: reduce.widen_bf16(out, sent[0]),
        lambda body, acc, sent, _: reduce.add_bf16(acc, sent[0]),
    ),
}
ALL = pytest.mark.parametrize("codec", CODECS.values(), ids=CODECS.keys())
