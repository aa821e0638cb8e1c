"""One worker as a server sees it: takes its frames, queues its answers; outlives connections."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from asyncps.errors import (
    AsyncPSError,
    RankTaken,
    RemoteProtocolError,
    UnknownKey,
)
from asyncps.protocol import messages
from asyncps.protocol import rows as named_rows
from asyncps.protocol.frames import (
    ACK,
    ASSIGN,
    CONTROL,
    DATA,
    ERROR,
    HEARTBEAT,
    INIT,
    MAX_ROWS,
    PULL,
    PUSH,
    PUSHPULL,
    RESTORE,
    WAIT,
    Flag,
    Header,
)
from asyncps.protocol.messages import AnyMessage, TableSpec, UnitSpec
from asyncps.roles import bases, encoded, encodedrows, saving, savingrows
from asyncps.roles.attendance import clocks
from asyncps.roles.keeper import Keeper, Target, typed
from asyncps.roles.reporting import late, traffic
from asyncps.tensor import dtypes
from asyncps.tensor.pool import Bytes
from asyncps.transport.connection import Connection
from asyncps.transport.outbox import Copies, Outbox, Outgoing
from asyncps.transport.polling import SMALL_BYTES
from asyncps.transport.request import control_frame
from asyncps_ext import wire

if TYPE_CHECKING:
    from asyncps.roles.server import Server

log = logging.getLogger(__name__)

pack_header: Callable[..., bytes] = wire.pack_header

# Requests of one worker that may wait for rounds, beside a few for each unit; each is a few hundred
# bytes of ours.
_MAX_PARKED = 1 << 16

# Answers that may wait for one worker to read them: as many chunks are 8 GiB.
_MAX_QUEUED = 8192

_Restored = messages.StateRange | messages.TableRows | messages.Parcel

_DATA_KINDS = frozenset({PUSH, PUSHPULL, INIT, ASSIGN, RESTORE})


class WorkerPort:
    """One worker as the server sees it: takes its frames, queues its answers."""

    def __init__(self, server: Server, rank: int) -> None:
        self.server = server
        self.rank = rank
        self.connection: Connection | None = None
        self.outbox = Outbox()
        self.parked: set[int] = set()  # by number: a request that comes again is still one
        self._copies = Copies()
        self._paused = False
        self.received_before = 0
        self.sent_before = 0
        self._now = asyncio.get_running_loop().time
        self._buffer: Bytes | None = None
        self._rows: Any = None
        self._target: Target | None = None
        self._found_at = 0  # the keeper's count of changes when the target was found
        self._described: encoded.Described | None = None  # how the payload is encoded, if it is
        self._wish: Any = None  # how the answer is to travel
        self._spec: UnitSpec | None = None
        self._range: _Restored | None = None

    def attach(self, connection: Connection) -> None:
        """Serve this connection from now on; an older one is closed."""
        before, self.connection = self.connection, connection
        if before is not None:
            self._forget(before)
            before.abort(RankTaken("the same worker came over a new connection"))
        self.outbox.attach(connection)
        self._paused = False
        connection.on_writable = self._writable

    def _writable(self) -> None:
        self.outbox.pump()
        free = len(self.outbox) <= _MAX_QUEUED // 2 and not self._copies.too_many
        if self._paused and free and self.connection is not None:
            self._paused = False
            self.connection.resume_reading()

    def detach(self) -> None:
        """The connection is gone: the worker will ask again for what it did not get."""
        if self.connection is not None:
            self._forget(self.connection)
            self.connection = None

    def _forget(self, connection: Connection) -> None:
        self.received_before += connection.received
        self.sent_before += connection.sent
        self.outbox.detach()
        self._copies = Copies()
        if self._buffer is not None:
            self.server.pool.give(self._buffer)
        self._buffer = self._rows = self._spec = self._target = None

    # ---- frames ----

    def begin(self, header: Header, table: memoryview) -> memoryview | None:
        """Give a payload a buffer, or answer at once what needs none."""
        try:
            kind = header.kind
            if kind not in _DATA_KINDS:
                raise RemoteProtocolError("a payload where none belongs", got=kind)
            keeper = self._store(header.store)
            if len(self.parked) >= _MAX_PARKED:
                self._check_room(keeper)
            if kind == INIT:
                self._spec = _checked_spec(messages.decode(table), header.payload_bytes)
            elif kind == RESTORE:
                self._range = self._checked_range(
                    keeper, messages.decode(table), header.payload_bytes)
            else:
                target = self._find(keeper, header, table)
                if kind != ASSIGN:
                    keeper.check_push()
                    if keeper.is_replay(target, self.rank, header.clock):
                        self._counted(keeper, target, header)
                        return None
                self._target, self._found_at = target, keeper.changes
        except AsyncPSError as error:
            self._error(header, error)
            return None
        self._buffer = self.server.pool.take(header.payload_bytes)
        return self._buffer.data

    def finish(self, header: Header, table: memoryview) -> None:
        """Carry out a frame."""
        kind = header.kind
        if header.flags & Flag.CODEC and not header.payload_bytes:  # a sparse codec sends nothing
            if self.begin(header, table) is None:
                return
        buffer, self._buffer = self._buffer, None
        if kind == HEARTBEAT:
            return
        try:
            if kind == CONTROL:
                self._control(header, messages.decode(table))
                return
            keeper = self._store(header.store)
            if kind == PUSHPULL or kind == PUSH:
                if buffer is None:
                    raise RemoteProtocolError("a push without a payload")
                target = self._target
                coded = self._described
                if target is None or self._found_at != keeper.changes:
                    # Others' frames have split, joined or grown a slab since `begin`.
                    target = (
                        keeper.find(header, self._rows, header.payload_bytes)
                        if coded is None else encodedrows.find(keeper, header, coded)
                    )
                self._target = None
                value: encoded.Contribution = buffer
                if coded is not None:
                    value = encodedrows.received(target, header, coded, buffer)
                keeper.push(target, self.rank, header, value, self._now())
                self._counted(keeper, target, header)
                if header.payload_bytes <= SMALL_BYTES:
                    self.server.polling.came()
                    self.server.polling.expect()
            elif kind == PULL or kind == WAIT:
                if len(self.parked) >= _MAX_PARKED:
                    self._check_room(keeper)
                table, tail = bases.cut(header, table)
                rows = _rows(header, table) if header.flags else None
                target = keeper.find(header, rows, header.hyper)
                self._wish = bases.wished(keeper, header, target, tail, self.connection)
                keeper.arrived(target, self.rank, header.acked)
                self._pull(keeper, target, header)
            elif kind == INIT and buffer is not None:
                spec, self._spec = self._spec, None
                assert spec is not None
                keeper.init(header.unit, spec, buffer)
                self._ack(header)
            elif kind == INIT:
                described = messages.decode(table)
                if not isinstance(described, TableSpec):
                    raise RemoteProtocolError("INIT without a value")
                keeper.init_table(header.unit, described)
                self._ack(header)
            elif kind == RESTORE and buffer is not None:
                told, self._range = self._range, None
                assert told is not None
                if isinstance(told, messages.Parcel):
                    keeper.parcels.put(self.rank, told, buffer, partial(self._ack, header),
                                       partial(self.refuse, header.request, 0))
                else:
                    saving.write(keeper, told, buffer)
                    self._ack(header)
            elif kind == ASSIGN and buffer is not None:
                target = keeper.find(header, self._rows, header.payload_bytes)
                keeper.assign(target, self.rank, header, buffer, lambda: self._ack(header))
            else:
                raise RemoteProtocolError("a frame that a server does not take", got=kind)
        except AsyncPSError as error:
            self._error(header, error)
        except Exception as failed:
            log.exception("a request of worker %d failed", self.rank)
            self._error(header, AsyncPSError(f"the server failed: {failed!r}"))

    def _find(self, keeper: Keeper, header: Header, table: memoryview) -> Target:
        """Return what a frame with a value speaks of; its payload may be taken into memory."""
        self._described = None
        table, tail = bases.cut(header, table)
        if header.flags & Flag.CODEC:
            described = self._described = encoded.describe(header, table)
            target = encodedrows.find(keeper, header, described)
        else:
            self._rows = _rows(header, table) if header.flags else None
            target = keeper.find(header, self._rows, header.payload_bytes)
        self._wish = bases.wished(keeper, header, target, tail, self.connection)
        return target

    def send(self, frame: Outgoing, *, copied: bool = False) -> None:
        """Queue an answer; without a connection there is nobody who waits for it.

        Whoever comes back asks again. `copied`: it is made of memory of its own.
        """
        if self.connection is not None:
            self.outbox.post(frame)
            if copied:
                self._copies.add(frame)
            if (len(self.outbox) > _MAX_QUEUED or self._copies.too_many) and not self._paused:
                # It asks and does not listen: hear it again when it has taken some answers.
                self._paused = True
                self.connection.pause_reading()

    def refuse(self, request: int, priority: int, error: AsyncPSError) -> None:
        """Answer a request with an error."""
        info = messages.error_to_wire(error, self.server.host)
        table = messages.encode(info)
        header = pack_header(ERROR, 0, 0, 0, request, 0, 0, 0, len(table), 0, 0, 0)
        self.send(Outgoing(priority, [header, table], len(header) + len(table)))

    def _counted(self, keeper: Keeper, target: Target, header: Header) -> None:
        """Answer a push that was counted, now or before."""
        if header.kind != PUSH:
            self._pull(keeper, target, header)
        elif keeper.late_acks:
            self._pull(keeper, target, header._replace(kind=WAIT))
        else:
            self._ack(header)

    def _pull(self, keeper: Keeper, target: Target, header: Header) -> None:
        if not keeper.pull(target, self.rank, header, self, self._wish):
            self.parked.add(header.request)

    def _check_room(self, keeper: Keeper) -> None:
        """Refuse more requests than a worker in its senses has; before anything is counted."""
        most = _MAX_PARKED + 4 * len(keeper.units)
        if len(self.parked) >= most:
            raise RemoteProtocolError("too many requests wait", expected=f"at most {most}")

    def _ack(self, header: Header) -> None:
        frame = pack_header(
            ACK, 0, 0, 0, header.request, header.unit, 0, header.clock, 0, 0, 0, 0
        )
        self.send(Outgoing(header.priority, [frame], len(frame)))

    def _control(self, header: Header, message: AnyMessage) -> None:
        answer: messages.Message
        if isinstance(message, messages.SetHyper):
            self._store(message.store).set_hyper(message)
            answer = messages.Done()
        elif isinstance(message, messages.Missing):
            answer = self._store(message.store).missing(message)
        elif isinstance(message, messages.AskStatistics):
            answer = self._statistics(self._store(message.store))
        elif isinstance(message, messages.AskUnits):
            answer = saving.units(self._store(message.store), message)
        elif isinstance(message, messages.SetClocks):
            saving.set_clocks(self._store(message.store), message)
            answer = messages.Done()
        elif isinstance(message, messages.StateRange):
            self._send_range(header, saving.read(self._store(message.store), message))
            return
        elif isinstance(message, messages.TableRange):
            found = savingrows.read(self._store(message.store), message)
            self._send_range(header, found, copied=True)
            return
        elif isinstance(message, messages.ResetTable):
            savingrows.reset(self._store(message.store), message)
            answer = messages.Done()
        elif isinstance(message, messages.Collect):
            keeper = self._store(message.store)
            if keeper.parcels.collect(
                self.rank, message, keeper.rules.members, partial(self._send_range, header),
                partial(self.refuse, header.request, 0),
            ):
                return
            answer = messages.Done()
        elif isinstance(message, messages.Clocks):
            answer = clocks(self._store(message.store), self.rank, message)
        else:
            raise RemoteProtocolError("a message that a server does not take",
                                      got=type(message).__name__)
        frame = control_frame(answer, header.request, self.server.node.incarnation)
        self.send(Outgoing(1 << 30, [frame], len(frame)))

    def _checked_range(self, keeper: Keeper, told: AnyMessage, size: int) -> _Restored:
        if isinstance(told, messages.Parcel):
            keeper.parcels.check(self.rank, told, size, keeper.rules.members)
        elif isinstance(told, messages.StateRange | messages.TableRows):
            saving.check_range(keeper, told, size)
        else:
            raise RemoteProtocolError("RESTORE without its description", got=type(told).__name__)
        return told

    def _send_range(self, header: Header, view: memoryview, *, copied: bool = False) -> None:
        frame = pack_header(
            DATA, 0, self.server.node.incarnation, 0, header.request, 0, 0, 0, 0, len(view), 0, 0
        )
        self.send(Outgoing(0, [frame, view], len(frame) + len(view)), copied=copied)

    def _statistics(self, keeper: Keeper) -> messages.ServerStatistics:
        ports = [*self.server.ports.values(), *self.server.lanes.values()]
        received, sent, queued = traffic(ports)
        return messages.ServerStatistics(
            received, sent, queued,
            keeper.rules.rounds, len(keeper.units), keeper.value_bytes,
            sum(len(p.parked) for p in ports), dict(keeper.rules.waited_s),
            sum(len(p.outbox) for p in ports), late({0: keeper}, self._now()),
        )

    def _store(self, number: int) -> Keeper:
        keeper = self.server.keepers.get(number)
        if keeper is None:
            raise UnknownKey("no such store on this server", got=number)
        return keeper

    def _error(self, header: Header, error: AsyncPSError) -> None:
        keeper = self.server.keepers.get(header.store)
        key: Any = keeper.name_of(header.unit) if keeper is not None else None
        self.refuse(header.request, header.priority, typed(error, key, self.server.host))


def _checked_spec(spec: AnyMessage, size: int) -> UnitSpec:
    """Refuse an INIT that cannot be right, before anything is made of it."""
    if not isinstance(spec, UnitSpec):
        raise RemoteProtocolError("INIT without its description", got=type(spec).__name__)
    itemsize = dtypes.by_name(spec.dtype).itemsize
    rows = len(spec.sizes)
    if (
        not rows or rows != len(spec.keys) or rows > MAX_ROWS or (rows != 1 and not spec.slab)
        or not 0 <= spec.first_row <= MAX_ROWS - rows
        or any(part <= 0 or part % itemsize for part in spec.sizes) or sum(spec.sizes) != size
    ):
        raise RemoteProtocolError("INIT that does not describe its payload", key=spec.keys[0]
                                  if spec.keys else None, got=size)
    return spec


def _rows(header: Header, table: memoryview) -> Any:
    if header.flags & Flag.CODEC:
        raise RemoteProtocolError("a codec where none belongs", got=header.kind)
    if header.flags & Flag.IDS:
        return named_rows.parse(table)
    if not header.flags & Flag.ROWS:
        return None
    if header.table_bytes % 4 or not 0 < header.table_bytes <= 4 * MAX_ROWS:
        raise RemoteProtocolError("rows are u32", got=header.table_bytes)
    rows: list[int] = np.frombuffer(table, "<u4").tolist()
    return rows
