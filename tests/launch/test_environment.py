"""What stands in the environment of a role."""

from __future__ import annotations

import pytest

from asyncps.config import Config, in_cluster
from asyncps.errors import ConfigError
from asyncps.launch.environment import MANAGED, membership, read_settings, without_cluster


def test_settings_come_in_three_forms() -> None:
    settings, unset = read_settings(
        ["A=1=2:3", "B:x=y", "C", "D", "E="], {"C": "from outside"}, "--env"
    )
    assert settings == {"A": "1=2:3", "B": "x=y", "C": "from outside", "E": ""}
    assert unset == ["D"]


@pytest.mark.parametrize("text", ["", "=1", "1A=2", "A B=1"])
def test_setting_that_cannot_be_read_is_an_error(text: str) -> None:
    with pytest.raises(ConfigError, match="cannot read --env"):
        read_settings([text], {}, "--env")


@pytest.mark.parametrize("text", ["ASYNCPS_TOKEN=secret", "ASYNCPS_TOKEN", "DMLC_ROLE:worker"])
def test_what_the_launcher_decides_cannot_be_set(text: str) -> None:
    with pytest.raises(ConfigError, match="the launcher decides it"):
        read_settings([text], {}, "--env-worker")


def test_surrounding_cluster_is_left_out() -> None:
    clean = without_cluster({**dict.fromkeys(MANAGED, "1"), "PATH": "/bin", "ASYNCPS_LOOP": "x"})
    assert clean == {"PATH": "/bin", "ASYNCPS_LOOP": "x"}


@pytest.mark.parametrize("scheduler", ["10.0.0.1:91", "[::1]:91", "host.example:91"])
@pytest.mark.parametrize("role", ["worker", "server"])
def test_membership_reads_back_by_either_spelling(role: str, scheduler: str) -> None:
    env = membership(role, 1, num_workers=2, num_servers=3, scheduler=scheduler, job="j")
    assert in_cluster(env)
    whole = Config.from_env(env)
    assert (whole.role, whole.rank, whole.num_workers, whole.num_servers, whole.scheduler) == (
        role, 1, 2, 3, scheduler,
    )  # fmt: skip
    twins = {name: value for name, value in env.items() if name.startswith("DMLC_")}
    assert Config.from_env(twins) == whole.replace(job="default")
