"""What a server keeps of a row-sparse key, some rows at a time, and back again.

A save tells first how many rows there are. Pulls of others may make more meanwhile; these are at
the end of the order in which rows were made, and are what the initializer says.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from asyncps.errors import RemoteProtocolError, UnknownKey
from asyncps.protocol import rows
from asyncps.protocol.messages import PartState, ResetTable, TableRange, TableRows, UnitState
from asyncps.roles.keeper import Keeper
from asyncps.roles.tableunit import TableParts
from asyncps.tensor.dtypes import Array
from asyncps.tensor.pool import Bytes
from asyncps.tensor.savedtable import ROWS, STATE_PREFIX, VALUES
from asyncps.tensor.steps import states_ever
from asyncps.tensor.words import MASTER

# One answer, and the rows of one RESTORE; a single row may be larger.
MAX_BYTES = 16 << 20


def told(number: int, unit: TableParts) -> UnitState:
    """Return what there is of a table: its count of updates, states, and how many rows."""
    table = unit.table
    state = dict.fromkeys(sorted(table.state_names), table.dtype.sum.name)
    return UnitState(number, [PartState([0], unit.updates, state)], len(table), table.initializer)


def read(keeper: Keeper, message: TableRange) -> memoryview:
    """Return ids, values or state of some rows: new memory.

    A state that nobody has made yet is what it begins as.

    Raises:
        UnknownKey, RemoteProtocolError: There are no such rows.
    """
    unit = _find(keeper, message.unit)
    table, begin, number = unit.table, message.begin, message.number
    dtype, row_bytes, name = _row(unit, message.part)
    if number < 1 or (number > 1 and number * row_bytes > MAX_BYTES):
        raise RemoteProtocolError("rows of another size", got=number * row_bytes,
                                  expected=f"at most {MAX_BYTES} bytes, or one row")
    if not 0 <= begin <= message.count - number or message.count > len(table):
        raise RemoteProtocolError("rows that are not there", expected=f"within {len(table)}",
                                  got=(begin, number, message.count))
    ids = unit.first_ids(message.count)[begin : begin + number]
    if message.part == ROWS:
        return ids.copy().view(np.uint8).data
    out: Array = np.empty(number * table.width, dtype)
    if name is None:
        table.gather(ids, out)
    elif name in table.state_names:
        table.gather_state(name, ids, out)
    elif name == MASTER and table.dtype.widen is not None:
        stored = np.empty(out.size, table.dtype.bits)
        table.gather(ids, stored)
        table.dtype.widen(out, stored)
    else:
        out[:] = 0
    return out.view(np.uint8).data


def check(keeper: Keeper, message: TableRows, size: int) -> None:
    """Refuse rows that cannot be, before memory is taken for them.

    Raises:
        UnknownKey, RemoteProtocolError: It says what would be right.
    """
    unit = _find(keeper, message.unit)
    if message.part == ROWS:
        raise RemoteProtocolError("ids that are to be restored", expected="values or a state")
    _, row_bytes, name = _row(unit, message.part)
    if name is not None:
        check_kept(keeper.rules.optimizer, name)
    most = max(MAX_BYTES, row_bytes) + rows.HEAD_BYTES + 8
    if not rows.HEAD_BYTES <= size <= most:
        raise RemoteProtocolError("rows of another size", expected=f"at most {most} bytes",
                                  got=size)


def check_kept(optimizer: str | None, name: str) -> None:
    """Refuse a state that an optimizer of ours never keeps; f32 weights need none.

    Raises:
        RemoteProtocolError: It says which there are.
    """
    known = (MASTER, *states_ever(optimizer))
    if name not in known:
        raise RemoteProtocolError("a state that nobody keeps", expected=", ".join(known),
                                  got=name[:100])


def write(keeper: Keeper, message: TableRows, buffer: Bytes) -> None:
    """Let rows, or their state, be these. The buffer stays the caller's.

    Raises:
        UnknownKey, RemoteProtocolError, TensorError: There are no such rows.
    """
    check(keeper, message, buffer.nbytes)
    unit = _find(keeper, message.unit)
    dtype, row_bytes, name = _row(unit, message.part)
    named = rows.parse(buffer.data)
    expected = named.size + named.number * row_bytes
    if buffer.nbytes != expected:
        raise RemoteProtocolError("not the size of the rows", expected=expected,
                                  got=buffer.nbytes)
    given = buffer[named.size :].view(dtype)
    unit.listed.clear()
    if name is None:
        unit.table.assign(named.to_ids(), given)
    else:
        unit.table.assign_state(name, named.to_ids(), given)


def reset(keeper: Keeper, message: ResetTable) -> None:
    """Forget all rows, their state and the count of updates.

    Raises:
        UnknownKey, RemoteProtocolError: There is no such table.
        ConfigError: Rows cannot begin like this.
    """
    _find(keeper, message.unit).reset(message.rows)


def _find(keeper: Keeper, number: int) -> TableParts:
    unit = keeper.units.get(number)
    if unit is None:
        raise UnknownKey("no such unit on this server", got=number)
    if not isinstance(unit, TableParts):
        raise RemoteProtocolError("rows of a dense key", got=number)
    return unit


def _row(unit: TableParts, part: str) -> tuple[np.dtype[Any], int, str | None]:
    """Return the dtype of a table's array, the bytes of a row of it, and the name of a state."""
    table = unit.table
    if part == ROWS:
        return np.dtype(np.int64), 8, None
    if part == VALUES:
        return table.dtype.bits, table.width * table.dtype.itemsize, None
    name = part.removeprefix(STATE_PREFIX)
    if not name or name == part or "/" in name or len(name) > 100:
        raise RemoteProtocolError("no part of a table", got=part[:100],
                                  expected=f"{ROWS}, {VALUES}, {STATE_PREFIX}NAME")
    return table.dtype.sum, table.width * table.dtype.sum.itemsize, name
