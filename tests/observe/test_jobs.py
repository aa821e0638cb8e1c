"""status and metrics of real jobs: processes, signals, the launcher."""

from __future__ import annotations

import json
import os
import re
import socket
import sys
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from tests.faults.job import START_S, TRAIN_FOR_EVER, TRAIN_UNTIL_FILE, Job, Stopwatch
from tests.support.processes import ManagedProcess, ProcessGroup

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
HINT = "for a launched job use --pid PID, or set ASYNCPS_JOB and ASYNCPS_TOKEN of the job"


def status(
    processes: ProcessGroup, job: Job, *arguments: str, **env: str
) -> ManagedProcess:
    """Run `asyncps status` beside a job."""
    given = {**job.env, "ASYNCPS_SCHEDULER": job.address, **env}
    return processes.asyncps("status", *arguments, env=given, cwd=ROOT)


def seen(processes: ProcessGroup, job: Job, *arguments: str) -> dict[str, Any]:
    """One look as data."""
    process = status(processes, job, "--json", *arguments)
    assert process.wait(START_S) == 0, process.output
    found: dict[str, Any] = json.loads(process.output)
    return found


def test_stopped_worker_is_named_as_waited_for(processes: ProcessGroup) -> None:
    job = Job(processes, workers=2, servers=1)
    _, _, workers = job.start(TRAIN_FOR_EVER)
    for worker in workers:
        worker.wait_for_line("is in training", START_S)
    workers[1].freeze()
    watch = Stopwatch(60)
    waits: list[dict[str, Any]] = []
    while not waits and watch.left_s > 0.01:
        waits = seen(processes, job)["waits"]
    assert {(wait["role"], wait["rank"], wait["by"], wait["what"]) for wait in waits} == {
        ("worker", 1, "server 0", "round")}
    assert waits[0]["key"] in ("small", "large")
    told = seen(processes, job)
    assert told["waits"][0]["seconds"] > waits[0]["seconds"]
    frozen = next(n for n in told["nodes"] if n["role"] == "worker" and n["rank"] == 1)
    assert frozen["silent_s"] > 0
    text = status(processes, job)
    assert text.wait(START_S) == 0
    assert re.search(r"worker 1 +\S+ s +round +1 +(small|large) +1|2 +server 0", text.output)
    workers[1].thaw()
    while waits and watch.left_s > 0.01:
        waits = [w for w in seen(processes, job)["waits"] if w["seconds"] > told["up_s"]]
    assert all(worker.returncode is None for worker in workers)


def test_status_of_a_job_that_waits_and_of_one_that_is_gone(processes: ProcessGroup) -> None:
    job = Job(processes, workers=1, servers=2)
    scheduler = job.scheduler()
    told = seen(processes, job)
    assert (told["phase"], told["nodes"]) == ("joining", [])
    assert [(item["role"], item["rank"]) for item in told["missing"]] == [
        ("server", 0), ("server", 1), ("worker", 0)]
    scheduler.freeze()
    asked = status(processes, job, "--timeout", "0.5")
    assert asked.wait(START_S) == 1
    assert "did not answer within 0.5 s" in asked.output
    scheduler.thaw()
    wrong = status(processes, job, ASYNCPS_TOKEN="another")
    assert wrong.wait(START_S) == 1
    assert "asyncps: error:" in wrong.output
    assert HINT in wrong.output
    other = status(processes, job, "--job", "another")
    assert other.wait(START_S) == 1
    assert "belongs to another job" in other.output
    assert HINT in other.output
    assert "Traceback" not in wrong.output
    scheduler.kill()
    scheduler.wait()
    gone = status(processes, job)
    assert gone.wait(START_S) == 1
    assert "cannot reach" in gone.output
    assert f"Connection refused; {HINT}" in gone.output


def test_frozen_and_killed_observers_mean_nothing(
    processes: ProcessGroup, tmp_path: Path
) -> None:
    job = Job(processes, workers=2, servers=1)
    stop = tmp_path / "stop"
    scheduler, _, workers = job.start(TRAIN_UNTIL_FILE, str(stop))
    workers[0].wait_for_line("is in training", START_S)
    observers = [status(processes, job, "--json", "--watch", "0.05") for _ in range(3)]
    for observer in observers:
        observer.wait_for_line('"phase": "running"', START_S)
    observers[0].freeze()
    observers[1].kill()
    assert seen(processes, job)["phase"] == "running"
    stop.touch()
    for worker in workers:
        assert worker.wait(START_S) == 0, worker.output
    assert scheduler.wait(START_S) == 0, scheduler.output
    assert observers[2].wait(START_S) == 1  # it says that nobody is there any more


