"""A worker that has left is waited for no longer: rounds go on without it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import asyncps
from asyncps.errors import ClusterError, ConnectionLost
from asyncps.kvstore import KVStore
from asyncps.protocol.frames import Kind
from asyncps.roles.server import Server
from asyncps.transport.connection import Connection
from asyncps.transport.link import Link
from tests.support.cluster import DEADLINES, on_cluster
from tests.support.ports import FakeServer, make_frame, read_answer

both_transports = pytest.mark.parametrize("transport", ["memory", "tcp"])
SIZES = {"slab": 5, "chunk": 10_000, "many chunks": 300_000}


@both_transports
@pytest.mark.parametrize("size", SIZES.values(), ids=SIZES)
@pytest.mark.parametrize("reduce", ["sum", "mean"])
def test_who_stays_goes_on_alone(transport: str, size: int, reduce: str) -> None:
    def work(store: KVStore) -> None:
        store.init(["a", "w"], [np.zeros(3, "f4"), np.zeros(size, "f4")])
        for turn in range(1, 8 if store.rank == 0 else 4):
            got = store.pushpull("w", np.full(size, 2 * turn + 4 * store.rank, "f4"))
            both = 4 * turn + 4
            alone = 2 * turn
            expected = alone if turn > 3 else both / 2 if reduce == "mean" else both
            assert (got == expected).all(), turn
        if store.rank == 0:
            store.push("w", np.ones(size, "f4"))
            assert (store.pull("w") == 1).all()
            assert (store.pushpull("a", np.ones(3, "f4")) == 1).all()

    on_cluster(work, servers=2, transport=transport, reduce=reduce)


@both_transports
@pytest.mark.parametrize("order", ["arrival", "rank"])
def test_rounds_that_wait_for_the_leaver_alone_complete(transport: str, order: str) -> None:
    """What it pushed ahead still counts, and an optimizer goes on from there."""
    pushed = threading.Event()

    def work(store: KVStore) -> None:
        store.init(["a", "b"], [np.zeros(3, "f4"), np.zeros(5, "f4")])
        store.set_optimizer("test")
        if store.rank == 2:
            store.push("a", np.full(3, 100, "f4")).wait()
            store.push("b", np.full(5, 10, "f4")).wait()
            assert pushed.wait(10)
            return
        handles = [store.pushpull(["a", "b"], [np.ones(3, "f4"), np.ones(5, "f4")], async_op=True)
                   for _ in range(2)]
        if store.rank == 0:
            handles[0].wait()
            pushed.set()  # round 2 is open when the third leaves
        assert (handles[0].wait()[0] == 102).all()
        a, b = handles[1].wait()
        assert (a == 104).all()
        assert (b == 14).all()
        assert (store.pushpull("b", np.ones(5, "f4")) == 16).all()

    on_cluster(work, workers=3, servers=1, transport=transport, order=order)


def test_barrier_that_waits_for_the_leaver_says_so_and_later_ones_go_on() -> None:
    waiting = threading.Event()

    def work(store: KVStore) -> None:
        store.init("w", np.zeros(3, "f4"))
        for _ in range(3):
            store.pushpull("w", np.ones(3, "f4"))
        if store.rank == 1:
            assert waiting.wait(10)
            return
        worker, client = store._core.worker, store._core.client

        async def meet() -> None:
            barrier = asyncio.create_task(worker.barrier(client), name="a barrier")
            while not worker.node.link.unanswered:  # noqa: ASYNC110 - a turn of the loop
                await asyncio.sleep(0)
            waiting.set()
            await barrier

        with pytest.raises(ClusterError, match="worker 1 left"):
            store._runtime.run(meet)
        store.barrier()
        store.set_optimizer("test")
        assert (store.pushpull("w", np.ones(3, "f4")) == 3).all()

    on_cluster(work)


def test_store_that_is_opened_later_does_not_wait_for_who_has_left() -> None:
    gone = threading.Event()
    with asyncps.LocalCluster(workers=2, **DEADLINES) as cluster:

        def leaver() -> None:
            with cluster.store(1) as store:
                store.init("w", np.zeros(3, "f4"))
            gone.set()

        thread = threading.Thread(target=leaver)
        thread.start()
        with cluster.store(0) as store:
            store.init("w", np.zeros(3, "f4"))
            assert gone.wait(10)
            worker, runtime = store._core.worker, store._runtime
            client = runtime.run(lambda: worker.open_store("later", store._core.client.config))
            later = KVStore(type(store._core)(worker, client), runtime, lambda _: None)
            later.init("w", np.zeros(3, "f4"))
            assert (later.pushpull("w", np.ones(3, "f4")) == 1).all()
        thread.join()


@both_transports
def test_server_that_was_cut_off_hears_of_it_when_it_is_back(transport: str) -> None:
    """Its link to the scheduler is down while the worker leaves."""
    with asyncps.LocalCluster(
        workers=2, transport=transport, **DEADLINES, reconnect_s=20.0
    ) as cluster:
        runtime, scope = cluster._runtime, cluster._scope
        assert runtime is not None
        assert scope is not None
        gone = threading.Event()

        def leaver() -> None:
            with cluster.store(1) as store:
                store.init("w", np.zeros(3, "f4"))
                store.pushpull("w", np.ones(3, "f4"))
                runtime.run(cut_off)
            gone.set()

        async def cut_off() -> None:
            (server,) = [role for role in scope.roles if isinstance(role, Server)]
            link = server.node.link
            opens[:] = [link, link._connect]
            door = asyncio.Event()

            async def closed_door(link: Link) -> Connection:
                await door.wait()
                return await opens[1](link)

            link._connect = closed_door
            link.abort(ConnectionLost("cut by the test"))
            while link.connection is not None:  # noqa: ASYNC110 - a turn of the loop
                await asyncio.sleep(0)
            opens.append(door)

        async def come_back() -> None:
            link, connect, door = opens
            link._connect = connect
            door.set()

        opens: list[Any] = []
        thread = threading.Thread(target=leaver)
        thread.start()
        with cluster.store(0) as store:
            store.init("w", np.zeros(3, "f4"))
            assert (store.pushpull("w", np.ones(3, "f4")) == 2).all()
            handle = store.pushpull("w", np.full(3, 7, "f4"), async_op=True)
            assert gone.wait(10)
            assert not handle.done()
            runtime.run(come_back)
            assert (handle.wait() == 7).all()
            assert (store.pushpull("w", np.ones(3, "f4")) == 1).all()
        thread.join()


# ---- the keeper alone ---------------------------------------------------------------------------


def answers(server: FakeServer, rank: int) -> list[tuple[int, list[float]]]:
    """Request and value of each answer with a value, and forget them."""
    found = []
    frames = server.answers(rank)
    while frames:
        kind, request, body, error = read_answer(frames.popleft())
        assert error is None
        if kind == Kind.DATA:
            found.append((request, np.frombuffer(body, "f4").tolist()))
    return found


def value(*numbers: float) -> bytes:
    return np.asarray(numbers, "f4").tobytes()


async def test_all_open_rounds_of_a_split_slab_complete_in_order() -> None:
    server = FakeServer(2)
    server.init(0, "float32", [value(0), value(0)], slab=True)
    server.deliver(0, make_frame(Kind.PUSHPULL, 10, 0, 1, value(1, 2)))
    server.deliver(0, make_frame(Kind.PUSHPULL, 11, 0, 2, value(3), rows=[0]))
    server.deliver(1, make_frame(Kind.PUSHPULL, 10, 0, 1, value(5), rows=[1]))
    assert answers(server, 0) == []
    assert answers(server, 1) == [(10, [7])]
    server.keeper.left(1)
    assert answers(server, 0) == [(10, [1, 7]), (11, [3])]
    assert server.keeper.rules.members == 1
    server.keeper.left(1)  # told again
    assert answers(server, 0) == []
    server.deliver(0, make_frame(Kind.PUSHPULL, 12, 0, 2, value(9), rows=[1], acked=2))
    assert answers(server, 0) == [(12, [9])]
    server.deliver(0, make_frame(Kind.PUSHPULL, 13, 0, 3, value(1, 1), acked=3))
    assert answers(server, 0) == [(13, [1, 1])]


async def test_versions_that_were_kept_for_the_leaver_are_given_back() -> None:
    server = FakeServer(2)
    server.init(0, "float32", [value(0)], slab=False)
    for clock in (1, 2):
        for rank in (1, 0):
            server.deliver(rank, make_frame(Kind.PUSHPULL, clock, 0, clock, value(clock),
                                            acked=clock if rank == 0 else 1))
    unit: Any = server.keeper.units[0]
    assert [version.clock for version in unit.old] == [1]  # for rank 1, which has not said
    server.keeper.left(1)
    assert unit.old == []
    assert unit.current.owed == 1


async def test_last_words_of_a_leaver_do_not_complete_a_round_of_others() -> None:
    server = FakeServer(3)
    server.init(0, "float32", [value(0)], slab=False)
    server.deliver(2, make_frame(Kind.PUSH, 5, 0, 1, value(4)))
    server.keeper.left(2)
    server.deliver(0, make_frame(Kind.PUSHPULL, 6, 0, 1, value(1)))
    assert answers(server, 0) == []
    server.deliver(1, make_frame(Kind.PUSHPULL, 6, 0, 1, value(2)))
    assert answers(server, 0) == answers(server, 1) == [(6, [7])]


@pytest.mark.parametrize("leave", [
    lambda keeper: [keeper.left(0), keeper.left(1)], lambda keeper: [keeper.left(1), keeper.left(0)]
])  # fmt: skip
async def test_everybody_may_leave(leave: Callable[[Any], None]) -> None:
    server = FakeServer(2)
    server.init(0, "float32", [value(0)], slab=False)
    server.deliver(0, make_frame(Kind.PUSH, 1, 0, 1, value(1)))
    leave(server.keeper)
    assert server.keeper.rules.rounds == 1
    assert server.keeper.rules.members == 0
