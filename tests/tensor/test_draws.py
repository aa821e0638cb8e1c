"""Numbers of pushes: those of their rounds, whatever a worker has missed."""

from __future__ import annotations

from asyncps.tensor.draws import Draws


def test_pushes_that_have_not_begun_are_counted() -> None:
    draws = Draws()
    assert [draws.next(0), draws.next(0), draws.next(1)] == [1, 2, 3]


def test_who_was_away_is_brought_on_by_the_clock() -> None:
    draws = Draws()
    assert draws.next(0) == 1
    assert draws.next(7) == 8
    assert draws.next(7) == 9  # that one has not begun


def test_a_number_that_was_not_used_is_the_next_ones() -> None:
    draws = Draws()
    draws.next(0)
    draws.next(1)
    draws.undo()
    assert draws.next(1) == 2
    draws.next(2)
    draws.undo()
    assert draws.next(5) == 6  # others have gone on


def test_numbers_go_on_behind_those_of_a_checkpoint() -> None:
    draws = Draws()
    draws.next(3)
    draws.restore(20, 4)
    assert draws.number == 20
    assert [draws.next(4), draws.next(4), draws.next(9)] == [21, 22, 26]
    draws.restore(5, 30)
    assert draws.next(30) == 6


def test_a_checkpoint_that_says_no_number_leaves_those_of_rounds() -> None:
    draws = Draws()
    draws.restore(0, 9)
    assert draws.next(9) == 10
