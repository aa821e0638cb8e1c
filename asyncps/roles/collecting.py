"""The collective calls of one rank: from groups of arrays to frames, and back.

Small arrays travel with the word that they are called, to all; each rank reduces them by itself.
Of large ones only the word travels; when all ranks have said it, chunks go where the schedule says,
into memory that is there.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from asyncps.config import Config
from asyncps.errors import AsyncPSError, DeadlineExceeded, RemoteProtocolError
from asyncps.protocol.collective import Verb
from asyncps.protocol.frames import COLLECT, JOINED, PARTED, Header
from asyncps.roles.early import Early
from asyncps.roles.farewell import Farewell, heard
from asyncps.roles.made import Came, Made, Ranks, give_back, parted, taken, whom, without
from asyncps.roles.peer import Peer
from asyncps.roles.planned import at_once, plan
from asyncps.roles.reducing import reduce_into
from asyncps.roles.running import Running
from asyncps.state.matching import AllJoined, Calls, Differ, One, Outcome, Whole
from asyncps.tensor import dtypes
from asyncps.tensor.pool import Bytes, SharedPool

log = logging.getLogger(__name__)

_POOL_BYTES = 64 << 20


class Collecting:
    """All collective calls of one rank. Runs on the loop.

    Args:
        config: The deadlines.
        me: This rank.
        world: How many ranks there are.
        now: The loop's clock.
    """

    def __init__(
        self, config: Config, me: int, world: int, now: Callable[[], float]
    ) -> None:
        self.config = config
        self.me = me
        self.peers = {rank: Peer(rank, self) for rank in range(world) if rank != me}
        self.sets = {0: Ranks(0, range(world), me)}
        self.failure: AsyncPSError | None = None
        self.pool = SharedPool(_POOL_BYTES)
        self._now = now
        self._next = 1
        self._made: dict[int, Made] = {}  # by the number of the first call, until all have ended
        self._open: set[int] = set()  # calls of ours that have not ended
        self._running: dict[int, Running] = {}
        self._early = Early()
        self._telling = False
        self.farewell = Farewell(me, self.peers)

    # ---- from the user ----

    def call(self, number: int, made: Made) -> None:
        """Make a group of calls.

        Args:
            number: Of the set of ranks.
            made: What is called.
        """
        ranks = self.sets[number]
        if (gone := self.failure or ranks.leaver(self.peers)) is not None:
            return self._fail(made, gone)
        made.since, made.number = self._now(), number
        base, count = self._next, len(made.group.names)
        self._next += count
        ranks.steps += count
        others = self._others(ranks)
        self._made[base] = made
        self._open.update(range(base, base + count))
        payload = None if made.payload is None else made.payload.data
        arrived = partial(made.let_go, self.pool) if payload else None
        made.sent(len(others))
        for peer in others:
            peer.send(COLLECT, number, base, payload is not None, table=made.table,
                      payload=payload, then=arrived)
        self._carry_out(ranks, lambda: ranks.matching.add(self.me, Calls(made.table, base, made)))

    async def join(self, number: int) -> int:
        """Take part in nothing more until all have joined; return who was the last."""
        ranks = self.sets[number]
        if (gone := self.failure or ranks.leaver(self.peers)) is not None:
            raise gone
        ranks.joining = asyncio.get_running_loop().create_future()
        for peer in self._others(ranks):
            peer.send(JOINED, number, ranks.steps)
        self._carry_out(ranks, lambda: ranks.matching.join(self.me, ranks.steps))
        return await ranks.joining

    def leave(self, number: int = 0) -> None:
        """Tell the others of a set that this rank leaves it; of 0, the job."""
        for peer in self._others(self.sets[number]):
            peer.send(PARTED, number, 0)

    async def all_ended(self, limit_s: float) -> None:
        """Wait until what all have called has ended; or it is too late."""
        await self.farewell.until(lambda: not self._running, limit_s)

    async def all_arrived(self, limit_s: float) -> None:
        """Wait until all that was sent has arrived, or it is too late."""
        await self.farewell.all_arrived(limit_s)
        self._tell()  # the others may wait to hear it

    # ---- from peers ----

    def room(self, size: int) -> Bytes:
        """Return memory for what a peer sends with its calls. Any thread."""
        return taken(size, self.pool)

    def called(self, rank: int, header: Header, table: bytes, payload: Bytes | None) -> None:
        """A peer makes calls."""
        ranks = self._ranks(rank, header)
        small = bool(header.unit)
        if payload is not None and not small:
            raise RemoteProtocolError("arrays with calls that bring none", rank=rank)
        if small and payload is None:
            payload = np.empty(0, np.uint8)
        # Its table is looked into only if it is another than ours.
        calls = Calls(table, header.request, Came(self.peers[rank], payload, len(table)))
        self._carry_out(ranks, lambda: ranks.matching.add(rank, calls))

    def joined(self, rank: int, header: Header) -> None:
        """A peer takes part in nothing more until all have joined."""
        ranks = self._ranks(rank, header)
        self._carry_out(ranks, lambda: ranks.matching.join(rank, header.request))

    def parted(self, rank: int) -> None:
        """A peer has left for good: what needs it fails."""
        self._tell_soon()  # it waits for that before it goes
        for ranks in list(self.sets.values()):
            self._go_without(ranks, rank)
        self.peers[rank].forget()
        for running in list(self._running.values()):
            if running.lacks(rank):
                running.fail(parted(rank))

    def failed(self, rank: int, table: bytes) -> None:
        """A peer can go on no more, and so can nobody."""
        here = f"; rank {self.me} waits: {self.whom()}" if self._made else ""
        self.fail(heard(rank, table, here), table)

    def left(self, rank: int, header: Header) -> None:
        """A peer has left a set of ranks: calls there that need it fail."""
        ranks = self._ranks(rank, header)
        ranks.left.add(rank)
        self._go_without(ranks, rank)

    def place(self, rank: int, header: Header) -> memoryview | None:
        """Name the place of a chunk; None for one of a call that has ended here."""
        running = self._running.get(header.request)
        if running is not None:
            return running.place(rank, header)
        if not 0 < header.request < self._next:
            raise RemoteProtocolError("a chunk of no call", rank=rank, got=header.request)
        if header.request not in self._open:
            return None
        return self._early.room(rank, header)

    def part(self, rank: int, header: Header) -> None:
        """A chunk is at its place."""
        running, early = self._running.get(header.request), self._early.done(rank)
        if early is not None and running is None and header.request in self._open:
            self._early.keep(self.peers[rank], header, early)
        elif running is not None:
            self._take(running, rank, header, early)

    def cut(self, rank: int) -> None:
        """The connection to a peer is gone."""
        self._early.cut(rank)

    def _take(self, running: Running, rank: int, header: Header, early: Bytes | None) -> None:
        if early is not None:
            running.place(rank, header)[:] = early.data
        running.came(rank, header)
        if running.has_all:
            self._tell_soon()

    def _others(self, ranks: Ranks) -> list[Peer]:
        return [self.peers[rank] for rank in ranks.matching.ranks if rank != self.me]

    def _ranks(self, rank: int, header: Header) -> Ranks:
        ranks = self.sets.get(header.store)
        if ranks is None or rank not in ranks.matching.ranks:
            raise RemoteProtocolError("a call of ranks that are no set", rank=rank,
                                      got=header.store)
        return ranks

    # ---- what is complete ----

    def _carry_out(self, ranks: Ranks, event: Callable[[], Sequence[Outcome]]) -> None:
        if self.failure is not None:  # a frame that was read together with the one that ended all
            return
        try:
            for outcome in event():
                self._come_to(ranks, outcome)
        except AsyncPSError as error:  # what a peer has said of its calls cannot be
            self.fail(error)

    def _come_to(self, ranks: Ranks, outcome: Outcome) -> None:
        if isinstance(outcome, AllJoined):
            if ranks.joining is not None and not ranks.joining.done():
                ranks.joining.set_result(outcome.last)
        elif isinstance(outcome, Whole):
            mine = outcome.by_rank.get(self.me)
            count = len(next(iter(outcome.by_rank.values())).group.names)
            if mine is not None and mine.payload.open:
                self._whole(ranks, mine, outcome.by_rank)
            for calls in outcome.by_rank.values():
                if calls is not mine:
                    calls.payload.let_go(count, count, self.pool)
        else:
            mine_one = outcome.by_rank.get(self.me)
            if mine_one is None or mine_one.at not in mine_one.calls.payload.open:
                pass
            elif isinstance(outcome, Differ):
                self._ended(mine_one.calls, mine_one.at, None, outcome.error)
            else:
                self._single(ranks, mine_one, outcome.by_rank)
            for one in outcome.by_rank.values():
                if isinstance(one.calls.payload, Came):
                    one.calls.payload.let_go(1, len(one.calls.group.names), self.pool)

    def _whole(self, ranks: Ranks, mine: Calls, by_rank: dict[int, Calls]) -> None:
        made: Made = mine.payload
        count = len(made.group.names)
        is_sum = made.group.verb == Verb.ALL_REDUCE
        if count == 1 or not is_sum or any(c.payload.payload is None for c in by_rank.values()):
            for at in range(count):
                self._single(ranks, One(mine, at),
                             {rank: One(calls, at) for rank, calls in by_rank.items()})
            return
        parts = self._payloads(made, by_rank)
        results = taken(parts[0].nbytes, self.pool)
        reduce_into(dtypes.by_name(made.group.dtype), made.group.op, parts, results,
                    made.group.factor)
        del self._made[mine.base]
        self._open.difference_update(range(mine.base, mine.base + count))
        made.open.clear()
        assert made.together is not None
        made.together(results)
        give_back(results, self.pool)
        made.let_go(self.pool)

    def _payloads(self, made: Made, by_rank: dict[int, Calls]) -> list[Bytes]:
        """Return what each rank has sent of equal calls, in their order."""
        assert made.payload is not None
        parts = {rank: by_rank[rank].payload.payload for rank in sorted(by_rank)}
        for rank, part in parts.items():
            if part.nbytes != made.payload.nbytes:
                raise RemoteProtocolError("arrays of another size than their calls say", rank=rank,
                                          expected=made.payload.nbytes, got=part.nbytes)
        return list(parts.values())

    def _single(self, ranks: Ranks, mine: One, by_rank: dict[int, One]) -> None:
        made: Made = mine.calls.payload
        group = made.group
        order = sorted(by_rank)
        if (error := without(group, ranks.matching.ranks, by_rank)) is not None:
            self._ended(mine.calls, mine.at, None, error)
        elif any(one.calls.payload.payload is None for one in by_rank.values()):
            self._run(ranks, mine, [by_rank[rank] for rank in order], order)
        else:
            self._at_once(mine, [by_rank[rank] for rank in order], order)

    def _at_once(self, mine: One, ones: Sequence[One], order: Sequence[int]) -> None:
        """End a call whose arrays have come with its word."""
        made: Made = mine.calls.payload
        result = at_once(made.group, mine.at, made.array(mine.at), ones, order, self.me)
        self._ended(mine.calls, mine.at, result, None)

    def _run(self, ranks: Ranks, mine: One, ones: Sequence[One], order: Sequence[int]) -> None:
        """Begin to move the chunks of a call."""
        made: Made = mine.calls.payload
        group, array = made.group, made.array(mine.at)
        near = [at for at, rank in enumerate(order) if rank != self.me and self.peers[rank].near]
        planned = plan(group, mine.at, array, ones, order, order.index(self.me), near)
        own_number = mine.calls.base + mine.at
        found: Any = None if planned.result is array else planned.result
        if planned.counts is not None:
            found = planned.result, planned.counts

        def ended(error: AsyncPSError | None) -> None:
            del self._running[own_number]
            self.farewell.note()
            self._ended(mine.calls, mine.at, found if error is None else None, error)

        running = self._running[own_number] = Running(
            group, planned.schedule, ranks.number, [one.calls.base + one.at for one in ones],
            [None if rank == self.me else self.peers[rank] for rank in order],
            array, planned.result, planned.shift, self.pool, ended,
        )
        running.start()
        for peer, header, buffer in self._early.take(own_number):
            self._take(running, peer.rank, header, buffer)
        if running.has_all:
            self._tell_soon()

    def _ended(
        self, calls: Calls, at: int, result: Any, error: AsyncPSError | None
    ) -> None:
        made: Made = calls.payload
        made.open.discard(at)
        self._open.discard(calls.base + at)
        self._early.take(calls.base + at)  # of one that has not begun and never will
        if not made.open:
            self._made.pop(calls.base, None)
            made.let_go(self.pool)
        made.ended(at, result, error)

    def _tell_soon(self) -> None:
        """Let peers know what has come: they may wait for it."""
        if not self._telling:
            self._telling = True
            asyncio.get_running_loop().call_soon(self._tell)

    def _tell(self) -> None:
        self._telling = False
        for peer in self.peers.values():
            peer.tell()

    # ---- ends ----

    def fail(self, error: AsyncPSError, table: bytes = b"") -> None:
        """Nothing can be called any more: all that is open ends with an error, once.

        Args:
            error: Why; the others hear it.
            table: What the others hear, if it is not that.
        """
        if self.failure is None:
            self.failure = error
            try:
                self.farewell.tell(error, table)
            finally:
                self.end_all(error)

    def end_all(self, error: AsyncPSError) -> None:
        """All that is open ends with an error, and nothing can be called any more."""
        self.failure = error
        self._running.clear()
        made, self._made = list(self._made.values()), {}
        for each in made:
            self._fail(each, error)
        for ranks in self.sets.values():
            if ranks.joining is not None and not ranks.joining.done():
                ranks.joining.set_exception(error.again())

    def _go_without(self, ranks: Ranks, rank: int) -> None:
        """A rank has left: what it has not called cannot end, nor what it would have to send to."""
        if rank not in ranks.matching.ranks:
            return
        lacking = {one.calls.base + one.at for one in ranks.matching.lacking(rank)}
        needed = rank in ranks.matching.live()  # by calls; who has joined takes part in none
        for base, made in list(self._made.items()) if needed else ():
            for at in sorted(made.open if made.number == ranks.number else ()):
                is_large = made.payload is None and base + at not in self._running
                if is_large or base + at in lacking:
                    self._ended(Calls(made.table, base, made), at, None, parted(rank))
        if needed and ranks.joining is not None and not ranks.joining.done():
            ranks.joining.set_exception(parted(rank))

    def _fail(self, made: Made, error: AsyncPSError) -> None:
        for at in sorted(made.open):
            made.ended(at, None, error)
        made.open.clear()

    async def watch(self) -> None:
        """Tell of calls that wait for others, and end what waits too long."""
        warned = 0.0
        while self.failure is None:
            await asyncio.sleep(min(0.25, self.config.round_s / 4))
            now = self._now()
            oldest = min((made.since for made in self._made.values()), default=now)
            if now - oldest > self.config.round_s:
                self.fail(DeadlineExceeded(
                    f"a collective call waits for {self.config.round_s:g} s: {self.whom()}"))
            elif now - max(oldest, warned) > self.config.round_warning_s:
                warned = now
                log.warning("rank %d waits for %.0f s: %s", self.me, now - oldest, self.whom())

    def whom(self) -> str:
        """Name the calls that wait, and for whom."""
        return whom(self.sets.values(), [each.waits_for() for each in self._running.values()])
