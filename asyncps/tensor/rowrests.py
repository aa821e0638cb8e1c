"""What was not sent of rows of a table: float32 for each row with something left, and no others.

An index gives each row a slot in the order in which it first had something left, as in a table. A
row of which nothing is left stays in its slot as zeros, until most slots are like that: then all
others move together. The first slot is a row of zeros that stands for all rows without one. So a
push costs what its own rows cost, and memory goes by the rows with something left, of which there
are as many as were pushed at most.

A signal handler may raise anywhere: then each row has what it had before or what it was to get.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from asyncps.tensor.codecs import Floats
from asyncps.tensor.rowblocks import RowBlocks
from asyncps.tensor.rowsparse import Ids
from asyncps_ext import quantize
from asyncps_ext.sparse_index import RowIndex

BLOCK_BYTES = 1 << 20
_FEW = 256  # slots that are not worth moving


class RowRests:
    """Rows by id, all others being zero. One thread uses it at a time.

    Args:
        width: Elements of a row.
    """

    def __init__(self, width: int) -> None:
        self._width = width
        self._index = RowIndex()
        # What no row has been written to is zero: so is a slot whose row was interrupted.
        self._blocks = RowBlocks(
            np.dtype(np.float32), self._width, 1 << 62, zero=True, block_bytes=BLOCK_BYTES)
        self._alive: npt.NDArray[np.bool_] = np.zeros(0, np.bool_)  # by slot: it is not all zero
        self._live: int | None = 0  # None: to be counted

    def clear(self) -> None:
        """Have nothing left."""
        self._take(RowRests(self._width))

    def _take(self, other: RowRests) -> None:
        vars(self).update(vars(other))  # all at once

    def __len__(self) -> int:
        """How many rows have something left."""
        live = self._live
        if live is None:
            live = self._live = int(np.count_nonzero(self._alive))
        return live

    def find(self, ids: Ids) -> Ids:
        """Return where rows lie, int64[ids.size]: until rows are `put`, or all are cleared.

        Args:
            ids: int64, unique.
        """
        slots = np.empty(ids.size, np.int64)  # of a row that is not there the first
        self._index.lookup(ids, slots)
        slots += 1
        return slots

    def gather(self, ids: Ids, slots: Ids | None = None) -> Floats:
        """Return what is left of rows, in memory of its own: float32[ids.size * width].

        Args:
            ids: int64, unique.
            slots: Where they lie, if that was found.
        """
        if not len(self):
            return np.zeros(ids.size * self._width, np.float32)
        out = np.empty(ids.size * self._width, np.float32)
        if slots is None:
            slots = self.find(ids)
        # Of a row that is not alive nothing is sure.
        self._blocks.gather(slots * self._alive[slots], out)
        return out

    def put(self, ids: Ids, rests: Floats, slots: Ids | None = None) -> None:
        """Let this be what is left of rows.

        Args:
            ids: int64, unique.
            rests: float32[ids.size * width]; only read.
            slots: Where they lie, if that was found; written to.
        """
        left = _has_more_than_zeros(rests, self._width)
        if slots is None:
            slots = self.find(ids)
        fresh = left & (slots == 0)
        many = int(np.count_nonzero(fresh))
        if many:
            self._grow(len(self._index) + many)
            mine = np.empty(many, np.int64)
            self._index.insert(ids[fresh], mine)
            slots[fresh] = mine + 1
        known = slots > 0
        if not known.all():
            left, slots = left[known], slots[known]
            rests = rests.reshape(-1, self._width)[known].reshape(-1)
        live = len(self)
        self._live = None  # until all is done
        self._blocks.scatter(slots, rests)
        live += int(np.count_nonzero(left)) - int(np.count_nonzero(self._alive[slots]))
        self._alive[slots] = left
        self._live = live
        if len(self._index) > max(_FEW, 2 * live):
            self._move_together()

    def scale(self, factor: float, most: float) -> None:
        """Multiply all, cut to magnitudes of at most `most` before that."""
        for begin, end in self._spans():
            view = self._blocks.view(begin, end)
            if quantize.largest(view) > most:
                np.clip(view, -most, most, out=view)
            view *= np.float32(factor)

    def norm(self) -> float:
        """Return the l2 norm of all."""
        return math.sqrt(sum(
            float(np.square(self._blocks.view(begin, end), dtype=np.float64).sum())
            for begin, end in self._spans()))

    def items(self) -> tuple[Ids, Floats]:
        """Return the rows with something left, ascending, and what that is; copies."""
        ids = np.sort(self._index.items()[self._alive[1 : len(self._index) + 1]])
        return ids, self.gather(ids)

    def _spans(self) -> list[tuple[int, int]]:
        return list(self._blocks.spans(1, len(self._index) + 1, 1 << 62))

    def _grow(self, rows: int) -> None:
        slots = rows + 1
        self._blocks.grow(slots)
        if slots > self._alive.size:
            more = np.zeros(max(slots, 2 * self._alive.size), np.bool_)
            more[: self._alive.size] = self._alive
            self._alive = more

    def _move_together(self) -> None:
        kept = RowRests(self._width)
        ids, rests = self.items()
        if ids.size:
            kept.put(ids, rests)
        self._take(kept)


def _has_more_than_zeros(rows: Floats, width: int) -> npt.NDArray[np.bool_]:
    """Tell of each row whether an element is not zero: by its bits, which is twice as fast."""
    kind, signs = (np.uint32, 1 << 31) if width % 2 else (np.uint64, 1 << 63 | 1 << 31)
    bits = np.bitwise_or.reduce(rows.reshape(-1, width).view(kind), axis=1)
    found: npt.NDArray[np.bool_] = bits & kind(~signs & np.iinfo(kind).max) != 0
    return found
