"""Row-sparse keys of a store of one process: a table each, without rounds to wait for."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from typing import Any

import numpy as np

from asyncps import optim
from asyncps.errors import (
    CheckpointError,
    ConfigError,
    Disagreement,
    DtypeMismatch,
    TensorError,
    UnknownKey,
)
from asyncps.localvalues import alone
from asyncps.roles.tableunit import check_optimizer
from asyncps.state.tables import check_spec
from asyncps.tablevalues import (
    INITIALIZERS,
    check_like,
    first_rows,
    merged_rows,
    out_rows,
    unique_ids,
)
from asyncps.tensor import dtypes, updates
from asyncps.tensor.checkpoint import Checkpoint
from asyncps.tensor.checkpointmeta import clocks_of
from asyncps.tensor.rowsparse import RowSparse
from asyncps.tensor.safefile import entry_of
from asyncps.tensor.savedtable import SavedRows, TableWords, give_rows, rows_of
from asyncps.tensor.table import Step, Table
from asyncps.values import Key, as_keys, as_values, check_apart


class LocalTable:
    """One row-sparse key.

    Args:
        key: Its name.
        value: What makes it: an initializer or a RowSparse.
        shape, dtype: Of the table, with an initializer.

    Attributes:
        table: The rows.
        updates: How many updates it has had.
    """

    def __init__(self, key: Key, value: Any, shape: Any, dtype: Any) -> None:
        self.spec, first = first_rows(key, value, shape, dtype)
        check_spec(self.spec)
        self.key = key
        self.shape = tuple(self.spec.shape)
        self.dtype = dtypes.numpy_dtype(self.spec.dtype)
        self.table = Table(key, self.shape, dtypes.by_name(self.spec.dtype), self.spec.rows)
        self.updates = 0
        if first is not None:
            self.table.assign(first[0], np.frombuffer(first[1], self.table.dtype.bits))

    def checked(self, value: Any) -> RowSparse:
        """Return a value of this key, the sum of several devices', if it is one."""
        found = merged_rows(value, self.key)
        check_like(found, self.key, self.shape, self.dtype)
        return found

    def push(
        self, rows: RowSparse, optimizer: type[optim.Optimizer] | None, hyper: Mapping[str, Any],
        multi_precision: bool,
    ) -> None:
        """Apply one round of one worker."""
        dtype = self.table.dtype
        sums = rows.values.reshape(-1).view(dtype.bits)
        if dtype.widen is not None or optimizer is not None:  # a step uses its gradient up
            sums = dtype.widened(sums)
        if optimizer is None:
            self.table.apply(rows.rows, sums, None)
            return
        self.table.apply(rows.rows, sums, Step(
            optimizer.name, hyper, self.updates + 1, hyper.get("lazy_update", True),
            multi_precision,
        ))
        self.updates += 1

    def saved(self, *, weights: bool) -> SavedRows:
        """Return all rows for a checkpoint, or only what the optimizer keeps for them."""
        assert self.spec.rows is not None
        found, now = rows_of([self.table]), self.table.initializer
        words = TableWords(self.shape, self.spec.dtype, self.spec.rows,
                           None if now == self.spec.rows else now)
        return SavedRows(words, found.rows, found.values if weights else found.values[:0],
                         found.state, not weights)

    def take(self, saved: SavedRows, updates: int, *, weights: bool) -> None:
        """Let rows be those of a checkpoint that fits, and no others; or their state."""
        if weights:
            self.table.reset(saved.words.others)
        else:
            self.table.forget_state()
            saved = SavedRows(saved.words, saved.rows, saved.values[:0], saved.state, True)
        give_rows(self.table, saved)
        self.updates = updates

    def assign(self, rows: RowSparse) -> None:
        """Overwrite rows."""
        self.table.assign(rows.rows, rows.values.reshape(-1).view(self.table.dtype.bits))

    def pull(self, row_ids: Any, out: Any) -> RowSparse:
        """Return rows."""
        ids = unique_ids(row_ids, self.shape[0], self.key)
        array = out_rows(out, self.key, (ids.size, *self.shape[1:]), self.dtype)
        self.table.gather(ids, array.reshape(-1).view(self.table.dtype.bits))
        return RowSparse(ids, array, self.shape)


