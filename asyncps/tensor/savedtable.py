"""Rows of row-sparse tables on their way to a checkpoint and back.

A table is saved as the rows that have been made: their ids, values and state. All others are what
the initializer says, so they need no place on disk, and a table larger than any memory saves as
large as it is used. The servers of one key keep neighbouring ids, so what they hand in, one behind
the other, is ascending; at loading each takes the ids that are its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import msgspec
import numpy as np

from asyncps.errors import AsyncPSError, CheckpointError, DtypeMismatch, ShapeMismatch
from asyncps.initializer import Initializer
from asyncps.tensor import dtypes, firstrows
from asyncps.tensor.dtypes import Array, Dtype
from asyncps.tensor.rowsparse import checked_shape
from asyncps.tensor.safefile import Entry
from asyncps.tensor.words import MASTER

Key = int | str

# Parts of a label in the file.
ROWS, VALUES, STATE_PREFIX = "rows", "values", "state."

# Rows that are copied out of a table at once.
PIECE_BYTES = 4 << 20


class SavableTable(Protocol):
    """What a server's part of a table offers to whoever saves and loads it.

    `asyncps.tensor.table.Table` does. Ids are int64 and ascending, of the whole table; rows are
    flat arrays, values of `dtype.bits` and state of `dtype.sum`.
    """

    key: Key
    shape: tuple[int, ...]
    dtype: Dtype
    initializer: Initializer
    first: int
    stop: int

    @property
    def state_names(self) -> tuple[str, ...]:
        """Names of the arrays of state that there are."""

    def used_ids(self) -> Array:
        """Return the ids of all rows that have been made."""

    def gather(self, ids: Array, out: Array) -> None:
        """Copy values of rows out."""

    def gather_state(self, name: str, ids: Array, out: Array) -> None:
        """Copy state of rows out."""

    def assign(self, ids: Array, stored: Array) -> None:
        """Let rows be these values."""

    def assign_state(self, name: str, ids: Array, rows: Array) -> None:
        """Let state of rows be this."""


@dataclass(frozen=True)
class TableWords:
    """What a table is.

    Attributes:
        shape: (rows, *row_shape) of the whole table.
        dtype: Of its values.
        initializer: What rows are before their first update, as `init` said.
        rest: What rows that are not saved are by now, if not that: a round without an optimizer
            lets them be zero.
    """

    shape: tuple[int, ...]
    dtype: str
    initializer: Initializer
    rest: Initializer | None = None

    @property
    def others(self) -> Initializer:
        """What the rows are that are not saved."""
        return self.initializer if self.rest is None else self.rest

    def plain(self) -> dict[str, Any]:
        """Return it as JSON can say it."""
        told = {"shape": list(self.shape), "dtype": self.dtype,
                "initializer": msgspec.to_builtins(self.initializer)}
        if self.rest is not None:
            told["rest"] = msgspec.to_builtins(self.rest)
        return told

    @staticmethod
    def of(told: object, place: object) -> TableWords:
        """Return what a file says.

        Raises:
            CheckpointError: It says something else.
        """
        try:
            words = msgspec.convert(told, _Told)
            dtype = dtypes.by_name(words.dtype)
            if 0 in checked_shape(words.shape)[1:]:
                raise ShapeMismatch("rows that are empty", got=words.shape)
            firstrows.check_usable(words.initializer, dtype)
            firstrows.check_usable(words.rest or words.initializer, dtype)
        except (msgspec.ValidationError, AsyncPSError) as error:
            raise CheckpointError(f"a table that cannot be read: {error}", got=place) from None
        return TableWords(words.shape, words.dtype, words.initializer, words.rest)

    def entries(
        self, count: int, state: Mapping[str, str], *, values: bool = True
    ) -> dict[str, Entry]:
        """Return the arrays of so many rows with state of these names and dtypes."""
        rows = (count, *self.shape[1:])
        return {
            ROWS: Entry("int64", (count,)),
            **({VALUES: Entry(self.dtype, rows)} if values else {}),
            **{STATE_PREFIX + name: Entry(dtype, rows) for name, dtype in state.items()},
        }

    def check_parts(self, parts: Mapping[str, Entry], key: Key) -> None:
        """Refuse arrays that are no rows of this table.

        Raises:
            CheckpointError: One is missing, foreign, or of another shape.
        """
        rows = parts.get(ROWS, Entry("", (0,)))
        state = {part.removeprefix(STATE_PREFIX): entry.dtype for part, entry in parts.items()
                 if part.startswith(STATE_PREFIX)}
        expected = self.entries(rows.shape[0] if rows.shape else 0, state,
                                values=VALUES in parts)
        if parts != expected:
            raise CheckpointError("rows that do not fit their table", key=key, expected=expected,
                                  got=dict(parts))

    def check_like(
        self, key: Key, shape: tuple[int, ...], dtype: str, initializer: Initializer
    ) -> None:
        """Refuse a checkpoint for a table that is there and is different.

        Raises:
            ShapeMismatch, DtypeMismatch, CheckpointError: In this; the last for first values.
        """
        if self.shape != shape:
            raise ShapeMismatch("a checkpoint with another shape of this key", key=key,
                                expected=shape, got=self.shape)
        if self.dtype != dtype:
            raise DtypeMismatch("a checkpoint with another dtype of this key", key=key,
                                expected=dtype, got=self.dtype)
        if self.initializer != initializer:
            raise CheckpointError("a checkpoint with other first rows of this key", key=key,
                                  expected=initializer, got=self.initializer)

    def check_state(self, key: Key, parts: Mapping[str, Entry], *, optimizer: bool) -> None:
        """Refuse state of another dtype, or that nobody would use.

        Raises:
            CheckpointError: It says why.
        """
        dtype = dtypes.by_name(self.dtype).sum.name
        for name, entry in parts.items():
            if not name.startswith(STATE_PREFIX):
                continue
            if not optimizer and name != STATE_PREFIX + MASTER:
                raise CheckpointError("what an optimizer keeps, without an optimizer", key=key)
            if entry.dtype != dtype:
                raise CheckpointError(f"{name} does not fit its table", key=key, expected=dtype,
                                      got=entry.dtype)

    def check_ids(self, key: Key, ids: Array, last: int = -1) -> int:
        """Refuse ids that are none of this table's, or do not ascend.

        Args:
            key: Of the table.
            ids: int64, some of them.
            last: The one before these.

        Returns:
            The last of these.
        """
        if not ids.size:
            return last
        if ids[0] <= last or ids[-1] >= self.shape[0] or (ids[1:] <= ids[:-1]).any():
            raise CheckpointError("rows that are out of order or range", key=key,
                                  expected=f"ascending, 0 to {self.shape[0] - 1}")
        return int(ids[-1])


class _Told(msgspec.Struct):
    shape: tuple[int, ...]
    dtype: str
    initializer: Initializer
    rest: Initializer | None = None


@dataclass(frozen=True)
class SavedRows:
    """Rows of one table: those of one server, or of all.

    Attributes:
        words: What the table is.
        rows: int64[k], ascending.
        values: [k, *row_shape] of the table's dtype; no rows where `bare`.
        state: Arrays by name, [k, *row_shape].
        bare: There is only what the optimizer keeps.
    """

    words: TableWords
    rows: Array
    values: Array
    state: dict[str, Array] = field(default_factory=dict)
    bare: bool = False

    def arrays(self) -> dict[str, Array]:
        """Return the arrays by their part of a label."""
        return {ROWS: self.rows, **({} if self.bare else {VALUES: self.values}),
                **{STATE_PREFIX + name: array for name, array in self.state.items()}}


def words_of(table: SavableTable) -> TableWords:
    """Return what a table is."""
    return TableWords(tuple(table.shape), table.dtype.name, table.initializer)


def pieces_of(table: SavableTable, piece_bytes: int = PIECE_BYTES) -> Iterator[SavedRows]:
    """Yield the rows that one server has made, some at a time, ids ascending: new memory."""
    words, ids = words_of(table), table.used_ids()
    width = int(np.prod(words.shape[1:], dtype=np.int64))
    many = max(1, piece_bytes // (width * table.dtype.sum.itemsize))
    dtype = dtypes.numpy_dtype(words.dtype)
    for begin in range(0, ids.size, many):
        part = ids[begin : begin + many]
        shape = (part.size, *words.shape[1:])
        values = np.empty(part.size * width, table.dtype.bits)
        table.gather(part, values)
        state = {}
        for name in table.state_names:
            state[name] = np.empty(part.size * width, table.dtype.sum)
            table.gather_state(name, part, state[name])
        yield SavedRows(words, part, values.view(dtype).reshape(shape),
                        {name: array.reshape(shape) for name, array in state.items()})


def rows_of(tables: Sequence[SavableTable]) -> SavedRows:
    """Return all rows that the servers of one key have made; tables in the order of their ids."""
    words = words_of(tables[0])
    names = sorted({name for table in tables for name in table.state_names})
    sums = tables[0].dtype.sum
    pieces = [piece for table in tables for piece in pieces_of(table)]
    if not pieces:
        empty = (0, *words.shape[1:])
        return SavedRows(words, np.empty(0, np.int64),
                         np.empty(empty, dtypes.numpy_dtype(words.dtype)),
                         {name: np.empty(empty, sums) for name in names})
    return SavedRows(
        words, np.concatenate([piece.rows for piece in pieces]),
        np.concatenate([piece.values for piece in pieces]),
        {name: np.concatenate([
            piece.state.get(name, np.zeros(piece.values.shape, sums)) for piece in pieces
        ]) for name in names},
    )


def give_rows(table: SavableTable, saved: SavedRows) -> None:
    """Let a server's part of a table have those of the saved rows that are its own.

    Raises:
        ShapeMismatch, DtypeMismatch: They are another table's; nothing has changed.
    """
    if table.shape != saved.words.shape:
        raise ShapeMismatch("rows of a table of another shape", key=table.key,
                            expected=table.shape, got=saved.words.shape)
    if table.dtype.name != saved.words.dtype:
        raise DtypeMismatch("rows of a table of another dtype", key=table.key,
                            expected=table.dtype.name, got=saved.words.dtype)
    begin, end = np.searchsorted(saved.rows, (table.first, table.stop))
    ids = saved.rows[begin:end]
    if not saved.bare:
        table.assign(ids, np.ascontiguousarray(saved.values[begin:end]).reshape(-1)
                     .view(table.dtype.bits))
    for name, array in saved.state.items():
        table.assign_state(name, ids, np.ascontiguousarray(array[begin:end]).reshape(-1))
