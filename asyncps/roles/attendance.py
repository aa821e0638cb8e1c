"""Whom the rounds of one store on a server wait for, as workers join, return, or are lost.

A worker that has joined stays a member of the job: what it pushed counts, what it asked for is
answered, and its versions are kept. Only the rounds do not wait for it, until all have joined.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from asyncps.errors import RemoteProtocolError, StaleIncarnation
from asyncps.protocol.attending import MAX_CLOCK_UNITS
from asyncps.protocol.messages import Clocks
from asyncps.roles.freeunit import FreeUnit
from asyncps.roles.keeper import Keeper
from asyncps.roles.slab import parts_of
from asyncps.roles.uneven import note_parted, note_return
from asyncps.roles.unit import Unit
from asyncps.state.rounds import Rounds
from asyncps.state.staleness import Arrivals

if TYPE_CHECKING:
    from asyncps.roles.port import WorkerPort

Call = Callable[[], None]


def attend(
    keeper: Keeper, rank: int | None, everybody: Callable[[], int], done: Call, *,
    closed: bool = False,
) -> None:
    """Carry out what the scheduler says of a store.

    Args:
        keeper: The store.
        rank: Who has joined or closed the store, and is not waited for; None: all have joined, and
            all that have not closed it count again.
        everybody: Returns one bit for each worker that has not left.
        done: Called when it is so: at once, unless an optimizer of the user's own is at work and
            all are to count again. They begin where that ends.
        closed: That rank has closed the store. What it waits for it still gets.
    """
    rules = keeper.rules
    if closed and rank is not None:
        keeper.closed |= 1 << rank
        note_parted(keeper, rules.members & 1 << rank)
    rules.members = 0 if rank is None else rules.members & ~(1 << rank)
    for unit in keeper.units.values():
        for part in parts_of(unit):
            keeper.complete(part)
    if rank is not None:
        done()
    elif rules.own is None:
        _count_again(keeper, everybody, done)
    else:
        rules.own.when_idle(partial(_count_again, keeper, everybody, done))


def _count_again(keeper: Keeper, everybody: Callable[[], int], done: Call) -> None:
    members = keeper.rules.members = everybody() & ~keeper.closed
    note_return(keeper, members)
    for unit in keeper.units.values():
        for part in parts_of(unit):
            _clocks_of(part).count_again(members)
            part.forget_failures()  # they were of clocks that nobody stands at any more
    done()


def clocks(keeper: Keeper, rank: int, asked: Clocks) -> Clocks:
    """Answer a worker that asks for its clocks.

    Raises:
        RemoteProtocolError: It asks for more than a worker of ours does at once, or repeats.
    """
    if len(asked.units) > MAX_CLOCK_UNITS:
        raise RemoteProtocolError("too many units in one question",
                                  expected=f"at most {MAX_CLOCK_UNITS}", got=len(asked.units))
    if len(set(asked.units)) != len(asked.units):
        raise RemoteProtocolError("a unit twice in one question", got=asked.units)
    return Clocks(asked.store, asked.units, [_of_unit(keeper, rank, unit) for unit in asked.units])


def expel(rank: int, *doors: dict[int, WorkerPort]) -> None:
    """Close what a lost worker had here; it hears that its incarnation is no member."""
    for ports in doors:
        port = ports.pop(rank, None)
        if port is not None and port.connection is not None:
            connection = port.connection
            port.detach()
            connection.abort(StaleIncarnation("this worker was declared lost", rank=rank))


def _of_unit(keeper: Keeper, rank: int, number: int) -> list[int]:
    unit = keeper.units.get(number)
    if unit is None:
        return []
    found = [_clocks_of(part).pushed.get(rank, 0) for part in parts_of(unit)]
    if isinstance(unit, Unit) or unit.whole is None:
        return found
    return found * len(unit.sizes)


def _clocks_of(part: Unit) -> Rounds | Arrivals:
    return part.arrivals if isinstance(part, FreeUnit) else part.rounds
