"""The scheduler's state machine, driven by hand with a manual clock."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from asyncps.config import Config
from asyncps.errors import (
    AsyncPSError,
    ClosedError,
    ClusterError,
    ConfigError,
    RankTaken,
    RemoteProtocolError,
    RendezvousTimeout,
    SchedulerLost,
    ServerLost,
    StaleIncarnation,
    WorkerLost,
)
from asyncps.protocol.messages import (
    Absent,
    Await,
    Barrier,
    Declare,
    Died,
    Done,
    Ended,
    Ending,
    ErrorInfo,
    Install,
    Join,
    Joined,
    KeySpec,
    Leave,
    Left,
    Lookup,
    Lost,
    Members,
    Message,
    OpenStore,
    Prepared,
    Ready,
    SetOptimizer,
    Shutdown,
    StoreConfig,
    StoreOpened,
)
from asyncps.state.scheduling import Close, Instruction, Log, SchedulerState, Send, Stop

SUM = StoreConfig("dist_sync", "arrival", "sum")
Sent = tuple[int, Message]  # request number, message


def codes(sent: list[Sent]) -> list[tuple[int, int]]:
    """The (request, error code) of all errors."""
    return [(request, m.code) for request, m in sent if isinstance(m, ErrorInfo)]


class Job:
    """A scheduler and its links; the last event's sends lie in `sent` by link."""

    def __init__(self, workers: int = 2, servers: int = 1, **changes: Any) -> None:
        self.config = Config(num_workers=workers, num_servers=servers, **changes)
        self.now = 1000.0
        self.state = SchedulerState(self.config, self.now)
        self.sent: dict[int, list[Sent]] = {}
        self.closed: list[int] = []  # by the scheduler
        self.logs: list[str] = []
        self.stops: list[AsyncPSError | None] = []
        self.next_link = 1

    def run(self, instructions: list[Instruction]) -> None:
        self.sent = {}
        for item in instructions:
            assert not self.stops
            match item:
                case Send(link, request, message):
                    assert link not in self.closed
                    self.sent.setdefault(link, []).append((request, message))
                case Close(link):
                    assert link not in self.closed
                    self.closed.append(link)
                case Log(level, text):
                    assert level in (logging.INFO, logging.WARNING, logging.ERROR)
                    self.logs.append(text)
                case Stop(error):
                    self.stops.append(error)

    def open(self, role: str) -> int:
        link = self.next_link
        self.next_link += 1
        self.run(self.state.opened(link, role, self.now))
        return link

    def say(self, link: int, request: int, message: Message, acked: int = 0) -> list[Sent]:
        """Says something; returns what is sent on the same link."""
        self.run(self.state.received(link, request, acked, message, self.now))
        return self.sent.get(link, [])

    def join(self, role: str, rank: int | None = None, incarnation: int = 0) -> int:
        link = self.open(role)
        self.say(link, 1, Join(role, rank, incarnation, "127.0.0.1", 5, f"h{role}", 1))
        return link

    def close(self, link: int) -> None:
        self.run(self.state.closed(link, self.now))

    def died(self, role: str, rank: int, reason: str = "signal 9") -> list[Sent]:
        return self.say(self.open("launcher"), 1, Died(role, rank, reason))

    def pass_time(self, seconds: float, *alive: int) -> None:
        """Ticks 4 times a second; `alive` links are heard before each tick."""
        everything: dict[int, list[Sent]] = {}
        for _ in range(round(seconds * 4)):
            self.now += 0.25
            for link in alive:
                assert self.state.heard(link, self.now) == []
            self.run(self.state.tick(self.now))
            for link, sent in self.sent.items():
                everything.setdefault(link, []).extend(sent)
        self.sent = everything


class Running(Job):
    """A job whose members are all there: `w` and `s` are their links by rank."""

    def __init__(self, workers: int = 2, servers: int = 1, **changes: Any) -> None:
        super().__init__(workers, servers, **changes)
        self.w = [self.join("worker", rank) for rank in range(workers)]
        self.s = [self.join("server", rank) for rank in range(servers)]
        for link in self.s:
            self.say(link, 0, Prepared())
        self.all = [*self.w, *self.s]

    def open_store(self) -> None:
        """Rank 0 opens store 1 with its request 2."""
        self.say(self.w[0], 2, OpenStore("s", SUM))
        for link, ((request, _),) in list(self.sent.items()):
            self.say(link, request, Done())
        assert self.sent == {self.w[0]: [(2, StoreOpened(1))]}


# ---- joining ------------------------------------------------------------------------------------


def test_join_is_answered_with_rank_and_incarnation() -> None:
    job = Job(workers=3, servers=2)
    link = job.open("worker")
    answer = job.say(link, 7, Join("worker", 2, 0, "", 0, "h", 1))
    assert answer == [(7, Joined(2, 1, 3, 2))]
    assert job.logs == ["worker 2 @h joined (incarnation 1)"]


def test_ranks_go_by_order_of_joining_and_the_log_says_so_once() -> None:
    job = Job(workers=3)
    ranks = []
    for link in [job.open("worker") for _ in range(3)]:
        ((_, joined),) = job.say(link, 1, Join("worker", None, 0, "", 0, "h", 1))
        assert isinstance(joined, Joined)
        ranks.append(joined.rank)
    assert ranks == [0, 1, 2]
    assert sum("order of joining" in text for text in job.logs) == 1


