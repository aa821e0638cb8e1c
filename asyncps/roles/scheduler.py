"""The scheduler: where everybody meets. All that it decides is decided in `state.scheduling`."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Any

from asyncps.config import Config
from asyncps.errors import AsyncPSError, RemoteProtocolError
from asyncps.protocol import messages
from asyncps.protocol.frames import Header, Kind
from asyncps.protocol.handshake import Hello
from asyncps.roles.node import Spawn, refuse_open_door
from asyncps.state.groups import Groups
from asyncps.state.scheduling import Close, Instruction, Log, SchedulerState, Send, Stop
from asyncps.transport.connection import Connection
from asyncps.transport.network import Listening, Network
from asyncps.transport.request import control_frame, heartbeat_frame
from asyncps.transport.tcp import Address, parse_address, set_user_timeout

log = logging.getLogger(__name__)

# How often time is told to the state machine.
_TICK_S = 0.25


class Scheduler:
    """The scheduler of one job.

    Args:
        config: The settings; `bind` is where it listens, by default its own address.
        network: How it is reached.
        spawn: Starts a named task in the task group that owns this role.
        decides: Makes the state machine: a job's, or `Groups`, which serves one after another.

    Attributes:
        port: Where it listens, once started.
        tell: Says a line to whoever started this role.
    """

    def __init__(
        self, config: Config, network: Network, spawn: Spawn,
        decides: type[SchedulerState] | type[Groups] = SchedulerState,
    ) -> None:
        self.config = config
        self.port = 0
        self.tell: Callable[[str], None] = lambda text: None
        self._network = network
        self._spawn = spawn
        self._loop = asyncio.get_running_loop()
        self._decides = decides
        self._state = decides(config, self._loop.time())
        self._sinks: dict[int, _Sink] = {}
        self._next = 1
        self._listening: Listening | None = None
        self._stopped = asyncio.Event()
        self.quiet = False  # the process ends that all of this is in: no news any more
        self._error: AsyncPSError | None = None

    async def start(self) -> None:
        """Listen.

        Raises:
            TransportError: The address cannot be used.
        """
        address = parse_address(self.config.bind or self.config.scheduler, 9091)
        refuse_open_door(address.host, self.config.token)
        self._listening = await self._network.listen(
            self._accept, address, self.config.handshake_s
        )
        self.port = self._listening.port
        if not address.port:  # errors are to name a port that can be found
            found = parse_address(self.config.scheduler)
            place = str(Address(found.host, self.port, self.port))
            if not self._network.has_sockets:
                place = ""  # nobody can go there
            self._state = self._decides(self.config.replace(scheduler=place), self._loop.time())
        self._spawn(self._tick(), "ticks of the scheduler")

    async def run(self) -> None:
        """Serve until the job ends.

        Raises:
            AsyncPSError: Why the job did not end well.
        """
        await self._stopped.wait()
        if self._error is not None:
            raise self._error

    async def close(self) -> None:
        """Stop listening and close every connection."""
        self._stopped.set()
        if self._listening is not None:
            self._listening.close()
        for sink in list(self._sinks.values()):
            sink.connection.close()

    def sockets(self) -> list[Any]:
        """Return the sockets of all connections and where it listens, for a forked child."""
        found = [sink.connection.socket() for sink in self._sinks.values()]
        listening = [] if self._listening is None else self._listening.sockets()
        return [sock for sock in (*listening, *found) if sock is not None]

    def status(self) -> messages.JobStatus:
        """Return the job as it is known now."""
        return self._state.status(self._loop.time())

    # ---- connections ----

    def connection_ready(self, connection: Connection) -> _Sink:
        """Number a proven connection."""
        if self._listening is not None:
            self._listening.proven(connection)
        number, self._next = self._next, self._next + 1
        sink = self._sinks[number] = _Sink(self, number, connection)
        sock = connection.socket()
        if sock is not None:
            set_user_timeout(sock, self.config.host_dead_s)
        assert connection.peer is not None
        self._carry_out(self._state.opened(number, connection.peer.role, self._loop.time()))
        return sink

    def connection_closed(self, connection: Connection, error: AsyncPSError) -> None:
        """Tell the state machine that a link is gone."""
        if self._listening is not None:
            self._listening.proven(connection)
        for number, sink in list(self._sinks.items()):
            if sink.connection is connection:
                del self._sinks[number]
                self._carry_out(self._state.closed(number, self._loop.time()))

    def _accept(self) -> Connection:
        hello = Hello("scheduler", 0, 1, self.config.job, b"")
        return Connection(self, hello, self.config.token, connector=False)

    # ---- events and instructions ----

    def received(self, link: int, header: Header, table: memoryview) -> None:
        """Give a frame to the state machine."""
        now = self._loop.time()
        if header.kind == Kind.HEARTBEAT:
            self._carry_out(self._state.heard(link, now))
        elif header.kind == Kind.CONTROL:
            message = messages.decode(table)
            self._carry_out(
                self._state.received(link, header.request, header.acked, message, now)
            )
        else:
            raise RemoteProtocolError("a frame that a scheduler does not take", got=header.kind)

    def _carry_out(self, instructions: Sequence[Instruction]) -> None:
        for instruction in instructions:
            if isinstance(instruction, Send):
                sink = self._sinks.get(instruction.link)
                if sink is not None and sink.connection.ready:
                    if sink.observes and not sink.connection.writable:
                        sink.connection.abort()  # it asks and does not read: no memory for that
                        continue
                    frame = control_frame(instruction.message, instruction.request, 0)
                    sink.connection.send([frame], len(frame))
            elif isinstance(instruction, Close):
                sink = self._sinks.get(instruction.link)
                if sink is not None:
                    log.info("closing %s: %s", sink.connection.describe(), instruction.reason)
                    sink.connection.close()
            elif isinstance(instruction, Log):
                if not self.quiet:
                    log.log(instruction.level, "%s", instruction.text)
                if instruction.told:
                    self.tell(instruction.text)
            elif isinstance(instruction, Stop):
                self._error = instruction.error
                self._stopped.set()

    async def _tick(self) -> None:
        frame = heartbeat_frame(0)
        beat = self._loop.time()
        period = min(_TICK_S, self.config.heartbeat_s / 2)
        while not self._stopped.is_set():
            await asyncio.sleep(period)
            now = self._loop.time()
            if now - beat >= self.config.heartbeat_s:
                beat = now
                for sink in list(self._sinks.values()):
                    if sink.connection.ready and not sink.observes:
                        sink.connection.send([frame], len(frame))
            self._carry_out(self._state.tick(now))


class _Sink:
    """The frames of one connection."""

    def __init__(self, scheduler: Scheduler, number: int, connection: Connection) -> None:
        self._scheduler = scheduler
        self._number = number
        self.connection = connection
        self.observes = connection.peer is not None and connection.peer.role == "observer"

    def begin(self, header: Header, table: memoryview) -> memoryview | None:
        """There are no payloads here."""
        raise RemoteProtocolError("a payload for the scheduler", got=header.payload_bytes)

    def finish(self, header: Header, table: memoryview) -> None:
        """Take a control message."""
        self._scheduler.received(self._number, header, table)
