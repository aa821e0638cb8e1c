"""What a worker does with row-sparse keys: cut rows over the servers, push them, pull them.

One contribution of a worker to a server's part is one frame, however many rows it has; without any
it is a small one, since the round counts workers. What is pulled is cut into requests of a few MiB,
of which one call has a few under way at each server: an answer is memory of its own there.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from asyncps.errors import AsyncPSError, TensorError
from asyncps.protocol import messages, rows
from asyncps.protocol.frames import ASSIGN, HEADER_SIZE, INIT, MAX_PAYLOAD_BYTES, PULL, PUSH, Flag
from asyncps.protocol.messages import AnyMessage, TableSpec
from asyncps.roles.coded import Payload
from asyncps.roles.operation import Operation, no_worker, why_failed
from asyncps.roles.plan import KeyInfo
from asyncps.roles.remotetable import HeldRows, RemoteTable, post, post_rows
from asyncps.transport.request import Request
from asyncps_ext import wire

if TYPE_CHECKING:
    from asyncps.roles.client import Client

pack_header: Callable[..., bytes] = wire.pack_header

Ids = npt.NDArray[np.int64]

# Rows of one pull request, and how many of them one call has under way at one server.
PULL_BYTES = 4 << 20
PULLS_UNDER_WAY = 8

# Rows of one ASSIGN.
ASSIGN_BYTES = 16 << 20


def cut(info: KeyInfo, ids: Ids) -> Iterator[tuple[RemoteTable, int, int]]:
    """Yield each server's part of a table, and which of some ascending ids belong to it."""
    if len(info.pieces) == 1:
        unit = info.pieces[0][0]
        assert isinstance(unit, RemoteTable)
        yield unit, 0, ids.size
        return
    edges = np.searchsorted(ids, [piece.start + piece.size for _, piece in info.pieces]).tolist()
    begin = 0
    for (unit, _), end in zip(info.pieces, edges, strict=True):
        assert isinstance(unit, RemoteTable)
        yield unit, begin, end
        begin = end


def row_bytes(info: KeyInfo) -> int:
    """Return the bytes of one row."""
    return int(np.prod(info.shape[1:], dtype=np.int64)) * info.dtype.itemsize


def check_push(info: KeyInfo, ids: Ids) -> None:
    """Refuse a contribution that does not fit into a frame.

    Raises:
        TensorError: It names the limit.
    """
    most = MAX_PAYLOAD_BYTES // (row_bytes(info) + 8) - 4
    if ids.size > most:
        for _, begin, end in cut(info, ids):
            if end - begin > most:
                raise TensorError("more rows in one push than one server takes at once",
                                  key=info.key, got=f"{end - begin} rows",
                                  expected=f"at most {most} rows of a server, "
                                           f"{MAX_PAYLOAD_BYTES} bytes")


def init(client: Client, op: Operation, info: KeyInfo, given: Any) -> None:
    """Make a table on the servers, and write the rows that it begins with.

    Args:
        client: The store.
        op: Ends when the servers have all.
        info: The key.
        given: (ids, bytes of the rows), or None.
    """
    spec = info.spec
    assert spec.rows is not None
    for unit, _ in info.pieces:
        assert isinstance(unit, RemoteTable)
        table = messages.encode(
            TableSpec(spec.key, spec.dtype, spec.shape, spec.rows, unit.first, unit.stop)
        )
        _post_init(client, op, unit, table)
    if given is not None:
        assign(client, op, info, given[0], given[1], 1 << 20)


def push(
    client: Client, op: Operation, info: KeyInfo, ids: Ids, values: memoryview, priority: int,
    coded: Sequence[Payload | memoryview | None] | None = None,
) -> None:
    """Contribute to the next round of a table, at every server of it.

    Args:
        client: The store.
        op: Ends when the servers have accepted it.
        info: The key.
        ids: Strictly ascending.
        values: Bytes of the rows.
        priority: Of the request.
        coded: What each server's part is sent as, where that is not its values.
    """
    size = row_bytes(info)
    for place, (unit, begin, end) in enumerate(cut(info, ids)):
        named = rows.pack(ids[begin:end], unit.table_rows)
        value: Payload | memoryview | None = None
        if coded is not None:
            value = coded[place]
        elif end > begin:
            value = values[begin * size : end * size]
        step = unit.track.coming(None)[0]
        if not (unit.held or step.wait_for):
            post_rows(client, op, PUSH, unit, step, named, value, priority)
            continue
        client.hold(unit, HeldRows(op, PUSH, step, 0, value, None, None, priority, named=named))


