"""What a job through launcher `local` shows, and how it ends."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from asyncps.errors import ConfigError
from asyncps.launch import Deadlines
from tests.launch.jobs import ANNOUNCE, STAY, Fakes, python, run_job, shell
from tests.support.processes import is_alive

pytestmark = pytest.mark.launch


def after_the_server(tmp_path: Path, script: str) -> tuple[list[str], str]:
    """A worker and a server that run `script`, the worker when the server's has ended."""
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    first = f'if [ "$ASYNCPS_RANK" = 0 ]; then cat {fifo}; fi'
    return shell(f"{first}; {script}"), f"{script}; : > {fifo}; {STAY}"


def test_job_of_two_workers_shows_prefixed_lines_and_exits_with_0() -> None:
    result = run_job(shell("echo hello; echo oops >&2"), workers=2, servers=2)
    assert result.code == 0
    assert sorted(result.lines) == ["[worker 0] hello", "[worker 1] hello"]
    errors = result.err.splitlines()
    assert {"[worker 0] oops", "[worker 1] oops"} <= set(errors)
    assert result.reports == []


def test_exit_code_of_the_failed_worker_is_the_launchers() -> None:
    script = 'if [ "$ASYNCPS_RANK" = 1 ]; then echo about to fail; exit 3; fi; exec sleep 1000'
    result = run_job(shell(script), workers=2)
    assert result.code == 3
    last = result.err.splitlines()[-3:]
    assert last[0] == "asyncps: the last lines of worker 1:"
    assert last[1] == "[worker 1] about to fail"
    assert last[2].startswith("asyncps: worker 1 (pid ")
    assert last[2].endswith(" exited with code 3")
    assert " on " in last[2]


def test_scheduler_is_told_of_the_death_with_the_jobs_token() -> None:
    script = 'echo $ASYNCPS_TOKEN $ASYNCPS_JOB; [ "$ASYNCPS_RANK" = 0 ] || exec sleep 1000; exit 3'
    result = run_job(shell(script), workers=2)
    token, job = result.lines[0].split()[2:]
    assert result.reports == [
        ("127.0.0.1:4321", token, job, "worker", 0, "exited with code 3", 0.5)
    ]
    assert len(token) == 64


def test_worker_killed_by_a_signal_counts_as_128_and_the_signal() -> None:
    result = run_job(shell("kill -9 $$"))
    assert result.code == 137
    assert result.err.splitlines()[-1].endswith("was killed by signal 9 (SIGKILL)")
    assert result.reports[0][5] == "was killed by signal 9 (SIGKILL)"


def test_survivors_may_say_what_they_saw(tmp_path: Path) -> None:
    # They wait for the end of a FIFO whose one writer is the reporter.
    up, told = tmp_path / "up", tmp_path / "told"
    os.mkfifo(up)
    os.mkfifo(told)
    writer = os.open(told, os.O_RDWR)
    survivor = f"exec 3< {told}; cat {up}; cat <&3; echo I saw it; exit 1"
    script = f'if [ "$ASYNCPS_RANK" = 1 ]; then {survivor}; fi; echo up > {up}; exit 4'

    class Telling(Fakes):
        def report(self, *told: object) -> bool:
            os.close(writer)
            return super().report(*told)

    fakes = Telling(scheduler=f"exec 3< {told}; {ANNOUNCE} cat <&3; exit 1",
                    server=f"exec 3< {told}; cat <&3; exit 1")
    result = run_job(shell(script), workers=2, fakes=fakes, deadlines=Deadlines(speak=5.0))
    assert result.code == 4
    assert "[worker 1] I saw it" in result.lines


