"""Both faces, handles, and what a store tells about itself."""

from __future__ import annotations

import asyncio
import json
import threading
from typing import Any

import numpy as np
import pytest

import asyncps
from asyncps.errors import ClosedError, ConfigError, DeadlineExceeded, UnknownKey, WorkerLost
from asyncps.kvstore import KVStore
from tests.support.cluster import on_cluster


def test_handle_of_a_pull_waits_for_the_round_and_brings_the_value() -> None:
    def work(store: KVStore) -> None:
        store.init("w", np.zeros(100_000, "f4"))
        out = np.zeros(100_000, "f4")
        if store.rank == 0:
            pushed = store.push("w", np.ones(100_000, "f4"))
            assert pushed.wait(10) is None
            handle = store.pull("w", out=out, async_op=True)
            assert not handle.done()
            assert handle.exception() is None
            with pytest.raises(DeadlineExceeded):
                handle.wait(0.01)
            asked.set()
            assert handle.wait() is out
            assert handle.done()
            assert handle.exception() is None
            assert handle.wait() is out
        else:
            assert asked.wait(10)
            handle = store.pushpull("w", np.ones(100_000, "f4"), out=out, async_op=True)
            assert handle.wait(10) is out
        assert np.all(out == 2)

    asked = threading.Event()
    on_cluster(work)


def test_many_handles_may_be_under_way() -> None:
    def work(store: KVStore) -> None:
        keys = list(range(40))
        store.init(keys, [np.zeros(10 if k % 2 else 50_000, "f4") for k in keys])
        values = [np.full(10 if k % 2 else 50_000, k, "f4") for k in keys]
        handles = [store.pushpull(k, values[k], priority=-k, async_op=True) for k in keys]
        for key, handle in reversed(list(enumerate(handles))):
            assert handle.wait(10) is values[key]
            assert np.all(values[key] == key * store.num_workers)

    on_cluster(work, transport="tcp")


async def test_handle_of_the_blocking_face_may_be_awaited() -> None:
    with asyncps.create("dist_sync") as store:
        store.init("w", np.zeros(3, "f4"))
        assert await store.push("w", np.ones(3, "f4")) is None
        got = await store.pull("w", async_op=True)
        assert got.tolist() == [1, 1, 1]
        ended = store.pull("w", async_op=True)
        ended.wait()
        assert (await ended).tolist() == [1, 1, 1]


async def finished(verb: Any) -> Any:
    """The result of a verb, also of one that gives a handle."""
    result = await verb
    return await result if isinstance(result, asyncps.Handle) else result


async def test_await_face_has_the_same_verbs() -> None:
    async with asyncps.connect("dist_sync", reduce="sum") as store:
        assert (store.rank, store.num_workers, store.local_rank) == (0, 1, 0)
        assert store.type == "dist_sync"
        assert store.is_capable("optimizer")
        assert store.num_dead_node() == 0
        await store.init(["a", "big"], [np.zeros(3, "f4"), np.zeros((300, 400), "f4")])
        handle = await store.push("a", np.ones(3, "f4"))
        assert await handle is None
        assert handle.done()
        assert handle.exception() is None
        assert (await store.pull("a")).tolist() == [1, 1, 1]
        out = np.zeros((300, 400), "f4")
        pending = await store.pushpull("big", np.ones((300, 400), "f4"), out=out, async_op=True)
        assert await pending is out
        assert np.all(out == 1)
        await store.assign("a", np.full(3, 5, "f4"))
        await store.set_optimizer("test", rescale_grad=2.0)
        await store.set_hyperparameters(rescale_grad=3.0)
        both = await store.pushpull(["a", "big"], [np.ones(3, "f4"), out])
        assert both[0].tolist() == [8, 8, 8]
        assert np.all(both[1] == 4)
        assert (await store.broadcast("c", np.ones(2, "f8"))).tolist() == [1, 1]
        await store.barrier()
        json.dumps(await store.statistics())
        with pytest.raises(UnknownKey, match="'z'"):
            await store.pull("z")
        await store.close()
        await store.close()
        for verb in (
            lambda: store.pull("a"), lambda: store.push("a", np.ones(3, "f4")),
            lambda: store.init("b", np.ones(3)), lambda: store.barrier(), lambda: store.pull("y"),
        ):
            with pytest.raises(ClosedError):
                await finished(verb())


async def test_tasks_share_one_await_store() -> None:
    async with asyncps.connect("dist_sync") as store:
        keys = list(range(20))
        await store.init(keys, [np.zeros(3 if k % 2 else 50_000, "f4") for k in keys])

        async def train(key: int) -> None:
            for turn in range(5):
                value = np.full(3 if key % 2 else 50_000, turn + key, "f4")
                assert np.all(await store.pushpull(key, value) == turn + key)

        async with asyncio.TaskGroup() as tasks:
            for key in keys:
                tasks.create_task(train(key))


