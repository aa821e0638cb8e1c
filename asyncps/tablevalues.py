"""From what users hand in for row-sparse keys to what travels, and back.

As `values` for dense keys: in the caller's thread, so that a wrong argument raises there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, get_args

import numpy as np

from asyncps.errors import ConfigError, DtypeMismatch, ShapeMismatch, TensorError
from asyncps.initializer import Initializer, Zero
from asyncps.roles.coded import Payload
from asyncps.roles.plan import KeyInfo, describe_rows
from asyncps.tensor import dtypes, firstrows
from asyncps.tensor.pool import POOLED_BYTES, Bytes, SharedPool
from asyncps.tensor.rowsparse import Ids, RowSparse, checked_ids, checked_shape
from asyncps.tensor.sparsesum import SparseSum
from asyncps.values import Array, Key, as_bytes, device_values, host_array, key_spec
from asyncps_ext import sparse

INITIALIZERS = get_args(Initializer)


def first_rows(
    key: Key, value: Any, shape: Any, dtype: Any
) -> tuple[Any, tuple[Ids, memoryview] | None]:
    """Return how a row-sparse key is declared, and the rows that it begins with.

    Args:
        key: Its name.
        value: An initializer, or a RowSparse whose other rows are zero.
        shape: Of the table, with an initializer only.
        dtype: The same.

    Raises:
        ConfigError: An initializer without a shape, or one that cannot make such values.
        ShapeMismatch, DtypeMismatch: No table can be like that.
    """
    if isinstance(value, RowSparse):
        name = dtypes.name_of(value.dtype)
        spec = describe_rows(key, name, value.shape, value.dtype.itemsize, Zero())
        return spec, (value.rows, as_bytes(value.values))
    if shape is None:
        raise ConfigError("an initializer makes rows of a shape", expected="shape=(rows, ...)",
                          got=f"{value!r} for key {key!r}")
    sizes = checked_shape(shape if isinstance(shape, (list, tuple)) else (shape,))
    if 0 in sizes[1:]:
        raise ShapeMismatch("a row-sparse key with empty rows", key=key, got=sizes,
                            expected="rows of one element or more")
    try:
        name = dtypes.name_of(np.dtype(dtype))
    except TypeError:
        raise DtypeMismatch("not a dtype", key=key, got=repr(dtype)) from None
    found = dtypes.by_name(name)
    firstrows.check_usable(value, found)
    return describe_rows(key, name, sizes, found.itemsize, value), None


def declared(
    names: Sequence[Key], given: Sequence[Any], shape: Any, dtype: Any
) -> tuple[list[Any], list[Any]]:
    """Return how the keys of an `init` are declared, and their first values as `Worker.init` takes.

    Of a list of device values the first is taken.

    Raises:
        ConfigError: A shape without an initializer, or the other way round.
        TensorError: A value that cannot be stored.
    """
    specs: list[Any] = []
    firsts: list[Any] = []
    for name, value in zip(names, given, strict=True):
        first = device_values(value, name)[0]
        if isinstance(first, (RowSparse, *INITIALIZERS)):
            spec, rows = first_rows(name, first, shape, dtype)
            specs.append(spec)
            firsts.append(rows)
        else:
            array = host_array(first, name)
            specs.append(key_spec(name, array))
            firsts.append(as_bytes(array))
    check_shape(shape, given)
    return specs, firsts


def check_shape(shape: Any, given: Sequence[Any]) -> None:
    """Refuse a shape that no value of an `init` takes.

    Raises:
        ConfigError: No value is an initializer.
    """
    if shape is not None and not any(isinstance(value, INITIALIZERS) for value in given):
        raise ConfigError("a shape without an initializer: a value has its own",
                          expected="one of asyncps.initializer", got=shape)


class Contribution:
    """The rows of one call for one row-sparse key, checked and ready to be sent.

    Args:
        info: The key.
        value: A RowSparse, or a list of those of several devices, which are summed.
        copy: The caller keeps its memory.
        pool: Where a copy of large values lives until `release`.
        encoded: They will be encoded before the call returns: only the ids need be copied.

    Attributes:
        ids: Strictly ascending.
        values: Bytes of the rows.
        encoded: As given.
        coded: What each server's part is sent as; None: its values.
        copied_bytes: What copies take.

    Raises:
        TensorError: Something else than a RowSparse.
        ShapeMismatch, DtypeMismatch: It is not of its key's shape or dtype.
    """

    __slots__ = ("_pool", "_pooled", "coded", "copied_bytes", "encoded", "ids", "info", "values")

    def __init__(
        self, info: KeyInfo, value: Any, *, copy: bool, pool: SharedPool, encoded: bool = False
    ) -> None:
        self.info = info
        self.encoded = encoded
        self._pool = pool
        self._pooled: Bytes | None = None
        self.copied_bytes = 0
        self.coded: list[Payload | memoryview | None] | None = None
        found = merged_rows(value, info.key)
        check_like(found, info.key, info.shape, info.dtype)
        self.ids, self.values = found.rows, as_bytes(found.values)
        if encoded:
            self.ids = self.ids.copy()
            self.copied_bytes = self.ids.nbytes
        elif copy:
            self.copied_bytes = found.nbytes
            if not (isinstance(value, (list, tuple)) and len(value) > 1):
                self.ids = self.ids.copy()
                self.values = self._copy(self.values)

    def _copy(self, values: memoryview) -> memoryview:
        size = len(values)
        mine: Bytes = np.empty(size, np.uint8)
        if size >= POOLED_BYTES:
            mine = self._pooled = self._pool.take(size)
        np.copyto(mine, values)
        return mine.data

    def release(self) -> None:
        """Give the copy back; the servers have accepted what was made of it."""
        if self._pooled is not None:
            self._pool.give(self._pooled)
            self._pooled = None


class Fetch:
    """Rows that one call asks for, and the place of the answer.

    Args:
        info: The key.
        row_ids: Integers in any order, repeated or not.
        out: An array for the rows, or None to make one.

    Attributes:
        ids: Unique and ascending.
        array: The rows.

    Raises:
        DtypeMismatch: Ids that are no integers; out of another dtype.
        TensorError: An id that is out of range; an out that cannot be written.
        ShapeMismatch: An out that is not as many rows.
    """

    __slots__ = ("array", "ids", "info")

    def __init__(self, info: KeyInfo, row_ids: Any, out: Any = None) -> None:
        self.info = info
        self.ids = unique_ids(row_ids, info.shape[0], info.key)
        shape = (self.ids.size, *info.shape[1:])
        self.array = out_rows(out, info.key, shape, info.dtype)

    def result(self) -> RowSparse:
        """Return what the verb returns."""
        return RowSparse(self.ids, self.array, self.info.shape)


def unique_ids(row_ids: Any, count: int, key: Key) -> Ids:
    """Return row ids unique and ascending; memory of their own.

    Raises:
        DtypeMismatch, ShapeMismatch, TensorError: They are no row ids of this key.
    """
    try:
        ids = checked_ids(row_ids)
    except TensorError as error:
        error.key = key
        raise
    if sparse.check_ids(ids, count) < 0:
        return ids.copy() if ids is row_ids else ids
    ids = np.unique(ids)
    if ids[0] < 0 or ids[-1] >= count:
        raise TensorError("a row id is out of range", key=key, expected=f"0 to {count - 1}",
                          got=ids[0] if ids[0] < 0 else ids[-1])
    return ids


def out_rows(out: Any, key: Key, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """Return an array that takes rows: `out` if it can.

    Raises:
        TensorError, ShapeMismatch, DtypeMismatch: It cannot.
    """
    if out is None:
        return np.empty(shape, dtype)
    if type(out) is not np.ndarray or not out.flags.writeable or not out.flags.c_contiguous:
        raise TensorError("out must be a writable, contiguous NumPy array for the rows", key=key,
                          got=type(out).__name__)
    if out.ndim == len(shape) and out.shape[1:] == shape[1:] and len(out) != shape[0]:
        raise ShapeMismatch("out has one row for each different row id", key=key, expected=shape,
                            got=out.shape)
    check_like(out, key, shape, dtype)
    return out


def check_like(array: Any, key: Key, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
    """Refuse rows of another shape or dtype.

    Raises:
        DtypeMismatch, ShapeMismatch: They are.
    """
    if array.dtype != dtype:
        raise DtypeMismatch("rows of another dtype than their key", key=key, expected=dtype,
                            got=array.dtype)
    if array.shape != shape:
        raise ShapeMismatch("rows of another shape than their key", key=key, expected=shape,
                            got=array.shape)


def merged_rows(value: Any, key: Key) -> RowSparse:
    """Return one RowSparse for a key: a list of device values is summed, f16 and bf16 in f32.

    Raises:
        TensorError: Something else than RowSparse values of one kind.
    """
    given = list(value) if isinstance(value, (list, tuple)) else [value]
    for item in given:
        if not isinstance(item, RowSparse):
            raise TensorError("a row-sparse key takes rows", key=key, expected="asyncps.RowSparse",
                              got=type(item).__name__)
    if not given:
        raise TensorError("an empty list of device values", key=key)
    first: RowSparse = given[0]
    for item in given[1:]:
        check_like(item, key, first.shape, first.dtype)
    if len(given) == 1:
        return first
    dtype = dtypes.by_name(dtypes.name_of(first.dtype))
    width = int(np.prod(first.shape[1:], dtype=np.int64))
    total = SparseSum(dtype, width)
    for item in given:
        total.add(item.rows, item.values.reshape(-1).view(dtype.bits))
    stored = total.values
    if dtype.narrow is not None:
        stored = np.empty(total.values.size, dtype.bits)
        dtype.narrow(stored, total.values)
    return RowSparse(total.ids, stored.view(first.dtype).reshape(-1, *first.shape[1:]),
                     first.shape)
