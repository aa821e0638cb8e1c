"""The server: keeps units, adds what workers push, answers when a round is complete.

It listens for workers; each has a port here that outlives its connections. What a frame means is
carried out by `keeper`; this module moves bytes and errors.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable
from typing import Any

import numpy as np

from asyncps.config import Config
from asyncps.errors import (
    AsyncPSError,
    ConfigError,
    RankTaken,
    RemoteProtocolError,
    StaleIncarnation,
    UnknownKey,
)
from asyncps.protocol import messages
from asyncps.protocol.frames import Flag, Header, Kind
from asyncps.protocol.handshake import LANE
from asyncps.protocol.messages import AnyMessage, Install, Members, UnitSpec
from asyncps.roles.keeper import Keeper, Target, typed
from asyncps.roles.node import Node, Spawn
from asyncps.roles.unit import Waiter
from asyncps.tensor.pool import Bytes, Pool
from asyncps.transport.connection import Connection
from asyncps.transport.link import control_frame
from asyncps.transport.network import Listening, Network
from asyncps.transport.outbox import Outbox, Outgoing
from asyncps.transport.tcp import Address, is_loopback, parse_address
from asyncps_ext import wire

log = logging.getLogger(__name__)

pack_header: Callable[..., bytes] = wire.pack_header

# Transit memory that is kept beside what the values need: one chunk for each of 64 workers.
_POOL_BYTES = 32 << 20

# Requests of one worker that may wait for rounds; each is a few hundred bytes of ours.
_MAX_PARKED = 1 << 16

# The scheduler repeats only what is unanswered, which is a few at a time.
_KEPT_INSTALLS = 1024

_DATA_KINDS = frozenset({Kind.PUSH, Kind.PUSHPULL, Kind.INIT, Kind.ASSIGN})


class Server:
    """One server of a cluster.

    Args:
        config: The settings of this process.
        network: How to reach the others.
        spawn: Starts a named task in the task group that owns this role.
    """

    def __init__(self, config: Config, network: Network, spawn: Spawn) -> None:
        self.config = config
        self.node = Node(config, "server", network, spawn)
        self.node.on_message = self._take
        self.pool = Pool(_POOL_BYTES)
        self.keepers: dict[int, Keeper] = {}
        self.ports: dict[int, WorkerPort] = {}
        self.lanes: dict[int, WorkerPort] = {}
        self.incarnations: dict[int, int] = {}
        self.gone = 0  # ranks that have left, one bit each
        self.host = socket.gethostname()
        self._installed: dict[int, messages.Message] = {}  # answers by the scheduler's number
        self._listening: Listening | None = None

    async def start(self) -> None:
        """Reach the scheduler, listen, join, and wait until everybody is there.

        Raises:
            AsyncPSError: It names what went wrong.
        """
        local = await self.node.reach_scheduler()
        advertised = self.node.advertised(local)
        bind = parse_address(self.config.bind) if self.config.bind else Address(advertised, 0, 0)
        if local:
            refuse_open_door(bind.host, self.config.token)
        self._listening = await self.node.network.listen(
            self._accept, bind, self.config.handshake_s
        )
        await self.node.join(advertised, self._listening.port)

    async def run(self) -> None:
        """Serve until the job ends.

        Raises:
            AsyncPSError: Why the cluster could not go on.
        """
        await self.node.shutdown.wait()
        if self.node.failure is not None:
            raise self.node.failure

    async def close(self) -> None:
        """Leave and close every connection."""
        if self._listening is not None:
            self._listening.close()
        for port in (*self.ports.values(), *self.lanes.values()):
            if port.connection is not None:
                port.connection.close()
        await self.node.leave()

    # ---- connections ----

    def connection_ready(self, connection: Connection) -> WorkerPort:
        """Give a worker its port, if it is who the scheduler says."""
        peer = connection.peer
        assert peer is not None
        if self._listening is not None:
            self._listening.proven(connection)
        if peer.role != "worker":
            raise RemoteProtocolError("only workers come here", got=peer.role)
        if self.incarnations.get(peer.rank) != peer.incarnation:
            raise StaleIncarnation("not the worker that the scheduler knows", rank=peer.rank,
                                   expected=self.incarnations.get(peer.rank), got=peer.incarnation)
        ports = self.lanes if peer.features & LANE else self.ports
        port = ports.get(peer.rank)
        if port is None:
            port = ports[peer.rank] = WorkerPort(self, peer.rank)
        port.attach(connection)
        return port

    def connection_closed(self, connection: Connection, error: AsyncPSError) -> None:
        """A worker's connection is gone; it may come back."""
        if self._listening is not None:
            self._listening.proven(connection)
        if connection.peer is None:
            return
        for ports in (self.ports, self.lanes):
            port = ports.get(connection.peer.rank)
            if port is not None and port.connection is connection:
                port.detach()

    def _accept(self) -> Connection:
        return Connection(self, self.node.hello(), self.config.token, connector=False)

    # ---- the scheduler ----

    def _take(self, message: AnyMessage, request: int) -> bool:
        if isinstance(message, Members):
            self.incarnations = {
                m.rank: m.incarnation for m in message.members if m.role == "worker"
            }
            self.node.complete()
            self.node.link.tell(messages.Prepared(), self.node.incarnation)
            return True
        if isinstance(message, messages.Left):
            self.left(message.rank)
            return True
        if isinstance(message, Install):
            answer = self._installed.get(request)
            if answer is None:  # after a cut the scheduler may tell it again
                answer = messages.Done()
                try:
                    self.install(message)
                except AsyncPSError as error:
                    answer = messages.error_to_wire(error, self.host)
                self._installed[request] = answer
                while len(self._installed) > _KEPT_INSTALLS:
                    del self._installed[next(iter(self._installed))]
            self.node.link.tell(answer, self.node.incarnation, request)
            return True
        return False

    def left(self, rank: int) -> None:
        """A worker has left for good: rounds no longer wait for it."""
        self.gone |= 1 << rank
        for keeper in self.keepers.values():
            keeper.left(rank)

    def install(self, message: Install) -> None:
        """Open a store, or give it an optimizer."""
        members = ((1 << self.node.num_workers) - 1) & ~self.gone
        keeper = self.keepers.get(message.store)
        if keeper is None:
            self.keepers[message.store] = Keeper(message, members, self.pool, self.answer)
        else:
            keeper.install(message)

    # ---- answers ----

    def answer(self, waiter: Waiter) -> None:
        """Send the answer of a waiter that has all its parts."""
        port: WorkerPort = waiter.port or self.ports[waiter.rank]
        port.parked.discard(waiter.request)
        if waiter.error is not None:
            port.refuse(waiter.request, waiter.priority, waiter.error)
            return
        parts = waiter.parts
        size = sum(map(len, parts)) if waiter.data else 0
        kind = Kind.DATA if waiter.data else Kind.ACK
        header = pack_header(
            kind, 0, self.node.incarnation, 0, waiter.request, waiter.unit, 0, waiter.clock, 0,
            size, 0, 0,
        )
        if waiter.data:
            port.send(Outgoing(waiter.priority, [header, *parts], len(header) + size))
        else:
            port.send(Outgoing(waiter.priority, [header], len(header)))


