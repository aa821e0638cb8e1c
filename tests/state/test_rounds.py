"""When is a round complete: members are counted, not requests."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncps.errors import RemoteProtocolError
from asyncps.state.rounds import CLOCK_WINDOW, FIRST, LAST, REPLAY, Rounds


def test_last_member_completes_the_round_and_not_the_last_request() -> None:
    rounds = Rounds()
    assert rounds.contribute(0, 1, 0b11) == FIRST
    assert rounds.contribute(0, 2, 0b11) == FIRST  # the same worker again: the next clock
    assert rounds.contribute(1, 1, 0b11) == LAST
    rounds.apply()
    assert rounds.applied == 1
    assert rounds.contribute(1, 2, 0b11) == LAST


def test_only_member_is_first_and_last() -> None:
    assert Rounds().contribute(3, 1, 1 << 3) == FIRST | LAST


def test_replay_is_recognised_before_and_after_its_round() -> None:
    rounds = Rounds()
    rounds.contribute(0, 1, 0b11)
    assert rounds.is_replay(0, 1)
    assert not rounds.is_replay(1, 1)
    assert rounds.contribute(0, 1, 0b11) == REPLAY
    rounds.contribute(1, 1, 0b11)
    rounds.apply()
    assert rounds.contribute(0, 1, 0b11) == REPLAY
    assert rounds.applied == 1


def test_skipped_clock_is_refused_and_counts_nothing() -> None:
    rounds = Rounds()
    with pytest.raises(RemoteProtocolError, match=r"rank 0.*expected 1, got 2"):
        rounds.contribute(0, 2, 0b11)
    assert rounds.contribute(0, 1, 0b11) == FIRST


def test_push_beyond_the_window_is_refused_and_counts_nothing() -> None:
    rounds = Rounds()
    for clock in range(1, CLOCK_WINDOW + 1):
        rounds.contribute(0, clock, 0b11)
    with pytest.raises(RemoteProtocolError, match="window"):
        rounds.contribute(0, CLOCK_WINDOW + 1, 0b11)
    assert len(rounds.open) == CLOCK_WINDOW
    rounds.contribute(1, 1, 0b11)
    rounds.apply()
    assert rounds.contribute(0, CLOCK_WINDOW + 1, 0b11) == FIRST


def test_missing_names_ranks_ascending_and_none_of_an_applied_clock() -> None:
    rounds = Rounds()
    rounds.contribute(1, 1, 0b1111)
    assert rounds.missing(1, 0b1111) == [0, 2, 3]
    assert rounds.missing(2, 0b1111) == [0, 1, 2, 3]
    assert rounds.missing(0, 0b1111) == []


def test_copy_is_independent() -> None:
    rounds = Rounds()
    rounds.contribute(0, 1, 0b11)
    other = rounds.copy()
    other.contribute(1, 1, 0b11)
    other.apply()
    assert (rounds.applied, rounds.open, rounds.pushed) == (0, {1: 1}, {0: 1})


def test_rows_agree_at_equal_clocks_with_nothing_open() -> None:
    one, two = Rounds(), Rounds()
    assert one.agrees_with(two)
    one.contribute(0, 1, 0b1)
    assert not one.agrees_with(two)
    one.apply()
    assert not one.agrees_with(two)
    two.contribute(0, 1, 0b1)
    two.apply()
    assert one.agrees_with(two)


@given(
    members=st.integers(1, 4),
    events=st.lists(st.tuples(st.integers(0, 3), st.integers(-2, 3)), max_size=60),
)
def test_each_push_counts_once_under_any_order_and_duplicates(
    members: int, events: list[tuple[int, int]]
) -> None:
    rounds, mask = Rounds(), (1 << members) - 1
    pushed = [0] * members  # the naive model: how many clocks of each rank have counted
    applied = 0
    for rank, offset in events:
        rank %= members
        clock = max(1, pushed[rank] + offset)
        replay, skips = clock <= pushed[rank], clock > pushed[rank] + 1
        beyond = clock > applied + CLOCK_WINDOW
        assert rounds.is_replay(rank, clock) == replay
        if not replay and (skips or beyond):
            with pytest.raises(RemoteProtocolError):
                rounds.contribute(rank, clock, mask)
        else:
            first = all(count < clock for count in pushed)
            verdict = rounds.contribute(rank, clock, mask)
            if replay:
                assert verdict == REPLAY
            else:
                pushed[rank] = clock
                last = min(pushed) == clock == applied + 1
                assert verdict == (FIRST if first else 0) | (LAST if last else 0)
                if last:
                    rounds.apply()
                    applied += 1
        assert rounds.applied == applied
        assert applied == min(pushed)
        assert len(rounds.open) <= CLOCK_WINDOW
        assert all(clock > applied for clock in rounds.open)
        for ahead in range(1, CLOCK_WINDOW + 1):
            behind = [r for r in range(members) if pushed[r] < applied + ahead]
            assert rounds.missing(applied + ahead, mask) == behind


def test_push_for_a_round_that_is_over_is_refused() -> None:
    """It is of a worker that nobody waited for: as a replay it would vanish without a word."""
    rounds = Rounds()
    rounds.contribute(0, 1, 0b01)
    rounds.apply()
    with pytest.raises(RemoteProtocolError, match="a round that is over"):
        rounds.contribute(1, 1, 0b11)
    assert rounds.contribute(0, 1, 0b11) == REPLAY
