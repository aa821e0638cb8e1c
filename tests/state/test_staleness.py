"""Which pushes may be applied as they come: each once, and nobody too far ahead of the slowest."""

from __future__ import annotations

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from asyncps.errors import RemoteProtocolError
from asyncps.state.rounds import CLOCK_WINDOW
from asyncps.state.staleness import Arrivals

TWO, THREE = 0b11, 0b111


def push(arrivals: Arrivals, members: int, rank: int, clock: int) -> list[tuple[int, int]]:
    """Contribute, and apply what may be; returns (clock, rank) of what was."""
    assert arrivals.contribute(rank, clock)
    found = arrivals.applicable(members)
    for applied, of in found:
        arrivals.apply(of, applied)
    return found


def test_without_a_bound_each_push_is_applied_when_it_comes() -> None:
    arrivals = Arrivals(None)
    for clock in range(1, 50):
        assert push(arrivals, TWO, 0, clock) == [(clock, 0)]
        assert arrivals.missing(clock + 1, TWO) == []
    assert push(arrivals, TWO, 1, 1) == [(1, 1)]


@pytest.mark.parametrize("bound", [1, 2, 3])
def test_push_beyond_the_bound_waits_for_the_slowest(bound: int) -> None:
    arrivals = Arrivals(bound)
    for clock in range(1, bound + 1):
        assert push(arrivals, TWO, 0, clock) == [(clock, 0)]
    assert push(arrivals, TWO, 0, bound + 1) == []
    assert arrivals.is_applied(0, bound)
    assert not arrivals.is_applied(0, bound + 1)
    assert arrivals.missing(bound + 1, TWO) == [1]
    assert push(arrivals, TWO, 1, 1) == [(1, 1), (bound + 1, 0)]


def test_the_slowest_is_the_one_that_is_waited_for_and_others_are_not() -> None:
    arrivals = Arrivals(1)
    push(arrivals, THREE, 0, 1)
    assert push(arrivals, THREE, 0, 2) == []
    assert arrivals.missing(2, THREE) == [1, 2]
    assert push(arrivals, THREE, 1, 1) == [(1, 1)]
    assert arrivals.missing(2, THREE) == [2]
    assert push(arrivals, THREE, 2, 1) == [(1, 2), (2, 0)]
    assert arrivals.missing(2, THREE) == []


def test_what_waited_is_applied_by_clock_and_then_by_rank() -> None:
    arrivals = Arrivals(1)
    for rank in (2, 1):
        push(arrivals, 0b1111, rank, 1)
        push(arrivals, 0b1111, rank, 2)
    push(arrivals, 0b1111, 0, 1)
    assert push(arrivals, 0b1111, 3, 1) == [(1, 3), (2, 1), (2, 2)]


def test_replay_counts_nothing_before_and_after_it_is_applied() -> None:
    arrivals = Arrivals(1)
    push(arrivals, TWO, 0, 1)
    push(arrivals, TWO, 0, 2)
    for clock in (1, 2):
        assert arrivals.is_replay(0, clock)
        assert not arrivals.contribute(0, clock)
    assert not arrivals.is_replay(1, 1)
    assert arrivals.applicable(TWO) == []


def test_skipped_clock_is_refused_and_counts_nothing() -> None:
    arrivals = Arrivals(None)
    with pytest.raises(RemoteProtocolError, match=r"rank 0.*expected 1, got 2"):
        arrivals.contribute(0, 2)
    assert push(arrivals, TWO, 0, 1) == [(1, 0)]


def test_push_beyond_the_window_is_refused_and_counts_nothing() -> None:
    arrivals = Arrivals(1)
    for clock in range(1, 2 + CLOCK_WINDOW):
        push(arrivals, TWO, 0, clock)
    with pytest.raises(RemoteProtocolError, match="window"):
        arrivals.contribute(0, 2 + CLOCK_WINDOW)
    assert arrivals.pushed == {0: 1 + CLOCK_WINDOW}


