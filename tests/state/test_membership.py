"""Ranks, incarnations, liveness, and the answers that are kept for a node."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncps.config import Config
from asyncps.errors import (
    ConfigError,
    RankTaken,
    RemoteProtocolError,
    SchedulerLost,
    StaleIncarnation,
)
from asyncps.protocol.messages import Done, Join, Message, StoreOpened
from asyncps.state.membership import (
    MAX_REQUESTS,
    Answers,
    Membership,
    Node,
    Outbox,
    Send,
    Standing,
)

CONFIG = Config(num_workers=3, num_servers=2, reconnect_s=2, frozen_worker_s=60, frozen_server_s=10)


def join(role: str = "worker", rank: int | None = 0, incarnation: int = 0) -> Join:
    return Join(role, rank, incarnation, "10.0.0.1", 4000, f"host-{role}-{rank}", 7)


def enter(
    members: Membership, link: int, role: str = "worker", rank: int | None = 0,
    incarnation: int = 0, now: float = 0.0, settled: bool = False,
) -> Node:
    return members.join(link, join(role, rank, incarnation), now, settled=settled)[0]


def test_new_processes_get_unique_rising_incarnations() -> None:
    members = Membership(CONFIG)
    nodes = [enter(members, 1, rank=1), enter(members, 2, "server", 0), enter(members, 3)]
    assert [node.member.incarnation for node in nodes] == [1, 2, 3]
    assert [(node.role, node.rank) for node in members] == [
        ("server", 0), ("worker", 0), ("worker", 1),
    ]


def test_ranks_without_a_number_go_to_the_lowest_free_place() -> None:
    members = Membership(CONFIG)
    enter(members, 1, rank=1)
    assert [enter(members, link, rank=None).rank for link in (2, 3)] == [0, 2]
    with pytest.raises(RankTaken):
        enter(members, 4, rank=None)


def test_unnumbered_process_takes_a_suspects_place_when_no_other_is_free() -> None:
    members = Membership(CONFIG)
    nodes = [enter(members, link, rank=None) for link in (1, 2, 3)]
    members.suspect(nodes[1], 1)
    with pytest.raises(RankTaken):
        enter(members, 4, rank=None, settled=True)
    assert enter(members, 4, rank=None).rank == 1


@pytest.mark.parametrize("rank", [-1, 3, 1 << 40])
def test_rank_out_of_range_is_refused(rank: int) -> None:
    with pytest.raises(ConfigError) as error:
        enter(Membership(CONFIG), 1, rank=rank)
    assert error.value.expected == "0 to 2"
    assert error.value.got == str(rank)


@pytest.mark.parametrize("bad", [
    Join("scheduler", 0, 0, "", 0, "h", 1), Join("worker", 0, -1, "", 0, "h", 1),
    Join("worker", 0, 1 << 32, "", 0, "h", 1), Join("server", 0, 0, "", 65536, "h", 1),
    Join("server", 0, 0, "", -1, "h", 1), Join("server", 0, 0, "h" * 1025, 1, "h", 1),
    Join("server", 0, 0, "h", 1, "h" * 1025, 1),
])
def test_impossible_join_is_refused(bad: Join) -> None:
    with pytest.raises(ConfigError):
        Membership(CONFIG).join(1, bad, 0, settled=False)


@pytest.mark.parametrize("settled", [False, True])
def test_place_of_a_connected_node_cannot_be_taken(settled: bool) -> None:
    members = Membership(CONFIG)
    holder = enter(members, 1)
    with pytest.raises(RankTaken) as error:
        enter(members, 2, settled=settled)
    assert error.value.rank == 0
    assert members.get("worker", 0) is holder


def test_suspect_is_replaced_before_the_job_begins_and_not_after() -> None:
    members = Membership(CONFIG)
    old = enter(members, 1)
    members.suspect(old, 1)
    with pytest.raises(RankTaken):
        enter(members, 2, settled=True)
    new = enter(members, 2)
    assert new is not old
    assert new.member.incarnation == 2
    with pytest.raises(StaleIncarnation):
        enter(members, 3, incarnation=1)


def test_same_process_comes_back_with_its_incarnation() -> None:
    members = Membership(CONFIG)
    node = enter(members, 1)
    members.suspect(node, 1)
    again, old_link = members.join(2, join(incarnation=1), 1.5, settled=True)
    assert again is node
    assert old_link is None
    assert (node.standing, node.link, node.heard) == (Standing.ALIVE, 2, 1.5)
    assert members.overdue(60) == []


def test_old_link_of_a_process_that_came_back_is_named() -> None:
    members = Membership(CONFIG)
    node = enter(members, 1)
    assert members.join(2, join(incarnation=1), 1, settled=True) == (node, 1)


def test_process_without_a_number_comes_back_by_its_incarnation() -> None:
    members = Membership(CONFIG)
    enter(members, 1, rank=None)
    node = enter(members, 2, rank=None)
    assert members.join(3, join(rank=None, incarnation=2), 1, settled=True) == (node, 2)


@pytest.mark.parametrize(("rank", "incarnation"), [(0, 2), (0, 9), (1, 1)])
def test_any_other_incarnation_is_stale(rank: int, incarnation: int) -> None:
    members = Membership(CONFIG)
    enter(members, 1)
    enter(members, 2, rank=1)
    with pytest.raises(StaleIncarnation):
        enter(members, 3, rank=rank, incarnation=incarnation)


def test_a_rank_that_was_never_here_comes_from_another_scheduler() -> None:
    members = Membership(CONFIG)
    enter(members, 1)
    with pytest.raises(SchedulerLost, match="another one listens there"):
        enter(members, 3, rank=2, incarnation=1)


def test_lost_node_cannot_come_back() -> None:
    members = Membership(CONFIG)
    node = enter(members, 1)
    node.standing = Standing.LOST
    with pytest.raises(StaleIncarnation):
        enter(members, 2, incarnation=1)


def test_removed_node_frees_its_place() -> None:
    members = Membership(CONFIG)
    members.remove(enter(members, 1))
    assert enter(members, 2).member.incarnation == 2


def test_suspect_is_overdue_after_reconnect_s() -> None:
    members = Membership(CONFIG)
    node = enter(members, 1)
    members.suspect(node, 10)
    assert members.overdue(11.9) == []
    assert [found for found, _ in members.overdue(12)] == [node]


def test_silent_worker_has_more_time_than_a_silent_server() -> None:
    members = Membership(CONFIG)
    worker, server = enter(members, 1), enter(members, 2, "server")
    assert members.overdue(10) == []
    assert [node for node, _ in members.overdue(10.1)] == [server]
    server.heard = 60
    assert members.overdue(60) == []
    assert [node for node, _ in members.overdue(60.1)] == [worker]


@pytest.mark.parametrize("standing", [Standing.LEFT, Standing.LOST])
def test_nobody_is_overdue_who_left_or_is_lost(standing: Standing) -> None:
    members = Membership(CONFIG)
    enter(members, 1).standing = standing
    assert members.overdue(1000) == []


def test_silences_begin_anew_after_a_restart() -> None:
    members = Membership(CONFIG)
    enter(members, 1, "server")
    members.suspect(enter(members, 2), 0)
    members.restart(100)
    assert members.overdue(101.9) == []
    assert len(members.overdue(110.1)) == 2


def test_absence_is_described_by_role_rank_and_host() -> None:
    members = Membership(CONFIG)
    enter(members, 1, rank=2)
    members.suspect(enter(members, 2, "server"), 1)
    assert members.describe_absence() == (
        "joined: server 0 @host-server-0 (not connected), worker 2 @host-worker-2; "
        "missing: server 1, worker 0, worker 1"
    )


def test_long_lists_are_shortened() -> None:
    text = Membership(Config(num_workers=100, num_servers=1)).describe_absence()
    assert text.startswith("joined: nobody; missing: server 0, worker 0,")
    assert text.endswith("and 69 more")


def test_everybody_is_there_when_all_places_are_connected() -> None:
    members = Membership(Config(num_workers=1, num_servers=1))
    worker = enter(members, 1)
    assert not members.all_alive()
    enter(members, 2, "server")
    assert members.all_alive()
    members.suspect(worker, 0)
    assert not members.all_alive()


def test_request_is_new_once() -> None:
    answers = Answers()
    assert answers.begin(5)
    assert not answers.begin(5)
    assert answers.finish(5, Done())
    assert not answers.begin(5)
    assert answers.kept(5) == Done()
    assert not answers.finish(5, StoreOpened(1))
    assert answers.kept(5) == Done()


def test_acknowledged_answers_are_dropped_and_their_requests_stay_known() -> None:
    answers = Answers()
    for request in (1, 2, 3):
        answers.begin(request)
        answers.finish(request, StoreOpened(request))
    answers.acknowledge(3)
    answers.acknowledge(1)  # an old frame takes nothing back
    assert answers.unacknowledged() == [(3, StoreOpened(3))]
    assert not answers.begin(2)
    assert answers.kept(2) is None


def test_answer_that_nobody_waits_for_is_not_sent() -> None:
    answers = Answers()
    answers.begin(1)
    answers.acknowledge(2)
    assert not answers.finish(1, Done())
    assert answers.unacknowledged() == []


def test_number_of_open_requests_is_bounded() -> None:
    answers = Answers()
    for request in range(1, MAX_REQUESTS + 1):
        answers.begin(request)
        if request % 2:
            answers.finish(request, Done())
    assert not answers.begin(MAX_REQUESTS)
    with pytest.raises(RemoteProtocolError):
        answers.begin(MAX_REQUESTS + 1)
    answers.acknowledge(2)
    assert answers.begin(MAX_REQUESTS + 1)


@given(st.lists(st.tuples(st.sampled_from(["begin", "finish", "ack"]), st.integers(1, 9))))
def test_each_request_is_finished_at_most_once(steps: list[tuple[str, int]]) -> None:
    answers, sent, acked = Answers(), dict[int, Message](), 0
    for step, (what, number) in enumerate(steps):
        if what == "begin":
            known = number < acked or number in sent or answers.is_pending(number)
            assert answers.begin(number) is not known
        elif what == "finish":
            answer = StoreOpened(step)
            if answers.finish(number, answer):
                assert number not in sent
                sent[number] = answer
        else:
            acked = max(acked, number)
            answers.acknowledge(number)
        for request, kept in sent.items():
            assert answers.kept(request) == (kept if request >= acked else None)


def test_outbox_sends_to_the_connected_and_keeps_answers_for_the_others() -> None:
    members, outbox = Membership(CONFIG), Outbox()
    node = enter(members, 4)
    node.answers.begin(1)
    node.answers.begin(2)
    outbox.answer(node, 1, Done())
    outbox.answer(node, 1, Done())
    members.suspect(node, 0)
    outbox.answer(node, 2, Done())
    outbox.tell(node, Done())
    assert outbox.take() == [Send(4, 1, Done())]
    assert outbox.take() == []
    assert node.answers.unacknowledged() == [(1, Done()), (2, Done())]
