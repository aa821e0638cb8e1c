"""One page over HTTP, served by a thread of its own, that nobody can use to disturb the process.

The thread never waits for its process: it asks for fresh contents and answers when they come. What
strangers may cost is bounded: clients, bytes of a request, time of a client, turns a second.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import selectors
import socket
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

from asyncps.errors import TransportError

log = logging.getLogger(__name__)

MAX_CLIENTS = 32  # more than that: the oldest is dropped
MAX_REQUEST_BYTES = 8192
CLIENT_S = 5.0  # a client that has not got its page by then is dropped
DRAIN_S = 0.5  # for what a client still sends, so that closing does not eat the answer
FRESH_S = 0.5  # contents are told to all who ask within that time
_PAUSE_S = 0.01  # after each turn with clients: a flood costs a hundred turns a second
_ACCEPTS = 16  # connections taken a turn

_REASONS = {200: "OK", 400: "Bad Request", 404: "Not Found", 405: "Method Not Allowed",
            431: "Request Header Fields Too Large", 503: "Service Unavailable"}

Deliver = Callable[[Any], None]


class _Client:
    """One connection: what came, what is to go out."""

    def __init__(self, sock: socket.socket, deadline: float) -> None:
        self.sock = sock
        self.deadline = deadline
        self.request = bytearray()
        self.out: memoryview | None = None
        self.head_only = False
        self.waits = False  # for contents
        self.draining = False


class Endpoint:
    """Serves GET /metrics on one address.

    Args:
        host: Where to listen, a name or an address.
        port: The port; 0 is any.
        ask: Called on the endpoint's thread; has fresh contents delivered soon, from any thread.
        render: Makes the page of contents, on the endpoint's thread.
        content_type: Of the page.

    Attributes:
        port: Where it listens.

    Raises:
        TransportError: The address cannot be used.
    """

    def __init__(
        self, host: str, port: int, ask: Callable[[Deliver], None],
        render: Callable[[Any], bytes], content_type: str,
    ) -> None:
        self._ask, self._render, self._type = ask, render, content_type
        try:
            family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
            self._listener = socket.create_server((host, port), family=family, backlog=128)
        except (OSError, UnicodeError) as error:
            reason = getattr(error, "strerror", None) or error
            if getattr(error, "errno", None) == errno.EADDRINUSE:
                reason = f"{os.strerror(errno.EADDRINUSE)}; use 0 for any port"
            raise TransportError(
                f"cannot listen for metrics on {host}:{port}: {reason}"
            ) from None
        self._listener.setblocking(False)
        self.port: int = self._listener.getsockname()[1]
        self._wake_in, self._wake_out = socket.socketpair()
        for end in (self._wake_in, self._wake_out):
            end.setblocking(False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._selector.register(self._wake_in, selectors.EVENT_READ)
        self._clients: dict[int, _Client] = {}
        self._lock = threading.Lock()
        self._delivered: list[Any] = []
        self._page: bytes | None = None
        self._page_until = 0.0
        self._asked = False
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="asyncps metrics", daemon=True)
        self._thread.start()
        _close_after_fork(self)

    def close(self) -> None:
        """Stop listening and drop all clients; returns within a turn of the thread."""
        with self._lock:
            self._stopping = True
        self._wake()
        self._thread.join()

    def deliver(self, contents: Any) -> None:
        """Take fresh contents, from any thread; never waits."""
        with self._lock:
            self._delivered[:] = [contents]
        self._wake()

    def _wake(self) -> None:
        with contextlib.suppress(OSError):  # full: it wakes anyhow; closed: nobody is to wake
            self._wake_out.send(b"x")

    # ---- the thread ----

    def _run(self) -> None:
        try:
            while not self._stopping:
                self._turn()
        finally:
            for client in list(self._clients.values()):
                self._drop(client)
            self._close_sockets()

    def _turn(self) -> None:
        deadlines = [client.deadline for client in self._clients.values()]
        left = max(0.0, min(deadlines) - time.monotonic()) if deadlines else None
        busy = False
        for key, events in self._selector.select(left):
            if key.fileobj is self._wake_in:
                with contextlib.suppress(OSError):
                    self._wake_in.recv(4096)
            elif key.fileobj is self._listener:
                busy = True
                self._accept()
            elif key.data.sock.fileno() >= 0:  # not dropped in this very turn
                busy = True
                self._serve(key.data, events)
        self._answer_waiting()
        now = time.monotonic()
        for client in [c for c in self._clients.values() if c.deadline <= now]:
            if client.waits:
                self._reply(client, 503, b"this process does not answer\n")
            else:
                self._drop(client)
        if busy:
            time.sleep(_PAUSE_S)

    def _accept(self) -> None:
        for _ in range(_ACCEPTS):
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            sock.setblocking(False)
            if len(self._clients) >= MAX_CLIENTS:
                self._drop(next(iter(self._clients.values())))
            client = _Client(sock, time.monotonic() + CLIENT_S)
            self._clients[sock.fileno()] = client
            self._selector.register(sock, selectors.EVENT_READ, client)

    def _serve(self, client: _Client, events: int) -> None:
        try:
            if events & selectors.EVENT_WRITE and client.out is not None:
                self._write(client)
            elif events & selectors.EVENT_READ:
                self._read(client)
        except BlockingIOError:
            pass
        except OSError:
            self._drop(client)

    def _read(self, client: _Client) -> None:
        data = client.sock.recv(4096)
        if not data:
            self._drop(client)
        elif not client.draining and not client.waits and client.out is None:
            client.request += data
            self._look(client)

    def _look(self, client: _Client) -> None:
        """Answer a request as soon as it is whole, or cannot be right any more."""
        line, found, _ = bytes(client.request[:MAX_REQUEST_BYTES]).partition(b"\n")
        words = line.strip().split(b" ")
        if found and (len(words) != 3 or not words[2].startswith(b"HTTP/1.")):
            self._reply(client, 400, b"this is no HTTP request\n")
        elif len(client.request) > MAX_REQUEST_BYTES:
            self._reply(client, 431, b"the request is too long\n")
        elif b"\r\n\r\n" in client.request or b"\n\n" in client.request:
            client.head_only = words[0] == b"HEAD"
            if words[0] not in (b"GET", b"HEAD"):
                self._reply(client, 405, b"only GET and HEAD\n")
            elif words[1].partition(b"?")[0] not in (b"/metrics", b"/"):
                self._reply(client, 404, b"only /metrics\n")
            else:
                client.waits = True

    def _answer_waiting(self) -> None:
        with self._lock:
            delivered, self._delivered = self._delivered, []
        now = time.monotonic()
        if delivered:
            self._asked = False
            try:
                self._page = self._render(delivered[0])
            except Exception:
                log.exception("the metrics cannot be written")
                self._page = None
            self._page_until = now + FRESH_S
        waiting = [client for client in self._clients.values() if client.waits]
        if not waiting:
            return
        if now <= self._page_until:
            for client in waiting:
                if self._page is None:
                    self._reply(client, 503, b"the metrics cannot be written\n")
                else:
                    self._reply(client, 200, self._page)
        elif not self._asked:
            self._asked = True
            self._ask(self.deliver)

    def _reply(self, client: _Client, code: int, body: bytes) -> None:
        kind = self._type if code == 200 else "text/plain; charset=utf-8"
        head = (
            f"HTTP/1.1 {code} {_REASONS[code]}\r\nContent-Type: {kind}\r\n"
            f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        ).encode()
        client.waits = False
        client.deadline = time.monotonic() + CLIENT_S
        client.out = memoryview(head if client.head_only else head + body)
        self._selector.modify(client.sock, selectors.EVENT_READ | selectors.EVENT_WRITE, client)

    def _write(self, client: _Client) -> None:
        assert client.out is not None
        client.out = client.out[client.sock.send(client.out) :]
        if not client.out:
            client.out, client.draining = None, True
            client.deadline = time.monotonic() + DRAIN_S
            client.sock.shutdown(socket.SHUT_WR)
            self._selector.modify(client.sock, selectors.EVENT_READ, client)

    def _drop(self, client: _Client) -> None:
        number = client.sock.fileno()
        if self._clients.pop(number, None) is not None:
            self._selector.unregister(client.sock)
            client.sock.close()

    def _close_sockets(self) -> None:
        with contextlib.suppress(OSError):
            self._selector.close()
        for sock in (self._listener, self._wake_in, self._wake_out):
            sock.close()


def _close_after_fork(endpoint: Endpoint) -> None:
    """Have a forked child close what it inherits: it must not hold the port."""
    reference = weakref.ref(endpoint)

    def in_child() -> None:
        parent = reference()
        if parent is not None and not parent._stopping:
            for client in list(parent._clients.values()):
                client.sock.close()
            parent._close_sockets()

    os.register_at_fork(after_in_child=in_child)
