"""Sums and conversions, every variant of them, against NumPy, ml_dtypes and the twins."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

import ml_dtypes
import numpy as np
import pytest

from asyncps_ext import reduce, reference
from tests.asyncps_ext.arrays import (
    LARGE,
    LAYOUTS,
    SIZES,
    Array,
    assert_same,
    each_variant,
    floats,
    integers,
    numbers,
    read_only,
)

SUMS = ("float32", "float64", "int8", "uint8", "int32", "int64")
SIXTEEN = np.arange(65536, dtype=np.uint16)
BODIES = pytest.mark.parametrize("body", [reduce, reference.reduce], ids=["chosen", "reference"])
layouts = pytest.mark.parametrize("layout", LAYOUTS)


variant = each_variant(reduce)


def expected_sum(acc: Array, x: Array) -> Array:
    """Integers by Python's numbers; float32 in double precision, which rounds to the same."""
    if acc.dtype.kind in "iu":
        modulus = 1 << (8 * acc.dtype.itemsize)
        sums = [(int(a) + int(b)) % modulus for a, b in zip(acc, x, strict=True)]
        return np.array(sums, f"u{acc.dtype.itemsize}").view(acc.dtype)
    with np.errstate(all="ignore"):
        return np.asarray(acc.astype(np.float64) + x.astype(np.float64)).astype(acc.dtype)


def float32_patterns() -> Array:
    """Bit patterns of float32: every exponent, and what lies near each float16 and bfloat16."""
    rng = np.random.default_rng(7)
    exponents = np.arange(512, dtype=np.uint32) << 23
    mantissas = rng.integers(0, 1 << 23, (40, 512), dtype=np.uint32)
    with np.errstate(all="ignore"):
        halves = SIXTEEN.view(np.float16).astype(np.float32).view(np.uint32)
    brains = SIXTEEN.astype(np.uint32) << 16
    near = [base + np.uint32(step) for base in (halves, brains) for step in (0, 1, 0xFFF, 0x1000)]
    far = [base + np.uint32(step) for base in (halves, brains) for step in (0x1001, 0x7FFF, 0x8000)]
    return np.concatenate([(exponents | mantissas).ravel(), *near, *far, brains + 0x8001])


@layouts
@pytest.mark.parametrize("dtype", SUMS)
def test_add_is_the_sum_of_the_elements(dtype: str, layout: Callable[[Array], Array]) -> None:
    for size in (*SIZES, LARGE):
        before, x = numbers(size, dtype, 1), numbers(size, dtype, 2)
        acc = layout(before)
        reduce.add(acc, layout(x))
        assert_same(acc, expected_sum(before, x))


@pytest.mark.parametrize("dtype", SUMS)
def test_add_agrees_with_its_twin(dtype: str) -> None:
    acc, x = numbers(LARGE, dtype, 3), numbers(LARGE, dtype, 4)
    twin = acc.copy()
    reduce.add(acc, x)
    reference.add(twin, x)
    assert_same(acc, twin)


def test_integers_wrap() -> None:
    acc = np.array([127, -128, 1], np.int8)
    reduce.add(acc, np.array([1, -1, 1], np.int8))
    assert acc.tolist() == [-128, 127, 2]


@layouts
@pytest.mark.parametrize("dtype", SUMS)
@pytest.mark.parametrize("count", [2, 3, 5])
def test_add_all_adds_in_order(
    count: int, dtype: str, layout: Callable[[Array], Array]
) -> None:
    for size in (*SIZES, 1023, 1024, 1025, 4096, LARGE):
        parts = [numbers(size, dtype, 20 + place) for place in range(count)]
        want = parts[0]
        for x in parts[1:]:
            want = want.copy()
            with np.errstate(all="ignore"):
                want += x
        out = layout(numbers(size, dtype, 9))
        reduce.add_all(out, [layout(x) for x in parts])
        assert_same(out, want)
        twin = np.empty_like(want)
        reference.reduce.add_all(twin, parts)
        assert_same(twin, want)


@BODIES
@pytest.mark.parametrize("place", range(4))
def test_add_all_may_write_into_any_of_its_parts(body: ModuleType, place: int) -> None:
    parts = [numbers(5000, "float32", 30 + each) for each in range(4)]
    with np.errstate(all="ignore"):
        want = parts[0] + parts[1] + parts[2] + parts[3]
    others = [x.copy() for x in parts]
    body.add_all(parts[place], tuple(parts))
    assert_same(parts[place], want)
    for each in {0, 1, 2, 3} - {place}:
        assert_same(parts[each], others[each])


