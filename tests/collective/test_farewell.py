"""Who can go on no more tells the others why, whatever state its connections are in."""

from __future__ import annotations

import contextlib
import re
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from asyncps.communicator import Communicator
from asyncps.errors import AsyncPSError, ClosedError, DeadlineExceeded, WorkerLost
from tests.support.group import Group, group
from tests.support.processes import ProcessGroup, clean_environment

ROOT = Path(__file__).parents[2]
SMALL, LARGE = 9, 600_000
REASON = "nobody answers"


def give_up(comm: Communicator, error: AsyncPSError, cut: bool = False) -> None:
    """Have one rank fail by itself, maybe when its connections were just cut."""
    async def fail() -> None:
        for peer in comm._collecting.peers.values() if cut else ():
            assert peer.connection is not None
            peer.connection.abort()
        comm._collecting.fail(error)

    comm._runtime.run(fail)


@contextlib.contextmanager
def held(comm: Communicator) -> Iterator[None]:
    """The loop of a rank has other work."""
    begun, release = threading.Event(), threading.Event()

    async def hold() -> None:
        begun.set()
        release.wait(20)

    holding = threading.Thread(target=lambda: comm._runtime.run(hold))
    holding.start()
    try:
        assert begun.wait(10)
        yield
    finally:
        release.set()
        holding.join()


def all_hear(three: Group, failed: int, size: int) -> None:
    """Those who wait for a rank, and those who then call, hear why it has failed."""
    def work(comm: Communicator) -> None:
        if comm.rank != failed:
            for _ in range(2):
                with pytest.raises(DeadlineExceeded, match=f"rank {failed} has given up: {REASON}"):
                    comm.all_reduce(np.ones(size, np.float32), name="w")
        else:
            with pytest.raises(DeadlineExceeded, match=f"^{REASON}"):
                comm.all_reduce(np.ones(size, np.float32), name="w")

    three.run(work)


@pytest.mark.parametrize("cut", [False, True], ids=["connected", "cut off"])
@pytest.mark.parametrize("failed", [0, 1, 2])
@pytest.mark.parametrize("size", [SMALL, LARGE])
def test_all_hear_why_a_rank_has_given_up(failed: int, cut: bool, size: int) -> None:
    with group(3) as three:
        three.run(lambda comm: comm.barrier())
        waiting = [comm.all_reduce(np.ones(size, np.float32), name="v", async_op=True)
                   for comm in three.ranks if comm.rank != failed]
        for comm in three.ranks:
            comm.flush()
        give_up(three.ranks[failed], DeadlineExceeded(REASON), cut)
        for handle in waiting:
            with pytest.raises(DeadlineExceeded) as caught:
                handle.wait()
            text = str(caught.value)
            assert text.startswith(f"rank {failed} has given up: {REASON}; rank ")
            assert re.search(rf"waits: v lacks ranks \[[^]]*{failed}", text), text
        all_hear(three, failed, size)


@pytest.mark.parametrize(("failed", "busy"), [(0, 2), (1, 2), (1, 0), (2, 0)])
def test_a_reason_finds_its_way_round_what_is_half_written(failed: int, busy: int) -> None:
    with group(3) as three:
        three.run(lambda comm: comm.barrier())
        comm = three.ranks[failed]
        with held(three.ranks[busy]):
            async def is_stuck() -> bool:
                connection = comm._collecting.peers[busy].connection
                assert connection is not None
                return bool(connection.pending_bytes)

            for number in range(800):
                comm.all_reduce(np.ones(4096), name=f"{number}", async_op=True)
                comm.flush()
                if comm._runtime.run(is_stuck):
                    break
            assert comm._runtime.run(is_stuck)
            give_up(comm, DeadlineExceeded(REASON))
        all_hear(three, failed, SMALL)


def test_what_a_rank_has_heard_is_not_told_as_its_own() -> None:
    with group(3) as three:
        give_up(three.ranks[1], WorkerLost("it is gone", rank=7, host="there", got="x" * 10_000))

        def work(comm: Communicator) -> None:
            with pytest.raises(WorkerLost) as caught:
                comm.barrier()
            assert caught.value.rank == 7
            assert str(caught.value).count("has given up") == (comm.rank != 1)
            assert len(str(caught.value)) < (11_000 if comm.rank == 1 else 5000)

        three.run(work)


def test_who_goes_without_a_goodbye_is_lost() -> None:
    with group(3) as three:
        three.run(lambda comm: comm.barrier())
        gone = three.ranks[1]

        async def abandon() -> None:
            gone._worker.abandon()

        gone._runtime.run(abandon)

        def work(comm: Communicator) -> None:
            with pytest.raises(ClosedError if comm.rank == 1 else WorkerLost) as caught:
                comm.barrier()
            assert comm.rank == 1 or caught.value.rank == 1

        three.run(work)


def test_a_dial_that_is_given_up_leaves_no_connection_behind() -> None:
    with group(2) as both:
        both.run(lambda comm: comm.barrier())
        lower, upper = both.ranks
        network = upper._worker.node.network
        dialled, connect = threading.Event(), network.connect

        async def note(*args: object) -> object:
            connection = await connect(*args)  # type: ignore[arg-type]
            dialled.set()
            return connection

        async def cut() -> None:
            network.connect = note  # type: ignore[assignment, method-assign]
            peer = upper._collecting.peers[0]
            assert peer.connection is not None
            peer.connection.abort()

        with held(lower):
            upper._runtime.run(cut)
            assert dialled.wait(10)
            upper.close()


SCRIPT = """
import os, sys
rank = int(os.environ["ASYNCPS_RANK"])
if rank == 1:
    os.environ["ASYNCPS_ROUND_S"] = "1"
import numpy as np
from asyncps.communicator import Communicator
from asyncps.errors import AsyncPSError
comm = Communicator.from_env()
comm.barrier()
try:
    comm.all_reduce(np.ones(int(sys.argv[1])), name="late" if rank == 2 else "w")
except AsyncPSError as error:
    print(f"rank {rank} hears {type(error).__name__}: {error}", flush=True)
    comm.close()
    sys.exit(7)
"""


@pytest.mark.parametrize("size", [SMALL, LARGE])
def test_who_gives_up_and_goes_at_once_has_told_the_others(
    processes: ProcessGroup, size: int
) -> None:
    launch = processes.asyncps(
        "launch", "-n", "3", "-s", "0", "--", sys.executable, "-c", SCRIPT, str(size),
        env=clean_environment(), cwd=ROOT,
    )  # fmt: skip
    assert launch.wait(30) == 7, launch.output
    for rank in (0, 2):
        assert f"rank {rank} hears DeadlineExceeded: rank 1 has given up" in launch.output
    assert "w lacks ranks [2]" in launch.output
