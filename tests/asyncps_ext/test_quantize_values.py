"""int8 blocks, f16 and bf16 with what is kept: scalar models, the ends of the ranges."""

from __future__ import annotations

from fractions import Fraction
from types import ModuleType
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tests.asyncps_ext.arrays import Array, assert_same
from tests.asyncps_ext.codecs import BLOCK, BODIES
from tests.asyncps_ext.codecs import variant as variant

HALVES = {"f16": (np.dtype(np.float16), 65504.0), "bf16": (np.dtype(ml_dtypes.bfloat16), None)}
halves = pytest.mark.parametrize("kind", HALVES)
MOST = np.finfo(np.float32).max


def sent_int8(
    body: ModuleType, g: Array, residual: Array | None = None
) -> tuple[Array, Array, Array]:
    """Payload, scales and what is decoded."""
    q, scales = np.empty(g.size, np.int8), np.empty(-(-g.size // BLOCK), np.float32)
    body.encode_int8(q, scales, residual, g)
    out = np.empty(g.size, np.float32)
    body.decode_int8(out, q, scales)
    return q, scales, out


def model_int8(x: Array) -> tuple[list[int], Any]:
    """Whole numbers and scale of one block, in exact arithmetic but for the two divisions."""
    scale = np.float32(np.abs(x).max()) / np.float32(127)
    if scale == 0:
        return [0] * x.size, scale
    ratios = [Fraction(float(value / scale)) for value in x]
    return [max(-127, min(127, round(ratio))) for ratio in ratios], scale  # ties to even


@BODIES
@pytest.mark.parametrize("size", [1, 2, 31, 32, 33, 255, 256])
@pytest.mark.parametrize("power", [-45, -40, -20, 0, 20, 38])
def test_int8_equals_its_model(body: ModuleType, size: int, power: int) -> None:
    x = np.random.default_rng([size, power + 99]).uniform(-3, 3, size)
    g = (x * 10.0**power).astype(np.float32)
    residual = np.full(size, -0.0, np.float32)  # to which any number is added unchanged
    q, scales, out = sent_int8(body, g, residual)
    numbers, scale = model_int8(g)
    assert (q.tolist(), scales.tolist()) == (numbers, [scale])
    assert_same(out, np.array([np.float32(number) * scale for number in numbers], np.float32))
    assert_same(residual, g - out)
    assert np.isfinite(out).all()


@BODIES
def test_int8_rounds_ties_to_even(body: ModuleType) -> None:
    g = np.array([127, 0.5, 1.5, 2.5, -0.5, -1.5, -2.5, 126.5, -127], np.float32)
    q, scales, _ = sent_int8(body, g)
    assert scales.tolist() == [1.0]
    assert q.tolist() == [127, 0, 2, 2, 0, -2, -2, 126, -127]


@BODIES
def test_int8_has_a_scale_for_each_256_values(body: ModuleType) -> None:
    g = np.concatenate([np.full(256, 127), np.full(256, -254), [12.7]]).astype(np.float32)
    q, scales, out = sent_int8(body, g)
    assert scales.tolist() == [1.0, 2.0, np.float32(12.7) / np.float32(127)]
    assert q.tolist() == [127] * 256 + [-127] * 256 + [127]
    np.testing.assert_allclose(out, g, rtol=1e-6)


@BODIES
@pytest.mark.parametrize("units", [1, 63, 64, 100, 127, 189, 190, 191, 1000])
def test_int8_of_denormals_is_finite_and_what_does_not_fit_is_kept(
    body: ModuleType, units: int
) -> None:
    g = np.full(40, units * 2.0**-149, np.float32)
    g[::2] *= -1
    residual = np.zeros(40, np.float32)
    q, scales, out = sent_int8(body, g, residual)
    numbers, scale = model_int8(g)
    assert (q.tolist(), scales.tolist()) == (numbers, [scale])
    assert_same(residual + out, g)


@BODIES
def test_int8_of_the_largest_float_is_finite_and_has_the_largest_scale(body: ModuleType) -> None:
    for values in ([MOST], [-MOST, MOST, 1.0], [MOST] * 300, [-MOST] * 40):
        g = np.array(values, np.float32)
        residual = np.zeros(g.size, np.float32)
        q, scales, out = sent_int8(body, g, residual)
        assert np.isfinite(out).all()
        assert np.isfinite(residual).all()
        assert np.abs(q).max() == 127
        np.testing.assert_allclose(out[:1], g[:1], rtol=1e-6)
        above = np.nextafter(scales, np.float32(np.inf))
        with np.errstate(over="ignore"):
            assert np.isinf(above * np.float32(127)).all()


@BODIES
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_int8_makes_nan_of_a_block_with_one_and_leaves_others_alone(
    body: ModuleType, value: float
) -> None:
    for size, place in ((300, 7), (300, 299), (256, 255), (300, 255)):
        g = np.ones(size, np.float32)
        g[place] = value
        residual = np.zeros(size, np.float32)
        q, scales, out = sent_int8(body, g, residual)
        bad = np.arange(size) // BLOCK == place // BLOCK
        np.testing.assert_array_equal(np.isnan(out), bad)
        np.testing.assert_array_equal(np.isnan(residual), bad)
        assert not q[bad].any()
        assert (scales.view(np.uint32) == 0x7FC00000).tolist() == [
            block == place // BLOCK for block in range(scales.size)
        ]


@BODIES
def test_int8_payloads_may_be_bytes_of_either_sign(body: ModuleType) -> None:
    g, scales = np.linspace(-1, 1, 50).astype(np.float32), np.empty(1, np.float32)
    signed, unsigned = np.empty(50, np.int8), np.empty(50, np.uint8)
    body.encode_int8(signed, scales, None, g)
    body.encode_int8(unsigned, scales, None, g)
    assert signed.tobytes() == unsigned.tobytes()
    out, other = np.empty(50, np.float32), np.empty(50, np.float32)
    body.decode_int8(out, signed, scales)
    body.decode_int8(other, unsigned, scales)
    assert_same(out, other)


@BODIES
def test_every_byte_of_int8_decodes(body: ModuleType) -> None:
    out = np.empty(256, np.float32)
    body.decode_int8(out, np.arange(256, dtype=np.uint8), np.array([0.5], np.float32))
    assert out.tolist() == [0.5 * (byte if byte < 128 else byte - 256) for byte in range(256)]


def half_cases(kind: str) -> Array:
    """Finite float32 around every value of a 16-bit float, and beyond its range."""
    dtype, _ = HALVES[kind]
    every = np.arange(65536, dtype=np.uint16).view(dtype).astype(np.float32)
    bits = every[np.isfinite(every)].view(np.uint32)
    half = 0x1000 if kind == "f16" else 0x8000
    near = [(bits + np.uint32(step)).view(np.float32) for step in (0, 1, half - 1, half, half + 1)]
    beyond = [1e5, -1e5, 65519, 65520, -65520, MOST, -MOST, 3.39e38, 1e-45, -1e-41, -0.0]
    x = np.concatenate([*near, np.array(beyond, np.float32)])
    return x[np.isfinite(x)]


@BODIES
@halves
def test_halves_round_to_the_nearest_even_and_stay_finite(body: ModuleType, kind: str) -> None:
    dtype, _ = HALVES[kind]
    x = half_cases(kind)
    with np.errstate(all="ignore"):
        rounded = x.astype(dtype).astype(np.float32)
        most = np.float32(ml_dtypes.finfo(dtype).max)
    expected = np.where(np.isinf(rounded), np.copysign(most, x), rounded)
    assert np.isinf(rounded).any()
    payload, residual = np.empty(x.size, np.uint16), np.full(x.size, -0.0, np.float32)
    encode = getattr(body, f"encode_{kind}")
    encode(payload, residual, x)
    assert_same(payload.view(dtype).astype(np.float32), expected)
    assert_same(residual, x - expected)
    encode(payload, None, x)
    assert_same(payload.view(dtype).astype(np.float32), expected)


@BODIES
def test_f16_sends_what_did_not_fit_later(body: ModuleType) -> None:
    payload, residual = np.empty(9, np.uint16), np.zeros(9, np.float32)
    body.encode_f16(payload, residual, np.full(9, 100_000, np.float32))
    assert payload.view(np.float16).tolist() == [65504] * 9
    body.encode_f16(payload, residual, np.zeros(9, np.float32))
    assert payload.view(np.float16).tolist() == [34496] * 9
    assert residual.tolist() == [0] * 9


@BODIES
@halves
def test_infinities_and_nans_stay_what_they_are_in_halves(body: ModuleType, kind: str) -> None:
    dtype, _ = HALVES[kind]
    bits = np.array([0x7F800000, 0xFF800000, 0x7FC00000, 0xFF800001, 0x7FABCDEF] * 4, np.uint32)
    payload, residual = np.empty(20, np.uint16), np.ones(20, np.float32)
    getattr(body, f"encode_{kind}")(payload, None, bits.view(np.float32))
    quiet = {"f16": [0x7C00, 0xFC00, 0x7E00, 0x7E00, 0x7E00],
             "bf16": [0x7F80, 0xFF80, 0x7FC0, 0x7FC0, 0x7FC0]}  # fmt: skip
    assert payload.tolist() == quiet[kind] * 4
    getattr(body, f"encode_{kind}")(payload, residual, bits.view(np.float32))
    with np.errstate(invalid="ignore"):
        assert payload.view(dtype)[:2].astype(np.float32).tolist() == [np.inf, -np.inf]
    assert np.isnan(residual).all()
