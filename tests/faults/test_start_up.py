"""Start-up by hand: orders, ranks, addresses, and what is said when somebody is missing."""

from __future__ import annotations

import sys

import pytest

from tests.faults.job import (
    PRELUDE,
    ROOT,
    START_S,
    TRAIN_BRIEFLY,
    TRAIN_FOR_EVER,
    Job,
    ReservedPort,
    port_of,
)
from tests.support.processes import ManagedProcess, ProcessGroup

# Long enough for all processes to start on a busy machine, short enough to wait for its end.
SOON = {"ASYNCPS_RENDEZVOUS_S": 3.0}


def assert_well(*members: ManagedProcess) -> None:
    for member in members:
        assert member.wait(START_S) == 0, member.output


def test_scheduler_may_start_last(processes: ProcessGroup) -> None:
    with ReservedPort() as port:
        job = Job(processes)
        job.address = f"127.0.0.1:{port.number}"
        server = job.server(0)
        worker = job.worker(PRELUDE, 0)
        scheduler = job.scheduler()
        assert_well(worker, server, scheduler)


def test_worker_that_never_starts_is_named_with_those_who_joined(processes: ProcessGroup) -> None:
    job = Job(processes, workers=2, **SOON)
    scheduler, server = job.scheduler(), job.server(0)
    worker = job.worker(PRELUDE, 0)
    for member in (scheduler, server, worker):
        line = member.wait_for_line(r"not everybody came within 3 s: joined: (.*); missing: (.*)",
                                    START_S)
        assert "server 0 @" in line[1]
        assert "worker 0 @" in line[1]
        assert line[2].startswith("worker 1")
        assert member.wait(5.0) == 1
    assert "RendezvousTimeout" in worker.output
    assert "RendezvousTimeout" in server.output


def test_nobody_at_the_schedulers_port_is_said_with_address_and_reason(
    processes: ProcessGroup,
) -> None:
    with ReservedPort() as port:
        job = Job(processes, ASYNCPS_RENDEZVOUS_S=0.5)
        job.address = f"127.0.0.1:{port.number}"
        members = [job.server(0), job.worker(PRELUDE, 0)]
        for member in members:
            assert member.wait(START_S) == 1
            assert "RendezvousTimeout" in member.output
            assert f"127.0.0.1:{port.number} could not be reached within 0.5 s" in member.output
            assert "refused" in member.output


def test_stranger_at_the_schedulers_port_is_no_scheduler(processes: ProcessGroup) -> None:
    with ReservedPort(listening=True) as port:
        job = Job(processes, ASYNCPS_RENDEZVOUS_S=0.5)
        job.address = f"127.0.0.1:{port.number}"
        worker = job.worker(PRELUDE, 0)
        assert worker.wait(START_S) == 1
        assert "could not be reached within 0.5 s" in worker.output


def test_ranks_are_the_task_numbers_and_stay_after_a_restart(processes: ProcessGroup) -> None:
    job = Job(processes, workers=2, ASYNCPS_RECONNECT_S=30)
    scheduler = job.scheduler()
    second = job.worker(TRAIN_BRIEFLY, 1)
    scheduler.wait_for_line("worker 1 @.* joined", START_S)
    second.kill()
    second.wait()
    again = job.worker(TRAIN_BRIEFLY, 1)
    scheduler.wait_for_line(r"worker 1 @.* joined \(incarnation 2\)", START_S)
    first, server = job.worker(TRAIN_BRIEFLY, 0), job.server(0)
    first.wait_for_line("this is worker 0", START_S)
    again.wait_for_line("this is worker 1", START_S)
    assert_well(first, again, server, scheduler)


def test_without_ranks_the_order_of_joining_decides(processes: ProcessGroup) -> None:
    job = Job(processes, workers=2, servers=2)
    scheduler = job.scheduler()
    first = job.worker(TRAIN_BRIEFLY)
    scheduler.wait_for_line("worker 0 @.* joined", START_S)
    second = job.worker(TRAIN_BRIEFLY)
    scheduler.wait_for_line("worker 1 @.* joined", START_S)
    servers = [job.server(), job.server()]
    first.wait_for_line("worker 0 has 3", START_S)
    second.wait_for_line("worker 1 has 3", START_S)
    assert_well(first, second, *servers, scheduler)
    assert "no ranks were given: they go by order of joining" in scheduler.output


def test_dmlc_environment_alone_is_enough(processes: ProcessGroup) -> None:
    with ReservedPort() as port:
        env = {"DMLC_PS_ROOT_URI": "127.0.0.1", "DMLC_PS_ROOT_PORT": str(port.number),
               "DMLC_NUM_WORKER": "2", "DMLC_NUM_SERVER": "1", "DMLC_NODE_HOST": "127.0.0.1"}
        scheduler = processes.asyncps("scheduler", env={**env, "DMLC_ROLE": "scheduler"}, cwd=ROOT)
        server = processes.asyncps("server", env={**env, "DMLC_ROLE": "server"}, cwd=ROOT)
        workers = [
            processes.python("-c", TRAIN_BRIEFLY, cwd=ROOT,
                             env={**env, "DMLC_ROLE": "worker", "DMLC_WORKER_ID": str(rank)})
            for rank in range(2)
        ]
        for rank, worker in enumerate(workers):
            worker.wait_for_line(f"worker {rank} has 3", START_S)
        assert_well(*workers, server, scheduler)
        assert "anybody on this machine may join" in scheduler.output  # no token: it warns


