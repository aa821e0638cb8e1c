"""Ranks that have joined: what the others may do meanwhile, and that nothing of it ends the job."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from asyncps import Communicator
from asyncps.errors import ClusterError
from tests.support.group import Group, group

Work = Callable[[Communicator], object]
LARGE = 1 << 20
SOME_HAVE = "by all ranks, and some have joined.*expected 3, got 2"


@pytest.fixture
def joined() -> Iterator[Group]:
    """Three ranks, of which the last has joined."""
    with group(3) as three:
        yield three


def is_joined(comm: Communicator, rank: int) -> bool:
    """Whether a rank has heard that another has joined."""
    async def look() -> bool:
        return rank not in comm._collecting.sets[0].matching.live()

    return comm._runtime.run(look)


def beside_a_joined_rank(three: Group, work: Work) -> None:
    """Rank 2 joins; the others work, then join too, and all do what needs all."""
    def one(comm: Communicator) -> None:
        if comm.rank != 2:
            while not is_joined(comm, 2):
                pass
            work(comm)
        comm.join()
        assert (comm.all_reduce(np.ones(9)) == 3).all()
        some = comm.process_set([0, 2])
        assert some is None or (some.all_reduce(np.ones(9)) == 2).all()

    three.run(one)


@pytest.mark.parametrize("splits", [None, [2, 0, 1]], ids=["even", "uneven"])
def test_all_to_all_is_refused_and_nothing_else_ends(joined: Group, splits: Any) -> None:
    def work(comm: Communicator) -> None:
        with pytest.raises(ClusterError, match="rank 2, which is to get rows, has joined"):
            comm.all_to_all(np.ones((3, 2)), splits)
        assert (comm.all_reduce(np.ones(9)) == 2).all()

    beside_a_joined_rank(joined, work)


@pytest.mark.parametrize("ranks", [[0, 1], [0, 2]], ids=str)
def test_a_set_is_made_by_all(joined: Group, ranks: list[int]) -> None:
    def work(comm: Communicator) -> None:
        with pytest.raises(ClusterError, match=SOME_HAVE):
            comm.process_set(ranks)

    beside_a_joined_rank(joined, work)


def test_a_compression_is_set_by_all(joined: Group) -> None:
    def work(comm: Communicator) -> None:
        with pytest.raises(ClusterError, match=SOME_HAVE):
            comm.set_gradient_compression({"type": "2bit"}, names="w")
        assert (comm.all_reduce(np.ones(9), name="w") == 2).all()

    beside_a_joined_rank(joined, work)


def test_who_has_joined_and_leaves_does_not_end_the_joins_of_others(joined: Group) -> None:
    """Its goodbye may overtake the word of a third rank, which all but this one have heard."""
    first, second, third = joined.ranks
    found: list[int] = []
    joining = [threading.Thread(target=lambda comm=comm: found.append(comm.join()))
               for comm in (first, second)]
    for thread in joining:
        thread.start()
    while not is_joined(second, 0):
        pass

    async def hear() -> None:
        second._collecting._go_without(second._collecting.sets[0], 0)

    second._runtime.run(hear)
    found.append(third.join())
    for thread in joining:
        thread.join(10)
    assert found == [2, 2, 2]


def test_a_chunk_that_came_early_for_a_call_that_fails_keeps_nobody_from_reading_on() -> None:
    with group(3) as three:
        sets = three.run(lambda comm: comm.process_set([0, 1]))
        second = three.ranks[1]
        handle = second.all_reduce(np.ones(LARGE), async_op=True)
        second.flush()

        async def lose() -> None:
            collecting = second._collecting
            (number,) = collecting._made
            early: Any = SimpleNamespace(request=number)
            collecting._early.keep(collecting.peers[0], early, np.empty(1, np.uint8))
            collecting._go_without(collecting.sets[0], 2)

        second._runtime.run(lose)
        with pytest.raises(ClusterError, match="rank 2 has left while others call"):
            handle.wait()

        def work(comm: Communicator) -> None:
            if (some := sets[comm.rank]) is not None:
                handle = some.all_reduce(np.ones(9), async_op=True)
                assert (handle.wait(10) == 2).all()

        three.run(work)