@pytest.mark.parametrize(("rank", "incarnation", "error"), [
    (0, 0, RankTaken), (2, 0, ConfigError), (-1, 0, ConfigError), (0, 5, StaleIncarnation),
    (1, 1, SchedulerLost),
])
def test_refused_join_is_answered_and_closed(
    rank: int, incarnation: int, error: type[AsyncPSError]
) -> None:
    job = Job()
    first = job.join("worker", 0)
    link = job.join("worker", rank, incarnation)
    assert codes(job.sent[link]) == [(1, error.code)]
    assert job.closed == [link]
    assert job.say(first, 1, Barrier(1)) != []  # still a member


@pytest.mark.parametrize(("role", "message"), [
    ("worker", Barrier(1)), ("server", Prepared()), ("server", Done()), ("worker", Leave()),
    ("worker", Join("server", 0, 0, "", 0, "h", 1)), ("worker", Died("worker", 0, "x")),
    ("launcher", Join("worker", 0, 0, "", 0, "h", 1)), ("launcher", Leave()),
])
def test_first_message_out_of_place_closes_the_link(role: str, message: Message) -> None:
    job = Job()
    link = job.open(role)
    assert codes(job.say(link, 3, message)) == [(3, RemoteProtocolError.code)]
    assert job.closed == [link]


def test_unknown_role_is_closed() -> None:
    job = Job()
    assert job.closed == [job.open("scheduler")]


def test_link_that_never_joins_is_closed_and_a_launcher_is_not() -> None:
    job = Job(handshake_s=5)
    link, launcher = job.open("worker"), job.open("launcher")
    job.pass_time(5)
    assert job.closed == []
    job.pass_time(0.25)
    assert job.closed == [link]
    assert job.say(launcher, 1, Died("worker", 0, "x"))[0] == (1, Done())


def test_number_of_links_is_bounded() -> None:
    job = Job(workers=1, servers=1)
    links = [job.open("worker") for _ in range(69)]
    assert job.closed == links[68:]


def test_events_of_unknown_links_are_ignored() -> None:
    job = Job()
    for _ in range(2):
        assert job.state.received(9, 1, 0, Leave(), job.now) == []
        assert job.state.heard(9, job.now) == []
        assert job.state.closed(9, job.now) == []
    link = job.open("worker")
    with pytest.raises(ValueError, match="open already"):
        job.state.opened(link, "worker", job.now)


# ---- rendezvous ---------------------------------------------------------------------------------


def test_servers_hear_the_members_first_and_workers_when_all_servers_are_prepared() -> None:
    job = Job(workers=1, servers=2)
    worker, first, second = job.join("worker", 0), job.join("server", 0), job.join("server", 1)
    ((request, members),) = job.sent[first]
    assert request == 0
    assert isinstance(members, Members)
    assert [(m.role, m.rank, m.incarnation, m.port) for m in members.members] == [
        ("server", 0, 2, 5), ("server", 1, 3, 5), ("worker", 0, 1, 5),
    ]
    assert job.sent[second][1:] == [(0, members)]
    assert worker not in job.sent
    job.say(first, 0, Prepared())
    assert job.sent == {}
    job.say(second, 0, Prepared())
    assert job.sent == {worker: [(0, members)]}


def test_rendezvous_timeout_names_who_joined_and_who_is_missing() -> None:
    job = Job(workers=2, rendezvous_s=20)
    worker, server = job.join("worker", 1), job.join("server", 0)
    job.pass_time(20, worker, server)
    assert job.stops == []
    job.pass_time(0.25, worker, server)
    (error,) = job.stops
    assert isinstance(error, RendezvousTimeout)
    for text in ("server 0 @hserver", "worker 1 @hworker", "missing: worker 0", "20 s"):
        assert text in str(error)
    for link in (worker, server):
        ((request, shutdown),) = job.sent[link]
        assert request == 0
        assert isinstance(shutdown, Shutdown)
        assert shutdown.error is not None
        assert shutdown.error.code == RendezvousTimeout.code
    assert job.state.tick(job.now + 1) == []


def test_rendezvous_timeout_names_a_server_that_is_not_prepared() -> None:
    job = Job(workers=1, servers=1, rendezvous_s=5)
    links = job.join("worker", 0), job.join("server", 0)
    job.pass_time(5.25, *links)
    assert "not ready: server 0 @hserver" in str(job.stops[0])


def test_server_that_is_replaced_during_the_rendezvous_makes_all_servers_hear_anew() -> None:
    job = Job(workers=1, servers=2)
    worker, first, second = job.join("worker", 0), job.join("server", 0), job.join("server", 1)
    job.say(second, 0, Prepared())
    job.close(first)
    third = job.join("server", 0)  # incarnation 4
    for link in (second, third):
        members = job.sent[link][-1][1]
        assert isinstance(members, Members)
        assert [m.incarnation for m in members.members] == [4, 3, 1]
    job.say(third, 0, Prepared())
    assert worker not in job.sent
    job.say(second, 0, Prepared())
    assert [type(m) for _, m in job.sent[worker]] == [Members]


def test_answer_to_an_old_table_does_not_count_for_the_new_one() -> None:
    job = Job(workers=1, servers=2)
    worker, first, second = job.join("worker", 0), job.join("server", 0), job.join("server", 1)
    job.close(first)
    third = job.join("server", 0)
    job.say(third, 0, Prepared())
    job.say(second, 0, Prepared())  # to the first table
    assert job.sent == {}
    job.say(second, 0, Prepared())
    assert worker in job.sent


