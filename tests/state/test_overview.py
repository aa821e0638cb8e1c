"""What the scheduler's state machine tells observers, and what they cannot do."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncps.errors import RemoteProtocolError
from asyncps.protocol.messages import (
    AskReport,
    AskStatus,
    Await,
    Barrier,
    Died,
    Done,
    JobStatus,
    Join,
    KeySpec,
    Leave,
    Message,
    Report,
    Wait,
)
from asyncps.state.overview import MAX_WAITS
from tests.state.test_scheduling import Job, Running, codes

REPORT = Report(10, 20, 3, 1, 2, 5, 7, 4096, {1: 0.5}, [Wait("round", 1, "w", 1, 2.5, 3)])


def ask(job: Job, link: int | None = None) -> JobStatus:
    """Ask as an observer; a new one by default, who goes again."""
    mine = job.open("observer") if link is None else link
    ((request, answer),) = job.say(mine, 9, AskStatus())
    assert request == 9
    assert isinstance(answer, JobStatus)
    sent = job.sent
    if link is None:
        job.close(mine)
        job.sent = sent
    return answer


def test_status_of_a_job_that_waits_for_nodes_names_who_is_there() -> None:
    job = Job(workers=2, servers=1)
    job.join("worker", 1)
    job.now += 3
    status = ask(job)
    assert (status.phase, status.up_s, status.num_workers, status.num_servers) == (
        "joining", 3.0, 2, 1)
    (node,) = status.nodes
    assert (node.member.role, node.member.rank, node.member.hostname) == ("worker", 1, "hworker")
    assert (node.standing, node.silent_s, node.report) == ("alive", 3.0, None)


def test_phases_of_a_job() -> None:
    job = Running(workers=1)
    assert ask(job).phase == "running"
    job.died("worker", 0, "signal 9")
    status = ask(job)
    assert status.phase == "failed"
    assert status.error is not None
    assert "worker 0" in status.error
    assert status.nodes[1].standing == "lost"
    over = Running(workers=1)
    over.say(over.w[0], 2, Leave())
    assert ask(over).phase == "ending"


def test_question_has_every_node_asked_a_few_times_a_second_and_no_more() -> None:
    job = Running(workers=2, servers=1)
    ask(job)
    assert {link: sent for link, sent in job.sent.items() if link in job.all} == {
        link: [(0, AskReport())] for link in job.all}
    job.now += 0.1
    ask(job)
    assert not any(link in job.sent for link in job.all)
    job.now += 0.2
    ask(job)
    assert all(link in job.sent for link in job.all)


def test_node_that_has_been_silent_for_long_is_not_asked() -> None:
    job = Running(workers=2, servers=1)
    job.pass_time(6, job.w[0], job.s[0])
    ask(job)
    assert [link for link in job.all if link in job.sent] == [job.w[0], job.s[0]]


def test_report_is_told_with_its_age() -> None:
    job = Running(workers=2)
    job.say(job.s[0], 0, REPORT)
    job.now += 1.5
    node = ask(job).nodes[0]
    assert node.member.role == "server"
    assert node.report == REPORT
    assert node.report_age_s == 1.5


@pytest.mark.parametrize("report", [
    Report(0, 0, 0, 0, 0, 0, 0, 0, {}, [Wait("round", 1, "", 0, 1.0, 1)] * (MAX_WAITS + 1)),
    Report(0, 0, 0, 0, 0, 0, 0, 0, {}, [Wait("round", 1, "k" * 2000, 0, 1.0, 1)]),
    Report(0, 0, 0, 0, 0, 0, 0, 0, {0: 1.0, 1: 1.0, 2: 1.0}, []),
], ids=["waits", "key", "ranks"])
def test_report_that_is_too_long_closes_its_link(report: Report) -> None:
    job = Running(workers=2)
    job.say(job.w[0], 0, report)
    assert job.closed == [job.w[0]]
    assert ask(job).nodes[1].report is None


def test_barrier_names_who_has_not_come_and_since_when() -> None:
    job = Running(workers=3)
    job.open_store()
    job.say(job.w[0], 3, Barrier(1))
    job.pass_time(2, *job.all)
    job.say(job.w[2], 3, Barrier(1))
    status = ask(job)
    (wait,) = status.waits
    assert (wait.what, wait.store, wait.rank, wait.count) == ("barrier", 1, 1, 2)
    assert wait.seconds == pytest.approx(2.0, abs=0.26)  # since the first tick that saw it
    job.say(job.w[1], 3, Barrier(1))
    job.now += 1
    assert ask(job).waits == []


def test_init_that_waits_for_rank_0_names_it() -> None:
    job = Running(workers=2)
    job.open_store()
    job.say(job.w[1], 3, Await(1, [KeySpec("w", "float32", (3,), 4)]))
    status = ask(job)
    assert [(w.what, w.rank, w.count) for w in status.waits] == [("init", 0, 1)]
    assert [(s.store, s.name, s.type, s.keys) for s in status.stores] == [(1, "s", "dist_sync", 0)]


@pytest.mark.parametrize("message", [
    Leave(), Barrier(1), Done(), Died("worker", 0, "x"), Join("worker", 0, 0, "", 0, "h", 1),
    Join("observer", 0, 0, "", 0, "h", 1), REPORT,
])
def test_observer_that_says_anything_else_is_closed_and_nothing_follows(message: Message) -> None:
    job = Running(workers=1)
    link = job.open("observer")
    before = job.logs[:]
    assert codes(job.say(link, 3, message))[0][0] == 3
    assert job.closed == [link]
    assert set(job.sent) == {link}
    assert all("observer is refused" in text for text in job.logs[len(before):])
    assert ask(job).phase == "running"


def test_question_of_somebody_else_or_without_a_number_is_out_of_place() -> None:
    job = Running(workers=1)
    assert codes(job.say(job.w[0], 3, AskStatus())) == [(3, RemoteProtocolError.code)]
    link = job.open("observer")
    job.say(link, 0, AskStatus())
    assert link in job.closed


def test_observers_leave_the_links_of_nodes_alone() -> None:
    job = Job(workers=2, servers=1)
    observers = [job.open("observer") for _ in range(100)]
    assert job.closed == observers[16:]
    for rank in range(2):
        job.join("worker", rank)
    job.join("server", 0)
    assert len(ask(job, observers[0]).nodes) == 3


def test_observer_is_closed_when_it_asks_nothing() -> None:
    job = Running(handshake_s=5)
    silent, curious = job.open("observer"), job.open("observer")
    job.pass_time(4, *job.all)
    ask(job, curious)
    job.pass_time(2, *job.all)
    assert job.closed == [silent]
    job.pass_time(4, *job.all)
    assert job.closed == [silent, curious]
    assert ask(job).phase == "running"


@given(st.lists(st.sampled_from(["open", "ask", "say", "close", "time"]), max_size=40))
def test_whatever_observers_do_the_job_is_the_same(actions: list[str]) -> None:
    job, links = Running(workers=2), []
    members = len(ask(job).nodes)
    for action in actions:
        if action == "open":
            links.append(job.open("observer"))
        elif action == "time":
            job.pass_time(1, *job.all)
        elif links:
            {"ask": lambda link: job.say(link, 1, AskStatus()),
             "say": lambda link: job.say(link, 1, Leave()),
             "close": job.close}[action](links[-1])
        told = [message for link in job.all for _, message in job.sent.get(link, [])]
        assert all(message == AskReport() for message in told)
        links = [link for link in links if link not in job.closed]
    status = ask(job)
    assert (status.phase, len(status.nodes), job.stops) == ("running", members, [])
    assert not set(job.closed) & set(job.all)
