"""How a launcher tells the scheduler that it reaped a child, so that nobody waits for it."""

from __future__ import annotations

import os
import socket

from asyncps.errors import AsyncPSError
from asyncps.protocol import messages
from asyncps.protocol.handshake import NONCE_BYTES, Handshake, Hello
from asyncps.transport.link import control_frame
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
    try:
        with socket.create_connection((address.host, address.port), timeout_s) as sock:
            sock.settimeout(timeout_s)
            nonce = os.urandom(NONCE_BYTES)
            handshake = Handshake(Hello("launcher", -1, 0, job, nonce), token, connector=True)
            sock.sendall(handshake.start())
            while not handshake.done:
                data = sock.recv(handshake.wanted)
                if not data:
                    return False
                if answer := handshake.receive(data):
                    sock.sendall(answer)
            sock.sendall(control_frame(messages.Died(role, rank, reason), 1, 0, 1))
            return bool(sock.recv(1))  # the answer says that it was taken in
    except (OSError, AsyncPSError):
        return False