def test_server_that_comes_back_during_the_rendezvous_hears_the_members_again() -> None:
    job = Job(workers=1, servers=1)
    worker, server = job.join("worker", 0), job.join("server", 0)
    job.close(server)
    again = job.join("server", 0, incarnation=2)
    assert [type(m) for _, m in job.sent[again]] == [Joined, Members]
    job.say(again, 0, Prepared())
    assert worker in job.sent


def test_worker_that_leaves_before_the_job_begins_frees_its_place() -> None:
    job = Job(workers=1, servers=1)
    worker = job.join("worker", 0)
    assert job.say(worker, 2, Leave()) == [(2, Done())]
    assert job.closed == [worker]
    again = job.join("worker", 0)
    assert job.sent[again] == [(1, Joined(0, 2, 1, 1))]
    server = job.join("server", 0)
    assert [type(m) for _, m in job.sent[server]] == [Joined, Members]


def test_death_before_joining_fails_the_job_at_once() -> None:
    job = Job(workers=2, servers=1)
    worker = job.join("worker", 0)
    job.died("worker", 1, "exit code 3")
    (error,) = job.stops
    assert isinstance(error, WorkerLost)
    assert error.rank == 1
    assert "worker 1" in str(error)
    assert "exit code 3" in str(error)
    assert [type(m) for _, m in job.sent[worker]] == [Shutdown]
    assert (1, Done()) in [s for sent in job.sent.values() for s in sent]


# ---- requests -----------------------------------------------------------------------------------


def test_repeated_request_is_answered_again_with_the_kept_answer() -> None:
    job = Running()
    job.open_store()
    again = job.say(job.w[0], 2, OpenStore("s", SUM))
    assert again == [(2, StoreOpened(1))]
    assert job.say(job.w[0], 2, OpenStore("other", SUM)) == again
    job.say(job.w[0], 3, Lookup(1, ["nothing"]), acked=3)
    assert job.say(job.w[0], 2, OpenStore("s", SUM)) == []  # acknowledged: dropped


def test_repeated_request_that_is_being_worked_on_is_ignored() -> None:
    job = Running()
    job.open_store()
    assert job.say(job.w[0], 3, Barrier(1)) == []
    assert job.say(job.w[0], 3, Barrier(1)) == []
    assert job.say(job.w[1], 2, Barrier(1)) == [(2, Done())]
    assert job.sent[job.w[0]] == [(3, Done())]
    assert job.say(job.w[1], 3, Barrier(1)) == []  # it was not counted twice


def test_bad_request_is_answered_and_harms_nobody() -> None:
    job = Running()
    job.open_store()
    (code,) = codes(job.say(job.w[1], 2, Barrier(77)))
    assert code == (2, ConfigError.code)
    assert job.closed == []
    assert job.say(job.w[1], 3, Barrier(1)) == []


@pytest.mark.parametrize(("role", "request_number", "message"), [
    ("server", 5, Declare(1, [])), ("server", 5, Barrier(1)), ("worker", 5, Prepared()),
    ("worker", 5, Done()), ("worker", 5, ErrorInfo(1, "x")), ("worker", 5, Ready(1, [])),
    ("worker", 5, Install(1, SUM, None, {})), ("worker", 5, Join("worker", 1, 0, "", 0, "", 1)),
    ("worker", 0, Barrier(1)), ("worker", -1, Barrier(1)), ("worker", 5, Shutdown(None)),
])
def test_message_out_of_place_closes_the_link_and_the_node_may_come_back(
    role: str, request_number: int, message: Message
) -> None:
    job = Running(workers=2)
    job.open_store()
    link = job.s[0] if role == "server" else job.w[1]
    answer = job.say(link, request_number, message)
    if request_number > 0:
        assert codes(answer) == [(request_number, RemoteProtocolError.code)]
    assert job.closed == [link]
    again = job.join(role, 0 if role == "server" else 1, 3 if role == "server" else 2)
    assert isinstance(job.sent[again][0][1], Joined)


def test_request_that_is_acknowledged_before_it_is_made_is_refused() -> None:
    job = Running()
    assert codes(job.say(job.w[0], 5, OpenStore("s", SUM), acked=6)) == [
        (5, RemoteProtocolError.code)]


def test_store_cannot_be_opened_before_the_members_are_known() -> None:
    job = Job(workers=1, servers=1)
    link = job.join("worker", 0)
    assert codes(job.say(link, 2, OpenStore("s", SUM))) == [(2, RemoteProtocolError.code)]


def test_node_with_too_many_open_requests_is_closed() -> None:
    job = Running()
    job.open_store()
    for request in range(3, 4098):
        assert job.say(job.w[0], request, Barrier(1)) == []
    assert codes(job.say(job.w[0], 4098, Barrier(1))) == [(4098, RemoteProtocolError.code)]
    assert job.closed == [job.w[0]]


def test_answers_that_were_not_acknowledged_are_sent_again_after_a_reconnect() -> None:
    job = Running()
    job.open_store()
    job.say(job.w[0], 3, Barrier(1))
    job.close(job.w[0])
    job.say(job.w[1], 2, Barrier(1))
    assert job.w[0] not in job.sent  # answered into the void
    link = job.open("worker")
    sent = job.say(link, 4, Join("worker", 0, 1, "", 0, "h", 1), acked=3)
    assert sent[:2] == [(4, Joined(0, 1, 2, 1)), (3, Done())]
    assert isinstance(sent[2][1], Members)
    assert len(sent) == 3


