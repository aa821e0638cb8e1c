"""Row-sparse keys on their way from the servers to a checkpoint: the work of the worker that leads.

A table may be larger than any memory here, so a few MiB of it are under way at once. The servers
of a table keep neighbouring ids, so one behind the other they are ascending.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from asyncps.errors import CheckpointError
from asyncps.protocol.messages import Key, Placement, TableRange, UnitState
from asyncps.roles.client import Client
from asyncps.roles.fetching import Disk, Window, fetch
from asyncps.roles.stretches import RANGE_BYTES
from asyncps.roles.worker import Worker
from asyncps.tensor.checkpoint import Writer
from asyncps.tensor.safefile import Entry
from asyncps.tensor.savedtable import TableWords


@dataclass(frozen=True, slots=True)
class KeptTable:
    """One table as a checkpoint sees it.

    Attributes:
        key: Its key.
        words: What it is.
        updates: How many it has had.
        entries: Its arrays by their part of a label.
        places: (server, unit, rows that there are), in the order of their ids.
    """

    key: Key
    words: TableWords
    updates: int
    entries: dict[str, Entry]
    places: list[tuple[int, int, int]]


def tables_of(
    placements: Sequence[Placement], units: Mapping[int, UnitState], *, weights: bool
) -> list[KeptTable]:
    """Return the tables among some keys.

    Args:
        placements: Where the keys live.
        units: What the servers say of the units of tables.
        weights: False for what the optimizer keeps alone.

    Raises:
        CheckpointError: A server lacks a part, or they say different things.
    """
    return [_table(each, units, weights) for each in placements if each.spec.rows is not None]


def _table(placement: Placement, units: Mapping[int, UnitState], weights: bool) -> KeptTable:
    spec = placement.spec
    assert spec.rows is not None
    rest, updates = spec.rows, 0
    state: dict[str, str] = {}
    places = []
    for piece in sorted(placement.pieces, key=lambda piece: piece.start):
        unit = units.get(piece.unit)
        if unit is None or unit.rows is None or len(unit.parts) != 1:
            raise CheckpointError("a server lacks a part of this key", key=spec.key)
        rest, updates = unit.rows, max(updates, unit.parts[0].updates)
        state.update(unit.parts[0].state)
        places.append((piece.server, piece.unit, unit.used))
    if any(units[unit].rows != rest for _, unit, _ in places):
        raise CheckpointError("servers tell of different first rows", key=spec.key)
    words = TableWords(tuple(spec.shape), spec.dtype, spec.rows,
                       None if rest == spec.rows else rest)
    count = sum(count for _, _, count in places)
    return KeptTable(spec.key, words, updates, words.entries(count, state, values=weights), places)


async def stream(
    worker: Worker, client: Client, tables: Sequence[KeptTable], disk: Disk, writer: Writer
) -> None:
    """Fetch all rows, array by array, and write each range when it is there."""
    window = Window(worker.config.answer_s)
    for table in tables:
        for part, entry in table.entries.items():
            row_bytes = math.prod(entry.shape[1:]) * entry.itemsize
            many = max(1, RANGE_BYTES // row_bytes)
            first = 0
            for server, unit, count in table.places:
                for begin in range(0, count, many):
                    message = TableRange(client.number, unit, part, count, begin,
                                         min(many, count - begin))
                    await _fetch(worker, client, window, server, message, row_bytes,
                                 partial(disk.run, writer.write_table, table.key, part,
                                         (first + begin) * row_bytes))
                first += count
    await window.finish()


async def _fetch(
    worker: Worker, client: Client, window: Window, server: int, message: TableRange,
    row_bytes: int, write: Any,
) -> None:
    size = message.number * row_bytes
    buffer = client.pool.take(size)

    async def use() -> None:
        await write(buffer.data)
        client.pool.give(buffer)

    link = worker.links[server]
    await window.add(link, fetch(link, message, client.incarnation, buffer.data), size, use)
