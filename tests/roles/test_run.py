"""What a role's process does before it has a loop; its life is tested in tests/faults."""

from __future__ import annotations

import pytest

from asyncps.config import Config
from asyncps.errors import ConfigError
from asyncps.roles.run import run_role
from tests.faults.job import ROOT, START_S, ReservedPort
from tests.support.processes import ProcessGroup


@pytest.mark.parametrize("role", ["worker", None])
def test_only_schedulers_and_servers_are_run(role: str | None) -> None:
    with pytest.raises(ConfigError, match=r"no role to run.*scheduler or server"):
        run_role(Config(role=role))


@pytest.mark.parametrize("loop", ["uvloop", "asyncio"])
def test_scheduler_says_first_where_it_listens(processes: ProcessGroup, loop: str) -> None:
    scheduler = processes.asyncps(
        "scheduler", "--scheduler", "127.0.0.1:0", "--loop", loop, cwd=ROOT,
        env={"ASYNCPS_TOKEN": "secret"},
    )
    port = scheduler.wait_for_line(r"^asyncps scheduler listening on 127\.0\.0\.1:(\d+)$",
                                   START_S)[1]
    assert int(port) > 0
    assert "no ASYNCPS_TOKEN" not in scheduler.output


def test_role_that_cannot_start_says_why_in_one_line(processes: ProcessGroup) -> None:
    with ReservedPort(listening=True) as busy:
        scheduler = processes.asyncps(
            "scheduler", "--scheduler", f"127.0.0.1:{busy.number}", cwd=ROOT,
            env={"ASYNCPS_TOKEN": "secret"},
        )
        assert scheduler.wait(START_S) == 1
        assert "Traceback" not in scheduler.output
        line = scheduler.output.splitlines()[-1]
        assert "ERROR: TransportError: cannot listen on 127.0.0.1:" in line


def test_unknown_setting_in_the_environment_is_said(processes: ProcessGroup) -> None:
    role = processes.asyncps("server", env={"ASYNCPS_HEARTBEATS_S": "1"}, cwd=ROOT)
    assert role.wait(START_S) == 2
    assert "unknown setting in the environment: ASYNCPS_HEARTBEATS_S" in role.output
