"""A store that all workers have closed: a server gives back what it kept for it."""

from __future__ import annotations

from asyncps.errors import UnknownKey
from asyncps.roles.keeper import Keeper
from asyncps.roles.slab import parts_of


def drop(keeper: Keeper) -> None:
    """Forget everything; whoever still waits for a round hears that it will not come."""
    error = UnknownKey("all workers have closed the store")
    waiting = {}
    for unit in keeper.units.values():
        for part in parts_of(unit):
            for entries in part.parked.values():
                waiting.update({id(waiter): waiter for waiter, _ in entries.values()})
            part.parked.clear()
    for waiter in waiting.values():  # once each, however many parts it waits for
        waiter.error = error
        keeper.tell(waiter)
    keeper.units.clear()
    if keeper.rules.own is not None:
        keeper.rules.own.call_waiting()
    keeper.pool.keep_less(keeper.dense_bytes + sum(keeper.beside.values()))
