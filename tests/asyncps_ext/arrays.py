"""Arrays that kernels meet: of awkward lengths, at odd addresses, with awkward values."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

Array = NDArray[Any]

# Around one vector of each instruction set; and past the size from which the GIL is released.
SIZES = (0, 1, 2, 3, 7, 8, 9, 15, 16, 17, 31, 33, 64, 301)
LARGE = 20_001

SPECIAL = (0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan, 1e-45, -1e-40, 3e38, -3e38, 65519.0, 0.1)


def each_variant(kernels: ModuleType) -> Any:
    """A fixture to be called `variant`: each that this machine has, in every test of a module."""

    @pytest.fixture(autouse=True, params=kernels._variants())
    def variant(request: pytest.FixtureRequest) -> Iterator[str]:
        before = kernels._set_variant(request.param)
        yield request.param
        kernels._set_variant(before)

    return variant


def floats(size: int, dtype: str, seed: int = 0, *, special: bool = True) -> Array:
    """Values of all magnitudes, with special ones among them."""
    rng = np.random.default_rng([seed, size])
    values = rng.standard_normal(size) * 10.0 ** rng.integers(-6, 7, size)
    if special and size:
        chosen = rng.integers(0, size, size // 4 + 1)
        values[chosen] = rng.choice(np.array(SPECIAL), chosen.size)
    with np.errstate(all="ignore"):
        return values.astype(dtype)


def integers(size: int, dtype: str, seed: int = 0) -> Array:
    """Values over the whole range of an integer dtype."""
    info = np.iinfo(dtype)
    rng = np.random.default_rng([seed, size])
    return rng.integers(info.min, info.max, size, dtype=dtype, endpoint=True)


def numbers(size: int, dtype: str, seed: int = 0) -> Array:
    """Values of any dtype that sums know."""
    return (floats if np.dtype(dtype).kind == "f" else integers)(size, dtype, seed)


def aligned(array: Array) -> Array:
    """A copy where NumPy puts it."""
    return array.copy()


def unaligned(array: Array) -> Array:
    """A copy at an odd address."""
    place = np.empty(array.nbytes + 1, np.uint8)
    start = 1 - place.ctypes.data % 2
    copy = place[start : start + array.nbytes].view(array.dtype)
    copy[:] = array
    return copy


def read_only(array: Array) -> Array:
    """A copy that may not be written."""
    copy = array.copy()
    copy.flags.writeable = False
    return copy


LAYOUTS: tuple[Callable[[Array], Array], ...] = (aligned, unaligned)


def assert_same(actual: Array, expected: Array) -> None:
    """Equal bit for bit, but that one NaN is as good as another."""
    assert actual.dtype == expected.dtype
    assert actual.shape == expected.shape
    if actual.dtype.kind == "f":
        np.testing.assert_array_equal(np.isnan(actual), np.isnan(expected))
        nan = np.isnan(expected)
        actual, expected = np.where(nan, 0, actual), np.where(nan, 0, expected)
    bits = np.dtype(f"u{actual.dtype.itemsize}")
    np.testing.assert_array_equal(
        np.ascontiguousarray(actual).view(bits), np.ascontiguousarray(expected).view(bits)
    )


def assert_bits(actual: Array, expected: Array) -> None:
    """Equal bit for bit, NaN too."""
    assert actual.dtype == expected.dtype
    word = np.dtype(f"u{actual.dtype.itemsize}")
    np.testing.assert_array_equal(actual.copy().view(word), expected.copy().view(word))
