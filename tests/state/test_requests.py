"""What a worker knows of one unit, against a model that keeps every row apart."""

from __future__ import annotations

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from asyncps.state.requests import Step, UnitTrack
from asyncps.state.rounds import CLOCK_WINDOW


def test_whole_unit_moves_as_one() -> None:
    track = UnitTrack(3)
    assert track.push() == [Step(1, None, 0)]
    assert track.push() == [Step(2, None, 0)]
    assert track.pull() == [Step(2, None, 0)]
    assert track.pull([1]) == [Step(2, [1], 0)]


def test_push_beyond_the_window_must_wait_until_the_clock_is_known_to_be_applied() -> None:
    track = UnitTrack(1)
    track.push()
    track.push()
    (step,) = track.push()
    assert step == Step(3, None, 1)
    track.asked(7, 1, None)
    assert track.must_wait(step) == 1
    track.answered(7)
    assert track.must_wait(step) == 0
    assert track.push() == [Step(4, None, 2)]


def test_rows_part_and_join() -> None:
    track = UnitTrack(3)
    assert track.push([1]) == [Step(1, [1], 0)]
    assert {(s.clock, tuple(s.rows or ())) for s in track.push()} == {(1, (0, 2)), (2, (1,))}
    assert track.push([0, 2]) == [Step(2, [0, 2], 0)]
    assert track.push() == [Step(3, None, 1)]


def test_rows_that_become_equal_by_a_push_of_all_travel_as_parts() -> None:
    track = UnitTrack(2)
    track.push([0])
    assert track.push([1]) == [Step(1, [1], 0)]
    assert track.pull() == [Step(1, None, 0)]


def test_new_rows_begin_at_clock_0_and_old_requests_do_not_speak_of_them() -> None:
    track = UnitTrack(1)
    track.push()
    track.asked(1, 1, None)
    track.grow(2)
    assert {(s.clock, tuple(s.rows or ())) for s in track.pull()} == {(1, (0,)), (0, (1,))}
    track.answered(1)
    for clock in (1, 2):
        assert track.push([1]) == [Step(clock, [1], 0)]
    assert track.push([1]) == [Step(3, [1], 1)]


def test_growing_to_fewer_rows_changes_nothing() -> None:
    track = UnitTrack(3)
    track.grow(2)
    assert track.rows == 3


def test_failed_request_brings_nothing_and_holds_nothing_back() -> None:
    track = UnitTrack(1)
    (first,) = track.push()
    track.asked(1, 1, None)
    (second,) = track.push()
    assert track.floor(second) == 1
    track.failed(1)
    assert track.floor(second) == 2
    assert track.must_wait(track.push()[0]) == 1
    assert first.clock == 1


class TrackMachine(RuleBasedStateMachine):
    """Random pushes, pulls, answers and growth; the model has a clock for each row."""

    @initialize(rows=st.integers(1, 4))
    def start(self, rows: int) -> None:
        self.track = UnitTrack(rows)
        self.clocks = [0] * rows
        self.applied = [0] * rows
        self.waiting: dict[int, tuple[int, list[int]]] = {}
        self.number = 0

    def _rows(self, data: Any) -> list[int] | None:
        chosen = data.draw(st.sets(st.integers(0, len(self.clocks) - 1)), "rows")
        return sorted(chosen) or None

    def _check(self, steps: list[Step], rows: list[int] | None) -> None:
        every = list(range(len(self.clocks)))
        wanted = every if rows is None else rows
        named = [row for s in steps for row in (every if s.rows is None else s.rows)]
        assert sorted(named) == wanted
        assert len({step.clock for step in steps}) == len(steps)
        for step in steps:
            for row in every if step.rows is None else step.rows:
                assert self.clocks[row] == step.clock

    @rule(data=st.data())
    def push(self, data: Any) -> None:
        rows = self._rows(data)
        steps = self.track.push(rows)
        for row in range(len(self.clocks)) if rows is None else rows:
            self.clocks[row] += 1
        self._check(steps, rows)
        for step in steps:
            chosen = range(len(self.clocks)) if step.rows is None else step.rows
            need = step.clock - CLOCK_WINDOW
            known = min(self.applied[row] for row in chosen)
            assert step.wait_for == (need if need > 0 and known < need else 0)

    @rule(data=st.data())
    def pull(self, data: Any) -> None:
        rows = self._rows(data)
        steps = self.track.pull(rows)
        self._check(steps, rows)
        for step in steps:
            chosen = list(range(len(self.clocks)) if step.rows is None else step.rows)
            floors = [c for c, named in self.waiting.values()
                      if c < step.clock and set(named) & set(chosen)]
            assert self.track.floor(step) == min([step.clock, *floors])
            self.number += 1
            self.track.asked(self.number, step.clock, step.rows)
            self.waiting[self.number] = (step.clock, chosen)

    @rule(data=st.data(), well=st.booleans())
    def answer(self, data: Any, well: bool) -> None:
        if not self.waiting:
            return
        number = data.draw(st.sampled_from(sorted(self.waiting)))
        clock, rows = self.waiting.pop(number)
        if not well:
            self.track.failed(number)
            return
        self.track.answered(number)
        for row in rows:
            self.applied[row] = max(self.applied[row], clock)

    @rule(extra=st.integers(1, 2))
    def grow(self, extra: int) -> None:
        if len(self.clocks) >= 6:
            return
        self.clocks += [0] * extra
        self.applied += [0] * extra
        self.track.grow(len(self.clocks))

    @invariant()
    def every_row_waits_for_its_own_clock(self) -> None:
        if not hasattr(self, "track"):
            return
        for row, clock in enumerate(self.clocks):
            need = clock + 1 - CLOCK_WINDOW
            told = self.track.must_wait(Step(clock + 1, [row], 0))
            assert told == (need if need > 0 and self.applied[row] < need else 0)


TestTrackMachine = TrackMachine.TestCase
TestTrackMachine.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
