"""One collective call in chunks: whom it waits for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from asyncps.protocol.collective import Group, Op, Verb
from asyncps.roles.running import Running
from asyncps.state.schedules import Transfer, broadcast_flows
from asyncps.tensor.pool import Pool


class Silent:
    """A peer that is sent frames, and says that it has them when the test does."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.sent: list[Callable[[], None]] = []

    def send(self, *frame: Any, then: Callable[[], None], **payload: Any) -> None:
        self.sent.append(then)


def test_a_call_that_has_all_waits_for_those_who_have_not_said_that_they_have() -> None:
    """The root of a broadcast lacks nothing, and its array is lent until the others have it."""
    peers, ends = [Silent(4), Silent(7)], []
    array = np.zeros(300, np.uint8)
    running = Running(
        Group(int(Verb.BROADCAST), int(Op.NONE), "uint8", 2, 1.0, [""], [(300,)], [], []),
        Transfer(1, broadcast_flows(1, 3, 300), 100), 0, [0, 0, 0],
        [peers[0], None, peers[1]], array, array, 0, Pool(0), ends.append,  # type: ignore[list-item]
    )
    running.start()
    assert running.has_all
    assert running.waits_for() == [4, 7]
    for peer, left in ((peers[1], [4]), (peers[0], [])):
        assert not ends
        for then in peer.sent:
            then()
        assert running.waits_for() == left
    assert ends == [None]