def test_process_that_comes_back_over_a_new_link_ends_the_old_one() -> None:
    job = Running()
    link = job.join("worker", 1, incarnation=2)
    assert job.closed == [job.w[1]]
    job.close(job.w[1])
    job.pass_time(5, job.w[0], job.s[0], link)
    assert job.stops == []
    assert not any("lost" in text for text in job.logs)


def test_new_process_cannot_take_a_suspects_place_in_a_running_job() -> None:
    job = Running()
    job.close(job.w[1])
    link = job.join("worker", 1)
    assert codes(job.sent[link]) == [(1, RankTaken.code)]


def test_orders_that_a_server_did_not_answer_are_sent_again_when_it_comes_back() -> None:
    job = Running(servers=2)
    job.say(job.w[0], 2, OpenStore("s", SUM))
    install = Install(1, SUM, None, {})
    assert job.sent == {job.s[0]: [(1, install)], job.s[1]: [(2, install)]}
    job.say(job.s[0], 1, Done())
    job.close(job.s[0])
    job.close(job.s[1])
    first = job.join("server", 0, 3)
    assert all(not isinstance(m, Install) for _, m in job.sent[first])
    second = job.join("server", 1, 4)
    assert job.sent[second][-1] == (2, install)
    job.say(second, 2, Done())
    assert job.sent == {job.w[0]: [(2, StoreOpened(1))]}


def test_error_of_a_server_names_its_host() -> None:
    job = Running(workers=1)
    job.open_store()
    job.say(job.w[0], 3, SetOptimizer(1, "nonsense", {}))
    ((number, _),) = job.sent[job.s[0]]
    job.say(job.s[0], number, ErrorInfo(65, "no such optimizer"))
    ((request, info),) = job.sent[job.w[0]]
    assert request == 3
    assert isinstance(info, ErrorInfo)
    assert (info.code, info.host) == (65, "hserver")


def test_keys_travel_from_rank_0_to_the_others() -> None:
    job = Running()
    job.open_store()
    keys = [KeySpec("w", "float32", (3,), 4)]
    assert job.say(job.w[1], 2, Await(1, keys)) == []
    job.say(job.w[0], 3, Declare(1, keys))
    assert job.say(job.w[0], 4, Ready(1, ["w"])) == [(4, Done())]
    assert [request for request, _ in job.sent[job.w[1]]] == [2]


# ---- liveness -----------------------------------------------------------------------------------


def lost_messages(job: Job, link: int) -> list[Lost]:
    return [m for _, m in job.sent.get(link, []) if isinstance(m, Lost)]


def test_node_whose_link_closed_is_lost_after_reconnect_s() -> None:
    job = Running()
    job.close(job.w[1])
    assert job.sent == {}
    job.pass_time(1.75, job.w[0], job.s[0])
    assert job.sent == {}
    job.pass_time(0.25, job.w[0], job.s[0])
    for link in (job.w[0], job.s[0]):
        (lost,) = lost_messages(job, link)
        assert (lost.role, lost.rank, lost.host) == ("worker", 1, "hworker")
        assert "did not come back within 2 s" in lost.reason
    assert job.stops == []


@pytest.mark.parametrize(("role", "error"), [("worker", WorkerLost), ("server", ServerLost)])
def test_death_that_the_launcher_reports_is_a_loss_at_once(
    role: str, error: type[AsyncPSError]
) -> None:
    job = Running(servers=2)
    victim = job.w[1] if role == "worker" else job.s[1]
    job.died(role, 1, "signal 9")
    assert victim in job.closed
    (lost,) = lost_messages(job, job.w[0])
    assert (lost.role, lost.rank, lost.reason) == (role, 1, "signal 9")
    assert codes(job.say(job.w[0], 2, Barrier(1))) == [(2, error.code)]
    assert codes(job.say(job.w[0], 3, OpenStore("s", SUM))) == [(3, error.code)]


def test_pending_requests_fail_at_once_with_a_loss() -> None:
    job = Running(workers=3)
    job.open_store()
    job.say(job.w[0], 3, Barrier(1))
    job.say(job.w[0], 4, SetOptimizer(1, "sgd", {}))
    job.say(job.w[1], 2, Await(1, [KeySpec("w", "float32", (3,), 4)]))
    job.say(job.w[1], 3, OpenStore("t", SUM))
    job.died("worker", 2)
    assert codes(job.sent[job.w[0]]) == [(3, WorkerLost.code), (4, WorkerLost.code)]
    assert codes(job.sent[job.w[1]]) == [(2, WorkerLost.code), (3, WorkerLost.code)]
    info = job.sent[job.w[0]][1][1]
    assert isinstance(info, ErrorInfo)
    assert info.rank == 2
    assert "worker 2 @hworker" in info.message


def test_failed_job_stops_when_all_survivors_have_left_or_closed() -> None:
    job = Running(workers=3)
    job.died("worker", 2)
    assert job.say(job.w[0], 2, Leave()) == [(2, Done())]
    assert job.stops == []
    job.close(job.w[1])
    ((request, shutdown),) = job.sent[job.s[0]]  # no worker needs the servers any more
    assert request == 0
    assert isinstance(shutdown, Shutdown)
    assert shutdown.error is not None
    assert shutdown.error.code == WorkerLost.code
    assert job.stops == []
    job.say(job.s[0], 1, Leave())
    (error,) = job.stops
    assert isinstance(error, WorkerLost)
    assert error.rank == 2


