"""Which collective calls of several ranks go together: those of one name, or of one place among
those without a name. Pure: calls come as events, what is complete is returned.

Ranks that do the same in the same order send equal groups of calls, which are taken whole: one
comparison of bytes for thousands of calls. Where two groups differ they are taken apart, and each
call is matched by its name, in any order.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, NamedTuple

from asyncps.errors import CollectiveMismatch, RemoteProtocolError
from asyncps.protocol.collective import Group, differences, parse

NAMED = 4  # ranks that a message about a mismatch names


@dataclass(slots=True)
class Calls:
    """A group of calls of one rank, as it came.

    Attributes:
        table: What is called: see `protocol.collective`.
        base: The number of the first call, of those of its rank.
        payload: Whatever the caller of this machine has for it.
    """

    table: bytes
    base: int
    payload: Any = None
    _group: Group | None = None
    _begins: list[int] | None = None

    @property
    def begins(self) -> list[int]:
        """Where the array of each call begins, and the end of all, in bytes."""
        if self._begins is None:
            self._begins = [0, *accumulate(self.group.sizes)]
        return self._begins

    @property
    def group(self) -> Group:
        """The table, read."""
        if self._group is None:
            self._group = parse(self.table)
        return self._group


class One(NamedTuple):
    """One call of a group."""

    calls: Calls
    at: int


class Whole(NamedTuple):
    """Equal groups of all ranks."""

    by_rank: dict[int, Calls]


class Single(NamedTuple):
    """One call that all ranks have made."""

    by_rank: dict[int, One]


class Differ(NamedTuple):
    """One call that the ranks have made differently."""

    by_rank: dict[int, One]
    error: CollectiveMismatch


class AllJoined(NamedTuple):
    """Everybody has joined, and is counted again; `last` came last."""

    last: int


Outcome = Whole | Single | Differ | AllJoined


class _Line:
    """The calls of one name, oldest first."""

    def __init__(self) -> None:
        self.open: deque[dict[int, One]] = deque()
        self.first = 0  # the number of the oldest
        self.next: dict[int, int] = {}  # of each rank's next call

    def add(self, rank: int, one: One) -> None:
        number = max(self.next.get(rank, 0), self.first)
        while number - self.first >= len(self.open):
            self.open.append({})
        self.open[number - self.first][rank] = one
        self.next[rank] = number + 1


@dataclass(slots=True)
class _Rank:
    groups: deque[Calls] = field(default_factory=deque)  # not matched, not taken apart
    later: deque[Calls | int] = field(default_factory=deque)  # behind a join that is not over
    joins: int = 0


class Matching:
    """The calls of some ranks, seen by one of them.

    Args:
        ranks: Who takes part.
        me: Whose view this is; one of them.
    """

    def __init__(self, ranks: Sequence[int], me: int) -> None:
        self.ranks = tuple(sorted(ranks))
        self.me = me
        self._ranks = {rank: _Rank() for rank in self.ranks}
        self._lines: dict[str, _Line] = {}
        self._epoch = 0  # how often all have joined
        self._steps: dict[int, int] = {}  # how far each was that has joined

    # ---- events ----

    def add(self, rank: int, calls: Calls) -> list[Outcome]:
        """A rank makes calls."""
        state = self._ranks[rank]
        if state.joins > self._epoch:
            state.later.append(calls)
            return []
        self._take(state, rank, calls)
        return self._complete()

    def join(self, rank: int, steps: int) -> list[Outcome]:
        """A rank takes part in nothing more until all have joined.

        Args:
            rank: Who.
            steps: How many calls it has made in all; who has made most is the last to join.
        """
        state = self._ranks[rank]
        if state.joins > self._epoch:
            if any(isinstance(event, int) for event in state.later):
                raise RemoteProtocolError("a join before the others have joined", rank=rank)
            state.later.append(steps)
            return []
        state.joins += 1
        self._steps[rank] = steps
        return self._complete()

    # ---- what is known ----

    @property
    def is_idle(self) -> bool:
        """Whether nothing is open."""
        return not self._lines and not any(s.groups or s.later for s in self._ranks.values())

    def live(self) -> list[int]:
        """Return the ranks that have not joined."""
        return [rank for rank, state in self._ranks.items() if state.joins <= self._epoch]

    def missing(self) -> dict[str, list[int]]:
        """Return the calls of this rank that are open, by name, and who has not made them."""
        found: dict[str, list[int]] = {}
        live = self.live()
        mine = self._ranks[self.me].groups
        for place, calls in enumerate(mine):
            lacking = [rank for rank in live if len(self._ranks[rank].groups) <= place]
            found.update(dict.fromkeys(calls.group.names, lacking))
        for name, line in self._lines.items():
            for made in line.open:
                if self.me in made:
                    found.setdefault(name, [rank for rank in live if rank not in made])
        return found

    def lacking(self, rank: int) -> list[One]:
        """Return the calls of this rank that are open, and that another one has not made alike."""
        found: list[One] = []
        theirs = self._ranks[rank].groups
        for place, calls in enumerate(self._ranks[self.me].groups):
            if place >= len(theirs) or theirs[place].table != calls.table:
                found += [One(calls, at) for at in range(len(calls.group.names))]
        for line in self._lines.values():
            found += [made[self.me] for made in line.open if self.me in made and rank not in made]
        return found

    # ---- inside ----

    def _take(self, state: _Rank, rank: int, calls: Calls) -> None:
        if self._lines:
            self._take_apart(rank, calls)
        else:
            state.groups.append(calls)

    def _take_apart(self, rank: int, calls: Calls) -> None:
        for at, name in enumerate(calls.group.names):
            line = self._lines.get(name)
            if line is None:
                line = self._lines[name] = _Line()
            line.add(rank, One(calls, at))

    def _complete(self) -> list[Outcome]:
        found: list[Outcome] = []
        while True:
            live = self.live()
            before = len(found)
            if self._lines:
                self._complete_lines(live, found)
            else:
                self._complete_groups(live, found)
            if not live:  # and so nothing is open any more
                found.append(self._all_joined())
            if len(found) == before:
                return found

    def _complete_groups(self, live: Sequence[int], found: list[Outcome]) -> None:
        while True:
            # Whoever has joined meanwhile takes part in what it called before.
            heads = {rank: state.groups for rank, state in self._ranks.items() if state.groups}
            there = {rank: groups[0] for rank, groups in heads.items()}
            tables = {calls.table for calls in there.values()}
            if len(tables) > 1:
                for rank, state in self._ranks.items():
                    groups, state.groups = state.groups, deque()
                    for calls in groups:
                        self._take_apart(rank, calls)
                self._complete_lines(live, found)
                return
            if not there or any(rank not in there for rank in live):
                return
            for groups in heads.values():
                groups.popleft()
            found.append(Whole(there))

    def _complete_lines(self, live: Sequence[int], found: list[Outcome]) -> None:
        for name, line in list(self._lines.items()):
            while line.open and all(rank in line.open[0] for rank in live):
                made = line.open.popleft()
                line.first += 1
                error = _why_not(name, made)
                found.append(Single(made) if error is None else Differ(made, error))
            if not line.open:
                del self._lines[name]

    def _all_joined(self) -> AllJoined:
        self._epoch += 1
        last = max(self._steps, key=lambda rank: (self._steps[rank], rank))
        self._steps = {}
        for rank, state in self._ranks.items():
            while state.later:
                event = state.later.popleft()
                if isinstance(event, int):
                    state.joins += 1
                    self._steps[rank] = event
                    break
                self._take(state, rank, event)
        return AllJoined(last)


def _why_not(name: str, made: Mapping[int, One]) -> CollectiveMismatch | None:
    """Return why calls of one name cannot go together, if so."""
    ranks = sorted(made)
    first = made[ranks[0]]
    texts = []
    for rank in ranks[1:]:
        other = made[rank]
        if first.calls.table == other.calls.table and first.at == other.at:
            continue
        found = differences(first.calls.group, first.at, other.calls.group, other.at)
        if found:
            texts.append(f"ranks {ranks[0]} and {rank}: {', '.join(found)}")
    if not texts:
        return None
    shown = "; ".join(texts[:NAMED]) + ("; ..." if len(texts) > NAMED else "")
    called = f"the call {name!r}" if name else "a call without a name"
    return CollectiveMismatch(f"the ranks make {called} differently: {shown}")
