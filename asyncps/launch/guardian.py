"""The guardian of one launch: parent of every rank, and the end of the whole family.

The launcher starts it first, by its file path (`python -I -S guardian.py FD`), and asks it over a
socket to start the ranks. Nothing of the job outlives the launcher, even when that is killed by
SIGKILL, because of four things (Linux; elsewhere only the ranks' process groups are ended):

* The launcher alone holds the other end of the socket (close-on-exec). The kernel closes it when
  the launcher ends, however it ends, and the guardian then kills whoever is left and ends too.
* The guardian is a child subreaper (prctl(2)). A process whose parent has died becomes its child,
  so sessions, double forks and cleaned environments do not help anybody to leave the tree: who is
  of the family is read from the parent links in /proc, and no other launch can be hit. Killing
  goes on until the guardian has no child left, so that nobody forks his way out.
* It lives in a session of its own and ignores the signals that ask to end: neither the terminal
  nor a signal to the launcher's group reaches it.
* Should the guardian itself be killed, then the ranks die with it (PR_SET_PDEATHSIG), and their
  descendants become children of the launcher, also a subreaper, which ends them.

What it cannot see: processes that a daemon outside of the job starts on a rank's behalf (at,
systemd-run, docker), and processes of another user.

Only the standard library, and little of it: this file runs without site-packages.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import signal
import socket
import struct
import sys
import time
from typing import Any, NoReturn

PR_SET_PDEATHSIG = 1  # linux/prctl.h
PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h
PR_GET_CHILD_SUBREAPER = 37  # linux/prctl.h
LENGTH = struct.Struct("!I")
# A process that the kernel cannot end (or of another user) must not keep the guardian for ever.
PATIENCE_S = 10.0
LINUX = sys.platform == "linux"
# Ignored here, and given back to the ranks: what a terminal or an administrator may send.
DEAF_TO = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGPIPE)


def set_subreaper(on: bool) -> bool:
    """Make orphaned descendants children of this process (Linux only); return what it was."""
    before = ctypes.c_int(0)
    _prctl(PR_GET_CHILD_SUBREAPER, ctypes.byref(before))
    _prctl(PR_SET_CHILD_SUBREAPER, ctypes.c_ulong(on))
    return bool(before.value)


def descendants(root: int) -> dict[int, int]:
    """Return {pid: session id} of everything below `root`, by the parent links in /proc."""
    children: dict[int, list[tuple[int, int]]] = {}
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/stat", "rb") as file:
                stat = file.read()
        except OSError:
            continue  # ended meanwhile
        # pid (name) state ppid pgrp session ...; the name may hold brackets and spaces
        fields = stat.rpartition(b")")[2].split()
        children.setdefault(int(fields[1]), []).append((int(name), int(fields[3])))
    found: dict[int, int] = {}
    todo = [root]
    while todo:
        below = children.get(todo.pop(), [])
        found.update(below)
        todo.extend(pid for pid, _ in below)
    return found


class Guardian:
    """Starts, reaps and ends the ranks of one launch on behalf of the launcher."""

    def __init__(self, launcher: socket.socket) -> None:
        self._launcher = launcher
        self._ranks: dict[int, int] = {}  # pid -> the launcher's number of it; the unreaped ones

    def run(self) -> None:
        """Serve the launcher until it is gone; then end the family."""
        for number in DEAF_TO:
            signal.signal(number, signal.SIG_IGN)
        woken, waker = socket.socketpair()
        waker.setblocking(False)
        woken.setblocking(False)
        signal.set_wakeup_fd(waker.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
        set_subreaper(True)
        try:
            while True:
                readable, _, _ = select.select([self._launcher, woken], [], [])
                if woken in readable:
                    with contextlib.suppress(BlockingIOError):
                        woken.recv(4096)
                    self._reap()
                if self._launcher in readable:
                    self._obey()
        except (EOFError, OSError):
            pass  # the launcher is gone
        finally:
            self._end_family()

    def _obey(self) -> None:
        head, fds, _, _ = socket.recv_fds(
            self._launcher, LENGTH.size, 2, getattr(socket, "MSG_CMSG_CLOEXEC", 0)
        )
        try:
            if not head:
                raise EOFError
            head += self._receive(LENGTH.size - len(head))
            order: dict[str, Any] = json.loads(self._receive(LENGTH.unpack(head)[0]))
            if "signal" in order:
                self._signal_groups(order["signal"])
            else:
                self._start(order, fds)
        finally:
            for fd in fds:
                os.close(fd)

    def _receive(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            piece = self._launcher.recv(size - len(data))
            if not piece:
                raise EOFError
            data += piece
        return bytes(data)

    def _start(self, order: dict[str, Any], fds: list[int]) -> None:
        guardian = os.getpid()
        pid = os.fork()
        if pid == 0:
            _become(order, fds, guardian)
        self._ranks[pid] = order["id"]
        self._tell({"started": order["id"], "pid": pid})

    def _signal_groups(self, number: int) -> None:
        for pid in self._ranks:  # unreaped, so the number is nobody else's
            try:
                os.killpg(pid, number)
            except ProcessLookupError:  # it has no session of its own yet
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)
            except PermissionError:
                pass

    def _reap(self) -> bool:
        """Reap all that have ended; tell whether any child is left."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if pid == 0:
                return True
            ident = self._ranks.pop(pid, None)  # None: an orphan that came to us
            if ident is not None:
                self._tell({"exited": ident, "code": os.waitstatus_to_exitcode(status)})

    def _tell(self, event: dict[str, int]) -> None:
        with contextlib.suppress(OSError):
            self._launcher.sendall(json.dumps(event).encode() + b"\n")

    def _end_family(self) -> None:
        self._launcher.close()
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            if LINUX:
                for pid in descendants(os.getpid()):
                    with contextlib.suppress(OSError):
                        os.kill(pid, signal.SIGKILL)
            else:
                self._signal_groups(signal.SIGKILL)
            if not self._reap():
                return
            time.sleep(0.01)