def test_member_that_leaves_is_no_longer_the_slowest() -> None:
    arrivals = Arrivals(1)
    for clock in (1, 2, 3):
        push(arrivals, THREE, 0, clock)
    push(arrivals, THREE, 1, 1)
    assert arrivals.applicable(0b011) == [(2, 0)]
    assert arrivals.applicable(0b001) == [(2, 0), (3, 0)]


def test_what_the_last_members_pushed_before_they_left_is_applied() -> None:
    arrivals = Arrivals(1)
    for clock in (1, 2, 3):
        push(arrivals, TWO, 0, clock)
    assert arrivals.applicable(0) == [(2, 0), (3, 0)]


def test_copy_is_independent() -> None:
    arrivals = Arrivals(2)
    push(arrivals, TWO, 0, 1)
    other = arrivals.copy()
    assert other.bound == 2
    push(other, TWO, 0, 2)
    assert (arrivals.pushed, arrivals.done) == ({0: 1}, {0: 1})


def test_rows_agree_at_equal_clocks_with_nothing_held() -> None:
    one, two = Arrivals(1), Arrivals(1)
    assert one.agrees_with(two)
    push(one, TWO, 0, 1)
    assert not one.agrees_with(two)
    push(two, TWO, 0, 1)
    assert one.agrees_with(two)
    for arrivals in (one, two):
        assert push(arrivals, TWO, 0, 2) == []
    assert not one.agrees_with(two)


class ArrivalsMachine(RuleBasedStateMachine):
    """The model keeps, for each rank, which clocks it pushed, and which of them were applied."""

    @initialize(count=st.integers(1, 4), bound=st.sampled_from([None, 1, 2, 3]))
    def start(self, count: int, bound: int | None) -> None:
        self.arrivals, self.bound = Arrivals(bound), bound
        self.members = set(range(count))
        self.pushed: dict[int, list[int]] = {rank: [] for rank in range(count)}
        self.applied: dict[int, list[int]] = {rank: [] for rank in range(count)}

    @property
    def _mask(self) -> int:
        return sum(1 << rank for rank in self.members)

    @rule(data=st.data(), offset=st.integers(-3, 3))
    def push(self, data: st.DataObject, offset: int) -> None:
        if not self.members:
            return
        rank = data.draw(st.sampled_from(sorted(self.members)))
        mine = self.pushed[rank]
        clock = max(1, len(mine) + offset)
        assert self.arrivals.is_replay(rank, clock) == (clock in mine)
        held = len(mine) - len(self.applied[rank])
        if clock in mine:
            assert not self.arrivals.contribute(rank, clock)
        elif clock != len(mine) + 1 or held == CLOCK_WINDOW:
            with pytest.raises(RemoteProtocolError):
                self.arrivals.contribute(rank, clock)
        else:
            assert self.arrivals.contribute(rank, clock)
            mine.append(clock)
        self._apply()

    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        if self.members:
            self.members.discard(data.draw(st.sampled_from(sorted(self.members))))
            self._apply()

    def _apply(self) -> None:
        for clock, rank in self.arrivals.applicable(self._mask):
            assert clock == len(self.applied[rank]) + 1, "out of turn, or twice"
            self.applied[rank].append(clock)
            self.arrivals.apply(rank, clock)

    @invariant()
    def nobody_is_too_far_ahead_and_nobody_waits_without_need(self) -> None:
        if not hasattr(self, "arrivals"):
            return
        slowest = min((len(self.pushed[rank]) for rank in self.members), default=None)
        for rank, pushed in self.pushed.items():
            may = len(pushed)
            # Whoever has left slows nobody down, and what was applied before stays.
            if self.bound is not None and slowest is not None:
                may = min(may, slowest + self.bound)
                if rank in self.members:
                    assert len(self.applied[rank]) <= slowest + self.bound
            assert len(self.applied[rank]) == may
            for clock in range(1, len(pushed) + 2):
                assert self.arrivals.is_applied(rank, clock) == (clock <= may)
                slow = [] if self.bound is None else [
                    other for other in sorted(self.members)
                    if len(self.pushed[other]) < clock - self.bound
                ]
                assert self.arrivals.missing(clock, self._mask) == slow


TestArrivals = ArrivalsMachine.TestCase