def test_failed_job_stops_5_s_after_the_loss_at_the_latest() -> None:
    job = Running(workers=2)
    job.died("server", 0)
    job.pass_time(4.75, job.w[0], job.w[1])
    assert job.stops == []
    job.pass_time(0.25, job.w[0], job.w[1])
    assert isinstance(job.stops[0], ServerLost)
    assert [type(m) for _, m in job.sent[job.w[0]]] == [Shutdown]


def test_survivor_that_comes_back_hears_of_the_loss() -> None:
    job = Running(workers=3)
    job.close(job.w[0])
    job.died("worker", 2)
    link = job.join("worker", 0, incarnation=1)
    assert [type(m) for _, m in job.sent[link]] == [Joined, Members, Lost]


def test_process_that_joins_a_failed_job_hears_why() -> None:
    job = Running(workers=3)
    job.died("worker", 2)
    link = job.join("worker", 2)
    assert codes(job.sent[link]) == [(1, WorkerLost.code)]
    zombie = job.join("worker", 2, incarnation=3)
    assert codes(job.sent[zombie]) == [(1, StaleIncarnation.code)]
    assert {link, zombie} <= set(job.closed)


@pytest.mark.parametrize(("role", "limit_s"), [("worker", 60), ("server", 10)])
def test_silent_node_is_lost(role: str, limit_s: int) -> None:
    job = Running()
    alive = [link for link in job.all if link != (job.w[1] if role == "worker" else job.s[0])]
    job.pass_time(limit_s, *alive)
    assert job.sent == {}
    job.pass_time(0.25, *alive)
    (lost,) = lost_messages(job, job.w[0])
    assert lost.role == role
    assert "silent" in lost.reason


def test_late_tick_judges_nobody_and_silences_begin_anew() -> None:
    job = Running()
    job.close(job.w[1])
    job.now += 500
    job.run(job.state.tick(job.now))
    assert job.sent == {}
    job.pass_time(1.75, job.w[0])
    assert job.sent == {}
    link = job.join("worker", 1, incarnation=2)
    job.pass_time(8.25, job.w[0], link)
    assert job.sent == {}
    job.pass_time(0.25, job.w[0], link)
    (lost,) = lost_messages(job, job.w[0])
    assert lost.role == "server"


def test_messages_count_as_signs_of_life() -> None:
    job = Running(workers=1)
    for request in range(2, 100):
        job.pass_time(1, job.s[0])
        job.say(job.w[0], request, Lookup(1, []), acked=request)
    assert lost_messages(job, job.s[0]) == []


# ---- leaving ------------------------------------------------------------------------------------


def test_job_ends_well_when_all_workers_and_then_the_servers_have_left() -> None:
    job = Running(workers=2, servers=2)
    assert job.say(job.w[0], 2, Leave()) == [(2, Done())]
    assert [job.sent[link] for link in job.s] == [[(0, Left(0))]] * 2
    job.close(job.w[0])
    job.pass_time(5, job.w[1], *job.s)
    assert job.sent == {}
    job.say(job.w[1], 2, Leave())
    assert [job.sent[link] for link in job.s] == [[(0, Left(1)), (0, Shutdown(None))]] * 2
    job.say(job.s[0], 1, Leave())
    assert job.stops == []
    job.close(job.s[1])  # it may not have heard
    assert job.stops == []
    link = job.join("server", 1, incarnation=4)
    assert (0, Shutdown(None)) in job.sent[link]
    job.say(link, 2, Leave())
    assert job.stops == [None]


def test_servers_alone_hear_that_a_worker_has_left_and_hear_it_once() -> None:
    job = Running(workers=3, servers=2)
    job.say(job.w[1], 2, Leave())
    assert [job.sent[link] for link in job.s] == [[(0, Left(1))]] * 2
    assert job.sent.keys().isdisjoint({job.w[0], job.w[2]})
    job.say(job.w[1], 2, Leave())
    assert job.sent == {job.w[1]: [(2, Done())]}


def test_server_that_comes_back_hears_again_who_has_left() -> None:
    job = Running(workers=3, servers=2)
    job.close(job.s[0])
    job.say(job.w[2], 2, Leave())
    job.say(job.w[0], 2, Leave())
    assert job.s[0] not in job.sent
    link = job.join("server", 0, incarnation=4)
    assert [type(m) for _, m in job.sent[link]] == [Joined, Members, Left, Left]
    assert {m.rank for _, m in job.sent[link] if isinstance(m, Left)} == {0, 2}
    worker = job.join("worker", 1, incarnation=2)
    assert [type(m) for _, m in job.sent[worker]] == [Joined, Members]


def test_nobody_hears_of_a_worker_that_leaves_a_failed_job() -> None:
    job = Running(workers=3)
    job.died("worker", 2)
    job.say(job.w[0], 2, Leave())
    assert job.sent == {job.w[0]: [(2, Done())]}


def test_job_ends_5_s_after_the_last_worker_left_if_servers_stay() -> None:
    job = Running(workers=1)
    job.say(job.w[0], 2, Leave())
    job.pass_time(4.75)
    assert job.stops == []
    job.pass_time(0.25)
    assert job.stops == [None]