@BODIES
def test_add_all_may_read_one_array_twice(body: ModuleType) -> None:
    x, out = np.arange(3000, dtype=np.int32), np.empty(3000, np.int32)
    body.add_all(out, [read_only(x), x, x])
    assert_same(out, 3 * x)
    body.add_all(out, [out, out, out])
    assert_same(out, 9 * x)


@BODIES
def test_add_all_wants_two_parts_or_more_like_its_result(body: ModuleType) -> None:
    out, x = np.zeros(4, np.float32), np.ones(9, np.float32)
    for few in ([], [x[:4]]):
        with pytest.raises(ValueError, match=f"two arrays or more, not {len(few)}"):
            body.add_all(out, few)
    with pytest.raises(ValueError, match="a part has 5 elements, out has 4"):
        body.add_all(out, [x[:4], x[:5]])
    with pytest.raises(TypeError, match="a part must be float32, not float64"):
        body.add_all(out, [x[:4], x[:4], np.ones(4)])
    with pytest.raises(ValueError, match="out and a part overlap"):
        body.add_all(x[:4], [x[5:], x[1:5]])
    with pytest.raises(ValueError, match="out is read-only"):
        body.add_all(read_only(x[:4]), [x[4:8], x[4:8]])
    with pytest.raises(TypeError, match="NumPy array, not list"):
        body.add_all(out, [x[:4], [1.0] * 4])
    with pytest.raises(TypeError):
        body.add_all(np.zeros(4, np.float16), [np.zeros(4, np.float16)] * 2)
    assert out.tolist() == [0.0] * 4


@pytest.mark.parametrize("name", ["intc", "int_", "longlong"])
def test_both_names_that_c_has_for_an_integer_are_welcome(name: str) -> None:
    acc, x = np.arange(5, dtype=name), np.ones(5, np.dtype(name).name)
    reduce.add(acc, x)
    assert acc.tolist() == [1, 2, 3, 4, 5]


def test_an_array_can_be_added_to_itself() -> None:
    acc = np.arange(1001, dtype=np.float32)
    reduce.add(acc, acc)
    assert_same(acc, np.arange(0, 2002, 2, dtype=np.float32))


def test_widen_f16_is_exact_for_every_bit_pattern() -> None:
    out = np.empty(65536, np.float32)
    reduce.widen_f16(out, SIXTEEN)
    with np.errstate(all="ignore"):
        assert_same(out, SIXTEEN.view(np.float16).astype(np.float32))


def test_widen_f16_makes_a_nan_quiet_and_keeps_sign_and_payload() -> None:
    out = np.empty(9, np.float32)
    reduce.widen_f16(out, np.full(9, 0xFC01, np.uint16))
    assert out.view(np.uint32).tolist() == [0xFFC02000] * 9


def test_widen_bf16_is_exact_for_every_bit_pattern() -> None:
    out = np.empty(65536, np.float32)
    reduce.widen_bf16(out, SIXTEEN)
    assert_same(out, SIXTEEN.view(ml_dtypes.bfloat16).astype(np.float32))
    assert out.view(np.uint32).tolist() == [bits << 16 for bits in range(65536)]


def test_narrow_f16_rounds_as_numpy_does() -> None:
    x = float32_patterns().view(np.float32)
    out = np.empty(x.size, np.uint16)
    reduce.narrow_f16(out, x)
    with np.errstate(all="ignore"):
        assert_same(out.view(np.float16), x.astype(np.float16))


def test_narrow_bf16_rounds_as_ml_dtypes_does() -> None:
    x = float32_patterns().view(np.float32)
    out = np.empty(x.size, np.uint16)
    reduce.narrow_bf16(out, x)
    with np.errstate(all="ignore"):
        expected = x.astype(ml_dtypes.bfloat16)
    nan = np.isnan(x)
    np.testing.assert_array_equal(np.isnan(out.view(ml_dtypes.bfloat16)), nan)
    np.testing.assert_array_equal(out[~nan], expected.view(np.uint16)[~nan])