class LocalTables:
    """All row-sparse keys of a store."""

    def __init__(self) -> None:
        self.by_key: dict[Key, LocalTable] = {}

    def __contains__(self, key: object) -> bool:
        return key in self.by_key

    def made(
        self, key: Key, value: Any, shape: Any, dtype: Any, reduce: str, dense: Container[Key]
    ) -> LocalTable | None:
        """Return a new table if that is what a value of `init` makes.

        Args:
            key: Its name.
            value: Of `init`; of a list of device values the first.
            shape, dtype: Of a table that an initializer makes.
            reduce: The store's.
            dense: Keys that exist and are not row-sparse.

        Raises:
            Disagreement, ShapeMismatch, DtypeMismatch: The key exists as another one.
        """
        first = value[0] if isinstance(value, (list, tuple)) and value else value
        known = self.by_key.get(key)
        if not isinstance(first, (RowSparse, *INITIALIZERS)):
            if known is not None:
                raise Disagreement("key exists as another kind of key", key=key,
                                   expected=f"rows of {known.spec.rows}", got="a dense value")
            return None
        if key in dense:
            raise Disagreement("key exists as another kind of key", key=key,
                               expected="a dense value", got=first)
        table = LocalTable(key, first, shape, dtype)
        if reduce == "mean" and not table.table.dtype.is_float:
            raise DtypeMismatch("the mean of integers", key=key, expected="a float dtype",
                                got=table.dtype)
        if known is not None:
            check_like(table, key, known.shape, known.dtype)
            if known.spec.rows != table.spec.rows:
                raise Disagreement("key exists with other first rows", key=key,
                                   expected=known.spec.rows, got=table.spec.rows)
        return table

    def add(self, tables: Mapping[Key, LocalTable]) -> None:
        """Keep new tables; those that exist stay."""
        self.by_key = {**tables, **self.by_key}

    def pushpull(
        self, store: Any, keys: tuple[Key, ...], listed: bool, value: Any, out: Any
    ) -> Any:
        """Push rows, and return the same rows as they are then."""
        for key in keys:
            if key not in self.by_key:
                raise TensorError("pushpull of row-sparse keys beside dense ones", key=key,
                                  expected="a call of their own")
        given = as_values(len(keys), value, listed)
        rows = [self.find(key).checked(each) for key, each in zip(keys, given, strict=True)]
        outs = [None] * len(keys) if out is None else as_values(len(keys), out, listed)
        check_apart(keys, outs)
        store.push(list(keys), rows)
        found = [self.find(key).pull(each.rows, place)
                 for key, each, place in zip(keys, rows, outs, strict=True)]
        return found if listed else found[0]

    def refuse_updater(self, keys: Iterable[Key]) -> None:
        """Say that an updater of the user's own knows no rows.

        Raises:
            ConfigError: One of the keys is row-sparse.
        """
        for key in keys:
            if key in self.by_key:
                raise ConfigError(f"an updater and the row-sparse key {key!r}",
                                  expected="set_optimizer")

    def find(self, key: Key) -> LocalTable:
        """Return a row-sparse key.

        Raises:
            UnknownKey: There is none of that name.
        """
        found = self.by_key.get(key)
        if found is None:
            raise UnknownKey("no row-sparse key of that name", key=key)
        return found

    def forget(self) -> None:
        """Drop what an optimizer has kept."""
        for each in self.by_key.values():
            each.table.forget_state()
            each.updates = 0

    def check_usable(self, key: Key, optimizer: type[optim.Optimizer], hyper: Any) -> None:
        """Refuse an optimizer that cannot work on the rows of a key.

        Raises:
            OptimizerError: It says why.
        """
        check_optimizer(optimizer.name)
        updates.check_usable(optimizer.name, self.find(key).table.dtype, hyper)

    def saved(self, *, weights: bool) -> dict[Key, SavedRows]:
        """Return all tables for a checkpoint, or only what the optimizer keeps for them."""
        return {key: each.saved(weights=weights) for key, each in self.by_key.items()}

    def clocks(self) -> list[list[Any]]:
        """Return how many updates each key has had, as a checkpoint tells it."""
        return [[key, each.updates] for key, each in self.by_key.items()]

    def compare(
        self, found: Checkpoint, dense: Container[Key], *, weights: bool
    ) -> dict[Key, LocalTable]:
        """Compare a checkpoint with these tables; nothing changes.

        Args:
            found: The checkpoint.
            dense: Keys of the store that are not row-sparse.
            weights: False for what the optimizer keeps alone.

        Returns:
            A table for each that the checkpoint has, new ones among them.

        Raises:
            CheckpointError: It lacks a key, or has one of another kind or with other first values.
            ShapeMismatch, DtypeMismatch: A key is different there.
        """
        clocks = clocks_of(found.meta)
        for key in found.weights if weights else ():
            if key in self.by_key:
                raise CheckpointError("a dense value of a row-sparse key", key=key)
        lacking = [key for key in self.by_key if key not in found.tables or key not in clocks]
        if lacking:
            raise CheckpointError("a checkpoint that lacks a key of this store", key=lacking[0])
        made = {}
        for key, saved in found.tables.items():
            words, known = saved.words, self.by_key.get(key)
            if known is None and (key in dense or not weights):
                raise CheckpointError("rows of a key that is not row-sparse here", key=key)
            if weights and saved.bare:
                raise CheckpointError("a checkpoint that lacks the values of this key", key=key)
            if key not in clocks:
                raise CheckpointError("a checkpoint that no store has written: no clock of a key",
                                      key=key)
            if known is None:
                known = LocalTable(key, words.initializer, words.shape,
                                   dtypes.numpy_dtype(words.dtype))
            assert known.spec.rows is not None
            words.check_like(key, known.shape, known.spec.dtype, known.spec.rows)
            words.check_ids(key, saved.rows)
            words.check_state(
                key, {part: entry_of(array) for part, array in saved.arrays().items()},
                optimizer=found.meta.get("optimizer") is not None)
            made[key] = known
        return made

    def take(
        self, found: Checkpoint, made: Mapping[Key, LocalTable], *, weights: bool
    ) -> None:
        """Take what was compared."""
        clocks = clocks_of(found.meta)
        for key, table in made.items():
            table.take(found.tables[key], clocks[key], weights=weights)
        self.by_key = dict(made)


class LocalRowVerbs:
    """The verbs of row-sparse keys, for a store of one process."""

    _tables: LocalTables
    _check_open: Any

    @alone
    def row_sparse_pull(
        self, key: Any, row_ids: Any, out: Any = None, priority: int = 0, async_op: bool = False
    ) -> Any:
        """As `KVStore.row_sparse_pull`."""
        self._check_open()
        keys, listed = as_keys(key)
        given = as_values(len(keys), row_ids, listed)
        outs = [None] * len(keys) if out is None else as_values(len(keys), out, listed)
        check_apart(keys, outs)
        found = [self._tables.find(name).pull(ids, place)
                 for name, ids, place in zip(keys, given, outs, strict=True)]
        result = found if listed else found[0]
        return LocalHandle(result) if async_op else result


class LocalHandle:
    """A verb that has ended already, with the face of a Handle."""

    def __init__(self, result: Any = None) -> None:
        self._result = result

    def wait(self, timeout: float | None = None) -> Any:
        """Return the result."""
        return self._result

    def done(self) -> bool:
        """Always True."""
        return True

    def exception(self) -> None:
        """Nothing went wrong, or the verb would have raised."""
