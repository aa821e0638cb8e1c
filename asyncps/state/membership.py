"""Who is a member of the job (ranks, incarnations, liveness), and what each member is told."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from asyncps.config import Config
from asyncps.errors import (
    AsyncPSError,
    ConfigError,
    RankTaken,
    RemoteProtocolError,
    SchedulerLost,
    StaleIncarnation,
)
from asyncps.protocol.messages import Ending, Gone, Join, Lost, Member, Message, Report

MAX_REQUESTS = 4096  # kept or pending requests of one node: protects the scheduler's memory
MAX_NAME = 1024  # characters of a host name that a node tells: the same
SHOWN_NODES = 32  # nodes that one text names; the rest is counted


@dataclass(frozen=True, slots=True)
class Send:
    """Send a message; the frame carries the request number."""

    link: int
    request: int
    message: Message


@dataclass(frozen=True, slots=True)
class Close:
    """Close a connection once what was sent on it is out; no event about it need follow."""

    link: int
    reason: str


@dataclass(frozen=True, slots=True)
class Log:
    """Write one line to the log, with a level of `logging`; `told`: the launcher is to hear it."""

    level: int
    text: str
    told: bool = False


@dataclass(frozen=True, slots=True)
class Stop:
    """The scheduler ends once everything is flushed; `error` None: all went well."""

    error: AsyncPSError | None


Instruction = Send | Close | Log | Stop


class Standing(enum.Enum):
    """How a node stands with the job."""

    ALIVE = "alive"
    SUSPECT = "suspect"  # its connection closed; it may come back
    LOST = "lost"
    LEFT = "left"


class Answers:
    """The numbered requests of one node: which are worked on, and what was answered.

    An answer is kept until the node says that it waits for no request up to that one, since a cut
    connection may have eaten it.
    """

    def __init__(self) -> None:
        self._acked = 0
        self._pending: set[int] = set()
        self._kept: dict[int, Message] = {}

    def acknowledge(self, acked: int) -> None:
        """The node waits for no request below `acked`."""
        if acked > self._acked:
            self._acked = acked
            for request in [request for request in self._kept if request < acked]:
                del self._kept[request]

    def begin(self, request: int) -> bool:
        """Tell whether a request is new; one that is repeated, or given up, is not.

        Raises:
            RemoteProtocolError: Too many requests are pending or kept.
        """
        if request < self._acked or request in self._pending or request in self._kept:
            return False
        if len(self._pending) + len(self._kept) >= MAX_REQUESTS:
            raise RemoteProtocolError("too many requests that are not acknowledged",
                                      expected=f"at most {MAX_REQUESTS}")
        self._pending.add(request)
        return True

    def finish(self, request: int, answer: Message) -> bool:
        """Keep the answer of a pending request; tell whether it is to be sent."""
        if request not in self._pending:
            return False
        self._pending.remove(request)
        if request < self._acked:
            return False
        self._kept[request] = answer
        return True

    def kept(self, request: int) -> Message | None:
        """Return what a request was answered, if that is still kept."""
        return self._kept.get(request)

    def is_pending(self, request: int) -> bool:
        """Tell whether a request is being worked on."""
        return request in self._pending

    def pending(self) -> list[int]:
        """Return the requests that are being worked on."""
        return sorted(self._pending)

    def unacknowledged(self) -> list[tuple[int, Message]]:
        """Return all answers that the node may not have got, in the order of its requests."""
        return sorted(self._kept.items(), key=lambda item: item[0])


@dataclass(slots=True, eq=False)
class Node:
    """One process of the job; who takes its place is another Node."""

    member: Member
    link: int | None
    heard: float
    suspect_since: float = 0.0
    standing: Standing = Standing.ALIVE
    prepared: bool = False
    prepared_owed: int = 0  # Members sent over this link and not answered with Prepared yet
    lost: Lost | Gone | None = None  # what the others were told of its loss
    ending: Ending | None = None  # its process ends, and whoever reaps it will say how
    answers: Answers = field(default_factory=Answers)
    report: Report | None = None  # what it said of itself, for observers
    reported: float = 0.0

    @property
    def role(self) -> str:
        """The role."""
        return self.member.role

    @property
    def rank(self) -> int:
        """The number within the role."""
        return self.member.rank

    @property
    def host(self) -> str:
        """The host as people know it."""
        return self.member.hostname or self.member.host

    @property
    def is_there(self) -> bool:
        """Whether it is a member that can be told something now."""
        return self.standing is Standing.ALIVE and self.link is not None

    def __str__(self) -> str:
        return f"{self.role} {self.rank} @{self.host}"


class Outbox:
    """The instructions that one event leads to, in their order."""

    def __init__(self) -> None:
        self._out: list[Instruction] = []
        self.stopped = False

    def put(self, instruction: Instruction) -> None:
        """Add an instruction."""
        self._out.append(instruction)

    def take(self) -> list[Instruction]:
        """Take all instructions out."""
        out, self._out = self._out, []
        return out

    def log(self, level: int, text: str, *, told: bool = False) -> None:
        """Add a line for the log."""
        self._out.append(Log(level, text, told))

    def stop(self, error: AsyncPSError | None) -> None:
        """Add the last instruction of all."""
        self.stopped = True
        self._out.append(Stop(error))

    def tell(self, node: Node, message: Message, request: int = 0) -> None:
        """Send to a node if it is connected."""
        if node.link is not None:
            self.put(Send(node.link, request, message))

    def answer(self, node: Node, request: int, message: Message) -> None:
        """Answer a pending request, once; kept if the node is not connected."""
        if node.answers.finish(request, message):
            self.tell(node, message, request)


class Membership:
    """The member table; `config` tells how many there are, and the limits of silence.

    Attributes:
        next_incarnation: Of the next process that joins; the first has `first`.
    """

    def __init__(self, config: Config, first: int = 1) -> None:
        self._config = config
        self._totals = {"server": config.num_servers, "worker": config.num_workers}
        self._silence_s = {"server": config.frozen_server_s, "worker": config.frozen_worker_s}
        self._nodes: dict[tuple[str, int], Node] = {}
        self.next_incarnation = first

    def __iter__(self) -> Iterator[Node]:
        """Servers first, each role by rank."""
        return iter([self._nodes[place] for place in sorted(self._nodes)])

    def get(self, role: str, rank: int) -> Node | None:
        """Return who holds a place."""
        return self._nodes.get((role, rank))

    def nodes(self, role: str) -> list[Node]:
        """Return the nodes of a role by rank."""
        return [node for node in self if node.role == role]

    def check_place(self, role: str, rank: int) -> None:
        """Check a role and a rank.

        Raises:
            ConfigError: This job has no such place.
        """
        total = self._totals.get(role)
        if total is None:
            raise ConfigError("no role that joins", expected="worker or server", got=role[:100])
        if not 0 <= rank < total:
            raise ConfigError(f"this job has no {role} {rank}", rank=rank, got=rank,
                              expected=f"0 to {total - 1}" if total else f"no {role}s")

    def join(self, link: int, join: Join, now: float, *, settled: bool) -> tuple[Node, int | None]:
        """Take a process in, or the same process back.

        Args:
            settled: The rendezvous is over: a suspect's place cannot be taken any more.

        Returns:
            The node, and the link that the same process had until now (still open), if any.

        Raises:
            ConfigError: No such place, or a name that is too long.
            RankTaken: The place is held.
            StaleIncarnation: A process that was replaced or declared lost.
        """
        self._check(join)
        if join.incarnation:
            return self._take_back(link, join, now)
        rank = self._free_rank(join.role, settled) if join.rank is None else join.rank
        holder = self.get(join.role, rank)
        if holder is not None and (settled or holder.standing is not Standing.SUSPECT):
            how = "has left for good" if holder.standing is Standing.LEFT else "is there already"
            raise RankTaken(f"{holder} (incarnation {holder.member.incarnation}) {how}", rank=rank)
        member = Member(join.role, rank, self.next_incarnation, join.host, join.port,
                        join.hostname, join.pid, join.machine)
        self.next_incarnation += 1
        node = self._nodes[join.role, rank] = Node(member, link, now)
        return node, None

    def remove(self, node: Node) -> None:
        """Free the place of a node that left before the job began."""
        if self._nodes.get((node.role, node.rank)) is node:
            del self._nodes[node.role, node.rank]

    def suspect(self, node: Node, now: float) -> None:
        """The node's connection closed."""
        node.link = None
        if node.standing is Standing.ALIVE:
            node.standing = Standing.SUSPECT
            node.suspect_since = now

    def restart(self, now: float) -> None:
        """We were late ourselves: every silence begins anew."""
        for node in self:
            node.heard = node.suspect_since = now

    def overdue(self, now: float) -> list[tuple[Node, str]]:
        """Return who is to be declared lost, and why."""
        found = []
        for node in self:
            silent_s, limit_s = now - node.heard, self._silence_s[node.role]
            if node.standing is Standing.ALIVE and silent_s > limit_s:
                found.append((node, f"silent for {silent_s:.1f} s (limit {limit_s:g} s)"))
            limit_s = self._config.reconnect_s
            if node.standing is Standing.SUSPECT and now - node.suspect_since >= limit_s:
                found.append((node, f"cut off; it did not come back within {limit_s:g} s"
                              if node.ending is None else
                              f"it ended, and nobody said within {limit_s:g} s with which code"))
        return found

    def all_alive(self) -> bool:
        """Tell whether every place is held by a node that is connected."""
        return len(self._nodes) == sum(self._totals.values()) and all(
            node.standing is Standing.ALIVE for node in self
        )

    def describe_absence(self) -> str:
        """Say who joined and who is missing."""
        joined = [str(node) + ("" if node.standing is Standing.ALIVE else " (not connected)")
                  for node in self]
        missing = [f"{role} {rank}" for role, total in self._totals.items()
                   for rank in range(total) if (role, rank) not in self._nodes]
        text = f"joined: {_some(joined)}; missing: {_some(missing)}"
        unprepared = [str(node) for node in self.nodes("server") if not node.prepared]
        return text if missing else f"{text}; not ready: {_some(unprepared)}"

    def _check(self, join: Join) -> None:
        self.check_place(join.role, 0 if join.rank is None else join.rank)
        if max(map(len, (join.host, join.hostname, join.machine))) > MAX_NAME:
            raise ConfigError("host name is too long", expected=f"at most {MAX_NAME} characters")
        if not 0 <= join.port < 1 << 16:
            raise ConfigError("port is out of range", expected="0 to 65535", got=join.port)
        if not 0 <= join.incarnation < 1 << 32:
            raise ConfigError("incarnation is out of range", got=join.incarnation)

    def _take_back(self, link: int, join: Join, now: float) -> tuple[Node, int | None]:
        for node in self.nodes(join.role):
            if (node.member.incarnation == join.incarnation and join.rank in (None, node.rank)
                    and node.standing is not Standing.LOST):
                break
        else:
            if join.rank is not None and self.get(join.role, join.rank) is None:
                raise SchedulerLost(
                    f"the scheduler that knew this {join.role} is gone; another one listens there",
                    rank=join.rank)
            raise StaleIncarnation(
                f"this {join.role} was declared lost or its place was taken", rank=join.rank,
                got=f"incarnation {join.incarnation}")
        old_link, node.link, node.heard = node.link, link, now
        node.prepared_owed = 0
        if node.standing is Standing.SUSPECT:
            node.standing = Standing.ALIVE
        return node, old_link

    def _free_rank(self, role: str, settled: bool) -> int:
        """Return the lowest rank that nobody holds; before the job begins, else a suspect's."""
        for rank in range(self._totals[role]):
            if (role, rank) not in self._nodes:
                return rank
        for node in self.nodes(role):
            if not settled and node.standing is Standing.SUSPECT:
                return node.rank
        raise RankTaken(f"this job has all its {role}s", expected=self._totals[role])


def _some(names: Iterable[str]) -> str:
    names = list(names)
    more = f" and {len(names) - SHOWN_NODES} more" if len(names) > SHOWN_NODES else ""
    return ", ".join(names[:SHOWN_NODES]) + more if names else "nobody"
