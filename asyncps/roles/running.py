"""One collective call whose arrays travel in chunks: carries out what its schedule says."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from asyncps.errors import AsyncPSError, RemoteProtocolError
from asyncps.protocol.collective import Group
from asyncps.protocol.frames import PART, Flag, Header
from asyncps.roles.peer import Peer
from asyncps.roles.reducing import reduce_into
from asyncps.state.schedules import Reduce, Schedule, Step
from asyncps.tensor import dtypes
from asyncps.tensor.pool import Bytes, Pool

RESULT = int(Flag.RESULT)


class Running:
    """A call that all ranks have made.

    Args:
        group: What is called.
        schedule: What is sent and reduced.
        number: Of the set of ranks.
        calls: What each of those that take part calls it, by place.
        peers: The same ranks; None for this one.
        source: This rank's array, as bytes.
        result: Where the result belongs: the same memory, or memory apart.
        shift: Of a result that is a share of the array: where that begins.
        pool: Lends memory for contributions.
        ended: Called once, when all is there and all that was sent has arrived, or with an error.
    """

    def __init__(
        self, group: Group, schedule: Schedule, number: int, calls: Sequence[int],
        peers: Sequence[Peer | None], source: Bytes, result: Bytes, shift: int, pool: Pool,
        ended: Callable[[AsyncPSError | None], None],
    ) -> None:
        self._dtype = dtypes.by_name(group.dtype)
        self._group = group
        self._schedule = schedule
        self._number = number
        self._calls = calls
        self._peers = peers
        self._me = list(peers).index(None)
        self._source = source
        self._result = result
        self._shift = shift
        self._pool = pool
        self._ended: Callable[[AsyncPSError | None], None] | None = ended
        self._places = {peer.rank: place for place, peer in enumerate(peers) if peer is not None}
        self._given: dict[tuple[int, int], Bytes] = {}  # contributions, by chunk and place
        self._under_way = 0
        self._unheard = [0] * len(peers)  # chunks to each that it has not said it has

    def start(self) -> None:
        """Send what can be sent at once."""
        self._carry_out(self._schedule.first())

    @property
    def has_all(self) -> bool:
        """Whether all that was to come is there."""
        return self._schedule.is_done

    def lacks(self, rank: int) -> bool:
        """Tell whether something of a rank has not come."""
        return rank in self._places and self._schedule.lacks(self._places[rank])

    def waits_for(self) -> list[int]:
        """Return the ranks whose chunks it goes on with; else those who have not said that they
        have ours.
        """
        lacking = self._schedule.waits_for()
        return sorted(rank for rank, place in self._places.items()
                      if (place in lacking if lacking else self._unheard[place]))

    def fail(self, error: AsyncPSError) -> None:
        """It cannot end well any more."""
        self._end(error)

    def place(self, rank: int, header: Header) -> memoryview:
        """Name the place of a chunk.

        Raises:
            RemoteProtocolError: It is not to come.
        """
        source, number = self._places.get(rank, self._me), header.unit
        place = self._schedule.place(source, number, bool(header.flags & RESULT))
        if place is None or place.stop - place.start != header.payload_bytes:
            raise RemoteProtocolError("a chunk that is not to come", rank=rank, got=number)
        if place.is_result:
            return self._result[place.start : place.stop].data
        buffer = self._given.get((number, source))  # it is there if a cut chunk comes again
        if buffer is None:
            buffer = self._given[number, source] = self._pool.take(header.payload_bytes)
        return buffer.data

    def came(self, rank: int, header: Header) -> None:
        """A chunk is at its place."""
        self._carry_out(self._schedule.came(
            self._places[rank], header.unit, bool(header.flags & RESULT)))

    def _carry_out(self, steps: Sequence[Step]) -> None:
        self._under_way += 1
        for step in steps:
            if isinstance(step, Reduce):
                self._reduce(step)
                continue
            peer = self._peers[step.to]
            assert peer is not None
            self._under_way += 1
            self._unheard[step.to] += 1
            # What is reduced lies in the result; what is only moved has never left the source.
            peer.send(
                PART, self._number, self._calls[step.to], step.number,
                RESULT if step.is_result else 0,
                payload=self._source[step.start : step.stop].data,
                then=partial(self._arrived, step.to),
            )
        self._one_less()

    def _reduce(self, step: Reduce) -> None:
        parts = [self._source[step.start : step.stop] if place == self._me
                 else self._given.pop((step.number, place)) for place in range(len(self._peers))]
        out = self._result[step.start - self._shift : step.stop - self._shift]
        reduce_into(self._dtype, self._group.op, parts, out, self._group.factor)
        for place, part in enumerate(parts):
            if place != self._me:
                self._pool.give(part)

    def _arrived(self, place: int) -> None:
        self._unheard[place] -= 1
        self._one_less()

    def _one_less(self) -> None:
        self._under_way -= 1
        if not self._under_way and self._schedule.is_done and self._ended is not None:
            self._end(None)

    def _end(self, error: AsyncPSError | None) -> None:
        ended, self._ended = self._ended, None
        if ended is not None:
            ended(error)
