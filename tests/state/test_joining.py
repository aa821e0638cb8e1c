"""join() as the scheduler sees it: who rests, when all are back, and whom the servers count."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncps.config import Config
from asyncps.errors import ClusterError, RemoteProtocolError, WorkerLost
from asyncps.protocol.messages import (
    AllJoined,
    Attendance,
    Await,
    Barrier,
    Declare,
    Done,
    ErrorInfo,
    JoinStore,
    OpenStore,
    SetOptimizer,
    StoreConfig,
)
from asyncps.state.agreements import Action, Answer, Order, Stores
from asyncps.state.requests import UnitTrack
from asyncps.state.rounds import Rounds
from asyncps.state.staleness import Arrivals
from tests.state.test_agreements import obey, spec

SUM = StoreConfig("dist_sync", "arrival", "sum")
LOST = WorkerLost("worker 1 @h is lost: killed", rank=1)


def with_store(workers: int = 3, servers: int = 2) -> Stores:
    stores = Stores(Config(num_workers=workers, num_servers=servers))
    obey(stores, stores.handle(0, 1, OpenStore("s", SUM)))
    return stores


def told(actions: list[Action]) -> list[int | None]:
    """Whom the first server is told not to wait for, in its order."""
    return [action.message.rank for action in actions
            if isinstance(action, Order) and isinstance(action.message, Attendance)
            and action.server == 0]


def answers(actions: list[Action]) -> list[Answer]:
    return [action for action in actions if isinstance(action, Answer)]


def test_who_joins_is_answered_when_all_have_and_all_servers_count_them_again() -> None:
    stores = with_store()
    for rank in (1, 2):
        actions = stores.handle(rank, 5, JoinStore(1))
        assert told(actions) == [rank]
        assert obey(stores, actions) == []
    actions = stores.handle(0, 6, JoinStore(1))
    assert told(actions) == [0, None]
    orders = [action for action in actions if isinstance(action, Order)]
    for order in orders[:-1]:
        assert stores.answered(order.server, order.request, Done()) == []
    assert stores.answered(orders[-1].server, orders[-1].request, Done()) == [
        Answer(1, 5, AllJoined(0)), Answer(2, 5, AllJoined(0)), Answer(0, 6, AllJoined(0))]
    assert told(stores.handle(0, 7, JoinStore(1))) == [0]  # the next epoch


def test_orders_of_a_join_are_owed_in_their_order() -> None:
    stores = with_store(workers=1)
    stores.handle(0, 6, JoinStore(1))
    owed = [order.message for order in stores.owed(1)]
    assert owed == [Attendance(1, 0), Attendance(1, None)]


def test_worker_that_leaves_or_is_lost_is_not_waited_for() -> None:
    for lost in (None, LOST):
        stores = with_store(workers=2)
        obey(stores, stores.handle(0, 5, JoinStore(1)))
        actions = stores.left(1, lost)
        assert told(actions) == [None]
        assert obey(stores, actions) == [Answer(0, 5, AllJoined(0))]


def test_last_to_join_is_named_among_those_still_there() -> None:
    stores = with_store()
    obey(stores, stores.handle(0, 5, JoinStore(1)))
    obey(stores, stores.handle(1, 5, JoinStore(1)))
    assert stores.left(1) == []
    assert obey(stores, stores.handle(2, 9, JoinStore(1))) == [
        Answer(0, 5, AllJoined(2)), Answer(2, 9, AllJoined(2))]


def test_joining_twice_breaks_the_rules() -> None:
    stores = with_store()
    stores.handle(1, 5, JoinStore(1))
    with pytest.raises(RemoteProtocolError, match="rank 1"):
        stores.handle(1, 6, JoinStore(1))


def test_barriers_do_not_wait_for_who_has_joined_and_later_ones_do() -> None:
    stores = with_store(workers=2)
    assert stores.handle(1, 4, Barrier(1)) == []
    assert answers(stores.handle(0, 5, JoinStore(1))) == [Answer(1, 4, Done())]
    assert answers(stores.handle(1, 5, Barrier(1))) == [Answer(1, 5, Done())]
    obey(stores, stores.handle(1, 6, JoinStore(1)))
    assert stores.handle(0, 7, Barrier(1)) == []
    assert answers(stores.handle(1, 7, Barrier(1))) == [Answer(0, 7, Done()), Answer(1, 7, Done())]


def test_optimizer_is_refused_while_somebody_has_joined() -> None:
    stores = with_store(workers=2)
    words = SetOptimizer(1, "test", {})
    assert stores.handle(1, 4, words) == []
    (answer,) = answers(stores.handle(0, 5, JoinStore(1)))
    assert (answer.rank, answer.request) == (1, 4)
    assert isinstance(answer.message, ErrorInfo)
    assert "have joined, which nobody waits for: 0" in answer.message.message
    with pytest.raises(ClusterError, match="have joined, which nobody waits for: 0"):
        stores.handle(1, 5, words)
    obey(stores, stores.handle(1, 6, JoinStore(1)))
    assert stores.handle(0, 7, words) == []
    assert obey(stores, stores.handle(1, 8, words)) == [Answer(0, 7, Done()), Answer(1, 8, Done())]


def test_observers_see_who_is_waited_for() -> None:
    stores = with_store()
    stores.handle(1, 5, JoinStore(1))
    assert stores.missing() == [((1, "join", 0), [0, 2], 1)]


def test_what_all_call_goes_on_without_a_lost_worker() -> None:
    stores = with_store()
    words = SetOptimizer(1, "test", {})
    for rank in (0, 2):
        assert stores.handle(rank, 2, Barrier(1)) == []
        assert stores.handle(rank, 3, words) == []
    stores.handle(1, 3, SetOptimizer(1, "sgd", {}))  # its words count no more
    actions = stores.left(1, LOST)
    assert answers(actions) == [Answer(0, 2, Done()), Answer(2, 2, Done()),
                                *answers(actions)[2:]]
    assert stores.handle(0, 4, Barrier(1)) == []
    assert answers(stores.handle(2, 4, Barrier(1))) == [Answer(0, 4, Done()), Answer(2, 4, Done())]


def test_keys_that_a_lost_rank_0_owes_are_worker_lost() -> None:
    stores = with_store()
    stores.handle(0, 2, Declare(1, [spec("w", 3)]))
    stores.handle(1, 2, Await(1, [spec("w", 3)]))
    error = WorkerLost("worker 0 @h is lost: killed", rank=0)
    (answer,) = answers(stores.left(0, error))
    assert isinstance(answer.message, ErrorInfo)
    assert (answer.rank, answer.message.code, answer.message.rank) == (1, WorkerLost.code, 0)
    for message in (Await(1, [spec("w", 3)]), Await(2, [spec("w", 3)])):
        obey(stores, stores.handle(2, 3, OpenStore("later", SUM)))
        with pytest.raises(WorkerLost, match="rank 0"):
            stores.handle(2, 4, message)


# ---- clocks -------------------------------------------------------------------------------------


def test_rounds_that_count_again_stand_where_they_are() -> None:
    rounds = Rounds()
    for clock in (1, 2):
        rounds.contribute(0, clock, 0b11)
    rounds.contribute(1, 1, 0b11)
    rounds.apply()
    assert rounds.is_complete(0b01)
    rounds.apply()
    rounds.count_again(0b11)
    assert (rounds.applied, rounds.pushed) == (2, {0: 2, 1: 2})
    assert rounds.is_replay(1, 2)
    assert rounds.missing(3, 0b11) == [0, 1]


def test_arrivals_that_count_again_let_nobody_be_the_slowest() -> None:
    arrivals = Arrivals(1)
    for clock in (1, 2):
        arrivals.contribute(0, clock)
    for clock, rank in arrivals.applicable(0):
        arrivals.apply(rank, clock)
    arrivals.count_again(0b11)
    assert arrivals.pushed == arrivals.done == {0: 2, 1: 2}
    arrivals.contribute(0, 3)
    assert arrivals.applicable(0b11) == [(3, 0)]


@given(st.lists(st.sets(st.integers(0, 3)), max_size=6),
       st.lists(st.integers(0, 9), min_size=0, max_size=6))
def test_track_that_catches_up_is_behind_nowhere(
    pushes: list[set[int]], theirs: list[int]
) -> None:
    track = UnitTrack(4)
    clocks = [0] * 4
    for rows in pushes:
        if rows:
            track.push(sorted(rows))
            for row in rows:
                clocks[row] += 1
    track.catch_up(theirs)
    expected = [max(clock, *theirs[row : row + 1], 0) for row, clock in enumerate(clocks)]
    for step in track.pull():
        for row in range(4) if step.rows is None else step.rows:
            assert step.clock == expected[row]
    for row in range(4):
        (step,) = track.push([row])
        assert step.clock == expected[row] + 1
        caught_up = row < len(theirs) and theirs[row] > clocks[row]
        if caught_up:
            assert not step.wait_for