def test_narrowing_rounds_ties_to_even_and_overflows_to_infinity() -> None:
    x = np.array([2049, 2051, 65519, 65520, -1e6, 2.0**-25, 2.0**-24 * 1.5, -0.0], np.float32)
    out = np.empty(8, np.uint16)
    reduce.narrow_f16(out, x)
    expected = [2048, 2052, 65504, np.inf, -np.inf, 0, 2.0**-23, -0.0]
    assert_same(out.view(np.float16), np.array(expected, np.float16))
    bits = np.array([0x3F808000, 0x3F818000, 0x7F7FFFFF, 0x80000000], np.uint32)
    reduce.narrow_bf16(out[:4], bits.view(np.float32))
    assert out[:4].tolist() == [0x3F80, 0x3F82, 0x7F80, 0x8000]


def test_narrowing_a_nan_gives_a_quiet_nan_of_the_same_sign() -> None:
    x = np.array([0x7F800001, 0xFF800001, 0x7FABCDEF] * 4, np.uint32).view(np.float32)
    out = np.empty(12, np.uint16)
    reduce.narrow_f16(out, x)
    assert out.tolist() == [0x7E00, 0xFE00, 0x7F5E] * 4
    reduce.narrow_bf16(out, x)
    assert out.tolist() == [0x7FC0, 0xFFC0, 0x7FEB] * 4


@pytest.mark.parametrize("name", ["narrow_f16", "narrow_bf16"])
def test_narrowing_agrees_with_its_twin_in_every_bit_even_of_nans(name: str) -> None:
    x = float32_patterns().view(np.float32)
    out, twin = np.empty(x.size, np.uint16), np.empty(x.size, np.uint16)
    getattr(reduce, name)(out, x)
    getattr(reference, name)(twin, x)
    np.testing.assert_array_equal(out, twin)


@pytest.mark.parametrize("name", ["widen_f16", "widen_bf16"])
def test_widening_agrees_with_its_twin_in_every_bit_even_of_nans(name: str) -> None:
    out, twin = np.empty(65536, np.float32), np.empty(65536, np.float32)
    getattr(reduce, name)(out, SIXTEEN)
    getattr(reference, name)(twin, SIXTEEN)
    np.testing.assert_array_equal(out.view(np.uint32), twin.view(np.uint32))


@layouts
@pytest.mark.parametrize("kind", ["f16", "bf16"])
def test_sixteen_bits_are_widened_before_they_are_added(
    kind: str, layout: Callable[[Array], Array]
) -> None:
    for size in (*SIZES, LARGE):
        half = np.dtype(np.float16) if kind == "f16" else np.dtype(ml_dtypes.bfloat16)
        before, x = floats(size, "float32", 5), integers(size, "uint16", 6)
        acc = layout(before)
        getattr(reduce, f"add_{kind}")(acc, layout(x))
        with np.errstate(all="ignore"):
            assert_same(acc, expected_sum(before, x.view(half).astype(np.float32)))


@layouts
@pytest.mark.parametrize("kind", ["f16", "bf16"])
def test_sixteen_bits_widened_and_narrowed_are_the_same(
    kind: str, layout: Callable[[Array], Array]
) -> None:
    for size in (*SIZES, LARGE):
        half = np.dtype(np.float16) if kind == "f16" else np.dtype(ml_dtypes.bfloat16)
        with np.errstate(all="ignore"):
            x = floats(size, "float32", 8).astype(half).view(np.uint16)
        wide, back = layout(np.empty(size, np.float32)), layout(np.empty(size, np.uint16))
        getattr(reduce, f"widen_{kind}")(wide, layout(x))
        getattr(reduce, f"narrow_{kind}")(back, wide)
        nan = np.isnan(x.view(half))
        np.testing.assert_array_equal(back[~nan], x[~nan])
        assert np.isnan(back[nan].view(half)).all()


@layouts
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_scale_multiplies_by_the_factor_rounded_once(
    dtype: str, layout: Callable[[Array], Array]
) -> None:
    for size in (*SIZES, LARGE):
        before = floats(size, dtype, 9)
        x = layout(before)
        reduce.scale(x, 0.1)
        with np.errstate(all="ignore"):
            wide = before.astype(np.float64) * float(np.dtype(dtype).type(0.1))
            assert_same(x, wide.astype(dtype))


def test_a_factor_beyond_the_dtype_is_infinite() -> None:
    x = np.array([1.0, -1.0], np.float32)
    reduce.scale(x, 1e300)
    assert x.tolist() == [np.inf, -np.inf]


