"""The form of a checkpoint on disk: one directory that is there whole, or not at all.

    weights.safetensors   values by key, readable by safetensors alone
    state.safetensors     what optimizers keep, as "key/name of the state"
    tables.safetensors    only if there are row-sparse tables: of each "key/rows" (int64, the rows
                          that were made, ascending), "key/values" and "key/state.name"
    residuals.safetensors only if something is: what compressed keys have not sent, as "key/rank",
                          and what their codecs keep beside it, as "key/rank.extra"
    checkpoint.json       which key is behind which name, what tables are like, and what the caller
                          says of itself

A string key is its own name. A number is its digits; where a string has that name already, or the
format has it reserved, a prefix is put before it: 5 and "5" stay two keys.

`Writer` and `Reader` take and give it piece by piece, for content that no memory need hold at once;
`write` and `read` do it whole.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from io import FileIO
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np

from asyncps.errors import CheckpointError
from asyncps.tensor import dtypes
from asyncps.tensor.checkpointmeta import (
    META,
    RESIDUALS,
    STATE,
    TABLES,
    WEIGHTS,
    kept_label,
    key_of,
    names_of,
    rank_of,
    read_meta,
    refuse_foreign,
    told,
)
from asyncps.tensor.checkpointwriter import FreshDirectory
from asyncps.tensor.dtypes import Array
from asyncps.tensor.safefile import (
    Entry,
    Slot,
    entry_of,
    layout,
    open_files,
    read_array,
    read_header,
    read_into,
)
from asyncps.tensor.savedtable import ROWS, STATE_PREFIX, VALUES, SavedRows, TableWords

Key = int | str
State = Mapping[Key, Mapping[str, Array]]

# In the writer's meta: there is a file of them.
KEPT = "residuals"


@dataclass(frozen=True)
class Item:
    """One array of a checkpoint: of a key, or of what an optimizer keeps for a key.

    Of a row-sparse key `table` tells what the whole of it is.
    """

    key: Key
    state: str | None
    dtype: str
    shape: tuple[int, ...]
    table: TableWords | None = None


@dataclass(frozen=True)
class Checkpoint:
    """What was read.

    Attributes:
        weights: Values by key.
        state: Arrays by key and name; keys without any are left out.
        meta: What the writer said, as plain data.
        tables: Rows of row-sparse tables by key.
    """

    weights: dict[Key, Array]
    state: dict[Key, dict[str, Array]]
    meta: dict[str, Any]
    tables: dict[Key, SavedRows] = field(default_factory=dict)


@dataclass(frozen=True)
class Contents:
    """What a checkpoint will hold: dtypes and shapes, without the arrays.

    Attributes:
        weights: Values by key.
        state: By key and name; a name holds no "/".
        tables: What each table is, and its arrays by their part of a label.
        residuals: Elements, float32, by key and rank; the writer's meta has `KEPT` then.
        extras: The same of what codecs keep beside.
    """

    weights: Mapping[Key, Entry]
    state: Mapping[Key, Mapping[str, Entry]]
    tables: Mapping[Key, tuple[TableWords, Mapping[str, Entry]]] = field(default_factory=dict)
    residuals: Mapping[Key, Mapping[int, int]] = field(default_factory=dict)
    extras: Mapping[Key, Mapping[int, int]] = field(default_factory=dict)


class Writer:
    """Writes a checkpoint piece by piece; `with` it, and call `finish` at the end.

    Args:
        directory: Its path; the folder above must exist. A checkpoint that stands there is replaced
            in one step.
        contents: What it will hold. What is not written is zero.
        meta: Plain data: what JSON can say, without NaN.

    Raises:
        CheckpointError: From every method: the disk is full, something else stands at the path, or
            what shall be written cannot be. What stood there before still does, or the new one
            whole.
    """

    def __init__(
        self, directory: str | os.PathLike[str], contents: Contents, meta: Mapping[str, Any]
    ) -> None:
        target = Path(os.path.abspath(directory))
        refuse_foreign(target)
        keys = contents.weights.keys() | contents.state.keys() | contents.tables.keys()
        self._names = names = names_of(set(keys))
        self._text = told(
            names, {key: words for key, (words, _) in contents.tables.items()}, meta
        )
        kept = {
            f"{names[key]}/{name}": entry for key, entries in contents.state.items()
            for name, entry in entries.items()
        }
        if any("/" in name for entries in contents.state.values() for name in entries):
            raise CheckpointError("a name of optimizer state with a slash", got=sorted(kept))
        self._entries = {
            WEIGHTS: {names[key]: entry for key, entry in contents.weights.items()}, STATE: kept,
        }
        if contents.tables:
            self._entries[TABLES] = {
                f"{names[key]}/{part}": entry for key, (_, parts) in contents.tables.items()
                for part, entry in parts.items()
            }
        if contents.residuals or contents.extras:
            self._entries[RESIDUALS] = {
                kept_label(names[key], rank, is_extra=is_extra): Entry("float32", (elements,))
                for is_extra, found in enumerate((contents.residuals, contents.extras))
                for key, ranks in found.items() for rank, elements in ranks.items()
            }
        self._slots: dict[str, dict[str, Slot]] = {}
        self._fresh = FreshDirectory(target)

    def __enter__(self) -> Self:
        self._fresh.__enter__()
        try:
            for file, entries in self._entries.items():
                head, self._slots[file] = layout(entries)
                size = len(head) + sum(entry.nbytes for entry in entries.values())
                self._fresh.add(file, head, size)
            self._fresh.add(META, self._text, len(self._text))
        except BaseException:
            self._fresh.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._fresh.__exit__(kind, error, trace)

    def write(self, key: Key, state: str | None, begin: int, view: memoryview) -> None:
        """Write bytes of a key's value, or of a state, from its byte `begin` on.

        Any thread, one at a time.
        """
        if state is None:
            self._write(WEIGHTS, self._names[key], begin, view)
        else:
            self._write(STATE, f"{self._names[key]}/{state}", begin, view)

    def write_table(self, key: Key, part: str, begin: int, view: memoryview) -> None:
        """Write bytes of one array of a table; `part` as in `Contents.tables`."""
        self._write(TABLES, f"{self._names[key]}/{part}", begin, view)

    def write_kept(
        self, key: Key, rank: int, is_extra: bool, begin: int, view: memoryview
    ) -> None:
        """Write bytes of what a rank has not sent of a key, or of what its codec keeps beside."""
        self._write(RESIDUALS, kept_label(self._names[key], rank, is_extra=is_extra), begin, view)

    def finish(self) -> None:
        """Make it durable, and let it stand at its path."""
        self._fresh.finish()

    def _write(self, file: str, label: str, begin: int, view: memoryview) -> None:
        self._fresh.write(file, self._slots[file][label].begin + begin, view)


class Reader:
    """An open checkpoint; `with` it. A newer one that takes its place does not change it.

    Raises:
        CheckpointError: There is none, or its files are cut off, foreign, or do not belong
            together.

    Attributes:
        weights: Where each value lies.
        state: Where each state lies, by key and name.
        tables: What each table is, and where its arrays lie.
        residuals: Where each residual lies, by key and rank.
        extras: Where what codecs keep beside lies, by key and rank.
        meta: What the writer said.
    """

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        self._files: dict[str, FileIO] = {}
        self.weights: dict[Key, Slot] = {}
        self.state: dict[Key, dict[str, Slot]] = {}
        self.tables: dict[Key, tuple[TableWords, dict[str, Slot]]] = {}
        self.residuals: dict[Key, dict[int, Slot]] = {}
        self.extras: dict[Key, dict[int, Slot]] = {}
        self.meta: dict[str, Any] = {}
        self._files = open_files(Path(directory), META, (WEIGHTS, STATE, TABLES, RESIDUALS))
        try:
            self._look(Path(directory))
        except BaseException:
            self.__exit__(None, None, None)
            raise

    def _look(self, folder: Path) -> None:
        files = self._files
        keys, self.meta, tables = read_meta(files[META].readall, folder / META)
        kept = [RESIDUALS] if KEPT in self.meta else []
        for name in (WEIGHTS, STATE, *([TABLES] if tables else []), *kept):
            if name not in files:
                raise CheckpointError("a checkpoint without one of its files", got=folder / name)
        for name, slot in read_header(files[WEIGHTS], folder / WEIGHTS).items():
            self.weights[key_of(keys, name, folder)] = slot
        for label, slot in read_header(files[STATE], folder / STATE).items():
            name, _, part = label.rpartition("/")
            self.state.setdefault(key_of(keys, name, folder), {})[part] = slot
        residuals = read_header(files[RESIDUALS], folder / RESIDUALS) if kept else {}
        for label, slot in residuals.items():
            name, rank, is_extra = rank_of(label, slot.entry, folder)
            found = self.extras if is_extra else self.residuals
            found.setdefault(key_of(keys, name, folder), {})[rank] = slot
        if not tables:
            return
        self.tables = {key_of(keys, name, folder): (words, {}) for name, words in tables.items()}
        for label, slot in read_header(files[TABLES], folder / TABLES).items():
            name, _, part = label.rpartition("/")
            if name not in tables:
                raise CheckpointError("rows of no known table", got=f"{name} in {folder}")
            self.tables[key_of(keys, name, folder)][1][part] = slot
        for key, (words, slots) in self.tables.items():
            words.check_parts({part: slot.entry for part, slot in slots.items()}, key)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for file in self._files.values():
            file.close()

    def read(self, key: Key, state: str | None, begin: int, view: memoryview) -> None:
        """Fill a view with the bytes of a key's value, or of a state, from `begin` on.

        Any thread, one at a time.
        """
        if state is None:
            read_into(self._files[WEIGHTS], self.weights[key].begin + begin, view)
        else:
            read_into(self._files[STATE], self.state[key][state].begin + begin, view)

    def read_table(self, key: Key, part: str, begin: int, view: memoryview) -> None:
        """As `read`, of one array of a table; `part` as in `Contents.tables`."""
        read_into(self._files[TABLES], self.tables[key][1][part].begin + begin, view)

    def read_kept(
        self, key: Key, rank: int, is_extra: bool, begin: int, view: memoryview
    ) -> None:
        """As `read`, of what a rank had not sent of a key, or of what its codec kept beside."""
        slots = (self.extras if is_extra else self.residuals)[key]
        read_into(self._files[RESIDUALS], slots[rank].begin + begin, view)

    def read_whole(self) -> Checkpoint:
        """Read all arrays: new memory, the caller's."""
        weights, state = self._files[WEIGHTS], self._files[STATE]
        return Checkpoint(
            {key: read_array(weights, slot) for key, slot in self.weights.items()},
            {key: {name: read_array(state, slot) for name, slot in slots.items()}
             for key, slots in self.state.items()},
            self.meta,
            {key: self._read_table(words, slots) for key, (words, slots) in self.tables.items()},
        )

    def _read_table(self, words: TableWords, slots: Mapping[str, Slot]) -> SavedRows:
        arrays = {part: read_array(self._files[TABLES], slot) for part, slot in slots.items()}
        rows, bare = arrays.pop(ROWS), VALUES not in arrays
        none = np.empty((0, *words.shape[1:]), dtypes.numpy_dtype(words.dtype))
        return SavedRows(words, rows, arrays.pop(VALUES, none), {
            part.removeprefix(STATE_PREFIX): array for part, array in arrays.items()
        }, bare)


