"""How row ids of a table travel: a head, and the ids unless they are neighbours.

A contribution to a table is this and then the rows; a request for rows is this alone, in the table
of its frame. All numbers are little-endian; ids are those of the whole table, strictly ascending.

    0   i64  bytes of an id: 4 or 8, or 0 when the rows are neighbours
    8   i64  the first row of neighbours, else 0
    16  i64  how many rows
    24       the ids, then zeros up to a multiple of 8
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from asyncps.errors import RemoteProtocolError
from asyncps_ext import sparse

Ids = npt.NDArray[np.int64]

_HEAD = struct.Struct("<qqq")
HEAD_BYTES = _HEAD.size

# Below so many rows of a table every id fits into a u32.
NARROW_ROWS = 1 << 32

check_ids: Callable[..., int] = sparse.check_ids


class Named(NamedTuple):
    """Rows as a frame names them.

    Attributes:
        first: The first of neighbours; -1 when `ids` tells.
        number: How many.
        ids: u32 or i64, in the frame's memory; None for neighbours.
        size: Bytes of all this; what follows are the rows.
    """

    first: int
    number: int
    ids: npt.NDArray[np.uint32] | Ids | None
    size: int

    def to_ids(self) -> Ids:
        """Return the ids as int64, in memory of their own."""
        if self.ids is None:
            return np.arange(self.first, self.first + self.number, dtype=np.int64)
        return self.ids.astype(np.int64)

    def is_inside(self, first: int, stop: int) -> bool:
        """Tell whether the ids ascend without repeats and lie in first..stop-1."""
        if self.ids is None:
            return self.number == 0 or first <= self.first <= stop - self.number
        return check_ids(self.ids, stop) < 0 and int(self.ids[0]) >= first


def pack(ids: Ids, table_rows: int) -> bytes:
    """Return rows as they travel.

    Args:
        ids: int64[n], strictly ascending.
        table_rows: Rows of the whole table.
    """
    count = ids.size
    if count == 0:
        return _HEAD.pack(0, 0, 0)
    first = int(ids[0])
    if int(ids[-1]) - first == count - 1:
        return _HEAD.pack(0, first, count)
    width = 4 if table_rows < NARROW_ROWS else 8
    size = HEAD_BYTES + count * width
    packed = bytearray(-(-size // 8) * 8)
    _HEAD.pack_into(packed, 0, width, 0, count)
    np.frombuffer(packed, f"<u{width}", count, HEAD_BYTES)[:] = ids
    return bytes(packed)


def parse(data: memoryview) -> Named:
    """Read what `pack` wrote, at the beginning of `data`; ids are not looked at.

    Raises:
        RemoteProtocolError: It cannot be that.
    """
    if len(data) < HEAD_BYTES:
        raise RemoteProtocolError("rows without a head", expected=f"{HEAD_BYTES} bytes",
                                  got=len(data))
    width, first, count = _HEAD.unpack_from(data)
    if width not in (0, 4, 8) or first < 0 or count < 0 or first + count >= 1 << 63 or (
        width and (first or not count)
    ):
        raise RemoteProtocolError("rows with an impossible head", got=(width, first, count))
    size = -(-(HEAD_BYTES + count * width) // 8) * 8
    if size > len(data):
        raise RemoteProtocolError("rows that are cut off", expected=size, got=len(data))
    if not width:
        return Named(first, count, None, HEAD_BYTES)
    ids = np.frombuffer(data, "<u4" if width == 4 else "<i8", count, HEAD_BYTES)
    return Named(-1, count, ids if ids.flags.aligned else ids.copy(), size)
