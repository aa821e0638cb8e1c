"""While a job has not begun the scheduler says who is missing, and tells those who wait."""

from __future__ import annotations

import pytest

from asyncps.protocol.messages import Absent, AskAbsent, Barrier, JoinStore, MissingRanks, Prepared
from tests.state.test_scheduling import Job, Running

WORDS = "joined: worker 0 @hworker; missing: server 0, worker 1"


def test_missing_are_named_again_and_again_to_everybody_who_waits() -> None:
    job = Job(workers=2, servers=1)
    link = job.join("worker", 0)
    before = len(job.logs)
    job.pass_time(35.0, link)
    assert job.logs[before:] == [f"the job has not begun: {WORDS}"] * 3
    assert job.sent[link] == [(0, Absent(WORDS))] * 3


def test_period_is_a_setting_and_nothing_is_said_once_the_job_has_begun() -> None:
    job = Job(workers=1, servers=1, join_warning_s=1.0)
    link = job.join("worker", 0)
    job.pass_time(1.0, link)
    assert len(job.sent[link]) == 1
    server = job.join("server", 0)
    job.say(server, 0, Prepared())
    job.pass_time(5.0, link, server)
    assert job.sent == {}


@pytest.mark.parametrize(("what", "come"), [("barrier", Barrier(1)), ("join", JoinStore(1))])
def test_worker_that_waits_is_told_whom_for(what: str, come: Barrier | JoinStore) -> None:
    job = Running(workers=3)
    job.open_store()
    for request, link in enumerate(job.w[:2], 3):
        job.say(link, request, come)
    assert job.say(job.w[0], 9, AskAbsent(1, what)) == [(9, MissingRanks([2]))]
    assert job.say(job.w[2], 9, AskAbsent(1, what)) == [(9, MissingRanks([]))]  # it has not come
    assert job.say(job.w[0], 10, AskAbsent(7, "tea")) == [(10, MissingRanks([]))]