def test_server_that_is_cut_off_when_the_last_worker_leaves_hears_that_all_is_over() -> None:
    job = Running(workers=1, servers=2, reconnect_s=20.0)
    for link in job.s:
        job.close(link)
    job.say(job.w[0], 2, Leave())
    assert job.stops == []
    link = job.join("server", 0, incarnation=2)
    assert (0, Shutdown(None)) in job.sent[link]
    job.say(link, 2, Leave())
    job.pass_time(10)
    assert job.stops == []  # the other one may come back yet
    link = job.join("server", 1, incarnation=3)
    assert (0, Shutdown(None)) in job.sent[link]
    job.say(link, 2, Leave())
    assert job.stops == [None]


def test_server_that_is_cut_off_at_the_end_and_stays_away_is_waited_for_as_long_as_any() -> None:
    job = Running(workers=1, reconnect_s=20.0)
    job.close(job.s[0])
    job.say(job.w[0], 2, Leave())
    job.pass_time(19)
    assert job.stops == []
    job.pass_time(1.5)
    assert job.stops == [None]


def test_death_after_leaving_is_no_loss() -> None:
    job = Running()
    job.say(job.w[0], 2, Leave())
    assert job.died("worker", 0, "exit code 0") == [(1, Done())]
    assert job.sent.keys().isdisjoint(job.all)


def test_death_of_a_server_after_the_last_worker_left_is_no_loss() -> None:
    job = Running(workers=1)
    job.say(job.w[0], 2, Leave())
    job.died("server", 0, "exit code 0")
    assert job.stops == [None]


def test_node_that_left_has_nothing_more_to_say_and_hears_its_answer_again() -> None:
    job = Running()
    job.say(job.w[0], 2, Leave())
    assert codes(job.say(job.w[0], 3, Barrier(1))) == [(3, ClosedError.code)]
    job.close(job.w[0])
    link = job.join("worker", 0, incarnation=1)
    assert job.sent[link][:2] == [(1, Joined(0, 1, 2, 1)), (2, Done())]
    new = job.join("worker", 0)
    assert codes(job.sent[new]) == [(1, RankTaken.code)]


def test_pending_requests_of_a_worker_that_leaves_are_answered() -> None:
    job = Running()
    job.open_store()
    job.say(job.w[0], 3, Barrier(1))
    sent = job.say(job.w[0], 4, Leave())
    assert codes(sent) == [(3, ClosedError.code)]
    assert (4, Done()) in sent


def test_worker_that_leaves_breaks_the_barrier_of_the_others() -> None:
    job = Running()
    job.open_store()
    job.say(job.w[0], 3, Barrier(1))
    job.say(job.w[1], 2, Leave())
    assert codes(job.sent[job.w[0]]) == [(3, ClusterError.code)]
    assert job.say(job.w[0], 4, Barrier(1)) == [(4, Done())]


def test_server_that_leaves_while_workers_need_it_is_a_loss() -> None:
    job = Running()
    assert job.say(job.s[0], 1, Leave()) == [(1, Done())]
    (lost,) = lost_messages(job, job.w[0])
    assert lost.role == "server"
    assert codes(job.say(job.w[0], 2, Barrier(1))) == [(2, ServerLost.code)]


def test_nothing_follows_a_stop() -> None:
    job = Running(workers=1)
    job.say(job.w[0], 2, Leave())
    job.say(job.s[0], 2, Leave())
    assert job.stops == [None]
    link = job.next_link
    assert job.state.opened(link, "worker", job.now) == []
    assert job.state.received(job.w[0], 9, 0, Leave(), job.now) == []
    assert job.state.closed(job.w[0], job.now) == []
    assert job.state.tick(job.now + 100) == []


@pytest.mark.parametrize("died", [Died("scheduler", 0, "x"), Died("worker", 7, "x")])
def test_death_of_nobody_is_a_typed_error(died: Died) -> None:
    job = Running()
    launcher = job.open("launcher")
    assert codes(job.say(launcher, 1, died)) == [(1, ConfigError.code)]
    assert codes(job.say(launcher, 2, died)) == [(2, ConfigError.code)]
    assert job.stops == []


# ---- at random ----------------------------------------------------------------------------------


class Process:
    """What a well-behaved process remembers."""

    def __init__(self, role: str, rank: int) -> None:
        self.role, self.rank = role, rank
        self.link: int | None = None
        self.incarnation = 0
        self.next_request = 1
        self.open: dict[int, Message] = {}  # requests that it waits for
        self.answers: dict[int, Message] = {}
        self.ready = False
        self.gone = False
        self.orders: dict[int, Message] = {}
        self.heard_left: set[int] = set()

    @property
    def acked(self) -> int:
        return min(self.open, default=self.next_request)


