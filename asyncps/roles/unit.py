"""One unit of a server: its versions, its open rounds, and who waits for them.

A version that a reply was made of is immutable until every worker that it was sent to says that it
has arrived: a cut connection sends it again. The next version therefore goes to a spare buffer,
and only a version that is owed to nobody is updated in place.

Nothing of a contribution touches an accumulator before its last byte is in: whoever receives hands
in whole buffers of the pool. The first contribution of a round *becomes* the accumulator.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from asyncps.errors import AsyncPSError
from asyncps.roles.accumulator import Accumulator
from asyncps.roles.encoded import Contribution, drop
from asyncps.roles.thinned import Version, forget, forget_base, grant
from asyncps.roles.thinned import internal as internal
from asyncps.state.rounds import FIRST, LAST, REPLAY, Rounds
from asyncps.tensor import updates
from asyncps.tensor.dtypes import Array, Dtype
from asyncps.tensor.pool import Bytes, Pool
from asyncps.tensor.words import Span

if TYPE_CHECKING:
    from asyncps.roles.bases import Base
    from asyncps.roles.ownsteps import OwnSteps

# Versions kept for workers that have not said that they arrived. In step it is one; the clock
# window, and answers that wait in a queue, make it a few.
MAX_OLD = 8


@dataclass(slots=True)
class Rules:
    """What all units of one store do alike.

    Attributes:
        order: "arrival" adds contributions as they come, "rank" in rank order.
        reduce: "sum" or "mean".
        members: One bit for each rank that a round waits for.
        bound: 0 for rounds in step; else pushes are applied as they come, and this is how many
            clocks a worker may be ahead of the slowest, None for any number.
        optimizer: Its name, or None: the sum of a round becomes the value.
        hyper: Hyper-parameters by version, prepared.
        multi_precision: Keep f32 weights of f16 and bf16 values.
        rounds: Rounds applied so far.
        waited_s: How long rounds waited for their last contributor, by its rank.
        own: Applies the rounds of a store that has, or had, an optimizer of the user's own.
    """

    order: str
    reduce: str
    members: int
    bound: int | None = 0
    optimizer: str | None = None
    hyper: dict[int, Mapping[str, Any]] = field(default_factory=dict)
    rounds: int = 0
    waited_s: dict[int, float] = field(default_factory=dict)
    multi_precision: bool = False
    own: OwnSteps | None = None

    def hyper_for(self, version: int) -> Mapping[str, Any]:
        """Return the hyper-parameters of a version, or of the next one that is still kept.

        A round that was open when another optimizer came takes the newest.
        """
        found = self.hyper.get(version)
        if found is None:
            later = [v for v in self.hyper if v > version]
            found = self.hyper[min(later) if later else max(self.hyper)]
        return found


@dataclass(slots=True)
class Waiter:
    """A request that is answered when all its parts are there.

    Attributes:
        rank: Who asked.
        request: Its number.
        unit: The unit that it named.
        priority: Of the answer.
        data: Whether the value is wanted, or only the word that it is there.
        parts: The versions that the answer is made of.
        pending: How many of them are still missing.
        error: Why there will be no answer.
        port: Where it asked, if that is not its rank's first connection.
        wish: How the value is to travel; None: as it is.
    """

    rank: int
    request: int
    unit: int
    priority: int
    data: bool
    clock: int
    parts: list[memoryview]
    pending: int
    error: AsyncPSError | None = None
    port: Any = None
    wish: Any = None


class Unit:
    """A chunk, a slab or a row of one.

    Args:
        dtype: Of the stored values.
        buffer: The first value; the unit's from now on.
        pool: Where buffers come from and go back to.
        spans: The keys that the value is made of, in elements; none for one nameless key.
    """

    __slots__ = (
        "base", "current", "dtype", "failed", "old", "open", "parked", "pool", "rounds", "size",
        "spans", "state", "updates",
    )
    accumulator: ClassVar[type[Accumulator]] = Accumulator
    is_dense: ClassVar[bool] = True  # one array, which an optimizer of the user's own knows

    def __init__(
        self, dtype: Dtype, buffer: Bytes, pool: Pool, spans: Sequence[Span] = ()
    ) -> None:
        self.dtype = dtype
        self.pool = pool
        self.spans = spans
        self.size = buffer.nbytes
        self.rounds = Rounds()
        self.current = Version(buffer, 0)
        self.old: list[Version] = []
        self.base: Base | None = None  # what workers hold who are sent changes only
        self.open: dict[Any, Accumulator] = {}  # by clock
        self.parked: dict[int, dict[tuple[int, int], tuple[Waiter, int]]] = {}
        self.failed: dict[int, AsyncPSError] = {}
        self.state: dict[str, Array] = {}
        self.updates = 0

    def contribute(
        self, rank: int, clock: int, buffer: Contribution, hyper: int, rules: Rules, now: float
    ) -> list[tuple[Waiter, int]]:
        """Take a contribution; return the waiters whose part of this unit is now there.

        Args:
            rank: Who contributes.
            clock: To which round.
            buffer: `size` bytes of the pool, or what they were encoded as; the unit's from now on.
            hyper: The version of the hyper-parameters that the contributor holds.
            rules: Those of the store.
            now: Seconds, for statistics.

        Raises:
            RemoteProtocolError: The clock breaks the rules; the buffer went back to the pool.
        """
        try:
            verdict = self.rounds.contribute(rank, clock, rules.members)
        except AsyncPSError:
            drop(buffer, self.pool)
            raise
        if verdict & REPLAY:
            drop(buffer, self.pool)
            return []
        if verdict & FIRST:
            self.open[clock] = self.accumulator(now)
        accumulator = self.open[clock]
        accumulator.count += 1
        accumulator.hyper = max(accumulator.hyper, hyper)
        try:
            if rules.order == "rank":
                accumulator.keep(rank, buffer, self.dtype, self.pool)
            else:
                accumulator.add(self.dtype, buffer, self.pool)
        except Exception as error:  # noqa: BLE001 - logged, and the round fails for everybody
            accumulator.error = internal(error)
        if not verdict & LAST:
            return []
        rules.waited_s[rank] = rules.waited_s.get(rank, 0.0) + now - accumulator.began
        if rules.own is not None:
            rules.own.advance(self)
            return []
        return self.apply(clock, rank, rules)

    def left(self, rules: Rules) -> Iterator[tuple[int, list[tuple[Waiter, int]]]]:
        """Apply, one by one, the rounds that are complete now that there are fewer members.

        Yields:
            The clock and who waited for it; give them their part before going on.
        """
        if rules.own is not None:
            rules.own.advance(self)
            return
        while self.rounds.is_complete(rules.members):
            clock = self.rounds.applied + 1
            yield clock, self.apply(clock, 0, rules)

    def ready(self, members: int) -> list[tuple[int, int]]:
        """Return (clock, rank) of what is complete and not applied, in its order."""
        return [(clock, 0) for clock in self.rounds.complete(members)]

    def held(self, clock: int, rank: int) -> Accumulator:
        """Return the contributions of something that is complete."""
        return self.open[clock]

    def arrived(self, rank: int, acked: int) -> None:
        """Take note that `rank` has every answer below clock `acked`."""
        bit = 1 << rank
        current = self.current
        if current.owed & bit and current.clock < acked:
            current.owed &= ~bit
        if self.old:
            self._release(bit, acked)
        if self.base is not None:
            self.base.arrived(rank, acked)

    def park(self, waiter: Waiter, position: int, clock: int) -> bool:
        """Give a waiter its part, or keep it until round `clock` is applied.

        Returns:
            True when the waiter has all its parts.
        """
        if not self.is_applied(waiter.rank, clock):
            # A request that comes again, after a cut, takes the place of the one before.
            entries = self.parked.setdefault(clock, {})
            entries[waiter.rank, waiter.request] = (waiter, position)
            return False
        return self.give(waiter, position)

    def is_replay(self, rank: int, clock: int) -> bool:
        """Tell whether a push was counted before."""
        return self.rounds.is_replay(rank, clock)

    def is_applied(self, rank: int, clock: int) -> bool:
        """Tell whether `rank` may have the value of its clock."""
        return clock <= self.rounds.applied

    def missing(self, clock: int, members: int) -> list[int]:
        """Return the ranks that a clock waits for, ascending."""
        return self.rounds.missing(clock, members)

    def give(self, waiter: Waiter, position: int) -> bool:
        """Give a waiter its part of an applied round; True when it has all of them."""
        clock = waiter.clock
        error = self.failed.get(clock)
        if not waiter.data:
            pass  # word that the clock is applied, well or not
        elif error is not None:
            waiter.error = error
        else:
            version = self.current
            if version.clock != clock and self.old:
                version = next((v for v in self.old if v.clock == clock), version)
            if waiter.wish is None:
                version.owed |= 1 << waiter.rank
                waiter.parts[position] = version.view
            else:
                grant(self, version, waiter, position)
        waiter.pending -= 1
        return waiter.pending == 0

    def assign(self, rank: int, clock: int, request: int, buffer: Bytes) -> None:
        """Replace the value; the round stays where it is.

        Args:
            rank: Who assigns.
            clock: Of the assigner's last push. A repetition that comes after a cut, and after that
                worker has gone on, is recognised by it and changes nothing.
            request: Its number, which a repetition has too.
            buffer: The value; the unit's from now on.
        """
        if clock < self.rounds.applied:
            self.pool.give(buffer)
        else:
            self.forget_failures()
            self.state.pop(updates.MASTER, None)
            self.publish(buffer, self.current.clock)
            forget_base(self)

    def is_fresh(self) -> bool:
        """Tell whether nobody has pushed, and nobody waits for a value or may ask for it again."""
        return not (
            self.rounds.applied or self.rounds.pushed or self.open or self.parked or self.failed
            or self.old or self.current.owed or self.updates or self.state
        )

    def forget_failures(self) -> None:
        """The value is a new one, or others count from now on: what failed before is past."""
        self.failed.clear()

    def forget_optimizer(self) -> None:
        """Drop what an optimizer left behind; the f32 weights are the value's and stay."""
        self.forget_failures()
        self.state = {k: v for k, v in self.state.items() if k == updates.MASTER}
        self.updates = 0

    def adopt(self, other: Unit) -> None:
        """Stand where another unit stands: the whole of a row, or a row of the whole."""
        self.rounds = other.rounds.copy()
        self.current.owed |= other.current.owed

    def keep_versions(self, whole: Unit, begin: int, end: int) -> None:
        """Keep those of the whole that may be asked for again; this row is these bytes of it."""
        for version in whole.old:
            older = Version(version.buffer[begin:end].copy(), version.clock)
            older.owed = version.owed
            self.old.append(older)

    def agrees_with(self, other: Unit) -> bool:
        """Tell whether two rows stand at the same clocks with nothing open, and nothing kept."""
        return not self.old and self.rounds.agrees_with(other.rounds)

    def apply(self, clock: int, rank: int, rules: Rules) -> list[tuple[Waiter, int]]:
        """Apply what is complete; return who waited for it."""
        accumulator = self.open.pop(clock)
        rules.rounds += 1
        self.failed.clear()
        error = accumulator.error
        if error is None:
            try:
                self._compute(accumulator, clock, rules)
            except AsyncPSError as refused:
                error = refused
            except Exception as failed:  # noqa: BLE001 - logged there
                # Such as no memory. The round must not vanish: everybody is told.
                error = internal(failed)
        if error is not None:
            # The weights stay, the clock moves on, and every waiter hears why.
            self.failed[clock] = error
            self.current.clock = clock
        self.rounds.apply()
        return list(self.parked.pop(clock, {}).values())

    def _compute(self, accumulator: Accumulator, clock: int, rules: Rules) -> None:
        if accumulator.outcome is not None:
            accumulator.outcome(clock)
            return
        if accumulator.skipped:
            self.current.clock = clock
            return
        total = accumulator.total(self.dtype, self.pool, rules.reduce)
        if rules.optimizer is None:
            self.state.pop(updates.MASTER, None)
            self.publish(self._narrow(total), clock)
        else:
            self._step(total, clock, rules.optimizer, rules, accumulator.hyper)

    def _narrow(self, total: Bytes) -> Bytes:
        if self.dtype.narrow is None:
            return total
        stored = self.pool.take(self.size)
        self.dtype.narrow(stored.view(self.dtype.bits), total.view(self.dtype.sum))
        self.pool.give(total)
        return stored

    def _step(self, total: Bytes, clock: int, optimizer: str, rules: Rules, version: int) -> None:
        hyper = rules.hyper_for(version)
        updates.check_usable(optimizer, self.dtype, hyper)
        bits = self.dtype.bits
        weights = self.current.buffer.view(bits)
        in_place = not self.current.owed
        if in_place:
            forget(self.current, self.pool)
        buffer = self.current.buffer if in_place else self.pool.take(self.size)
        # A step that fails is no update: the next one is counted as this one would have been.
        updates.run(
            optimizer, self.dtype, buffer.view(bits), weights, total.view(self.dtype.sum),
            self.state, hyper, self.updates + 1, self.spans, rules.multi_precision,
        )
        self.updates += 1
        self.pool.give(total)
        if in_place:
            self.current.clock = clock
        else:
            self.publish(buffer, clock)

    def publish(self, buffer: Bytes, clock: int) -> None:
        """Let a buffer be the current version; the unit's from now on."""
        before = self.current
        self.current = Version(buffer, clock)
        if before.owed:
            self.old.append(before)
            if len(self.old) > MAX_OLD:
                # Somebody never says what has arrived. Not to the pool: it may still be sent.
                del self.old[0]
        else:
            forget(before, self.pool)
            self.pool.give(before.buffer)

    def _release(self, bit: int, acked: int) -> None:
        for version in self.old:
            if version.clock < acked:
                version.owed &= ~bit
        for version in [v for v in self.old if not v.owed]:
            self.old.remove(version)
            forget(version, self.pool)
            self.pool.give(version.buffer)
