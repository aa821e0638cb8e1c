"""Who sends which elements of one collective call to whom, and in what order they are reduced.

Pure: a schedule tells what to send first, where what comes belongs, and what follows from it. All
ranks derive theirs from the same numbers, so none is told anything.

For sums each rank owns a share of the array: all send it theirs, it reduces in the order of ranks,
and sends the result to all (the bytes of a ring, one rounding). Shares travel in chunks, so that
receiving, adding and sending overlap, and few of them are under way at once. Another schedule may
be put in its place; if it reduces in another order, its bits differ from these.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Sequence
from typing import NamedTuple, Protocol

# Chunks of an owner that a rank contributes to before the result of the first is back. What is
# added and sent on is then still in the caches: all at once, 100 MB take 1.2 times as long. Where
# both are on one machine they share its processors and caches, and a second chunk only fills them;
# over a network it hides the way there and back.
WINDOW, NEAR_WINDOW = 2, 1

EDGE_BYTES = 64  # shares begin at cache lines


class Send(NamedTuple):
    """Send a stretch of this rank's array.

    Attributes:
        to: The place of a rank among those that take part.
        number: Of the chunk, as the receiver counts.
        start, stop: Bytes of the array.
        is_result: It is reduced; else a contribution.
    """

    to: int
    number: int
    start: int
    stop: int
    is_result: bool


class Reduce(NamedTuple):
    """All contributions to a chunk of ours are here: reduce it."""

    number: int
    start: int
    stop: int


class Place(NamedTuple):
    """Where a chunk that comes belongs.

    Attributes:
        start, stop: Bytes of the result; of a contribution they are of the array.
        is_result: It lands there; a contribution waits beside it.
    """

    start: int
    stop: int
    is_result: bool


Step = Send | Reduce


class Schedule(Protocol):
    """One call at one rank; places count those that take part."""

    def first(self) -> list[Step]:
        """Return what is to be done at once."""

    def place(self, source: int, number: int, is_result: bool) -> Place | None:
        """Return where a chunk of `source` belongs; None if none is to come."""

    def came(self, source: int, number: int, is_result: bool) -> list[Step]:
        """Take note that it is there; return what is to be done now."""

    def lacks(self, source: int) -> bool:
        """Tell whether something of `source` is still to come."""

    def waits_for(self) -> list[int]:
        """Return whose chunks it goes on with."""

    @property
    def is_done(self) -> bool:
        """Whether all that was to come is there, and all is reduced."""


def shares(nbytes: int, itemsize: int, parts: int) -> list[int]:
    """Return where the share of each rank begins, in bytes, and the end of all."""
    edge = max(itemsize, EDGE_BYTES // itemsize * itemsize)
    edges = -(-nbytes // edge)
    return [min(edges * part // parts * edge, nbytes) for part in range(parts + 1)]


def cut(start: int, stop: int, chunk: int) -> list[tuple[int, int]]:
    """Cut a stretch into chunks that are as equal as cache lines let them be."""
    size = stop - start
    if size <= 0:
        return []
    count = -(-size // chunk)
    step = -(-size // (count * EDGE_BYTES)) * EDGE_BYTES
    return [(at, min(at + step, stop)) for at in range(start, stop, step)]


class Reduction:
    """All-reduce, or reduce-scatter if nothing comes back.

    Args:
        me: The place of this rank.
        bounds: Where the share of each rank begins, in bytes, and the end of all.
        chunk: Bytes of a chunk at most; a multiple of 64.
        comes_back: The results go to all.
        near: The places of ranks on this one's machine.
    """

    def __init__(
        self, me: int, bounds: Sequence[int], chunk: int, *, comes_back: bool,
        near: Collection[int] = (),
    ) -> None:
        self._me = me
        self._parts = len(bounds) - 1
        self._comes_back = comes_back
        self._windows = [NEAR_WINDOW if place in near else WINDOW for place in range(self._parts)]
        self._chunks: list[tuple[int, int, int]] = []  # owner, start, stop
        turns: list[tuple[int, int, int]] = []  # turn of its owner, distance, number
        for owner in range(self._parts):
            for turn, (start, stop) in enumerate(cut(bounds[owner], bounds[owner + 1], chunk)):
                turns.append((turn, (owner - me) % self._parts, len(self._chunks)))
                self._chunks.append((owner, start, stop))
        self._order = [number for _, _, number in sorted(turns)]
        # By owner: chunks that are contributed to when results of earlier ones are back.
        self._later: list[deque[int]] = [deque() for _ in range(self._parts)]
        others = self._parts - 1
        self._missing = {number: others for number, (owner, _, _) in enumerate(self._chunks)
                         if owner == me}  # contributions to each chunk of ours
        self._seen: set[tuple[int, int]] = set()
        results = len(self._chunks) - len(self._missing) if comes_back else 0
        self._left = results + len(self._missing)

    def first(self) -> list[Step]:
        """Send contributions, so that all owners have work at once."""
        steps: list[Step] = []
        sent = [0] * self._parts
        for number in self._order:
            owner, start, stop = self._chunks[number]
            if owner == self._me:
                if self._parts == 1:
                    steps += self._reduced(number)
            elif self._comes_back and sent[owner] == self._windows[owner]:
                self._later[owner].append(number)
            else:
                sent[owner] += 1
                steps.append(Send(owner, number, start, stop, False))
        return steps

    def place(self, source: int, number: int, is_result: bool) -> Place | None:
        """As `Schedule.place`."""
        if number >= len(self._chunks) or (source, number) in self._seen or source == self._me:
            return None
        owner, start, stop = self._chunks[number]
        wanted = owner == source and self._comes_back if is_result else owner == self._me
        return Place(start, stop, is_result) if wanted else None

    def came(self, source: int, number: int, is_result: bool) -> list[Step]:
        """As `Schedule.came`."""
        self._seen.add((source, number))
        if is_result:
            self._left -= 1
            later = self._later[source]
            if not later:
                return []
            number = later.popleft()
            _, start, stop = self._chunks[number]
            return [Send(source, number, start, stop, False)]
        self._missing[number] -= 1
        return [] if self._missing[number] else self._reduced(number)

    def lacks(self, source: int) -> bool:
        """As `Schedule.lacks`."""
        return any(
            (source, number) not in self._seen for number, (owner, _, _) in enumerate(self._chunks)
            if owner == self._me or (owner == source and self._comes_back)
        )

    def waits_for(self) -> list[int]:
        """As `Schedule.waits_for`: who lacks in our next chunk; else whose results do."""
        for number, missing in self._missing.items():
            if missing:
                return [source for source in range(self._parts)
                        if source != self._me and (source, number) not in self._seen]
        return [source for source in range(self._parts) if self.lacks(source)]

    def _reduced(self, number: int) -> list[Step]:
        _, start, stop = self._chunks[number]
        self._left -= 1
        steps: list[Step] = [Reduce(number, start, stop)]
        if self._comes_back:
            steps += [Send((self._me + distance) % self._parts, number, start, stop, True)
                      for distance in range(1, self._parts)]
        return steps

    @property
    def is_done(self) -> bool:
        """As `Schedule.is_done`."""
        return not self._left


class Flow(NamedTuple):
    """Bytes of one rank's array that go to one rank's result.

    Attributes:
        source, to: Places.
        start, stop: Of the source's array.
        at: Where they begin in the receiver's result.
    """

    source: int
    to: int
    start: int
    stop: int
    at: int


class Transfer:
    """Broadcast, all-gather and all-to-all: bytes go where they belong.

    Args:
        me: The place of this rank.
        flows: All of them, in an order that all ranks know; none is to its own source.
        chunk: Bytes of a chunk at most.
    """

    def __init__(self, me: int, flows: Sequence[Flow], chunk: int) -> None:
        self._me = me
        self._sends: list[tuple[int, Send]] = []
        self._places: dict[tuple[int, int], Place] = {}
        count: dict[tuple[int, int], int] = {}  # chunks from one to another
        for flow in flows:
            pair = flow.source, flow.to
            for start, stop in cut(flow.start, flow.stop, chunk):
                number = count[pair] = count.get(pair, -1) + 1
                if flow.source == me:
                    self._sends.append((number, Send(flow.to, number, start, stop, True)))
                elif flow.to == me:
                    at = flow.at + start - flow.start
                    self._places[flow.source, number] = Place(at, at + stop - start, True)

    def first(self) -> list[Step]:
        """Send all; all receivers have work at once."""
        self._sends.sort(key=lambda turn: turn[0])
        return [send for _, send in self._sends]

    def place(self, source: int, number: int, is_result: bool) -> Place | None:
        """As `Schedule.place`."""
        return self._places.get((source, number)) if is_result else None

    def came(self, source: int, number: int, is_result: bool) -> list[Step]:
        """As `Schedule.came`."""
        self._places.pop((source, number), None)
        return []

    def lacks(self, source: int) -> bool:
        """As `Schedule.lacks`."""
        return any(place[0] == source for place in self._places)

    def waits_for(self) -> list[int]:
        """As `Schedule.waits_for`."""
        return sorted({source for source, _ in self._places})

    @property
    def is_done(self) -> bool:
        """As `Schedule.is_done`."""
        return not self._places


def broadcast_flows(root: int, parts: int, nbytes: int) -> list[Flow]:
    """From the root to all others."""
    return [Flow(root, to, 0, nbytes, 0) for to in range(parts) if to != root]


def gather_flows(sizes: Sequence[int]) -> list[Flow]:
    """From all to all; the result has the arrays of `sizes` bytes behind each other."""
    begins = [sum(sizes[:place]) for place in range(len(sizes))]
    return [Flow(source, to, 0, sizes[source], begins[source])
            for source in range(len(sizes)) for to in range(len(sizes)) if to != source]


def exchange_flows(splits: Sequence[Sequence[int]]) -> list[Flow]:
    """From each to each what its splits say, in bytes; results are in the order of sources."""
    parts = range(len(splits))
    return [
        Flow(source, to, sum(splits[source][:to]), sum(splits[source][: to + 1]),
             sum(splits[before][to] for before in range(source)))
        for source in parts for to in parts if to != source
    ]
