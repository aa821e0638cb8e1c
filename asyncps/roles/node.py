"""What a server and a worker have in common: the way to the scheduler, and life beside it.

A node connects, joins, hears who the others are, says once a second that it lives, and fails as a
whole when the scheduler declares somebody lost or is lost itself.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Callable
from typing import Any

from asyncps.config import Config
from asyncps.errors import (
    LOST_BY_ROLE,
    AsyncPSError,
    ClosedError,
    ClusterError,
    ConfigError,
    RendezvousTimeout,
    SchedulerLost,
    StaleIncarnation,
)
from asyncps.protocol import messages
from asyncps.protocol.handshake import Hello
from asyncps.protocol.messages import (
    AnyMessage,
    ErrorInfo,
    Gone,
    Join,
    Joined,
    Lost,
    Member,
    Members,
    Shutdown,
)
from asyncps.roles.machine import machine_id, place_on_machine
from asyncps.transport.connection import Connection
from asyncps.transport.link import Link
from asyncps.transport.network import Listening, Network
from asyncps.transport.request import control_frame, heartbeat_frame
from asyncps.transport.tcp import Address, interface_address, is_loopback, parse_address

log = logging.getLogger(__name__)

_SOON_S = 1.5  # a scheduler that is not there yet, or a job that is over, needs no word before

Spawn = Callable[[Any, str], None]

# A loop that was this late was starved itself: it reads its sockets before it judges others.
LATE_S = 1.0


class Node:
    """One server's or worker's place in the cluster.

    Args:
        config: The settings of this process.
        role: "server" or "worker".
        network: How to reach the others.
        spawn: Starts a named task in the task group that owns this node.

    Attributes:
        rank: Once joined.
        incarnation: Once joined.
        members: Everybody, once the cluster is complete.
        failure: Why the cluster cannot go on, if so.
        gone: Workers that are lost while the job goes on, by rank.
        ending: What it says instead of a goodbye, if whoever reaps it says how it has ended.
        report: Makes what this node says of itself when an observer asks.
    """

    def __init__(self, config: Config, role: str, network: Network, spawn: Spawn) -> None:
        self.config = config
        self.role = role
        self.network = network
        self.spawn = spawn
        self.rank = -1 if config.rank is None else config.rank
        self.incarnation = 0
        self.members: list[Member] = []
        self.num_workers = config.num_workers
        self.num_servers = config.num_servers
        self.failure: AsyncPSError | None = None
        self.gone: dict[int, Gone] = {}
        self._greeting = 0  # the number of the last join on a new connection
        self.on_failure: list[Callable[[AsyncPSError], None]] = []
        self.on_message: Callable[[AnyMessage, int], bool] = lambda message, request: False
        self.report: Callable[[], messages.Report] | None = None
        self.shutdown = asyncio.Event()
        self.ending: messages.Ending | None = None
        self._complete = asyncio.Event()
        self._place = ("", 0)
        self._leaving = False
        self._ended = False  # the scheduler has said that the job is over
        self._down_since: float | None = None
        self._down_reason = ""
        self._warned = False
        self._address = parse_address(config.scheduler, 9091)
        self.link = Link(
            "the scheduler", self._dial, self._take, spawn, greet=self._greet,
            on_down=self._went_down, on_refused=self.fail, handshake_s=config.handshake_s,
        )

    # ---- the walk in ----

    async def reach_scheduler(self) -> str:
        """Connect to the scheduler; return the local address of that socket.

        Raises:
            RendezvousTimeout: It could not be reached within the deadline.
            HandshakeError: It does not want us.
        """
        if self.network.has_sockets:
            log.info("looking for the scheduler at %s", self._address)
        try:
            async with asyncio.timeout(self.config.rendezvous_s):
                connection = await self.link.wait_connected()
        except TimeoutError:
            raise RendezvousTimeout(
                f"the scheduler at {self._address} could not be reached within "
                f"{self.config.rendezvous_s:g} s: {self._down_reason or 'no answer'}"
            ) from None
        return connection.local_host()

    async def join(self, host: str = "", port: int = 0) -> None:
        """Become a member and wait until everybody is there.

        Args:
            host: The address to tell the others, for a server.
            port: The port, likewise.

        Raises:
            AsyncPSError: The scheduler refused, or told why the cluster will not start.
        """
        self._place = (host, port)
        try:
            # The scheduler's own deadline comes first and names who is missing.
            async with asyncio.timeout(self.config.rendezvous_s + self.config.answer_s):
                answer = await self.link.ask(self._join_message(), 0)
                assert isinstance(answer, Joined)
                self.rank, self.incarnation = answer.rank, answer.incarnation
                self.num_workers, self.num_servers = answer.num_workers, answer.num_servers
                self._compare(answer)
                log.info("joined as %s %d; waiting until everybody is there", self.role, self.rank)
                self.spawn(self._beat(), f"heartbeats of {self.role} {self.rank}")
                await self._complete.wait()
        except TimeoutError:
            raise RendezvousTimeout("the scheduler did not say that everybody is there") from None
        if self.failure is not None:
            raise self.failure

    def _compare(self, joined: Joined) -> None:
        """The scheduler's counts hold; other ones were meant for another job, or are old."""
        for name in ("num_workers", "num_servers"):
            mine, theirs = getattr(self.config, name), getattr(joined, name)
            if mine not in (theirs, 1):  # 1 is the default: nothing was said
                log.warning("%s %d was told %s=%d, and the scheduler %d, which counts", self.role,
                            self.rank, name, mine, theirs)

    def hello(self) -> Hello:
        """What this node says of itself on a new connection."""
        return Hello(self.role, self.rank, self.incarnation, self.config.job, b"")

    def advertised(self, local_host: str) -> str:
        """Return the address to tell the others."""
        if self.config.advertise:
            return self.config.advertise
        if self.config.interface:
            return interface_address(self.config.interface)
        return local_host

    async def listen(
        self, accept: Callable[[], Connection], local_host: str
    ) -> tuple[str, Listening]:
        """Listen; return the host to tell the others, and the place.

        Args:
            accept: Makes what takes a connection.
            local_host: What `reach_scheduler` has returned; "" in memory.

        Raises:
            ConfigError: Anybody could come in.
            TransportError: The address cannot be used.
        """
        advertised = self.advertised(local_host)
        bind = parse_address(self.config.bind) if self.config.bind else Address(advertised, 0, 0)
        if local_host:
            refuse_open_door(bind.host, self.config.token)
        return advertised, await self.network.listen(accept, bind, self.config.handshake_s)

    @property
    def local_rank(self) -> int:
        """This worker's number on its machine: as the launcher says, else by rank there."""
        told = self.config.local_rank
        return place_on_machine(self.members, self.rank)[0] if told is None else told

    async def ask(self, message: messages.Message) -> AnyMessage:
        """Ask the scheduler; there is no deadline but the cluster's life.

        Raises:
            AsyncPSError: The answer is an error, or the cluster failed meanwhile.
        """
        if self.failure is not None:
            raise self.failure
        return await self.link.ask(message, self.incarnation)

    # ---- the ways out ----

    async def leave(self) -> None:
        """Say goodbye, once, and close."""
        if self._leaving:
            return
        self._leaving = True
        if self.failure is None and self.incarnation and not self._ended:
            # A connection that is cut just now comes back, or else the scheduler is gone.
            connected = self.link.connection is not None
            limit_s = self.config.answer_s if connected else self.config.reconnect_s
            try:
                async with asyncio.timeout(min(5.0, limit_s)):
                    await self.link.ask(self.ending or messages.Leave(), self.incarnation)
                if self.ending is not None:
                    self._stay_connected()
            except (TimeoutError, AsyncPSError) as error:
                log.debug("leaving without an answer: %s", error)
        self.link.close()
        self.link.fail(ClosedError("closed"))

    def _stay_connected(self) -> None:
        """Have the connection to the scheduler end with the process, which may still take a while.

        Nobody uses the copy of its socket: the system closes it.
        """
        connection = self.link.connection
        sock = connection.socket() if connection is not None else None
        if sock is not None:
            os.dup(sock.fileno())

    def abandon(self) -> None:
        """Close without a goodbye; the scheduler will take us for lost."""
        self._leaving = True
        self.link.kill(ClosedError("closed"))

    def fail(self, error: AsyncPSError) -> None:
        """The cluster cannot go on: everything that waits hears of it, once."""
        if self.failure is not None or self._leaving or self._ended:
            return
        self.failure = error
        self._complete.set()
        self.link.fail(error)
        for callback in list(self.on_failure):
            callback(error)
        self.shutdown.set()

    # ---- the scheduler's side ----

    async def _dial(self, link: Link) -> Connection:
        return await self.network.connect(
            lambda: Connection(link, self.hello(), self.config.token, connector=True),
            self._address.host, self._address.port, self.config.host_dead_s,
        )

    def _join_message(self) -> Join:
        rank = None if self.rank < 0 else self.rank
        host, port = self._place
        return Join(
            self.role, rank, self.incarnation, host, port, socket.gethostname(), os.getpid(),
            machine_id(), self.config.num_workers,
        )

    def _greet(self) -> bytes | None:
        self._down_since = None
        if not self.incarnation:
            return None
        self._greeting = self.link.number()
        return control_frame(
            self._join_message(), self._greeting, self.incarnation, self.link.oldest
        )

    def _went_down(self, error: AsyncPSError) -> None:
        now = asyncio.get_running_loop().time()
        self._down_reason = str(error)
        if self._down_since is None:
            self._down_since = now
        elif not self.incarnation and not self._warned and now - self._down_since > _SOON_S:
            self._warned = True
            log.warning("%s; trying for %g s", error, self.config.rendezvous_s)

    def _take(self, message: AnyMessage, request: int) -> None:
        if isinstance(message, Members):
            self.members = message.members
            if not self.on_message(message, request):
                self._complete.set()
        elif isinstance(message, Lost):
            kind = LOST_BY_ROLE.get(message.role, ClusterError)
            self.fail(kind(
                f"{message.role} {message.rank} is lost: {message.reason}",
                rank=message.rank, host=message.host,
            ))
        elif isinstance(message, Gone):
            self._part_with(message, request)
        elif isinstance(message, ErrorInfo):
            if request == self._greeting:  # we come back, and are not wanted any more
                self.fail(messages.error_from_wire(message))
        elif isinstance(message, Shutdown):
            if message.error is not None:
                self.fail(messages.error_from_wire(message.error))
                self._ended = True
                self.link.expect_close()
            self.shutdown.set()  # and if all is well we say goodbye: so it is known that we heard
        elif isinstance(message, messages.Absent):
            log.warning("%s %d has joined, and the job has not begun: %s", self.role, self.rank,
                        message.text)
        elif isinstance(message, messages.AskReport):
            self._tell_report()
        elif not self.on_message(message, request):
            log.warning("a message out of place from the scheduler: %s", type(message).__name__)

    def _part_with(self, message: Gone, request: int) -> None:
        """The job goes on without a worker; should it be this one, here it ends."""
        if self.role == "worker" and message.rank == self.rank:
            self.fail(StaleIncarnation(
                f"this worker was declared lost, and the others go on without it: "
                f"{message.reason}", rank=self.rank,
            ))
        elif message.rank not in self.gone:
            self.gone[message.rank] = message
            log.warning("worker %d @%s is lost, and the job goes on without it: %s", message.rank,
                        message.host, message.reason)
        if self.role == "server":
            self.on_message(message, request)

    def _tell_report(self) -> None:
        """Say how this node is; whatever is wrong with that must not end its work."""
        if self.report is not None:
            try:
                self.link.tell(self.report(), self.incarnation)
            except Exception:
                log.exception("no report of %s %d", self.role, self.rank)

    def complete(self) -> None:
        """The member table has been taken in: `join` may return."""
        self._complete.set()

    async def _beat(self) -> None:
        """Say that we live, and watch the scheduler."""
        loop = asyncio.get_running_loop()
        config = self.config
        period = config.heartbeat_s
        frame = heartbeat_frame(self.incarnation)
        seen, heard_at, last = -1, loop.time(), loop.time()
        while self.failure is None and not (self._leaving or self._ended):
            await asyncio.sleep(period)
            now = loop.time()
            connection = self.link.connection
            if connection is not None and connection.ready:
                connection.send([frame], len(frame))
            received = -1 if connection is None else connection.received
            late = now - last > period + LATE_S
            if received != seen or late:
                seen, heard_at = received, now
            if late and self._down_since is not None:
                self._down_since = now  # we could not have come back meanwhile
            last = now
            if self._down_since is not None and now - self._down_since > config.reconnect_s:
                self.fail(SchedulerLost(
                    f"the scheduler at {self._address} is gone: {self._down_reason}"
                ))
            elif now - heard_at > config.frozen_server_s:
                self.fail(SchedulerLost(
                    f"the scheduler at {self._address} said nothing for "
                    f"{config.frozen_server_s:g} s"
                ))


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
