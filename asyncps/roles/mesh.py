"""The connections of one rank to all others: one to each, opened by the higher rank.

A connection that was cut is opened again within `reconnect_s`; who does not come back by then ends
all collective calls, unless it has said that it leaves.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence

from asyncps.errors import (
    AsyncPSError,
    ClosedError,
    ProtocolError,
    RemoteProtocolError,
    RendezvousTimeout,
    StaleIncarnation,
    TransportError,
    WorkerLost,
)
from asyncps.protocol.frames import Header
from asyncps.protocol.handshake import PeerHello
from asyncps.protocol.messages import Member
from asyncps.protocol.reader import Sink
from asyncps.roles.collecting import Collecting
from asyncps.roles.farewell import last_table
from asyncps.roles.machine import machine_of
from asyncps.roles.node import Node
from asyncps.roles.peer import Peer
from asyncps.tensor.threads import processors
from asyncps.transport.connection import LAST_WORD_S, Connection
from asyncps.transport.network import Listening

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.01, 0.3
_LEAVE_S = 5.0  # how long who leaves waits for others, at most


class Mesh:
    """Connects one worker with all others. Runs on the loop.

    Args:
        node: Who we are, and who knows the others.

    Attributes:
        collecting: What the connections are for; once the job has begun.
    """

    def __init__(self, node: Node) -> None:
        self._node = node
        self._listening: Listening | None = None
        self._members: dict[int, Member] = {}
        self._ready: dict[int, asyncio.Event] = {}
        self._reaching: set[int] = set()  # lower ranks that are dialled
        self._leaving = self._ended = False
        self.collecting: Collecting | None = None

    # ---- the walk in ----

    async def listen(self, local_host: str) -> tuple[str, int]:
        """Listen; return host and port to tell the others."""
        advertised, self._listening = await self._node.listen(self._accept, local_host)
        return advertised, self._listening.port

    async def connect(self, members: Sequence[Member]) -> Collecting:
        """Connect with all others.

        Raises:
            AsyncPSError: The job has failed, or somebody could not be reached in time.
        """
        node = self._node
        collecting = self._begun()
        self._members = {m.rank: m for m in members if m.role == "worker"}
        if node.failure is not None:
            raise node.failure
        node.on_failure.append(collecting.fail)
        for rank, place in collecting.peers.items():
            place.near = machine_of(self._members[rank]) == machine_of(self._members[node.rank])
        near = [place for place in collecting.peers.values() if place.near]
        for place in near if len(near) + 1 > processors() else ():
            place.crowd()
        for place in collecting.peers.values():  # those that knew the others before we did
            early = place.connection
            if early is not None and early.peer is not None and not self._knows(early.peer):
                early.abort()
        for rank in collecting.peers:
            if rank < node.rank:
                node.spawn(self._reach(rank), f"connect rank {node.rank} to rank {rank}")
        node.spawn(collecting.watch(), f"deadlines of rank {node.rank}")
        try:
            async with asyncio.timeout(node.config.rendezvous_s):
                for ready in self._ready.values():
                    await ready.wait()
        except TimeoutError:
            missing = [rank for rank, ready in self._ready.items() if not ready.is_set()]
            raise RendezvousTimeout(
                f"rank {node.rank} is not connected with ranks {missing} after "
                f"{node.config.rendezvous_s:g} s") from None
        if collecting.failure is not None:
            raise collecting.failure
        return collecting

    async def close(self) -> None:
        """Leave: what all have called ends, what was sent arrives, then all connections end."""
        collecting, began = self.collecting, self._leaving
        self._leaving = True
        if collecting is not None and not began:
            limit_s = min(_LEAVE_S, self._node.config.answer_s)
            if collecting.failure is None:
                await collecting.all_ended(limit_s)
            if collecting.failure is None:
                collecting.leave()
                await collecting.all_arrived(limit_s)
            if collecting.failure is None:
                collecting.end_all(ClosedError("the communicator is closed"))
            else:
                await collecting.farewell.all_told(min(LAST_WORD_S, limit_s))
                collecting.farewell.cut()
        self._end()

    def kill(self, error: AsyncPSError) -> None:
        """End at once; for the others this rank is lost."""
        if self.collecting is not None:
            me = self._node.rank
            lost = WorkerLost("it has gone without a goodbye", rank=me)
            self.collecting.fail(error, last_table(me, lost))
        self._end()

    def _end(self) -> None:
        self._ended = True
        if self._listening is not None:
            self._listening.close()
            self._listening = None
        for peer in self.collecting.peers.values() if self.collecting else ():
            if peer.connection is not None:
                peer.connection.close()

    def sockets(self) -> list[object]:
        """Return the sockets of all connections, for a forked child to close."""
        peers = self.collecting.peers.values() if self.collecting else ()
        found = [peer.connection.socket() for peer in peers if peer.connection is not None]
        return [sock for sock in found if sock is not None]

    def _wake(self) -> None:
        """This rank has failed: who waits for connections looks, who is cut off hears why."""
        for ready in self._ready.values():
            ready.set()
        for rank, place in self._begun().peers.items():
            if rank < self._node.rank and rank in self._members and place.connection is None:
                self._node.spawn(self._reach(rank), f"tell rank {rank}")

    # ---- connections ----

    def _accept(self) -> Connection:
        return Connection(self, self._node.hello(), self._node.config.token, connector=False)

    def connection_ready(self, connection: Connection) -> Sink:
        """A rank has proven itself: give it its place, if it is who the scheduler says."""
        peer = connection.peer
        assert peer is not None
        if self._listening is not None:
            self._listening.proven(connection)
        if peer.role != "worker" or peer.rank == self._node.rank:
            raise RemoteProtocolError("only other workers come here", got=peer.role)
        if not 0 <= peer.rank < self._node.num_workers:
            raise RemoteProtocolError("no rank of this job", got=peer.rank)
        return self._welcome(connection)

    def _begun(self) -> Collecting:
        if self.collecting is None:
            node, now = self._node, asyncio.get_running_loop().time
            self.collecting = Collecting(node.config, node.rank, node.num_workers, now)
            self.collecting.farewell.on_failure = self._wake
            self._ready = {rank: asyncio.Event() for rank in self.collecting.peers}
        return self.collecting

    def _knows(self, peer: PeerHello) -> bool:
        member = self._members.get(peer.rank)
        return member is not None and member.incarnation == peer.incarnation

    def _welcome(self, connection: Connection) -> Sink:
        peer = connection.peer
        assert peer is not None
        if self._has_left:
            raise StaleIncarnation("this rank has left", rank=self._node.rank)
        if not peer.incarnation:  # it has not yet heard that it has joined: try again
            connection.abort()
            return _Nobody()
        if self._members and not self._knows(peer):
            raise StaleIncarnation("not the worker that the scheduler knows", rank=peer.rank,
                                   got=peer.incarnation)
        collecting = self._begun()
        place = collecting.peers[peer.rank]
        if collecting.failure is not None:
            collecting.farewell.tell_again(place, connection)
            return place
        place.attach(connection)
        self._ready[peer.rank].set()
        return place

    def connection_closed(self, connection: Connection, error: AsyncPSError) -> None:
        """A connection is gone; it may come back."""
        if self._listening is not None:
            self._listening.proven(connection)
        collecting = self.collecting
        if connection.peer is None or collecting is None:
            return
        place = collecting.peers.get(connection.peer.rank)
        if place is None or place.connection is not connection:
            return
        place.detach()
        if self._is_over(place):
            return
        if isinstance(error, ProtocolError):
            collecting.fail(error)
            return
        rank = place.rank
        work = self._reach(rank) if rank < self._node.rank else self._wait_for(rank, error)
        self._node.spawn(work, f"reconnect rank {self._node.rank} with rank {rank}")

    async def _reach(self, rank: int) -> None:
        """Open the connection to a lower rank, and again until it is there."""
        if rank not in self._reaching:
            self._reaching.add(rank)
            try:
                await self._try_to_reach(rank)
            finally:
                self._reaching.discard(rank)

    async def _try_to_reach(self, rank: int) -> None:
        node, member = self._node, self._members[rank]
        assert self.collecting is not None
        place = self.collecting.peers[rank]
        loop = asyncio.get_running_loop()
        first = not self._ready[rank].is_set()
        end = loop.time() + (node.config.rendezvous_s if first else node.config.reconnect_s)
        pause, reason = _FIRST_PAUSE_S, ""
        while place.connection is None and not self._is_over(place):
            try:
                owner = await self._dial(member)
                if owner.is_placed:
                    return
                reason = str(owner.error or "it was closed")
            except (AsyncPSError, TimeoutError) as error:
                reason = str(error) or "no answer"
                if self.collecting.failure is not None and isinstance(error, TransportError):
                    place.knows = True  # nobody is there
                    self.collecting.farewell.note()
                    return
            if loop.time() > end:
                self._lost(place, reason)
                return
            await asyncio.sleep(random.uniform(0, pause))  # noqa: S311 - jitter, no secret
            pause = min(pause * 2, _LONGEST_PAUSE_S)

    async def _dial(self, member: Member) -> _Dialled:
        """Try once; no connection is left behind that has not found its place or its end."""
        node, owner = self._node, _Dialled(self)
        connection: Connection | None = None
        try:
            async with asyncio.timeout(node.config.handshake_s):
                connection = await node.network.connect(
                    lambda: Connection(owner, node.hello(), node.config.token, connector=True),
                    member.host, member.port)
                await owner.settled.wait()
        finally:
            if connection is not None and not owner.settled.is_set():
                connection.abort()
        return owner

    async def _wait_for(self, rank: int, error: AsyncPSError) -> None:
        """Wait until a higher rank has come back."""
        assert self.collecting is not None
        place = self.collecting.peers[rank]
        cuts = place.cuts
        await asyncio.sleep(self._node.config.reconnect_s)
        # It may have come back meanwhile, and be gone again: another waits for that.
        if place.connection is None and place.cuts == cuts and not self._is_over(place):
            self._lost(place, str(error))

    @property
    def _has_left(self) -> bool:
        """Who is cut now need not come back; but whoever has failed has to say so."""
        failed = self.collecting is not None and self.collecting.failure is not None
        return self._ended or (self._leaving and not failed)

    def _is_over(self, place: Peer) -> bool:
        return self._has_left or place.parted or place.is_told

    def _lost(self, place: Peer, reason: str) -> None:
        assert self.collecting is not None
        self.collecting.fail(WorkerLost(
            f"the connection to rank {place.rank} is lost: {reason}", rank=place.rank))


class _Dialled:
    """The owner of a connection that we open: tells when it is ready or gone."""

    def __init__(self, mesh: Mesh) -> None:
        self._mesh = mesh
        self.settled = asyncio.Event()
        self.is_placed = False
        self.error: AsyncPSError | None = None

    def connection_ready(self, connection: Connection) -> Sink:
        """It has its place."""
        try:
            sink = self._mesh._welcome(connection)
            self.is_placed = isinstance(sink, Peer)
            return sink
        finally:
            self.settled.set()

    def connection_closed(self, connection: Connection, error: AsyncPSError) -> None:
        """It is gone, whether it was ready or not."""
        self.error = error
        self.settled.set()
        self._mesh.connection_closed(connection, error)


class _Nobody:
    """Takes what still comes over a connection that was given up."""

    def begin(self, header: Header, table: memoryview) -> memoryview | None:
        """Drop it."""

    def finish(self, header: Header, table: memoryview) -> None:
        """Drop it."""
