"""RowSparse: an array of which only some rows are there, all others being zero."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from asyncps.errors import DtypeMismatch, ShapeMismatch, TensorError, shown
from asyncps.tensor.dtypes import Array, by_name, name_of
from asyncps_ext import sparse

Ids = npt.NDArray[np.int64]


class RowSparse:
    """Some rows of an array of shape `shape`: row `rows[i]` is `values[i]`, all others are zero.

    Args:
        rows: Row numbers, strictly ascending, each at least 0 and below shape[0]: an array of any
            integer dtype or a sequence of ints. They become int64. Floats are refused, since
            float32 cannot tell large row numbers apart.
        values: Array [len(rows), *shape[1:]] of a dtype that can be stored, in native byte order.
        shape: The whole array's shape, at least one dimension.

    Ownership: arrays that fit as they are (int64 and contiguous rows, contiguous values) are kept
    and not copied: they belong to the RowSparse from here on, and must not change while it is
    used. Others are copied. Equality is that of objects; compare rows and values.

    Raises:
        DtypeMismatch: rows are not integers, or the dtype of values cannot be stored.
        ShapeMismatch: rows, values and shape do not fit together.
        TensorError: rows repeat (see `from_pairs`), do not ascend or are out of range.
    """

    __slots__ = ("rows", "shape", "values")

    rows: Ids
    values: Array
    shape: tuple[int, ...]

    def __init__(
        self, rows: npt.ArrayLike, values: npt.ArrayLike, shape: Sequence[int]
    ) -> None:
        self.shape = checked_shape(shape)
        self.rows = checked_ids(rows)
        self.values = _checked_values(values, self.rows.size, self.shape)
        bad = sparse.check_ids(self.rows, self.shape[0])
        if bad >= 0:
            raise TensorError(
                f"row ids must ascend without repeats; the one at {bad} does not, or is out of "
                "range (RowSparse.from_pairs sorts and sums)",
                expected=f"at least 0, below {self.shape[0]}, above the one before",
                got=", ".join(str(row) for row in self.rows[max(0, bad - 1) : bad + 1].tolist()),
            )

    @classmethod
    def from_pairs(
        cls, rows: npt.ArrayLike, values: npt.ArrayLike, shape: Sequence[int]
    ) -> RowSparse:
        """Return the sparse array of rows in any order; rows that come twice are summed.

        They are summed in the order in which they come, f16 and bf16 in f32 and then rounded once;
        integers wrap. Arguments and errors as for RowSparse; everything is copied.
        """
        shape = checked_shape(shape)
        ids = checked_ids(rows)
        found = _checked_values(values, ids.size, shape)
        outside = np.flatnonzero((ids < 0) | (ids >= shape[0]))
        if outside.size:
            raise TensorError("a row id is out of range", got=ids[outside[0]],
                              expected=f"at least 0, below {shape[0]}")
        width = found[0].size if ids.size else 1
        if width == 0:
            unique = np.unique(ids)
            return cls(unique, np.empty((unique.size, *shape[1:]), found.dtype), shape)
        dtype = by_name(name_of(found.dtype))
        flat = found.reshape(-1).view(dtype.bits)
        if dtype.widen is None or dtype.narrow is None:
            unique, sums = sparse.sum_duplicates(ids, flat, width)
        else:
            wide = np.empty(flat.size, dtype.sum)
            dtype.widen(wide, flat)
            unique, wide = sparse.sum_duplicates(ids, wide, width)
            sums = np.empty(wide.size, dtype.bits)
            dtype.narrow(sums, wide)
        return cls(unique, sums.view(found.dtype).reshape(-1, *shape[1:]), shape)

    @classmethod
    def from_dense(cls, array: npt.ArrayLike) -> RowSparse:
        """Return the rows of an array that are not all zero (a NaN is not zero), as copies."""
        dense = np.asarray(array)
        if dense.ndim == 0:
            raise ShapeMismatch("a sparse array has rows", expected="a dimension", got="a scalar")
        rows = np.flatnonzero((dense != 0).any(axis=tuple(range(1, dense.ndim))))
        return cls(rows.astype(np.int64, copy=False), dense[rows], dense.shape)

    def to_dense(self) -> Array:
        """Return the whole array, newly made."""
        dense: Array = np.zeros(self.shape, self.values.dtype)
        dense[self.rows] = self.values
        return dense

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of the values."""
        return self.values.dtype

    @property
    def nbytes(self) -> int:
        """Bytes of rows and values together."""
        return self.rows.nbytes + self.values.nbytes

    def __len__(self) -> int:
        """How many rows are there."""
        return self.rows.size

    def __repr__(self) -> str:
        return f"RowSparse({self.rows.size} rows of {self.shape}, {self.values.dtype})"


def checked_shape(shape: Sequence[int]) -> tuple[int, ...]:
    """Return the shape of a sparse array as ints.

    Raises:
        ShapeMismatch: It has no dimension, or one that is no integer, negative, 2**63 or more.
    """
    try:
        sizes = tuple(operator.index(size) for size in shape)
    except TypeError:
        sizes = ()
    if not sizes or min(sizes) < 0 or max(sizes) >= 1 << 63:
        raise ShapeMismatch("not the shape of a sparse array",
                            expected="one or more whole sizes of at least 0",
                            got=shown(shape))
    return sizes


def checked_ids(rows: npt.ArrayLike) -> Ids:
    """Return row ids as an int64 array, the caller's own where it is one; order is not looked at.

    Raises:
        DtypeMismatch: They are not integers.
        ShapeMismatch: They have more or less than one dimension.
        TensorError: A number does not fit into int64.
    """
    is_array = hasattr(rows, "dtype")
    try:
        ids = np.asarray(rows)
    except (ValueError, OverflowError):
        raise DtypeMismatch("row ids must be integers", expected="int64", got=type(rows)) from None
    if ids.ndim != 1:
        raise ShapeMismatch("row ids have one dimension (they come before an `out`)",
                            expected="(k,)", got=ids.shape)
    if ids.size == 0 and not is_array:
        return np.empty(0, np.int64)  # [] has no dtype of its own, NumPy's choice is float64
    if ids.dtype.kind not in "iu":
        raise DtypeMismatch("row ids must be integers", expected="int64", got=ids.dtype)
    if ids.dtype.kind == "u" and ids.size and int(ids.max()) >= 1 << 63:
        raise TensorError("a row id is out of range", expected="below 2**63", got=ids.max())
    return np.ascontiguousarray(ids, dtype=np.int64)


def _checked_values(values: npt.ArrayLike, n: int, shape: tuple[int, ...]) -> Array:
    found = np.asarray(values)
    name_of(found.dtype)  # raises for what cannot be stored
    if found.shape != (n, *shape[1:]):
        raise ShapeMismatch("values do not fit rows and shape", expected=(n, *shape[1:]),
                            got=found.shape)
    return np.ascontiguousarray(found)
