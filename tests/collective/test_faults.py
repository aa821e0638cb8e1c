"""Bad days of a group: cut connections, a killed and a frozen rank, words that are none."""

from __future__ import annotations

import asyncio
import os
import random
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from asyncps.communicator import Communicator
from asyncps.errors import (
    ClosedError,
    ClusterError,
    ConnectionLost,
    DeadlineExceeded,
    RemoteProtocolError,
)
from asyncps.protocol import messages
from asyncps.protocol.frames import COLLECT, COUNT, FAILED, JOINED, PART
from asyncps.roles.peer import MAX_AHEAD_BYTES, Peer
from asyncps_ext import wire
from tests.support.group import group, held
from tests.support.processes import ProcessGroup, clean_environment

ROOT = Path(__file__).parents[2]
LARGE = 600_000


def test_cut_connections_change_no_sum() -> None:
    """Every connection is cut again and again; frames are sent again, and count once."""
    with group(3) as three:
        over = threading.Event()
        cuts: list[int] = []

        def cut() -> None:
            rng = random.Random(0)
            while not over.wait(0.003):
                comm = three.ranks[rng.randrange(3)]
                peers = list(comm._fusing._collecting.peers.values())

                chosen = rng.choice(peers)

                async def abort(peer: Peer = chosen) -> None:
                    if peer.connection is not None:
                        cuts.append(peer.rank)
                        peer.connection.abort()

                comm._runtime.run(abort)

        def work(comm: Communicator) -> int:
            for step in range(60):
                large = comm.all_reduce(
                    np.full(LARGE, step + comm.rank, np.float32), async_op=True)
                small = [comm.all_reduce(np.full(9, i * comm.rank, np.int64), async_op=True)
                         for i in range(20)]
                rows = comm.all_gather(np.full((comm.rank + 1, 50_000), step, np.float32))
                assert (large.wait() == 3 * step + 3).all()
                assert all((each.wait() == 3 * i).all() for i, each in enumerate(small))
                assert rows.shape == (6, 50_000)
                assert (rows == step).all()
            return step

        cutter = threading.Thread(target=cut)
        cutter.start()
        try:
            assert three.run(work, limit_s=60) == [59] * 3
        finally:
            over.set()
            cutter.join()
        assert len(cuts) > 20


SCRIPT = """
import os, signal, sys, time
import numpy as np
from asyncps.communicator import Communicator
from asyncps.errors import AsyncPSError
comm = Communicator.from_env()
comm.barrier()
try:
    for step in range(10**6):
        if comm.rank == 1 and step == 5:
            os.kill(os.getpid(), getattr(signal, sys.argv[1]))
        assert (comm.all_reduce(np.ones(300_000, "f4")) == 3).all()
except AsyncPSError as error:
    kind = type(error).__name__
    print(f"rank {comm.rank} hears {kind} of rank {error.rank}: {error}", flush=True)
    sys.exit(7)
"""


def test_a_killed_rank_is_named_by_all_survivors(processes: ProcessGroup) -> None:
    launch = processes.asyncps(
        "launch", "-n", "3", "-s", "0", "--", sys.executable, "-c", SCRIPT, "SIGKILL",
        env=clean_environment(), cwd=ROOT,
    )  # fmt: skip
    assert launch.wait(30) == 137, launch.output
    for rank in (0, 2):
        assert f"rank {rank} hears WorkerLost of rank 1" in launch.output, launch.output


def test_a_frozen_rank_is_named_within_the_deadline(processes: ProcessGroup) -> None:
    launch = processes.asyncps(
        "launch", "-n", "3", "-s", "0", "--", sys.executable, "-c", SCRIPT, "SIGSTOP",
        env=clean_environment({"ASYNCPS_ROUND_S": "2"}), cwd=ROOT,
    )  # fmt: skip
    launch.wait_for_line(r"rank 0 hears DeadlineExceeded", 25)  # processes start meanwhile
    launch.wait_for_line(r"rank 2 hears DeadlineExceeded")
    assert "lacks ranks [1]" in launch.output
    assert launch.wait(20) == 7, launch.output


def test_who_does_not_say_that_it_has_all_is_named() -> None:
    """A rank that freezes at the very end of a call: what was sent to it may have come or not."""
    with group(3, round_s=0.5) as three:
        three.ranks[1]._collecting._tell = lambda: None

        def work(comm: Communicator) -> float:
            value = np.full(300_000, comm.rank + 5, np.float32)
            if comm.rank:
                return float(comm.broadcast(value, root=0)[-1])
            with pytest.raises(DeadlineExceeded, match=r"that all have made lacks ranks \[1\]"):
                comm.broadcast(value, root=0)
            return -1.0

        assert three.run(work) == [-1.0, 5.0, 5.0]


