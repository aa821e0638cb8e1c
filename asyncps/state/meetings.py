"""Something that all workers call, such as a barrier: who has come, and who is waited for.

The nth call of each worker belongs to generation n. Whoever leaves for good breaks what waits for
it, and they hear of that. Who is lost while the job goes on, or rests since it has no more data, is
waited for no longer, and breaks nothing; but a save or load that a lost worker was part of has
failed, and `leave` says why.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from asyncps.errors import ClusterError
from asyncps.protocol import messages as m

# What a worker says as it calls.
Words = m.SetOptimizer | m.SetCompression | m.Together | m.Word | None


@dataclass(frozen=True, slots=True)
class Call:
    """One worker's call of something that all workers must call."""

    rank: int
    request: int
    words: Words


class Meeting:
    """One kind of such calls."""

    def __init__(self, members: Iterable[int]) -> None:
        self._members = set(members)  # who is waited for
        self._came = dict.fromkeys(self._members, 0)
        self._open: dict[int, list[Call]] = {}
        self._broken: list[tuple[range, ClusterError]] = []  # generations that wait for who left

    def come(self, rank: int, request: int, words: Words) -> list[Call] | None:
        """A worker calls; returns the calls of its generation, by rank, if it was the last.

        Raises:
            ClusterError: A worker that left without coming was already waited for.
        """
        generation = self._came[rank]
        self._came[rank] = generation + 1
        for generations, why in self._broken:
            if generation in generations:
                raise why
        self._open.setdefault(generation, []).append(Call(rank, request, words))
        return self._take_if_complete(generation)

    def leave(
        self, rank: int, why: ClusterError | None = None
    ) -> tuple[list[list[Call]], list[Call]]:
        """A worker leaves: returns the generations this completes, and the calls it breaks.

        Args:
            rank: Who.
            why: What those hear who wait for it; default that it has left.
        """
        if rank not in self._members:
            return self.lose(rank)
        self._members.discard(rank)
        came = self._came.pop(rank)
        broken: list[Call] = []
        for generation in sorted(self._open):
            if generation >= came:
                broken += self._open.pop(generation)
        furthest = max(self._came.values(), default=0)
        if furthest > came:
            self._broken.append((range(came, furthest), why or left_error(rank)))
        return self._without(rank), broken

    def lose(self, rank: int) -> tuple[list[list[Call]], list[Call]]:
        """A worker is lost, and the others go on: as `leave`, but nothing breaks."""
        self._members.discard(rank)
        self._came.pop(rank, None)
        return self._without(rank), []

    def rest(self, rank: int) -> list[list[Call]]:
        """A worker is not waited for until `all_back`; returns the generations this completes.

        Where it has come itself, its call still counts.
        """
        self._members.discard(rank)
        return self._take_complete()

    def break_open(self) -> list[Call]:
        """Give up all open generations: returns their calls."""
        calls = [call for generation in sorted(self._open) for call in self._open[generation]]
        self._open.clear()
        return calls

    def all_back(self, ranks: Iterable[int]) -> None:
        """All have rested: from now on everybody is waited for, and stands at one generation."""
        self._members = set(ranks)
        furthest = max(self._came.values(), default=0)
        self._came = dict.fromkeys(self._members, furthest)
        self._broken.clear()

    def missing(self) -> list[tuple[int, list[int], int]]:
        """Return each open generation, who has not come to it, and how many have."""
        return [(generation, sorted(self._members - {call.rank for call in calls}), len(calls))
                for generation, calls in self._open.items()]

    def _without(self, rank: int) -> list[list[Call]]:
        """Drop a worker's own calls; return the generations that are complete now."""
        for generation, calls in list(self._open.items()):
            self._open[generation] = [call for call in calls if call.rank != rank]
            if not self._open[generation]:
                del self._open[generation]
        return self._take_complete()

    def _take_complete(self) -> list[list[Call]]:
        found = [self._take_if_complete(generation) for generation in sorted(self._open)]
        return [calls for calls in found if calls is not None]

    def _take_if_complete(self, generation: int) -> list[Call] | None:
        calls = self._open[generation]
        # The first look is cheap, and enough until the last one comes.
        if len(calls) < len(self._members) or self._members - {call.rank for call in calls}:
            return None
        del self._open[generation]
        return sorted(calls, key=lambda call: call.rank)


def left_error(rank: int) -> ClusterError:
    """Return what those hear who waited for a worker that left."""
    return ClusterError(f"worker {rank} left while others waited for it", rank=rank)