class WorkerPort:
    """One worker as the server sees it: takes its frames, queues its answers."""

    def __init__(self, server: Server, rank: int) -> None:
        self.server = server
        self.rank = rank
        self.connection: Connection | None = None
        self.outbox = Outbox()
        self.parked: set[int] = set()  # by number: a request that comes again is still one
        self.received_before = 0
        self.sent_before = 0
        self._now = asyncio.get_running_loop().time
        self._buffer: Bytes | None = None
        self._rows: list[int] | None = None
        self._spec: UnitSpec | None = None

    def attach(self, connection: Connection) -> None:
        """Serve this connection from now on; an older one is closed."""
        before, self.connection = self.connection, connection
        if before is not None:
            self._forget(before)
            before.abort(RankTaken("the same worker came over a new connection"))
        self.outbox.attach(connection)

    def detach(self) -> None:
        """The connection is gone: the worker will ask again for what it did not get."""
        if self.connection is not None:
            self._forget(self.connection)
            self.connection = None

    def _forget(self, connection: Connection) -> None:
        self.received_before += connection.received
        self.sent_before += connection.sent
        self.outbox.detach()
        if self._buffer is not None:
            self.server.pool.give(self._buffer)
        self._buffer = self._rows = self._spec = None

    # ---- frames ----

    def begin(self, header: Header, table: memoryview) -> memoryview | None:
        """Give a payload a buffer, or answer at once what needs none."""
        try:
            if header.kind not in _DATA_KINDS:
                raise RemoteProtocolError("a payload where none belongs", got=header.kind)
            keeper = self._keeper(header)
            if header.kind == Kind.INIT:
                spec = messages.decode(table)
                if not isinstance(spec, UnitSpec) or sum(spec.sizes) != header.payload_bytes:
                    raise RemoteProtocolError("INIT that does not describe its payload")
                self._spec = spec
            else:
                self._rows = _rows(header, table)
                target = keeper.find(header, self._rows, header.payload_bytes)
                if header.kind != Kind.ASSIGN and keeper.is_replay(target, self.rank, header.clock):
                    self._counted(keeper, target, header)
                    return None
        except AsyncPSError as error:
            self._error(header, error)
            return None
        self._buffer = self.server.pool.take(header.payload_bytes)
        return self._buffer.data

    def finish(self, header: Header, table: memoryview) -> None:
        """Carry out a frame."""
        buffer, self._buffer = self._buffer, None
        kind = header.kind
        if kind == Kind.HEARTBEAT:
            return
        try:
            if kind == Kind.CONTROL:
                self._control(header, messages.decode(table))
                return
            keeper = self._keeper(header)
            if kind == Kind.PUSHPULL or kind == Kind.PUSH:
                if buffer is None:
                    raise RemoteProtocolError("a push without a payload")
                # Not what `begin` found: others' frames may have split or joined the slab since.
                target = keeper.find(header, self._rows, header.payload_bytes)
                keeper.push(target, self.rank, header, buffer, self._now())
                self._counted(keeper, target, header)
            elif kind == Kind.PULL or kind == Kind.WAIT:
                self._pull(keeper, keeper.find(header, _rows(header, table), header.hyper), header)
            elif kind == Kind.INIT and buffer is not None:
                spec, self._spec = self._spec, None
                assert spec is not None
                keeper.init(header.unit, spec, buffer)
                self._ack(header)
            elif kind == Kind.ASSIGN and buffer is not None:
                target = keeper.find(header, self._rows, header.payload_bytes)
                keeper.assign(target, header.clock, buffer)
                self._ack(header)
            else:
                raise RemoteProtocolError("a frame that a server does not take", got=kind)
        except AsyncPSError as error:
            self._error(header, error)

    def send(self, frame: Outgoing) -> None:
        """Queue an answer; without a connection there is nobody who waits for it.

        Whoever comes back asks again.
        """
        if self.connection is not None:
            self.outbox.post(frame)

    def refuse(self, request: int, priority: int, error: AsyncPSError) -> None:
        """Answer a request with an error."""
        info = messages.error_to_wire(error, self.server.host)
        table = messages.encode(info)
        header = pack_header(Kind.ERROR, 0, 0, 0, request, 0, 0, 0, len(table), 0, 0, 0)
        self.send(Outgoing(priority, [header, table], len(header) + len(table)))

    def _counted(self, keeper: Keeper, target: Target, header: Header) -> None:
        """Answer a push that was counted, now or before."""
        if header.kind == Kind.PUSH:
            self._ack(header)
        else:
            self._pull(keeper, target, header)

    def _pull(self, keeper: Keeper, target: Target, header: Header) -> None:
        if len(self.parked) >= _MAX_PARKED:
            raise RemoteProtocolError("too many requests wait", expected=f"at most {_MAX_PARKED}")
        self.parked.add(header.request)
        keeper.pull(target, self.rank, header, self)

    def _ack(self, header: Header) -> None:
        frame = pack_header(
            Kind.ACK, 0, 0, 0, header.request, header.unit, 0, header.clock, 0, 0, 0, 0
        )
        self.send(Outgoing(header.priority, [frame], len(frame)))

    def _control(self, header: Header, message: AnyMessage) -> None:
        answer: messages.Message
        if isinstance(message, messages.SetHyper):
            self._store(message.store).set_hyper(message)
            answer = messages.Done()
        elif isinstance(message, messages.Missing):
            answer = messages.MissingRanks(self._store(message.store).missing(message))
        elif isinstance(message, messages.AskStatistics):
            answer = self._statistics(self._store(message.store))
        else:
            raise RemoteProtocolError("a message that a server does not take",
                                      got=type(message).__name__)
        frame = control_frame(answer, header.request, self.server.node.incarnation)
        self.send(Outgoing(1 << 30, [frame], len(frame)))

    def _statistics(self, keeper: Keeper) -> messages.ServerStatistics:
        ports = [*self.server.ports.values(), *self.server.lanes.values()]
        live = [port.connection for port in ports if port.connection is not None]
        return messages.ServerStatistics(
            sum(p.received_before for p in ports) + sum(c.received for c in live),
            sum(p.sent_before for p in ports) + sum(c.sent for c in live),
            sum(p.outbox.queued_bytes for p in ports),
            keeper.rules.rounds, len(keeper.units), keeper.value_bytes,
            sum(len(p.parked) for p in ports), dict(keeper.rules.waited_s),
        )

    def _keeper(self, header: Header) -> Keeper:
        return self._store(header.store)

    def _store(self, number: int) -> Keeper:
        keeper = self.server.keepers.get(number)
        if keeper is None:
            raise UnknownKey("no such store on this server", got=number)
        return keeper

    def _error(self, header: Header, error: AsyncPSError) -> None:
        keeper = self.server.keepers.get(header.store)
        key: Any = keeper.name_of(header.unit) if keeper is not None else None
        self.refuse(header.request, header.priority, typed(error, key, self.server.host))


def _rows(header: Header, table: memoryview) -> list[int] | None:
    if not header.flags & Flag.ROWS:
        return None
    if header.table_bytes % 4 or not header.table_bytes:
        raise RemoteProtocolError("rows are u32", got=header.table_bytes)
    rows: list[int] = np.frombuffer(table, "<u4").tolist()
    return rows


def refuse_open_door(host: str, token: str) -> None:
    """Refuse to listen beyond loopback without a token.

    Raises:
        ConfigError: It says what to set.
    """
    if not token and not is_loopback(host):
        raise ConfigError(
            f"listening on {host} without a token would let anybody in",
            expected="ASYNCPS_TOKEN, or a loopback address",
        )
