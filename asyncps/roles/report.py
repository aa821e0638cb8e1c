"""How whoever reaps a worker tells the scheduler, so that nobody waits for it.

Only its parent learns with which code a process has ended: a worker that is about to end says no
more than that its parent will tell.
"""

from __future__ import annotations

import os
import sys

from asyncps.config import Config
from asyncps.errors import AsyncPSError
from asyncps.protocol import messages
from asyncps.protocol.attending import Ending as Ending
from asyncps.protocol.handshake import Hello
from asyncps.transport.blocking import open_socket
from asyncps.transport.request import control_frame
from asyncps.transport.tcp import parse_address


def report_death(
    scheduler: str, token: str, job: str, role: str, rank: int, reason: str, timeout_s: float = 1.0
) -> bool:
    """Tell the scheduler that a node's process has ended; blocks for `timeout_s` at most a step.

    Args:
        scheduler: Its address, "host:port".
        token: The job's secret.
        job: The job's name.
        role: "worker" or "server".
        rank: Whose process it was.
        reason: Such as "killed by signal 9".
        timeout_s: Bound of each network step, seconds.

    Returns:
        Whether the scheduler has heard it; False when it could not be reached.
    """
    return _tell(scheduler, token, job, messages.Died(role, rank, reason), timeout_s)


def report_end(
    scheduler: str, token: str, job: str, ended: messages.Ended, timeout_s: float = 1.0
) -> bool:
    """Tell the scheduler how a worker's process has ended, well or not; otherwise the same."""
    return _tell(scheduler, token, job, ended, timeout_s)


def ending_of(config: Config) -> Ending | None:
    """Return what this worker is to say as it ends, if somebody will tell its exit code.

    A process between the two, such as a shell, has the name of its parent's parent in its
    environment: then the rank tells the others whose end it is.
    """
    if config.parent is None:
        return None
    direct = config.parent == os.getppid()
    return Ending(direct) if direct or config.rank is not None else None


def ends_by_exception() -> bool:
    """Tell whether the interpreter has printed an exception that nobody caught."""
    interactive = hasattr(sys, "ps1") or bool(sys.flags.interactive)
    return getattr(sys, "last_value", None) is not None and not interactive


def _tell(
    scheduler: str, token: str, job: str, message: messages.Message, timeout_s: float
) -> bool:
    address = parse_address(scheduler, 9091)
    hello = Hello("launcher", -1, 0, job, b"")
    try:
        with open_socket(address.host, address.port, hello, token, timeout_s) as sock:
            sock.sendall(control_frame(message, 1, 0, 1))
            return bool(sock.recv(1))  # the answer says that it was taken in
    except (OSError, AsyncPSError):
        return False
