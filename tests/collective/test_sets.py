"""Sets of ranks: all verbs among some, beside the calls of all; who leaves one, and who is none."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import numpy as np
import pytest

from asyncps.communicator import Communicator, ProcessSet
from asyncps.errors import (
    ClosedError,
    ClusterError,
    CollectiveMismatch,
    ConfigError,
    DeadlineExceeded,
    RemoteProtocolError,
)
from asyncps.protocol.frames import COLLECT
from asyncps_ext import wire
from tests.support.group import Group, group

LARGE = 700_000


@pytest.fixture(scope="module")
def four() -> Iterator[Group]:
    with group(4) as opened:
        yield opened


def test_all_verbs_among_some_ranks(four: Group) -> None:
    members = [1, 3]

    def work(comm: Communicator) -> None:
        some = comm.process_set([3, 1])
        assert (some is None) == (comm.rank not in members)
        if some is None:
            return
        rank = members.index(comm.rank)
        assert (some.rank, some.world_size, some.size) == (rank, 2, 2)
        assert (some.local_rank, some.local_size) == (comm.local_rank, comm.local_size)
        for size in (5, LARGE):
            assert (some.all_reduce(np.full(size, comm.rank, np.float32)) == 4).all()
            assert (some.all_reduce(np.full(size, comm.rank, np.float32), op="mean") == 2).all()
            for root in (0, 1):
                got = some.broadcast(np.full(size, comm.rank, np.int64), root)
                assert (got == members[root]).all()
            rows = some.all_gather(np.full((rank + 1, size), comm.rank, np.int32))
            assert rows[:, -1].tolist() == [1, 3, 3]
            part = some.reduce_scatter(np.full((3, size), comm.rank, np.float32))
            assert part.shape == (2 - rank, size)
            assert (part == 4).all()
            x = np.full((2, size), comm.rank, np.float32)
            x[1] += 10
            got, counts = some.all_to_all(x)
            assert got[:, 0].tolist() == [1 + 10 * rank, 3 + 10 * rank]
            assert counts == [1, 1]
        assert some.broadcast_object({"of": comm.rank}, root=1) == {"of": 3}
        assert some.all_gather_object(comm.rank) == members
        some.barrier()
        a, b = some.grouped_all_reduce([np.ones(2), np.ones((3, 1))])
        assert a.sum() + b.sum() == 10
        assert some.sparse_all_reduce([rank], np.ones(1, np.float32), 50_000)[:3].tolist() == [
            1, 1, 0]
        if rank == 0:
            assert (some.all_reduce(np.ones(3)) == 1).all()  # the other has joined
        assert some.join() == 0
        some.close()

    four.run(work)


def test_sets_that_overlap_are_called_beside_each_other(four: Group) -> None:
    """The same names, in different orders, in three sets and the world."""
    sets = [[0, 1], [1, 2, 3], [0, 1, 2, 3]]

    def work(comm: Communicator) -> None:
        made = [(comm, 4, 6)] + [
            (some, len(ranks), sum(ranks))
            for ranks in sets if (some := comm.process_set(ranks)) is not None]
        order = [(at, i) for at in range(len(made)) for i in range(30)]
        np.random.default_rng(comm.rank).shuffle(order)
        handles = {
            (at, i): made[at][0].all_reduce(
                np.full(40 if i % 10 else LARGE, i + comm.rank, np.float64), name=f"x{i}",
                async_op=True)
            for at, i in order
        }
        np.random.default_rng(9 + comm.rank).shuffle(order)
        for at, i in order:
            _, count, ranks = made[at]
            assert (handles[at, i].wait() == count * i + ranks).all()

    four.run(work)


def test_a_set_of_one_and_a_set_of_all(four: Group) -> None:
    def work(comm: Communicator) -> None:
        alone = [comm.process_set([rank]) for rank in range(4)]
        mine = alone[comm.rank]
        assert mine is not None
        assert [each is None for each in alone] == [rank != comm.rank for rank in range(4)]
        assert (mine.all_reduce(np.full(LARGE, 3.0)) == 3).all()
        everybody = comm.process_set(range(4))
        assert everybody is not None
        assert (everybody.all_reduce(np.ones(3)) == 4).all()

    four.run(work)


def test_ranks_that_name_different_sets_all_hear_it(four: Group) -> None:
    def work(comm: Communicator) -> None:
        with pytest.raises(CollectiveMismatch, match=r"rank 2 set \d+ of ranks \[0, 2\]") as caught:
            comm.process_set([0, 2] if comm.rank == 2 else [0, 1])
        assert "[0, 1]" in str(caught.value)
        some = comm.process_set([0, 1])
        if some is not None:
            assert (some.all_reduce(np.ones(3)) == 2).all()

    four.run(work)


def test_what_is_no_set(four: Group) -> None:
    comm = four.ranks[0]
    for ranks in ([], [0, 0], [4], [-1], [True], ["0"], 3, "01", [0.0]):
        with pytest.raises(ConfigError):
            comm.process_set(ranks)  # type: ignore[arg-type]
    with pytest.raises(ConfigError):
        ProcessSet.from_env()


def test_a_mismatch_within_a_set_is_its_own(four: Group) -> None:
    def work(comm: Communicator) -> None:
        some = comm.process_set([0, 2, 3])
        if some is not None:
            with pytest.raises(CollectiveMismatch, match="ranks 0 and 3"):
                some.all_reduce(np.ones(3 + (comm.rank == 3)))
            assert (some.all_reduce(np.ones(2)) == 3).all()
            with pytest.raises(ConfigError, match="no sets of its own"):
                some.process_set([0])
            with pytest.raises(ConfigError, match="0 to 2"):
                some.broadcast(np.ones(2), root=3)
        assert (comm.all_reduce(np.ones(2)) == 4).all()

    four.run(work)


def test_who_has_not_called_a_set_is_named(four: Group) -> None:
    def work(comm: Communicator) -> None:
        some = comm.process_set([0, 2])
        comm.barrier()
        if comm.rank == 0:
            handle = some.all_reduce(np.ones(3), name="late", async_op=True)
            with pytest.raises(DeadlineExceeded, match=r"late lacks ranks \[2\]"):
                handle.wait(0.01)
        comm.barrier()
        if comm.rank == 2:
            some.all_reduce(np.ones(3), name="late")
        elif comm.rank == 0:
            assert (handle.wait() == 2).all()

    four.run(work)


@pytest.mark.parametrize("size", [3, LARGE])
def test_who_closes_a_set_fails_only_its_calls(four: Group, size: int) -> None:
    called = threading.Event()

    def work(comm: Communicator) -> None:
        some, others = comm.process_set([0, 1, 2]), comm.process_set([0, 1, 3])
        comm.barrier()
        if comm.rank == 2:
            called.wait(20)
            some.close()
            some.close()
            with pytest.raises(ClosedError):
                some.all_reduce(np.ones(3))
        elif comm.rank < 2:
            handle = some.all_reduce(np.ones(size), async_op=True)
            some.flush()
            called.set()
            for _ in range(2):
                with pytest.raises(ClusterError, match="rank 2 has left"):
                    handle.wait()
                handle = some.all_reduce(np.ones(3), async_op=True)
        if others is not None:
            assert (others.all_reduce(np.ones(size)) == 3).all()
        assert (comm.all_reduce(np.ones(size)) == 4).all()

    four.run(work)


def test_a_rank_that_has_left_the_job_fails_only_sets_that_it_is_in() -> None:
    with group(3) as three:
        gone = threading.Event()

        def work(comm: Communicator) -> None:
            both, some = comm.process_set([0, 1]), comm.process_set([0, 2])
            comm.barrier()
            if comm.rank == 0:
                waits = both.all_reduce(np.ones(3), async_op=True)
                both.flush()
                gone.set()
                with pytest.raises(ClusterError, match="rank 1 has left"):
                    waits.wait()
            elif comm.rank == 1:
                gone.wait(20)
                comm.close()
                with pytest.raises(ClosedError):
                    both.all_reduce(np.ones(3))
            if some is not None:
                assert (some.all_reduce(np.ones(LARGE)) == 2).all()
                assert (some.all_reduce(np.ones(3)) == 2).all()

        three.run(work)


def test_a_call_of_a_set_that_its_sender_is_not_in_breaks_the_protocol() -> None:
    with group(3) as three:
        some = three.run(lambda comm: comm.process_set([1, 2]))[1]
        assert some is not None
        bad, good = three.ranks[0], three.ranks[1]
        raw = wire.pack_header(
            COLLECT, 0, 0, some._fusing.number, 1, 0, 0, 0, 1, 0, 0, 0) + b"\xc1"

        async def send() -> None:
            connection = bad._fusing._collecting.peers[1].connection
            assert connection is not None
            connection.send([raw], len(raw))

        handle = some.all_reduce(np.ones(3), async_op=True)
        some.flush()
        bad._runtime.run(send)
        with pytest.raises(RemoteProtocolError, match="no set"):
            handle.wait(20)
        assert good._fusing._collecting.failure is not None
