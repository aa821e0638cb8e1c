"""`launch -s 0`: a job of workers alone, as a user starts it."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.support.processes import ProcessGroup

pytestmark = [pytest.mark.launch, pytest.mark.slow]

ROOT = Path(__file__).parents[2]
MEMBER = (sys.executable, "-m", "tests.support.member", "env")


def test_the_workers_meet_and_the_job_ends_with_0(processes: ProcessGroup) -> None:
    launch = processes.asyncps("launch", "-n", "4", "-s", "0", "--", *MEMBER, "meet", cwd=ROOT)
    assert launch.wait(60.0) == 0, launch.output
    for rank in range(4):
        assert f"rank {rank} of 4, {rank} of 4 here" in launch.output
        assert f"rank {rank} has left" in launch.output
    assert "server" not in launch.output


def test_a_killed_worker_is_lost_for_the_others(processes: ProcessGroup) -> None:
    launch = processes.asyncps("launch", "-n", "3", "-s", "0", "--", *MEMBER, "die", cwd=ROOT)
    assert launch.wait(60.0) == 137
    for rank in (0, 2):
        assert f"rank {rank} saw WorkerLost: worker 1" in launch.output, launch.output


def test_the_others_go_on_if_they_are_to(processes: ProcessGroup) -> None:
    launch = processes.asyncps("launch", "-n", "3", "-s", "0", "--on-worker-lost", "continue",
                               "--", *MEMBER, "die", cwd=ROOT)
    assert launch.wait(60.0) == 0, launch.output
    for rank in (0, 2):
        assert f"rank {rank} has left" in launch.output


def test_a_store_is_refused_at_once_by_every_worker(processes: ProcessGroup) -> None:
    launch = processes.asyncps("launch", "-n", "2", "-s", "0", "--", *MEMBER, "store", cwd=ROOT)
    assert launch.wait(60.0) == 1
    assert ("ConfigError: a dist_sync store keeps its values on servers, and this job has none"
            in launch.output)


def test_roles_that_are_started_by_hand(processes: ProcessGroup) -> None:
    job = {"ASYNCPS_TOKEN": "secret", "ASYNCPS_NUM_WORKERS": "2", "ASYNCPS_NUM_SERVERS": "0"}
    scheduler = processes.asyncps("scheduler", "--scheduler", "127.0.0.1:0", cwd=ROOT, env=job)
    place = scheduler.wait_for_line(r"listening on (\S+:\d+)")[1]
    env = {**job, "ASYNCPS_SCHEDULER": place}
    server = processes.asyncps("server", env=env, cwd=ROOT)
    assert server.wait(30.0) == 2
    assert "a server of a job without servers" in server.output
    workers = [processes.asyncps("worker", "--", *MEMBER, "meet", env=env, cwd=ROOT)]
    workers.append(processes.asyncps("worker", "--", *MEMBER, "meet", env=env, cwd=ROOT))
    for worker in workers:
        assert worker.wait(60.0) == 0, worker.output
    assert scheduler.wait(30.0) == 0, scheduler.output


def test_status_shows_workers_and_no_servers(processes: ProcessGroup) -> None:
    launch = processes.asyncps("launch", "-n", "2", "-s", "0", "--", *MEMBER, "stay", cwd=ROOT)
    for rank in range(2):
        launch.wait_for_line(rf"rank {rank} of 2", 60.0)
    look = processes.asyncps("status", "--pid", str(launch.pid), "--json", cwd=ROOT)
    assert look.wait(30.0) == 0, look.output
    status = json.loads(look.output)
    assert (status["phase"], status["num_workers"], status["num_servers"]) == ("running", 2, 0)
    assert [(node["role"], node["rank"]) for node in status["nodes"]] == [
        ("worker", 0), ("worker", 1)]
    assert (status["missing"], status["stores"]) == ([], [])
    table = processes.asyncps("status", "--pid", str(launch.pid), cwd=ROOT)
    assert table.wait(30.0) == 0, table.output
