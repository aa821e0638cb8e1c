"""The dtypes of values: names, kernels, and what cannot be stored."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from asyncps.errors import DtypeMismatch
from asyncps.tensor import dtypes

BF16 = np.dtype(ml_dtypes.bfloat16)


@pytest.mark.parametrize("name", dtypes.NAMES)
def test_name_and_numpy_dtype_belong_together(name: str) -> None:
    dtype = dtypes.by_name(name)
    seen = dtypes.numpy_dtype(name)
    assert dtype.name == dtypes.name_of(seen) == name
    assert dtype.itemsize == seen.itemsize == dtype.bits.itemsize
    assert dtype.is_float == ("float" in name)


@pytest.mark.parametrize("name", dtypes.NAMES)
def test_sums_are_those_of_numpy(name: str) -> None:
    dtype, seen = dtypes.by_name(name), dtypes.numpy_dtype(name)
    rng = np.random.default_rng(1)
    values = [(rng.standard_normal(1001) * 50).astype(seen) for _ in range(5)]
    if dtype.widen is None or dtype.narrow is None:
        total = values[0].copy()
        wide: np.dtype[Any] = seen
    else:
        total, wide = np.empty(1001, dtype.sum), np.dtype("f4")
        dtype.widen(total, values[0].view(dtype.bits))
    for value in values[1:]:
        dtype.add(total, value.view(dtype.bits))
    expected = values[0].astype(wide)
    for value in values[1:]:
        expected = expected + value.astype(wide)
    assert np.array_equal(total, expected)
    if dtype.narrow is not None:
        stored = np.empty(1001, dtype.bits)
        dtype.narrow(stored, total)
        assert np.array_equal(stored.view(seen), expected.astype(seen))


def test_half_precision_is_summed_in_f32() -> None:
    for name in ("float16", "bfloat16"):
        assert dtypes.by_name(name).sum == np.dtype("f4")


@pytest.mark.parametrize("dtype", [
    ">f4", ">i8", ">f2", "c8", "?", "U1", "O", "M8[s]", "i2", "u2", "u4", "u8", "V4",
    [("a", "f4")], np.dtype("f4").newbyteorder("S"),
], ids=str)  # fmt: skip
def test_dtype_that_cannot_be_stored_is_named_with_those_that_can(dtype: Any) -> None:
    with pytest.raises(DtypeMismatch, match="float32, float64, float16, bfloat16"):
        dtypes.name_of(np.dtype(dtype))


def test_unknown_name_is_refused() -> None:
    with pytest.raises(DtypeMismatch, match=r"bfloat16.*got complex64"):
        dtypes.by_name("complex64")


def test_bfloat16_is_that_of_ml_dtypes() -> None:
    assert dtypes.numpy_dtype("bfloat16") == dtypes.bfloat16() == BF16