def write(
    directory: str | os.PathLike[str], weights: Mapping[Key, Array], state: State,
    meta: Mapping[str, Any], tables: Mapping[Key, SavedRows] | None = None,
) -> None:
    """Write a checkpoint; one that stands there already is replaced in one step.

    Args:
        directory: Its path; the folder above must exist.
        weights: C-contiguous arrays of the dtypes of values, by key; only read.
        state: Arrays of the same kind by key and name; a name holds no "/".
        meta: Plain data: what JSON can say, without NaN.
        tables: Rows of row-sparse tables by key.

    Raises:
        CheckpointError: The disk is full, something else stands at the path, or a value cannot be
            written. What stood there before still does, or the new one whole.
    """
    tables = tables or {}
    contents = Contents(
        {key: entry_of(array) for key, array in weights.items()},
        {key: {name: entry_of(array) for name, array in arrays.items()}
         for key, arrays in state.items()},
        {key: (table.words, {part: entry_of(array) for part, array in table.arrays().items()})
         for key, table in tables.items()},
    )
    with Writer(directory, contents, meta) as writer:
        for key, array in weights.items():
            writer.write(key, None, 0, _bytes_of(array))
        for key, arrays in state.items():
            for name, array in arrays.items():
                writer.write(key, name, 0, _bytes_of(array))
        for key, table in tables.items():
            for part, array in table.arrays().items():
                writer.write_table(key, part, 0, _bytes_of(array))
        writer.finish()


