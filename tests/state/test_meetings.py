"""Who is waited for in what all workers call: they come, leave, are lost, rest and return."""

from __future__ import annotations

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from asyncps.errors import ClusterError, WorkerLost
from asyncps.state.meetings import Call, Meeting


class MeetingMachine(RuleBasedStateMachine):
    """Against sets: a generation opens when all who are waited for have come to it."""

    @initialize(workers=st.integers(1, 5))
    def start(self, workers: int) -> None:
        self.live = set(range(workers))
        self.resting: set[int] = set()
        self.meeting = Meeting(self.live)
        self.came = dict.fromkeys(self.live, 0)
        self.waiting: dict[int, set[int]] = {}  # generation -> who waits
        self.broken: set[int] = set()
        self.request = 0
        self.where: dict[tuple[int, int], int] = {}  # (rank, request) -> generation

    def _who(self, data: st.DataObject, ranks: set[int]) -> int:
        rank: int = data.draw(st.sampled_from(sorted(ranks)), "rank")
        return rank

    def _answered(self, complete: list[list[Call]]) -> None:
        for calls in complete:
            (generation,) = {self.where[call.rank, call.request] for call in calls}
            came = self.waiting.pop(generation)
            assert came == {call.rank for call in calls}
            assert came >= self.live - self.resting
        for came in self.waiting.values():  # whoever waits, waits for somebody
            assert not came >= self.live - self.resting

    @rule(data=st.data())
    def come(self, data: st.DataObject) -> None:
        rank = self._who(data, self.live)
        generation, self.came[rank] = self.came[rank], self.came[rank] + 1
        self.request += 1
        self.where[rank, self.request] = generation
        try:
            calls = self.meeting.come(rank, self.request, None)
        except ClusterError:
            assert generation in self.broken
            return
        assert generation not in self.broken
        self.waiting.setdefault(generation, set()).add(rank)
        self._answered([] if calls is None else [calls])

    @rule(data=st.data())
    @precondition(lambda self: len(self.live) > 1)
    def lose(self, data: st.DataObject) -> None:
        rank = self._who(data, self.live)
        self._forget(rank)
        complete, broken = self.meeting.lose(rank)
        assert broken == []
        self._answered(complete)

    @rule(data=st.data())
    @precondition(lambda self: len(self.live) > 1)
    def leave(self, data: st.DataObject) -> None:
        rank = self._who(data, self.live)
        rests = rank in self.resting
        came = self.came[rank]
        self._forget(rank)
        complete, broken = self.meeting.leave(rank)
        if rests:
            assert broken == []
        else:
            hit = {generation for generation in self.waiting if generation >= came}
            assert {self.where[call.rank, call.request] for call in broken} == hit
            for generation in hit:
                del self.waiting[generation]
            self.broken |= set(range(came, max(self.came.values())))
        self._answered(complete)

    @rule(data=st.data())
    @precondition(lambda self: self.live - self.resting)
    def rest(self, data: st.DataObject) -> None:
        rank = self._who(data, self.live - self.resting)
        self.resting.add(rank)
        self._answered(self.meeting.rest(rank))

    @rule()
    @precondition(lambda self: self.live == self.resting)
    def all_back(self) -> None:
        assert not self.waiting
        self.meeting.all_back(self.live)
        self.resting.clear()
        self.broken.clear()
        self.came = dict.fromkeys(self.live, max(self.came.values()))

    def _forget(self, rank: int) -> None:
        self.live.discard(rank)
        self.resting.discard(rank)
        del self.came[rank]
        for generation, ranks in list(self.waiting.items()):
            ranks.discard(rank)
            if not ranks:
                del self.waiting[generation]


TestMeeting = MeetingMachine.TestCase


def test_what_is_given_up_is_open_no_longer() -> None:
    meeting = Meeting(range(3))
    meeting.come(0, 1, None)
    meeting.come(0, 2, None)
    meeting.come(1, 7, None)
    assert [(call.rank, call.request) for call in meeting.break_open()] == [(0, 1), (1, 7), (0, 2)]
    assert meeting.missing() == []


def test_who_comes_too_late_for_a_lost_worker_hears_of_the_loss() -> None:
    meeting, lost = Meeting(range(3)), WorkerLost("worker 1 is lost", rank=1)
    meeting.come(0, 1, None)
    _, broken = meeting.leave(1, lost)
    assert [call.rank for call in broken] == [0]
    with pytest.raises(WorkerLost):
        meeting.come(2, 1, None)
