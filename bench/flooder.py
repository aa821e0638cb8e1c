"""A flooder, and the bare socket that it is compared with; both are processes of flood.py.

    python flooder.py drop                    listens, prints its port, reads and drops
    python flooder.py KIND PORT               floods until it is ended

KIND: `garbage` (random bytes), `half` (half a greeting, and away), `hello` (a greeting and a proof
without the token, and away), `maximal` (the longest frame that a header can announce, and its
payload).
"""

from __future__ import annotations

import os
import selectors
import socket
import struct
import sys

import harness  # noqa: F401 - it finds the clone's own packages

from asyncps.protocol.frames import MAX_PAYLOAD_BYTES
from asyncps.protocol.handshake import Hello
from asyncps_ext import wire

PIECE = 64 << 10


def opening(kind: str) -> bytes:
    """What a connection begins with."""
    hello = Hello("worker", 0, 1, "bench", os.urandom(32)).pack()
    if kind == "half":
        return hello[: len(hello) // 2]
    if kind == "hello":
        return hello + bytes(32)
    if kind == "maximal":
        frame = bytearray(wire.pack_header(3, 0, 1, 1, 1, 0, 0, 1, 0, 0, 0, 0))
        struct.pack_into("<Q", frame, 48, MAX_PAYLOAD_BYTES)
        struct.pack_into("<I", frame, 68, wire.crc32c(bytes(frame[:68])))
        return bytes(frame)
    return os.urandom(PIECE)


def flood(kind: str, port: int) -> None:
    """Connect, send until it is closed, again."""
    begin, more = opening(kind), os.urandom(PIECE)
    while True:
        try:
            with socket.create_connection(("127.0.0.1", port)) as sock:
                sock.sendall(begin)
                while kind in ("garbage", "maximal"):
                    sock.sendall(more)
        except OSError:
            continue


def drop() -> None:
    """Accept everybody, read and drop."""
    place = bytearray(PIECE)
    with selectors.DefaultSelector() as selector, socket.create_server(("127.0.0.1", 0),
                                                                       backlog=512) as listener:
        selector.register(listener, selectors.EVENT_READ)
        print(listener.getsockname()[1], flush=True)
        while True:
            for key, _ in selector.select():
                sock = key.fileobj
                assert isinstance(sock, socket.socket)
                if sock is listener:
                    selector.register(listener.accept()[0], selectors.EVENT_READ)
                    continue
                try:
                    count = sock.recv_into(place)
                except OSError:
                    count = 0
                if not count:
                    selector.unregister(sock)
                    sock.close()


if __name__ == "__main__":
    drop() if sys.argv[1] == "drop" else flood(sys.argv[1], int(sys.argv[2]))
