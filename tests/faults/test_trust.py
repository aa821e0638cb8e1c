"""Strangers at the ports of a running job: refused with a log line, and the job goes on."""

from __future__ import annotations

import os
import socket
import struct
import sys
from pathlib import Path

from asyncps.protocol.handshake import NONCE_BYTES, Handshake, Hello
from asyncps_ext import wire
from tests.faults.job import ROOT, START_S, TOKEN, TRAIN_UNTIL_FILE, Job, port_of
from tests.support.processes import ProcessGroup, command_line

_DEADLINE_S = 10.0


def test_strangers_are_refused_and_the_job_goes_on_with_right_sums(
    processes: ProcessGroup, tmp_path: Path
) -> None:
    stop = tmp_path / "stop"
    job = Job(processes, workers=2, ASYNCPS_HANDSHAKE_S=1.0)
    scheduler, (server,), workers = job.start(TRAIN_UNTIL_FILE, str(stop))
    for worker in workers:
        worker.wait_for_line("is in training", START_S)
    for role, port in ((scheduler, job.port), (server, port_of(server.pid))):
        assert_closes(port, os.urandom(4096))
        role.wait_for_line("refused .*: this is no asyncps peer")
        assert_closes(port, b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        role.wait_for_line("refused .*: this is no asyncps peer .*GET")
        assert_closes(port, future_hello())
        role.wait_for_line("refused .*: another protocol version .*expected 1, got 99")
        assert refusal(port, Hello("worker", 1, 0, "default", b""), "not the token") is not None
        role.wait_for_line("refused .*: wrong token")
        assert refusal(port, Hello("worker", 1, 0, "another", b""), TOKEN) is not None
        role.wait_for_line("refused .*: the peer belongs to another job")
        assert_closes(port, b"")  # it says nothing at all
        # Knows the token, is no worker of this job, and breaks the protocol.
        with proven(port, Hello("worker", 1, 77, "default", b"")) as sock:
            sock.sendall(endless_frame())
            assert_end(sock)
        role.wait_for_line("broke the protocol|is not wanted")
    stop.touch()
    for worker in workers:
        worker.wait_for_line(r"has 3\.0", START_S)
        assert worker.wait() == 0
    assert server.wait() == 0
    assert scheduler.wait() == 0
    for member in (scheduler, server, *workers):
        assert TOKEN not in member.output
        assert "Traceback" not in member.output


def test_frame_of_endless_length_takes_no_memory(processes: ProcessGroup) -> None:
    job = Job(processes)
    scheduler = job.scheduler()
    before = resident_bytes(scheduler.pid)
    for _ in range(20):
        with proven(job.port, Hello("worker", 0, 0, "default", b"")) as sock:
            sock.sendall(endless_frame())
            assert_end(sock)
    scheduler.wait_for_line("broke the protocol: (table|payload) too long")
    assert resident_bytes(scheduler.pid) - before < 16 << 20


def test_crowd_of_silent_strangers_does_not_keep_a_worker_out(processes: ProcessGroup) -> None:
    job = Job(processes, ASYNCPS_HANDSHAKE_S=60)
    scheduler = job.scheduler()
    crowd = [socket.create_connection(("127.0.0.1", job.port)) for _ in range(200)]
    server, worker = job.server(0), job.worker("import asyncps; asyncps.create('dist_sync')", 0)
    assert worker.wait(START_S) == 0
    assert server.wait() == 0
    assert scheduler.wait() == 0
    for sock in crowd:
        sock.close()


def test_token_stands_on_no_command_line_and_in_no_log(processes: ProcessGroup) -> None:
    program = (
        "import os, asyncps; store = asyncps.create('dist_sync'); "
        "print('the token is', os.environ['ASYNCPS_TOKEN'], os.getpid(), flush=True); "
        "store.barrier(); store.pull('never inited')"
    )
    launch = processes.asyncps("launch", "-n", "2", "-s", "1", "--env", "ASYNCPS_LOG_LEVEL=DEBUG",
                               "--", sys.executable, "-c", program, cwd=ROOT)
    token = launch.wait_for_line(r"the token is (\S+)", START_S)[1]
    lines = [command_line(pid) for pid in launch.descendants()]
    assert launch.wait(START_S) == 1
    assert len(token) == 64
    assert not any(token in line for line in lines)
    logged = [line for line in launch.output.splitlines() if "the token is" not in line]
    assert not any(token in line for line in logged)
    assert any("UnknownKey" in line for line in logged)


def proven(port: int, hello: Hello) -> socket.socket:
    """Connect and prove the token."""
    sock = connect(port)
    assert greet(sock, hello, TOKEN) is None
    return sock


def refusal(port: int, hello: Hello, token: str) -> Exception | None:
    """Try the handshake; return why it failed."""
    with connect(port) as sock:
        return greet(sock, hello, token)


def connect(port: int) -> socket.socket:
    sock = socket.create_connection(("127.0.0.1", port))
    sock.settimeout(_DEADLINE_S)
    return sock


def greet(sock: socket.socket, hello: Hello, token: str) -> Exception | None:
    nonce = os.urandom(NONCE_BYTES)
    fresh = Hello(hello.role, hello.rank, hello.incarnation, hello.job, nonce)
    # A liar believes whatever the other side proves; only what he proves himself is wrong.
    mine = Handshake(fresh, token, connector=True)
    sock.sendall(mine.start())
    while not mine.done:
        data = sock.recv(mine.wanted)
        if not data:
            return ConnectionError("closed")
        try:
            answer = mine.receive(data)
        except Exception as error:  # noqa: BLE001 - it is the result
            sock.sendall(mine.refusal())
            return error
        if answer:
            sock.sendall(answer)
    return None


def future_hello() -> bytes:
    hello = bytearray(Hello("worker", 0, 0, "default", os.urandom(NONCE_BYTES)).pack())
    struct.pack_into("<H", hello, 8, 99)
    return bytes(hello)


def endless_frame() -> bytes:
    frame = bytearray(wire.pack_header(2, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0))
    struct.pack_into("<QQ", frame, 40, 1 << 63, 1 << 63)
    struct.pack_into("<I", frame, 68, wire.crc32c(bytes(frame[:68])))
    return bytes(frame)


def assert_closes(port: int, data: bytes) -> None:
    """Say something, and be shown the door."""
    with connect(port) as sock:
        sock.sendall(data)
        assert_end(sock)


def assert_end(sock: socket.socket) -> None:
    try:
        while sock.recv(65536):
            pass
    except ConnectionResetError:
        pass


def resident_bytes(pid: int) -> int:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")
