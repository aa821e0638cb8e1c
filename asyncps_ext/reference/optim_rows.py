"""Rows of a table in the place of arrays: a step updates them where they lie."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from asyncps_ext.reference import sparse
from asyncps_ext.reference.checks import SUMS, Array, check_apart, check_array, check_dtype

__all__ = ["Rows", "takes_rows"]

Step = TypeVar("Step", bound=Callable[..., None])


class Rows:
    """Rows of a table by slot, for `out` and `w` of a step, or for its state.

    A step takes them with a gradient of as many rows: out must be w then, and each state rows of a
    table of its own, as long or longer, with the same slots, the same array, and the same width.
    The result is what the step makes of the rows copied together. Blocks of different tables share
    no memory (only the first ones are looked at), and slots do not repeat: else the result is
    undefined.

    Args:
        blocks: The table, see `sparse`; one block or more of a dtype that sums know, written.
        width: Elements of a row, at least 1.
        slots: int64. They are copied; of the blocks none may be exchanged while this is used.

    Attributes:
        size: Elements of all rows.
        dtype: Of the blocks.

    Raises:
        IndexError: A slot is outside of the table.
        ValueError, TypeError: Lengths or dtypes do not fit.
    """

    def __init__(self, blocks: list[Array], width: int, slots: NDArray[np.int64]) -> None:
        check_array(slots, "slots")
        check_dtype(slots, "slots", "int64")
        if width < 1:
            raise ValueError(f"width must be at least 1, not {width}")
        if not isinstance(blocks, list):
            raise TypeError(f"blocks must be a list, not {type(blocks).__name__}")
        if not blocks:
            raise ValueError("a table without blocks has no rows to update")
        check_array(blocks[0], "block", written=True)
        check_dtype(blocks[0], "block 0", *SUMS)
        self.dtype = blocks[0].dtype
        self.blocks, self.width, self.slots = list(blocks), width, slots
        self.own = slots.copy()
        self.size = slots.size * width
        # Written as they were read: which checks the slots, and that all blocks can be written.
        self.write(self.copied())
        self.rows = blocks[0].size // width * len(blocks)

    def copied(self) -> Array:
        """Return the rows side by side."""
        rows = np.empty(self.size, self.dtype)
        sparse.gather_rows_at(self.blocks, self.width, self.own, rows)
        return rows

    def write(self, rows: Array) -> None:
        """Write rows that lie side by side to their places."""
        sparse.scatter_set_at(self.blocks, self.width, self.own, rows)


def takes_rows(step: Step) -> Step:
    """Let a step take `Rows`: what is written in `Rows` is its specification."""

    @wraps(step)
    def taking(out: Any, w: Any, g: Any, *rest: Any, **named: Any) -> None:
        if not isinstance(w, Rows):
            step(out, w, g, *rest, **named)
            return
        if out is not w:
            raise ValueError("out must be w, when it is rows of a table")
        check_array(g, "g")
        seen = [w]
        for value in (*rest, *named.values()):
            if isinstance(value, np.ndarray):
                raise TypeError("a state must be rows of a table, as w is, not ndarray")
            if isinstance(value, Rows):
                _check_state(value, seen)
        for rows in seen:
            for block in rows.blocks:
                check_apart(block, "block", g, "g")
        copies = {id(rows): rows.copied() for rows in seen}
        copy = copies[id(w)]
        step(copy, copy, g, *(copies.get(id(value), value) for value in rest),
             **{name: copies.get(id(value), value) for name, value in named.items()})
        for rows in seen:
            rows.write(copies[id(rows)])

    return cast(Step, taking)


def _check_state(state: Rows, seen: list[Rows]) -> None:
    w = seen[0]
    if state.slots is not w.slots or state.width != w.width:
        raise ValueError("a state must be rows of the slots and the width of w")
    if state.rows < w.rows:
        raise ValueError(f"a state has {state.rows} rows, expected the {w.rows} of w")
    for other in seen:
        check_apart(state.blocks[0], "block", other.blocks[0], "block")
    seen.append(state)
