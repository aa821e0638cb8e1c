"""What quantizers refuse; nothing is touched then, whatever the lengths are."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncps_ext import quantize, reference
from tests.asyncps_ext.arrays import assert_same, read_only
from tests.asyncps_ext.codecs import BLOCK, BODIES, word_bytes
from tests.asyncps_ext.codecs import variant as variant

# Name of a decoder or adder, bits a value, what follows the payload.
READERS = [
    ("decode_2bit", 2, (0.5,)),
    ("add_2bit", 2, (0.5,)),
    ("decode_1bit", 1, ()),
    ("add_1bit", 1, ()),
    ("decode_onebit", 1, (0.5,)),
    ("add_onebit", 1, (0.5,)),
    ("decode_int8", 8, ("scales",)),
    ("add_int8", 8, ("scales",)),
]
readers = pytest.mark.parametrize(("name", "bits", "rest"), READERS, ids=[r[0] for r in READERS])
WRITERS = [("encode_2bit", 2, (0.5,)), ("encode_1bit", 1, (0.0,))]
writers = pytest.mark.parametrize(("name", "bits", "rest"), WRITERS, ids=[w[0] for w in WRITERS])


def payload_bytes(n: int, bits: int) -> int:
    return n if bits == 8 else word_bytes(n, bits)


@readers
@given(data=st.data())
def test_a_payload_of_another_length_is_refused_and_nothing_touched(
    name: str, bits: int, rest: tuple[Any, ...], data: st.DataObject
) -> None:
    n = data.draw(st.integers(0, 700))
    size = data.draw(st.integers(0, 800))
    count = data.draw(st.sampled_from([-(-n // BLOCK), 0, 1, 2, 3, 4]))
    content = np.frombuffer(data.draw(st.binary(min_size=size, max_size=size)), np.uint8)
    scales = np.full(count, np.inf, np.float32)
    arguments = tuple(scales if value == "scales" else value for value in rest)
    fits = size == payload_bytes(n, bits) and (bits != 8 or count == -(-n // BLOCK))
    for body in (quantize, reference.quantize):
        guarded = np.full(n + 16, 7, np.float32)
        out = guarded[8 : 8 + n]
        if fits:
            getattr(body, name)(out, content, *arguments)
        else:
            with pytest.raises(ValueError, match="expected"):
                getattr(body, name)(out, content, *arguments)
            assert (out == 7).all()
        assert (guarded[:8] == 7).all()
        assert (guarded[8 + n :] == 7).all()


@readers
@given(data=st.data())
def test_any_payload_of_the_right_length_decodes_to_the_same_in_every_variant(
    name: str, bits: int, rest: tuple[Any, ...], data: st.DataObject
) -> None:
    n = data.draw(st.integers(0, 600))
    size = payload_bytes(n, bits)
    content = np.frombuffer(data.draw(st.binary(min_size=size, max_size=size)), np.uint8)
    raw = data.draw(st.binary(min_size=12, max_size=12))
    scales = np.frombuffer(raw, np.float32)[: -(-n // BLOCK)]
    arguments = tuple(scales if value == "scales" else value for value in rest)
    before = np.float32(data.draw(st.sampled_from([1.0, -0.0])))
    acc, expected = np.full(n, before), np.full(n, before)
    getattr(quantize, name)(acc, content, *arguments)
    getattr(reference.quantize, name)(expected, content, *arguments)
    assert_same(acc, expected)


@BODIES
@writers
def test_encoders_refuse_payloads_of_another_length_and_touch_nothing(
    body: ModuleType, name: str, bits: int, rest: tuple[Any, ...]
) -> None:
    encode = getattr(body, name)
    for n in (0, 1, 16, 32, 33):
        right = word_bytes(n, bits)
        for size in {0, right - 4, right - 1, right + 1, right + 4} - {right, -4, -1}:
            payload, residual = np.full(size, 7, np.uint8), np.ones(n, np.float32)
            with pytest.raises(ValueError, match=f"payload has {size} bytes, expected {right}"):
                encode(payload, residual, np.ones(n, np.float32), *rest)
            assert (payload == 7).all()
            assert (residual == 1).all()


@BODIES
def test_int8_refuses_payloads_and_scales_of_another_length(body: ModuleType) -> None:
    g, residual = np.ones(257, np.float32), np.zeros(257, np.float32)
    q, scales = np.empty(257, np.int8), np.empty(2, np.float32)
    with pytest.raises(ValueError, match="payload has 256 bytes, expected 257"):
        body.encode_int8(q[:256], scales, residual, g)
    with pytest.raises(ValueError, match="scales has 1 elements, expected 2"):
        body.encode_int8(q, scales[:1], residual, g)
    with pytest.raises(ValueError, match="scales has 1 elements, expected 2"):
        body.decode_int8(residual, q, scales[:1])
    assert not residual.any()


@BODIES
@pytest.mark.parametrize("threshold", [0.0, -0.0, -1.0, 1e-60, np.inf, np.nan, 1e39])
def test_2bit_wants_a_finite_threshold_above_0(body: ModuleType, threshold: float) -> None:
    payload, x = np.zeros(4, np.uint8), np.ones(3, np.float32)
    calls: list[tuple[Any, ...]] = [
        (body.encode_2bit, payload, None, x), (body.encode_2bit, payload, x.copy(), x),
        (body.decode_2bit, x, payload), (body.add_2bit, x, payload),
    ]  # fmt: skip
    for kernel, *arguments in calls:
        with pytest.raises(ValueError, match="threshold must be"):
            kernel(*arguments, threshold)
    assert x.tolist() == [1, 1, 1]
    assert not payload.any()


@BODIES
@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan, 1e39])
def test_other_numbers_must_be_finite(body: ModuleType, value: float) -> None:
    payload, x = np.zeros(4, np.uint8), np.ones(3, np.float32)
    with pytest.raises(ValueError, match="threshold must be a finite float32"):
        body.encode_1bit(payload, None, x, value)
    for kernel, *arguments in (
        (body.encode_onebit, payload, x), (body.decode_onebit, x, payload),
        (body.add_onebit, x, payload),
    ):  # fmt: skip
        with pytest.raises(ValueError, match="scale must be a finite float32"):
            kernel(*arguments, value)
    assert x.tolist() == [1, 1, 1]


@BODIES
def test_halves_want_as_many_uint16(body: ModuleType) -> None:
    x, bits = np.ones(4, np.float32), np.zeros(4, np.uint16)
    for encode in (body.encode_f16, body.encode_bf16):
        with pytest.raises(ValueError, match="payload has 3 elements, g has 4"):
            encode(bits[:3], None, x)
        with pytest.raises(TypeError, match="payload must be uint16, not int16"):
            encode(bits.view(np.int16), None, x)
        with pytest.raises(ValueError, match="residual has 3 elements, g has 4"):
            encode(bits, np.zeros(3, np.float32), x)


@BODIES
def test_dtypes_are_float32_and_bytes(body: ModuleType) -> None:
    payload, x, wide = np.zeros(4, np.uint8), np.ones(3, np.float32), np.ones(3)
    with pytest.raises(TypeError, match="g must be float32, not float64"):
        body.encode_2bit(payload, None, wide, 0.5)
    with pytest.raises(TypeError, match="residual must be float32, not float64"):
        body.encode_1bit(payload, wide, x, 0.5)
    with pytest.raises(TypeError, match="x must be float32, not float64"):
        body.count_nonfinite(wide)
    with pytest.raises(TypeError, match="out must be float32, not float64"):
        body.decode_1bit(wide, payload)
    with pytest.raises(TypeError, match="scales must be float32, not float64"):
        body.encode_int8(payload[:3], wide[:1], None, x)
    with pytest.raises(TypeError, match="payload must be uint8 or int8, not int32"):
        body.decode_1bit(x, payload.view(np.int32))
    with pytest.raises(TypeError, match="payload must be a NumPy array, not bytes"):
        body.decode_1bit(x, bytes(4))
    with pytest.raises(TypeError, match="native byte order"):
        body.count_nonfinite(x.astype(x.dtype.newbyteorder()))
    with pytest.raises(ValueError, match="g must be 1-d and C-contiguous"):
        body.onebit_prepare(None, np.zeros((2, 2), np.float32))


@BODIES
def test_what_is_written_may_not_be_read_only(body: ModuleType) -> None:
    payload, x = np.zeros(4, np.uint8), np.ones(3, np.float32)
    fixed, fixed_payload = read_only(x), read_only(payload)
    with pytest.raises(ValueError, match="payload is read-only"):
        body.encode_2bit(fixed_payload, None, x, 0.5)
    with pytest.raises(ValueError, match="residual is read-only"):
        body.onebit_prepare(fixed, x)
    with pytest.raises(ValueError, match="x is read-only"):
        body.encode_onebit(payload, fixed, 0.5)
    with pytest.raises(ValueError, match="acc is read-only"):
        body.add_1bit(fixed, payload)
    with pytest.raises(ValueError, match="scales is read-only"):
        body.encode_int8(payload[:3], fixed[:1], None, x)
    body.encode_onebit(payload, fixed, 0.5, False)


@BODIES
def test_arrays_that_overlap_are_refused(body: ModuleType) -> None:
    base = np.ones(64, np.float32)
    raw = base.view(np.uint8)
    with pytest.raises(ValueError, match="residual and g overlap"):
        body.encode_2bit(np.zeros(4, np.uint8), base[:8], base[:8], 0.5)
    with pytest.raises(ValueError, match="payload and g overlap"):
        body.encode_1bit(raw[:4], None, base[:8], 0.5)
    with pytest.raises(ValueError, match="payload and residual overlap"):
        body.encode_f16(base[8:12].view(np.uint16), base[8:16], base[:8])
    with pytest.raises(ValueError, match="payload and x overlap"):
        body.encode_onebit(raw[:4], base[:8], 0.5)
    with pytest.raises(ValueError, match="payload and scales overlap"):
        body.encode_int8(raw[128:136], base[32:33], None, base[:8])
    with pytest.raises(ValueError, match="scales and residual overlap"):
        body.encode_int8(np.zeros(8, np.int8), base[8:9], base[8:16], base[:8])
    with pytest.raises(ValueError, match="out and payload overlap"):
        body.decode_2bit(base[:8], raw[:4], 0.5)
    with pytest.raises(ValueError, match="acc and scales overlap"):
        body.add_int8(base[:8], np.zeros(8, np.int8), base[:1])