def did_you_mean(name: str) -> str:
    """Return a question to the user if a program that cannot be started is a file that is here."""
    if not os.path.isfile(name):
        return ""
    if name.endswith(".py"):
        return f"; did you mean: python {name}?"
    return "" if "/" in name else f"; did you mean: ./{name}?"


def _prctl(option: int, value: Any) -> None:
    if LINUX and ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl")


def _become(order: dict[str, Any], fds: list[int], guardian: int) -> NoReturn:
    """Turn this forked child into the rank's program."""
    code = 125
    argv = [text.encode("latin-1") for text in order["argv"]]
    env = {k.encode("latin-1"): v.encode("latin-1") for k, v in order["env"].items()}
    try:
        os.setsid()
        os.dup2(fds[0], 1)
        os.dup2(fds[1], 2)
        _prctl(PR_SET_PDEATHSIG, ctypes.c_ulong(signal.SIGKILL))
        if os.getppid() == guardian:  # else it died before the line above
            signal.set_wakeup_fd(-1)
            for number in (*DEAF_TO, signal.SIGCHLD, signal.SIGXFSZ):
                signal.signal(number, signal.SIG_DFL)
            os.execvpe(argv[0], argv, env)  # noqa: S606 - the user's program, without a shell
    except OSError as error:
        missing = isinstance(error, (FileNotFoundError, NotADirectoryError))
        code = 127 if missing else 126  # as a shell says it
        name = argv[0].decode(errors="replace")
        text = f"asyncps: cannot start {name}: {error.strerror}{did_you_mean(name)}\n"
        os.write(2, text.encode(errors="replace"))
    finally:
        os._exit(code)


if __name__ == "__main__":
    fd = int(sys.argv[1])
    os.set_inheritable(fd, False)
    Guardian(socket.socket(fileno=fd)).run()
