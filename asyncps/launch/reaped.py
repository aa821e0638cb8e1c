"""A worker's parent: it starts the program, hands signals on, and tells how the program ended.

Nobody else learns the exit code. What comes from the terminal comes to the whole process group and
so to the program by itself; what somebody sends to this process alone is handed on.
"""

from __future__ import annotations

import ctypes
import os
import signal
import socket
from collections.abc import Mapping, Sequence
from typing import NoReturn

from asyncps.config import Config
from asyncps.errors import ConfigError
from asyncps.launch.guardian import LINUX, PR_SET_PDEATHSIG, did_you_mean
from asyncps.launch.members import describe_end, exit_code_of
from asyncps.protocol.messages import Ended
from asyncps.roles.report import report_end

HANDED_ON = frozenset({
    signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2,
    signal.SIGCONT,
})
_FROM_KERNEL = 0  # si_code of what the terminal sends is above, of kill(2) it is not
_TELL_S = 1.0


def run_worker(command: Sequence[str], env: Mapping[str, str], config: Config) -> int:
    """Run a program as a worker, tell the scheduler how it ended, and return its exit code.

    Args:
        command: The program, looked up in the PATH of `env`, and its arguments.
        env: Its whole environment.
        config: Where the scheduler is, and the rank, if it is given.

    Raises:
        ConfigError: The program cannot be started.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, HANDED_ON | {signal.SIGCHLD})
    try:
        pid = _start(command, env, before)
        code = _wait(pid)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    reason = None if code == 0 else describe_end(code)
    tell_of_end(config.scheduler, config.token, config.job, config.rank, pid, _TELL_S, reason)
    return exit_code_of(code)


def tell_of_end(
    scheduler: str, token: str, job: str, rank: int | None, pid: int, timeout_s: float,
    reason: str | None = None,
) -> bool:
    """Tell the scheduler how a worker on this machine has ended; `reason` None: with code 0."""
    ended = Ended(rank, socket.gethostname(), pid, reason)
    return report_end(scheduler, token, job, ended, timeout_s)


def _start(
    command: Sequence[str], env: Mapping[str, str], mask: set[int | signal.Signals]
) -> int:
    """Fork and become the program in the child; an error to start it comes through a pipe."""
    parent = os.getpid()
    told, teller = os.pipe()
    pid = os.fork()
    if pid == 0:
        _become(command, env, mask, parent, teller)
    os.close(teller)
    with os.fdopen(told, "rb") as pipe:
        failure = pipe.read()
    if failure:
        os.waitpid(pid, 0)
        raise ConfigError(f"cannot start {command[0]}: {os.strerror(int(failure))}"
                          f"{did_you_mean(command[0])}")
    return pid


def _become(
    command: Sequence[str], env: Mapping[str, str], mask: set[int | signal.Signals], parent: int,
    teller: int,
) -> NoReturn:
    try:
        if LINUX:  # as if it were this process itself that is killed
            ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, ctypes.c_ulong(signal.SIGKILL), 0, 0, 0)
        if os.getppid() == parent:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            for number in (signal.SIGINT, signal.SIGPIPE, signal.SIGXFSZ):
                signal.signal(number, signal.SIG_DFL)
            os.execvpe(command[0], list(command), env)  # noqa: S606 - the user's, no shell
    except OSError as error:
        os.write(teller, str(error.errno).encode())
    finally:
        os._exit(127)


def _wait(pid: int) -> int:
    """Hand signals on until the child has ended; return its code, or -n for signal n."""
    while True:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        if not hasattr(signal, "sigwaitinfo"):
            signal.sigwait(HANDED_ON | {signal.SIGCHLD})
            continue
        came = signal.sigwaitinfo(HANDED_ON | {signal.SIGCHLD})
        if came.si_signo != signal.SIGCHLD and came.si_code <= _FROM_KERNEL:
            os.kill(pid, came.si_signo)
