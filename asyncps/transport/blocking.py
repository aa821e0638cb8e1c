"""One blocking connection, for whoever has no loop at hand."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
from collections.abc import Sequence
from dataclasses import replace

from asyncps.errors import HandshakeError
from asyncps.protocol.handshake import NONCE_BYTES, Handshake, Hello


def open_socket(host: str, port: int, hello: Hello, token: str, timeout_s: float) -> socket.socket:
    """Connect and prove the token; the socket blocks, each step for `timeout_s` at most.

    Raises:
        HandshakeError: The other side is not of this job, or closed.
        OSError: The socket failed, or a step took too long.
    """
    sock = socket.create_connection((host, port), timeout_s)
    try:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        fresh = replace(hello, nonce=os.urandom(NONCE_BYTES))
        handshake = Handshake(fresh, token, connector=True)
        sock.sendall(handshake.start())
        while not handshake.done:
            data = sock.recv(handshake.wanted)
            if not data:
                raise HandshakeError("the peer closed the connection")
            if answer := handshake.receive(data):
                sock.sendall(answer)
    except BaseException:
        sock.close()
        raise
    return sock


def wait_at_most(sock: socket.socket, receive_s: float, send_s: float) -> None:
    """Let the kernel end a receive, and a send, after a time: that costs no system call."""
    sock.settimeout(None)
    for option, seconds in ((socket.SO_RCVTIMEO, receive_s), (socket.SO_SNDTIMEO, send_s)):
        limit = struct.pack("ll", int(seconds), int(seconds % 1 * 1e6))
        sock.setsockopt(socket.SOL_SOCKET, option, limit)


def send_parts(sock: socket.socket, parts: Sequence[bytes | memoryview], size: int) -> None:
    """Send all of some byte views.

    Raises:
        OSError: That failed, or took too long; some bytes may be out.
    """
    sent = sock.sendmsg(parts)
    if sent < size:
        sock.sendall(b"".join(parts)[sent:])


def close_quietly(sock: socket.socket) -> None:
    """Close a socket that may be broken."""
    with contextlib.suppress(OSError):
        sock.close()