def test_busy_port_is_said_with_address_and_reason(processes: ProcessGroup) -> None:
    with ReservedPort(listening=True) as busy:
        job = Job(processes)
        job.address = f"127.0.0.1:{busy.number}"
        env = {**job.env, "ASYNCPS_SCHEDULER": job.address}
        scheduler = processes.asyncps("scheduler", env=env, cwd=ROOT)
        assert scheduler.wait(START_S) == 1
        assert f"cannot listen on {job.address}: " in scheduler.output
        assert "in use" in scheduler.output


def test_server_whose_port_is_busy_says_so_and_others_hear_who_is_missing(
    processes: ProcessGroup,
) -> None:
    with ReservedPort(listening=True) as busy:
        job = Job(processes, ASYNCPS_RENDEZVOUS_S=6.0)
        scheduler = job.scheduler()
        server = job.server(0, ASYNCPS_BIND=f"127.0.0.1:{busy.number}")
        assert server.wait(START_S) == 1
        assert f"cannot listen on 127.0.0.1:{busy.number}" in server.output
        assert scheduler.wait(START_S) == 1
        assert "missing: server 0" in scheduler.output


def test_port_range_takes_the_first_free_port(processes: ProcessGroup) -> None:
    with ReservedPort(listening=True) as busy:
        low = busy.number
        bind = f"127.0.0.1:{low}-{min(low + 50, 65535)}"
        job = Job(processes)
        scheduler, server = job.scheduler(), job.server(0, ASYNCPS_BIND=bind)
        scheduler.wait_for_line("server 0 @.* joined", START_S)
        assert low < port_of(server.pid) <= low + 50
        worker = job.worker(TRAIN_BRIEFLY, 0)
        assert_well(worker, server, scheduler)


def test_scheduler_name_that_does_not_resolve_is_said(processes: ProcessGroup) -> None:
    job = Job(processes, ASYNCPS_RENDEZVOUS_S=1.0)
    job.address = "no-such-host.invalid:9091"
    members = [
        processes.asyncps("scheduler", env={**job.env, "ASYNCPS_SCHEDULER": job.address}, cwd=ROOT),
        job.server(0), job.worker(PRELUDE, 0),
    ]
    for member in members:
        assert member.wait(START_S) == 1
        assert "no-such-host.invalid" in member.output
    assert "RendezvousTimeout" in members[1].output
    assert "RendezvousTimeout" in members[2].output


def test_server_may_bind_elsewhere_than_it_advertises(processes: ProcessGroup) -> None:
    job = Job(processes, workers=2)
    scheduler = job.scheduler()
    server = job.server(0, ASYNCPS_BIND="0.0.0.0", ASYNCPS_ADVERTISE="127.0.0.9")
    workers = [job.worker(TRAIN_BRIEFLY, rank) for rank in range(2)]
    assert_well(*workers, server, scheduler)


def test_host_name_that_maps_to_another_loopback_address_works(processes: ProcessGroup) -> None:
    job = Job(processes)
    job.address = "127.0.1.1:0"
    scheduler = job.scheduler()
    server, worker = job.server(0), job.worker(TRAIN_BRIEFLY, 0)
    assert_well(worker, server, scheduler)
    assert job.address.startswith("127.0.1.1:")


def test_ipv6_loopback_works(processes: ProcessGroup) -> None:
    job = Job(processes, workers=2)
    job.address = "[::1]:0"
    scheduler = job.scheduler()
    assert job.address.startswith("[::1]:")
    server = job.server(0)
    workers = [job.worker(TRAIN_BRIEFLY, rank) for rank in range(2)]
    for rank, worker in enumerate(workers):
        worker.wait_for_line(f"worker {rank} has 3", START_S)
    assert_well(*workers, server, scheduler)


@pytest.mark.parametrize("role", ["scheduler", "server"])
def test_listening_beyond_loopback_without_a_token_is_refused(
    processes: ProcessGroup, role: str
) -> None:
    job = Job(processes, token="", ASYNCPS_RENDEZVOUS_S=20)
    scheduler = job.scheduler() if role == "server" else None
    member = processes.asyncps(
        role, env={**job.env, "ASYNCPS_SCHEDULER": job.address, "ASYNCPS_BIND": "0.0.0.0:0"},
        cwd=ROOT,
    )
    assert member.wait(START_S) == 1
    assert "listening on 0.0.0.0 without a token would let anybody in" in member.output
    assert "ASYNCPS_TOKEN" in member.output
    assert scheduler is None or scheduler.returncode is None


def test_place_that_is_held_by_a_living_process_cannot_be_taken(processes: ProcessGroup) -> None:
    job = Job(processes, workers=2)
    scheduler, _, workers = job.start(TRAIN_FOR_EVER)
    for worker in workers:
        worker.wait_for_line("is in training", START_S)
    thief = job.worker(PRELUDE, 1)
    second = job.server(0)
    assert thief.wait(START_S) == 1
    assert second.wait(START_S) == 1
    assert "RankTaken" in thief.output
    assert "is there already" in thief.output
    assert "RankTaken" in second.output
    assert scheduler.returncode is None
    assert all(worker.returncode is None for worker in workers)


def test_rank_beyond_the_job_is_refused(processes: ProcessGroup) -> None:
    job = Job(processes)
    job.address = "127.0.0.1:9"
    worker = job.worker(PRELUDE, 3)
    assert worker.wait(START_S) != 0
    assert "rank of this worker is out of range" in worker.output


def test_worker_command_that_does_not_exist_is_said(processes: ProcessGroup) -> None:
    missing = processes.asyncps("worker", "--", "no-such-program-here", cwd=ROOT)
    nothing = processes.asyncps("worker", cwd=ROOT)
    assert missing.wait(START_S) == 2
    assert "cannot start no-such-program-here: No such file" in missing.output
    assert nothing.wait(START_S) == 2
    assert "worker needs a command" in nothing.output
    assert sys.executable not in nothing.output
