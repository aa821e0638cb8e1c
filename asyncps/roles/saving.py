"""What a server keeps, piece by piece for whoever saves it, and back again.

Nothing is copied for a save but small slabs: an answer is a view of the unit's own memory. That may
be, since while workers save none of them pushes; should the one that fetches be given up all the
same, nobody looks at what it gets late. A unit that is loaded is written in place, in memory of its
own if an answer may still be on its way from the old.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from asyncps.errors import Disagreement, RemoteProtocolError, UnknownKey
from asyncps.protocol.messages import (
    AskUnits,
    PartState,
    SetClocks,
    StateRange,
    TableRows,
    Units,
    UnitState,
)
from asyncps.roles import savingrows
from asyncps.roles.keeper import Keeper
from asyncps.roles.ownsteps import is_own
from asyncps.roles.slab import Slab, parts_of
from asyncps.roles.tableunit import TableParts
from asyncps.roles.thinned import forget, forget_base
from asyncps.roles.unit import Unit
from asyncps.tensor.dtypes import Array
from asyncps.tensor.pool import Bytes
from asyncps.tensor.safefile import DTYPES
from asyncps.tensor.words import MASTER, MAX_STATE_NAME, MAX_STATES, MOST_UPDATES

PAGE_ROWS = 1 << 14  # rows that one answer tells of

# A request for more is no request of ours: what is made for an answer (a slab in rows, a state that
# nobody has made yet) stays small.
MAX_RANGE_BYTES = 16 << 20

_STATES = frozenset("fiu")  # kinds of dtypes that a state may have


def units(keeper: Keeper, message: AskUnits) -> Units:
    """Tell what units keep, from the one after `message.after` on.

    Raises:
        Disagreement: A round is open: it names the key, and whom it waits for.
    """
    rules = keeper.rules
    hyper = dict(rules.hyper[max(rules.hyper)]) if rules.optimizer is not None else {}
    if message.after < 0 and check_closed(keeper):
        return Units(rules.optimizer, hyper, [], at_work=True)
    found: list[UnitState] = []
    rows = 0
    for number in sorted(n for n in keeper.units if n > message.after):
        unit = keeper.units[number]
        if isinstance(unit, TableParts):
            found.append(savingrows.told(number, unit))
        else:
            found.append(UnitState(number, _part_states(unit)))
        rows += len(unit.sizes) if isinstance(unit, Slab) else 1
        if rows >= PAGE_ROWS:
            break
    return Units(rules.optimizer, hyper, found)


def check_closed(keeper: Keeper) -> bool:
    """Refuse to save or load in the middle of a round; tell whether one that is complete is still
    to be applied, by an optimizer of the user's own.

    Raises:
        Disagreement: It names the key, and whom the round waits for.
    """
    at_work = False
    for number, unit in keeper.units.items():
        for part in parts_of(unit):
            for opened in part.open:
                clock = opened[0] if isinstance(opened, tuple) else opened
                ranks = part.missing(clock, keeper.rules.members)
                if not ranks:
                    at_work = True
                    continue
                raise Disagreement(
                    "workers have not pushed this key equally often", key=keeper.name_of(number),
                    expected=f"another push of ranks {ranks}, or none of the others")
    return at_work


def check_range(keeper: Keeper, message: StateRange | TableRows, size: int) -> None:
    """Refuse bytes of what is not there, before memory is taken for them.

    Raises:
        UnknownKey, RemoteProtocolError: It says what would be right.
    """
    if isinstance(message, TableRows):
        savingrows.check(keeper, message, size)
        return
    unit = _find(keeper, message.unit)
    _check_range(unit, message, size)
    optimizer, name = keeper.rules.optimizer, message.name
    if not name:
        return
    if name != MASTER and is_own(optimizer):
        if len(name) > MAX_STATE_NAME or "/" in name:
            raise RemoteProtocolError("no name of a state", got=name[:MAX_STATE_NAME])
        return
    savingrows.check_kept(optimizer, name)
    if _dtype(message.dtype) != unit.dtype.sum:
        raise RemoteProtocolError(f"state {name!r} of another dtype", got=message.dtype[:100],
                                  expected=unit.dtype.sum.name)


def _check_range(unit: Unit | Slab, message: StateRange, size: int) -> None:
    if message.name:
        total = unit.size // unit.dtype.itemsize * _dtype(message.dtype).itemsize
    else:
        total = unit.size
    if size != message.size or not 0 < size <= MAX_RANGE_BYTES:
        raise RemoteProtocolError("a range of another size", got=size,
                                  expected=f"{message.size}, at most {MAX_RANGE_BYTES}")
    if not 0 <= message.begin <= total - size:
        raise RemoteProtocolError("a range outside its unit", expected=f"within {total}",
                                  got=(message.begin, size))


def read(keeper: Keeper, message: StateRange) -> memoryview:
    """Return bytes of a value or a state; a state that nobody has made yet is what it begins as.

    Raises:
        UnknownKey, RemoteProtocolError: There are no such bytes.
    """
    unit = _find(keeper, message.unit)
    _check_range(unit, message, message.size)
    begin, end = message.begin, message.begin + message.size
    parts = parts_of(unit)
    if len(parts) == 1:
        return _piece(parts[0], message, begin, end).data
    pieces = [_piece(part, message, first, last)
              for part, first, last, _ in _overlaps(unit, parts, message, begin, end)]
    return np.concatenate(pieces).data


def write(keeper: Keeper, message: StateRange | TableRows, buffer: Bytes) -> None:
    """Let bytes of a value or a state be these; the buffer goes back to the pool.

    A value of which anything is written has no f32 weights any more, until they are written.

    Raises:
        UnknownKey, RemoteProtocolError: There are no such bytes.
    """
    try:
        if isinstance(message, TableRows):
            savingrows.write(keeper, message, buffer)
            return
        check_range(keeper, message, buffer.nbytes)
        unit = _find(keeper, message.unit)
        _split(keeper, unit)
        parts = parts_of(unit)
        end = message.begin + message.size
        for part, first, last, at in _overlaps(unit, parts, message, message.begin, end):
            target = _own_state(part, message) if message.name else _own_value(part)
            target[first:last] = buffer[at : at + last - first]
    finally:
        keeper.pool.give(buffer)


def set_clocks(keeper: Keeper, message: SetClocks) -> None:
    """Let a chunk, or rows of a slab, have had so many updates.

    Raises:
        UnknownKey, RemoteProtocolError: There is no such unit, or it has no such rows, or nobody
            has had so many.
    """
    unit = _find(keeper, message.unit)
    _split(keeper, unit)
    parts = parts_of(unit)
    fits = len(message.rows) == len(message.updates) and all(
        0 <= n < MOST_UPDATES for n in message.updates)
    if not fits or not all(0 <= row < len(parts) for row in message.rows):
        raise RemoteProtocolError("clocks that cannot be",
                                  expected=f"of rows below {len(parts)}, below {MOST_UPDATES}",
                                  got=(message.rows[:8], message.updates[:8]))
    for row, count in zip(message.rows, message.updates, strict=True):
        parts[row].updates = count


def _find(keeper: Keeper, number: int) -> Unit | Slab:
    unit = keeper.units.get(number)
    if unit is None:
        raise UnknownKey("no such unit on this server", got=number)
    return unit


def _dtype(name: str) -> np.dtype[Any]:
    try:
        dtype = np.dtype(name)
    except (TypeError, ValueError):
        dtype = np.dtype(bool)
    if dtype.kind not in _STATES or not dtype.isnative or dtype.name not in DTYPES:
        raise RemoteProtocolError("no dtype of a state", got=name[:100])
    return dtype


def _split(keeper: Keeper, unit: Unit | Slab) -> None:
    """Let rows of a slab go their own ways; they are one again when whole slabs are pushed."""
    if isinstance(unit, Slab) and unit.whole is not None:
        keeper.changes += 1
        unit.split()


def _part_states(unit: Unit | Slab) -> list[PartState]:
    groups: dict[tuple[int, tuple[tuple[str, str], ...]], list[int]] = {}
    parts = parts_of(unit)
    for row, part in enumerate(parts):
        state = tuple(sorted((name, array.dtype.name) for name, array in part.state.items()))
        groups.setdefault((part.updates, state), []).append(row)
    if isinstance(unit, Slab) and len(parts) < len(unit.sizes):
        groups = {key: list(range(len(unit.sizes))) for key in groups}
    return [PartState(rows, updates, dict(state)) for (updates, state), rows in groups.items()]


def _overlaps(
    unit: Unit | Slab, parts: Sequence[Unit], message: StateRange, begin: int, end: int
) -> Iterator[tuple[Unit, int, int, int]]:
    """Yield each part that bytes [begin, end) of a unit touch: which of its bytes, and where these
    are, counted from `begin`."""
    edges = [0, unit.size] if len(parts) == 1 or isinstance(unit, Unit) else unit.offsets
    for part, (low, high) in zip(parts, pairwise(edges), strict=True):
        if message.name:
            itemsize = _dtype(message.dtype).itemsize
            low, high = (edge // unit.dtype.itemsize * itemsize for edge in (low, high))
        first, last = max(begin, low), min(end, high)
        if first < last:
            yield part, first - low, last - low, first - begin


def _piece(part: Unit, message: StateRange, begin: int, end: int) -> Bytes:
    if not message.name:
        return part.current.buffer[begin:end]
    array = part.state.get(message.name)
    wanted = _dtype(message.dtype)
    if array is not None:
        if array.dtype != wanted:
            raise RemoteProtocolError(f"state {message.name!r} of another dtype",
                                      expected=array.dtype, got=wanted)
        return array.reshape(-1).view(np.uint8)[begin:end]
    dtype = part.dtype
    if message.name == MASTER and dtype.widen is not None and wanted == dtype.sum:
        size = dtype.sum.itemsize
        first, last = begin // size, math.ceil(end / size)
        wide = dtype.widened(part.current.buffer.view(dtype.bits)[first:last])
        return wide.view(np.uint8)[begin - first * size : end - first * size]
    return np.zeros(end - begin, np.uint8)


def _own_value(part: Unit) -> Bytes:
    """Return the memory of the value, which no answer is made of."""
    part.forget_failures()
    part.state.pop(MASTER, None)
    if part.current.owed:
        buffer = part.pool.take(part.size)
        buffer[:] = part.current.buffer
        part.publish(buffer, part.current.clock)
    forget(part.current, part.pool)
    forget_base(part)
    return part.current.buffer


def _own_state(part: Unit, message: StateRange) -> Bytes:
    wanted = _dtype(message.dtype)
    array: Array | None = part.state.get(message.name)
    if array is None or array.dtype != wanted:
        if len({*part.state, message.name} - {MASTER}) > MAX_STATES:
            raise RemoteProtocolError("too many states of one unit", got=message.name,
                                      expected=f"at most {MAX_STATES}")
        array = part.state[message.name] = np.zeros(part.size // part.dtype.itemsize, wanted)
    return array.view(np.uint8)
