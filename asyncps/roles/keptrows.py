"""What is kept of rows, as it is carried and saved: the rows, and beside them which they are.

Both are float32, as for dense keys, whose residual and extra they stand for. An id is three numbers
of 21 bits, which float32 holds exactly. What a worker gets of several ranks comes one behind the
other, and it adds what is of the same row.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from asyncps.errors import CheckpointError
from asyncps.protocol.messages import Key, KeySpec
from asyncps.tensor.checkpoint import Reader
from asyncps.tensor.codecs import Floats
from asyncps.tensor.rowsparse import Ids
from asyncps.tensor.safefile import Slot
from asyncps_ext import sparse

_BITS, _PARTS = 21, 3
_MOST = (1 << _BITS) - 1
_ROWS = 1 << 16  # ids that are looked at at once


def split_ids(ids: Ids) -> Floats:
    """Return ids as they are saved: float32[3 * ids.size], the low bits of each first."""
    parts = np.empty((ids.size, _PARTS), np.float32)
    for place in range(_PARTS):
        parts[:, place] = (ids >> (_BITS * place)) & _MOST
    return parts.reshape(-1)


def join_ids(parts: Floats) -> Ids:
    """Return what `split_ids` was given; of numbers that it never returns, -1."""
    found = parts.reshape(-1, _PARTS)
    good = ((found >= 0) & (found <= _MOST) & (found == np.floor(found))).all(axis=1)
    ids: Ids = np.zeros(len(found), np.int64)
    for place in range(_PARTS):
        part: npt.NDArray[np.float32] = np.where(good, found[:, place], 0)
        ids |= part.astype(np.int64) << (_BITS * place)
    ids[~good] = -1
    return ids


def width_of(spec: KeySpec) -> int:
    """Return the elements of a row; 0 of a dense key."""
    if spec.rows is None:
        return 0
    return math.prod(spec.shape[1:])


def summed(ids: Ids, rests: Floats, width: int) -> tuple[Ids, Floats]:
    """Return rows of several ranks with each row once, ascending; what came twice is added.

    A sum that is too large is the largest number.
    """
    if sparse.check_ids(ids, 1 << 62) < 0:
        return ids, rests
    once, total = sparse.sum_duplicates(ids, rests, width)
    return once, np.nan_to_num(total, copy=False)


def compare(
    key: Key, spec: KeySpec, residuals: Mapping[int, Slot], extras: Mapping[int, Slot]
) -> None:
    """Compare what is kept of a table with its key as it will be, by shapes.

    Raises:
        CheckpointError: It does not fit.
    """
    width = width_of(spec)
    for rank in residuals.keys() | extras.keys():
        sizes = [slot.entry.shape[0] if slot else 0
                 for slot in (residuals.get(rank), extras.get(rank))]
        number, rest = divmod(sizes[0], width)
        if rest or sizes[1] != _PARTS * number or not 0 < number <= spec.shape[0]:
            raise CheckpointError("what was not sent does not fit its row-sparse key", key=key,
                                  rank=rank, got=sizes,
                                  expected=f"{width} and {_PARTS} elements for each row")


def check_ids(reader: Reader, key: Key, rank: int, slot: Slot, rows: int) -> None:
    """Read which rows a rank had kept. A thread for files.

    Raises:
        CheckpointError: They are out of order, or not in the table.
    """
    last = -1
    for begin in range(0, slot.entry.nbytes, _ROWS * _PARTS * 4):
        parts = np.empty(min(_ROWS * _PARTS, (slot.entry.nbytes - begin) // 4), np.float32)
        reader.read_kept(key, rank, True, begin, parts.view(np.uint8).data)
        ids = join_ids(parts)
        if ids[0] <= last or sparse.check_ids(ids, rows) >= 0:
            raise CheckpointError("what was not sent is of rows that are out of order or range",
                                  key=key, rank=rank, expected=f"ascending, 0 to {rows - 1}")
        last = int(ids[-1])
