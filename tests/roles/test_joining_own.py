"""All have joined while an optimizer of the user's own is at work: they begin where that ends."""

from __future__ import annotations

import pytest

from asyncps.protocol.frames import Kind
from asyncps.protocol.messages import Clocks
from asyncps.roles.attendance import attend, clocks
from asyncps.roles.dropping import drop
from tests.roles.machine import CHUNK
from tests.roles.test_ownsteps import Bench
from tests.support.ports import STORE

pytestmark = pytest.mark.usefixtures("registered")


class Joining(Bench):
    """Two workers, of whom rank 0 pushes twice and rank 1 once; then all join."""

    def __init__(self, **words: object) -> None:
        super().__init__(2, **words)
        self.done = 0
        self.members = 0b11
        for rank, clock in ((0, 1), (1, 1), (0, 2)):
            self.send(rank, Kind.PUSH, clock, 1)
        for rank in range(2):
            attend(self.server.keeper, rank, self.everybody, lambda: None)
        attend(self.server.keeper, None, self.everybody, self.tell)

    def everybody(self) -> int:
        return self.members

    def tell(self) -> None:
        self.done += 1

    def stand_at(self, rank: int) -> list[list[int]]:
        return clocks(self.server.keeper, rank, Clocks(STORE, [CHUNK], [])).clocks


@pytest.mark.parametrize(("words", "pieces"), [({}, 2), ({"type": "dist_async"}, 3),
                                               ({"type": "dist_ssp", "staleness": 1}, 3)])
async def test_all_count_again_when_nothing_is_at_work(
    words: dict[str, object], pieces: int
) -> None:
    joining = Joining(**words)
    for _ in range(pieces):
        assert not joining.done
        joining.workshop.turn()
    assert joining.done == 1
    assert not joining.workshop.pieces
    assert [joining.stand_at(rank) for rank in range(2)] == [[[2]]] * 2
    assert joining.server.keeper.rules.members == 0b11
    for rank in range(2):
        joining.send(rank, Kind.PUSH, 3, 1)
    while joining.workshop.pieces:
        joining.workshop.turn()
    assert [joining.stand_at(rank) for rank in range(2)] == [[[3]]] * 2


async def test_who_leaves_meanwhile_does_not_count() -> None:
    joining = Joining()
    joining.members = 0b01
    joining.server.keeper.left(1)
    for _ in range(2):
        joining.workshop.turn()
    assert joining.done == 1
    assert joining.server.keeper.rules.members == 0b01


async def test_nobody_waits_for_a_store_that_is_dropped_and_for_nothing_at_work() -> None:
    joining = Joining()
    drop(joining.server.keeper)
    assert joining.done == 1
    joining.workshop.turn()
    assert joining.done == 1
    attend(joining.server.keeper, None, joining.everybody, joining.tell)
    assert joining.done == 2
