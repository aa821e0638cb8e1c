"""How a launcher tells the scheduler that it reaped a child, so that nobody waits for it."""

from __future__ import annotations

from asyncps.errors import AsyncPSError
from asyncps.protocol import messages
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
    address = parse_address(scheduler, 9091)
    hello = Hello("launcher", -1, 0, job, b"")
    try:
        with open_socket(address.host, address.port, hello, token, timeout_s) as sock:
            sock.sendall(control_frame(messages.Died(role, rank, reason), 1, 0, 1))
            return bool(sock.recv(1))  # the answer says that it was taken in
    except (OSError, AsyncPSError):
        return False
