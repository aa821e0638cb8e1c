"""When is a round of a unit complete? Counting members, not requests.

In dist_sync the server completes clock c of a unit when every member has contributed to clock c. A
second push of a worker belongs to the next clock; a replay is recognised and never counted twice.
Ranks are bits of one integer, so that a whole membership compares at once.
"""

from __future__ import annotations

from asyncps.errors import RemoteProtocolError

# Bits of a verdict.
REPLAY = 1  # this rank has contributed to this clock before: answer, do not count
FIRST = 2  # the first contribution to this clock: it becomes the accumulator
LAST = 4  # every member has contributed: apply the round

# How many clocks of one unit may be open. A worker may be one push ahead of the slowest, and
# every open clock costs an accumulator.
CLOCK_WINDOW = 2


def check_next(rank: int, clock: int, last: int, applied: int) -> None:
    """Refuse a push that is not the next of its rank, or too far ahead of what is applied.

    Raises:
        RemoteProtocolError: A clock that skips one, or beyond the window.
    """
    if clock != last + 1:
        raise RemoteProtocolError("a push skips a clock", rank=rank, expected=last + 1, got=clock)
    if clock > applied + CLOCK_WINDOW:
        raise RemoteProtocolError("a push beyond the clock window", rank=rank,
                                  expected=f"at most {applied + CLOCK_WINDOW}", got=clock)


def ranks_of(members: int) -> list[int]:
    """Return the ranks that are bits of a number, ascending."""
    return [rank for rank in range(members.bit_length()) if members >> rank & 1]


class Rounds:
    """The clocks of one unit.

    Attributes:
        applied: The last clock that was applied; 0 after init.
        pushed: The last clock that each rank contributed to; absent means 0.
        open: Contributors by open clock, one bit a rank.
    """

    __slots__ = ("applied", "open", "pushed")

    def __init__(self) -> None:
        self.applied = 0
        self.pushed: dict[int, int] = {}
        self.open: dict[int, int] = {}

    def is_replay(self, rank: int, clock: int) -> bool:
        """Tell whether this contribution was counted before."""
        return clock <= self.pushed.get(rank, 0)

    def contribute(self, rank: int, clock: int, members: int) -> int:
        """Count a contribution; return a verdict.

        Args:
            rank: Who contributes.
            clock: The round that it belongs to.
            members: One bit for each rank that the round waits for.

        Raises:
            RemoteProtocolError: A clock that skips one, of a round that is over, or beyond the
                window.
        """
        last = self.pushed.get(rank, 0)
        if clock <= last:
            return REPLAY
        if clock <= self.applied:
            raise RemoteProtocolError("a push for a round that is over", rank=rank,
                                      expected=f"at least {self.applied + 1}", got=clock)
        check_next(rank, clock, last, self.applied)
        self.pushed[rank] = clock
        before = self.open.get(clock, 0)
        after = before | 1 << rank
        self.open[clock] = after
        verdict = 0 if before else FIRST
        if after & members == members and clock == self.applied + 1:
            verdict |= LAST
        return verdict

    def is_complete(self, members: int) -> bool:
        """Tell whether the next clock may be applied: somebody contributed, and all members."""
        given = self.open.get(self.applied + 1, 0)
        return bool(given) and given & members == members

    def complete(self, members: int) -> range:
        """Return the clocks that may be applied one after the other, ascending."""
        end = self.applied + 1
        while (given := self.open.get(end, 0)) and given & members == members:
            end += 1
        return range(self.applied + 1, end)

    def apply(self) -> None:
        """Move on to the clock that is complete."""
        self.applied += 1
        self.open.pop(self.applied, None)

    def count_again(self, members: int) -> None:
        """All have joined and no round is open: whoever was behind stands where the others do."""
        assert not self.open
        self.pushed = dict.fromkeys(ranks_of(members), self.applied) if self.applied else {}

    def missing(self, clock: int, members: int) -> list[int]:
        """Return the ranks that a clock waits for, ascending."""
        if clock <= self.applied:
            return []
        return ranks_of(members & ~self.open.get(clock, 0))

    def copy(self) -> Rounds:
        """Return an independent copy, for a row that leaves its slab."""
        other = Rounds()
        other.applied = self.applied
        other.pushed = dict(self.pushed)
        other.open = dict(self.open)
        return other

    def agrees_with(self, other: Rounds) -> bool:
        """Tell whether two rows stand at the same clocks with nothing open."""
        return (
            self.applied == other.applied
            and not self.open
            and not other.open
            and self.pushed == other.pushed
        )
