"""A server's part of a row-sparse key as a unit: the rounds of `Unit`, the rows of a `Table`.

A contribution is one buffer as for any unit: the names of its rows, then the rows (see
`protocol.rows`), so waiting, counting and recognising replays are a unit's own. There are no
versions: an answer is a copy of the rows that were asked for, made when the round is applied. So
what a worker may ask for at once is bounded.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from asyncps import optim
from asyncps.errors import AsyncPSError, OptimizerError, RemoteProtocolError, TensorError
from asyncps.initializer import Initializer
from asyncps.protocol import rows
from asyncps.protocol.frames import PULL, PUSHPULL, WAIT
from asyncps.protocol.messages import TableSpec
from asyncps.roles.accumulator import Accumulator
from asyncps.roles.encoded import Contribution, Encoded
from asyncps.roles.freeunit import FreeUnit
from asyncps.roles.unit import Rules, Unit, Waiter, internal
from asyncps.tensor import dtypes, updates
from asyncps.tensor.dtypes import Dtype
from asyncps.tensor.pool import Bytes, Pool
from asyncps.tensor.sparsesum import SparseSum
from asyncps.tensor.table import Step, Table

# Rows that one request may ask for: an answer is memory of its own. Workers ask for less at once.
MAX_ANSWER_BYTES = 64 << 20

# What one worker may wait for at one table, ids and answers: a few large pulls under way.
MAX_WAITING_BYTES = 1 << 30


@dataclass(slots=True)
class RowsWaiter(Waiter):
    """A request for rows.

    Attributes:
        named: Which, in the frame's memory; None once `ids` tells.
        ids: Which, in memory of their own: only of a request that is let in.
        held_bytes: What it takes, while it waits.
    """

    named: rows.Named | None = None
    ids: rows.Ids | None = None
    held_bytes: int = 0


class TableAccumulator(Accumulator):
    """The contributions of one open round of a table.

    Attributes:
        sums: Their sum, once there is a row.
        kept: Buffers that the sum may lie in.
    """

    __slots__ = ("kept", "sums")

    def __init__(self, began: float) -> None:
        super().__init__(began)
        self.sums: SparseSum | None = None
        self.kept: list[Bytes] = []

    def add(self, dtype: Dtype, buffer: Contribution, pool: Pool) -> None:
        """As `Accumulator.add`."""
        if isinstance(buffer, Encoded):
            self._add_encoded(dtype, buffer, pool)
            return
        named = rows.parse(buffer.data)
        if not named.number:
            pool.give(buffer)
            return
        stored = buffer[named.size :].view(dtype.bits)
        if self.sums is None:
            self.sums = SparseSum(dtype, stored.size // named.number)
            self.kept.append(buffer)
            self.sums.add(named.to_ids(), stored, keep=True)
        else:
            self.sums.add(named.to_ids(), stored)
            pool.give(buffer)

    def _add_encoded(self, dtype: Dtype, encoded: Encoded, pool: Pool) -> None:
        named = rows.parse(encoded.buffer.data)
        self.skipped = self.skipped or encoded.codec.is_skip
        if named.number and not encoded.codec.is_skip:
            if self.sums is None:
                self.sums = SparseSum(dtype, encoded.elements // named.number)
            self.sums.add_encoded(named.to_ids(), encoded)
        pool.give(encoded.buffer)


class TableParts(Unit):
    """What a table does otherwise than other units, in step or not.

    Attributes:
        table: The rows.
        waiting_bytes: What each rank waits for here.
        listed: One array while somebody saves rows: their ids, ascending.
    """

    __slots__ = ()

    accumulator = TableAccumulator
    is_dense = False
    table: Table
    waiting_bytes: dict[int, int]
    listed: list[rows.Ids]

    # ---- what a frame may say ----

    def asked(self, kind: int, named: rows.Named | None, size: int) -> rows.Named | None:
        """Check a frame before anything is allocated for it; return the rows that it asks for.

        Args:
            kind: The frame's.
            named: The rows that its table names, if it does.
            size: Bytes that it brings, or that its answer is to have.

        Raises:
            RemoteProtocolError: Sizes that do not fit.
            TensorError: Rows that are not here, or too many of them.
        """
        table, row_bytes = self.table, self.row_bytes
        if kind == WAIT:
            return None
        if kind == PUSHPULL or (named is None) == (kind == PULL):
            raise RemoteProtocolError("a frame that a row-sparse key does not take", got=kind)
        if named is None:
            most = rows.HEAD_BYTES + (table.stop - table.first) * (8 + row_bytes)
            if not rows.HEAD_BYTES <= size <= most:
                raise RemoteProtocolError("more than the rows of the table",
                                          expected=f"at most {most}", got=size)
            return None
        if not named.number or size != named.number * row_bytes:
            raise RemoteProtocolError("not the size of the rows", expected=named.number * row_bytes,
                                      got=size)
        if size > MAX_ANSWER_BYTES and named.number > 1:
            raise TensorError("too many rows in one request", got=f"{size} bytes",
                              expected=f"at most {MAX_ANSWER_BYTES} bytes")
        self.check_named(named)
        return named

    def is_like(self, other: TableParts) -> bool:
        """Tell whether it was made by the same words."""
        mine, its = self.table, other.table
        return (mine.key, mine.shape, mine.dtype, mine.first, mine.stop) == (
            its.key, its.shape, its.dtype, its.first, its.stop)

    @property
    def row_bytes(self) -> int:
        """Bytes of one row."""
        return self.table.width * self.dtype.itemsize

    def check_named(self, named: rows.Named) -> None:
        """Refuse rows that are not here.

        Raises:
            TensorError: They are out of order or range.
        """
        table = self.table
        if not named.is_inside(table.first, table.stop):
            raise TensorError("row ids that are out of order or range", key=table.key,
                              expected=f"ascending, {table.first} to {table.stop - 1}")

    def _check_buffer(self, buffer: Bytes) -> None:
        """Refuse a contribution that does not hold the rows that it names; it goes to the pool."""
        try:
            named = rows.parse(buffer.data)
            expected = named.size + named.number * self.row_bytes
            if buffer.nbytes != expected:
                raise RemoteProtocolError("not the size of the rows", expected=expected,
                                          got=buffer.nbytes)
            self.check_named(named)
        except AsyncPSError:
            self.pool.give(buffer)
            raise

    # ---- as Unit ----

    def contribute(
        self, rank: int, clock: int, buffer: Contribution, hyper: int, rules: Rules, now: float
    ) -> list[tuple[Waiter, int]]:
        """As `Unit.contribute`.

        Raises:
            TensorError: Also for rows that are not here.
        """
        if not isinstance(buffer, Encoded):  # else `encodedrows` has checked it
            self._check_buffer(buffer)
        self.listed.clear()
        return super().contribute(rank, clock, buffer, hyper, rules, now)

    def assign(self, rank: int, clock: int, request: int, buffer: Bytes) -> None:
        """As `Unit.assign`, of the rows that it names."""
        self._check_buffer(buffer)
        super().assign(rank, clock, request, buffer)

    def park(self, waiter: Waiter, position: int, clock: int) -> bool:
        """As `Unit.park`.

        Raises:
            TensorError: This rank waits for too much already.
        """
        rank = waiter.rank
        if not isinstance(waiter, RowsWaiter):
            return super().park(waiter, position, clock)
        if not self.is_applied(rank, clock):
            before = self.parked.get(clock, {}).get((rank, waiter.request))
            if before is None:
                assert waiter.named is not None
                waiter.held_bytes = waiter.named.number * (8 + self.row_bytes)
                total = self.waiting_bytes.get(rank, 0) + waiter.held_bytes
                if total > MAX_WAITING_BYTES:
                    raise TensorError("this worker waits for too many rows at once",
                                      expected=f"at most {MAX_WAITING_BYTES} bytes", got=total)
                self.waiting_bytes[rank] = total
            elif isinstance(before[0], RowsWaiter):
                waiter.held_bytes = before[0].held_bytes
        if waiter.named is not None:
            waiter.ids, waiter.named = waiter.named.to_ids(), None
        return super().park(waiter, position, clock)

    def give(self, waiter: Waiter, position: int) -> bool:
        """As `Unit.give`, with a copy of the rows."""
        done = super().give(waiter, position)
        if isinstance(waiter, RowsWaiter):
            if waiter.held_bytes:
                self.waiting_bytes[waiter.rank] -= waiter.held_bytes
                waiter.held_bytes = 0
            if waiter.error is None:
                assert waiter.ids is not None
                try:
                    found = np.empty(waiter.ids.size * self.table.width, self.dtype.bits)
                    self.table.gather(waiter.ids, found)
                    waiter.parts[position] = found.view(np.uint8).data
                except Exception as failed:  # noqa: BLE001 - logged, and told to who asked
                    waiter.error = internal(failed)
        return done

    def forget_optimizer(self) -> None:
        """As `Unit.forget_optimizer`."""
        self.forget_failures()
        self.table.forget_state()
        self.updates = 0

    def _compute(self, accumulator: Accumulator, clock: int, rules: Rules) -> None:
        found = accumulator
        if not isinstance(found, TableAccumulator):
            found = TableAccumulator(accumulator.began)
        for rank in sorted(accumulator.parts):
            found.add(self.dtype, accumulator.parts[rank], self.pool)
        accumulator.parts.clear()
        if found.skipped or accumulator.skipped:
            self._end_round(found, clock)
            return
        sums = found.sums or SparseSum(self.dtype, self.table.width)
        if rules.reduce == "mean":
            np.divide(sums.values, accumulator.count, out=sums.values)
        if rules.optimizer is None:
            self.table.apply(sums.ids, sums.values, None)
        else:
            hyper = rules.hyper_for(accumulator.hyper)
            check_optimizer(rules.optimizer)
            updates.check_usable(rules.optimizer, self.dtype, hyper)
            self.table.apply(sums.ids, sums.values, Step(
                rules.optimizer, hyper, self.updates + 1, hyper.get("lazy_update", True),
                rules.multi_precision,
            ))
            self.updates += 1
        self._end_round(found, clock)

    def _end_round(self, found: TableAccumulator, clock: int) -> None:
        self.current.clock = clock
        for buffer in found.kept:
            self.pool.give(buffer)

    def publish(self, buffer: Bytes, clock: int) -> None:
        named = rows.parse(buffer.data)
        self.table.assign(named.to_ids(), buffer[named.size :].view(self.dtype.bits))
        self.pool.give(buffer)

    # ---- for checkpoints ----

    @property
    def used_bytes(self) -> int:
        """Bytes that rows, their state and the index take."""
        return self.table.used_bytes

    def first_ids(self, count: int) -> rows.Ids:
        """Return the ids of the rows that were made first, ascending; kept until the next push."""
        if not self.listed or self.listed[0].size != count:
            self.listed[:] = [self.table.used_ids(count)]
        return self.listed[0]

    def reset(self, initializer: Initializer) -> None:
        """As `Table.reset`."""
        self.listed.clear()
        self.forget_failures()
        self.updates = 0
        self.table.reset(initializer)


class TableUnit(TableParts):
    """A table whose workers go in step.

    Args:
        table: The rows.
        pool: Where contributions lie.
    """

    __slots__ = ("listed", "table", "waiting_bytes")

    def __init__(self, table: Table, pool: Pool) -> None:
        super().__init__(table.dtype, np.empty(0, np.uint8), pool)
        self.table = table
        self.waiting_bytes = {}
        self.listed = []


class FreeTableUnit(TableParts, FreeUnit):
    """A table whose pushes are applied as they come."""

    __slots__ = ("listed", "table", "waiting_bytes")

    def __init__(self, table: Table, pool: Pool, bound: int | None) -> None:
        FreeUnit.__init__(self, table.dtype, np.empty(0, np.uint8), pool, bound)
        self.table = table
        self.waiting_bytes = {}
        self.listed = []


def check_optimizer(name: str) -> None:
    """Refuse an optimizer that cannot work on rows by themselves.

    Raises:
        OptimizerError: It needs whole keys, or is of the user's own and knows no rows.
    """
    kind = optim.by_name(name)
    if kind.whole_keys or not kind.builtin:
        what = "needs whole keys" if kind.whole_keys else "is not one of asyncps's own"
        raise OptimizerError(f"{name} {what}, so it cannot update row-sparse keys", got=name,
                             expected=", ".join(sorted(
                                 known for known, one in optim.REGISTRY.items()
                                 if one.builtin and not one.whole_keys)))


def make_table(spec: TableSpec, pool: Pool, bound: int | None) -> TableParts:
    """Make the unit of a table as an INIT frame describes it.

    Raises:
        AsyncPSError: No table can be like that.
    """
    dtype = dtypes.by_name(spec.dtype)
    table = Table(spec.key, tuple(spec.shape), dtype, spec.rows, first=spec.first, stop=spec.stop)
    return TableUnit(table, pool) if bound == 0 else FreeTableUnit(table, pool, bound)


def wanted(waiter: Waiter, named: rows.Named | None) -> Waiter:
    """Return a waiter for rows instead, if rows are asked for."""
    if named is None:
        return waiter
    return RowsWaiter(
        waiter.rank, waiter.request, waiter.unit, waiter.priority, waiter.data, waiter.clock,
        waiter.parts, waiter.pending, waiter.error, waiter.port,
        waiter.wish, named,
    )


def used_bytes(units: Iterable[object]) -> int:
    """Return what the tables among some units take."""
    return sum(unit.used_bytes for unit in units if isinstance(unit, TableParts))
