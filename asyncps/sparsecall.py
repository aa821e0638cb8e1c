"""The sum of some rows of each rank: as rows and their numbers, or in full where that is cheaper.

Ranks first tell how many rows they have, of what, so that all choose the same way. What follows is
begun on the loop as soon as that is known, in whatever order users wait.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from asyncps.collectivecall import CollectiveHandle, Step
from asyncps.errors import (
    AsyncPSError,
    CodecError,
    CollectiveMismatch,
    ShapeMismatch,
    TensorError,
)
from asyncps.fusing import Fusing, Kind
from asyncps.roles.made import Op, Verb
from asyncps.tensor import dtypes
from asyncps.tensor.dtypes import Array
from asyncps.tensor.pool import Bytes

log = logging.getLogger(__name__)

MOST_ROWS = 1 << 32

# So small an array is summed in full at once: telling first would cost more.
SMALL_BYTES = 64 << 10

_NUMBER = np.dtype("<u4")
_WORDS = ("rank", "rows", "size", "dtype", "operation")  # then the shape of a row


class SparseCall:
    """One sum of rows.

    Args:
        fusing: Makes calls.
        name: Of the call; ranks pair it by that.
        rank, world: This rank, and how many there are.
        indices: Which rows, ascending and each once.
        values: The rows.
        size: Rows of the result.
        mean: Divide by how many ranks take part.
        finish: Makes what users get of the result.

    Attributes:
        handle: What users wait for; the result is an array of `size` rows.
    """

    def __init__(
        self, fusing: Fusing, name: str, rank: int, world: int, indices: Array, values: Array,
        size: int, *, mean: bool, finish: Callable[[Array], Any],
    ) -> None:
        self._fusing = fusing
        self._indices = indices
        self._values = values
        self._size = size
        self._op = Op.MEAN if mean else Op.SUM
        self._dtype = dtypes.by_name(dtypes.name_of(values.dtype))
        self._row_bytes = math.prod(values.shape[1:]) * values.dtype.itemsize
        self._counts: list[int] = []  # rows of each rank; empty: the sum is made in full
        self._name = name
        self.handle = CollectiveHandle(
            fusing, name, values, None, lambda raw: finish(self._result(raw)))
        fusing.begin_several(self.handle)
        try:
            if world == 1 or size * self._row_bytes <= SMALL_BYTES:
                self._in_full()
                return
            word = [rank, len(indices), size, dtypes.NAMES.index(self._dtype.name), int(self._op),
                    *values.shape[1:]]
            self._post(_gather("int64"), np.array([word], np.int64), self._told)
        except BaseException:
            fusing.forget(self.handle)
            raise

    def _end(self, result: Any, error: AsyncPSError | None) -> None:
        self._fusing.ended(self.handle, result, error)

    def _post(self, kind: Kind, array: Array, then: Callable[[Any, Any], None]) -> None:
        self._fusing.post(kind, Step(self._fusing, self._name, array, then), [])

    def _told(self, raw: Any, error: AsyncPSError | None) -> None:
        """All have told how much they have. On the loop."""
        if error is not None:
            self._end(None, error)
            return
        try:
            size = 8 * (len(_WORDS) + self._values.ndim - 1)
            if not raw.nbytes or raw.nbytes % size:
                raise CodecError("no words of a sparse sum", expected=f"{size} bytes each",
                                 got=raw.nbytes)
            words = np.frombuffer(raw.tobytes(), np.int64).reshape(-1, size // 8)
            self._check_equal(words)
            self._fusing.agreed(self.handle)
            if int(words[:, 1].sum()) * (_NUMBER.itemsize + self._row_bytes) >= (
                2 * self._size * self._row_bytes  # there, and back
            ):
                self._in_full()
            else:
                self._counts = words[:, 1].tolist()
                rows = np.ascontiguousarray(self._values).reshape(-1).view(np.uint8)
                numbers = self._indices.astype(_NUMBER).view(np.uint8)
                self._post(_gather("uint8"), np.concatenate([numbers, rows]), self._end)
            self._fusing.flush_soon()
        except AsyncPSError as failed:
            self._end(None, failed)
        except Exception as failed:
            # Such as no memory: nobody else would end it.
            log.exception("the sparse sum %r failed", self._name)
            self._end(None, AsyncPSError(f"the sparse sum {self._name!r} failed: {failed!r}"))

    def _in_full(self) -> None:
        full = np.zeros((self._size, *self._values.shape[1:]), self._values.dtype)
        full[self._indices] = self._values
        self._counts = []

        self._post((Verb.ALL_REDUCE, self._op, self._dtype.name, 0, 1.0), full,
                   lambda _, error: self._end(full, error))

    def _check_equal(self, words: Array) -> None:
        first = words[0]
        for other in words[1:]:
            found = [f"{word} {a} and {b}" for word, a, b in
                     zip(_WORDS[2:], first[2:5].tolist(), other[2:5].tolist(), strict=True)
                     if a != b]
            rows = tuple(first[5:].tolist()), tuple(other[5:].tolist())
            if rows[0] != rows[1]:
                found.append(f"rows of shape {rows[0]} and {rows[1]}")
            if found:
                raise CollectiveMismatch(f"the ranks make the sparse sum {self._name!r} differently"
                                         f": ranks {first[0]} and {other[0]}: {', '.join(found)}")

    def _result(self, raw: Any) -> Array:
        if not self._counts:
            full: Array = raw
            return full
        return self._added(np.frombuffer(raw, np.uint8))

    def _added(self, raw: Bytes) -> Array:
        """Add all rows in the order of ranks, in what their dtype is summed in."""
        values, begin = self._values, 0
        out = np.zeros((self._size, *values.shape[1:]), self._dtype.sum)
        with np.errstate(all="ignore"):  # infinities and NaN travel
            for rank, count in enumerate(self._counts):
                middle = begin + count * _NUMBER.itemsize
                end = middle + count * self._row_bytes
                if count < 0 or end > raw.size:
                    raise CodecError("sparse rows that are none", rank=rank, got=count)
                indices = raw[begin:middle].copy().view(_NUMBER)
                if count and int(indices.max()) >= self._size:
                    raise CodecError("rows that lie outside", rank=rank, got=int(indices.max()),
                                     expected=f"below {self._size}")
                rows = raw[middle:end].copy().view(values.dtype).reshape(count, *values.shape[1:])
                out[indices] += rows.astype(out.dtype, copy=False)
                begin = end
            if self._op == Op.MEAN:
                out *= out.dtype.type(1.0 / len(self._counts))
            return out.astype(values.dtype, copy=False)


def rows_of(indices: Array, values: Array, size: int) -> tuple[Array, Array]:
    """Return rows by ascending number, each once; those of one number are added.

    Raises:
        TensorError: Numbers that are none, or lie outside.
        ShapeMismatch: There are more or fewer values.
    """
    if indices.ndim != 1 or (indices.size and indices.dtype.kind not in "iu"):
        raise TensorError("indices that are none", expected="one dimension of integers",
                          got=f"{indices.ndim} of {indices.dtype}")
    if not 0 <= size <= MOST_ROWS:
        raise TensorError("no number of rows", expected=f"0 to {MOST_ROWS}", got=size)
    if values.ndim < 1 or len(values) != len(indices):
        raise ShapeMismatch("another number of values than of indices", expected=len(indices),
                            got=values.shape)
    numbers = indices.astype(np.int64)
    if numbers.size and not (0 <= int(indices.min()) and int(indices.max()) < size):
        raise TensorError("indices that lie outside", expected=f"0 to {size - 1}",
                          got=f"{indices.min()} to {indices.max()}")
    if numbers.size < 2 or (numbers[1:] > numbers[:-1]).all():
        return numbers, values.copy()
    once, places = np.unique(numbers, return_inverse=True)
    wide = dtypes.by_name(dtypes.name_of(values.dtype)).sum
    out = np.zeros((len(once), *values.shape[1:]), wide)
    with np.errstate(all="ignore"):
        np.add.at(out, places, values.astype(wide, copy=False))
        return once, out.astype(values.dtype, copy=False)


def _gather(dtype: str) -> Kind:
    return Verb.ALL_GATHER, Op.NONE, dtype, 0, 1.0
