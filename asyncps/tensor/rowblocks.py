"""Memory for rows that grows by blocks: what is there never moves and is never copied.

A block is large (64 MiB) and asked of the system as a whole; pages of it that no row has touched
cost nothing, so an almost empty block is cheap and the list of blocks stays short.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from asyncps.tensor.dtypes import Array
from asyncps_ext import optim, sparse

BLOCK_BYTES = 64 << 20


class Run(NamedTuple):
    """Rows with neighbouring ids under neighbouring slots."""

    first_id: int
    first_slot: int
    rows: int


class RowBlocks:
    """Rows by slot number.

    Args:
        dtype: Of one element, as the kernels take it.
        width: Elements of a row.
        limit: The most rows that there will ever be; a small table gets one small block.
        zero: Rows begin at zero; otherwise their first content is undefined.
        block_bytes: About how large a block is.

    Attributes:
        blocks: The memory, 1-d arrays of `rows_per_block * width` elements.
        rows_per_block: A power of two.
    """

    def __init__(
        self, dtype: np.dtype[Any], width: int, limit: int, *, zero: bool = False,
        block_bytes: int = BLOCK_BYTES,
    ) -> None:
        self.dtype = dtype
        self.width = width
        self._new = np.zeros if zero else np.empty
        most = max(1, min(limit, block_bytes // (width * dtype.itemsize)))
        # Down to a power of two, but up where one block can hold the whole table.
        self.rows_per_block = 1 << (most.bit_length() - 1)
        if limit <= most:
            self.rows_per_block = 1 << (most - 1).bit_length()
        self.blocks: list[Array] = []

    @property
    def reserved_bytes(self) -> int:
        """Bytes asked of the system, touched or not."""
        return len(self.blocks) * self.rows_per_block * self.width * self.dtype.itemsize

    def grow(self, rows: int) -> None:
        """Have room for at least so many rows."""
        while len(self.blocks) * self.rows_per_block < rows:
            self.blocks.append(self._new(self.rows_per_block * self.width, self.dtype))

    def gather(self, slots: Array, out: Array) -> None:
        """Copy rows out: out[i] = row slots[i]."""
        sparse.gather_rows_at(self.blocks, self.width, slots, out)

    def scatter(self, slots: Array, rows: Array) -> None:
        """Copy rows in: row slots[i] = rows[i]."""
        sparse.scatter_set_at(self.blocks, self.width, slots, rows)

    def rows(self, slots: Array) -> Any:
        """Return what stands for rows in a step: it updates them where they lie.

        Args:
            slots: int64, different ones; they may not change while it is used.
        """
        return optim.Rows(self.blocks, self.width, slots)

    def read_run(self, first: int, out: Array) -> None:
        """Copy neighbouring rows out, from slot `first` on."""
        stop = first + out.size // self.width
        for begin, end in self.spans(first, stop, stop - first):
            out[(begin - first) * self.width : (end - first) * self.width] = self.view(begin, end)

    def write_run(self, first: int, rows: Array) -> None:
        """Copy neighbouring rows in, from slot `first` on."""
        stop = first + rows.size // self.width
        for begin, end in self.spans(first, stop, stop - first):
            part = rows[(begin - first) * self.width : (end - first) * self.width]
            self.view(begin, end)[:] = part

    def spans(self, first: int, stop: int, most: int) -> Iterator[tuple[int, int]]:
        """Cut the slots first..stop-1 into runs of at most `most` rows, each within one block."""
        while first < stop:
            end = min(stop, first + most, (first // self.rows_per_block + 1) * self.rows_per_block)
            yield first, end
            first = end

    def view(self, first: int, stop: int) -> Array:
        """Return the rows of slots first..stop-1, which lie in one block, where they lie."""
        number, within = divmod(first, self.rows_per_block)
        begin = within * self.width
        return self.blocks[number][begin : begin + (stop - first) * self.width]
