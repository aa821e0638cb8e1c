"""K18 and more: workers run out of data at different times, join, and go on together."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import asyncps
from asyncps.errors import (
    ClosedError,
    ClusterError,
    DeadlineExceeded,
    OptimizerError,
    WorkerLost,
)
from asyncps.kvstore import KVStore
from asyncps.protocol.messages import Clocks
from asyncps.roles import server as server_module
from tests.kvstore.scenarios import RATE, all_are, wait_joined
from tests.support.cluster import DEADLINES, on_cluster, on_processes
from tests.support.processes import ProcessGroup

both_transports = pytest.mark.parametrize("transport", ["memory", "tcp"])

# Rows of a slab, a chunk, and a key of several chunks.
SIZES = {"a": 3, "b": 5, "chunk": 20_000, "big": 700_000}


def still_in(batches: list[int], turn: int) -> list[int]:
    """Who has a batch number `turn`, counted from 1."""
    return [rank for rank, count in enumerate(batches) if turn <= count]


def fill(store: KVStore, turn: int) -> list[np.ndarray[Any, Any]]:
    return [np.full(size, 10 * turn + store.rank + 1, "f4") for size in SIZES.values()]


def k18(store: KVStore, batches: list[int], epochs: int, *, mean: bool = False) -> None:
    """The last rounds of an epoch hold the sums of those still in."""
    names = list(SIZES)
    store.init(names, [np.zeros(size, "f4") for size in SIZES.values()])
    for _ in range(epochs):
        for turn in range(1, batches[store.rank] + 1):
            members = still_in(batches, turn)
            total = sum(10 * turn + rank + 1 for rank in members)
            for got in store.pushpull(names, fill(store, turn)):
                all_are(got, total / len(members) if mean else total)
        # Nobody knows who is the last of those with equally many.
        assert batches[store.join()] == max(batches)
        # What one has learnt meanwhile is what all have.
        last = still_in(batches, max(batches))
        total = sum(10 * max(batches) + rank + 1 for rank in last)
        for got in store.pull(names):
            all_are(got, total / len(last) if mean else total)
        store.barrier()


def k18_two(store: KVStore) -> None:
    k18(store, [10, 12], 2)


def k18_three(store: KVStore) -> None:
    k18(store, [10, 12, 15], 3)


@both_transports
@pytest.mark.parametrize("order", ["arrival", "rank"])
@pytest.mark.parametrize("reduce", ["sum", "mean"])
def test_k18(transport: str, order: str, reduce: str) -> None:
    def work(store: KVStore) -> None:
        k18(store, [10, 12], 2, mean=reduce == "mean")

    on_cluster(work, transport=transport, order=order, reduce=reduce)


@both_transports
@pytest.mark.parametrize("batches", [[10, 12, 15], [15, 10, 10], [0, 3, 0]], ids=str)
def test_k18_of_three(transport: str, batches: list[int]) -> None:
    on_cluster(lambda store: k18(store, batches, 3), workers=3, servers=2, transport=transport)


@pytest.mark.slow
def test_k18_on_processes(processes: ProcessGroup) -> None:
    on_processes(processes, k18_two, workers=2, servers=1)
    on_processes(processes, k18_three, workers=3, servers=2)


@both_transports
def test_rows_at_unequal_clocks_agree_again(transport: str) -> None:
    """Each worker pushes other keys of the slab, and unequally often; then all go on as one."""
    def work(store: KVStore) -> None:
        names = ["a", "b", "c"]
        store.init(names, [np.zeros(3, "f4")] * 3)
        ones = [np.ones(3, "f4")] * 3
        for _ in range(2):
            store.pushpull(names, ones, out=[np.zeros(3, "f4") for _ in names])
            mine = [["a"], ["b"]][store.rank]
            for turn in range(2):  # as far ahead as the clock window lets anybody be
                store.push(mine, [np.full(3, 7 + turn, "f4")])
            store.join()
            a, b, c = store.pull(names)
            all_are([a, b], 8)
            all_are(c, 2)
            for _ in range(3):
                for got in store.pushpull(names, ones, out=[np.zeros(3, "f4") for _ in names]):
                    all_are(got, 2)

    on_cluster(work, servers=1, transport=transport)


@both_transports
@pytest.mark.parametrize("size", [5, 20_000])
def test_key_that_a_worker_learns_after_a_join_stands_at_the_servers_clock(
    transport: str, size: int
) -> None:
    def work(store: KVStore) -> None:
        store.init("known", np.zeros(5, "f4"))
        if store.rank == 0:
            store.init("new", np.zeros(size, "f4"))
        store.barrier()
        if store.rank == 1:
            store.join()
        else:
            # Alone from here on, once the other has joined: the first waits for that.
            for turn in range(1, 4):
                all_are(store.pushpull("new", np.full(size, turn, "f4")), turn)
            store.join()
        for turn in range(3):
            all_are(store.pushpull("new", np.full(size, turn + store.rank, "f4")), 2 * turn + 1)

    on_cluster(work, transport=transport)


@both_transports
def test_staleness_does_not_count_who_has_joined(transport: str) -> None:
    """The last may go on alone, further than the bound; then nobody is behind by that."""
    batches = [2, 9]

    def work(store: KVStore) -> None:
        sizes = {"a": 3, "chunk": 20_000}
        store.init(list(sizes), [np.zeros(size, "f4") for size in sizes.values()])
        store.set_optimizer("test", rescale_grad=RATE)
        for epoch in range(1, 3):
            for _ in range(batches[store.rank]):
                store.pushpull(list(sizes), [np.ones(size, "f4") for size in sizes.values()])
            store.join()
            for got in store.pull(list(sizes)):
                all_are(got, RATE * sum(batches) * epoch)
            store.barrier()

    on_cluster(work, transport=transport, type="dist_ssp", staleness=2)


@both_transports
def test_async_join_flushes_and_waits(transport: str) -> None:
    def work(store: KVStore) -> None:
        store.init(["a", "chunk"], [np.zeros(3, "f4"), np.zeros(20_000, "f4")])
        store.set_optimizer("test", rescale_grad=RATE)
        for epoch in range(1, 3):
            for _ in range(5 * (store.rank + 1)):
                store.push(["a", "chunk"], [np.ones(3, "f4"), np.ones(20_000, "f4")])
            store.join()
            for got in store.pull(["a", "chunk"]):
                all_are(got, RATE * 15 * epoch)
            store.barrier()

    on_cluster(work, transport=transport, type="dist_async")


def in_thread(work: Callable[[], object]) -> tuple[threading.Thread, list[Any]]:
    """Run in another thread; what it returned, or raised, is in the list after its end."""
    found: list[Any] = []

    def run() -> None:
        try:
            found.append(work())
        except Exception as error:  # noqa: BLE001 - the test looks at it
            found.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    return thread, found


@both_transports
def test_pushes_of_a_worker_that_has_joined_are_refused_and_pulls_are_not(transport: str) -> None:
    joined = threading.Event()

    def work(store: KVStore) -> None:
        store.init("w", np.zeros(3, "f4"))
        store.pushpull("w", np.ones(3, "f4"))
        if store.rank == 1:
            assert joined.wait(10)
            all_are(store.pushpull("w", np.full(3, 5, "f4")), 5)
            store.join()
        else:
            thread, found = in_thread(store.join)
            wait_joined(store)
            handle = store.push("w", np.ones(3, "f4"))
            with pytest.raises(ClusterError, match="push of a worker that has joined"):
                handle.wait(10)
            for verb in (store.pushpull, store.assign):
                with pytest.raises(ClusterError, match="of a worker that has joined"):
                    verb("w", np.ones(3, "f4"))
            all_are(store.pull("w"), 2)
            joined.set()
            again = store.join()  # another thread's call waits for the same end
            thread.join()
            assert found == [again] == [1]
        all_are(store.pushpull("w", np.ones(3, "f4")), 2)

    on_cluster(work, transport=transport)


@both_transports
def test_worker_that_closes_is_not_waited_for(transport: str) -> None:
    def work(store: KVStore) -> None:
        store.init("w", np.zeros(3, "f4"))
        for _ in range(3):
            store.pushpull("w", np.ones(3, "f4"))
        if store.rank < 2:
            assert store.join() in (0, 1)
            all_are(store.pushpull("w", np.ones(3, "f4")), 2)

    on_cluster(work, workers=3, transport=transport)


def test_join_that_waits_for_a_lost_worker_is_worker_lost() -> None:
    seen = []

    def work(store: KVStore) -> None:
        store.init("w", np.zeros(3, "f4"))
        if store.rank == 1:
            raise ValueError("enough")
        with pytest.raises(WorkerLost) as error:
            store.join()
        seen.append(error.value.rank)

    with pytest.raises(ValueError, match="enough"):
        on_cluster(work, settings={"reconnect_s": 0.2})
    assert seen == [1]


def test_join_after_a_failed_push_says_so_and_has_not_joined() -> None:
    def work(store: KVStore) -> None:
        store.init(["w", "n"], [np.zeros(3, "f4"), np.zeros(3, "i4")])
        store.set_optimizer("sgd", learning_rate=1.0)
        # sgd cannot update whole numbers: this round fails, and nobody looks.
        handle = store.pushpull("n", np.ones(3, "i4"), async_op=True)
        while not handle.done():
            pass
        with pytest.raises(OptimizerError):
            store.join()
        all_are(store.pushpull("w", np.ones(3, "f4")), -2)
        store.join()
        all_are(store.pushpull("w", np.ones(3, "f4")), -4)

    on_cluster(work)


async def test_server_that_is_late_with_the_clocks_is_asked_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With the clocks of before its pushes would be taken for replays, and be lost."""
    async with asyncps.connect("dist_sync") as store:
        await store.init("w", np.zeros(3, "f4"))
        worker = store._core.worker
        ask, asked = worker.ask_server, []

        async def late(link: Any, message: Any, *more: Any) -> Any:
            if isinstance(message, Clocks):
                asked.append(message)
                if len(asked) < 3:
                    raise DeadlineExceeded("late")
            return await ask(link, message, *more)

        monkeypatch.setattr(worker, "ask_server", late)
        assert await store.join() == 0
        assert len(asked) == 3
        all_are(await store.pushpull("w", np.ones(3, "f4")), 1)


