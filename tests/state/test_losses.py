"""on_worker_lost="continue": the scheduler goes on without a worker, and fences it."""

from __future__ import annotations

from typing import Any

import pytest

from asyncps.errors import RankTaken, StaleIncarnation, WorkerLost
from asyncps.protocol.messages import (
    AllJoined,
    Attendance,
    Await,
    Barrier,
    Done,
    ErrorInfo,
    Gone,
    Install,
    Join,
    JoinStore,
    KeySpec,
    Leave,
    Members,
    OpenStore,
    Shutdown,
    StoreOpened,
)
from tests.state.test_scheduling import SUM, Job, Running, codes


def started(workers: int = 3, **changes: Any) -> tuple[Running, list[int], list[int]]:
    job = Running(workers, 1, **{"on_worker_lost": "continue", **changes})
    return job, job.s, job.w


def incarnation_of(job: Running, link: int) -> int:
    """They joined in the order of their links."""
    return job.all.index(link) + 1


def obey(job: Running, server: int) -> None:
    """The server answers its orders; `job.sent` is what the last answer leads to."""
    for request, message in job.sent.get(server, []):
        if isinstance(message, Install | Attendance):
            job.say(server, request, Done())


def messages_to(job: Job, link: int) -> list[Any]:
    return [message for _, message in job.sent.get(link, [])]


def test_everybody_hears_of_a_lost_worker_and_goes_on() -> None:
    job, servers, workers = started()
    job.died("worker", 1)
    for link in (*servers, *workers):  # the lost one too, should it live
        assert messages_to(job, link) == [Gone(1, "hworker", "signal 9")]
    assert workers[1] in job.closed
    assert not job.stops
    assert job.logs[-1].endswith("worker 1 @hworker is lost: signal 9; the job goes on without it")
    assert job.say(workers[0], 5, OpenStore("s", SUM)) == []
    obey(job, servers[0])
    assert (5, StoreOpened(1)) in job.sent[workers[0]]
    job.say(workers[0], 6, Barrier(1))
    job.say(workers[2], 6, Barrier(1))
    assert job.sent[workers[0]] == [(6, Done())]


def test_job_ends_well_when_the_survivors_have_left() -> None:
    job, servers, workers = started()
    job.died("worker", 1)
    job.say(workers[0], 5, Leave())
    job.say(workers[2], 5, Leave())
    assert messages_to(job, servers[0])[-1] == Shutdown(None)
    for link in (workers[0], workers[2]):
        job.close(link)
    job.say(servers[0], 9, Leave())
    assert job.stops == [None]


def test_last_worker_that_is_lost_fails_the_job() -> None:
    job, servers, _ = started(2)
    job.died("worker", 1)
    job.died("worker", 0)
    (shutdown,) = [m for m in messages_to(job, servers[0]) if isinstance(m, Shutdown)]
    assert shutdown.error is not None
    assert (shutdown.error.code, shutdown.error.rank) == (WorkerLost.code, 0)


def test_worker_that_is_lost_when_all_others_have_left_is_no_failure() -> None:
    job, servers, workers = started(2)
    job.say(workers[0], 5, Leave())
    job.close(workers[0])
    job.died("worker", 1)
    job.say(servers[0], 9, Leave())
    assert job.stops == [None]


def test_silent_worker_is_lost_and_fenced() -> None:
    job, servers, workers = started(2, frozen_worker_s=3.0)
    job.pass_time(4.0, servers[0], workers[0])
    assert workers[1] in job.closed
    job.close(workers[1])
    assert not job.stops
    link = job.open("worker")
    answer = job.say(link, 9, Join("worker", 1, incarnation_of(job, workers[1]), "", 0, "h", 1))
    assert codes(answer) == [(9, StaleIncarnation.code)]
    assert link in job.closed
    link = job.open("worker")
    answer = job.say(link, 1, Join("worker", 1, 0, "", 0, "h", 1))
    assert codes(answer) == [(1, RankTaken.code)]


def test_node_that_comes_back_hears_what_it_missed_in_order() -> None:
    job, servers, workers = started(2, reconnect_s=100.0)
    job.say(workers[0], 5, OpenStore("s", SUM))
    obey(job, servers[0])
    job.close(servers[0])
    job.say(workers[0], 6, JoinStore(1))
    job.died("worker", 1)
    link = job.join("server", 0, incarnation_of(job, servers[0]))
    kinds = [message for message in messages_to(job, link)
             if isinstance(message, Members | Gone | Attendance)]
    assert isinstance(kinds[0], Members)
    assert kinds[1:] == [Gone(1, "hworker", "signal 9"), Attendance(1, 0), Attendance(1, None)]
    obey(job, link)
    assert job.sent[workers[0]] == [(6, AllJoined(0))]


def test_init_that_waits_for_a_lost_rank_0_is_worker_lost() -> None:
    job, servers, workers = started(2)
    job.say(workers[1], 5, OpenStore("s", SUM))
    obey(job, servers[0])
    assert job.say(workers[1], 6, Await(1, [KeySpec("w", "float32", (3,), 4)])) == []
    job.died("worker", 0)
    (error,) = [m for m in messages_to(job, workers[1]) if isinstance(m, ErrorInfo)]
    assert (error.code, error.rank) == (WorkerLost.code, 0)


@pytest.mark.parametrize("on_worker_lost", ["fail", "continue"])
def test_loss_before_the_job_begins_or_of_a_server_fails_it(on_worker_lost: str) -> None:
    job = Job(2, 1, on_worker_lost=on_worker_lost)
    job.join("worker", 0)
    job.died("worker", 1)
    assert isinstance(job.stops[0], WorkerLost)
    job, _, workers = started(2, on_worker_lost=on_worker_lost)
    job.died("server", 0)
    assert not any(isinstance(m, Gone) for m in messages_to(job, workers[0]))
    assert workers[0] not in job.closed
    assert "server 0" in job.logs[-1]
