"""The server: keeps units, adds what workers push, answers when a round is complete.

It listens for workers; each has a port here that outlives its connections. What a frame means is
carried out by `keeper`; this module moves bytes and errors.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable
from functools import partial

from asyncps.config import Config
from asyncps.errors import (
    AsyncPSError,
    RemoteProtocolError,
    StaleIncarnation,
)
from asyncps.protocol import messages
from asyncps.protocol.frames import ACK, DATA, HEADER_SIZE
from asyncps.protocol.handshake import LANE
from asyncps.protocol.messages import AnyMessage, Attendance, Gone, Install, Members
from asyncps.roles import reporting
from asyncps.roles.attendance import attend, expel
from asyncps.roles.dropping import drop
from asyncps.roles.keeper import Keeper
from asyncps.roles.node import Node, Spawn
from asyncps.roles.port import WorkerPort
from asyncps.roles.tableunit import RowsWaiter
from asyncps.roles.uneven import note_parted
from asyncps.roles.unit import Waiter
from asyncps.roles.workshop import Workshop
from asyncps.tensor.pool import Pool
from asyncps.transport.connection import Connection
from asyncps.transport.network import Listening, Network
from asyncps.transport.outbox import Outgoing
from asyncps.transport.polling import Polling
from asyncps_ext import wire

log = logging.getLogger(__name__)

pack_header: Callable[..., bytes] = wire.pack_header

# Transit memory that is kept beside what the values need: one chunk for each of 32 workers.
_POOL_BYTES = 32 << 20

# The scheduler repeats only what is unanswered, which is a few at a time.
_KEPT_INSTALLS = 1024



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
        self.node.report = self.report
        self.metrics_port = 0  # where they are served, if they are
        self.pool = Pool(_POOL_BYTES)
        self.workshop = Workshop()
        self.keepers: dict[int, Keeper] = {}
        self.ports: dict[int, WorkerPort] = {}
        self.lanes: dict[int, WorkerPort] = {}
        self.incarnations: dict[int, int] = {}
        self.gone = 0  # ranks that have left, one bit each
        self.host = socket.gethostname()
        self.polling = Polling(config.poll_us * 1e-6)
        # Answers by the scheduler's number; None while an order is being carried out.
        self._installed: dict[int, messages.Message | None] = {}
        self._listening: Listening | None = None

    async def start(self) -> None:
        """Reach the scheduler, listen, join, and wait until everybody is there.

        Raises:
            AsyncPSError: It names what went wrong.
        """
        local = await self.node.reach_scheduler()
        advertised, self._listening = await self.node.listen(self._accept, local)
        await self.node.join(advertised, self._listening.port)
        self.host = f"server {self.node.rank} on {self.host}"

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
        await self.workshop.close()

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
                m.rank: m.incarnation for m in message.members
                if m.role == "worker" and not self.gone >> m.rank & 1
            }
            self.node.complete()
            self.node.link.tell(messages.Prepared(), self.node.incarnation)
            return True
        if isinstance(message, messages.Left):
            for keeper in self.keepers.values():
                note_parted(keeper, keeper.rules.members & 1 << message.rank)
            self.left(message.rank)
            return True
        if isinstance(message, Gone):
            self.incarnations.pop(message.rank, None)
            expel(message.rank, self.ports, self.lanes)
            self.left(message.rank)
            return True
        if isinstance(message, Install | Attendance):
            if request in self._installed:  # after a cut the scheduler may tell it again
                answer = self._installed[request]
                if answer is not None:
                    self.node.link.tell(answer, self.node.incarnation, request)
                return True
            self._installed[request] = None
            while len(self._installed) > _KEPT_INSTALLS:
                del self._installed[next(iter(self._installed))]
            try:
                self.install(message, partial(self._obeyed, request, messages.Done()))
            except AsyncPSError as error:
                self._obeyed(request, messages.error_to_wire(error, self.host))
            return True
        return False

    def _obeyed(self, request: int, answer: messages.Message) -> None:
        self._installed[request] = answer
        self.node.link.tell(answer, self.node.incarnation, request)

    def report(self) -> messages.Report:
        """Say how this server is."""
        return reporting.of_server(self, asyncio.get_running_loop().time(), self.metrics_port)

    def left(self, rank: int) -> None:
        """A worker has left for good: rounds no longer wait for it."""
        self.gone |= 1 << rank
        for keeper in self.keepers.values():
            keeper.left(rank)

    def install(self, message: Install | Attendance, done: Callable[[], None]) -> None:
        """Open a store, give it an optimizer, forget it, or tell it whom to wait for.

        `done` is called when it is so, which is at once as a rule.
        """
        if isinstance(message, Install) and message.dropped:
            keeper = self.keepers.pop(message.store, None)
            if keeper is not None:
                note_parted(keeper, keeper.rules.members)
                drop(keeper)
            done()
            return
        keeper = self.keepers.get(message.store)
        if isinstance(message, Attendance):
            if keeper is None:
                done()
            else:
                attend(keeper, message.rank, self._members, done, closed=message.closed)
            return
        if keeper is None:
            self.keepers[message.store] = Keeper(
                message, self._members(), self.pool, self.answer, self.workshop
            )
        else:
            keeper.install(message)
        done()

    def _members(self) -> int:
        return ((1 << self.node.num_workers) - 1) & ~self.gone

    # ---- answers ----

    def answer(self, waiter: Waiter) -> None:
        """Send the answer of a waiter that has all its parts."""
        port: WorkerPort = waiter.port or self.ports[waiter.rank]
        if port.parked:
            port.parked.discard(waiter.request)
        if waiter.error is not None:
            port.refuse(waiter.request, waiter.priority, waiter.error)
            return
        wish = waiter.wish
        if wish is not None and not wish.may_go(port.connection):
            return  # its worker has come back, and asks again
        parts = waiter.parts if waiter.data else []
        size = len(parts[0]) if len(parts) == 1 else sum(map(len, parts))
        header = pack_header(
            DATA if waiter.data else ACK, 0 if wish is None else wish.flag,
            self.node.incarnation, 0, waiter.request, waiter.unit, 0, waiter.clock, 0, size, 0, 0,
        )
        frame = Outgoing(waiter.priority, [header, *parts], HEADER_SIZE + size)
        port.send(frame, copied=isinstance(waiter, RowsWaiter))