def read(directory: str | os.PathLike[str]) -> Checkpoint:
    """Read a checkpoint whole.

    Returns:
        Its arrays are new memory, the caller's.

    Raises:
        CheckpointError: There is none, or its files are cut off, foreign, or do not belong
            together.
        ConfigError: It holds bfloat16, and ml_dtypes is not installed.
    """
    with Reader(directory) as reader:
        return reader.read_whole()


def show(directory: str | os.PathLike[str]) -> tuple[list[Item], dict[str, Any]]:
    """Tell what a checkpoint holds, without reading the arrays: items, and the writer's meta.

    Raises:
        CheckpointError: As `read`.
    """
    with Reader(directory) as found:
        pass
    items = [Item(key, None, *slot.entry) for key, slot in found.weights.items()]
    items += [Item(key, name, *slot.entry) for key, slots in found.state.items()
              for name, slot in slots.items()]
    items += [Item(key, None if part == VALUES else part, *slot.entry, words)
              for key, (words, slots) in found.tables.items() for part, slot in slots.items()]
    items += [Item(key, f"{what} of rank {rank}", *slot.entry)
              for what, by_key in (("residual", found.residuals), ("extra", found.extras))
              for key, slots in by_key.items() for rank, slot in slots.items()]
    items.sort(key=lambda item: (str(item.key), type(item.key).__name__, item.state or ""))
    return items, found.meta


def _bytes_of(array: Array) -> memoryview:
    if not array.flags.c_contiguous:
        raise CheckpointError("an array that is not contiguous", got=array.strides)
    return array.reshape(-1).view(np.uint8).data
