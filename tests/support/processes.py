"""Real processes for tests: started, watched by line, stopped, killed, never left alive."""

from __future__ import annotations

import contextlib
import os
import re
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Self

# The one knob of the environment that a test run hands on to its processes.
_HANDED_ON = ("ASYNCPS_LOOP", "ASYNCPS_PURE")

_CLUSTERS = ("ASYNCPS_", "DMLC_", "OMPI_COMM_", "PMI_", "PMIX_", "SLURM_")

# How long a killed process may take to be gone; only one that is stuck in the kernel needs it.
_REAP_S = 5.0


def clean_environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """Returns this process's environment without any cluster in it, plus `extra`."""
    env = {
        name: value
        for name, value in os.environ.items()
        if name in _HANDED_ON or not name.startswith(_CLUSTERS)
    }
    env["PYTHONUNBUFFERED"] = "1"
    env.update(extra or {})
    return env


class ManagedProcess:
    """A command in a session of its own, with its output (stdout and stderr as one) kept by line.

    Args:
        command: program and arguments.
        env: the whole environment; default is `clean_environment()`.
        cwd: working directory.

    Leaving the `with` block kills the process, its process group and all its descendants.
    """

    def __init__(
        self,
        command: Iterable[str | os.PathLike[str]],
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | os.PathLike[str] | None = None,
    ) -> None:
        self.command = [os.fspath(part) for part in command]
        self._popen = subprocess.Popen(
            self.command,
            env=dict(clean_environment() if env is None else env),
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        self.pid = self._popen.pid
        self._lines: list[str] = []
        self._changed = threading.Condition()
        self._at_end = False
        self._reader = threading.Thread(target=self._read, name=f"output-of-{self.pid}")
        self._reader.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    @property
    def output(self) -> str:
        """All output so far."""
        with self._changed:
            return "".join(self._lines)

    @property
    def returncode(self) -> int | None:
        """The exit code as `subprocess` tells it (-n for signal n); None while it runs."""
        return self._popen.poll()

    def wait_for_line(self, pattern: str, timeout_s: float = 10.0) -> re.Match[str]:
        """Waits for a line in which `pattern` is found, the lines already read included.

        Raises:
            AssertionError: the process ended or the time is over; the text has all its output.
        """
        regex = re.compile(pattern)
        deadline = time.monotonic() + timeout_s
        seen = 0
        with self._changed:
            while True:
                for line in self._lines[seen:]:
                    if match := regex.search(line):
                        return match
                seen = len(self._lines)
                if self._at_end:
                    self._fail(f"ended without a line like {pattern!r}")
                if not self._changed.wait(deadline - time.monotonic()):
                    self._fail(f"wrote no line like {pattern!r} within {timeout_s} s")

    def wait(self, timeout_s: float = 10.0) -> int:
        """Waits for the process and the end of its output; returns its exit code."""
        deadline = time.monotonic() + timeout_s
        try:
            code = self._popen.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self._fail(f"still runs after {timeout_s} s")
        # A grandchild that is alive holds the pipe open; the deadline is for both.
        self._reader.join(max(0.0, deadline - time.monotonic()))
        return code

    def send_signal(self, number: int) -> None:
        """Sends a signal to the process alone, not to its group."""
        self._popen.send_signal(number)

    def interrupt_group(self) -> None:
        """Sends SIGINT to the whole process group, as a terminal does on Ctrl-C."""
        os.killpg(self.pid, signal.SIGINT)

    def kill(self) -> None:
        """SIGKILL, to the process alone."""
        self._popen.kill()

    def freeze(self) -> None:
        """SIGSTOP; returns when the process has stopped."""
        self._popen.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WNOWAIT)

    def thaw(self) -> None:
        """SIGCONT."""
        self._popen.send_signal(signal.SIGCONT)

    def descendants(self) -> list[int]:
        """The process and everything below it that is alive now."""
        return [pid for pid in (self.pid, *descendants_of(self.pid)) if is_alive(pid)]

    def close(self) -> None:
        """Kills whatever is still alive of the process, its group and its descendants."""
        doomed = descendants_of(self.pid)
        # Its own pid names the group as long as anyone is in it.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        for pid in doomed:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._popen.wait(_REAP_S)
        wait_gone(doomed, _REAP_S)
        self._reader.join(_REAP_S)
        if self._popen.stdout is not None and not self._reader.is_alive():
            self._popen.stdout.close()

    def _read(self) -> None:
        assert self._popen.stdout is not None
        for line in self._popen.stdout:
            with self._changed:
                self._lines.append(line)
                self._changed.notify_all()
        with self._changed:
            self._at_end = True
            self._changed.notify_all()

    def _fail(self, what: str) -> None:
        raise AssertionError(
            f"process {self.pid} {what}\ncommand: {' '.join(self.command)}\n"
            f"exit code: {self._popen.poll()}\noutput:\n{''.join(self._lines)}"
        )


