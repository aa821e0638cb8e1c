"""Rows of tables by number, and sums of sparse rows, in plain NumPy.

A table is a list of *blocks*, arrays of one dtype that hold whole rows of `width` elements, so that
it grows without being copied: one block of any number of rows, or several of 2**k rows each. Row
number s, its *slot*, lies in block s // 2**k. float16 and bfloat16 rows are copied as uint16; to be
summed they are widened to float32 first (`reduce.widen_f16`).
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from asyncps_ext.reference.checks import SUMS, Array, check_apart, check_array, check_dtype

__all__ = [
    "check_ids",
    "gather_rows_at",
    "merge_rows",
    "scatter_add_at",
    "scatter_set_at",
    "sum_duplicates",
    "sum_groups",
    "unique_rows",
]

Ids = NDArray[np.int64]


def check_ids(ids: Array, limit: int) -> int:
    """Look for the first id that breaks the order of row ids.

    Args:
        ids: int64 or uint32, any length.
        limit: How many rows there are.

    Returns:
        -1 when ids ascend strictly within 0..limit-1, else the index of the first that does not.
    """
    check_array(ids, "ids")
    check_dtype(ids, "ids", "int64", "uint32")
    if ids.size == 0:
        return -1
    bad = (ids < 0) | (ids >= limit)
    bad[1:] |= ids[1:] <= ids[:-1]
    first = int(bad.argmax())
    return first if bad[first] else -1


def unique_rows(ids: Ids) -> tuple[Ids, Ids]:
    """Return the unique ids, ascending, and the place of each id among them (any int64)."""
    check_array(ids, "ids")
    check_dtype(ids, "ids", "int64")
    unique, inverse = np.unique(ids, return_inverse=True)
    return unique, inverse.reshape(-1).astype(np.int64, copy=False)


def gather_rows_at(blocks: list[Array], width: int, slots: Ids, out: Array) -> None:
    """out[i] = row slots[i] of the table, for any dtype without Python objects.

    Args:
        blocks: The table, see the head of this module.
        width: Elements of a row, at least 1.
        slots: int64, in any order, also repeated.
        out: As many rows as slots, written; the dtype of the blocks.

    Raises:
        IndexError: A slot is outside of the table. Nothing has been written then.
        ValueError, TypeError: Lengths or dtypes do not fit.
    """
    _check_table(blocks, width, slots, out, "out", written=False)
    rows = out.reshape(-1, width)
    for block, chosen, within in _by_block(blocks, width, slots):
        rows[chosen] = block[within]


def scatter_set_at(blocks: list[Array], width: int, slots: Ids, rows: Array) -> None:
    """Row slots[i] of the table = rows[i]; of a slot that comes twice the last one counts.

    Arguments as for `gather_rows_at`, but the blocks are written and the rows are read.
    """
    _check_table(blocks, width, slots, rows, "rows", written=True)
    for block, chosen, within in _by_block(blocks, width, slots):
        block[within] = rows.reshape(-1, width)[chosen]


def scatter_add_at(blocks: list[Array], width: int, slots: Ids, rows: Array) -> None:
    """Row slots[i] of the table += rows[i], one after another. Integers wrap.

    Arguments as for `scatter_set_at`; float32, float64, int8, uint8, int32 or int64.
    """
    check_array(rows, "rows")
    check_dtype(rows, "rows", *SUMS)
    _check_table(blocks, width, slots, rows, "rows", written=True)
    with np.errstate(all="ignore"):
        for block, chosen, within in _by_block(blocks, width, slots):
            np.add.at(block, within, rows.reshape(-1, width)[chosen])


def merge_rows(
    ids_a: Ids, a: Array, ids_b: Ids, b: Array, width: int, ids: Ids, out: Array
) -> int:
    """Add two sparse arrays of rows; a row of both is a + b. Integers wrap.

    Args:
        ids_a, ids_b: int64, strictly ascending (see `check_ids`; else the result is undefined).
        a, b: Rows of `width` elements; float32, float64, int8, uint8, int32 or int64.
        width: Elements of a row, at least 1.
        ids: int64, room for len(ids_a) + len(ids_b), written.
        out: Room for as many rows, written.

    Returns:
        How many rows the sum has; what lies behind them in ids and out is undefined.
    """
    for array, name in ((ids_a, "ids_a"), (ids_b, "ids_b"), (a, "a"), (b, "b")):
        check_array(array, name)
    check_array(ids, "ids", written=True)
    check_array(out, "out", written=True)
    for array, name in ((ids_a, "ids_a"), (ids_b, "ids_b"), (ids, "ids")):
        check_dtype(array, name, "int64")
    check_dtype(a, "a", *SUMS)
    check_dtype(b, "b", a.dtype.name)
    check_dtype(out, "out", a.dtype.name)
    _check_rows(a, "a", ids_a.size, width)
    _check_rows(b, "b", ids_b.size, width)
    room = ids_a.size + ids_b.size
    if ids.size != room:
        raise ValueError(f"ids has {ids.size} elements, expected {room}")
    _check_rows(out, "out", room, width)
    check_apart(ids, "ids", out, "out")
    for array, name in ((ids_a, "ids_a"), (ids_b, "ids_b"), (a, "a"), (b, "b")):
        check_apart(ids, "ids", array, name)
        check_apart(out, "out", array, name)
    union = np.union1d(ids_a, ids_b)
    ids[: union.size] = union
    rows = out.reshape(-1, width)
    at_a, at_b = np.searchsorted(union, ids_a), np.searchsorted(union, ids_b)
    rows[at_b] = b.reshape(-1, width)
    is_both = np.isin(ids_a, ids_b)
    kept = rows[at_a[is_both]]
    rows[at_a] = a.reshape(-1, width)
    with np.errstate(all="ignore"):
        rows[at_a[is_both]] += kept
    return int(union.size)


def sum_groups(groups: Ids, rows: Array, width: int, out: Array) -> None:
    """out[j] = the sum of all rows[i] with groups[i] == j, in their order; 0 where there is none.

    Args:
        groups: int64, which row of out each row belongs to.
        rows: As many rows of `width` elements; float32, float64, int8, uint8, int32 or int64.
        width: Elements of a row, at least 1.
        out: Rows of the same dtype, written.

    Raises:
        IndexError: A group is outside of out. Nothing has been written then.
    """
    check_array(groups, "groups")
    check_dtype(groups, "groups", "int64")
    check_array(rows, "rows")
    check_array(out, "out", written=True)
    check_dtype(rows, "rows", *SUMS)
    check_dtype(out, "out", rows.dtype.name)
    _check_rows(rows, "rows", groups.size, width)
    many = out.size // width
    _check_rows(out, "out", many, width)
    check_apart(out, "out", rows, "rows")
    check_apart(out, "out", groups, "groups")
    outside = np.flatnonzero((groups < 0) | (groups >= many))
    if outside.size:
        raise IndexError(
            f"group {groups[outside[0]]} at {outside[0]} is outside of the {many} rows"
        )
    sums, parts = out.reshape(-1, width), rows.reshape(-1, width)
    out[:] = 0
    # The first row of a group is copied, not added to 0: -0.0 stays what it is.
    _, first = np.unique(groups, return_index=True)
    sums[groups[first]] = parts[first]
    is_later = np.ones(groups.size, bool)
    is_later[first] = False
    with np.errstate(all="ignore"):
        np.add.at(sums, groups[is_later], parts[is_later])


def sum_duplicates(ids: Ids, rows: Array, width: int) -> tuple[Ids, Array]:
    """Return the unique ids, ascending, and for each the sum of its rows in their order."""
    unique, inverse = unique_rows(ids)
    check_array(rows, "rows")
    _check_rows(rows, "rows", ids.size, width)
    out = np.empty(unique.size * width, rows.dtype)
    sum_groups(inverse, rows, width, out)
    return unique, out


def _check_rows(rows: Array, name: str, n: int, width: int) -> None:
    if width < 1:
        raise ValueError(f"width must be at least 1, not {width}")
    if rows.size != n * width:
        raise ValueError(f"{name} has {rows.size} elements, expected {n} rows of {width}")


def _check_table(
    blocks: list[Array], width: int, slots: Ids, rows: Array, name: str, *, written: bool
) -> None:
    check_array(slots, "slots")
    check_dtype(slots, "slots", "int64")
    check_array(rows, name, written=not written)
    _check_rows(rows, name, slots.size, width)
    if rows.dtype.hasobject:
        raise TypeError(f"{name} must hold plain bytes, not {rows.dtype}")
    if not isinstance(blocks, list):
        raise TypeError(f"blocks must be a list, not {type(blocks).__name__}")
    each = 0
    for i, block in enumerate(blocks):
        check_array(block, "block", written=written)
        if block.dtype != rows.dtype:
            raise TypeError(f"block {i} must be {rows.dtype}, not {block.dtype}")
        check_apart(block, "block", rows, name)
        check_apart(block, "block", slots, "slots")
        each = each if i else block.size // width
        if block.size != each * width:
            raise ValueError(f"block {i} has {block.size} elements, expected rows of {width}, "
                             f"{each} in every block")
    if len(blocks) > 1 and (each < 1 or each & (each - 1)):
        raise ValueError(f"a block has {each} rows, expected a power of two")
    if not written:
        check_apart(rows, name, slots, "slots")
    total = each * len(blocks)
    outside = np.flatnonzero((slots < 0) | (slots >= total))
    if outside.size:
        raise IndexError(f"slot {slots[outside[0]]} at {outside[0]} is outside of the {total} rows")


def _by_block(
    blocks: list[Array], width: int, slots: Ids
) -> Iterator[tuple[Array, Ids, Ids]]:
    """For each block its rows, which of the slots lie in it, and where in it."""
    each = blocks[0].size // width if blocks else 1
    number = slots // each if each else slots
    for i, block in enumerate(blocks):
        chosen = np.flatnonzero(number == i)
        if chosen.size:
            yield block.reshape(-1, width), chosen, slots[chosen] - i * each
