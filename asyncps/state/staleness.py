"""Pushes that are applied as they come: which may be, and which must wait for the slowest?

In dist_async every push is applied when it arrives. In dist_ssp a worker's clock c of a unit is
applied only when the slowest member has pushed clock c - s: nobody is ever more than s clocks
ahead (Ho et al., "More Effective Distributed ML via a Stale Synchronous Parallel Parameter
Server", 2013). Every rank has clocks of its own; a replay is recognised and never counted twice.
"""

from __future__ import annotations

from asyncps.state.rounds import check_next, ranks_of


class Arrivals:
    """The clocks of one unit, rank by rank.

    Args:
        bound: How many clocks a worker may be ahead of the slowest; None for any number.

    Attributes:
        pushed: The last clock that each rank pushed; absent means 0.
        done: The last clock of each rank that was applied.
    """

    __slots__ = ("bound", "done", "pushed")

    def __init__(self, bound: int | None) -> None:
        self.bound = bound
        self.pushed: dict[int, int] = {}
        self.done: dict[int, int] = {}

    def is_replay(self, rank: int, clock: int) -> bool:
        """Tell whether this contribution was counted before."""
        return clock <= self.pushed.get(rank, 0)

    def is_applied(self, rank: int, clock: int) -> bool:
        """Tell whether the value has seen this rank's pushes up to a clock."""
        return clock <= self.done.get(rank, 0)

    def contribute(self, rank: int, clock: int) -> bool:
        """Count a contribution; False for a replay.

        Raises:
            RemoteProtocolError: A clock that skips one, or beyond the window.
        """
        last = self.pushed.get(rank, 0)
        if clock <= last:
            return False
        check_next(rank, clock, last, self.done.get(rank, 0))
        self.pushed[rank] = clock
        return True

    def applicable(self, members: int) -> list[tuple[int, int]]:
        """Return (clock, rank) of all contributions that may be applied now, in their order.

        Args:
            members: One bit for each rank that may be the slowest.
        """
        limit = self._limit(members)
        return sorted(
            (clock, rank)
            for rank, last in self.pushed.items()
            for clock in range(
                self.done.get(rank, 0) + 1, (last if limit is None else min(last, limit)) + 1
            )
        )

    def apply(self, rank: int, clock: int) -> None:
        """A contribution was applied."""
        self.done[rank] = clock

    def count_again(self, members: int) -> None:
        """All have joined and nothing is held: whoever was behind stands where the furthest does.

        Else it would be the slowest of the next epoch from its beginning.
        """
        assert all(self.done.get(rank, 0) == clock for rank, clock in self.pushed.items())
        furthest = max(self.pushed.values(), default=0)
        self.pushed = dict.fromkeys(ranks_of(members), furthest) if furthest else {}
        self.done = dict(self.pushed)

    def missing(self, clock: int, members: int) -> list[int]:
        """Return the ranks that somebody's clock waits for, ascending."""
        if self.bound is None:
            return []
        need = clock - self.bound
        return [
            rank for rank in range(members.bit_length())
            if members >> rank & 1 and self.pushed.get(rank, 0) < need
        ]

    def copy(self) -> Arrivals:
        """Return an independent copy, for a row that leaves its slab."""
        other = Arrivals(self.bound)
        other.pushed = dict(self.pushed)
        other.done = dict(self.done)
        return other

    def agrees_with(self, other: Arrivals) -> bool:
        """Tell whether two rows stand at the same clocks with nothing held."""
        return self.pushed == other.pushed == self.done == other.done

    def _limit(self, members: int) -> int | None:
        """Return the highest clock that may be applied, None for no limit."""
        if self.bound is None or not members:
            return None
        slowest = min(
            self.pushed.get(rank, 0)
            for rank in range(members.bit_length()) if members >> rank & 1
        )
        return slowest + self.bound
