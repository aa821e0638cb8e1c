"""Row-sparse keys on their way from a checkpoint to the servers: the work of the worker that leads.

Ids are read a few MiB at a time, cut where the servers of today begin, and travel with each array
of their rows, so a RESTORE stands by itself.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from asyncps.errors import CheckpointError
from asyncps.protocol import rows
from asyncps.protocol.messages import Key, KeySpec, Placement, ResetTable, SetClocks, TableRows
from asyncps.roles.client import Client
from asyncps.roles.fetching import Disk, Window, answered, restore
from asyncps.roles.stretches import RANGE_BYTES
from asyncps.roles.worker import Worker
from asyncps.tensor import dtypes
from asyncps.tensor.checkpoint import Reader
from asyncps.tensor.savedtable import ROWS, VALUES

Ids = npt.NDArray[np.int64]


def compare(
    reader: Reader, specs: Mapping[Key, KeySpec], clocks: Mapping[Key, int], *, optimizer: bool,
    weights: bool,
) -> list[KeySpec]:
    """Compare the tables of a checkpoint with the keys of a store.

    Args:
        reader: The checkpoint.
        specs: The store's keys.
        clocks: What the checkpoint says of updates.
        optimizer: There will be one.
        weights: False for what it keeps alone.

    Returns:
        All tables, as the store has them or is to have them.

    Raises:
        ShapeMismatch, DtypeMismatch, CheckpointError: They do not fit.
    """
    found = []
    for key, (words, slots) in reader.tables.items():
        spec = specs.get(key)
        if spec is None and weights:
            itemsize = dtypes.by_name(words.dtype).itemsize
            spec = KeySpec(key, words.dtype, words.shape, itemsize, words.initializer)
        if spec is None:
            raise CheckpointError("what an optimizer keeps for a key that is not there", key=key)
        if key not in clocks:
            raise CheckpointError("a checkpoint that no store has written: no clock of a key",
                                  key=key)
        if spec.rows is None:
            raise CheckpointError("a dense key, of which the checkpoint has rows", key=key)
        words.check_like(key, tuple(spec.shape), spec.dtype, spec.rows)
        if weights and VALUES not in slots:
            raise CheckpointError("a checkpoint that lacks the values of this key", key=key)
        words.check_state(key, {part: slot.entry for part, slot in slots.items()},
                          optimizer=optimizer)
        found.append(spec)
    return found


def check_ids(reader: Reader) -> None:
    """Read the ids of all rows and refuse those that no table has; in the disk's thread.

    Raises:
        CheckpointError: It names the key.
    """
    for key, (words, slots) in reader.tables.items():
        last, many = -1, RANGE_BYTES // 8
        for begin in range(0, slots[ROWS].entry.shape[0], many):
            last = words.check_ids(key, _ids(reader, key, begin, many), last)


async def carry_out(
    worker: Worker, client: Client, reader: Reader, placements: Sequence[Placement],
    clocks: Mapping[Key, int], disk: Disk, *, weights: bool,
) -> None:
    """Let the servers keep the rows of a checkpoint, and no others.

    Args:
        worker: The one that leads.
        client: The store.
        reader: The checkpoint.
        placements: Where all keys live.
        clocks: Updates by key.
        disk: Where the checkpoint is read.
        weights: False for what the optimizer keeps alone; values stay then.

    Raises:
        AsyncPSError: Something failed on the way: the store then holds a part of it.
    """
    window = Window(worker.config.answer_s)
    for placement in placements:
        key = placement.spec.key
        if key not in reader.tables:
            continue
        words, slots = reader.tables[key]
        pieces = sorted(placement.pieces, key=lambda piece: piece.start)
        for piece in pieces:
            first: list[Any] = [SetClocks(client.number, piece.unit, [0], [clocks[key]])]
            if weights:
                first.insert(0, ResetTable(client.number, piece.unit, words.others))
            link = worker.links[piece.server]
            for message in first:
                asking = link.question(message, client.incarnation, 0)
                await answered(link, asking, worker.config.answer_s)
        # Values first: rows that are written have no f32 weights, until these are.
        parts = [VALUES] if weights else []
        parts += [part for part in slots if part not in (ROWS, VALUES)]
        widest = max([8, *(_row_bytes(reader, key, part) for part in parts)])
        many = max(1, RANGE_BYTES // widest)
        edges = [piece.start + piece.size for piece in pieces]
        for begin in range(0, slots[ROWS].entry.shape[0] if parts else 0, many):
            ids = await disk.run(_ids, reader, key, begin, many)
            low = 0
            for piece, high in zip(pieces, np.searchsorted(ids, edges).tolist(), strict=True):
                for part in parts if high > low else ():
                    await _restore(worker, client, window, piece.server,
                                   TableRows(client.number, piece.unit, part),
                                   rows.pack(ids[low:high], words.shape[0]),
                                   (high - low) * _row_bytes(reader, key, part),
                                   partial(disk.run, reader.read_table, key, part,
                                           (begin + low) * _row_bytes(reader, key, part)))
                low = high
    await window.finish()


async def _restore(
    worker: Worker, client: Client, window: Window, server: int, message: TableRows, named: bytes,
    size: int, read: Any,
) -> None:
    buffer = client.pool.take(len(named) + size)
    buffer[: len(named)] = np.frombuffer(named, np.uint8)
    await read(buffer[len(named) :].data)

    async def use() -> None:
        client.pool.give(buffer)

    link = worker.links[server]
    await window.add(link, restore(link, message, client.incarnation, buffer.data), buffer.nbytes,
                     use)


def _ids(reader: Reader, key: Key, begin: int, many: int) -> Ids:
    count = min(many, reader.tables[key][1][ROWS].entry.shape[0] - begin)
    ids = np.empty(count, np.int64)
    reader.read_table(key, ROWS, begin * 8, ids.view(np.uint8).data)
    return ids


def _row_bytes(reader: Reader, key: Key, part: str) -> int:
    entry = reader.tables[key][1][part].entry
    return math.prod(entry.shape[1:]) * entry.itemsize
