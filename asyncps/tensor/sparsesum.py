"""The sum of what workers contribute to one round of a table: sparse as long as they are.

Rows that nobody pushed take no memory and no time. Workers that push the same rows (a dense value
pushed as sparse is all of them) cost one addition in place each; others cost a merge.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np

from asyncps.tensor.codecs import Floats
from asyncps.tensor.dtypes import Array, Dtype
from asyncps_ext import reduce, sparse


class Decodable(Protocol):
    """Float32 values in fewer bytes."""

    def decode(self, out: Floats) -> None:
        """out = the values."""

    def add(self, acc: Floats) -> None:
        """acc += the values."""


class SparseSum:
    """A growing sum of sparse rows, `ids` strictly ascending.

    Args:
        dtype: Of the contributions; f16 and bf16 are summed in f32.
        width: Elements of a row.

    Attributes:
        ids: int64[k], the rows that somebody contributed to.
        values: Their sums in the order of contribution, `dtype.sum`, flat.
        count: How many contributions there were, empty ones too.
    """

    def __init__(self, dtype: Dtype, width: int) -> None:
        self.dtype = dtype
        self.width = width
        self.ids: Array = np.empty(0, np.int64)
        self.values: Array = np.empty(0, dtype.sum)
        self.count = 0

    @property
    def nbytes(self) -> int:
        """Bytes of memory in use."""
        return self.ids.nbytes + self.values.nbytes

    def add(self, ids: Array, stored: Array, *, keep: bool = False) -> None:
        """Take one contribution in.

        Args:
            ids: int64[n], strictly ascending; the caller has checked them (`sparse.check_ids`).
            stored: n rows, `dtype.bits`, flat.
            keep: The arrays are the sum's from here on and may be added to in place (they must be
                writable then); otherwise they are only read and may change after the call.
        """
        self.count += 1
        if ids.size == 0:
            return
        if self.ids.size == 0:
            self.ids = ids if keep else ids.copy()
            self.values = self._wide(stored, keep=keep)
        elif self._is_same(ids):
            self.dtype.add(self.values, stored)
        else:
            self._merge(ids, self._wide(stored, keep=True))

    def add_encoded(self, ids: Array, encoded: Decodable) -> None:
        """Take one contribution in whose values are encoded float32.

        Args:
            ids: int64[n], strictly ascending; the sum's from here on.
            encoded: n rows.
        """
        self.count += 1
        if ids.size == 0:
            return
        if self.ids.size and self._is_same(ids):
            encoded.add(self.values)
            return
        values = np.empty(ids.size * self.width, np.float32)
        encoded.decode(values)
        if self.ids.size:
            self._merge(ids, values)
        else:
            self.ids, self.values = ids, values

    def _is_same(self, ids: Array) -> bool:
        """Whether these are the ids that are there: of neighbours the ends say it all."""
        size, first, last = ids.size, ids[0], ids[-1]
        if size != self.ids.size or first != self.ids[0] or last != self.ids[-1]:
            return False
        return bool(last - first == size - 1) or np.array_equal(ids, self.ids)

    def _wide(self, stored: Array, *, keep: bool) -> Array:
        return stored if keep and self.dtype.widen is None else self.dtype.widened(stored)

    def _merge(self, ids: Array, values: Array) -> None:
        room = self.ids.size + ids.size
        union, sums = np.empty(room, np.int64), np.empty(room * self.width, self.dtype.sum)
        many = sparse.merge_rows(self.ids, self.values, ids, values, self.width, union, sums)
        self.ids, self.values = union[:many], sums[: many * self.width]

    def scale(self, factor: float) -> None:
        """Multiply the sums of a floating dtype, for a mean."""
        reduce.scale(self.values, factor)