class ProcessGroup:
    """Starts processes for one test and ends them all when it leaves its `with` block."""

    def __init__(self) -> None:
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._stack.close()

    def start(
        self,
        *command: str | os.PathLike[str],
        env: Mapping[str, str] | None = None,
        cwd: str | os.PathLike[str] | None = None,
    ) -> ManagedProcess:
        """Starts `command` with `env` on top of an environment without a cluster."""
        process = ManagedProcess(command, env=clean_environment(env), cwd=cwd)
        return self._stack.enter_context(process)

    def python(
        self,
        *arguments: str | os.PathLike[str],
        env: Mapping[str, str] | None = None,
        cwd: str | os.PathLike[str] | None = None,
    ) -> ManagedProcess:
        """Starts this interpreter with `arguments`."""
        return self.start(sys.executable, *arguments, env=env, cwd=cwd)

    def asyncps(
        self,
        *arguments: str | os.PathLike[str],
        env: Mapping[str, str] | None = None,
        cwd: str | os.PathLike[str] | None = None,
    ) -> ManagedProcess:
        """Starts `python -m asyncps arguments`."""
        return self.python("-m", "asyncps", *arguments, env=env, cwd=cwd)


def is_alive(pid: int) -> bool:
    """Whether `pid` runs (or is stopped); a zombie is gone."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return False
    # The name in brackets may hold anything, brackets too: the state follows the last one.
    return stat.rpartition(")")[2].split()[0] not in "ZX"


def children_of(pid: int) -> list[int]:
    """The direct children of `pid` (of all its threads), zombies included."""
    found: list[int] = []
    for entry in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            found.extend(int(child) for child in entry.read_text().split())
    return found


def descendants_of(pid: int) -> list[int]:
    """Everything below `pid` whose parents still live, nearest first."""
    found: list[int] = []
    todo = [pid]
    while todo:
        below = children_of(todo.pop(0))
        found.extend(below)
        todo.extend(below)
    return found


@contextlib.contextmanager
def _exit_of(pid: int) -> Iterator[select.poll]:
    """A poll object that is readable as soon as `pid` has exited."""
    poll = select.poll()
    try:
        fd = os.pidfd_open(pid)
    except ProcessLookupError:
        yield poll
        return
    try:
        poll.register(fd, select.POLLIN)
        yield poll
    finally:
        os.close(fd)


def wait_gone(pids: Iterable[int], within_s: float) -> list[int]:
    """Waits until none of `pids` is alive; returns those that still are when the time is over."""
    deadline = time.monotonic() + within_s
    pids = list(pids)
    for pid in pids:
        with _exit_of(pid) as poll:
            if is_alive(pid):
                poll.poll(max(0.0, deadline - time.monotonic()) * 1000)
    return [pid for pid in pids if is_alive(pid)]


def assert_gone(pids: Iterable[int], within_s: float) -> None:
    """Fails when one of `pids` is alive after `within_s`; a zombie counts as gone."""
    left = wait_gone(pids, within_s)
    if left:
        told = "\n".join(f"  {pid}: {command_line(pid)}" for pid in left)
        raise AssertionError(f"still alive after {within_s} s:\n{told}")


def command_line(pid: int) -> str:
    """The command line of `pid`, for messages."""
    try:
        raw = Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return "(gone)"
    return raw.replace(b"\0", b" ").decode(errors="replace").strip() or "(no command line)"
