"""A worker that ends says so, and whoever reaps it says how."""

from __future__ import annotations

from typing import Any

import pytest

from asyncps.errors import WorkerLost
from asyncps.protocol.messages import Done, Ended, Ending, Gone, Left, Lost
from tests.state.test_scheduling import Running

HOST, SHELL = "hworker", 99


def ending(*, direct: bool = True, cut: bool = True, **changes: Any) -> Running:
    """A job whose worker 1 has said that it ends, and whose process is gone."""
    job = Running(2, 1, reconnect_s=2.0, **changes)
    assert job.say(job.w[1], 5, Ending(direct)) == [(5, Done())]
    if cut:
        job.close(job.w[1])
    return job


def word(job: Running, reason: str | None, rank: int | None = 1, pid: int = SHELL,
         host: str = HOST) -> None:
    link = job.open("launcher")
    assert (1, Done()) in job.say(link, 1, Ended(rank, host, pid, reason))


@pytest.mark.parametrize("direct", [True, False])
@pytest.mark.parametrize("cut", [True, False])
def test_exit_code_0_is_a_goodbye(direct: bool, cut: bool) -> None:
    job = ending(direct=direct, cut=cut)
    word(job, None)
    assert job.sent[job.s[0]] == [(0, Left(1))]
    assert job.logs[-1] == "worker 1 @hworker left"


@pytest.mark.parametrize("direct", [True, False])
def test_another_exit_code_is_a_loss(direct: bool) -> None:
    job = ending(direct=direct)
    word(job, "exited with code 3")
    for link in (job.w[0], job.s[0]):
        assert job.sent[link] == [(0, Lost("worker", 1, HOST, "exited with code 3"))]


def test_another_exit_code_is_a_loss_that_a_job_may_go_on_without() -> None:
    job = ending(on_worker_lost="continue")
    word(job, "exited with code 3")
    assert job.sent[job.w[0]] == [(0, Gone(1, HOST, "exited with code 3"))]


def test_worker_whose_parent_says_nothing_is_lost_like_any_that_is_cut_off() -> None:
    job = ending()
    job.pass_time(2.5, job.w[0], job.s[0])
    ((_, lost),) = job.sent[job.w[0]]
    assert lost == Lost("worker", 1, HOST,
                        "it ended, and nobody said within 2 s with which code")


def test_shell_between_the_two_may_take_its_time_and_still_have_the_last_word() -> None:
    job = ending(direct=False)
    job.pass_time(2.5, job.w[0], job.s[0])
    assert (0, Left(1)) in job.sent[job.s[0]]
    word(job, "exited with code 3")
    assert job.sent[job.w[0]] == [(0, Lost("worker", 1, HOST, "exited with code 3"))]


def test_worker_that_still_tidies_up_is_alive() -> None:
    job = ending(cut=False)
    job.pass_time(30.0, *job.all)
    assert not job.stops
    word(job, None)
    assert (0, Left(1)) in job.sent[job.s[0]]


def test_exit_code_0_of_who_said_nothing_is_no_goodbye() -> None:
    """Such as os._exit(0): its rounds may be half pushed."""
    job = Running(2, 1, reconnect_s=2.0)
    job.close(job.w[1])
    word(job, None)
    assert job.s[0] not in job.sent
    job.pass_time(2.5, job.w[0], job.s[0])
    ((_, lost),) = job.sent[job.w[0]]
    assert isinstance(lost, Lost)


def test_end_of_a_process_that_was_refused_the_rank_is_nobodys_loss() -> None:
    job = Running(2, 1)
    word(job, "exited with code 1")
    word(job, "exited with code 1", host="elsewhere", pid=1)
    word(job, "exited with code 1", rank=None)
    assert not {*job.w, *job.s} & job.sent.keys()


def test_worker_without_a_given_rank_is_known_by_its_process() -> None:
    job = Running(1, 1, reconnect_s=2.0)
    job.say(job.w[0], 5, Ending(True))
    job.close(job.w[0])
    word(job, "exited with code 3", rank=None, pid=1)
    job.pass_time(6.0, job.s[0])
    assert isinstance(job.stops[0], WorkerLost)
