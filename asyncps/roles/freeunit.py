"""A unit whose pushes are applied as they come: dist_async, and dist_ssp within its bound.

Every push is an update of its own. An answer is the value at that moment; asked again, after a cut
connection, it may be a newer one. So an old version is kept for nobody to ask for: it only waits
until its last answer has arrived and its memory can be used again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from asyncps.errors import AsyncPSError
from asyncps.roles.accumulator import Accumulator
from asyncps.roles.encoded import Contribution, drop
from asyncps.roles.thinned import grant
from asyncps.roles.unit import Rules, Unit, Waiter, internal
from asyncps.state.staleness import Arrivals
from asyncps.tensor import updates
from asyncps.tensor.dtypes import Dtype
from asyncps.tensor.pool import Bytes, Pool
from asyncps.tensor.words import Span

_EVERY = 1 << 63  # above any clock


class FreeUnit(Unit):
    """A chunk, a slab or a row of one whose pushes do not wait for each other's rounds.

    Attributes:
        open: Contributions that are ahead of the slowest member, by (clock, rank).
        failed: Why the last push of a rank could not be applied, by rank.
        given: The highest clock at which each rank was given an answer that may be on its way.
        assigned: The last request by which each rank assigned.
    """

    __slots__ = ("arrivals", "assigned", "given")

    def __init__(
        self, dtype: Dtype, buffer: Bytes, pool: Pool, bound: int | None,
        spans: Sequence[Span] = (),
    ) -> None:
        super().__init__(dtype, buffer, pool, spans)
        self.arrivals = Arrivals(bound)
        self.given: dict[int, int] = {}
        self.assigned: dict[int, int] = {}

    def is_fresh(self) -> bool:
        """As `Unit.is_fresh`."""
        return super().is_fresh() and not (self.arrivals.pushed or self.given or self.assigned)

    def contribute(
        self, rank: int, clock: int, buffer: Contribution, hyper: int, rules: Rules, now: float
    ) -> list[tuple[Waiter, int]]:
        """As `Unit.contribute`; what this one was waited for is applied with it."""
        try:
            fresh = self.arrivals.contribute(rank, clock)
        except AsyncPSError:
            drop(buffer, self.pool)
            raise
        if not fresh:
            drop(buffer, self.pool)
            return []
        held = self.open[clock, rank] = Accumulator(now)
        held.keep(rank, buffer, self.dtype, self.pool)
        held.count, held.hyper = 1, hyper
        if rules.own is not None:
            rules.own.advance(self)
            return []
        return self._apply_all(self.arrivals.applicable(rules.members), rules, rank, now)

    def left(self, rules: Rules) -> Iterator[tuple[int, list[tuple[Waiter, int]]]]:
        """As `Unit.left`: what waited for whoever left."""
        if rules.own is not None:
            rules.own.advance(self)
            return
        waiters = self._apply_all(self.ready(rules.members), rules, None, 0.0)
        if waiters:
            yield 0, waiters

    def ready(self, members: int) -> list[tuple[int, int]]:
        """As `Unit.ready`."""
        return self.arrivals.applicable(members)

    def held(self, clock: int, rank: int) -> Accumulator:
        """As `Unit.held`."""
        held: Accumulator = self.open[clock, rank]
        return held

    def apply(self, clock: int, rank: int, rules: Rules) -> list[tuple[Waiter, int]]:
        """As `Unit.apply`, with one push of a rank."""
        return self._apply_all([(clock, rank)], rules, None, 0.0)

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
        rank, clock = waiter.rank, waiter.clock
        error = self.failed.get(rank) if self.arrivals.done.get(rank) == clock else None
        if not waiter.data or waiter.error is not None:
            pass
        elif error is not None:
            waiter.error = error
        else:
            bit = 1 << rank
            if self.old:
                # One that this rank was sent may still be on its way when it says that the new one
                # has arrived. So it is dropped, and does not go to the pool.
                self.old = [version for version in self.old if not version.owed & bit]
            self.given[rank] = max(clock, self.given.get(rank, 0))
            if waiter.wish is None:
                self.current.owed |= bit
                waiter.parts[position] = self.current.view
            else:
                grant(self, self.current, waiter, position)
        waiter.pending -= 1
        return waiter.pending == 0

    def arrived(self, rank: int, acked: int) -> None:
        """As `Unit.arrived`."""
        if self.given.get(rank, acked) < acked:
            del self.given[rank]
            bit = 1 << rank
            self.current.owed &= ~bit
            if self.old:
                self._release(bit, _EVERY)

    def assign(self, rank: int, clock: int, request: int, buffer: Bytes) -> None:
        """As `Unit.assign`; a repetition would undo what others have pushed since."""
        if request <= self.assigned.get(rank, 0):
            self.pool.give(buffer)
        else:
            self.assigned[rank] = request
            self.forget_failures()
            self.state.pop(updates.MASTER, None)
            self.publish(buffer, self.updates)

    def adopt(self, other: Unit) -> None:
        """As `Unit.adopt`."""
        assert isinstance(other, FreeUnit)
        self.arrivals = other.arrivals.copy()
        for rank, request in other.assigned.items():
            self.assigned[rank] = max(request, self.assigned.get(rank, 0))

    def keep_versions(self, whole: Unit, begin: int, end: int) -> None:
        """As `Unit.keep_versions`: none, for what is on its way is made of the whole's memory."""

    def agrees_with(self, other: Unit) -> bool:
        """As `Unit.agrees_with`; what rows were answered with is made of their own memory."""
        assert isinstance(other, FreeUnit)
        return self.arrivals.agrees_with(other.arrivals)

    def _apply_all(
        self, pushes: Sequence[tuple[int, int]], rules: Rules, rank: int | None, now: float
    ) -> list[tuple[Waiter, int]]:
        """Apply some pushes, now that `rank` has pushed; return whose waiting that ends."""
        ended: list[tuple[Waiter, int]] = []
        for clock, of in pushes:
            held = self.open.pop((clock, of))
            if rank is not None and of != rank:
                rules.waited_s[rank] = rules.waited_s.get(rank, 0.0) + now - held.began
            rules.rounds += 1
            self.failed.pop(of, None)
            try:
                self._compute(held, self.updates, rules)
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
        ended = [entries.pop(asker) for asker in list(entries) if asker[0] == rank]
        if not entries:
            del self.parked[clock]
        for waiter, _ in ended:
            # Now, for the next push of that rank may be applied before they are given their part.
            if waiter.data and rank in self.failed:
                waiter.error = self.failed[rank]
        return ended
