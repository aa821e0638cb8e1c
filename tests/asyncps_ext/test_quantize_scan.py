"""What is not finite in gradients and in their sums with residuals; the largest magnitude."""

from __future__ import annotations

import math
from collections.abc import Callable
from types import ModuleType

import numpy as np
import pytest

from tests.asyncps_ext.arrays import LAYOUTS, Array, floats, read_only, unaligned
from tests.asyncps_ext.codecs import BODIES, EVERY_SIZE, bit_patterns, plain
from tests.asyncps_ext.codecs import variant as variant

layouts = pytest.mark.parametrize("layout", LAYOUTS)
SCANNED = (*EVERY_SIZE, 4095, 4096, 4097, 12_289)  # strips of 4096 are looked at one by one
MOST = float(np.finfo(np.float32).max)


def summed(x: Array, residual: Array) -> Array:
    """x + residual in float32: in double precision, which rounds to the same."""
    with np.errstate(all="ignore"):
        return (x.astype(np.float64) + residual.astype(np.float64)).astype(np.float32)


@BODIES
def test_what_is_not_finite_is_counted_and_the_first_is_found(body: ModuleType) -> None:
    for size in (*EVERY_SIZE, 4095, 4096, 4097, 12_289):
        for x in (plain(size, 1), unaligned(plain(size, 1))):
            assert (body.count_nonfinite(x), body.first_nonfinite(x)) == (0, -1)
        for place in {0, size // 2, size - 1} if size else ():
            for value in (np.nan, -np.nan, np.inf, -np.inf):
                x = read_only(np.where(np.arange(size) == place, np.float32(value), plain(size, 2)))
                assert (body.count_nonfinite(x), body.first_nonfinite(x)) == (1, place)


@BODIES
def test_every_exponent_but_the_highest_is_finite(body: ModuleType) -> None:
    x = bit_patterns(3)
    assert body.count_nonfinite(x) == np.count_nonzero(~np.isfinite(x)) == 32
    assert body.first_nonfinite(x) == 255
    top = np.array([0x7F7FFFFF, 0xFF7FFFFF, 1, 0x80000001, 0x7F800001], np.uint32)
    assert (body.count_nonfinite(top.view("f4")), body.first_nonfinite(top.view("f4"))) == (1, 4)
    everything = np.full(70_000, np.inf, np.float32)
    assert body.count_nonfinite(everything) == 70_000


@BODIES
def test_two_finite_numbers_with_an_infinite_sum_are_found(body: ModuleType) -> None:
    x, residual = np.array([3e38], np.float32), np.array([3e38], np.float32)
    assert (body.count_nonfinite(x), body.first_nonfinite(x)) == (0, -1)
    assert (body.count_nonfinite(x, residual), body.first_nonfinite(x, residual)) == (1, 0)
    assert (body.count_nonfinite(x, x), body.first_nonfinite(x, x)) == (1, 0)
    assert (body.count_nonfinite(x, -residual), body.first_nonfinite(x, -residual)) == (0, -1)


@BODIES
def test_the_sum_is_rounded_to_float32_before_it_is_judged(body: ModuleType) -> None:
    half_a_digit = 2.0**103  # of the largest float: what is below rounds back to it
    for added, is_infinite in ((half_a_digit, True), (half_a_digit * 0.999, False)):
        x, residual = np.full(40, MOST, np.float32), np.full(40, added, np.float32)
        assert body.count_nonfinite(x, residual) == 40 * is_infinite
        assert body.first_nonfinite(-x, -residual) == (0 if is_infinite else -1)


@BODIES
@layouts
def test_sums_that_are_not_finite_are_counted_and_the_first_is_found(
    body: ModuleType, layout: Callable[[Array], Array]
) -> None:
    for size in SCANNED:
        for seed in (1, 2):
            x, before = floats(size, "float32", seed), floats(size, "float32", seed + 10)
            residual = read_only(layout(before))
            found = np.flatnonzero(~np.isfinite(summed(x, before)))
            assert body.count_nonfinite(read_only(layout(x)), residual) == found.size
            first = int(found[0]) if found.size else -1
            assert body.first_nonfinite(layout(x), residual) == first
            assert residual.tobytes() == before.tobytes()


@BODIES
def test_one_bad_sum_is_found_wherever_it_is(body: ModuleType) -> None:
    for size in SCANNED:
        x, residual = plain(size, 1), plain(size, 2)
        assert (body.count_nonfinite(x, residual), body.first_nonfinite(x, residual)) == (0, -1)
        for place in {0, size // 2, size - 1} if size else ():
            for a, b in ((3e38, 3e38), (np.nan, 1), (1, np.nan), (np.inf, -np.inf), (0, -np.inf)):
                g, r = x.copy(), residual.copy()
                g[place], r[place] = a, b
                assert (body.count_nonfinite(g, r), body.first_nonfinite(g, r)) == (1, place)


@BODIES
def test_a_scan_checks_the_residual_as_it_does_x(body: ModuleType) -> None:
    x = np.ones(4, np.float32)
    for scan in (body.count_nonfinite, body.first_nonfinite):
        with pytest.raises(TypeError, match="residual must be float32, not float64"):
            scan(x, np.ones(4))
        with pytest.raises(TypeError, match="residual must be a NumPy array, not list"):
            scan(x, [1.0])
        with pytest.raises(ValueError, match="residual has 3 elements, x has 4"):
            scan(x, x[:3])
        with pytest.raises(ValueError, match="residual must be 1-d and C-contiguous"):
            scan(x, np.ones(8, np.float32)[::2])
        assert scan(x=x, residual=None) in (0, -1)


@BODIES
@layouts
def test_the_largest_magnitude_is_that_of_pythons_numbers(
    body: ModuleType, layout: Callable[[Array], Array]
) -> None:
    for size in SCANNED:
        for x in (plain(size, 3), floats(size, "float32", 4, special=False)):
            expected = max((abs(value) for value in x.tolist()), default=0.0)
            found = body.largest(read_only(layout(x)))
            assert (type(found), found) == (float, expected)


@BODIES
def test_the_largest_is_found_wherever_it_is(body: ModuleType) -> None:
    for size in SCANNED:
        for place in {0, 1, size // 4, size // 2, size - 2, size - 1} & set(range(size)):
            for value in (-7e3, 3e38, np.inf, -np.inf):
                x = plain(size, 5)
                x[place] = value
                assert body.largest(x) == abs(float(np.float32(value)))
                x[size // 3] = -np.nan  # above all, infinities too
                assert math.isnan(body.largest(x))


@BODIES
def test_the_largest_is_found_in_every_line_of_several_pages(body: ModuleType) -> None:
    x = plain(4 * 1024 + 1024 + 67, 6)  # pages in turn, lines in turn, and a rest
    for place in range(0, x.size, 11):
        before, x[place] = x[place], -(2.0**90)
        assert body.largest(x) == 2.0**90
        x[place] = before


@BODIES
def test_the_largest_of_nothing_of_zeros_and_of_denormals(body: ModuleType) -> None:
    assert str(body.largest(np.empty(0, np.float32))) == "0.0"
    assert str(body.largest(np.full(50, -0.0, np.float32))) == "0.0"
    tiny = np.full(50, -(2.0**-149), np.float32)
    assert body.largest(tiny) == 2.0**-149
    bits = np.array([0x7F800000, 0xFF800001], np.uint32).view(np.float32)  # inf, the least NaN
    assert (body.largest(bits[:1]), math.isnan(body.largest(bits))) == (math.inf, True)
    everything = bit_patterns(6)
    assert math.isnan(body.largest(everything))
    numbers = everything[np.isfinite(everything)]
    assert body.largest(numbers) == max(abs(value) for value in numbers.tolist())


@BODIES
def test_the_largest_is_of_float32(body: ModuleType) -> None:
    with pytest.raises(TypeError, match="x must be float32, not float64"):
        body.largest(np.ones(3))
    with pytest.raises(ValueError, match="x must be 1-d and C-contiguous"):
        body.largest(np.ones((2, 2), np.float32))
