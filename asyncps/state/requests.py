"""What a worker knows of one unit: which clocks it has pushed, and which answers it waits for.

A chunk is a unit of one row. The rows of a slab move together as long as whole slabs are pushed
and pulled; then everything below is a few integers. Once some rows are spoken of alone, every row
has its own clock until they are equal again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from asyncps.state.rounds import CLOCK_WINDOW

Rows = Sequence[int] | None  # None: all of them


class Step(NamedTuple):
    """Rows that stand at one clock, as one frame may name them.

    Attributes:
        clock: The round.
        rows: Which rows, None for all.
        wait_for: A clock that must be known to be applied before a push may go, 0 for none.
    """

    clock: int
    rows: Rows
    wait_for: int


class UnitTrack:
    """The clocks of one unit at one worker.

    Args:
        rows: How many rows it has.
        window: How many clocks may be open before a push waits; None for any number.
    """

    __slots__ = ("_applied", "_applied_rows", "_clock", "_clocks", "_waiting", "rows", "window")

    def __init__(self, rows: int, window: int | None = CLOCK_WINDOW) -> None:
        self.rows = rows
        self.window = window
        self._clock = 0  # of all rows, while `_clocks` is None
        self._clocks: list[int] | None = None
        self._applied = 0  # known to be applied, for all rows, while `_applied_rows` is None
        self._applied_rows: list[int] | None = None
        self._waiting: dict[int, tuple[int, Rows]] = {}

    @property
    def furthest(self) -> int:
        """The last clock that any row was pushed at."""
        return self._clock if self._clocks is None else max(self._clocks, default=0)

    def clock_of(self, row: int) -> int:
        """Return the last clock that a row was pushed at. Any thread."""
        clocks = self._clocks
        return self._clock if clocks is None else clocks[row]

    def grow(self, rows: int) -> None:
        """Take note that the slab has more rows now; new ones begin at clock 0."""
        extra = rows - self.rows
        if extra <= 0:
            return
        if self._clock or self._clocks is not None:
            self._clocks = [*self._split(), *[0] * extra]
        if self._applied or self._applied_rows is not None:
            self._applied_rows = [*self._split_applied(), *[0] * extra]
        known = range(self.rows)
        for request, (clock, named) in self._waiting.items():
            self._waiting[request] = (clock, known if named is None else named)
        self.rows = rows

    def push(self, rows: Rows = None) -> list[Step]:
        """Begin the next round of some rows; each step is one frame."""
        steps = self.coming(rows)
        for step in steps:
            self.begin(step)
        return steps

    def coming(self, rows: Rows = None) -> list[Step]:
        """Return what `push` would; nothing changes until each of them is begun."""
        if self._clocks is None:
            clock = self._clock + 1
            named = None if rows is None or len(rows) == self.rows else rows
            return [Step(clock, named, self._must_wait(clock, named))]
        chosen = range(self.rows) if rows is None else rows
        groups: dict[int, list[int]] = {}
        for row in chosen:
            groups.setdefault(self._clocks[row] + 1, []).append(row)
        steps = [
            Step(clock, members, self._must_wait(clock, members))
            for clock, members in groups.items()
        ]
        if len(steps) == 1 and len(chosen) == self.rows:
            return [steps[0]._replace(rows=None)]
        return steps

    def next(self, rows: Rows = None) -> Step | None:
        """Return what `push` would, if that is one step that need not wait; nothing changes."""
        clock = self._clock
        if self._clocks is not None:
            clocks = {self._clocks[row] for row in (range(self.rows) if rows is None else rows)}
            if len(clocks) != 1:
                return None
            clock = clocks.pop()
        if self._must_wait(clock + 1, rows):
            return None
        whole = rows is None or len(rows) == self.rows
        return Step(clock + 1, None if whole else rows, 0)

    def begin(self, step: Step) -> None:
        """Let a step that `next` or `coming` gave be taken; a second time it changes nothing."""
        clock, rows, _ = step
        if self._clocks is None and rows is None:
            self._clock = max(self._clock, clock)
            return
        clocks = self._split()
        for row in range(self.rows) if rows is None else rows:
            clocks[row] = max(clocks[row], clock)
        self._clocks = clocks
        self._merge()

    def pull(self, rows: Rows = None) -> list[Step]:
        """Return the clocks that a pull of some rows must see: this worker's last pushes."""
        if self._clocks is None:
            return [Step(self._clock, rows, 0)]
        groups: dict[int, list[int]] = {}
        for row in range(self.rows) if rows is None else rows:
            groups.setdefault(self._clocks[row], []).append(row)
        return [Step(clock, members, 0) for clock, members in groups.items()]

    def catch_up(self, clocks: Sequence[int]) -> None:
        """Take the server's clocks of this worker where they are ahead; all of those are applied.

        Args:
            clocks: One for each row that the server has, from the first on.
        """
        ours, applied = list(self._split()), list(self._split_applied())
        for row, clock in enumerate(clocks[: self.rows]):
            if clock > ours[row]:
                ours[row] = applied[row] = clock
        self._clocks, self._applied_rows = ours, applied
        self._merge()
        if min(applied, default=0) == max(applied, default=0):
            self._applied, self._applied_rows = max(applied, default=0), None

    def must_wait(self, step: Step) -> int:
        """Return the clock that a push has to wait for, as known now; 0 for none."""
        return self._must_wait(step.clock, step.rows)

    def asked(self, request: int, clock: int, rows: Rows) -> None:
        """A request that brings the value of a clock, or word of it, is on its way."""
        self._waiting[request] = (clock, rows)

    @property
    def waits(self) -> bool:
        """Whether an answer is still to come."""
        return bool(self._waiting)

    def answered(self, request: int) -> None:
        """The value, or the word that it is there, has come: that clock is applied."""
        clock, rows = self._waiting.pop(request, (0, None))
        if rows is None and self._applied_rows is None:
            self._applied = max(self._applied, clock)
            return
        known = self._applied_rows = self._split_applied()
        for row in range(self.rows) if rows is None else rows:
            known[row] = max(known[row], clock)
        if min(known) == max(known):
            self._applied, self._applied_rows = known[0], None

    def failed(self, request: int) -> None:
        """A request was answered with an error: nothing more will come of it."""
        self._waiting.pop(request, None)

    def floor(self, step: Step) -> int:
        """Return the clock below which every value of these rows has arrived."""
        floor = step.clock
        for clock, rows in self._waiting.values():
            if clock < floor and (
                rows is None or step.rows is None or not set(rows).isdisjoint(step.rows)
            ):
                floor = clock
        return floor

    def _must_wait(self, clock: int, rows: Rows) -> int:
        need = 0 if self.window is None else clock - self.window
        if need <= 0:
            return 0
        if self._applied_rows is None:
            known = self._applied
        else:
            chosen = range(self.rows) if rows is None else rows
            known = min(self._applied_rows[row] for row in chosen)
        return 0 if known >= need else need

    def _split(self) -> list[int]:
        return [self._clock] * self.rows if self._clocks is None else self._clocks

    def _split_applied(self) -> list[int]:
        if self._applied_rows is None:
            return [self._applied] * self.rows
        return self._applied_rows

    def _merge(self) -> None:
        clocks = self._clocks
        if clocks and min(clocks) == max(clocks):
            self._clock, self._clocks = clocks[0], None
