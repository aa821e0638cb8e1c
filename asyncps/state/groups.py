"""One group of workers after another at one scheduler that was not told how many they are.

The first process that joins a group says how many workers it has, and all the others must say the
same. When a group has ended, well or not, the next one may come. Incarnations go on rising from
group to group, so whoever is left over from an earlier one is never taken for a member.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from asyncps.config import Config
from asyncps.errors import AsyncPSError, ConfigError, Disagreement, RemoteProtocolError
from asyncps.protocol import messages as m
from asyncps.state.membership import Node
from asyncps.state.scheduling import Close, Instruction, Log, SchedulerState, Send, Stop

_NEVER_S = 1e8  # while nobody has joined there is nothing to wait for
_MOST = 4096  # workers that a refused process may make us think of


class _Group(SchedulerState):
    """One group, or nobody yet."""

    @property
    def next_incarnation(self) -> int:
        """What the next process that joins will have."""
        return self._membership.next_incarnation

    @property
    def members(self) -> list[Node]:
        """All who have joined and not left."""
        return list(self._membership)

    @property
    def deserted(self) -> bool:
        """Whether no member is connected."""
        return not any(node.is_there for node in self._membership)

    def give_up(self, error: AsyncPSError, now: float) -> list[Instruction]:
        """End a group that has not begun; all who have joined hear why."""
        self._now = now
        self._abandon(error)
        return self._settle()


class Groups:
    """Takes the events of a `SchedulerState`, and returns the same instructions but for Stop.

    Args:
        config: The settings of the scheduler; its `num_workers` means nothing, and there are no
            servers.
        now: In seconds, always from the same clock.
    """

    def __init__(self, config: Config, now: float) -> None:
        self._config = config.replace(num_servers=0)
        self._links: dict[int, str] = {}  # the role of each open connection
        self._members: set[int] = set()  # of these: whoever has asked to join the present group
        self._size = 0  # of the present group; 0: nobody has joined
        self._said = ""  # who has said so first
        # Who has not come to a group that disagreed hears of that too, and does not wait for it.
        self._late: dict[int | None, AsyncPSError] = {}
        self._late_until = 0.0
        self._state = self._nobody(now, 1)

    def opened(self, link: int, role: str, now: float) -> list[Instruction]:
        """A connection was proven to be of a holder of the ticket."""
        self._links[link] = role
        return self._carry_out(self._state.opened(link, role, now), now)

    def closed(self, link: int, now: float) -> list[Instruction]:
        """A connection broke or was closed by its peer."""
        self._forget(link)
        return self._carry_out(self._state.closed(link, now), now)

    def heard(self, link: int, now: float) -> list[Instruction]:
        """Some bytes came: whoever sent them is alive."""
        return self._state.heard(link, now)

    def tick(self, now: float) -> list[Instruction]:
        """Time passed. To be called about 4 times a second."""
        return self._carry_out(self._state.tick(now), now)

    def status(self, now: float) -> m.JobStatus:
        """Return the present group as observers see it."""
        return self._state.status(now)

    def received(
        self, link: int, request: int, acked: int, message: m.Message, now: float
    ) -> list[Instruction]:
        """A control message came; the arguments are those of `SchedulerState.received`."""
        if link not in self._links:
            return []
        is_new = link not in self._members
        if isinstance(message, m.Join) and self._links[link] == "worker" and is_new:
            self._members.add(link)
            try:
                broken = None if message.incarnation else self._admit(message, now)
            except AsyncPSError as error:
                return self._refuse(link, request, error, now)
            if broken is not None:
                refused = self._refuse(link, request, broken, now)
                return refused + self._carry_out(self._state.give_up(broken, now), now)
        return self._carry_out(self._state.received(link, request, acked, message, now), now)

    def _admit(self, join: m.Join, now: float) -> AsyncPSError | None:
        """Begin a group with its first member, or compare what another one says.

        Returns:
            None: it may join. Else why the whole group cannot be.

        Raises:
            AsyncPSError: It may not join, and that is no matter of the group.
        """
        if self._state.phase == "failed":
            return None  # it hears why
        rank = "" if join.rank is None else f" {join.rank}"
        who = f"worker{rank} @{join.hostname or join.host} (pid {join.pid})"[:400]
        if not join.num_workers:
            raise RemoteProtocolError(f"{who} does not say how many workers there are")
        if join.rank in self._late and not self._size and now < self._late_until:
            raise self._late.pop(join.rank)
        joining = self._state.phase == "joining"
        differs = join.num_workers != self._size
        if not self._size or (differs and joining and self._state.deserted):
            self._begin(join.num_workers, who, now)
        elif differs:
            error = Disagreement(
                f"the processes of one ticket name different numbers of workers: {self._said} "
                f"says {self._size}, and {who} says {join.num_workers}", rank=join.rank,
                expected=self._size, got=join.num_workers)
            if not joining:
                raise error  # a group that runs need not care
            there = {join.rank, *(node.rank for node in self._state.members)}
            expected = range(max(self._size, min(join.num_workers, _MOST)))
            self._late = {other: error.again() for other in expected if other not in there}
            self._late_until = now + self._config.rendezvous_s
            return error
        return None

    def _begin(self, size: int, who: str, now: float) -> None:
        try:
            config = self._config.replace(num_workers=size)
        except ConfigError as error:
            raise ConfigError(f"{who}: {error.message}", expected=error.expected,
                              got=error.got) from None
        self._size, self._said = size, who
        self._late.clear()
        self._take_over(_Group(config, now, self._state.next_incarnation), now)

    def _refuse(
        self, link: int, request: int, error: AsyncPSError, now: float
    ) -> list[Instruction]:
        """Answer one that may not join, and close its connection; the group hears nothing of it."""
        self._forget(link)
        self._state.closed(link, now)
        return [Send(link, request, m.error_to_wire(error)),
                Log(logging.WARNING, f"worker is refused: {error}"), Close(link, str(error))]

    def _carry_out(self, instructions: Sequence[Instruction], now: float) -> list[Instruction]:
        """Keep track of what is closed, and make room for the next group when this one ends."""
        found: list[Instruction] = []
        for item in instructions:
            if isinstance(item, Stop):
                found += [Close(link, "its group has ended") for link in sorted(self._members)]
                for link in list(self._members):
                    self._forget(link)
                self._size, self._said = 0, ""
                self._take_over(self._nobody(now, self._state.next_incarnation), now)
            else:
                if isinstance(item, Close):
                    self._forget(item.link)
                found.append(item)
        return found

    def _take_over(self, state: _Group, now: float) -> None:
        """Go on with another state, which hears of all connections that are open."""
        self._state = state
        for link, role in self._links.items():
            state.opened(link, role, now)

    def _nobody(self, now: float, first: int) -> _Group:
        config = self._config.replace(rendezvous_s=_NEVER_S, join_warning_s=_NEVER_S)
        return _Group(config, now, first)

    def _forget(self, link: int) -> None:
        self._links.pop(link, None)
        self._members.discard(link)
