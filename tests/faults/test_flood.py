"""A crowd floods the ports of a running job: it is refused, memory is bounded, sums are right."""

from __future__ import annotations

import os
import socket
import struct
import threading
from pathlib import Path

import pytest

from asyncps.protocol.frames import MAX_PAYLOAD_BYTES
from asyncps.protocol.handshake import Hello
from asyncps_ext import wire
from tests.faults.job import START_S, TRAIN_UNTIL_FILE, Job, port_of
from tests.faults.test_trust import resident_bytes
from tests.support.processes import ProcessGroup

PIECE = os.urandom(64 << 10)
CROWD, VISITS = 24, 8  # of each flooder


def longest_frame() -> bytes:
    """A header that announces the largest payload."""
    frame = bytearray(wire.pack_header(3, 0, 1, 1, 1, 0, 0, 1, 0, 0, 0, 0))
    struct.pack_into("<Q", frame, 48, MAX_PAYLOAD_BYTES)
    struct.pack_into("<I", frame, 68, wire.crc32c(bytes(frame[:68])))
    return bytes(frame)


HELLO = Hello("worker", 0, 1, "default", os.urandom(32)).pack()
FLOODS = {
    "garbage": (PIECE, True), "half frames": (HELLO[:40], False),
    "wrong proofs": (HELLO + bytes(32), False), "maximal frames": (longest_frame(), True),
}


def flood(port: int, opening: bytes, *, more: bool) -> None:
    """Visit a port as fast as can be; send as long as it takes anything."""
    for _ in range(VISITS):
        try:
            with socket.create_connection(("127.0.0.1", port), 20.0) as sock:
                sock.sendall(opening)
                while more:
                    sock.sendall(PIECE)
        except OSError:
            continue


@pytest.mark.slow
def test_crowd_that_floods_a_job_is_refused_and_the_job_goes_on(
    processes: ProcessGroup, tmp_path: Path
) -> None:
    stop = tmp_path / "stop"
    job = Job(processes, workers=2)
    scheduler, (server,), workers = job.start(TRAIN_UNTIL_FILE, str(stop))
    for worker in workers:
        worker.wait_for_line("is in training", START_S)
    roles = ((scheduler, job.port), (server, port_of(server.pid)))
    before = [resident_bytes(role.pid) for role, _ in roles]
    for opening, more in FLOODS.values():
        crowd = [
            threading.Thread(target=flood, args=(port, opening), kwargs={"more": more})
            for _, port in roles for _ in range(CROWD // 2)
        ]
        for flooder in crowd:
            flooder.start()
        for flooder in crowd:
            flooder.join()
    for (role, _), resident in zip(roles, before, strict=True):
        assert "refused 127.0.0.1" in role.output
        assert resident_bytes(role.pid) - resident < 16 << 20
    stop.touch()
    for rank, worker in enumerate(workers):
        worker.wait_for_line(rf"worker {rank} has 3\.0", START_S)
    for member in (*workers, server, scheduler):
        assert member.wait(START_S) == 0, member.output
