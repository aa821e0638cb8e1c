"""What one server keeps for one store: its units, and how frames about them are carried out.

Everything here happens between two bytes of a socket: no wait, no clock but the one given in.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from asyncps import optim
from asyncps.errors import (
    AsyncPSError,
    Disagreement,
    OptimizerError,
    UnknownKey,
)
from asyncps.protocol.frames import WAIT, Header
from asyncps.protocol.messages import (
    Install,
    Missing,
    MissingRanks,
    SetHyper,
)
from asyncps.roles.encoded import Contribution, Encoded
from asyncps.roles.holdings import Holdings
from asyncps.roles.holdings import Target as Target
from asyncps.roles.ownsteps import OwnSteps, is_own
from asyncps.roles.parcels import Parcels
from asyncps.roles.plan import bound_of
from asyncps.roles.slab import Slab, parts_of
from asyncps.roles.tableunit import TableParts, wanted
from asyncps.roles.unit import Rules, Unit, Waiter
from asyncps.roles.workshop import Workshop
from asyncps.tensor.pool import Bytes, Pool
from asyncps.tensor.words import Words, prepared

_NOTHING = memoryview(b"")

# Versions of hyper-parameters that are kept: pushes in flight are at most a few versions old.
_KEPT_HYPER = 1024


class Keeper(Holdings):
    """One store on one server: what its frames do to its units.

    Args:
        install: How the store works, as the scheduler tells it.
        members: One bit for each rank that a round waits for.
        pool: Where buffers come from.
        answer: Sends the answer of a waiter that has all its parts.
        workshop: Where optimizers of the user's own work; one of its own if there is none.

    Attributes:
        closed: Who has closed the store, one bit for each: for good, whoever joins.
        parted: Who has left while rounds waited for it, one bit each: not who joined or is lost.
        told_uneven: It is said that they have pushed unequally.
        late_acks: Pushes are acknowledged when they are applied, which may take its time.
        parcels: What workers have for each other.
    """

    def __init__(
        self, install: Install, members: int, pool: Pool, answer: Callable[[Waiter], None],
        workshop: Workshop | None = None,
    ) -> None:
        config = install.config
        super().__init__(pool, Rules(
            config.order, config.reduce, members, bound_of(config),
            multi_precision=config.multi_precision,
        ))
        self.closed = 0
        self.parted = 0
        self.told_uneven = False
        self.late_acks = False
        self.parcels = Parcels()
        self._workshop = workshop
        self._answer = answer
        self.install(install)

    def install(self, install: Install) -> None:
        """Take an optimizer; what an earlier one has left is dropped, unless it is to stay.

        Raises:
            OptimizerError: There is none of that name, or its hyper-parameters are wrong.
        """
        words: Mapping[str, Any] = {}
        if install.optimizer is not None:
            words = _checked_hyper(install.optimizer, install.hyper)
        kept = install.keep and self.rules.optimizer == install.optimizer
        self.rules.optimizer = install.optimizer
        self.rules.hyper = {0: words}
        own = is_own(install.optimizer)
        if own and self.rules.own is None:
            self.rules.own = OwnSteps(self.rules, self._workshop or Workshop(), self._give)
        # Once there were such steps some may be under way, whatever the optimizer is now.
        self.late_acks = self.rules.own is not None and self.rules.bound is None
        for unit in self.units.values():
            if isinstance(unit, Slab):
                unit.apart = own
                if own:
                    self.changes += 1
                    unit.split()
            for part in parts_of(unit):
                if kept:
                    part.forget_failures()
                else:
                    part.forget_optimizer()

    def left(self, rank: int) -> None:
        """Wait for a worker no longer; complete the rounds that waited for it alone."""
        self.rules.members &= ~(1 << rank)
        self.parcels.forget(rank)
        for unit in self.units.values():
            for part in parts_of(unit):
                part.arrived(rank, 1 << 63)
                _forget_waiting(part, rank)
                self.complete(part)

    def complete(self, part: Unit) -> None:
        """Apply what is complete now that there are fewer members, and tell who waited for it."""
        for _, waiters in part.left(self.rules):
            self._give(part, waiters)

    def set_hyper(self, message: SetHyper) -> None:
        """Keep a version of the hyper-parameters.

        Raises:
            Disagreement: Another worker said something else under the same version.
            OptimizerError: They are no hyper-parameters of the store's optimizer.
        """
        if self.rules.optimizer is None:
            raise OptimizerError("no optimizer is set", expected="set_optimizer first")
        words = _checked_hyper(self.rules.optimizer, message.values)
        hyper = self.rules.hyper
        known = hyper.get(message.version)
        if known is not None and known != words:
            raise Disagreement("workers set different hyper-parameters at the same change",
                               expected={n: v for n, v in known.items() if v != words.get(n)},
                               got={n: v for n, v in words.items() if v != known.get(n)})
        hyper[message.version] = words
        while len(hyper) > _KEPT_HYPER:
            del hyper[min(hyper)]

    def check_push(self) -> None:
        """Refuse pushes that could not be applied.

        Raises:
            OptimizerError: There is no optimizer, and no round whose sum could be the value.
        """
        if self.rules.bound != 0 and self.rules.optimizer is None:
            raise OptimizerError("a push that is applied at once needs an optimizer",
                                 expected="set_optimizer first")

    def is_replay(self, target: Target, rank: int, clock: int) -> bool:
        """Tell whether a push was counted before, for all that it speaks of."""
        unit, rows = target
        if isinstance(unit, Unit):
            return unit.is_replay(rank, clock)
        assert rows is not None
        return all(unit.rows[row].is_replay(rank, clock) for row in rows)

    def push(
        self, target: Target, rank: int, header: Header, buffer: Contribution, now: float
    ) -> None:
        """Count a contribution and answer whoever waited for it."""
        unit, rows = target
        clock, rules = header.clock, self.rules
        if isinstance(unit, Unit):
            unit.arrived(rank, header.acked)
            waiters = unit.contribute(rank, clock, buffer, header.hyper, rules, now)
            if waiters:
                self._give(unit, waiters)
            return
        for part, piece in self._by_row(unit, rows, buffer):
            part.arrived(rank, header.acked)
            waiters = part.contribute(rank, clock, piece, header.hyper, rules, now)
            if waiters:
                self._give(part, waiters)

    def arrived(self, target: Target, rank: int, acked: int) -> None:
        """Take note that `rank` has every answer below clock `acked`."""
        unit, rows = target
        if isinstance(unit, Unit):
            unit.arrived(rank, acked)
            return
        assert rows is not None
        for row in rows:
            unit.rows[row].arrived(rank, acked)

    def pull(
        self, target: Target, rank: int, header: Header, port: Any = None, wish: Any = None
    ) -> bool:
        """Answer with the value of round `clock`, now or when it is applied; True when now.

        What `header.acked` says has been noted: see `arrived`, and `push`.
        """
        unit, rows = target
        parts = 1 if isinstance(unit, Unit) else len(rows or ())
        data = header.kind != WAIT
        waiter = Waiter(
            rank, header.request, header.unit, header.priority, data, header.clock,
            [_NOTHING] * parts, parts, None, port, wish,
        )
        if isinstance(unit, Unit):
            if isinstance(unit, TableParts):
                waiter = wanted(waiter, rows)
            done = unit.park(waiter, 0, header.clock)
        else:
            assert rows is not None
            for position, row in enumerate(rows):
                unit.rows[row].park(waiter, position, header.clock)
            done = waiter.pending == 0
        if done:
            self.tell(waiter)
        return done

    def assign(
        self, target: Target, rank: int, header: Header, buffer: Bytes, done: Callable[[], None]
    ) -> None:
        """Replace values; `done` is called when they stand, which is at once as a rule."""
        unit, rows = target
        clock, request = header.clock, header.request
        pieces: list[tuple[Unit, Bytes]] = (
            [(unit, buffer)] if isinstance(unit, Unit) else list(self._rows_of(unit, rows, buffer))
        )
        left = len(pieces)

        def assign(part: Unit, piece: Bytes) -> None:
            nonlocal left
            part.assign(rank, clock, request, piece)
            left -= 1
            if not left:
                done()

        for part, piece in pieces:
            if self.rules.own is None:
                assign(part, piece)
            else:
                self.rules.own.assign(part, rank, request, partial(assign, part, piece))

    def missing(self, message: Missing) -> MissingRanks:
        """Return the ranks that a round waits for, and the optimizer if it is at work."""
        unit = self.units.get(message.unit)
        if unit is None:
            raise UnknownKey("no such unit on this server", got=message.unit)
        ranks: set[int] = set()
        parts: Sequence[Unit] = parts_of(unit)
        if isinstance(unit, Slab) and unit.whole is None and message.rows:
            unit.size_of(message.rows)
            parts = [unit.rows[row] for row in message.rows]
        elif len(parts) > 1:  # the rows that somebody waits for, as far as that can be seen
            parts = [part for part in parts if message.clock in part.parked] or parts
        at_work = ""
        for part in parts:
            ranks.update(part.missing(message.clock, self.rules.members))
            if self.rules.own is not None:
                at_work = at_work or self.rules.own.at_work(part)
        return MissingRanks(sorted(ranks), at_work)

    def _by_row(
        self, slab: Slab, rows: Any, buffer: Contribution
    ) -> Iterator[tuple[Unit, Contribution]]:
        """Yield some rows of a slab, each with its part of a contribution, which goes back."""
        if isinstance(buffer, Encoded):
            yield from zip([slab.rows[row] for row in rows], buffer.split(), strict=True)
            self.pool.give(buffer.buffer)
        else:
            yield from self._rows_of(slab, rows, buffer)

    def _rows_of(self, slab: Slab, rows: Any, buffer: Bytes) -> Iterator[tuple[Unit, Bytes]]:
        """Yield some rows of a slab, each with its part of a payload; the buffer goes back."""
        assert rows is not None
        begin = 0
        for row in rows:
            part = slab.rows[row]
            piece = self.pool.take(part.size)
            piece[:] = buffer[begin : begin + part.size]
            begin += part.size
            yield part, piece
        self.pool.give(buffer)

    def _give(self, unit: Unit, waiters: list[tuple[Waiter, int]]) -> None:
        for waiter, position in waiters:
            if unit.give(waiter, position):
                self.tell(waiter)

    def tell(self, waiter: Waiter) -> None:
        """Answer a waiter that has all its parts, or an error."""
        if waiter.error is not None and waiter.error.key is None:
            waiter.error.key = self.name_of(waiter.unit)
        self._answer(waiter)


def _forget_waiting(unit: Unit, rank: int) -> None:
    """Nobody takes what a rank that has left waits for: it would be owed for ever."""
    for clock, entries in list(unit.parked.items()):
        for asker in [asker for asker in entries if asker[0] == rank]:
            del entries[asker]
        if not entries:
            del unit.parked[clock]


def _checked_hyper(name: str, hyper: Mapping[str, Any]) -> Words:
    kind = optim.by_name(name)
    found = optim.checked(kind, hyper)
    if not found.keys() >= kind.defaults.keys() - {"lr_mult", "wd_mult", "lazy_update"}:
        raise OptimizerError(f"{name} needs all its hyper-parameters",
                             expected=", ".join(kind.defaults), got=", ".join(found))
    return prepared(found)


def typed(error: AsyncPSError, key: Any, host: str) -> AsyncPSError:
    """Add what the caller must know to an error that a frame caused."""
    if error.key is None:
        error.key = key
    if error.host is None:
        error.host = host
    return error
