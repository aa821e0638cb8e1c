"""A unit whose pushes are applied as they come: dist_async, and dist_ssp within its bound.

Every push is an update of its own. An answer is the value at that moment; asked again, after a cut
connection, it may be a newer one. So of all versions that a worker was sent only the last is kept
for it, and that only so that its bytes do not change while they are on their way.
"""

from __future__ import annotations

from collections.abc import Iterator

from asyncps.errors import AsyncPSError
from asyncps.roles.unit import Accumulator, Rules, Unit, Waiter, internal
from asyncps.state.staleness import Arrivals
from asyncps.tensor.dtypes import Dtype
from asyncps.tensor.pool import Bytes, Pool


class FreeUnit(Unit):
    """A chunk, a slab or a row of one whose pushes do not wait for each other's rounds.

    Attributes:
        open: Contributions that are ahead of the slowest member, by clock and, in `parts`, by rank.
        failed: Why the last push of a rank could not be applied, by rank.
        given: The clock of the last answer that each rank was given.
    """

    __slots__ = ("arrivals", "given")

    def __init__(self, dtype: Dtype, buffer: Bytes, pool: Pool, bound: int | None) -> None:
        super().__init__(dtype, buffer, pool)
        self.arrivals = Arrivals(bound)
        self.given: dict[int, int] = {}

    def contribute(
        self, rank: int, clock: int, buffer: Bytes, hyper: int, rules: Rules, now: float
    ) -> list[tuple[Waiter, int]]:
        """As `Unit.contribute`; what this one was waited for is applied with it."""
        try:
            fresh = self.arrivals.contribute(rank, clock)
        except AsyncPSError:
            self.pool.give(buffer)
            raise
        if not fresh:
            self.pool.give(buffer)
            return []
        held = self.open.get(clock)
        if held is None:
            held = self.open[clock] = Accumulator(now)
        held.parts[rank] = buffer
        held.hyper = max(held.hyper, hyper)
        return self._apply_all(rules, rank, now)

    def left(self, rules: Rules) -> Iterator[tuple[int, list[tuple[Waiter, int]]]]:
        """As `Unit.left`: what waited for whoever left."""
        waiters = self._apply_all(rules, None, 0.0)
        if waiters:
            yield 0, waiters

    def is_replay(self, rank: int, clock: int) -> bool:
        """As `Unit.is_replay`."""
        return self.arrivals.is_replay(rank, clock)

    def missing(self, clock: int, members: int) -> list[int]:
        """As `Unit.missing`."""
        return self.arrivals.missing(clock, members)

    def is_applied(self, rank: int, clock: int) -> bool:
        """As `Unit.is_applied`: a rank waits for its own pushes only."""
        return self.arrivals.is_applied(rank, clock)

    def give(self, waiter: Waiter, position: int) -> bool:
        """As `Unit.give`, with the value as it is now."""
        error = self.failed.get(waiter.rank)
        if waiter.data and error is not None:
            waiter.error = error
        elif waiter.data:
            bit = 1 << waiter.rank
            if self.old:
                self._forget(bit)
            self.current.owed |= bit
            self.given[waiter.rank] = waiter.clock
            waiter.parts[position] = self.current.view
        waiter.pending -= 1
        return waiter.pending == 0

    def arrived(self, rank: int, acked: int) -> None:
        """As `Unit.arrived`; at most one version is owed to a rank."""
        if self.given.get(rank, acked) < acked:
            del self.given[rank]
            bit = 1 << rank
            self.current.owed &= ~bit
            if self.old:
                self._release(bit, self.updates + 1)

    def assign(self, rank: int, clock: int, buffer: Bytes) -> None:
        """As `Unit.assign`."""
        if self.arrivals.is_applied(rank, clock + 1):
            self.pool.give(buffer)  # said again after a cut, and that worker has gone on
        else:
            self._publish(buffer, self.updates)

    def adopt(self, whole: Unit) -> None:
        """As `Unit.adopt`."""
        super().adopt(whole)
        assert isinstance(whole, FreeUnit)
        self.arrivals = whole.arrivals.copy()
        self.given = dict(whole.given)

    def agrees_with(self, other: Unit) -> bool:
        """As `Unit.agrees_with`."""
        assert isinstance(other, FreeUnit)
        return self.arrivals.agrees_with(other.arrivals) and self.given == other.given

    def _apply_all(
        self, rules: Rules, rank: int | None, now: float
    ) -> list[tuple[Waiter, int]]:
        """Apply all that may be; return whose waiting that ends."""
        ended: list[tuple[Waiter, int]] = []
        for clock, of in self.arrivals.applicable(rules.members):
            held = self.open[clock]
            mine = Accumulator(held.began)
            mine.count, mine.hyper = 1, held.hyper
            buffer = held.parts.pop(of)
            if not held.parts:
                del self.open[clock]
            if rank is not None and of != rank:
                rules.waited_s[rank] = rules.waited_s.get(rank, 0.0) + now - held.began
            rules.rounds += 1
            self.failed.pop(of, None)
            try:
                mine.add(self.dtype, buffer, self.pool)
                self._compute(mine, self.updates + 1, rules)
            except AsyncPSError as refused:
                self.failed[of] = refused
            except Exception as failed:  # noqa: BLE001 - logged there, and its pusher hears it
                self.failed[of] = internal(failed)
            self.arrivals.apply(of, clock)
            ended += self._end_waiting(of, clock)
        return ended

    def _end_waiting(self, rank: int, clock: int) -> list[tuple[Waiter, int]]:
        entries = self.parked.get(clock)
        if not entries:
            return []
        mine = [asker for asker in entries if asker[0] == rank]
        ended = [entries.pop(asker) for asker in mine]
        if not entries:
            del self.parked[clock]
        return ended

    def _forget(self, bit: int) -> None:
        """An older answer to this rank may be a newer one by now: keep none for it."""
        for version in self.old:
            version.owed &= ~bit
        # Not to the pool: they may still be on their way.
        self.old = [version for version in self.old if version.owed]