def assign(
    client: Client, op: Operation, info: KeyInfo, ids: Ids, values: memoryview, priority: int
) -> None:
    """Overwrite rows; arguments as for `push`."""
    size = row_bytes(info)
    many = max(1, ASSIGN_BYTES // size)
    for unit, begin, stop in cut(info, ids):
        for first in range(begin, stop, many):
            end = min(stop, first + many)
            post_rows(
                client, op, ASSIGN, unit, unit.track.pull(None)[0],
                rows.pack(ids[first:end], unit.table_rows), values[first * size : end * size],
                priority,
            )


def pull(
    client: Client, op: Operation, info: KeyInfo, ids: Ids, out: memoryview, priority: int
) -> None:
    """Fetch rows.

    Args:
        client: The store.
        op: Ends when all are there.
        info: The key.
        ids: Strictly ascending.
        out: Bytes for the rows; written until the end.
        priority: Of the requests.
    """
    size = row_bytes(info)
    for unit, begin, end in cut(info, ids):
        if end > begin:
            pulling = Pulling(client, op, unit, ids[begin:end], out[begin * size : end * size],
                              size, priority)
            op.add()
            pulling.go_on()


class Pulling:
    """The rows of one call that come from one server; the owner of its requests."""

    lent = False  # nothing of the caller's is sent

    def __init__(
        self, client: Client, op: Operation, unit: RemoteTable, ids: Ids, out: memoryview,
        size: int, priority: int,
    ) -> None:
        self._client = client
        self._op = op
        self._unit = unit
        self._step = unit.track.pull(None)[0]
        self._ids = ids
        self._out = out
        self._size = size
        self._many = max(1, PULL_BYTES // size)
        self._priority = priority
        self._waiting = deque(range(0, ids.size, self._many))
        self._under_way = 0
        self._over = False
        self._error: AsyncPSError | None = None

    def go_on(self) -> None:
        """Ask for what may be asked for now."""
        if self._op.error is not None or self._error is not None:
            self._waiting.clear()
        while self._waiting and self._under_way < PULLS_UNDER_WAY:
            self._under_way += 1
            try:
                self._post(self._waiting.popleft())
            except Exception as failed:  # noqa: BLE001 - `why_failed` tells it
                self._under_way -= 1
                self._error = self._error or why_failed(self._op, failed, no_worker)
                self._waiting.clear()
        if not self._under_way and not self._over:
            self._over = True
            self._op.part_done(self._error)

    def part_done(self, error: AsyncPSError | None = None) -> None:
        """One request has ended."""
        self._under_way -= 1
        self._error = self._error or error
        self.go_on()

    def _post(self, begin: int) -> None:
        unit, step, client = self._unit, self._step, self._client
        end = min(begin + self._many, self._ids.size)
        link, track = unit.link, unit.track
        number = link.number()
        priority = unit.priority(self._priority)
        size = (end - begin) * self._size
        table = rows.pack(self._ids[begin:end], unit.table_rows)
        header = pack_header(
            PULL, Flag.IDS, client.incarnation, client.number, number, unit.number, priority,
            step.clock, len(table), 0, track.floor(step), size,
        )

        def answered(
            request: Request, header: Any, _message: AnyMessage | None, error: AsyncPSError | None
        ) -> None:
            if unit.tail is request:
                unit.tail = None
            if error is None and header is not None:
                track.answered(number)
            else:
                track.failed(number)
            if not request.expired:
                self.part_done(error)

        place = self._out[begin * self._size : end * self._size]
        request = Request(
            number, priority, [header, table], HEADER_SIZE + len(table), answered, place, unit, self
        )
        request.since = self._op.since
        self._op.requests.append((link, request))
        unit.tail = request
        track.asked(number, step.clock, None)
        link.request(request)


def _post_init(client: Client, op: Operation, unit: RemoteTable, table: bytes) -> None:
    number = unit.link.number()
    header = pack_header(
        INIT, 0, client.incarnation, client.number, number, unit.number, 1 << 20, 0, len(table), 0,
        0, 0,
    )

    post(op, unit, number, 1 << 20, [header, table], HEADER_SIZE + len(table))
