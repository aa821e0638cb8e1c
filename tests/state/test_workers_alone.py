"""A job without servers at the scheduler: it begins, meets, refuses stores, and ends."""

from __future__ import annotations

import pytest

from asyncps.errors import ConfigError
from asyncps.protocol.messages import (
    AskAbsent,
    Barrier,
    Done,
    ErrorInfo,
    Gone,
    Join,
    Joined,
    Leave,
    Lost,
    Members,
    MissingRanks,
    OpenStore,
    StoreConfig,
)
from tests.state.test_scheduling import SUM, Job, Running


def test_it_begins_as_soon_as_the_workers_are_there() -> None:
    job = Job(workers=2, servers=0)
    first = job.join("worker", 1)
    assert job.sent == {first: [(1, Joined(1, 1, 2, 0))]}
    second = job.join("worker", 0)
    assert [type(m) for _, m in job.sent[second]] == [Joined, Members]
    assert [type(m) for _, m in job.sent[first]] == [Members]
    assert job.state.status(job.now).phase == "running"


def test_it_ends_when_the_last_worker_has_left() -> None:
    job = Running(workers=2, servers=0)
    assert job.say(job.w[1], 2, Leave()) == [(2, Done())]
    assert not job.stops
    assert job.say(job.w[0], 2, Leave()) == [(2, Done())]
    assert job.stops == [None]


@pytest.mark.parametrize("kind", ["dist_sync", "dist_async", "dist_ssp"])
def test_a_store_is_refused_with_the_reason_and_the_job_goes_on(kind: str) -> None:
    job = Running(workers=2, servers=0)
    ((_, refusal),) = job.say(job.w[0], 2, OpenStore("s", StoreConfig(kind, "arrival", "sum")))
    assert isinstance(refusal, ErrorInfo)
    assert refusal.code == ConfigError.code
    assert refusal.message.startswith(f"a {kind} store keeps its values on servers, and this job")
    assert "launch -s 1 or more" in str(refusal.expected)
    assert not job.closed
    assert job.say(job.w[0], 3, Barrier(0)) == []
    assert job.say(job.w[1], 2, Barrier(0)) == [(2, Done())]


def test_a_server_has_no_place() -> None:
    job = Job(workers=2, servers=0)
    link = job.open("server")
    ((_, refusal),) = job.say(link, 1, Join("server", None, 0, "h", 1, "h", 1))
    assert isinstance(refusal, ErrorInfo)
    assert (refusal.message, refusal.expected) == ("this job has no server 0", "no servers")


# ---- the barrier of the job itself ---------------------------------------------------------------


def test_barrier_of_the_job_needs_no_store_and_waits_for_all() -> None:
    job = Running(workers=3, servers=0)
    assert job.say(job.w[0], 2, Barrier(0)) == []
    assert job.say(job.w[2], 2, Barrier(0)) == []
    assert job.say(job.w[0], 3, AskAbsent(0, "barrier")) == [(3, MissingRanks([1]))]
    (wait,) = job.state.status(job.now + 1).waits
    assert (wait.what, wait.store, wait.rank, wait.count) == ("barrier", 0, 1, 2)
    job.say(job.w[1], 2, Barrier(0))
    assert job.sent == {link: [(2, Done())] for link in job.w}


def test_barrier_of_the_job_is_none_of_a_store() -> None:
    job = Running(workers=2, servers=1)
    job.open_store()
    assert job.say(job.w[0], 3, Barrier(0)) == []
    job.say(job.w[1], 2, OpenStore("s", SUM))
    assert job.say(job.w[1], 3, Barrier(1)) == []
    assert job.say(job.w[1], 4, Barrier(0)) == [(4, Done())]


def test_who_waits_for_one_that_leaves_hears_of_it() -> None:
    job = Running(workers=3, servers=0)
    job.say(job.w[0], 2, Barrier(0))
    job.say(job.w[1], 2, Leave())
    ((request, broken),) = job.sent[job.w[0]]
    assert request == 2
    assert isinstance(broken, ErrorInfo)
    assert broken.message == "worker 1 left while others waited for it"
    assert job.say(job.w[0], 3, Barrier(0)) == []
    ((_, again),) = job.say(job.w[2], 3, Barrier(0))  # its first was waited for, too
    assert isinstance(again, ErrorInfo)
    assert again.message == broken.message
    assert job.say(job.w[2], 4, Barrier(0)) == [(4, Done())]


def test_a_lost_worker_fails_the_job_or_is_waited_for_no_longer() -> None:
    job = Running(workers=3, servers=0)
    job.say(job.w[0], 2, Barrier(0))
    job.died("worker", 1)
    assert [type(m) for _, m in job.sent[job.w[0]]] == [Lost, ErrorInfo]
    job = Running(workers=3, servers=0, on_worker_lost="continue")
    job.say(job.w[0], 2, Barrier(0))
    job.say(job.w[2], 2, Barrier(0))
    job.died("worker", 1)
    assert [type(m) for _, m in job.sent[job.w[0]]] == [Gone, Done]
    assert [type(m) for _, m in job.sent[job.w[2]]] == [Gone, Done]