def test_closing_ends_a_join_of_another_thread() -> None:
    with asyncps.LocalCluster(workers=2, **DEADLINES) as cluster:
        opened = threading.Event()

        def other() -> None:
            with cluster.store(1):
                assert opened.wait(10)

        thread, found = in_thread(other)
        store = cluster.store(0)
        joining, ended = in_thread(store.join)
        wait_joined(store)
        store.close()
        opened.set()
        joining.join()
        thread.join()
        assert found == [None]
        assert isinstance(ended[0], ClosedError)


async def test_await_face() -> None:
    async with asyncps.connect("dist_sync") as store:
        await store.init("w", np.zeros(3, "f4"))
        assert await store.join() == 0
        all_are(await store.pushpull("w", np.ones(3, "f4")), 1)


def test_local_store_joins_itself() -> None:
    with asyncps.create("local") as store:
        assert store.join() == 0
    with pytest.raises(ClosedError):
        store.join()


@pytest.mark.parametrize("options", [{}, {"type": "dist_ssp", "staleness": 3}], ids=["sync", "ssp"])
def test_all_go_on_where_an_optimizer_that_is_at_work_ends(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch, registered: None
) -> None:
    """The update of before the join ends after the server has heard that all have joined."""
    class Slow(asyncps.optim.Optimizer):
        def init(self, spec: Any) -> dict[str, Any]:
            return {}

        def update(self, weight: Any, grad: Any, state: Any, hyper: Any) -> None:
            assert all_have.wait(20)
            weight -= grad

    def attend(keeper: Any, rank: int | None, *rest: Any, closed: bool) -> None:
        carried_out(keeper, rank, *rest, closed=closed)
        if rank is None:
            all_have.set()

    def work(store: KVStore) -> float:
        store.init("w", np.zeros(4, "f4"))
        store.set_optimizer(slow)
        store.push("w", np.ones(4, "f4"))
        if store.rank == 0:
            store.push("w", np.ones(4, "f4"))
        store.join()
        for _ in range(3):
            store.push("w", np.ones(4, "f4"))
        store.barrier()
        store.join()
        return float(store.pull("w")[0])

    carried_out = server_module.attend
    monkeypatch.setattr(server_module, "attend", attend)
    all_have = threading.Event()
    slow = Slow()
    assert on_cluster(work, **options) == [-9, -9]
