"""A worker's end of `together.py`: its real parts, and wires to servers that a test moves by hand.

Nothing moves by itself. What was sent lies as views of its sender's memory until the wire flows:
then the system has taken it, and only then may its sender change that memory.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any

from asyncps.errors import AsyncPSError, ConnectionLost
from asyncps.protocol.frames import HEADER_SIZE, Header, Kind
from asyncps.roles.client import Client
from asyncps.roles.operation import Operation
from asyncps.roles.server import WorkerPort
from asyncps.roles.shortcut import Shortcut
from asyncps.transport.link import Link
from asyncps_ext import wire
from tests.support.ports import STORE, FakeConnection, FakeServer, Frame, read_answer

LANE = 100  # added to a rank, it is the number of that rank's lane at a server
Parts = Sequence[bytes | memoryview]


class Sending:
    """A `Connection` as a link sees it."""

    def __init__(self) -> None:
        self.ready = self.writable = self.flows = True
        self.on_writable: Any = None
        self.received = self.sent = 0
        self.lying: deque[list[Parts]] = deque()
        self.lying_bytes = 0
        self.half: Header | None = None  # of the answer that is half here
        self.place: memoryview | None = None  # of its payload; None drops it
        self.error: AsyncPSError | None = None

    def send(self, parts: Parts, size: int) -> None:
        assert sum(map(len, parts)) == size
        assert self.ready
        self.lying.append([b"".join(parts)] if self.flows else list(parts))  # type: ignore[arg-type]

    @property
    def pending_bytes(self) -> int:
        return 0 if self.flows else sum(len(part) for parts in self.lying for part in parts)

    @property
    def reader(self) -> Sending:
        return self

    @property
    def current(self) -> Header | None:
        return None if self.place is None else self.half

    def abandon_payload(self) -> None:
        self.place = None

    def abort(self, error: AsyncPSError | None = None) -> None:
        self.error, self.ready, self.writable = error, False, False


class Wire:
    """What lies between one worker and one server."""

    def __init__(self, rank: int, server: FakeServer, name: str) -> None:
        self.rank, self.server = rank, server
        self.link = Link(name, self._connect, lambda *_: None, lambda task, _: task.close())
        self.half: Frame | None = None
        self.twins: list[Frame] = []
        self.connection: Sending | None = None
        self.come_back()

    async def _connect(self, link: Link) -> Any:
        raise AssertionError("connections come by hand")

    def deliver(self, *, half: bool = False, twice: bool = False) -> bool:
        """The next frame comes, or its rest, or a half of it; False when there is none."""
        if self.half is not None:
            self.server.end(self.rank, self.half)
            self.half = None
        elif self.connection is not None and self.connection.lying:
            frame = parse(self.connection.lying.popleft())
            if twice:
                self.twins.append(frame)
            if self.server.begin(self.rank, frame):
                self.half = frame
                if not half:
                    return self.deliver()
        else:
            return False
        return True

    def deliver_again(self) -> None:
        """A frame that came comes once more, much later."""
        if self.twins and self.half is None:
            self.server.deliver(self.rank, self.twins.pop(0))

    def receive(self, *, half: bool = False) -> bool:
        """The next answer comes, or its rest, or a half of it; False when there is none."""
        connection, answers = self.connection, self.server.answers(self.rank)
        if connection is None or not answers:
            return False
        data = b"".join(answers[0])
        header = Header._make(wire.parse_header(data))
        table = memoryview(data)[HEADER_SIZE : HEADER_SIZE + header.table_bytes]
        payload = data[HEADER_SIZE + header.table_bytes :]
        if connection.half is None and payload:
            connection.half = header
            connection.place = self.link.begin(header, table)
            if half:
                if connection.place is not None:
                    connection.place[:3] = b"\xaa\xaa\xaa"
                return True
        answers.popleft()
        place, connection.place, connection.half = connection.place, None, None
        if place is not None:
            place[:] = payload
        if place is not None or not payload:
            self.link.finish(header, table)
        self.sweep()
        return True

    def cut(self) -> None:
        """The connection breaks; what is on its way is lost."""
        connection, self.connection = self.connection, None
        if connection is not None:
            connection.ready = connection.writable = False
            self.half = None
            self.link.connection_closed(connection, connection.error or ConnectionLost("cut"))  # type: ignore[arg-type]
            self.server.connect(self.rank)

    def come_back(self) -> None:
        """There is a connection again."""
        if self.connection is None:
            self.connection = Sending()
            self.link.connection_ready(self.connection)  # type: ignore[arg-type]

    def sweep(self) -> None:
        """A side that has closed its connection sees it gone."""
        if self.connection is not None and not self.connection.ready:
            self.cut()

    def clog(self, *, up: bool) -> None:
        """One direction takes no more."""
        if not up:
            self._port.writable = False
        elif self.connection is not None:
            self.connection.writable = self.connection.flows = False

    def flow(self) -> None:
        """Both directions take what there is."""
        if not self._port.writable:
            self._port.writable = True
            self._port.on_writable()
        connection = self.connection
        if connection is not None and not connection.flows:
            connection.flows = connection.writable = True
            connection.lying = deque([b"".join(parts)] for parts in connection.lying)  # type: ignore[arg-type]
            connection.on_writable()

    @property
    def _port(self) -> FakeConnection:
        return self.server.ports[self.rank].connection  # type: ignore[return-value]


class WorkerEnd:
    """One worker: client, links, shortcut; and its lanes, whose fate is told beforehand.

    Attributes:
        fate: Of the next try on a lane: answered; late (the frame comes later); half (its payload
            does); lost with the lane; unheard (only the answer is lost with the lane).
        live: Operations that have not ended.
    """

    def __init__(self, rank: int, servers: list[FakeServer]) -> None:
        self.rank, self.servers = rank, servers
        self.wires = [Wire(rank, server, f"server {n}") for n, server in enumerate(servers)]
        links = [wire.link for wire in self.wires]
        self.client = Client(STORE, servers[0].config_words, 7, links, lambda: 0.0)
        self.client.optimizer = "test"
        node: Any = SimpleNamespace(failure=None)
        lanes: Any = self
        self.shortcut = Shortcut(node, self.client, lanes)
        self.live: list[Operation] = []
        self.fate = "answered"
        self._late: list[deque[Frame]] = [deque() for _ in servers]
        self._half: list[Frame | None] = [None for _ in servers]
        self._number = 1 << 48
        for server in servers:
            server.ports[rank + LANE] = WorkerPort(server, rank)  # type: ignore[arg-type]
            server.connect(rank + LANE)

    def begin(self, op: Operation) -> None:
        """An operation begins the ordinary way."""
        self.keep(op)
        self.shortcut.note(op)

    def keep(self, op: Operation) -> None:
        """An operation is under way until it ends."""
        self.live.append(op)
        op.on_end(self.live.remove)

    def sweep(self) -> None:
        """Connections that this worker has closed are gone."""
        for connected in self.wires:
            connected.sweep()

    @property
    def busy(self) -> bool:
        """Whether anything of this worker is on its way."""
        held = any(unit.held for unit in self.client.units.values())
        return bool(self.live) or held or any(wire.link.unanswered for wire in self.wires)

    # ---- as `Lanes` ----

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        yield

    def ready(self, server: int) -> bool:
        return True

    def number(self) -> int:
        self._number += 1
        return self._number

    def exchange(self, server: int, number: int, parts: Parts, size: int,
                 expected: int) -> memoryview | None:
        frame, target = parse(parts), self.servers[server]
        assert sum(map(len, parts)) == size
        if self.fate == "lost":
            self._drop(server)
            return None
        if self.fate == "late":
            self._late[server].append(frame)
            return None
        self.end_lane(server)
        if self.fate == "half":
            if target.begin(self.rank + LANE, frame):
                self._half[server] = frame
            return None
        target.deliver(self.rank + LANE, frame)
        if self.fate == "unheard":
            self._drop(server)
            return None
        answers = target.answers(self.rank + LANE)
        while answers:
            kind, answered, body, error = read_answer(answers.popleft())
            if answered == number:
                assert (kind, error, len(body)) == (Kind.DATA, None, expected)
                return memoryview(body)
        return None

    def end_lane(self, server: int) -> None:
        """What lies on a lane comes, and is carried out."""
        half, self._half[server] = self._half[server], None
        if half is not None:
            self.servers[server].end(self.rank + LANE, half)
        while self._late[server]:
            self.servers[server].deliver(self.rank + LANE, self._late[server].popleft())

    def _drop(self, server: int) -> None:
        """The lane breaks; what the server has not read of it is lost."""
        self._half[server] = None
        self._late[server].clear()
        self.servers[server].connect(self.rank + LANE)


def parse(parts: Parts) -> Frame:
    """A frame as the other side reads it."""
    data = b"".join(parts)
    header = Header._make(wire.parse_header(data))
    end = HEADER_SIZE + header.table_bytes
    return header, data[HEADER_SIZE:end], data[end:]