class Scheduler(RuleBasedStateMachine):
    """Three workers and two servers that join, talk, break, come back, die and leave at random."""

    def __init__(self) -> None:
        super().__init__()
        self.config = Config(num_workers=3, num_servers=2, rendezvous_s=30, frozen_server_s=3,
                             frozen_worker_s=6)
        self.now = 0.0
        self.state = SchedulerState(self.config, self.now)
        self.places = [*(("worker", r) for r in range(3)), *(("server", r) for r in range(2))]
        self.processes: dict[tuple[str, int], Process] = {}
        self.by_link: dict[int, Process] = {}
        self.joining: dict[int, int] = {}  # link -> number of its join
        self.next_link = 1
        self.incarnations: set[int] = set()
        self.stops: list[AsyncPSError | None] = []
        self.barriers: dict[tuple[int, int], int] = {}  # (rank, request) -> generation
        self.came = [0, 0, 0]
        self.left: set[int] = set()
        self.loss_at: float | None = None
        self.running = False
        self.store: int | None = None

    # what the scheduler does

    def run(self, instructions: list[Instruction]) -> None:
        for item in instructions:
            assert not self.stops, "something after the stop"
            match item:
                case Send(link, request, message):
                    assert link in self.by_link, "sent to a link that is not open"
                    self.hear(self.by_link[link], link, request, message)
                case Close(link):
                    process = self.by_link.pop(link)
                    if process.link == link:
                        process.link = None
                    self.joining.pop(link, None)
                case Stop(error):
                    self.stops.append(error)
                case Log():
                    pass

    def hear(self, process: Process, link: int, request: int, message: Message) -> None:
        if self.joining.get(link) == request:
            del self.joining[link]
            if isinstance(message, Joined):
                assert message.rank == process.rank
                if process.incarnation == 0:
                    assert not self.running, "a new process in a job that runs"
                    assert message.incarnation not in self.incarnations
                    self.incarnations.add(message.incarnation)
                    holder = self.processes.get((process.role, process.rank))
                    assert holder is None or holder.link is None or holder.gone
                    self.processes[process.role, process.rank] = process
                    process.incarnation = message.incarnation
                assert message.incarnation == process.incarnation
                process.link = link
            else:
                assert isinstance(message, ErrorInfo)
            return
        assert process.link == link, "sent to a process that has not joined"
        match message:
            case Members():
                process.ready = True
                self.running = self.running or process.role == "worker"
                if process.role == "server":
                    process.orders[0] = message
            case Absent():
                assert not self.running
            case Install():
                process.orders[request] = message
            case Lost(role, rank):
                assert self.processes[role, rank] is not process
                self.loss_at = self.now if self.loss_at is None else self.loss_at
            case Left(rank):
                assert process.role == "server", "only rounds care who has left"
                assert rank in self.left
                process.heard_left.add(rank)
            case Shutdown(error):
                assert error is not None or all(
                    p.gone for p in self.processes.values() if p.role == "worker")
            case _:
                self.hear_answer(process, request, message)

    def hear_answer(self, process: Process, request: int, message: Message) -> None:
        assert 0 < request < process.next_request, "an answer to nothing"
        if request in process.answers:
            assert process.answers[request] == message, "another answer to the same request"
        process.answers[request] = message
        process.open.pop(request, None)
        if isinstance(message, StoreOpened):
            assert message.store == 1
            self.store = 1
        generation = self.barriers.get((process.rank, request))
        if process.role == "worker" and generation is not None and message == Done():
            for rank in range(3):
                assert self.came[rank] > generation or rank in self.left, "released too early"

    # what may happen

    def connected(self, role: str | None = None) -> list[Process]:
        return [p for p in self.processes.values()
                if p.link is not None and role in (None, p.role)]

    def pick(self, data: st.DataObject, role: str | None = None) -> Process | None:
        found = self.connected(role)
        return data.draw(st.sampled_from(found)) if found else None

    def open_link(self, process: Process, incarnation: int) -> None:
        link, self.next_link = self.next_link, self.next_link + 1
        if self.stops:
            return
        self.by_link[link] = process
        number, process.next_request = process.next_request, process.next_request + 1
        acked = min([number, *process.open])
        self.run(self.state.opened(link, process.role, self.now))
        self.joining[link] = number
        self.run(self.state.received(link, number, acked, Join(
            process.role, process.rank, incarnation, "h", 1, "h", 1), self.now))

    def request(self, process: Process, message: Message) -> int:
        number, process.next_request = process.next_request, process.next_request + 1
        process.open[number] = message
        self.send(process, number)
        return number

    def send(self, process: Process, number: int) -> None:
        if process.link is not None and not self.stops:
            self.run(self.state.received(process.link, number, process.acked,
                                         process.open[number], self.now))

    @initialize(everybody=st.booleans())
    def begin(self, everybody: bool) -> None:
        """Half of the runs start with a job that runs and has a store."""
        if everybody:
            for role, rank in self.places:
                self.open_link(Process(role, rank), 0)
            self.answer_orders()
            worker = self.processes["worker", 0]
            self.request(worker, OpenStore("s", StoreConfig("dist_sync", "arrival", "sum")))
            self.answer_orders()
            assert self.store == 1

    @rule(place=st.integers(0, 4))
    def new_process(self, place: int) -> None:
        self.open_link(Process(*self.places[place]), 0)

    @rule(data=st.data())
    def come_back(self, data: st.DataObject) -> None:
        """The same process opens another connection, whether or not its old one is broken."""
        found = list(self.processes.values())
        if found:
            process = data.draw(st.sampled_from(found))
            self.open_link(process, process.incarnation)
            for number in sorted(process.open):
                self.send(process, number)

    @rule(data=st.data())
    def break_link(self, data: st.DataObject) -> None:
        process = self.pick(data)
        if process is not None and not self.stops:
            link, process.link = process.link, None
            assert link is not None
            del self.by_link[link]
            self.run(self.state.closed(link, self.now))

    @rule(silences=st.integers(1, 5))
    def pass_time(self, silences: int) -> None:
        """Whoever is connected is heard; whoever is not, does not come back."""
        for _ in range(silences):
            self.now += 0.5
            for link in self.by_link:
                self.run(self.state.heard(link, self.now))
            self.run(self.state.tick(self.now))

    @rule(seconds=st.sampled_from([0.25, 0.5, 0.9, 5.0]), data=st.data())
    def tick(self, seconds: float, data: st.DataObject) -> None:
        self.now += seconds
        heard = data.draw(st.sets(st.sampled_from(sorted(self.by_link)))) if self.by_link else ()
        for link in heard:
            self.run(self.state.heard(link, self.now))
        self.run(self.state.tick(self.now))

    @rule()
    def answer_orders(self) -> None:
        for server in self.connected("server"):
            orders, server.orders = server.orders, {}
            for number in orders:
                if server.link is not None and not self.stops:
                    message = Done() if number else Prepared()
                    self.run(self.state.received(server.link, number, server.acked, message,
                                                 self.now))

    @rule(data=st.data())
    def open_store(self, data: st.DataObject) -> None:
        worker = self.pick(data, "worker")
        if worker is not None and worker.ready and not worker.gone:
            self.request(worker, OpenStore("s", StoreConfig("dist_sync", "arrival", "sum")))

    @precondition(lambda self: self.store is not None)
    @rule(data=st.data())
    def barrier(self, data: st.DataObject) -> None:
        worker = self.pick(data, "worker")
        if worker is not None and not worker.gone and not self.stops:
            self.barriers[worker.rank, worker.next_request] = self.came[worker.rank]
            self.came[worker.rank] += 1
            self.request(worker, Barrier(1))

    @precondition(lambda self: self.store is not None)
    @rule(data=st.data(), rate=st.sampled_from([0.1, 0.1, 0.1, 0.2]))
    def optimizer(self, data: st.DataObject, rate: float) -> None:
        worker = self.pick(data, "worker")
        if worker is not None and not worker.gone:
            self.request(worker, SetOptimizer(1, "sgd", {"learning_rate": rate}))

    @precondition(lambda self: self.store is not None)
    @rule(data=st.data(), key=st.integers(0, 3))
    def keys(self, data: st.DataObject, key: int) -> None:
        worker = self.pick(data, "worker")
        if worker is not None and not worker.gone:
            spec = [KeySpec(key, "float32", (3,), 4)]
            if worker.rank != 0:
                self.request(worker, Await(1, spec))
            else:
                self.request(worker, Declare(1, spec))
                self.request(worker, Ready(1, [key]))

    @rule(data=st.data())
    def repeat(self, data: st.DataObject) -> None:
        """A request that is still waited for goes out again."""
        process = self.pick(data)
        if process is not None and process.open:
            self.send(process, data.draw(st.sampled_from(sorted(process.open))))

    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        worker = self.pick(data, "worker")
        if worker is not None and worker.ready and not worker.gone and data.draw(st.booleans()):
            worker.gone = True
            self.left.add(worker.rank)
            self.request(worker, Leave())

    @rule(data=st.data(), direct=st.booleans(), rarely=st.integers(0, 2), cut=st.booleans())
    def end(self, data: st.DataObject, direct: bool, rarely: int, cut: bool) -> None:
        """A worker's process ends, and whoever reaps it says with which code."""
        worker = self.pick(data, "worker")
        if worker is None or not worker.ready or worker.gone or self.stops:
            return
        lives = self.running and self.loss_at is None
        self.request(worker, Ending(direct))
        if cut and worker.link is not None and not self.stops:
            link, worker.link = worker.link, None
            del self.by_link[link]
            self.run(self.state.closed(link, self.now))
        if lives and (rarely or len(self.left) == 2):
            worker.gone = True
            self.left.add(worker.rank)
            self.say_of(Ended(worker.rank, "h", 99, None))
        else:
            self.say_of(Ended(worker.rank, "h", 99, "exited with code 3"))

    @rule(place=st.integers(0, 4), rarely=st.integers(0, 4))
    def die(self, place: int, rarely: int) -> None:
        if not rarely:
            self.say_of(Died(*self.places[place], "signal 9"))

    def say_of(self, word: Message) -> None:
        """What a launcher says."""
        if self.stops:
            return
        link, self.next_link = self.next_link, self.next_link + 1
        self.by_link[link] = Process("launcher", 0)
        self.run(self.state.opened(link, "launcher", self.now))
        self.by_link[link].link = link
        self.by_link[link].next_request = 2
        self.run(self.state.received(link, 1, 1, word, self.now))

    # what always holds

    @invariant()
    def no_two_links_hold_one_place(self) -> None:
        for link, process in self.by_link.items():
            assert process.link == link, "an old link stayed open"
        places = [(p.role, p.rank) for p in self.by_link.values() if p.role != "launcher"]
        assert len(places) == len(set(places))
        assert len(self.stops) <= 1

    @invariant()
    def servers_that_are_there_know_who_has_left(self) -> None:
        if self.running and self.loss_at is None and not self.stops:
            for server in self.connected("server"):
                assert server.heard_left == self.left

    @invariant()
    def nobody_waits_after_a_loss(self) -> None:
        if self.loss_at is not None and not self.stops:
            for process in self.connected():
                assert not process.open, "a survivor waits for an answer"

    def teardown(self) -> None:
        """After a loss, or once the last worker has left, the job ends within a known time."""
        workers = [p for p in self.processes.values() if p.role == "worker"]
        ending = self.loss_at is not None or (len(workers) == 3 and all(p.gone for p in workers))
        for _ in range(24):  # 6 s
            self.now += 0.25
            self.run(self.state.tick(self.now))
        if ending:
            assert len(self.stops) == 1


TestScheduler = Scheduler.TestCase
TestScheduler.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
