"""Who can go on no more tells the others why, whatever state its connections are in."""

from __future__ import annotations

import asyncio
import re
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from asyncps.communicator import Communicator
from asyncps.errors import AsyncPSError, ClosedError, DeadlineExceeded, WorkerLost
from asyncps.protocol.frames import COLLECT, COUNT, JOINED, PART, PARTED, Header
from asyncps.roles.mesh import Mesh
from asyncps.transport.connection import Connection
from tests.support.group import Group, group, held
from tests.support.processes import ProcessGroup, clean_environment

loops = pytest.mark.parametrize("loop", ["uvloop", "asyncio"])
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


def wait_until(comm: Communicator, is_so: Callable[[], bool]) -> None:
    """Look on a rank's loop, between all else, until something is so."""
    async def look() -> bool:
        return is_so()

    while not comm._runtime.run(look):
        pass


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


@loops
@pytest.mark.parametrize("cut", [False, True], ids=["connected", "cut off"])
@pytest.mark.parametrize("failed", [0, 1, 2])
@pytest.mark.parametrize("size", [SMALL, LARGE])
def test_all_hear_why_a_rank_has_given_up(failed: int, cut: bool, size: int, loop: str) -> None:
    with group(3, loop=loop) as three:
        three.run(lambda comm: comm.barrier())
        waiting = [comm.all_reduce(np.ones(size, np.float32), name="v", async_op=True)
                   for comm in three.ranks if comm.rank != failed]
        for comm in three.ranks:
            comm.flush()
            if comm.rank != failed:
                wait_until(comm, lambda made=comm._collecting._made: bool(made))
        give_up(three.ranks[failed], DeadlineExceeded(REASON), cut)
        for handle in waiting:
            with pytest.raises(DeadlineExceeded) as caught:
                handle.wait()
            text = str(caught.value)
            assert text.startswith(f"rank {failed} has given up: {REASON}; rank ")
            assert re.search(rf"waits: v lacks ranks \[[^]]*{failed}", text), text
        all_hear(three, failed, size)


@loops
@pytest.mark.parametrize("failed", [0, 1])
def test_who_has_cut_the_connection_hears_why_the_other_fails(failed: int, loop: str) -> None:
    """The word goes into a connection that has ended at the other side: it does not count."""
    with group(2, loop=loop) as both:
        both.run(lambda comm: comm.barrier())
        comm, other = both.ranks[failed], both.ranks[1 - failed]
        waiting = [other.all_reduce(np.ones(3), name="v", async_op=True),
                   comm.all_reduce(np.ones(3), name="z", async_op=True)]
        other.flush()
        comm.flush()
        connection = other._collecting.peers[failed].connection
        assert connection is not None

        async def cut() -> None:
            connection.abort()

        with held(comm, lambda: comm._collecting.fail(DeadlineExceeded(REASON))):
            other._runtime.run(cut)
            wait_until(other, lambda: connection.socket() is None)
        with pytest.raises(DeadlineExceeded, match=f"rank {failed} has given up: {REASON}"):
            waiting[0].wait()
        with pytest.raises(DeadlineExceeded, match=f"^{REASON}"):
            waiting[1].wait()


@loops
@pytest.mark.parametrize("failed", [0, 1])
def test_who_fails_while_it_closes_tells_who_was_cut_off(failed: int, loop: str) -> None:
    with group(2, loop=loop) as both:
        both.run(lambda comm: comm.barrier())
        comm, other = both.ranks[failed], both.ranks[1 - failed]
        running = comm._collecting._running
        theirs = other.all_reduce(np.ones(LARGE), name="v", async_op=True)
        other.flush()
        closing = threading.Thread(target=comm.close)
        with held(other):  # so that the call, which all have made, does not end
            comm.all_reduce(np.ones(LARGE), name="v", async_op=True)
            comm.flush()
            wait_until(comm, lambda: bool(running))
            closing.start()
            wait_until(comm, lambda: comm._worker.mesh is not None and comm._worker.mesh._leaving)
            give_up(comm, DeadlineExceeded(REASON), cut=True)
        with pytest.raises(DeadlineExceeded, match=f"rank {failed} has given up: {REASON}"):
            theirs.wait()
        closing.join()


def test_who_is_not_yet_connected_with_all_hears_it_too(monkeypatch: pytest.MonkeyPatch) -> None:
    reach, connect = Mesh._reach, Mesh.connect

    async def not_yet(mesh: Mesh, rank: int) -> None:
        if (mesh._node.rank, rank) == (2, 1):
            await asyncio.Event().wait()
        await reach(mesh, rank)

    async def then_fail(mesh: Mesh, members: Any) -> Any:
        collecting = await connect(mesh, members)
        if mesh._node.rank == 0:
            asyncio.get_running_loop().call_soon(collecting.fail, DeadlineExceeded(REASON))
        return collecting

    monkeypatch.setattr(Mesh, "_reach", not_yet)
    monkeypatch.setattr(Mesh, "connect", then_fail)
    with pytest.raises(DeadlineExceeded, match=f"rank 0 has given up: {REASON}"), group(3):
        pass


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


def test_nothing_of_what_comes_after_the_end_is_taken_in() -> None:
    """A frame behind the one that ended all may lie in the same read."""
    with group(2) as both:
        both.run(lambda comm: comm.barrier())
        comm = both.ranks[0]
        give_up(comm, DeadlineExceeded(REASON))
        peer = comm._collecting.peers[1]
        received, ahead = peer._received, peer.ahead_bytes

        def header(kind: int, payload: int) -> Header:
            return Header(kind, 0, 0, 0, 1, 0, 0, 0, 0, payload, 0, 0)

        async def come() -> None:
            for kind in (COLLECT, PART, COUNT, JOINED, PARTED):
                assert peer.begin(header(kind, 64), memoryview(b"")) is None
                peer.finish(header(kind, 0), memoryview(b"\xc1"))

        comm._runtime.run(come)
        assert (peer._received, peer.ahead_bytes, peer.parted) == (received, ahead, False)


def test_who_goes_without_a_goodbye_is_lost() -> None:
    with group(3) as three:
        three.run(lambda comm: comm.barrier())
        gone = three.ranks[1]

        async def abandon() -> None:
            gone._worker.abandon()

        gone._runtime.run(abandon)

        def work(comm: Communicator) -> None:
            if comm.rank == 1:
                with pytest.raises(ClosedError):
                    comm.barrier()
                return
            with pytest.raises(WorkerLost, match="rank 1 has given up: it has gone") as caught:
                comm.barrier()
            assert caught.value.rank == 1

        three.run(work)


def test_a_dial_that_is_given_up_leaves_no_connection_behind() -> None:
    with group(2) as both:
        both.run(lambda comm: comm.barrier())
        lower, upper = both.ranks
        network = upper._worker.node.network
        dialled, connect = threading.Event(), network.connect
        made: list[Connection] = []

        async def note(*args: object) -> object:
            made.append(await connect(*args))  # type: ignore[arg-type]
            dialled.set()
            return made[-1]

        async def cut() -> None:
            network.connect = note  # type: ignore[assignment, method-assign]
            peer = upper._collecting.peers[0]
            assert peer.connection is not None
            peer.connection.abort()

        with held(lower):
            upper._runtime.run(cut)
            assert dialled.wait(10)
            upper.close()
            assert [connection.socket() for connection in made] == [None]


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
