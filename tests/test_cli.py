"""The command line: options, exit codes, one line for an error."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import asyncps
from asyncps import cli
from asyncps.config import Config
from asyncps.errors import SchedulerLost
from asyncps.launch import LocalJob
from tests.support.processes import ProcessGroup

ROOT = Path(__file__).parents[1]
SHOW_CLUSTER = ["sh", "-c", "env -u ASYNCPS_PURE | grep -E '^(ASYNCPS|DMLC)_'"]


def run(*arguments: str) -> int:
    with pytest.raises(SystemExit) as stop:
        cli.main(arguments)
    assert isinstance(stop.value.code, int)
    return stop.value.code


def error_of(capsys: pytest.CaptureFixture[str]) -> str:
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert lines[0].startswith("asyncps: error: ")
    return lines[0]


@pytest.fixture
def jobs(monkeypatch: pytest.MonkeyPatch) -> list[LocalJob]:
    """The jobs that were launched; each exits with 5."""
    launched: list[LocalJob] = []

    def launch(job: LocalJob) -> int:
        launched.append(job)
        return 5

    monkeypatch.setattr(cli, "launch_local", launch)
    return launched


@pytest.fixture
def configs(monkeypatch: pytest.MonkeyPatch) -> list[Config]:
    """The configurations of the roles that were run; each exits with 6."""
    ran: list[Config] = []

    def run_role(config: Config) -> int:
        ran.append(config)
        return 6

    fake = ModuleType("asyncps.roles.run")
    fake.run_role = run_role  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "asyncps.roles.run", fake)
    return ran


def test_version_and_help_exit_with_0(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--version") == 0
    assert capsys.readouterr().out.startswith("asyncps, version ")
    assert run("--help") == 0
    text = capsys.readouterr().out
    for name in ("scheduler", "server", "worker", "launch", "bench", "status", "doctor"):
        assert f"  {name} " in text


@pytest.mark.parametrize(
    "arguments",
    [
        ["launch", "-n", "1", "--launcher", "ssh", "true"],
        ["launch", "-n", "1", "--launcher", "mpi", "true"],
        ["launch", "-n", "1", "--launcher", "sge", "true"],
        ["launch", "-n", "1", "--launcher", "yarn", "true"],
        ["launch", "-n", "1", "-H", "hosts", "true"],
        ["launch", "-n", "1", "--sync-dst-dir", "/tmp", "true"],
        ["launch", "-n", "1", "--p3", "true"],
    ],
)
def test_what_is_not_there_yet_says_so_and_exits_with_2(
    capsys: pytest.CaptureFixture[str], arguments: list[str]
) -> None:
    assert run(*arguments) == 2
    assert "not there yet" in error_of(capsys)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["launch", "-n", "1"], "launch needs a command"),
        (["launch", "-n", "0", "true"], "num_workers is out of range"),
        (["launch", "-n", "1", "--metrics-port", "-1", "true"], "or 0 for any, got -1"),
        (["launch", "-n", "2", "--metrics-port", "65532", "true"], "or 0 for any, got 65532"),
        (["launch", "-n", "1", "-s", "5000", "true"], "num_servers is out of range"),
        (["launch", "-n", "1", "--env", "1=2", "true"], "cannot read --env"),
        (["launch", "-n", "1", "--env-server", "ASYNCPS_TOKEN:x", "true"], "decides it"),
        (["worker", "--rank", "0"], "worker needs a command"),
        (["worker", "--rank", "7", "true"], "rank of this worker is out of range"),
        (["worker", "./no-such-program"], "cannot start ./no-such-program: No such file"),
        (["scheduler", "--num-workers", "0"], "num_workers is out of range"),
    ],
)
def test_wrong_use_is_one_line_and_exits_with_2(
    capsys: pytest.CaptureFixture[str], arguments: list[str], text: str
) -> None:
    assert run(*arguments) == 2
    assert text in error_of(capsys)


@pytest.mark.parametrize(
    "arguments", [["launch", "true"], ["launch", "-n", "1", "--what", "true"], ["nonsense"], []]
)
def test_options_that_click_refuses_exit_with_2(
    capsys: pytest.CaptureFixture[str], arguments: list[str]
) -> None:
    assert run(*arguments) == 2
    assert "Usage: asyncps" in capsys.readouterr().err


def test_unknown_setting_in_the_environment_is_an_error(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ASYNCPS_TYPO", "1")
    assert run("launch", "-n", "1", "true") == 2
    assert "ASYNCPS_TYPO" in error_of(capsys)


def test_other_errors_exit_with_1(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def run_role(config: Config) -> int:
        raise SchedulerLost("the scheduler is gone")

    fake = ModuleType("asyncps.roles.run")
    fake.run_role = run_role  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "asyncps.roles.run", fake)
    assert run("server") == 1
    assert error_of(capsys) == "asyncps: error: the scheduler is gone"


@pytest.mark.parametrize("role", ["scheduler", "server"])
def test_role_runs_with_the_environment_overridden_by_options(
    configs: list[Config], monkeypatch: pytest.MonkeyPatch, role: str
) -> None:
    monkeypatch.setenv("ASYNCPS_ROLE", "worker")
    monkeypatch.setenv("ASYNCPS_NUM_WORKERS", "2")
    monkeypatch.setenv("ASYNCPS_NUM_SERVERS", "3")
    monkeypatch.setenv("ASYNCPS_TOKEN", "secret")
    code = run(
        role, "--scheduler", "[::1]:77", "--num-workers", "4", "--rank", "0", "--job", "j",
        "--bind", "127.0.0.1:0", "--advertise", "localhost", "--loop", "asyncio",
        "--log-level", "debug",
    )  # fmt: skip
    assert code == 6
    assert configs == [
        Config(role=role, rank=0, num_workers=4, num_servers=3, scheduler="[::1]:77",
               token="secret", job="j", bind="127.0.0.1:0", advertise="localhost",
               loop="asyncio", log_level="DEBUG")
    ]  # fmt: skip


def test_no_option_takes_a_secret() -> None:
    for command in cli.cli.commands.values():
        assert not any("token" in (parameter.name or "") for parameter in command.params)


def test_worker_runs_the_command_with_the_cluster_in_its_environment(
    processes: ProcessGroup,
) -> None:
    process = processes.asyncps(
        "worker", "--scheduler", "10.0.0.1:91", "--num-workers", "3", "--rank", "2",
        "--loop", "asyncio", "--", *SHOW_CLUSTER,
        env={"ASYNCPS_TOKEN": "secret", "ASYNCPS_JOB": "j", "DMLC_NUM_SERVER": "2",
             "DMLC_PS_ROOT_URI": "other", "DMLC_TASK_ID": "0"}, cwd=ROOT,
    )  # fmt: skip
    assert process.wait() == 0
    lines = [line for line in process.output.splitlines() if "=" in line]
    found = dict(line.split("=", 1) for line in lines)
    assert found.pop("ASYNCPS_PARENT") == str(process.pid)
    assert found == {
        "ASYNCPS_JOB": "j", "ASYNCPS_LOOP": "asyncio", "ASYNCPS_NUM_SERVERS": "2",
        "ASYNCPS_NUM_WORKERS": "3", "ASYNCPS_ON_WORKER_LOST": "fail", "ASYNCPS_RANK": "2",
        "ASYNCPS_ROLE": "worker", "ASYNCPS_SCHEDULER": "10.0.0.1:91", "ASYNCPS_TOKEN": "secret",
        "DMLC_NUM_SERVER": "2", "DMLC_NUM_WORKER": "3", "DMLC_PS_ROOT_PORT": "91",
        "DMLC_PS_ROOT_URI": "10.0.0.1", "DMLC_ROLE": "worker", "DMLC_WORKER_ID": "2",
    }  # fmt: skip


def test_worker_hands_its_options_to_the_command(processes: ProcessGroup) -> None:
    process = processes.asyncps("worker", "sh", "-c", 'echo "$@"; exit 7', "sh", "--rank", "-n",
                                cwd=ROOT)
    assert process.wait() == 7
    assert process.output.endswith("--rank -n\n")


def test_worker_asks_about_a_script_without_its_interpreter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_first.py").touch()
    assert run("worker", "my_first.py") == 2
    assert error_of(capsys).endswith("; did you mean: python my_first.py?")


def test_launch_takes_as_many_servers_as_workers_and_exits_with_the_jobs_code(
    jobs: list[LocalJob],
) -> None:
    assert run("launch", "-n", "3", "--", "python", "train.py", "-n", "9") == 5
    (job,) = jobs
    assert (job.num_workers, job.num_servers) == (3, 3)
    assert list(job.command) == ["python", "train.py", "-n", "9"]
    assert (job.log_dir, job.on_worker_lost) == (None, "fail")


def test_launch_takes_the_command_without_dashes_as_mxnet_does(jobs: list[LocalJob]) -> None:
    run("launch", "--num-workers", "1", "--num-servers=2", "--launcher", "local", "--log-dir", "x",
        "python", "train.py", "--lr", "1", "--", "more")
    (job,) = jobs
    assert (job.num_workers, job.num_servers, job.log_dir) == (1, 2, Path("x"))
    assert list(job.command) == ["python", "train.py", "--lr", "1", "--", "more"]


@pytest.mark.parametrize(("given", "port"), [
    ([], None), (["--metrics-port", "0"], 0), (["--metrics-port", "65531"], 65531),
])
def test_launch_takes_a_port_for_metrics(
    jobs: list[LocalJob], given: list[str], port: int | None
) -> None:
    assert run("launch", "-n", "2", *given, "true") == 5
    assert jobs[0].metrics_port == port


def test_launch_sorts_variables_by_role(
    jobs: list[LocalJob], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HANDED_ON", "yes")
    monkeypatch.delenv("NOT_THERE", raising=False)
    run("launch", "-n", "1", "--env", "HANDED_ON", "--env", "A=1", "--env", "NOT_THERE",
        "--env-server", "A:2", "--env-server", "S=s", "--env-worker", "A=3", "true")
    assert jobs[0].env == {
        "scheduler": {"HANDED_ON": "yes", "A": "1"},
        "server": {"HANDED_ON": "yes", "A": "2", "S": "s"},
        "worker": {"HANDED_ON": "yes", "A": "3"},
    }
    warning = "asyncps: warning: --env NOT_THERE: it has no value here\n"
    assert capsys.readouterr().err == warning


@pytest.mark.parametrize(
    ("variables", "colour"),
    [({}, True), ({"NO_COLOR": "1"}, False), ({"NO_COLOR": ""}, True), ({"TERM": "dumb"}, False)],
)
def test_launch_respects_no_color(
    jobs: list[LocalJob], monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], colour: bool
) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    run("launch", "-n", "1", "true")
    assert jobs[0].colour is colour


def test_launch_inside_of_a_cluster_starts_a_cluster_of_its_own(
    jobs: list[LocalJob], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ASYNCPS_ROLE", "worker")
    monkeypatch.setenv("ASYNCPS_RANK", "3")
    monkeypatch.setenv("ASYNCPS_NUM_WORKERS", "4")
    assert run("launch", "-n", "1", "true") == 5
    assert (jobs[0].num_workers, jobs[0].num_servers) == (1, 1)


def test_bench_hands_its_arguments_to_the_clones_script(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "bench").mkdir()
    (tmp_path / "bench" / "run.py").write_text("")
    monkeypatch.setattr(cli, "__file__", str(tmp_path / "asyncps" / "cli.py"))
    executed: list[Any] = []

    def execv(path: str, argv: list[str]) -> None:
        executed.append((path, argv))
        raise SystemExit(0)

    monkeypatch.setattr("os.execv", execv)
    run("bench", "--quick", "--help", "-x", "1")
    script = str(tmp_path / "bench" / "run.py")
    assert executed == [(sys.executable, [sys.executable, script, "--quick", "--help", "-x", "1"])]


def test_bench_without_a_clone_says_so(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(cli, "__file__", str(tmp_path / "asyncps" / "cli.py"))
    assert run("bench") == 2
    assert "from a clone" in error_of(capsys)


def test_module_runs_as_the_command(processes: ProcessGroup) -> None:
    process = processes.asyncps("worker", cwd=ROOT)
    assert process.wait() == 2
    assert "asyncps: error: worker needs a command" in process.output
    assert "Traceback" not in process.output


def test_importing_the_main_module_runs_nothing() -> None:
    assert importlib.import_module("asyncps.__main__").main is cli.main


def test_checkpoint_show_tells_keys_clocks_and_optimizer(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    with asyncps.create("local") as store:
        store.init([5, "[red]w"], [np.ones((2, 3), "f4"), np.ones(4, "f2")])
        store.set_optimizer("sgd", learning_rate=0.5, momentum=0.9, wd_mult={5: 2.0})
        store.push(5, np.ones((2, 3), "f4"))
        store.save(tmp_path / "c")
    assert run("checkpoint", "show", str(tmp_path / "c")) == 0
    words = [line.replace("\u2502", " ").split() for line in capsys.readouterr().out.splitlines()]
    assert ["5", "float32", "(2,", "3)", "1"] in words
    assert ["5:", "momentum", "float32", "(2,", "3)"] in words
    assert ["'[red]w'", "float16", "(4,)", "0"] in words
    assert ["store:", "local"] in words
    said = next(" ".join(line) for line in words if line[:1] == ["optimizer:"])
    assert said.startswith("optimizer: sgd learning_rate=0.5 ")
    assert said.endswith(" wd_mult={5: 2.0}")
    assert "lr_mult" not in said


def test_checkpoint_show_of_something_else_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("checkpoint", "show", str(tmp_path / "nowhere")) == 1
    assert "no checkpoint" in error_of(capsys)
