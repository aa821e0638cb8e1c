"""Which units one store has on one server: made by INIT frames, found by all others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from asyncps.errors import DtypeMismatch, RemoteProtocolError, UnknownKey
from asyncps.protocol.frames import Header
from asyncps.protocol.messages import TableSpec, UnitSpec
from asyncps.roles.freeunit import FreeUnit
from asyncps.roles.ownsteps import is_own
from asyncps.roles.slab import Slab
from asyncps.roles.tableunit import TableParts, make_table, used_bytes
from asyncps.roles.unit import Rules, Unit
from asyncps.tensor import dtypes
from asyncps.tensor.dtypes import Dtype
from asyncps.tensor.pool import Bytes, Pool
from asyncps.tensor.words import Span

Target = tuple[Unit | Slab, Any]  # and the rows that are spoken of, None for all


class Holdings:
    """The units of one store by their number, and their keys.

    Args:
        pool: Where buffers come from.
        rules: What all units do alike.

    Attributes:
        units: By number.
        keys: Of each unit, in the order of its rows.
        dense_bytes: Of all values but those of row-sparse keys.
        changes: How often a slab was split, joined or grown.
        beside: Bytes that are kept beside the value of a unit, for answers in fewer bytes.
    """

    def __init__(self, pool: Pool, rules: Rules) -> None:
        self.pool = pool
        self.rules = rules
        self.units: dict[int, Unit | Slab] = {}
        self.keys: dict[int, list[int | str]] = {}
        self.dense_bytes = 0
        self.changes = 0
        self.beside: dict[int, int] = {}

    def init(self, unit: int, spec: UnitSpec, buffer: Bytes) -> None:
        """Take the first value of a chunk or of rows of a slab; a repetition changes nothing."""
        dtype = dtypes.by_name(spec.dtype)
        if self.rules.reduce == "mean" and not dtype.is_float:
            self.pool.give(buffer)
            raise DtypeMismatch("the mean of integers", key=spec.keys[0], expected="a float dtype",
                                got=spec.dtype)
        found = self.units.get(unit)
        fits = (
            spec.first_row == 0 if found is None
            else isinstance(found, Slab) and spec.first_row <= len(found.sizes) if spec.slab
            else isinstance(found, Unit) and found.size == buffer.nbytes
        )
        if not fits or (found is not None and found.dtype.name != spec.dtype):
            self.pool.give(buffer)
            raise RemoteProtocolError("INIT of a unit that exists and is different",
                                      key=spec.keys[0], got=unit)
        if not spec.slab:
            if found is None:
                spans = ((spec.keys[0], 0, buffer.nbytes // dtype.itemsize),)
                self.units[unit] = self._make(dtype, buffer, self.pool, spans)
                self.keys[unit] = list(spec.keys)
                self._grew(buffer.nbytes)
            else:
                self.pool.give(buffer)
            return
        slab = self.units.setdefault(unit, Slab(dtype, self.pool, self._make))
        assert isinstance(slab, Slab)
        slab.apart = is_own(self.rules.optimizer)
        known = len(slab.sizes) - spec.first_row
        if slab.sizes[spec.first_row :] != spec.sizes[:known]:
            self.pool.give(buffer)
            raise RemoteProtocolError("rows that exist with other sizes", key=spec.keys[0])
        if known >= len(spec.sizes):
            self.pool.give(buffer)
            return
        begin = sum(spec.sizes[:known])
        fresh = self.pool.take(buffer.nbytes - begin)
        fresh[:] = buffer[begin:]
        self.pool.give(buffer)
        self.keys.setdefault(unit, []).extend(spec.keys[known:])
        self._grew(fresh.nbytes)
        self.changes += 1
        slab.add_rows(spec.sizes[known:], fresh, spec.keys[known:])

    @property
    def value_bytes(self) -> int:
        """Bytes of all values and of what is kept beside them; of row-sparse keys of their rows."""
        beside = sum(self.beside.values())
        return self.dense_bytes + beside + used_bytes(self.units.values())

    def keep_beside(self, unit: int, size: int) -> None:
        """Take note that so much is kept beside a unit's value, from now on."""
        more = size - self.beside.get(unit, 0)
        if more > 0:
            self.beside[unit] = size
            self.pool.keep_bytes += more

    def init_table(self, unit: int, spec: TableSpec) -> None:
        """Make a server's part of a row-sparse key; a repetition changes nothing."""
        made = make_table(spec, self.pool, self.rules.bound)
        if self.rules.reduce == "mean" and not made.dtype.is_float:
            raise DtypeMismatch("the mean of integers", key=spec.key, expected="a float dtype",
                                got=spec.dtype)
        found = self.units.setdefault(unit, made)
        if not isinstance(found, TableParts) or not found.is_like(made):
            raise RemoteProtocolError("INIT of a unit that exists and is different",
                                      key=spec.key, got=unit)
        self.keys[unit] = [spec.key]

    def _grew(self, size: int) -> None:
        self.dense_bytes += size
        # Old versions and accumulators come back each round: keep as much as the values take.
        self.pool.keep_bytes += size

    def find(self, header: Header, rows: Any, size: int) -> Target:
        """Return what a frame speaks of, checked.

        Args:
            header: The frame's.
            rows: The rows that it lists, or None; of a table a `Named`.
            size: Bytes that it brings, or that its answer is to have.

        Raises:
            UnknownKey: There is no such unit.
            RemoteProtocolError: Its size or rows are wrong.
        """
        unit = self.units.get(header.unit)
        if unit is None:
            raise UnknownKey("no such unit on this server", got=header.unit)
        if isinstance(unit, TableParts):
            return unit, unit.asked(header.kind, rows, size)
        if isinstance(unit, Unit):
            if rows is not None or size != unit.size:
                raise RemoteProtocolError("not the size of the chunk", expected=unit.size,
                                          got=size)
            return unit, None
        if rows is None:
            if size == unit.size:
                whole = unit.whole
                if whole is None and unit.join():
                    self.changes += 1
                    whole = unit.whole
                if whole is not None:
                    return whole, None
            rows = unit.prefix(size)  # a peer that has not heard of the newest rows
        elif size != unit.size_of(rows):
            raise RemoteProtocolError("not the size of the rows", expected=unit.size_of(rows),
                                      got=size)
        if unit.whole is not None:
            self.changes += 1
            unit.split()
        return unit, rows

    def name_of(self, unit: int) -> Any:
        """Return the first key of a unit, for messages."""
        return self.keys.get(unit, [None])[0]

    def _make(self, dtype: Dtype, buffer: Bytes, pool: Pool, spans: Sequence[Span]) -> Unit:
        bound = self.rules.bound
        if bound == 0:
            return Unit(dtype, buffer, pool, spans)
        return FreeUnit(dtype, buffer, pool, bound, spans)
