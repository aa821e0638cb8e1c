"""Many small keys that usually move together, and each on its own when they do not.

While all rows stand at equal clocks and whole slabs are pushed and pulled, the slab is one unit:
one round counter, one add, one reply. The first frame that speaks of some rows only splits it into
one unit a row; a frame of the whole slab joins it again once the rows agree. Memory of a slab is
small (a setting, 256 KiB), so both copy.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate

import numpy as np

from asyncps.errors import RemoteProtocolError
from asyncps.roles.accumulator import Accumulator
from asyncps.roles.encoded import Contribution, Encoded
from asyncps.roles.unit import Unit
from asyncps.tensor.dtypes import Dtype
from asyncps.tensor.pool import Bytes, Pool
from asyncps.tensor.words import Key, Span

MakeUnit = Callable[[Dtype, Bytes, Pool, Sequence[Span]], Unit]


class Slab:
    """The rows of one slab.

    Args:
        dtype: Of all its values.
        pool: Where buffers come from.
        make: Makes a unit of a dtype, its first value and the pool.

    Attributes:
        sizes: Bytes of each row.
        keys: The key of each row.
        offsets: Where each row begins, and the size of all at the end.
        whole: The unit of all rows while they move together, else None.
        rows: One unit a row while they do not.
        apart: Rows stay apart, since each is updated in its own time.
    """

    is_dense = True
    __slots__ = ("_make", "apart", "dtype", "keys", "offsets", "pool", "rows", "sizes", "whole")

    def __init__(self, dtype: Dtype, pool: Pool, make: MakeUnit = Unit) -> None:
        self._make = make
        self.apart = False
        self.dtype = dtype
        self.pool = pool
        self.sizes: list[int] = []
        self.keys: list[Key] = []
        self.offsets: list[int] = [0]
        self.whole: Unit | None = None
        self.rows: list[Unit] = []

    @property
    def size(self) -> int:
        """Bytes of all rows."""
        return self.offsets[-1]

    def add_rows(self, sizes: Sequence[int], buffer: Bytes, keys: Sequence[Key] = ()) -> None:
        """Append rows with their first values; the buffer goes back to the pool."""
        keys = keys or [None] * len(sizes)
        if self.whole is not None and self.whole.is_fresh():
            self._extend(self.whole, sizes, buffer, keys)
            return
        if self.sizes:
            self.split()
        begin = 0
        for size, key in zip(sizes, keys, strict=True):
            self.rows.append(self._unit(buffer[begin : begin + size], key))
            begin += size
        self.pool.give(buffer)
        self.sizes.extend(sizes)
        self.keys.extend(keys)
        self.offsets = [0, *accumulate(self.sizes)]
        self.join()

    def _extend(self, whole: Unit, sizes: Sequence[int], buffer: Bytes, keys: Sequence[Key]
                ) -> None:
        """Append rows to a whole that nobody has pushed to: no row has to go its own way."""
        edge = self.size
        longer = self.pool.take(edge + buffer.nbytes)
        longer[:edge] = whole.current.buffer
        longer[edge:] = buffer
        self.pool.give(buffer)
        spans = list(whole.spans)
        for size, key in zip(sizes, keys, strict=True):
            self.offsets.append(edge + size)
            spans.append((key, edge // self.dtype.itemsize, (edge + size) // self.dtype.itemsize))
            edge += size
        self.sizes.extend(sizes)
        self.keys.extend(keys)
        self.whole = self._make(self.dtype, longer, self.pool, spans)

    def prefix(self, size: int) -> range:
        """Return the rows that a frame of `size` bytes speaks of, for a peer that knows fewer.

        Raises:
            RemoteProtocolError: No rows have that size.
        """
        try:
            return range(self.offsets.index(size, 1))
        except ValueError:
            raise RemoteProtocolError("not the size of the slab", expected=self.size,
                                      got=size) from None

    def size_of(self, rows: Sequence[int]) -> int:
        """Return the bytes of some rows.

        Raises:
            RemoteProtocolError: A row that does not exist, or one twice.
        """
        if len(set(rows)) != len(rows) or not rows or max(rows) >= len(self.sizes):
            raise RemoteProtocolError("rows of a slab must exist and differ",
                                      expected=f"rows below {len(self.sizes)}", got=list(rows)[:8])
        return sum(self.sizes[row] for row in rows)

    def split(self) -> None:
        """Let every row go its own way."""
        whole, self.whole = self.whole, None
        if whole is None:
            return
        self.rows = [
            self._row_of(whole, begin, size, key)
            for begin, size, key in zip(self.offsets, self.sizes, self.keys, strict=False)
        ]
        for clock, entries in whole.parked.items():
            for asker, (waiter, _) in entries.items():
                # It waits for all rows; the answer is the same bytes in more parts.
                waiter.parts = [memoryview(b"")] * len(self.rows)
                waiter.pending = len(self.rows)
                for position, row in enumerate(self.rows):
                    row.parked.setdefault(clock, {})[asker] = (waiter, position)

    def join(self) -> bool:
        """Let all rows move together again if they agree; tell whether they do now."""
        if self.whole is not None:
            return True
        if self.apart:
            return False
        first = self.rows[0]
        for row in self.rows:
            if (
                row.parked or row.open or row.failed
                or row.updates != first.updates
                or row.state.keys() != first.state.keys()
                or not row.agrees_with(first)
            ):
                return False
        buffer = self.pool.take(self.size)
        for begin, row in zip(self.offsets, self.rows, strict=False):
            buffer[begin : begin + row.size] = row.current.buffer
        edges = [offset // self.dtype.itemsize for offset in self.offsets]
        spans = list(zip(self.keys, edges, edges[1:], strict=False))
        whole = self._make(self.dtype, buffer, self.pool, spans)
        whole.updates = first.updates
        whole.current.clock = first.current.clock
        for row in self.rows:
            whole.adopt(row)
        for name in first.state:
            whole.state[name] = np.concatenate([row.state[name] for row in self.rows])
        self.whole, self.rows = whole, []
        return True

    def _unit(self, values: Bytes, key: Key) -> Unit:
        spans = ((key, 0, values.nbytes // self.dtype.itemsize),)
        return self._make(self.dtype, values.copy(), self.pool, spans)

    def _cut(self, part: Contribution, begin: int, end: int) -> Contribution:
        if isinstance(part, Encoded):
            return part.cut(begin // self.dtype.itemsize)
        return part[begin:end].copy()

    def _row_of(self, whole: Unit, begin: int, size: int, key: Key) -> Unit:
        """Cut one row out of the unit of all."""
        end = begin + size
        row = self._unit(whole.current.buffer[begin:end], key)
        row.adopt(whole)
        row.current.clock = whole.current.clock
        row.keep_versions(whole, begin, end)
        factor = self.dtype.sum.itemsize // self.dtype.itemsize
        for clock, accumulator in whole.open.items():
            mine = Accumulator(accumulator.began)
            mine.count, mine.hyper = accumulator.count, accumulator.hyper
            mine.error, mine.skipped = accumulator.error, accumulator.skipped
            if accumulator.sum is not None:
                mine.sum = accumulator.sum[begin * factor : end * factor].copy()
            mine.parts = {
                rank: self._cut(part, begin, end) for rank, part in accumulator.parts.items()
            }
            row.open[clock] = mine
        first, last = begin // self.dtype.itemsize, end // self.dtype.itemsize
        row.state = {name: array[first:last].copy() for name, array in whole.state.items()}
        row.updates = whole.updates
        row.failed = dict(whole.failed)
        return row


def parts_of(unit: Unit | Slab) -> Sequence[Unit]:
    """Return what has rounds of its own: a chunk, a whole slab, or its rows."""
    if isinstance(unit, Unit):
        return (unit,)
    return unit.rows if unit.whole is None else (unit.whole,)
