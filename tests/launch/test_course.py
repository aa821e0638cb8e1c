"""The course of a launch, with a clock of the test's own."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncps.launch.course import Course, Deadlines, Failed, Lost, Phase, Say, Terminate
from asyncps.launch.members import Member, describe_end, exit_code_of

SCHEDULER = Member("scheduler", 0)
SERVERS = [Member("server", rank) for rank in range(2)]
WORKERS = [Member("worker", rank) for rank in range(2)]


def running() -> Course:
    course = Course(len(WORKERS), Deadlines(), now=0.0)
    course.started(SCHEDULER)
    course.announced()
    for member in SERVERS + WORKERS:
        course.started(member)
    return course


def test_good_job_goes_from_running_over_leaving_to_its_end() -> None:
    course = running()
    assert course.wait_s(0.0) is None
    assert course.exited(WORKERS[1], 0, 1.0) == []
    assert course.phase is Phase.RUNNING
    assert course.exited(WORKERS[0], 0, 2.0) == []
    assert course.phase is Phase.LEAVING
    assert course.wait_s(2.0) == 10.0
    for member in [*SERVERS, SCHEDULER]:
        assert course.exited(member, 0, 3.0) == []
    assert (course.phase, course.exit_code, course.culprit) == (Phase.OVER, 0, None)


def test_servers_that_do_not_leave_are_ended_after_10_s() -> None:
    course = running()
    for worker in WORKERS:
        course.exited(worker, 0, 1.0)
    assert course.tick(10.9) == []
    assert course.tick(11.0) == [
        Say("ending scheduler, server 0, server 1: still alive 10 s after the last worker"),
        Terminate(),
    ]
    course.tick(20.0)
    assert (course.phase, course.exit_code) == (Phase.OVER, 0)


def test_first_failure_counts_and_ends_the_job_in_three_steps() -> None:
    course = running()
    reason = "exited with code 3"
    assert course.exited(WORKERS[1], 3, 1.0) == [Failed(WORKERS[1], reason, tell_scheduler=True)]
    assert course.exited(WORKERS[0], 4, 1.0) == []
    assert course.wait_s(1.0) is None  # until the scheduler was told
    course.reported(1.5)
    assert course.tick(2.4) == []
    assert course.tick(2.5) == [Terminate()]
    assert course.tick(3.2) == []
    assert course.phase is Phase.OVER
    assert (course.exit_code, course.culprit, course.reason) == (3, WORKERS[1], reason)


def test_survivors_that_end_by_themselves_are_not_waited_for() -> None:
    course = running()
    course.exited(WORKERS[1], -9, 1.0)
    course.reported(1.0)
    for member in [WORKERS[0], *SERVERS, SCHEDULER]:
        course.exited(member, 1, 1.1)
    assert (course.phase, course.exit_code) == (Phase.OVER, 137)


def test_server_that_fails_while_leaving_is_a_failure() -> None:
    course = running()
    for worker in WORKERS:
        course.exited(worker, 0, 1.0)
    assert course.exited(SERVERS[0], -11, 2.0) == [
        Failed(SERVERS[0], "was killed by signal 11 (SIGSEGV)", tell_scheduler=True)
    ]
    assert course.exit_code == 139


def test_server_that_leaves_alone_is_a_failure_after_5_s() -> None:
    course = running()
    assert course.exited(SERVERS[0], 0, 1.0) == []
    assert course.tick(5.9) == []
    (order,) = course.tick(6.0)
    assert isinstance(order, Failed)
    assert order.member == SERVERS[0]
    assert course.exit_code == 1


def test_servers_and_scheduler_may_leave_together_before_the_workers_process_ends() -> None:
    course = running()
    for member in [*SERVERS, SCHEDULER]:
        assert course.exited(member, 0, 1.0) == []
    assert course.wait_s(1.0) is None
    for worker in WORKERS:
        course.exited(worker, 0, 100.0)
    assert (course.phase, course.exit_code) == (Phase.OVER, 0)


def test_nobody_is_told_when_the_scheduler_is_gone() -> None:
    course = running()
    assert course.exited(SCHEDULER, 1, 1.0) == [
        Failed(SCHEDULER, "exited with code 1", tell_scheduler=False)
    ]


@pytest.mark.parametrize(("member", "limit_s"), [(SCHEDULER, 3.5), (WORKERS[0], 1.0)])
def test_survivors_have_the_time_to_find_out_that_the_scheduler_is_gone(
    member: Member, limit_s: float
) -> None:
    course = running()
    course.exited(member, -9, 1.0)
    course.reported(2.0)
    assert course.wait_s(2.0) == limit_s
    assert course.tick(2.0 + limit_s) == [Terminate()]


def test_scheduler_that_says_nothing_is_a_failure_after_20_s() -> None:
    course = Course(1, Deadlines(), now=0.0)
    course.started(SCHEDULER)
    assert course.wait_s(5.0) == 15.0
    (order,) = course.tick(20.0)
    assert isinstance(order, Failed)
    assert not order.tell_scheduler
    assert course.exit_code == 1


def test_signal_of_the_user_ends_the_job_and_a_second_one_at_once() -> None:
    course = running()
    assert course.interrupted(2, 1.0) == [Terminate()]
    assert course.exited(WORKERS[0], -15, 1.1) == []
    assert course.interrupted(2, 1.2) == []
    assert (course.phase, course.exit_code, course.culprit) == (Phase.OVER, 130, None)


def test_signal_after_a_failure_keeps_the_exit_code_of_the_failure() -> None:
    course = running()
    course.exited(WORKERS[0], 3, 1.0)
    assert course.interrupted(2, 1.1) == [Terminate()]
    assert course.exit_code == 3


EVENTS = st.one_of(
    st.tuples(st.just("exited"), st.integers(0, 4), st.sampled_from([0, 0, 0, 1, -9])),
    st.tuples(st.just("interrupted"), st.sampled_from([1, 2, 15]), st.just(0)),
    st.tuples(st.just("time"), st.integers(0, 30), st.just(0)),
)


@given(st.lists(EVENTS, max_size=20))
def test_whatever_happens_a_launch_that_is_ending_ends(events: list[tuple[str, int, int]]) -> None:
    course, now = running(), 0.0
    left = [SCHEDULER, *SERVERS, *WORKERS]
    bad = False
    for kind, value, code in events:
        if course.phase is Phase.OVER:
            break
        orders = []
        if kind == "exited" and value < len(left):
            bad = bad or code != 0
            orders = course.exited(left.pop(value), code, now)
        elif kind == "interrupted":
            bad = True
            orders = course.interrupted(value, now)
        elif kind == "time":
            now += value
            orders = course.tick(now)
        if any(isinstance(order, Failed) for order in orders):
            course.reported(now)
    if bad or not [member for member in left if member.role == "worker"]:
        for _ in range(4):
            now += 60
            course.tick(now)
        assert course.phase is Phase.OVER
        assert not bad or course.exit_code != 0 or course.culprit is None


@pytest.mark.parametrize(
    ("code", "exit_code", "text"),
    [
        (0, 0, "exited with code 0"),
        (3, 3, "exited with code 3"),
        (-9, 137, "was killed by signal 9 (SIGKILL)"),
        (-99, 227, "was killed by signal 99"),
    ],
)
def test_end_of_a_process_in_a_number_and_in_words(code: int, exit_code: int, text: str) -> None:
    assert exit_code_of(code) == exit_code
    assert describe_end(code) == text


# ---- on_worker_lost="continue" ------------------------------------------------------------------


def going_on() -> Course:
    course = Course(len(WORKERS), Deadlines(), now=0.0, goes_on=True)
    course.started(SCHEDULER)
    course.announced()
    for member in SERVERS + WORKERS:
        course.started(member)
    return course


def test_job_goes_on_without_a_lost_worker_and_ends_well() -> None:
    course = going_on()
    reason = "was killed by signal 9 (SIGKILL)"
    assert course.exited(WORKERS[1], -9, 1.0) == [Lost(WORKERS[1], reason, tell_scheduler=True)]
    assert course.phase is Phase.RUNNING
    assert course.declared_lost(WORKERS[1], reason, 1.5) == []  # the scheduler has heard it from us
    assert course.exited(WORKERS[0], 0, 2.0) == []
    assert course.phase is Phase.LEAVING
    for member in [*SERVERS, SCHEDULER]:
        assert course.exited(member, 0, 3.0) == []
    assert (course.phase, course.exit_code, course.culprit) == (Phase.OVER, 0, None)
    assert course.lost == {WORKERS[1]: reason}


def test_job_without_workers_fails_by_the_first_that_was_lost() -> None:
    course = going_on()
    course.exited(WORKERS[1], 3, 1.0)
    assert course.exited(WORKERS[0], -9, 2.0) == [
        Lost(WORKERS[0], "was killed by signal 9 (SIGKILL)", tell_scheduler=True),
        Failed(WORKERS[1], "exited with code 3", tell_scheduler=True),
    ]
    assert (course.exit_code, course.culprit, course.phase) == (3, WORKERS[1], Phase.SPEAKING)


def test_stopped_worker_that_was_declared_lost_does_not_hold_the_end() -> None:
    course = going_on()
    reason = "was declared lost: silent"
    assert course.declared_lost(WORKERS[1], "silent", 1.0) == [
        Lost(WORKERS[1], reason, tell_scheduler=False)]
    for member in (WORKERS[0], *SERVERS, SCHEDULER):
        assert course.exited(member, 0, 2.0) == []
    assert course.wait_s(2.0) == 10.0
    assert course.tick(12.0) == [
        Say("ending worker 1: still alive 10 s after the last worker"), Terminate()]
    course.tick(20.0)
    assert (course.phase, course.exit_code) == (Phase.OVER, 0)


@pytest.mark.parametrize("code", [0, 1, -9])
def test_lost_worker_that_ends_after_all_is_counted_once(code: int) -> None:
    course = going_on()
    course.declared_lost(WORKERS[1], "silent", 1.0)
    assert course.exited(WORKERS[1], code, 2.0) == []
    assert course.phase is Phase.RUNNING
    course.exited(WORKERS[0], 0, 3.0)
    assert course.phase is Phase.LEAVING


def test_worker_that_ended_well_and_is_declared_lost_is_only_told_of() -> None:
    course = going_on()
    course.exited(WORKERS[1], 0, 1.0)
    assert course.declared_lost(WORKERS[1], "cut off", 2.0) == [
        Say("worker 1 was declared lost: cut off")]
    assert course.phase is Phase.RUNNING


def test_other_roles_still_end_a_job_that_goes_on() -> None:
    course = going_on()
    assert course.exited(SERVERS[0], -9, 1.0) == [
        Failed(SERVERS[0], "was killed by signal 9 (SIGKILL)", tell_scheduler=True)]
    assert course.declared_lost(WORKERS[1], "silent", 1.1) == []
    assert course.exit_code == 137


def test_declared_losses_are_ignored_where_a_loss_ends_the_job() -> None:
    course = running()
    assert course.declared_lost(WORKERS[1], "silent", 1.0) == []
