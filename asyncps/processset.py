"""Some ranks of a communicator, with all its verbs among themselves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn, Protocol

import numpy as np

from asyncps.errors import ClusterError, CollectiveMismatch, ConfigError
from asyncps.fusing import Fusing
from asyncps.roles.collecting import Collecting
from asyncps.roles.made import Ranks
from asyncps.roles.runtime import Runtime


class World(Protocol):
    """The communicator of all ranks, as its sets see it."""

    rank: int
    world_size: int
    _collecting: Collecting
    _runtime: Runtime

    def all_gather(self, x: Any, name: str | None = None, async_op: bool = False) -> Any:
        """See `Communicator.all_gather`."""


def checked(ranks: object, world_size: int) -> list[int]:
    """Return the ranks of a set, ascending.

    Raises:
        ConfigError: They are none, or named twice.
    """
    if not isinstance(ranks, Sequence) or isinstance(ranks, str):
        raise ConfigError("not a set of ranks", expected="a list of ranks", got=repr(ranks))
    for rank in ranks:
        if isinstance(rank, bool) or not isinstance(rank, int) or not 0 <= rank < world_size:
            raise ConfigError("no rank of this job", expected=f"0 to {world_size - 1}", got=rank)
    if not ranks or len(set(ranks)) < len(ranks):
        raise ConfigError("a set of ranks is not empty, and names each once", got=list(ranks))
    return sorted(ranks)


def agree(world: World, number: int, ranks: list[int]) -> bool:
    """Make a set known to all ranks; tell whether this one is in it.

    It is there before anybody can hear that all agree, and so before the first call of it comes.

    Raises:
        CollectiveMismatch: The ranks name different sets; there is none then.
        ClusterError: A rank has joined; there is none either.
        NodeLost: A rank is gone.
    """
    mine = world.rank in ranks

    async def begin() -> None:
        if mine:
            world._collecting.sets[number] = Ranks(number, ranks, world.rank)

    async def forget() -> None:
        world._collecting.sets.pop(number, None)

    world._runtime.run(begin)
    agreed = False
    try:
        told = np.zeros((1, world.world_size + 1), np.int64)
        told[0, 0] = number
        told[0, [rank + 1 for rank in ranks]] = 1
        found = world.all_gather(told)
        if len(found) < world.world_size:
            raise ClusterError("a set is made by all ranks, and some have joined",
                               expected=world.world_size, got=len(found))
        for other, row in enumerate(found):
            if (row != found[0]).any():
                raise CollectiveMismatch(
                    f"the ranks name different sets: rank 0 set {_shown(found[0])}, "
                    f"rank {other} set {_shown(row)}")
        agreed = True
    finally:
        if not agreed:
            world._runtime.run(forget)
    return mine


def close_set(fusing: Fusing, runtime: Runtime, collecting: Collecting) -> None:
    """Take part in a set no more, and let its other ranks know."""
    if runtime.forked or not fusing.is_first_to_close():
        return
    fusing.close()

    async def leave() -> None:
        if collecting.failure is None:
            collecting.leave(fusing.number)

    runtime.run(leave)


def refuse_nested() -> NoReturn:
    """A set has no sets, and joins no job."""
    raise ConfigError("a set of ranks has no sets of its own",
                      expected="process_set of the communicator of all ranks")


def _shown(row: Any) -> str:
    return f"{int(row[0])} of ranks {np.flatnonzero(row[1:]).tolist()}"
