"""What the tests of chosen elements share: the variants of the kernels, magnitudes, indices."""

from __future__ import annotations

import numpy as np
import pytest

from asyncps_ext import reference, select
from tests.asyncps_ext.arrays import LARGE, LAYOUTS, SIZES, Array, each_variant, floats

BODIES = pytest.mark.parametrize("body", [select, reference.select], ids=["chosen", "reference"])
layouts = pytest.mark.parametrize("layout", LAYOUTS)
ALL_SIZES = (*SIZES, 1000, LARGE)


variant = each_variant(select)


def bits_of(x: Array) -> Array:
    """The bits of float32 as uint32."""
    return x.copy().view(np.uint32)


def magnitudes(x: Array) -> Array:
    """Bits without the sign: 0 < denormals < numbers < inf < NaN."""
    return bits_of(x) & 0x7FFFFFFF


def some(size: int, many: int, seed: int = 0) -> Array:
    """Different indices below size, ascending."""
    rng = np.random.default_rng([seed, size, many])
    return np.sort(rng.permutation(size)[:many]).astype(np.uint32)


def sparse(size: int, many: int, seed: int = 0) -> tuple[Array, Array]:
    """A sparse array with awkward values."""
    return some(size, many, seed), floats(many, "float32", seed)