def test_after_the_end_nothing_can_be_called() -> None:
    with group(2) as two:
        two.run(lambda comm: comm.close())
        for comm in two.ranks:
            with pytest.raises(ClosedError):
                comm.all_reduce(np.ones(3))
            comm.close()


def frame(kind: int, request: int = 1, unit: int = 0, group_: int = 0, table: bytes = b"",
          payload: int = 0, acked: int = 0) -> bytes:
    return bytes(wire.pack_header(
        kind, 0, 0, group_, request, unit, 0, 0, len(table), payload, acked, 0)) + table


@pytest.mark.parametrize("raw", [
    frame(COLLECT, table=b"\xc1"),
    frame(COLLECT, table=b"\x93\x01\x02\x03"),
    frame(COLLECT, group_=77, table=b"\xc1"),
    frame(PART, request=10**9, payload=64),
    frame(PART, request=0, payload=64),
    frame(COUNT, acked=10**9),
    frame(12),
    frame(FAILED),
    frame(FAILED, table=b"\xc1"),
    frame(FAILED, table=messages.encode(messages.Left(1))),
    frame(FAILED, table=messages.encode(messages.ErrorInfo(5, "x" * 300_000))),
    frame(COLLECT, payload=MAX_AHEAD_BYTES + 1, table=b"\x90"),
])  # fmt: skip
def test_a_rank_that_breaks_the_protocol_ends_the_calls_and_crashes_nobody(raw: bytes) -> None:
    with group(2) as two:
        two.run(lambda comm: comm.barrier())
        bad, good = two.ranks

        async def send() -> None:
            connection = bad._fusing._collecting.peers[1].connection
            assert connection is not None
            connection.send([raw], len(raw))

        handle = good.all_reduce(np.ones(3, np.float32), name="other", async_op=True)
        good.flush()
        bad._runtime.run(send)
        with pytest.raises(RemoteProtocolError):
            handle.wait(20)
        with pytest.raises(RemoteProtocolError):
            good.all_reduce(np.ones(3, np.float32))


def test_a_deadline_ends_what_waits_too_long() -> None:
    with group(2, round_s=0.5) as two:
        def work(comm: Communicator) -> None:
            if comm.rank == 0:
                with pytest.raises(DeadlineExceeded, match=r"lacks ranks \[1\]"):
                    comm.all_reduce(np.ones(3))

        two.run(work)


@pytest.mark.parametrize("kind", ["tables", "joins"])
def test_a_rank_that_floods_ends_the_calls_before_it_fills_memory(kind: str) -> None:
    with group(2) as two:
        two.run(lambda comm: comm.barrier())
        bad, good = two.ranks
        place = good._fusing._collecting.peers[0]

        async def send() -> None:
            peer = bad._fusing._collecting.peers[1]
            for _ in range(20):
                if kind == "tables":
                    peer.send(COLLECT, 0, 1, table=bytes(60_000))
                else:
                    peer.send(JOINED, 0, 1)

        most = 0
        while good._fusing._collecting.failure is None:
            bad._runtime.run(send)
            most = max(most, place.ahead_bytes)
        assert most <= MAX_AHEAD_BYTES + 100_000
        with pytest.raises(RemoteProtocolError):
            good.all_reduce(np.ones(3, np.float32))


def test_a_table_that_is_none_ends_calls_that_are_made_behind_it() -> None:
    with group(2) as two:
        two.run(lambda comm: comm.barrier())
        bad, good = two.ranks
        raw = frame(COLLECT, table=b"\xc1")

        async def send() -> None:
            connection = bad._fusing._collecting.peers[1].connection
            assert connection is not None
            connection.send([raw], len(raw))

        bad._runtime.run(send)
        waiting = good._fusing._collecting.sets[0].matching._ranks[0].groups
        while not waiting:
            os.sched_yield()
        with pytest.raises(RemoteProtocolError):
            good.all_reduce(np.ones(3, np.float32))


def test_who_closes_brings_the_calls_to_their_end_that_all_are_at() -> None:
    """Whole arrays that travel in many chunks, few at a time."""
    with group(3, round_s=5.0) as three:
        gate = threading.Barrier(3)

        def work(comm: Communicator) -> bool:
            x = np.ones(6 << 20, np.float32)
            handle = comm.all_reduce(x, name="w", async_op=True)
            comm.flush()
            gate.wait()
            while not comm._collecting._running and not handle.ended:  # until all have called
                pass
            if comm.rank == 0:
                comm.close()
            handle.wait()
            return bool((x == 3).all())

        assert three.run(work) == [True] * 3


def test_calls_that_others_have_not_made_end_with_the_communicator() -> None:
    with group(2) as both:
        def work(comm: Communicator) -> None:
            if comm.rank:
                return
            handle = comm.all_reduce(np.ones(3), name="w", async_op=True)
            comm.close()
            with pytest.raises(ClosedError):
                handle.wait()

        both.run(work)


