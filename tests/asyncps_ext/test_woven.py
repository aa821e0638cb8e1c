"""Conversions of arrays far larger than the caches, which are made a few pages in turn."""

from __future__ import annotations

import numpy as np
import pytest

from asyncps_ext import reduce, reference
from tests.asyncps_ext.arrays import Array, each_variant

variant = each_variant(reduce)

FROM = 4 << 20  # elements; asyncps_ext/woven.h
ALL_PAGES = 4096
KINDS = ("f16", "bf16")
GUARD = 64  # elements on each side that nobody may touch

pytestmark = pytest.mark.slow


def bits(n: int, dtype: str) -> Array:
    """Every bit pattern of 16 bits, or patterns of 32 spread over all of them."""
    step = np.uint32(1 if dtype == "u2" else 1_181_783_497)
    with np.errstate(over="ignore"):
        return (np.arange(n, dtype=np.uint32) * step).astype(dtype)


def within(n: int, dtype: str, offset: int) -> tuple[Array, Array]:
    """Room filled with ones, and n elements of it that begin `offset` elements behind a line."""
    itemsize = np.dtype(dtype).itemsize
    raw = np.full((n + 2 * GUARD + 64) * itemsize, 0xFF, np.uint8)
    start = -raw.ctypes.data % 64 + (GUARD + offset) * itemsize
    return raw, raw[start : start + n * itemsize].view(dtype)


@pytest.mark.parametrize("n", [FROM, FROM + ALL_PAGES - 1, FROM + ALL_PAGES + 1003])
@pytest.mark.parametrize("offset", [0, 1, 13])
@pytest.mark.parametrize("kind", KINDS)
def test_large_arrays_are_converted_as_small_ones(kind: str, offset: int, n: int) -> None:
    narrow, widen = getattr(reduce, f"narrow_{kind}"), getattr(reduce, f"widen_{kind}")
    for convert, twin, source, made in (
        (narrow, getattr(reference.reduce, f"narrow_{kind}"), "f4", "u2"),
        (widen, getattr(reference.reduce, f"widen_{kind}"), "u2", "f4"),
    ):
        x = bits(n, f"u{np.dtype(source).itemsize}").view(source)
        want = np.empty(n, made)
        twin(want, x)
        raw, out = within(n, made, offset)
        convert(out, x)
        word = f"u{np.dtype(made).itemsize}"
        np.testing.assert_array_equal(out.view(word), want.view(word))
        touched = np.count_nonzero(raw != 0xFF)
        assert touched == np.count_nonzero(want.view(np.uint8) != 0xFF)


@pytest.mark.parametrize("kind", KINDS)
def test_a_result_at_an_odd_address_is_written_too(kind: str) -> None:
    x = bits(FROM + 5, "u2")
    raw = np.zeros(x.size * 4 + 1, np.uint8)
    out = raw[1:].view(np.float32)
    want = np.empty(x.size, np.float32)
    getattr(reference.reduce, f"widen_{kind}")(want, x)
    getattr(reduce, f"widen_{kind}")(out, x)
    np.testing.assert_array_equal(out.view("u4"), want.view("u4"))
