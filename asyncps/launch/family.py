"""The launcher's side of its guardian: start ranks, signal them, hear of their ends."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Self

from asyncps.launch import guardian


@dataclass(frozen=True, slots=True)
class Started:
    """A rank has a process now."""

    ident: int
    pid: int


@dataclass(frozen=True, slots=True)
class Exited:
    """A rank was reaped; `code` is its exit code, or -n for signal n."""

    ident: int
    code: int


class GuardianLost(Exception):
    """Somebody ended the guardian: its ranks died with it."""


class Family:
    """All processes of one launch, held by a guardian process (see guardian.py)."""

    def __init__(self) -> None:
        self._was_subreaper = guardian.set_subreaper(True)
        self._socket, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", guardian.__file__, str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                start_new_session=True,
            )
        self._received = bytearray()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.end()

    @property
    def parent(self) -> int:
        """The process that reaps the ranks."""
        return self._process.pid

    def fileno(self) -> int:
        """The descriptor that is readable when `events` has something."""
        return self._socket.fileno()

    def start(
        self, ident: int, argv: Sequence[str], env: Mapping[str, str], stdout: int, stderr: int
    ) -> None:
        """Have a program started in a session of its own; a `Started` event tells its pid.

        Args:
            ident: The caller's number for it.
            argv: Program (looked up in the PATH of `env`) and arguments.
            env: Its whole environment.
            stdout: Descriptor of its output; the caller still closes its own copy.
            stderr: The same for its error output.
        """
        order = {
            "id": ident,
            "argv": [_as_text(word) for word in argv],
            "env": {_as_text(name): _as_text(value) for name, value in env.items()},
        }
        self._send(order, [stdout, stderr])

    def signal(self, number: int) -> None:
        """Send a signal to the process group of every rank that was not reaped yet."""
        with contextlib.suppress(OSError):  # a dead guardian has no ranks; events() tells it
            self._send({"signal": number}, [])

    def events(self) -> list[Started | Exited]:
        """Return what the guardian told since the last call; waits when it told nothing.

        Raises:
            GuardianLost: It is gone.
        """
        try:
            data = self._socket.recv(65536)
        except OSError:
            data = b""
        if not data:
            raise GuardianLost
        self._received += data
        *lines, rest = self._received.split(b"\n")
        self._received = bytearray(rest)
        events: list[Started | Exited] = []
        for line in lines:
            told = json.loads(line)
            if "started" in told:
                events.append(Started(told["started"], told["pid"]))
            else:
                events.append(Exited(told["exited"], told["code"]))
        return events

    def end(self, within_s: float = 3.0) -> bool:
        """Kill whoever is left, descendants included; tell whether all of them are gone."""
        self._socket.close()
        deadline = time.monotonic() + within_s
        try:
            return self._process.wait(within_s) == 0 or _end_orphans(deadline)
        except subprocess.TimeoutExpired:
            return False
        finally:
            guardian.set_subreaper(self._was_subreaper)

    def _send(self, order: object, fds: list[int]) -> None:
        body = json.dumps(order).encode()
        socket.send_fds(self._socket, [guardian.LENGTH.pack(len(body))], fds)
        self._socket.sendall(body)


def _as_text(value: str) -> str:
    """Carry the bytes that the system sees, whatever the locale says."""
    return os.fsencode(value).decode("latin-1")


def _end_orphans(deadline: float) -> bool:
    """After the guardian's death, kill what became ours: all below us in a foreign session."""
    own = os.getsid(0)
    while time.monotonic() < deadline:
        orphans = [
            pid for pid, session in guardian.descendants(os.getpid()).items() if session != own
        ] if guardian.LINUX else []
        if not orphans:
            return True
        for pid in orphans:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
            with contextlib.suppress(OSError):  # not our child: its parent was killed too
                os.waitpid(pid, os.WNOHANG)
        time.sleep(0.01)
    return False
