"""2bit, 1bit and onebit: MXNet's bytes and values, scalar models, sums of magnitudes."""

from __future__ import annotations

import json
import math
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from asyncps_ext import quantize, reference
from tests.asyncps_ext.arrays import LARGE, SIZES, Array, assert_same, floats
from tests.asyncps_ext.codecs import BODIES, word_bytes
from tests.asyncps_ext.codecs import variant as variant

# What MXNet 1.9.1 sent; make_quantize_golden.py made it.
GOLDEN = json.loads(Path(__file__).with_name("quantize_golden.json").read_text())
EXAMPLE = np.array([0.6, -0.7, 0.1, 0.5, -0.5, 0.49, -0.2, 1.3], np.float32)
GRADIENT = np.array([-6, -2, 3, 1, 10, 5, -3, 2, -8, 0], np.float32)
BEFORE = [-3, 1, -1, 5, -2, 2, 3, -7, -2, -100]


def model_2bit(x: Any, t: Any) -> tuple[int, Any]:
    """Code and value of one element, a NumPy scalar."""
    if x >= t:
        return 3, t
    return (2, -t) if x <= -t else (0, type(x)(0))


def packed(codes: list[int], bits: int) -> bytes:
    """The first in the top bits, whole words of 32 bits."""
    text = "".join(format(code, f"0{bits}b") for code in codes)
    text = text.ljust(-(-len(text) // 32) * 32, "0")
    return bytes(int(text[i : i + 8], 2) for i in range(0, len(text), 8))


@BODIES
def test_2bit_has_the_bytes_of_mxnet(body: ModuleType) -> None:
    payload, residual = np.empty(4, np.uint8), np.zeros(8, np.float32)
    body.encode_2bit(payload, residual, EXAMPLE, 0.5)
    assert payload.tobytes().hex() == "e3830000"
    expected = [0.1, -0.2, 0.1, 0, 0, 0.49, -0.2, 0.8]
    np.testing.assert_allclose(residual, expected, atol=1e-7)
    body.encode_2bit(payload, residual, EXAMPLE, 0.5)
    assert payload.tobytes().hex() == "e3b30000"


@BODIES
def test_2bit_keeps_what_mxnet_keeps(body: ModuleType) -> None:
    payload, residual = np.empty(4, np.uint8), np.array(BEFORE, np.float32)
    out = np.empty(10, np.float32)
    body.encode_2bit(payload, residual, GRADIENT, 4)
    body.decode_2bit(out, payload, 4)
    assert out.tolist() == [-4, 0, 0, 4, 4, 4, 0, -4, -4, -4]
    assert residual.tolist() == [-5, -1, 2, 2, 4, 3, 0, -1, -6, -96]


@BODIES
@pytest.mark.parametrize("case", GOLDEN, ids=lambda c: f"{c['threshold']}-{len(c['sent'][0])}")
def test_2bit_sends_what_mxnet_sent_in_five_rounds(
    body: ModuleType, case: dict[str, Any]
) -> None:
    size, threshold = len(case["sent"][0]), case["threshold"]
    residual, out = np.zeros(size, np.float32), np.empty(size, np.float32)
    payload = np.empty(word_bytes(size, 2), np.uint8)
    for g, sent in zip(case["gradients"], case["sent"], strict=True):
        body.encode_2bit(payload, residual, np.array(g, np.float32), threshold)
        body.decode_2bit(out, payload, threshold)
        assert_same(out, np.array(sent, np.float32))


@BODIES
def test_1bit_has_the_bytes_of_mxnet(body: ModuleType) -> None:
    payload, residual = np.empty(4, np.uint8), np.zeros(8, np.float32)
    body.encode_1bit(payload, residual, EXAMPLE, 0)
    assert payload.tobytes().hex() == "b5000000"
    expected = [-0.4, 0.3, -0.9, -0.5, 0.5, -0.51, 0.8, 0.3]
    np.testing.assert_allclose(residual, expected, atol=1e-6)
    body.encode_1bit(payload, residual, EXAMPLE, 0)
    assert payload.tobytes().hex() == "83000000"


@BODIES
def test_1bit_sends_one_above_the_threshold_and_minus_one_at_it(body: ModuleType) -> None:
    payload, out = np.empty(4, np.uint8), np.empty(6, np.float32)
    g = np.array([0.5, 0.75, 0, -0.0, np.nan, np.inf], np.float32)
    body.encode_1bit(payload, None, g, 0.5)
    body.decode_1bit(out, payload)
    assert out.tolist() == [-1, 1, -1, -1, -1, 1]
    body.encode_1bit(payload, None, g, 0)
    body.decode_1bit(out, payload)
    assert out.tolist() == [1, 1, -1, -1, -1, 1]


@BODIES
@pytest.mark.parametrize("threshold", [0.5, 1e-3, 1e-44, 3e38])
def test_2bit_equals_its_model(body: ModuleType, threshold: float) -> None:
    t = np.float32(threshold)
    for size in SIZES:
        g, before = floats(size, "float32", 1), floats(size, "float32", 2)
        with np.errstate(all="ignore"):
            x = g + before
            expected = [model_2bit(value, t) for value in x]
            left = np.array(
                [value - sent for value, (_, sent) in zip(x, expected, strict=True)], np.float32
            )
        payload, residual = np.empty(word_bytes(size, 2), np.uint8), before.copy()
        body.encode_2bit(payload, residual, g, threshold)
        assert payload.tobytes() == packed([code for code, _ in expected], 2)
        assert_same(residual, left)
        out = np.empty(size, np.float32)
        body.decode_2bit(out, payload, threshold)
        assert_same(out, np.array([sent for _, sent in expected], np.float32))


@BODIES
def test_every_byte_of_2bit_decodes_and_01_is_nothing(body: ModuleType) -> None:
    payload = np.arange(256, dtype=np.uint8)
    out = np.empty(1024, np.float32)
    body.decode_2bit(out, payload, 0.5)
    values = {0: 0.0, 1: 0.0, 2: -0.5, 3: 0.5}
    expected = [values[(byte >> shift) & 3] for byte in range(256) for shift in (6, 4, 2, 0)]
    assert out.tolist() == expected


@BODIES
def test_every_byte_of_signs_decodes(body: ModuleType) -> None:
    payload = np.arange(256, dtype=np.uint8)
    out = np.empty(2048, np.float32)
    places = (128, 64, 32, 16, 8, 4, 2, 1)
    expected = [1 if byte & place else -1 for byte in range(256) for place in places]
    body.decode_1bit(out, payload)
    assert out.tolist() == expected
    body.decode_onebit(out, payload, 0.25)
    assert out.tolist() == [0.25 * sign for sign in expected]
    body.decode_onebit(out, payload, -2)
    assert out.tolist() == [-2 * sign for sign in expected]


@BODIES
def test_onebit_sends_the_sign_of_what_is_left_and_the_scale_is_the_callers(
    body: ModuleType,
) -> None:
    residual = np.array([0.5, -1, 0, -0.0, 0.25], np.float32)
    g = np.array([0.5, 0.5, 0, -0.0, -1], np.float32)
    total = body.onebit_prepare(residual, g)
    assert (total, residual.tolist()) == (2.25, [1, -0.5, 0, 0, -0.75])
    payload, out = np.empty(4, np.uint8), np.empty(5, np.float32)
    body.encode_onebit(payload, residual, 0.5)
    assert payload.tobytes() == bytes([0b10110000, 0, 0, 0])
    assert residual.tolist() == [0.5, 0, -0.5, -0.5, -0.25]
    body.decode_onebit(out, payload, 0.5)
    assert out.tolist() == [0.5, -0.5, 0.5, 0.5, -0.5]


@BODIES
def test_onebit_takes_minus_zero_for_positive_and_nan_for_negative(body: ModuleType) -> None:
    payload = np.empty(4, np.uint8)
    x = np.array([-0.0, np.nan, -np.nan, np.inf, -np.inf, -1e-45, 1e-45], np.float32)
    body.encode_onebit(payload, x, 1.0, False)
    assert payload.tobytes() == packed([1, 0, 0, 1, 0, 0, 1], 1)


@BODIES
def test_onebit_without_a_residual_leaves_the_gradient_alone(body: ModuleType) -> None:
    g = np.arange(-20, 20, dtype=np.float32)
    before = g.copy()
    payload = np.empty(8, np.uint8)
    assert body.onebit_prepare(None, g) == 400
    body.encode_onebit(payload, g, 10, False)
    assert_same(g, before)
    body.encode_onebit(payload, g, 10)
    assert_same(g, np.where(before >= 0, before - 10, before + 10).astype(np.float32))


@BODIES
def test_onebit_cut_into_chunks_sends_what_the_whole_key_does(body: ModuleType) -> None:
    g = np.random.default_rng(3).standard_normal(1000).astype(np.float32)
    scale = body.onebit_prepare(None, g) / g.size
    whole, parts = np.empty(word_bytes(1000, 1), np.uint8), bytearray()
    body.encode_onebit(whole, g, scale, False)
    for start in range(0, 1000, 96):
        chunk = g[start : start + 96]
        part = np.empty(word_bytes(chunk.size, 1), np.uint8)
        body.encode_onebit(part, chunk, scale, False)
        parts += part.tobytes()
    assert bytes(parts) == whole.tobytes()


@BODIES
def test_the_sum_of_magnitudes_is_right_and_has_the_same_bits_everywhere(body: ModuleType) -> None:
    for size in (*SIZES, LARGE):
        for special in (False, True):
            g = floats(size, "float32", 5, special=special)
            residual = floats(size, "float32", 6, special=special)
            twin = residual.copy()
            total = body.onebit_prepare(residual, g)
            assert_same(np.array([total]), np.array([reference.quantize.onebit_prepare(twin, g)]))
            with np.errstate(all="ignore"):
                assert_same(residual, floats(size, "float32", 6, special=special) + g)
            if not special:
                expected = math.fsum(abs(float(value)) for value in residual)
                np.testing.assert_allclose(total, expected, rtol=1e-12)


@BODIES
def test_partial_sums_are_added_in_the_order_that_is_told(body: ModuleType) -> None:
    big = 2.0**53  # 1 more is lost, 2 more are not
    for lane in range(8):
        for ones in range(256):
            s = [big if i == lane else float(ones >> i & 1) for i in range(8)]
            expected = ((s[0] + s[4]) + (s[2] + s[6])) + ((s[1] + s[5]) + (s[3] + s[7]))
            assert body.onebit_prepare(None, np.array(s, np.float32)) == expected


def test_the_sum_of_magnitudes_does_not_depend_on_where_the_array_lies() -> None:
    g: Array = floats(1001, "float32", 9, special=False)
    place = np.empty(4 * 1001 + 64, np.uint8)
    sums = set()
    for offset in (0, 1, 4, 17, 32):
        copy = place[offset : offset + g.nbytes].view(np.float32)
        copy[:] = g
        sums.add(quantize.onebit_prepare(None, copy))
    assert len(sums) == 1
