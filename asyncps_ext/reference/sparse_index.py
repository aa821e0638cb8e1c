"""Indexes from row ids to slots, as a dict.

An index numbers ids in the order in which it first meets them: 0, 1, 2, ... That number, the slot,
says where a table keeps the row. Nothing is ever taken out. One thread uses an index at a time.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from asyncps_ext.reference.checks import check_apart, check_array, check_dtype, check_like

__all__ = ["RangeIndex", "RowIndex"]

Ids = NDArray[np.int64]

_HIGHEST = 2**63 - 1
_BYTES_AN_ID = 32  # what a cell and its share of free ones take in the compiled index


class RowIndex:
    """Slots of row ids from 0 to 2**63 - 2, in memory that grows with the ids that are there."""

    def __init__(self) -> None:
        self._first, self._stop = 0, _HIGHEST
        self._slots: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self._slots)

    @property
    def nbytes(self) -> int:
        """Bytes of memory in use."""
        return _BYTES_AN_ID * (len(self._slots) + 1)

    def lookup(self, ids: Ids, slots: Ids) -> None:
        """Write the slot of each id, -1 where there is none.

        Args:
            ids: int64, any values and order.
            slots: int64, as many, written; may be ids.
        """
        _check(ids, slots)
        slots[:] = [self._slots.get(id_, -1) for id_ in ids.tolist()]

    def insert(self, ids: Ids, slots: Ids) -> int:
        """Write the slot of each id, the next ones for new ids; returns how many are new.

        Arguments as for `lookup`.

        Raises:
            ValueError: An id is out of range. Nothing has changed then.
        """
        _check(ids, slots)
        before = len(self._slots)
        bad = np.flatnonzero((ids < self._first) | (ids >= self._stop))
        if bad.size:
            raise ValueError(f"id {ids[bad[0]]} at {bad[0]} is outside of "
                             f"{self._first}..{self._stop - 1}")
        slots[:] = [self._slots.setdefault(id_, len(self._slots)) for id_ in ids.tolist()]
        return len(self._slots) - before

    def items(self) -> Ids:
        """Return the ids in the order of their slots."""
        return np.fromiter(self._slots, np.int64, len(self._slots))


class RangeIndex(RowIndex):
    """Slots of row ids from `first` to `stop` - 1: four bytes for each, touched or not.

    Raises:
        ValueError: The range is none, or has 2**32 - 1 ids or more.
    """

    def __init__(self, first: int, stop: int) -> None:
        super().__init__()
        if first < 0 or stop < first or stop - first >= 0xFFFFFFFF:
            raise ValueError(f"a range of ids from {first} to {stop} cannot be kept in 32 bits")
        self._first, self._stop = first, stop

    @property
    def nbytes(self) -> int:
        """Bytes of memory in use; pages of it that no id has touched cost nothing."""
        return 4 * (self._stop - self._first)


def _check(ids: Ids, slots: Ids) -> None:
    check_array(ids, "ids")
    check_array(slots, "slots", written=True)
    check_dtype(ids, "ids", "int64")
    check_dtype(slots, "slots", "int64")
    check_like(slots, "slots", ids, "ids")
    check_apart(slots, "slots", ids, "ids", may_be_same=True)
