"""Workers that leave after different numbers of rounds: one of them, at least, has older weights.

A worker that has left is waited for no longer, so the others go on, and all end well: nothing but
this warning tells that the last rounds were sums of fewer workers. Who means it calls `join`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from itertools import islice

from asyncps.roles.keeper import Keeper
from asyncps.roles.slab import parts_of
from asyncps.state.rounds import ranks_of

log = logging.getLogger(__name__)


_LOOKED_AT = 256  # parts, while others wait for the server: under a millisecond


def note_parted(keeper: Keeper, ranks: int) -> None:
    """Workers of a store have left it; warn, once, if one has pushed less than another.

    Args:
        keeper: The store; these ranks may be members of it still.
        ranks: One bit for each that was waited for until now, and is not lost.

    While others go on only some keys are looked at, all when the last one leaves.
    """
    keeper.parted |= ranks
    going_on = keeper.rules.members & ~keeper.parted
    _compare(keeper, keeper.parted | keeper.rules.members, _LOOKED_AT if going_on else None)


def note_return(keeper: Keeper, members: int) -> None:
    """All others have joined and count again: who has left before is compared, and forgotten."""
    _compare(keeper, keeper.parted | members, _LOOKED_AT)
    keeper.parted = 0


def _compare(keeper: Keeper, ranks: int, most: int | None) -> None:
    if keeper.told_uneven or keeper.rules.bound != 0 or not keeper.parted:
        return
    count = ranks.bit_count()
    for key, pushed in islice(_pushed(keeper), most):
        if len(pushed) == count and len(set(pushed.values())) == 1:
            continue  # as nearly always, and quickly seen
        early = min(ranks_of(keeper.parted), key=lambda rank: pushed.get(rank, 0))
        late = max(ranks_of(ranks), key=lambda rank: pushed.get(rank, 0))
        fewer, more = pushed.get(early, 0), pushed.get(late, 0)
        if fewer < more:
            keeper.told_uneven = True
            log.warning(
                "worker %d left after %d rounds of key %r, worker %d has pushed %d: rounds after "
                "the first %d are of fewer workers, and not all have the same weights (a worker "
                "that has no more data calls join)", early, fewer, key, late, more, fewer)
            return


def _pushed(keeper: Keeper) -> Iterator[tuple[int | str, dict[int, int]]]:
    """Yield for each part of each unit its first key, and the last round of each rank."""
    for number, unit in keeper.units.items():
        for key, part in zip(keeper.keys[number], parts_of(unit), strict=False):
            yield key, part.rounds.pushed