@pytest.mark.launch
def test_launched_job_is_found_by_the_launchers_pid(
    processes: ProcessGroup, tmp_path: Path
) -> None:
    stop = tmp_path / "stop"
    launch = processes.asyncps("launch", "-n", "2", "-s", "1", "--", sys.executable, "-c",
                               TRAIN_UNTIL_FILE, str(stop), cwd=ROOT)
    launch.wait_for_line("is in training", 2 * START_S)
    look = processes.asyncps("status", "--json", "--pid", str(launch.pid), cwd=ROOT)
    assert look.wait(START_S) == 0, look.output
    told = json.loads(look.output)
    assert (told["phase"], len(told["nodes"])) == ("running", 3)
    assert {node["pid"] for node in told["nodes"]} <= set(launch.descendants())
    assert all(node["report"]["rounds"] > 0 for node in told["nodes"])
    assert all(node["report"]["keys"] == 2 for node in told["nodes"])
    shown = processes.asyncps("status", "--pid", str(launch.pid), cwd=ROOT)
    assert shown.wait(START_S) == 0, shown.output
    assert "running for" in shown.output
    assert f"{os.uname().nodename}" in shown.output
    stop.touch()
    assert launch.wait(START_S) == 0, launch.output


def test_metrics_of_all_roles(processes: ProcessGroup, tmp_path: Path) -> None:
    job = Job(processes, workers=1, servers=1, ASYNCPS_METRICS_PORT=0)
    stop = tmp_path / "stop"
    logging = "import logging\nlogging.basicConfig(level='INFO')\n"
    scheduler, servers, workers = job.start(logging + TRAIN_UNTIL_FILE, str(stop))
    workers[0].wait_for_line("is in training", START_S)
    pages = {}
    for role, process in (("scheduler", scheduler), ("server", servers[0]),
                          ("worker", workers[0])):
        found = process.wait_for_line(rf"metrics of {role} 0 at (http://127.0.0.1:(\d+)/\S+)")
        if role != "scheduler":
            report = next(n for n in seen(processes, job)["nodes"] if n["role"] == role)["report"]
            assert report["metrics_port"] == int(found[2])
        with socket.create_connection(("127.0.0.1", int(found[2])), 10) as stranger:
            stranger.sendall(b"\x00garbage")
            with urllib.request.urlopen(found[1], timeout=20) as answer:
                pages[role] = answer.read().decode()
    assert 'asyncps_running{rank="0",role="scheduler"} 1.0' in pages["scheduler"]
    for role in ("server", "worker"):
        rounds = re.search(rf'asyncps_rounds_total{{rank="0",role="{role}"}} (\S+)', pages[role])
        assert rounds is not None
        assert float(rounds[1]) > 0
    stop.touch()
    assert workers[0].wait(START_S) == 0, workers[0].output
    assert scheduler.wait(START_S) == 0, scheduler.output


def test_metrics_port_of_the_command_line_reaches_a_worker(processes: ProcessGroup) -> None:
    shown = processes.asyncps("worker", "--metrics-port", "0", "--", "env", cwd=ROOT)
    assert shown.wait(START_S) == 0
    assert "ASYNCPS_METRICS_PORT=0\n" in shown.output


# Runs a command on a terminal of its own and hands its output on.
ON_A_TERMINAL = "import pty, sys; sys.exit(pty.spawn(sys.argv[1:]) >> 8)"


def test_status_on_a_terminal_is_a_table_that_goes_on(processes: ProcessGroup) -> None:
    job = Job(processes, workers=1, servers=1)
    scheduler = job.scheduler()
    env = {**job.env, "ASYNCPS_SCHEDULER": job.address, "TERM": "xterm", "COLUMNS": "200"}
    shown = processes.python("-c", ON_A_TERMINAL, sys.executable, "-m", "asyncps", "status",
                             "--watch", "0.05", env=env, cwd=ROOT)
    for _ in range(2):  # again and again, at the same place
        shown.wait_for_line("missing", START_S)
    assert "\x1b[" in shown.output
    scheduler.kill()
    scheduler.wait()
    assert shown.wait(START_S) == 1
    assert "asyncps: error: " in shown.output
    assert "Traceback" not in shown.output


def test_doctor_on_a_terminal_is_a_table_in_colour(processes: ProcessGroup) -> None:
    env = {"TERM": "xterm", "COLUMNS": "160"}
    shown = processes.python("-c", ON_A_TERMINAL, sys.executable, "-m", "asyncps", "doctor",
                             env=env, cwd=ROOT)
    assert shown.wait(START_S) == 0, shown.output
    assert "everything that is needed is there" in shown.output
    assert "\x1b[" in shown.output


def test_watching_ends_with_ctrl_c(processes: ProcessGroup) -> None:
    job = Job(processes, workers=1, servers=1)
    job.scheduler()
    watching = status(processes, job, "--json", "--watch", "1000")
    watching.wait_for_line('"phase": "joining"', START_S)
    watching.interrupt_group()
    assert watching.wait(START_S) == 130
    assert "Traceback" not in watching.output