def test_a_second_cut_has_time_of_its_own() -> None:
    """The timer of a cut that was healed says nothing of the next, which has much longer."""
    with group(2, reconnect_s=0.4) as both:
        lower, upper = both.ranks
        node, peer = lower._worker.node, lower._collecting.peers[1]

        async def cut() -> None:
            assert peer.connection is not None
            peer.connection.abort(ConnectionLost("cut"))

        async def timers() -> int:
            return sum(task.get_name().startswith("reconnect") for task in asyncio.all_tasks())

        both.run(lambda comm: comm.barrier())
        lower._runtime.run(cut)
        both.run(lambda comm: comm.barrier())  # it is back
        with held(upper):  # which would dial again
            node.config = node.config.replace(reconnect_s=60.0)
            lower._runtime.run(cut)
            while lower._runtime.run(timers) > 1:  # until the first has run out
                pass
        both.run(lambda comm: comm.barrier())


def test_closing_after_small_calls_takes_no_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    """What travelled at once is acknowledged with the goodbye: nobody waits for that before, else
    all would wait for each other as long as they may."""
    monkeypatch.setattr("asyncps.roles.mesh._LEAVE_S", 1e6)
    for _ in range(5):
        with group(3, answer_s=1e6) as three:
            def work(comm: Communicator) -> bool:
                for _ in range(3):
                    comm.all_reduce(np.ones(9))
                comm.close()
                return True

            assert three.run(work) == [True] * 3


def test_two_threads_may_close_at_once() -> None:
    for _ in range(5):
        with group(2) as both:
            failed: list[BaseException] = []

            def close(comm: Communicator, failed: list[BaseException] = failed) -> None:
                try:
                    comm.close()
                except BaseException as error:  # noqa: BLE001 - looked at below
                    failed.append(error)

            threads = [threading.Thread(target=close, args=(comm,))
                       for comm in both.ranks for _ in range(2)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert not failed


@pytest.mark.parametrize("size", [9, LARGE])
def test_what_all_have_called_ends_well_though_one_leaves_behind_it(size: int) -> None:
    """The goodbye may overtake chunks and words of third ranks; what it ends is what lacks it."""
    def work(comm: Communicator) -> None:
        a = comm.all_reduce(np.ones(size), name="A", async_op=True)
        if comm.rank == 2:
            assert (a.wait() == 3).all()
            comm.close()
            return
        b = comm.all_reduce(np.ones(9), name="B", async_op=True)
        comm.flush()
        assert (a.wait() == 3).all()
        for handle in (b, comm.all_reduce(np.ones(9), name="C", async_op=True)):
            with pytest.raises(ClusterError, match="rank 2 has left while others call"):
                handle.wait()
        with pytest.raises(ClusterError, match="rank 2 has left while others call"):
            comm.join()

    for _ in range(15):
        with group(3) as three:
            three.run(work)


def test_a_call_that_lacks_who_has_left_is_no_end_for_others() -> None:
    with group(4) as four:
        sets = four.run(lambda comm: comm.process_set([1, 2]))
        handle = four.ranks[0].all_reduce(np.ones(9), name="w", async_op=True)
        four.ranks[0].flush()
        four.ranks[3].close()
        with pytest.raises(ClusterError, match="rank 3 has left while others call"):
            handle.wait()

        def work(comm: Communicator) -> None:
            if (some := sets[comm.rank]) is not None:
                for _ in range(50):
                    assert (some.all_reduce(np.ones(9)) == 2).all()

        four.run(work)


@pytest.mark.parametrize("size", [9, LARGE])
def test_calls_that_one_who_leaves_has_made_and_another_has_not(size: int) -> None:
    """Rank 2 has called and goes before rank 1 calls: a large one cannot end, a small one does."""
    with group(3) as three:
        first, second, third = three.ranks
        handles = [comm.all_reduce(np.ones(size), name="A", async_op=True)
                   for comm in (first, third)]
        for comm in (first, third):
            comm.flush()
        third.close()
        with pytest.raises(ClosedError):
            handles[1].wait()
        with pytest.raises(ClusterError, match="rank 2 has left while others call"):
            second.all_reduce(np.ones(size), name="A")
        second.close()
        with pytest.raises(ClusterError, match="has left while others call"):
            handles[0].wait()


def test_calls_do_not_need_who_has_joined_and_then_leaves() -> None:
    with group(3) as three:
        first, second, third = three.ranks
        handle = first.all_reduce(np.ones(9), name="A", async_op=True)
        first.flush()

        def join() -> None:
            with pytest.raises(ClosedError):
                third.join()

        joining = threading.Thread(target=join)
        joining.start()

        async def is_joined() -> bool:
            return 2 not in first._collecting.sets[0].matching.live()

        while not first._runtime.run(is_joined):
            pass
        third.close()
        joining.join()
        second.close()
        with pytest.raises(ClusterError, match="rank 1 has left while others call"):
            handle.wait()