def test_survivor_that_ignores_sigterm_is_killed(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    script = (
        "import os, signal\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "if os.environ['ASYNCPS_RANK'] == '0':\n"
        f"    open({str(fifo)!r}).read(); os._exit(5)\n"
        f"open({str(fifo)!r}, 'w').close(); print(os.getpid(), flush=True)\n"
        "while True: signal.pause()\n"
    )
    result = run_job(python(script), workers=2)
    assert result.code == 5
    assert not is_alive(int(result.lines[0].split()[-1]))


def test_default_deadlines_end_a_failed_job_within_3_s() -> None:
    limits = Deadlines()
    assert limits.report + limits.speak + limits.terminate <= 2.5


def test_reporter_that_fails_does_not_hold_the_end() -> None:
    class Failing(Fakes):
        def report(self, *told: object) -> bool:
            raise RuntimeError("no scheduler there")

    result = run_job(shell("exit 6"), fakes=Failing())
    assert result.code == 6
    assert "the scheduler was not told: RuntimeError('no scheduler there')" in result.err


@pytest.mark.parametrize(("server", "code"), [("exit 7", 7), ("kill -11 $$", 139)])
def test_server_that_fails_ends_the_job(server: str, code: int) -> None:
    result = run_job(shell(STAY), fakes=Fakes(server=server))
    assert result.code == code
    assert result.reports[0][3:5] == ("server", 0)


def test_scheduler_that_fails_ends_the_job_and_is_not_reported_to() -> None:
    result = run_job(shell(STAY), fakes=Fakes(scheduler=ANNOUNCE + "exit 8"))
    assert result.code == 8
    assert result.reports == []
    assert "asyncps: scheduler (pid " in result.err.splitlines()[-1]


def test_scheduler_that_fails_before_it_listens_ends_the_job() -> None:
    result = run_job(shell(STAY), fakes=Fakes(scheduler="echo port busy >&2; exit 9"))
    assert result.code == 9
    assert result.err.splitlines()[-2] == "[scheduler] port busy"


def test_scheduler_that_never_listens_ends_the_job() -> None:
    result = run_job(shell(STAY), fakes=Fakes(scheduler=STAY),
                     deadlines=Deadlines(announce=0.1, speak=0.1, terminate=0.1))
    assert result.code == 1
    assert result.err.splitlines()[-1].endswith("did not say within 0.1 s where it listens")


def test_server_that_leaves_before_the_workers_is_a_failure() -> None:
    result = run_job(shell(STAY), fakes=Fakes(server="exit 0"))
    assert result.code == 1
    last = result.err.splitlines()[-1]
    assert last.startswith("asyncps: server 0 ")
    assert last.endswith("ended with exit code 0 while the workers were still running")


def test_all_servers_and_the_scheduler_may_leave_while_a_worker_still_finishes(
    tmp_path: Path,
) -> None:
    # The worker goes on when both have gone, which it sees by the end of their FIFO.
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    role = f"exec 3> {fifo}; exit 0"
    result = run_job(shell(f"cat {fifo}; echo done"),
                     fakes=Fakes(scheduler=ANNOUNCE + role, server=role),
                     deadlines=Deadlines(leave=0.05))
    assert (result.code, result.lines) == (0, ["[worker 0] done"])


def test_servers_that_stay_after_the_workers_are_ended_and_the_job_is_good() -> None:
    result = run_job(shell("true"))
    assert result.code == 0
    assert "ending scheduler, server 0: still alive" in result.err


def test_command_that_does_not_exist_fails_as_in_a_shell() -> None:
    result = run_job(["./no-such-program"])
    assert result.code == 127
    assert "asyncps: cannot start ./no-such-program: No such file or directory" in result.err


def test_script_without_its_interpreter_is_asked_about(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_first.py").write_text("print('hello')\n")
    result = run_job(["my_first.py"])
    assert result.code == 127
    assert ("cannot start my_first.py: No such file or directory; "
            "did you mean: python my_first.py?") in result.err
    result = run_job(["./my_first.py"])
    assert result.code == 126
    assert ("cannot start ./my_first.py: Permission denied; "
            "did you mean: python ./my_first.py?") in result.err
    (tmp_path / "train").write_text("#!/bin/sh\n")
    result = run_job(["train"])
    assert result.code == 127
    assert "did you mean: ./train?" in result.err
    assert "did you mean" not in run_job(["nothing.py"]).err


def test_file_that_is_no_program_may_not_be_run(tmp_path: Path) -> None:
    path = tmp_path / "garbage"
    path.write_bytes(b"\x00\x01\x02")
    path.chmod(0o755)
    result = run_job([str(path)])
    assert result.code == 126
    assert f"cannot start {path}: Exec format error" in result.err


@pytest.mark.parametrize(("first", "ports"), [
    (0, {"scheduler": "0", "server 1": "0", "worker 2": "0"}),
    (9000, {"scheduler": "9000", "server 0": "9001", "server 1": "9002", "worker 0": "9003",
            "worker 1": "9004", "worker 2": "9005"}),
    (None, {"scheduler": "", "server 0": "", "worker 0": ""}),
])
def test_each_process_has_a_port_for_its_metrics(
    first: int | None, ports: dict[str, str], tmp_path: Path
) -> None:
    say = "echo metrics at $ASYNCPS_METRICS_PORT.; "
    # Worker 0 ends when both servers have spoken, which they tell it by a FIFO.
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    result = run_job(
        shell(f'{say}[ "$ASYNCPS_RANK" != 0 ] || {{ exec 3<>{fifo}; read a <&3; read b <&3; }}'),
        workers=3, servers=2,
        fakes=Fakes(scheduler=say + ANNOUNCE + STAY, server=f"{say}echo > {fifo}; {STAY}"),
        metrics_port=first,
    )
    assert result.code == 0
    for who, port in ports.items():
        assert f"[{who}] metrics at {port}." in result.lines


def test_port_for_metrics_of_a_role_wins() -> None:
    result = run_job(shell("echo metrics at $ASYNCPS_METRICS_PORT."), metrics_port=9000,
                     env={"worker": {"ASYNCPS_METRICS_PORT": "7"}})
    assert result.lines == ["[worker 0] metrics at 7."]


def test_last_20_lines_are_shown_again() -> None:
    result = run_job(shell("for i in $(seq 1 30); do echo line $i; done; exit 1"))
    again = result.err.split("the last lines of worker 0:\n")[1].splitlines()
    assert again[:-1] == [f"[worker 0] line {i}" for i in range(11, 31)]


def test_last_traceback_is_shown_whole() -> None:
    script = ("import sys\nsys.setrecursionlimit(10**4)\n"
              "def early(): raise KeyError('early')\n"
              "try: early()\nexcept KeyError: import traceback; traceback.print_exc()\n"
              "source = 'def f(n):\\n' + ' if n: g(n - 1)\\n raise ValueError(n)\\n'\n"
              "exec(source + source.replace('f(', 'h(').replace('g(', 'f(')"
              ".replace('h(', 'g('))\nf(20)")
    result = run_job(python(script))
    again = result.err.split("the last lines of worker 0:\n")[1].splitlines()
    assert len(again) > 21
    assert again[0] == "[worker 0] Traceback (most recent call last):"
    assert again[-2] == "[worker 0] ValueError: 0"
    assert "early" not in "".join(again)


def test_process_that_said_nothing_has_no_last_lines() -> None:
    assert "the last lines" not in run_job(shell("exit 3")).err


def test_lines_of_many_ranks_stay_whole() -> None:
    script = "import os\nfor i in range(2000): print(f'{i:04d} ' + 'x' * 100, flush=i % 7 == 0)"
    result = run_job(python(script), workers=3)
    for rank in range(3):
        mine = [line for line in result.lines if line.startswith(f"[worker {rank}] ")]
        assert mine == [f"[worker {rank}] {i:04d} " + "x" * 100 for i in range(2000)]
    assert len(result.lines) == 6000


def test_last_line_without_newline_and_binary_garbage_are_shown() -> None:
    result = run_job(shell(r"printf '\377\376\001ok\nno newline'"))
    assert result.lines == ["[worker 0] ��\x01ok", "[worker 0] no newline"]


def test_log_dir_keeps_a_file_a_rank(tmp_path: Path) -> None:
    run_job(shell("echo out; echo err >&2"), workers=2, log_dir=tmp_path / "a" / "logs")
    names = sorted(path.name for path in (tmp_path / "a" / "logs").iterdir())
    assert names == ["scheduler.log", "server-0.log", "worker-0.log", "worker-1.log"]
    text = (tmp_path / "a" / "logs" / "worker-1.log").read_text()
    assert sorted(text.splitlines()) == ["err", "out"]


def test_log_dir_that_cannot_be_made_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="log directory"):
        run_job(shell("true"), log_dir=tmp_path / "file" / "logs")


def test_every_role_finds_its_membership_in_the_environment(tmp_path: Path) -> None:
    show = "env -u ASYNCPS_LOOP -u ASYNCPS_PURE | grep -E '^(ASYNCPS|DMLC|PYTHONUNB)'"
    worker, server = after_the_server(tmp_path, show)
    result = run_job(worker, workers=2, servers=1, fakes=Fakes(server=server),
                     environ={"DMLC_ROLE": "x", "DMLC_TASK_ID": "9", "ASYNCPS_RANK": "9",
                              "ASYNCPS_BIND": "127.0.0.1"})
    found = {}
    for name in ("worker 1", "server 0"):
        mine = [line for line in result.lines if line.startswith(f"[{name}] ")]
        found[name] = dict(line.split("] ", 1)[1].split("=", 1) for line in mine)
    assert found["worker 1"].pop("ASYNCPS_PARENT") == found["server 0"].pop("ASYNCPS_PARENT")
    token, job = found["worker 1"]["ASYNCPS_TOKEN"], found["worker 1"]["ASYNCPS_JOB"]
    common = {
        "ASYNCPS_BIND": "127.0.0.1", "ASYNCPS_JOB": job, "ASYNCPS_NUM_SERVERS": "1",
        "ASYNCPS_NUM_WORKERS": "2", "ASYNCPS_ON_WORKER_LOST": "fail",
        "ASYNCPS_SCHEDULER": "127.0.0.1:4321", "ASYNCPS_TOKEN": token, "DMLC_NUM_SERVER": "1",
        "DMLC_NUM_WORKER": "2", "DMLC_PS_ROOT_PORT": "4321", "DMLC_PS_ROOT_URI": "127.0.0.1",
        "PYTHONUNBUFFERED": "1",
    }  # fmt: skip
    assert found["worker 1"] == {
        **common, "ASYNCPS_ROLE": "worker", "ASYNCPS_RANK": "1", "ASYNCPS_LOCAL_RANK": "1",
        "DMLC_ROLE": "worker", "DMLC_WORKER_ID": "1",
    }  # fmt: skip
    assert found["server 0"] == {
        **common, "ASYNCPS_ROLE": "server", "ASYNCPS_RANK": "0", "ASYNCPS_LOCAL_RANK": "0",
        "DMLC_ROLE": "server", "DMLC_SERVER_ID": "0",
    }  # fmt: skip


def test_variables_of_a_role_reach_that_role_only(tmp_path: Path) -> None:
    worker, server = after_the_server(tmp_path, "echo $A-$B")
    result = run_job(worker, fakes=Fakes(server=server),
                     env={"worker": {"A": "1", "B": "w"}, "server": {"A": "1"}})
    assert result.lines == ["[server 0] 1-", "[worker 0] 1-w"]


def test_announcement_is_shown_only_when_debugging() -> None:
    assert "listening" not in run_job(shell("true")).out
    line = "[scheduler] asyncps scheduler listening on 127.0.0.1:4321"
    assert line in run_job(shell("true"), debug=True).lines


def test_grandchild_that_keeps_the_pipe_open_does_not_hold_the_end() -> None:
    script = (
        "import os, signal\n"
        "if os.fork() == 0:\n"
        "    os.setsid()\n"
        "    if os.fork() == 0: print('grandchild', os.getpid(), flush=True); signal.pause()\n"
        "    os._exit(0)\n"
        "os.wait(); os._exit(0)\n"
    )
    result = run_job(python(script))
    assert result.code == 0
    pid = int(result.lines[0].split()[-1])
    assert not is_alive(pid)
