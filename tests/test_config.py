"""Settings: their environment names, their checks, and unknown ones."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from asyncps.config import DEFAULT_SCHEDULER, Config, describe, in_cluster
from asyncps.errors import ConfigError

TEXTS: dict[str, tuple[str, Any]] = {
    "role": ("worker", "worker"), "rank": ("0", 0), "local_rank": ("3", 3), "parent": ("12", 12),
    "num_workers": ("5", 5), "num_servers": ("6", 6), "scheduler": ("h:1", "h:1"),
    "token": ("secret", "secret"), "job": ("j", "j"), "bind": ("h:1-2", "h:1-2"),
    "advertise": ("h", "h"), "interface": ("lo", "lo"), "loop": ("asyncio", "asyncio"),
    "on_worker_lost": ("continue", "continue"), "log_level": ("DEBUG", "DEBUG"),
    "imports": ("mine,yours", "mine,yours"),
    "metrics_host": ("h", "h"), "kernel_threads": ("3", 3),
}  # fmt: skip


def text_of(name: str) -> tuple[str, Any]:
    if name in TEXTS:
        return TEXTS[name]
    return ("2.5", 2.5) if name.endswith("_s") else ("8192", 8192)


NAMES = [(f.name, env) for f in dataclasses.fields(Config) for env in f.metadata["env"]]


@pytest.mark.parametrize(("name", "env"), NAMES, ids=str)
def test_setting_is_read_from_its_environment_name(name: str, env: str) -> None:
    text, value = text_of(name)
    got = Config.from_env({env: text})
    assert getattr(got, name) == value
    assert type(getattr(got, name)) is type(value)
    assert getattr(Config.from_env({env: ""}), name) == getattr(Config(), name)


def test_every_setting_has_an_environment_name_and_a_reason() -> None:
    told = describe()
    assert {name for name, *_ in told} == {f.name for f in dataclasses.fields(Config)}
    for name, _, _, why, env in told:
        assert why, name
        assert any(word.startswith("ASYNCPS_") for word in env), name


def test_argument_wins_over_the_environment_and_none_does_not() -> None:
    env = {"ASYNCPS_NUM_WORKERS": "5"}
    assert Config.from_env(env, num_workers=2).num_workers == 2
    assert Config.from_env(env, num_workers=None).num_workers == 5


def test_own_name_wins_over_that_of_dmlc() -> None:
    got = Config.from_env({"DMLC_NUM_WORKER": "7", "ASYNCPS_NUM_WORKERS": "5",
                           "DMLC_ROLE": "server", "DMLC_NUM_SERVER": "3"})
    assert (got.num_workers, got.role, got.num_servers) == (5, "server", 3)


@pytest.mark.parametrize(("env", "place"), [
    ({"DMLC_PS_ROOT_URI": "10.0.0.1", "DMLC_PS_ROOT_PORT": "8000"}, "10.0.0.1:8000"),
    ({"DMLC_PS_ROOT_URI": "10.0.0.1"}, "10.0.0.1:9091"),
    ({"DMLC_PS_ROOT_URI": "10.0.0.1", "DMLC_PS_ROOT_PORT": ""}, "10.0.0.1:9091"),
    ({"DMLC_PS_ROOT_URI": "::1", "DMLC_PS_ROOT_PORT": "8000"}, "[::1]:8000"),
    ({"DMLC_PS_ROOT_URI": "a", "ASYNCPS_SCHEDULER": "b:1"}, "b:1"),
    ({}, DEFAULT_SCHEDULER),
])  # fmt: skip
def test_scheduler_of_dmlc(env: dict[str, str], place: str) -> None:
    assert Config.from_env(env).scheduler == place
    assert in_cluster(env) == bool(env)


@pytest.mark.parametrize(("role", "name"), [
    ("worker", "DMLC_WORKER_ID"), ("server", "DMLC_SERVER_ID"), ("worker", "DMLC_TASK_ID"),
])  # fmt: skip
def test_rank_of_dmlc(role: str, name: str) -> None:
    env = {"DMLC_ROLE": role, "DMLC_NUM_WORKER": "4", "DMLC_NUM_SERVER": "4", name: "2"}
    assert Config.from_env(env).rank == 2
    assert Config.from_env({**env, "ASYNCPS_RANK": "1"}).rank == 1
    other = {"DMLC_ROLE": "scheduler", "DMLC_WORKER_ID": "2", "DMLC_SERVER_ID": "2"}
    assert Config.from_env(other).rank is None


@pytest.mark.parametrize("env", [
    {"DMLC_PS_ROOT_URI": "a", "DMLC_PS_ROOT_PORT": "x"},
    {"DMLC_PS_ROOT_URI": "a", "DMLC_PS_ROOT_PORT": "²"},
    {"DMLC_ROLE": "worker", "DMLC_WORKER_ID": "one"},
    {"DMLC_ROLE": "worker", "DMLC_WORKER_ID": "²"},
    {"DMLC_NUM_WORKER": "many"},
    {"ASYNCPS_NUM_WORKERS": "1.5"}, {"ASYNCPS_RANK": "x"}, {"ASYNCPS_ROUND_S": "soon"},
    {"ASYNCPS_CHUNK_BYTES": "1e6"},
], ids=str)  # fmt: skip
def test_number_that_cannot_be_read_names_its_variable(env: dict[str, str]) -> None:
    name = list(env)[-1]
    with pytest.raises(ConfigError, match=rf"{name} must be.*got '{env[name]}'"):
        Config.from_env(env)


@pytest.mark.parametrize("words", [
    {"role": "boss"}, {"loop": "trio"}, {"on_worker_lost": "restart"}, {"num_workers": 0},
    {"num_servers": 5000}, {"num_servers": -1},
    {"role": "server", "num_servers": 0},
    {"role": "worker", "rank": 1}, {"role": "worker", "rank": -1},
    {"role": "scheduler", "rank": 1}, {"round_s": 0.0}, {"answer_s": -1.0},
    {"heartbeat_s": float("nan")}, {"round_s": float("inf")}, {"chunk_bytes": 1},
    {"chunk_bytes": 1 << 31}, {"slab_bytes": 0}, {"send_budget_bytes": 1 << 50},
    {"poll_us": -1}, {"poll_us": 10_001}, {"kernel_threads": -1}, {"kernel_threads": 65},
], ids=str)  # fmt: skip
def test_value_that_cannot_be_right_is_refused_by_name(words: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=list(words)[-1].replace("_", ".")) as error:
        Config(**words)
    assert error.value.got is not None
    with pytest.raises(ValueError, match=r"."):
        Config().replace(**words)


@pytest.mark.parametrize("poll_us", [0, 1, 10_000])
def test_looking_may_take_no_time_and_up_to_ten_milliseconds(poll_us: int) -> None:
    assert Config(poll_us=poll_us).poll_us == poll_us
    assert Config().poll_us == 500


def test_unknown_name_of_ours_is_an_error_that_lists_the_known() -> None:
    with pytest.raises(ConfigError, match=r"ASYNCPS_NUM_WORKER\b.*ASYNCPS_NUM_WORKERS"):
        Config.from_env({"ASYNCPS_NUM_WORKER": "2"})
    Config.from_env({"ASYNCPS_PURE": "1", "DMLC_WHATEVER": "x", "PATH": "/"})


def test_settings_do_not_change() -> None:
    config = Config(num_workers=2)
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.num_workers = 3  # type: ignore[misc]
    assert config.replace(num_workers=3).num_workers == 3
    assert config.num_workers == 2


def test_a_job_may_have_no_servers() -> None:
    assert Config(num_servers=0, role="worker", rank=0).num_servers == 0
    assert Config.from_env({"ASYNCPS_NUM_SERVERS": "0"}).num_servers == 0
    with pytest.raises(ConfigError, match="a server of a job without servers"):
        Config(num_servers=0, role="server", rank=0)


def test_the_secret_is_not_shown() -> None:
    shown = repr(Config(token="my-secret"))
    assert "my-secret" not in shown
    assert "token" not in shown