@BODIES
def test_what_is_only_read_may_be_read_only(body: ModuleType) -> None:
    acc = np.ones(5, np.float32)
    body.add(acc, read_only(np.ones(5, np.float32)))
    body.add_f16(acc, read_only(np.full(5, 0x3C00, np.uint16)))
    body.add_bf16(acc, read_only(np.full(5, 0x3F80, np.uint16)))
    assert acc.tolist() == [4.0] * 5


@BODIES
def test_what_is_written_may_not_be_read_only(body: ModuleType) -> None:
    fixed = read_only(np.ones(5, np.float32))
    with pytest.raises(ValueError, match="acc is read-only"):
        body.add(fixed, np.ones(5, np.float32))
    with pytest.raises(ValueError, match="out is read-only"):
        body.widen_f16(fixed, np.ones(5, np.uint16))
    with pytest.raises(ValueError, match="x is read-only"):
        body.scale(fixed, 2.0)


@BODIES
@pytest.mark.parametrize("name", ["add_f16", "add_bf16", "widen_f16", "widen_bf16"])
def test_wideners_want_float32_and_uint16_of_one_length(body: ModuleType, name: str) -> None:
    kernel = getattr(body, name)
    wide, bits = np.zeros(4, np.float32), np.zeros(4, np.uint16)
    with pytest.raises(ValueError, match="x has 3 elements"):
        kernel(wide, bits[:3])
    with pytest.raises(TypeError, match="must be uint16, not int16"):
        kernel(wide, bits.view(np.int16))
    with pytest.raises(TypeError, match="must be float32, not float64"):
        kernel(np.zeros(4), bits)
    with pytest.raises(TypeError, match="NumPy array, not list"):
        kernel(wide, [1, 2, 3, 4])


@BODIES
@pytest.mark.parametrize("name", ["narrow_f16", "narrow_bf16"])
def test_narrowers_want_uint16_and_float32_of_one_length(body: ModuleType, name: str) -> None:
    kernel = getattr(body, name)
    wide, bits = np.zeros(4, np.float32), np.zeros(4, np.uint16)
    with pytest.raises(ValueError, match="x has 3 elements, out has 4"):
        kernel(bits, wide[:3])
    with pytest.raises(TypeError, match="out must be uint16"):
        kernel(wide.copy(), wide)
    with pytest.raises(TypeError, match="x must be float32"):
        kernel(bits, np.zeros(4))


@BODIES
def test_add_wants_one_dtype_and_one_length(body: ModuleType) -> None:
    acc = np.zeros(4, np.float32)
    with pytest.raises(ValueError, match="x has 5 elements, acc has 4"):
        body.add(acc, np.zeros(5, np.float32))
    with pytest.raises(TypeError, match="x must be float32, not float64"):
        body.add(acc, np.zeros(4))
    with pytest.raises(TypeError):
        body.add(np.zeros(4, np.float16), np.zeros(4, np.float16))
    with pytest.raises(TypeError):
        body.add(np.zeros(4, np.uint32), np.zeros(4, np.uint32))
    with pytest.raises(TypeError):
        body.scale(np.zeros(4, np.int32), 2.0)


@BODIES
def test_arrays_in_foreign_byte_order_are_refused(body: ModuleType) -> None:
    swapped = np.zeros(4, np.dtype(np.float32).newbyteorder())
    with pytest.raises(TypeError, match="native byte order"):
        body.add(np.zeros(4, np.float32), swapped)


@BODIES
def test_arrays_must_be_flat_and_contiguous(body: ModuleType) -> None:
    acc = np.zeros(4, np.float32)
    with pytest.raises(ValueError, match="x must be 1-d and C-contiguous"):
        body.add(acc, np.zeros(8, np.float32)[::2])
    with pytest.raises(ValueError, match="acc must be 1-d and C-contiguous"):
        body.add(np.zeros((2, 2), np.float32), acc)


@BODIES
def test_arrays_that_overlap_are_refused(body: ModuleType) -> None:
    base = np.zeros(16, np.float32)
    with pytest.raises(ValueError, match="acc and x overlap"):
        body.add(base[1:], base[:-1])
    with pytest.raises(ValueError, match="out and x overlap"):
        body.narrow_f16(base.view(np.uint16)[:16], base)
    body.add(base[:8], base[8:])


def test_only_variants_that_exist_can_be_chosen(variant: str) -> None:
    with pytest.raises(ValueError, match="no variant 'mmx' here"):
        reduce._set_variant("mmx")
    assert reduce._set_variant(variant) == variant
