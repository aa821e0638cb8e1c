"""What quantizers send and keep of NaN and infinities: the same bits in every variant.

Which NaN a sum of two is depends on the order that a compiler gives the operands, and which one is
made of Inf - Inf on the processor: 0xFFC00000 on x86-64, 0x7FC00000 on Arm.
"""

from __future__ import annotations

from types import ModuleType

import numpy as np
import pytest

from tests.asyncps_ext.arrays import Array, assert_bits
from tests.asyncps_ext.codecs import ALL, BODIES, CODECS, Codec, plain
from tests.asyncps_ext.codecs import variant as variant

INF, NEGATIVE_INF, ONE = 0x7F800000, 0xFF800000, 0x3F800000
# Quiet and signalling, of both signs, with payloads that differ in the bits that halves keep too.
NANS = (0x7FC00000, 0xFFC00000, 0x7FABCDEF, 0xFFD5A5A5, 0x7F800001, 0xFF800001, 0xFFFFFFFF)
TO_NAN = (
    *((a, b) for a in NANS for b in (*NANS, ONE, INF, NEGATIVE_INF)),
    *((ONE, a) for a in NANS),
    *((INF, a) for a in NANS),
    (INF, NEGATIVE_INF),
    (NEGATIVE_INF, INF),
)
TO_INFINITY = ((INF, ONE), (ONE, INF), (INF, INF), (NEGATIVE_INF, ONE), (ONE, NEGATIVE_INF))
MOST = np.float32(3e38).view(np.uint32).item()  # twice it is infinite
OVERFLOWING = ((MOST, MOST), (MOST | 1 << 31, MOST | 1 << 31))
ONE_NAN = 0x7FC00000


def arrays_of(pairs: tuple[tuple[int, int], ...]) -> tuple[Array, Array]:
    """Gradient and residual with all pairs, each once in whole vectors and once behind them."""
    words = np.array(pairs * 16, np.uint32)[: len(pairs) * 16 // 32 * 32 + 7]
    return words[:, 0].copy().view(np.float32), words[:, 1].copy().view(np.float32)


def bits_of(x: Array) -> list[int]:
    """As whole numbers."""
    return x.view(np.uint32).tolist()


def signs_of(payload: Array, size: int) -> list[int]:
    """The bits of a payload of 1 bit a value."""
    return np.unpackbits(payload)[:size].tolist()


@ALL
@BODIES
def test_a_nan_that_is_kept_is_always_the_same(codec: Codec, body: ModuleType) -> None:
    g, residual = arrays_of(TO_NAN)
    codec.encode(body, codec.buffers(g.size), residual, g)
    assert set(bits_of(residual)) == {ONE_NAN}


@BODIES
@pytest.mark.parametrize(("kind", "nan"), [("f16", 0x7E00), ("bf16", 0x7FC0)])
def test_halves_send_one_nan(body: ModuleType, kind: str, nan: int) -> None:
    g, residual = arrays_of(TO_NAN)
    payload = np.zeros(g.size, np.uint16)
    getattr(body, f"encode_{kind}")(payload, residual, g)
    assert set(payload.tolist()) == {nan}
    nans = np.array(NANS * 9, np.uint32).view(np.float32)
    payload = np.zeros(nans.size, np.uint16)
    getattr(body, f"encode_{kind}")(payload, None, nans)
    assert set(payload.tolist()) == {nan}


@BODIES
@pytest.mark.parametrize("kind", ["f16", "bf16"])
def test_halves_send_infinities_and_keep_a_nan(body: ModuleType, kind: str) -> None:
    infinite = {"f16": 0x7C00, "bf16": 0x7F80}[kind]
    g, residual = arrays_of(TO_INFINITY + OVERFLOWING)
    with np.errstate(over="ignore"):
        is_negative = np.signbit(g + residual)
    payload = np.zeros(g.size, np.uint16)
    getattr(body, f"encode_{kind}")(payload, residual, g)
    assert payload.tolist() == [infinite | negative << 15 for negative in is_negative.tolist()]
    assert set(bits_of(residual)) == {ONE_NAN}


@BODIES
@pytest.mark.parametrize("kind", ["f16", "bf16"])
def test_halves_beside_a_nan_are_what_they_are_without(body: ModuleType, kind: str) -> None:
    encode = getattr(body, f"encode_{kind}")
    for place in range(40):
        g, residual = plain(40, 1), plain(40, 2)
        expected, left = np.zeros(40, np.uint16), residual.copy()
        encode(expected, left, g)
        payload, g[place] = np.zeros(40, np.uint16), np.nan
        encode(payload, residual, g)
        others = np.arange(40) != place
        assert_bits(payload[others], expected[others])
        assert_bits(residual[others], left[others])


@BODIES
def test_2bit_sends_nothing_of_a_nan_and_the_threshold_of_an_infinity(body: ModuleType) -> None:
    g, residual = arrays_of(TO_NAN)
    payload, out = np.full((g.size + 15) // 16 * 4, 0xAA, np.uint8), np.ones(g.size, np.float32)
    body.encode_2bit(payload, residual, g, 0.5)
    assert not payload.any()
    g, residual = arrays_of(TO_INFINITY + OVERFLOWING)
    with np.errstate(over="ignore"):
        x = g + residual
    payload, out = payload[: (g.size + 15) // 16 * 4], out[: g.size]
    body.encode_2bit(payload, residual, g, 0.5)
    body.decode_2bit(out, payload, 0.5)
    assert_bits(out, np.copysign(np.float32(0.5), x))
    assert_bits(residual, x)


@BODIES
@pytest.mark.parametrize("kind", ["1bit", "onebit"])
def test_signs_of_a_nan_are_negative_and_infinities_are_kept(body: ModuleType, kind: str) -> None:
    codec = CODECS[kind]
    g, residual = arrays_of(TO_NAN)
    sent = codec.buffers(g.size)
    codec.encode(body, sent, residual, g)
    assert not sent[0].any()
    g, residual = arrays_of(TO_INFINITY + OVERFLOWING)
    with np.errstate(over="ignore"):
        x = g + residual
    sent = codec.buffers(g.size)
    codec.encode(body, sent, residual, g)
    assert signs_of(sent[0], g.size) == (x > 0).tolist()
    assert_bits(residual, x)


@BODIES
def test_the_first_step_of_onebit_leaves_one_nan(body: ModuleType) -> None:
    g, residual = arrays_of(TO_NAN)
    assert np.isnan(body.onebit_prepare(residual, g))
    assert set(bits_of(residual)) == {ONE_NAN}
    x = np.array(NANS * 9, np.uint32).view(np.float32)
    body.encode_onebit(np.zeros((x.size + 31) // 32 * 4, np.uint8), x, 0.5)  # without it
    assert set(bits_of(x)) == {ONE_NAN}


@BODIES
def test_int8_keeps_one_nan_in_the_whole_block(body: ModuleType) -> None:
    for a, b in (*TO_NAN, *TO_INFINITY, *OVERFLOWING):
        g, residual = plain(300, 3), plain(300, 4)
        g.view(np.uint32)[5], residual.view(np.uint32)[5] = a, b
        q, scales = np.full(300, 9, np.int8), np.zeros(2, np.float32)
        body.encode_int8(q, scales, residual, g)
        assert set(bits_of(residual[:256])) == {ONE_NAN}
        assert not q[:256].any()
        assert bits_of(scales)[0] == ONE_NAN
        assert np.isfinite(residual[256:]).all()