async def test_cancelled_pull_lets_go_of_out_and_the_store_goes_on() -> None:
    async with asyncps.connect("dist_sync") as store:
        await store.init("w", np.full(2_000_000, 3, "f4"))
        for pause in range(12):
            out = np.zeros(2_000_000, "f4")
            task = asyncio.create_task(store.pull("w", out=out))
            for _ in range(pause):
                await asyncio.sleep(0)
            task.cancel()
            try:
                await task
            except asyncio.CancelledError:
                out[:] = -1
                assert np.all(await store.pull("w") == 3)
                assert np.all(out == -1)


async def test_blocking_call_on_its_own_loop_is_refused() -> None:
    cluster_store: list[KVStore] = []

    def work(store: KVStore) -> None:
        store.init("w", np.zeros(3, "f4"))
        cluster_store.append(store)
        refused: list[BaseException] = []
        done = threading.Event()

        def on_loop() -> None:
            try:
                store.pull("w")
            except ConfigError as error:
                refused.append(error)
            done.set()

        store._runtime.call(on_loop)
        assert done.wait(10)
        assert "asyncps.connect" in str(refused[0])

    await asyncio.to_thread(on_cluster, work, workers=1)


@pytest.mark.parametrize("transport", ["memory", "tcp"])
def test_statistics_are_plain_data(transport: str) -> None:
    def work(store: KVStore) -> dict[str, Any]:
        store.init(["w", "v"], [np.zeros(3, "f4"), np.zeros(300_000, "f4")])
        for _ in range(3):
            store.pushpull("v", np.ones(300_000, "f4"))
            store.pushpull("w", np.ones(3, "f4"))
        store.barrier()
        told: dict[str, Any] = json.loads(json.dumps(store.statistics()))
        store.barrier()
        return told

    for rank, told in enumerate(on_cluster(work, transport=transport)):
        assert told["type"] == "dist_sync"
        assert told["rank"] == rank
        assert told["keys"] == 2
        assert told["sent_bytes"] > 3 * 1_200_000
        assert told["received_bytes"] > 3 * 1_200_000
        assert told["queued_bytes"] == told["budget_used_bytes"] == 0
        assert told["rounds"] >= 6
        assert len(told["servers"]) == 2
        assert sum(server["value_bytes"] for server in told["servers"]) == 1_200_012
        assert all(server["parked"] == 0 for server in told["servers"])


def test_facts_of_a_store() -> None:
    def work(store: KVStore) -> tuple[Any, ...]:
        assert store.type == "dist_sync"
        assert store.num_dead_node() == 0
        return store.rank, store.num_workers, store.local_rank

    assert on_cluster(work, workers=3) == [(0, 3, 0), (1, 3, 1), (2, 3, 2)]


@pytest.mark.parametrize("type", ["dist_sync", "dist", "local", "device"])
def test_create_without_a_cluster_runs_alone(type: str) -> None:
    with asyncps.create(type, order="rank") as store:
        assert (store.rank, store.num_workers, store.local_rank) == (0, 1, 0)
        assert store.type == ("dist_sync" if type == "dist" else type)
        store.init("w", np.ones((2, 3), "f4"))
        store.set_optimizer("sgd", learning_rate=0.5)
        store.set_hyperparameters(learning_rate=1.0)
        store.push("w", np.ones((2, 3), "f4"))
        assert not store.pull("w").any()
        store.barrier()
        json.dumps(store.statistics())


def test_store_of_one_name_is_one_store_and_may_be_opened_again() -> None:
    with asyncps.create("dist_sync", name="x") as keep:
        one = asyncps.create("dist_sync", name="a")
        one.init("w", np.ones(3, "f4"))
        two = asyncps.create("dist_sync", name="a")
        assert two.pull("w").tolist() == [1, 1, 1]
        one.close()  # so is the other: no worker has it open, and it is forgotten
        with pytest.raises(ClosedError):
            two.pull("w")
        again = asyncps.create("dist_sync", name="a")
        with pytest.raises(UnknownKey):
            again.pull("w")
        again.init("w", np.full(3, 2, "f4"))
        assert again.pull("w").tolist() == [2, 2, 2]
        keep.init("w", np.zeros(1, "f4"))
        again.close()


def test_push_beyond_the_send_budget_waits_and_goes_on() -> None:
    def work(store: KVStore) -> None:
        store.init("w", np.zeros(100_000, "f4"))
        store.set_optimizer("test")
        for _ in range(20):
            store.push("w", np.ones(100_000, "f4"))
        assert np.all(store.pull("w") == 20 * store.num_workers)

    on_cluster(work, settings={"send_budget_bytes": 500_000})


@pytest.mark.parametrize("first", [0, 1])
def test_worker_that_failed_first_is_the_one_told(first: int) -> None:
    def work(store: KVStore) -> None:
        store.barrier()
        if store.rank != first:
            with pytest.raises(WorkerLost):
                store.barrier()  # ends when the other has failed
        raise ValueError(f"rank {store.rank}")

    with pytest.raises(ValueError, match=f"rank {first}"):
        on_cluster(work)
