"""Table: a server's part of one row-sparse key.

Rows are made when they are first asked for or updated, so a table takes the memory of the rows that
somebody has used, and may be larger than what any worker holds. An index gives each row a slot in
the order of first use; values, and each array of optimizer state, lie under that slot in memory
that grows by blocks.

Whoever counts rounds adds the contributions of one into a `SparseSum` and applies it here. Rows are
always copied out (`gather`): a reply that is being sent is memory of its own, which no later update
touches. One thread uses a table at a time.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from asyncps.errors import DtypeMismatch, ShapeMismatch, TensorError
from asyncps.initializer import Initializer, Zero
from asyncps.tensor import firstrows, steps, updates
from asyncps.tensor.dtypes import Array, Dtype
from asyncps.tensor.rowblocks import BLOCK_BYTES, RowBlocks, Run
from asyncps.tensor.rowsparse import checked_shape
from asyncps.tensor.tablestep import Step as Step
from asyncps.tensor.words import MASTER
from asyncps_ext import sparse
from asyncps_ext.sparse_index import RangeIndex, RowIndex

Ids = npt.NDArray[np.int64]

# Up to here an index costs four bytes a row that exists (256 MiB), touched or not; beyond, some 30
# for each row that is used.
RANGE_ROWS = 1 << 26

# What a step of several passes works on at once: weights, gradient and state stay in the cache.
STEP_BYTES = 128 << 10


class Table:
    """Rows of one key on one server.

    Args:
        key: The key; it is part of what random first values come of.
        shape: The whole table, (rows, *row_shape), no dimension of a row zero.
        dtype: Of the values.
        initializer: What rows are before their first update.
        first, stop: The rows that this server keeps, first..stop-1; all by default. Ids are always
            those of the whole table.
        block_bytes: About how much memory is asked of the system at once.

    Raises:
        ShapeMismatch: A shape or a range that no table can have.
        ConfigError: The initializer cannot make values of this dtype.
    """

    def __init__(
        self, key: str | int, shape: tuple[int, ...], dtype: Dtype, initializer: Initializer, *,
        first: int = 0, stop: int | None = None, block_bytes: int = BLOCK_BYTES,
    ) -> None:
        self.shape = checked_shape(shape)
        self.first, self.stop = first, self.shape[0] if stop is None else stop
        if 0 in self.shape[1:] or not 0 <= self.first <= self.stop <= self.shape[0]:
            raise ShapeMismatch("no table can be like that", key=key, got=(shape, first, stop),
                                expected="rows of one element or more, 0 <= first <= stop <= rows")
        firstrows.check_usable(initializer, dtype)
        self.key, self.dtype, self.initializer = key, dtype, initializer
        self.width = int(np.prod(self.shape[1:], dtype=object))
        self._block_bytes = block_bytes
        self._index = self._new_index()
        self._values = RowBlocks(
            dtype.bits, self.width, self.stop - self.first, block_bytes=block_bytes
        )
        self._state: dict[str, RowBlocks] = {}
        self._known = Run(0, 0, 0)

    def _new_index(self) -> RangeIndex | RowIndex:
        is_dense = self.stop - self.first <= RANGE_ROWS
        return RangeIndex(self.first, self.stop) if is_dense else RowIndex()

    # ------------------------------------------------------------------------------------ reading

    def __len__(self) -> int:
        """How many rows have been made."""
        return len(self._index)

    @property
    def used_bytes(self) -> int:
        """Bytes that rows, their state and the index take (but for the ends of pages)."""
        row = self.width * (self.dtype.itemsize + len(self._state) * self.dtype.sum.itemsize)
        return len(self) * row + self._index.nbytes

    @property
    def reserved_bytes(self) -> int:
        """Bytes asked of the system; pages of it that no row has touched are not backed yet."""
        blocks = (self._values, *self._state.values())
        return sum(item.reserved_bytes for item in blocks) + self._index.nbytes

    def check(self, ids: Array) -> None:
        """Check the row ids of a request.

        Args:
            ids: int64 or uint32, as they came.

        Raises:
            TensorError: One is negative, not kept here, or not above the one before.
        """
        bad = sparse.check_ids(ids, self.stop)
        if bad < 0 and ids.size and ids[0] < self.first:
            bad = 0
        if bad >= 0:
            raise TensorError(
                f"row id at {bad} is out of order or range", key=self.key, got=ids[bad],
                expected=f"at least {self.first}, below {self.stop}, above the one before",
            )

    def gather(self, ids: Ids, out: Array) -> None:
        """Copy rows out; those used for the first time are made.

        Args:
            ids: int64[n], strictly ascending.
            out: n rows of stored values, `dtype.bits`, flat, written; the caller's.

        Raises:
            TensorError: A bad id. Nothing has been made or written then.
            ShapeMismatch, DtypeMismatch: out is not n such rows.
        """
        self.check(ids)
        self._check_rows(ids, out, self.dtype.bits)
        run = self._run_of(ids)
        if run >= 0:
            self._values.read_run(run, out)
        else:
            self._values.gather(self._slots(ids, make=True), out)

    def used_ids(self, count: int | None = None) -> Ids:
        """Return the ids of the `count` rows that were made first, ascending; of all by default."""
        return np.sort(self._index.items()[:count])

    @property
    def state_names(self) -> tuple[str, ...]:
        """Names of the arrays of optimizer state that there are."""
        return tuple(self._state)

    def gather_state(self, name: str, ids: Ids, out: Array) -> None:
        """Copy rows of optimizer state out, `dtype.sum`; arguments as for `gather`."""
        self.check(ids)
        self._check_rows(ids, out, self.dtype.sum)
        self._state[name].gather(self._slots(ids, make=True), out)

    # ------------------------------------------------------------------------------------ writing

    def assign(self, ids: Ids, stored: Array) -> None:
        """Let rows be these stored values (init by value, assign, checkpoints).

        Args:
            ids: int64[n], strictly ascending.
            stored: n rows, `dtype.bits`, flat; only read.

        Raises:
            As `gather`.
        """
        self.check(ids)
        self._check_rows(ids, stored, self.dtype.bits)
        self._store(ids, stored)

    def assign_state(self, name: str, ids: Ids, rows: Array) -> None:
        """Let rows of optimizer state be these, `dtype.sum`; arguments as for `assign`."""
        self.check(ids)
        self._check_rows(ids, rows, self.dtype.sum)
        slots = self._slots(ids, make=True)
        self._state_blocks(name).scatter(slots, rows)

    def apply(self, ids: Ids, sums: Array, step: Step | None) -> None:
        """Carry out one round.

        Args:
            ids: int64[k], strictly ascending: the rows with a gradient; may be none.
            sums: Their sums, k rows, `dtype.sum`, flat; of no use afterwards.
            step: The optimizer's step, or None: the table becomes these rows, and all others are
                zero from now on, as the value of a dense key becomes the sum of a round.

        Raises:
            TensorError: A bad id. Nothing has changed then.
            ShapeMismatch, DtypeMismatch: sums are not k such rows.
        """
        self.check(ids)
        self._check_rows(ids, sums, self.dtype.sum)
        if step is None:
            self._replace(ids, sums)
            return
        for name in self._needed(step):
            self._state_blocks(name)
        run = self._run_of(ids)
        if not step.lazy:
            self._make_all()
            self._step_all(self._slots(ids, make=True), sums, step)
        elif run >= 0:
            self._step_run(run, sums, step)
        else:
            self._step_some(self._slots(ids, make=True), sums, step)

    def reset(self, initializer: Initializer) -> None:
        """Drop all rows and their state; from now on rows begin as `initializer` says.

        Raises:
            ConfigError: It cannot make values of this dtype; nothing has changed.
        """
        firstrows.check_usable(initializer, self.dtype)
        self._state.clear()
        self._index, self._known = self._new_index(), Run(0, 0, 0)
        self._values = RowBlocks(self.dtype.bits, self.width, self.stop - self.first,
                                 block_bytes=self._block_bytes)
        self.initializer = initializer

    def forget_state(self) -> None:
        """Drop what an optimizer has kept; the f32 weights are the rows' own and stay."""
        self._state = {name: kept for name, kept in self._state.items() if name == MASTER}

    def _replace(self, ids: Ids, sums: Array) -> None:
        self._state.clear()
        if self._run_of(ids) < 0 or ids.size != len(self):
            # A new index is cheaper than zeros in rows that may never be asked for again.
            self._index, self._known = self._new_index(), Run(0, 0, 0)
        self.initializer = Zero()
        stored = sums
        if self.dtype.narrow is not None:
            stored = np.empty(sums.size, self.dtype.bits)
            self.dtype.narrow(stored, sums)
        self._store(ids, stored)

    # ----------------------------------------------------------------------------------- the steps

    def _rows_at_once(self) -> int:
        return max(1, STEP_BYTES // (self.width * self.dtype.sum.itemsize))

    def _step_some(self, slots: Ids, sums: Array, step: Step) -> None:
        """Update rows of any slots, all in one call where the optimizer works on what is stored."""
        names = self._needed(step)
        if self.dtype.widen is not None:
            self._step_copied(slots, sums, step, names)
        elif slots.size:
            w = self._values.rows(slots)
            self._run(step, w, sums, {name: self._state[name].rows(slots) for name in names})

    def _step_copied(self, slots: Ids, sums: Array, step: Step, names: tuple[str, ...]) -> None:
        """Copy a few rows together, update them while they are in the cache, copy them back."""
        many, width = min(self._rows_at_once(), slots.size), self.width
        w_room = np.empty(many * width, self.dtype.bits)
        rooms = {name: np.empty(many * width, self.dtype.sum) for name in names}
        for begin in range(0, slots.size, many or 1):
            part = slots[begin : begin + many]
            size = part.size * width
            w, g = w_room[:size], sums[begin * width : begin * width + size]
            state = {name: room[:size] for name, room in rooms.items()}
            self._values.gather(part, w)
            for name, room in state.items():
                self._state[name].gather(part, room)
            self._run(step, w, g, state)
            self._values.scatter(part, w)
            for name, room in state.items():
                self._state[name].scatter(part, room)

    def _step_run(self, first: int, sums: Array, step: Step) -> None:
        """Update neighbours where they lie."""
        stop = first + sums.size // self.width
        for begin, end in self._spans(first, stop):
            g = sums[(begin - first) * self.width : (end - first) * self.width]
            self._step_in_place(begin, end, g, step)

    def _step_all(self, slots: Ids, sums: Array, step: Step) -> None:
        """Update every row where it lies, with a gradient of zero where there is none."""
        order = np.argsort(slots)
        slots = slots[order]
        rows = sums.reshape(-1, self.width)
        for begin, end in self._spans(0, len(self)):
            low, high = np.searchsorted(slots, (begin, end))
            g = np.zeros((end - begin, self.width), self.dtype.sum)
            g[slots[low:high] - begin] = rows[order[low:high]]
            self._step_in_place(begin, end, g.reshape(-1), step)

    def _step_in_place(self, begin: int, end: int, g: Array, step: Step) -> None:
        w = self._values.view(begin, end)
        state = {name: self._state[name].view(begin, end) for name in self._needed(step)}
        self._run(step, w, g, state)

    def _run(self, step: Step, w: Array, g: Array, state: dict[str, Array]) -> None:
        updates.run(step.name, self.dtype, w, w, g, state, step.hyper, step.t,
                    ((self.key, 0, w.size),), step.master)

    def _spans(self, first: int, stop: int) -> list[tuple[int, int]]:
        """Runs of slots that lie in one block of the values and of every state."""
        cut = min((b for b in (self._values, *self._state.values())),
                  key=lambda blocks: blocks.rows_per_block)
        return list(cut.spans(first, stop, max(self._rows_at_once(), 1)))

    def _needed(self, step: Step) -> tuple[str, ...]:
        names = steps.STEPS[step.name].state_names(step.hyper)
        return (*names, MASTER) if step.master and self.dtype.widen is not None else names

    # ------------------------------------------------------------------------------------ the slots

    def _run_of(self, ids: Ids) -> int:
        """The first slot of ids that are neighbours and lie side by side, -1 of all others."""
        known = self._known
        if ids.size == 0 or ids[-1] - ids[0] != ids.size - 1:
            return -1
        if not known.first_id <= ids[0] <= ids[-1] < known.first_id + known.rows:
            return -1
        return known.first_slot + int(ids[0]) - known.first_id

    def _remember(self, ids: Ids, first_slot: int) -> None:
        """Note neighbours that were made at once, if there are more than in the run known so far.

        A table that is stored, pulled or pushed whole, at once or piece after piece, becomes one
        run; from then on such calls need no slots.
        """
        first, rows, known = int(ids[0]), ids.size, self._known
        if int(ids[-1]) - first != rows - 1:
            return
        if (first, first_slot) == (known.first_id + known.rows, known.first_slot + known.rows):
            self._known = Run(known.first_id, known.first_slot, known.rows + rows)
        elif rows > known.rows:
            self._known = Run(first, first_slot, rows)

    def _store(self, ids: Ids, stored: Array) -> None:
        run = self._run_of(ids)
        if run >= 0:
            self._values.write_run(run, stored)
            self._widen(run, run + ids.size)
            return
        slots = self._slots(ids, make=False)
        self._values.scatter(slots, stored)
        if MASTER in self._state and self.dtype.widen is not None:
            self._state[MASTER].scatter(slots, self.dtype.widened(stored))

    def _widen(self, first: int, stop: int) -> None:
        """Let the f32 weights of neighbouring slots, if there are any, be what is stored."""
        if MASTER in self._state and self.dtype.widen is not None:
            for begin, end in self._spans(first, stop):
                self.dtype.widen(self._state[MASTER].view(begin, end),
                                 self._values.view(begin, end))

    def _slots(self, ids: Ids, *, make: bool) -> Ids:
        """The slots of checked ids; new rows get their first values if `make`."""
        known = self._known
        if ids.size and known.first_id <= ids[0] and ids[-1] < known.first_id + known.rows:
            # Each lookup would be a miss of the cache, and this is none.
            return ids + (known.first_slot - known.first_id)
        before = len(self._index)
        slots: Ids = np.empty(ids.size, np.int64)
        new = self._index.insert(ids, slots)
        if new:
            self._values.grow(len(self._index))
            for blocks in self._state.values():
                blocks.grow(len(self._index))
            if new == ids.size:
                self._remember(ids, before)
            if make:
                self._make(ids if new == ids.size else ids[slots >= before], before)
        return slots

    def _make(self, ids: Ids, first: int) -> None:
        """Write the first values of new rows, which lie under neighbouring slots."""
        many = max(1, BLOCK_BYTES // (self.width * self.dtype.sum.itemsize))
        for begin, end in self._values.spans(first, first + ids.size, many):
            firstrows.write_rows(self.initializer, self.key, self.dtype, self.width,
                                 ids[begin - first : end - first], self._values.view(begin, end))
        self._widen(first, first + ids.size)

    def _make_all(self) -> None:
        if len(self) < self.stop - self.first:
            many = 1 << 20
            for first in range(self.first, self.stop, many):
                stop = min(first + many, self.stop)
                self._slots(np.arange(first, stop, dtype=np.int64), make=True)

    def _state_blocks(self, name: str) -> RowBlocks:
        blocks = self._state.get(name)
        if blocks is None:
            rows = self.stop - self.first
            blocks = RowBlocks(self.dtype.sum, self.width, rows, zero=True,
                               block_bytes=self._block_bytes)
            self._state[name] = blocks
            blocks.grow(len(self))
            if name == MASTER:
                self._widen(0, len(self))
        return blocks

    def _check_rows(self, ids: Ids, rows: Array, wanted: np.dtype[np.generic]) -> None:
        if ids.dtype != np.int64:
            raise DtypeMismatch("ids", key=self.key, expected="int64", got=ids.dtype)
        if rows.dtype != wanted:
            raise DtypeMismatch("rows of another dtype", key=self.key, expected=wanted,
                                got=rows.dtype)
        if rows.shape != (ids.size * self.width,):
            raise ShapeMismatch("not as many rows as ids", key=self.key, got=rows.shape,
                                expected=(ids.size * self.width,))
