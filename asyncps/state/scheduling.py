"""The scheduler without its sockets: events of proven connections in, instructions out."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import msgspec

from asyncps.config import Config
from asyncps.errors import (
    LOST_BY_ROLE,
    AsyncPSError,
    ClosedError,
    RemoteProtocolError,
    RendezvousTimeout,
)
from asyncps.protocol import messages as m
from asyncps.state.absence import Absence
from asyncps.state.agreements import Action, Order, StoreRequest, Stores
from asyncps.state.links import Link, idle, out_of_place, why_not
from asyncps.state.losses import all_ended, cut_off, goes_on_without, grace_s, named, part_with
from asyncps.state.membership import (
    Close,
    Instruction,
    Log,
    Membership,
    Node,
    Outbox,
    Send,
    Standing,
    Stop,
)
from asyncps.state.overview import Overview

__all__ = ["Close", "Instruction", "Log", "SchedulerState", "Send", "Stop"]

LATE_S = 1.0  # ticks come 4 times a second: after such a gap we were away ourselves
MAX_REASON = 1000  # characters of a reason that is told on


class SchedulerState:
    """The scheduler of one job; `now` is in seconds, always from the same clock; `first`: the
    incarnation of the first process that joins.

    A link is the number of one proven connection; the role that owns the connections tells their
    events and carries out the instructions that every event returns, in their order.
    """

    def __init__(self, config: Config, now: float, first: int = 1) -> None:
        self._config = config
        self._host = f"scheduler {config.scheduler}" if config.scheduler else None
        self._started = self._last_tick = self._now = now
        self._links: dict[int, Link] = {}
        self._membership = Membership(config, first)
        self._stores = Stores(config)
        self._preparing = False  # the servers have been told the member table
        self._running = False  # so have the workers
        self._failure: AsyncPSError | None = None
        self._shutdown: m.Shutdown | None = None  # the last word, once it is said
        self._ending_at = 0.0  # since when the job has failed, or all workers have left
        self._said_ranks = False
        self._outbox = Outbox()
        self._absence = Absence(config, self._membership, self._outbox, now)
        self._overview = Overview(config, now, self._membership, self._stores)

    def opened(self, link: int, role: str, now: float) -> list[Instruction]:
        """A connection was proven to be of this job and role."""
        if self._outbox.stopped:
            return []
        if link in self._links:
            raise ValueError(f"link {link} is open already")
        reason = why_not(self._links.values(), role, self._config)
        if reason is not None:
            return [Close(link, reason)]
        self._links[link] = Link(link, role, now)
        return []

    def received(
        self, link: int, request: int, acked: int, message: m.Message, now: float
    ) -> list[Instruction]:
        """A control message came.

        Args:
            request: Its number; 0 when it is no request.
            acked: The lowest request number that its sender still waits for.
        """
        peer = self._links.get(link)
        if self._outbox.stopped or peer is None:
            return []
        self._now = now
        self.heard(link, now)
        try:
            self._dispatch(peer, request, acked, message)
        except AsyncPSError as error:
            self._refuse(peer, request, error)
        return self._settle()

    def heard(self, link: int, now: float) -> list[Instruction]:
        """Some bytes came: whoever sent them is alive."""
        peer = self._links.get(link)
        if peer is not None and peer.node is not None:
            peer.node.heard = now
        return []

    def closed(self, link: int, now: float) -> list[Instruction]:
        """A connection broke or was closed by its peer."""
        if self._outbox.stopped or link not in self._links:
            return []
        self._now = now
        self._detach(link)
        return self._settle()

    def tick(self, now: float) -> list[Instruction]:
        """Time passed: judge who is overdue. To be called about 4 times a second."""
        if self._outbox.stopped:
            return []
        late = now - self._last_tick > LATE_S
        self._last_tick = self._now = now
        if late:
            self._membership.restart(now)
            return []
        for number, reason in idle(self._links.values(), now - self._config.handshake_s):
            self._close(number, reason)
        self._overview.watch(now)
        if self._failure is None and self._shutdown is None:
            overdue = self._membership.overdue(now)
            for node, reason in overdue:
                if node.ending is not None and not node.ending.direct and node.link is None:
                    self._part(node)  # whoever reaps it waits for a process between the two
                else:
                    self._lose(node, reason)
            too_long = now - self._started > self._config.rendezvous_s
            if too_long and not self._running and not overdue:
                self._abandon(RendezvousTimeout(
                    f"not everybody came within {self._config.rendezvous_s:g} s: "
                    + self._membership.describe_absence()))
            elif not self._running:
                self._absence.watch(now)
        return self._settle()

    def status(self, now: float) -> m.JobStatus:
        """Return the job as observers see it."""
        return self._overview.status(self.phase, self._failure, now)

    @property
    def phase(self) -> str:
        """Where the job stands, in observers' words."""
        return ("failed" if self._failure is not None
                else "ending" if self._shutdown is not None
                else "running" if self._running else "joining")

    def _dispatch(self, peer: Link, request: int, acked: int, message: m.Message) -> None:
        node = peer.node
        if peer.role == "launcher" and isinstance(message, m.Died):
            self._membership.check_place(message.role, message.rank)
            self._outbox.put(Send(peer.number, request, m.Done()))
            self._die(message)
        elif peer.role == "launcher" and isinstance(message, m.Ended):
            if message.rank is not None:
                self._membership.check_place("worker", message.rank)
            self._outbox.put(Send(peer.number, request, m.Done()))
            self._end(message)
        elif peer.role == "observer" and isinstance(message, m.AskStatus) and request > 0:
            self._observe(peer, request)
        elif node is None and isinstance(message, m.Join) and message.role == peer.role:
            self._join(peer, request, acked, message)
        elif node is None:
            raise out_of_place(peer.role, message)
        elif isinstance(message, m.Report):
            self._overview.take(node, message, self._now)
        elif not isinstance(message, m.Done | m.ErrorInfo | m.Prepared):
            self._request(node, request, acked, message)
        elif node.role != "server":
            raise out_of_place(peer.role, message)
        else:
            node.answers.acknowledge(acked)
            if isinstance(message, m.Prepared):
                node.prepared_owed = max(0, node.prepared_owed - 1)
                node.prepared = node.prepared or node.prepared_owed == 0
            elif self._failure is None:
                if isinstance(message, m.ErrorInfo) and not message.host:
                    message = msgspec.structs.replace(message, host=node.host)
                self._carry_out(self._stores.answered(node.rank, request, message))

    def _observe(self, peer: Link, request: int) -> None:
        """Tell an observer what is known now, and have the nodes asked for its next question."""
        peer.opened = self._now
        self._outbox.put(Send(peer.number, request, self.status(self._now)))
        for node in self._overview.to_ask(self._now):
            self._outbox.tell(node, m.AskReport())

    def _request(self, node: Node, request: int, acked: int, message: m.Message) -> None:
        if request <= 0 or acked > request:
            raise RemoteProtocolError("request without a number of its own",
                                      expected=f"at least {max(acked, 1)}", got=request)
        node.answers.acknowledge(acked)
        if not node.answers.begin(request):
            if (answer := node.answers.kept(request)) is not None:
                self._outbox.tell(node, answer, request)
        elif isinstance(message, m.Leave):
            self._leave(node, request)
        elif isinstance(message, m.Ending) and node.role == "worker" and self._running:
            node.ending = message
            self._outbox.answer(node, request, m.Done())
        elif node.standing is Standing.LEFT:
            raise ClosedError(f"{node} has left", rank=node.rank)
        elif self._failure is not None:
            self._outbox.answer(node, request, self._wire(self._failure))
        elif self._running and node.role == "worker" and isinstance(message, StoreRequest):
            self._carry_out(self._stores.handle(node.rank, request, message))
        else:
            raise out_of_place(node.role, message)

    def _join(self, peer: Link, request: int, acked: int, join: m.Join) -> None:
        if self._failure is not None and not join.incarnation:
            self._refuse(peer, request, self._failure)
            return
        node, old_link = self._membership.join(peer.number, join, self._now, settled=self._running)
        peer.node = node
        if old_link is not None:
            self._close(old_link, "the same process came back over a new connection")
        if join.rank is None and not self._said_ranks:
            self._said_ranks = True
            self._outbox.log(logging.INFO, "no ranks were given: they go by order of joining")
        again = " again" if join.incarnation else ""
        self._outbox.log(logging.INFO, f"{node} joined{again} (incarnation "
                                       f"{node.member.incarnation})")
        total = self._config.num_workers, self._config.num_servers
        self._outbox.tell(node, m.Joined(node.rank, node.member.incarnation, *total), request)
        if join.incarnation:
            node.answers.acknowledge(acked)
            self._tell_again(node)
        else:
            self._preparing = False  # whoever heard of the one that it replaces hears anew

    def _tell_again(self, node: Node) -> None:
        """Repeat what the broken connection may have eaten."""
        for request, answer in node.answers.unacknowledged():
            self._outbox.tell(node, answer, request)
        if node.standing is Standing.LEFT:
            return
        if self._running or (self._preparing and node.role == "server"):
            self._tell_members(node)
        for other in self._membership:
            if other.lost is not None:
                self._outbox.tell(node, other.lost)
            elif other.standing is Standing.LEFT and node.role == "server":
                self._outbox.tell(node, m.Left(other.rank))
        if self._shutdown is not None:
            self._outbox.tell(node, self._shutdown)
        elif self._failure is None and node.role == "server":
            self._carry_out(self._stores.owed(node.rank))

    def _leave(self, node: Node, request: int) -> None:
        for other in node.answers.pending():
            if other != request:
                self._outbox.answer(node, other, self._wire(ClosedError(f"{node} left")))
        self._outbox.answer(node, request, m.Done())
        self._part(node)

    def _part(self, node: Node) -> None:
        """A node has left for good."""
        self._outbox.log(logging.INFO, f"{node} left")
        if self._failure is None and not self._running:
            self._membership.remove(node)
            self._preparing = False
            if node.link is not None:
                self._close(node.link, "it left before the job began")
        elif node.role == "server" and self._failure is None and self._shutdown is None:
            self._lose(node, "it left while workers needed it", known=True)
        elif node.standing is not Standing.LEFT:
            node.standing = Standing.LEFT
            if node.role == "worker" and self._failure is None:
                self._carry_out(self._stores.left(node.rank))
                for server in self._membership.nodes("server"):
                    self._outbox.tell(server, m.Left(node.rank))

    def _die(self, died: m.Died) -> None:
        node, reason = self._membership.get(died.role, died.rank), died.reason[:MAX_REASON]
        if node is None:
            if self._failure is None:
                self._abandon(LOST_BY_ROLE[died.role](
                    f"{died.role} {died.rank} ended before it joined: {reason}", rank=died.rank))
        elif self._shutdown is not None:
            node.standing = Standing.LEFT if self._failure is None else Standing.LOST
        elif node.standing in (Standing.ALIVE, Standing.SUSPECT) or (
            node.standing is Standing.LEFT and node.ending is not None
        ):
            self._lose(node, reason, known=True)

    def _end(self, ended: m.Ended) -> None:
        """Whoever reaped a worker says how it ended."""
        for node in named(ended, self._membership.nodes("worker")) if self._running else []:
            if ended.reason is not None:
                self._die(m.Died("worker", node.rank, ended.reason))
            elif node.ending is not None and node.standing in (Standing.ALIVE, Standing.SUSPECT):
                self._part(node)

    def _settle(self) -> list[Instruction]:
        """Do what is due now that an event has been taken in."""
        servers, workers = self._membership.nodes("server"), self._membership.nodes("worker")
        if self._outbox.stopped:
            pass
        elif self._failure is None and not self._running:
            self._rendezvous(servers, workers)
        elif self._failure is not None or all_ended(workers):
            there = [node for node in (*servers, *workers) if node.is_there]
            if self._failure is None and self._shutdown is None:
                self._ending_at = self._now
            late = cut_off(servers) and self._failure is None
            over = self._now - self._ending_at >= grace_s(self._config, servers if late else ())
            if self._shutdown is None and (over or all(node.role == "server" for node in there)):
                error = self._failure
                self._shutdown = m.Shutdown(None if error is None else self._wire(error))
                for node in there:
                    self._outbox.tell(node, self._shutdown)
            if over or not (there or late):
                self._outbox.stop(self._failure)
        return self._outbox.take()

    def _rendezvous(self, servers: list[Node], workers: list[Node]) -> None:
        if not self._preparing and self._membership.all_alive():
            self._preparing = True
            for node in servers:
                node.prepared = False
                self._tell_members(node)
        if self._preparing and all(node.prepared for node in servers):
            self._running = True
            self._outbox.log(logging.INFO, "everybody is there: the job begins")
            for node in workers:
                self._tell_members(node)

    def _tell_members(self, node: Node) -> None:
        if node.role == "server" and not node.prepared and node.link is not None:
            node.prepared_owed += 1
        self._outbox.tell(node, m.Members([other.member for other in self._membership]))

    def _lose(self, node: Node, reason: str, *, known: bool = False) -> None:
        going_on = self._running and self._failure is None and self._shutdown is None
        if going_on and goes_on_without(self._config, self._membership, node):
            self._carry_out(part_with(node, reason, self._membership, self._stores, self._outbox))
            if node.link is not None:
                self._close(node.link, "declared lost")
            return
        node.standing = Standing.LOST
        node.lost = m.Lost(node.role, node.rank, node.host, reason)
        error = LOST_BY_ROLE[node.role](f"{node} is lost: {reason}", rank=node.rank)
        # A launcher knows who has ended, and has said so; it may have ended a server itself.
        known = known and self._config.parent is not None
        self._outbox.log(logging.DEBUG if known else logging.ERROR, error.message)
        if node.link is not None:
            self._close(node.link, "declared lost")
        for other in self._membership:
            if other.is_there:
                self._outbox.tell(other, node.lost)
        if self._failure is None:
            self._failure, self._ending_at = error, self._now
            for other in self._membership:
                for request in other.answers.pending():
                    self._outbox.answer(other, request, self._wire(error))

    def _abandon(self, error: AsyncPSError) -> None:
        """End a job that cannot begin."""
        self._outbox.log(logging.ERROR, error.message)
        for node in self._membership:
            self._outbox.tell(node, m.Shutdown(self._wire(error)))
        self._outbox.stop(error)

    def _refuse(self, peer: Link, request: int, error: AsyncPSError) -> None:
        node = peer.node
        if node is not None and node.answers.is_pending(request):
            self._outbox.answer(node, request, self._wire(error))
        elif request > 0:
            self._outbox.put(Send(peer.number, request, self._wire(error)))
        if isinstance(error, RemoteProtocolError) or (node is None and peer.role != "launcher"):
            self._outbox.log(logging.WARNING, f"{node or peer.role} is refused: {error}")
            self._close(peer.number, str(error))

    def _carry_out(self, actions: Sequence[Action]) -> None:
        for action in actions:
            if isinstance(action, Order):
                if server := self._membership.get("server", action.server):
                    self._outbox.tell(server, action.message, action.request)
            elif worker := self._membership.get("worker", action.rank):
                self._outbox.answer(worker, action.request, action.message)

    def _close(self, link: int, reason: str) -> None:
        self._detach(link)
        self._outbox.put(Close(link, reason))

    def _detach(self, link: int) -> None:
        node = self._links.pop(link).node
        if node is not None and node.link == link:
            self._membership.suspect(node, self._now)
            if node.standing is Standing.SUSPECT and self._running and node.ending is None:
                self._outbox.log(logging.WARNING, f"{node} lost its connection")

    def _wire(self, error: AsyncPSError) -> m.ErrorInfo:
        return m.error_to_wire(error, self._host)
