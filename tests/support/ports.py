"""The server's side of one store without sockets: real keeper and worker ports, checked memory."""

from __future__ import annotations

from collections import deque
from types import SimpleNamespace
from typing import Any

import numpy as np

from asyncps.protocol import messages
from asyncps.protocol.frames import HEADER_SIZE, Flag, Header, Kind
from asyncps.protocol.messages import Install, StoreConfig, UnitSpec
from asyncps.roles.keeper import Keeper
from asyncps.roles.server import Server, WorkerPort
from asyncps.tensor.pool import Bytes, Pool
from asyncps.transport.polling import Polling
from asyncps_ext import wire

STORE = 1
POISON = 0xA5


class CheckedPool(Pool):
    """A pool that fails when a buffer is in two places, and spoils what was given back."""

    def __init__(self, keep_bytes: int = 1 << 20) -> None:
        super().__init__(keep_bytes)
        self.spans: dict[int, int] = {}  # free memory: address -> size

    def take(self, size: int) -> Bytes:
        """As `Pool.take`."""
        buffer = super().take(size)
        self.spans.pop(buffer.ctypes.data, None)
        buffer[:] = POISON
        return buffer

    def give(self, buffer: Bytes) -> None:
        """As `Pool.give`; what lies unused must not be given again."""
        begin, size = buffer.ctypes.data, buffer.nbytes
        for start, length in self.spans.items():
            assert begin + size <= start or start + length <= begin, "given back twice"
        buffer[:] = POISON
        before = self.free_bytes
        super().give(buffer)
        kept = {b.ctypes.data: b.nbytes for free in self._free.values() for b in free}
        self.spans = {start: length for start, length in kept.items() if length}
        assert self.free_bytes == sum(kept.values()) <= max(self.keep_bytes, before)


class FakeConnection:
    """Keeps what a port sends, as views: their bytes may still change."""

    def __init__(self) -> None:
        self.writable = True
        self.on_writable: Any = None
        self.sent_frames: deque[list[bytes | memoryview]] = deque()
        self.received = self.sent = 0

    def send(self, parts: Any, size: int) -> None:
        """Take a frame."""
        assert sum(len(part) for part in parts) == size
        self.sent_frames.append(list(parts))

    def abort(self, error: Exception) -> None:
        """A newer connection takes over."""


class FakeServer:
    """One server with one store and a port for each worker; needs a running loop."""

    answer = Server.answer

    def __init__(self, workers: int, order: str = "arrival", reduce: str = "sum",
                 optimizer: str | None = None, hyper: dict[str, Any] | None = None,
                 type: str = "dist_sync", staleness: int = 0, workshop: Any = None) -> None:
        self.pool = CheckedPool()
        self.host = "here"
        self.polling = Polling(0.0)
        self.node = SimpleNamespace(incarnation=9)
        self.workshop = workshop
        self.config_words = StoreConfig(type, order, reduce, staleness)
        install = Install(STORE, self.config_words, optimizer, hyper or {})
        self.keeper = Keeper(install, (1 << workers) - 1, self.pool, self.answer,  # type: ignore[arg-type]
                             workshop)
        self.keepers = {STORE: self.keeper}
        self.ports: dict[int, WorkerPort] = {}
        for rank in range(workers):
            self.ports[rank] = WorkerPort(self, rank)  # type: ignore[arg-type]
            self.connect(rank)

    def connect(self, rank: int) -> None:
        """A new connection of a worker; what the old one had not brought over is lost."""
        port = self.ports[rank]
        port.detach()
        port.attach(FakeConnection())  # type: ignore[arg-type]

    def answers(self, rank: int) -> deque[list[bytes | memoryview]]:
        """Frames on their way to a worker."""
        connection: Any = self.ports[rank].connection
        frames: deque[list[bytes | memoryview]] = connection.sent_frames
        return frames

    def init(self, unit: int, dtype: str, values: list[bytes], *, slab: bool,
             first_row: int = 0) -> None:
        """Rank 0 initialises a chunk, or rows of a slab."""
        keys: list[int | str] = [f"key {unit}.{first_row + i}" for i in range(len(values))]
        spec = UnitSpec(dtype, slab, first_row, keys, [len(value) for value in values])
        table = messages.encode(spec)
        frame = make_frame(Kind.INIT, 1, unit, 0, b"".join(values), table=table)
        self.deliver(0, frame)
        kind, _ = read_answer(self.answers(0).popleft())[:2]
        assert kind == Kind.ACK

    def begin(self, rank: int, frame: Frame) -> bool:
        """The header has come; False when the payload is dropped, or there is none."""
        header, table, payload = frame
        if not payload:
            self.ports[rank].finish(header, memoryview(table))
            return False
        place = self.ports[rank].begin(header, memoryview(table))
        if place is None:
            return False
        place[:] = payload
        return True

    def end(self, rank: int, frame: Frame) -> None:
        """The payload has come."""
        self.ports[rank].finish(frame[0], memoryview(b""))

    def deliver(self, rank: int, frame: Frame) -> None:
        """A whole frame has come."""
        if self.begin(rank, frame):
            self.end(rank, frame)


Frame = tuple[Header, bytes, bytes]


def make_frame(
    kind: Kind, request: int, unit: int, clock: int, payload: bytes = b"", *,
    rows: Any = None, acked: int = 0, size: int = 0, hyper: int = 0, table: bytes = b"",
) -> Frame:
    """A frame as a worker sends it; `size` is what a PULL or WAIT asks for."""
    flags = 0
    if rows is not None:
        flags, table = Flag.ROWS, np.asarray(rows, "<u4").tobytes()
    header = Header(
        kind, flags, 7, STORE, request, unit, 0, clock, len(table), len(payload), acked,
        hyper if payload else size,
    )
    packed = wire.pack_header(*header)
    return Header._make(wire.parse_header(packed)), table, payload


def read_answer(parts: list[bytes | memoryview]) -> tuple[int, int, bytes, Any]:
    """Kind, request, payload and the error of an answer."""
    header = Header._make(wire.parse_header(parts[0]))
    assert len(parts[0]) == HEADER_SIZE
    body = b"".join(parts[1:])
    assert len(body) == header.table_bytes + header.payload_bytes
    error = None
    if header.kind == Kind.ERROR:
        error = messages.error_from_wire(messages.decode(body))  # type: ignore[arg-type]
    return header.kind, header.request, body, error
