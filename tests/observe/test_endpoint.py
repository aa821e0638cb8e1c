"""The metrics endpoint: right answers, and nothing that strangers do may disturb its process."""

from __future__ import annotations

import os
import socket
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest

from asyncps.errors import TransportError
from asyncps.observe import endpoint as endpoints
from asyncps.observe.endpoint import Deliver, Endpoint


class Source:
    """Delivers numbers that rise with each question; or keeps the question."""

    def __init__(self) -> None:
        self.asked = 0
        self.kept: list[Deliver] = []
        self.answers = True
        self.came = threading.Event()

    def __call__(self, deliver: Deliver) -> None:
        self.asked += 1
        self.came.set()
        if self.answers:
            deliver(self.asked)
        else:
            self.kept.append(deliver)


@pytest.fixture
def source() -> Source:
    return Source()


@pytest.fixture
def endpoint(source: Source) -> Iterator[Endpoint]:
    made = Endpoint("127.0.0.1", 0, source, render, "text/plain; version=0.0.4")
    yield made
    made.close()


def render(contents: Any) -> bytes:
    return f"asked {contents}\n".encode() + b"#" * 200_000


def get(endpoint: Endpoint, path: str = "/metrics") -> tuple[int, bytes]:
    try:
        url = f"http://127.0.0.1:{endpoint.port}{path}"
        with urllib.request.urlopen(url, timeout=20) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read()


def say(endpoint: Endpoint, data: bytes) -> bytes:
    """Send bytes and read all that comes, until the endpoint closes."""
    with socket.create_connection(("127.0.0.1", endpoint.port), 20) as sock:
        sock.sendall(data)
        found = b""
        while more := sock.recv(1 << 16):
            found += more
        return found


def test_page_is_served_whole_and_asked_for_once_in_a_while(
    endpoint: Endpoint, source: Source
) -> None:
    for _ in range(5):
        code, body = get(endpoint)
        assert code == 200
        assert len(body) > 200_000
        assert body.startswith(b"asked ")
    assert source.asked < 5


@pytest.mark.parametrize(("request_", "code"), [
    (b"GET /other HTTP/1.1\r\n\r\n", 404),
    (b"POST /metrics HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc", 405),
    (b"GET /metrics\r\n\r\n", 400),
    (b"\x00\xff\xfe garbage\n", 400),
    (b"APS1" + bytes(64) + b"\n", 400),
    (b"GET /metrics HTTP/1.1\r\nX: " + b"x" * 9000, 431),
    (b"G" * 10_000, 431),
], ids=["path", "method", "no version", "garbage", "frame", "long", "long line"])
def test_what_is_no_request_for_metrics_is_refused(
    endpoint: Endpoint, source: Source, request_: bytes, code: int
) -> None:
    assert say(endpoint, request_).startswith(f"HTTP/1.1 {code} ".encode())
    assert source.asked == 0
    assert get(endpoint)[0] == 200


def test_head_is_answered_without_a_body(endpoint: Endpoint) -> None:
    answer = say(endpoint, b"HEAD /metrics HTTP/1.1\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
    assert answer.endswith(b"\r\n\r\n")


def test_request_in_pieces_is_answered(endpoint: Endpoint) -> None:
    with socket.create_connection(("127.0.0.1", endpoint.port), 20) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for byte in b"GET / HTTP/1.0\r\n\r\n":
            sock.sendall(bytes([byte]))
        assert sock.recv(15) == b"HTTP/1.1 200 OK"


def test_half_a_request_is_dropped_in_time(
    endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(endpoints, "CLIENT_S", 0.2)
    assert say(endpoint, b"GET /metrics HT") == b""


def test_process_that_does_not_answer_is_503_and_a_late_answer_is_taken(
    endpoint: Endpoint, source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(endpoints, "CLIENT_S", 0.2)
    source.answers = False
    assert get(endpoint)[0] == 503
    monkeypatch.setattr(endpoints, "CLIENT_S", 20.0)
    monkeypatch.setattr(endpoints, "FRESH_S", 20.0)
    (deliver,) = source.kept
    deliver(77)
    assert get(endpoint)[1].startswith(b"asked 77\n")


def test_page_that_cannot_be_made_is_503(caplog: pytest.LogCaptureFixture) -> None:
    made = Endpoint("127.0.0.1", 0, Source(), lambda contents: contents.nonsense, "text/plain")
    try:
        assert get(made)[0] == 503
        assert "cannot be written" in caplog.text
    finally:
        made.close()


@pytest.mark.slow
def test_1000_connections_that_say_nothing_keep_nobody_out(
    endpoint: Endpoint, source: Source
) -> None:
    strangers = [socket.create_connection(("127.0.0.1", endpoint.port), 20) for _ in range(1000)]
    try:
        assert get(endpoint)[0] == 200
        assert len(endpoint._clients) <= endpoints.MAX_CLIENTS
    finally:
        for sock in strangers:
            sock.close()


def test_client_that_does_not_read_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoints, "CLIENT_S", 0.3)
    made = Endpoint("127.0.0.1", 0, Source(), lambda _: bytes(64 << 20), "text/plain")
    dropped, drop = threading.Event(), made._drop

    def note(client: Any) -> None:
        if client.out is not None:
            dropped.set()
        drop(client)

    monkeypatch.setattr(made, "_drop", note)
    try:
        with socket.create_connection(("127.0.0.1", made.port), 20) as sock:
            sock.sendall(b"GET / HTTP/1.1\r\n\r\n")
            assert get(made, "/other")[0] == 404  # it holds up nobody
            assert dropped.wait(20)
    finally:
        made.close()


def test_close_drops_everybody_and_frees_the_port(source: Source) -> None:
    made = Endpoint("127.0.0.1", 0, source, render, "text/plain")
    source.answers = False
    with socket.create_connection(("127.0.0.1", made.port), 20) as waiting:
        waiting.sendall(b"GET / HTTP/1.1\r\n\r\n")
        assert source.came.wait(20)
        made.close()
        assert waiting.recv(100) == b""
    again = Endpoint("127.0.0.1", made.port, source, render, "text/plain")
    again.close()


def test_busy_port_and_bad_host_are_transport_errors(endpoint: Endpoint) -> None:
    with pytest.raises(TransportError, match="in use; use 0 for any port"):
        Endpoint("127.0.0.1", endpoint.port, Source(), render, "text/plain")
    with pytest.raises(TransportError, match=r"cannot listen for metrics on 198\.51\.100\.1:0"):
        Endpoint("198.51.100.1", 0, Source(), render, "text/plain")


def test_forked_child_does_not_hold_the_port(source: Source) -> None:
    made = Endpoint("127.0.0.1", 0, source, render, "text/plain")
    ready_in, ready_out = os.pipe()
    go_in, go_out = os.pipe()
    pid = os.fork()
    if not pid:
        os.write(ready_out, b"x")
        os.read(go_in, 1)
        os._exit(0)
    try:
        os.read(ready_in, 1)
        made.close()
        Endpoint("127.0.0.1", made.port, source, render, "text/plain").close()
    finally:
        os.write(go_out, b"x")
        assert os.waitpid(pid, 0)[1] == 0
        for fd in (ready_in, ready_out, go_in, go_out):
            os.close(fd)
