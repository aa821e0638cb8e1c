"""A server's part of a row-sparse key as a worker sees it, and one request about it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from asyncps.errors import AsyncPSError
from asyncps.protocol.frames import HEADER_SIZE, PUSH, Flag
from asyncps.protocol.messages import AnyMessage, KeySpec, Piece
from asyncps.roles.coded import Payload
from asyncps.roles.framing import Sender
from asyncps.roles.held import Held
from asyncps.roles.operation import Operation
from asyncps.roles.plan import RemoteUnit
from asyncps.state.requests import Step
from asyncps.transport.link import Link
from asyncps.transport.request import Request
from asyncps_ext import wire

pack_header: Callable[..., bytes] = wire.pack_header


class RemoteTable(RemoteUnit):
    """The rows of one key at one server.

    Attributes:
        first, stop: They are first..stop-1.
        table_rows: Rows of the whole table.
    """

    __slots__ = ("first", "stop", "table_rows")

    def __init__(self, link: Link, piece: Piece, spec: KeySpec, window: int | None) -> None:
        super().__init__(link, piece.server, piece.unit, False, window)
        self.sizes, self.row_keys = [0], [spec.key]  # a WAIT asks for no bytes
        self.first, self.stop = piece.start, piece.start + piece.size
        self.table_rows = spec.shape[0]


@dataclass(slots=True, eq=False)
class HeldRows(Held):
    """A push of rows beyond the clock window.

    Attributes:
        named: Which rows, as they travel.
    """

    named: bytes = b""


def post_rows(
    sender: Sender, op: Operation, kind: int, unit: RemoteUnit, step: Step, named: bytes,
    values: memoryview | Payload | None, priority: int, *, held: bool = False,
) -> None:
    """Send rows to a server: a PUSH or an ASSIGN, answered with ACK.

    Args:
        sender: The store.
        op: Ends a part of itself with the answer.
        kind: PUSH or ASSIGN.
        unit: The table there.
        step: The clock.
        named: Which rows, as they travel.
        values: The rows, or what they were encoded as; None when there are none. Sent from where
            they lie.
        priority: Of the request.
        held: It was: it has its clock, and is a part of `op` already.
    """
    number = unit.link.number()
    priority = unit.priority(priority)
    flags, table = 0, b""
    if isinstance(values, Payload):
        flags, table, values = Flag.CODEC, values.tail, values.data
    payload = len(named) + (0 if values is None else len(values))
    header = pack_header(
        kind, flags, sender.incarnation, sender.number, number, unit.number, priority, step.clock,
        len(table), payload, unit.track.floor(step), sender.hyper_version,
    )
    parts: list[bytes | memoryview] = [header + table, named]
    if values:
        parts.append(values)
    begins = step if kind == PUSH and not held else None
    post(op, unit, number, priority, parts, HEADER_SIZE + len(table) + payload, begins=begins,
         fresh=not held)


def post(
    op: Operation, unit: RemoteUnit, number: int, priority: int,
    parts: list[bytes | memoryview], size: int, *, begins: Step | None = None, fresh: bool = True,
) -> None:
    """Send a request about a unit that is answered with a word.

    Args:
        op: Ends a part of itself with the answer.
        unit: What it speaks of.
        number, priority, parts, size: See `Request`.
        begins: The step of a push that counts from now on.
        fresh: It is a part of `op` that begins here.
    """
    def answered(
        request: Request, _header: Any, _message: AnyMessage | None, error: AsyncPSError | None
    ) -> None:
        if unit.tail is request:
            unit.tail = None
        if not request.expired:
            op.part_done(error)

    request = Request(number, priority, parts, size, answered, None, unit, op)
    request.since = op.since
    # All memory is there. From here on nothing is expected to fail, and a push counts.
    if begins is not None:
        op.counted = True
        unit.track.begin(begins)
    op.requests.append((unit.link, request))
    unit.tail = request
    if fresh:
        op.add()
    unit.link.request(request)
