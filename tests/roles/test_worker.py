"""The worker: stores, deadlines, memory taken back, and links that are cut."""

from __future__ import annotations

import asyncio
import gc
import logging
import random
import threading
import warnings
from typing import Any

import numpy as np
import pytest

from asyncps.core import Core
from asyncps.errors import ConnectionLost, DeadlineExceeded, Disagreement, UnknownKey
from asyncps.kvstore import AsyncKVStore, KVStore
from asyncps.protocol.messages import StoreConfig
from asyncps.roles.server import WorkerPort
from asyncps.roles.worker import Worker
from asyncps.transport.polling import Polling
from tests.roles.cluster import bench
from tests.support.cluster import on_cluster

both_transports = pytest.mark.parametrize("transport", ["memory", "tcp"])


def on_loop(store: KVStore, work: Any) -> Any:
    """Runs what makes a coroutine on the store's loop."""
    return store._runtime.run(work)


def test_same_name_is_the_same_store_and_other_words_are_a_disagreement() -> None:
    def work(store: KVStore) -> None:
        worker, client = store._core.worker, store._core.client
        words = StoreConfig("dist_sync", "arrival", "sum")
        assert on_loop(store, lambda: worker.open_store("default", words)) is client
        other = on_loop(store, lambda: worker.open_store("other", words))
        assert other.number != client.number
        others = StoreConfig("dist_sync", "rank", "sum")
        with pytest.raises(Disagreement, match="default"):
            on_loop(store, lambda: worker.open_store("default", others))
        store.barrier()

    on_cluster(work)


def test_store_that_two_threads_open_at_once_has_one_set_of_clocks() -> None:
    def work(store: KVStore) -> None:
        worker, words = store._core.worker, StoreConfig("dist_sync", "arrival", "sum")

        async def open_twice() -> None:
            first, second = await asyncio.gather(
                worker.open_store("other", words), worker.open_store("other", words)
            )
            assert first is second
            assert worker.clients["other"] is first

        on_loop(store, open_twice)
        store.barrier()

    on_cluster(work)


def test_look_up_learns_all_keys_or_none() -> None:
    def work(store: KVStore) -> None:
        worker, client = store._core.worker, store._core.client
        if store.rank == 0:
            store.init(["a", "b"], [np.zeros(3, "f4"), np.zeros(3, "f4")])
        store.barrier()
        if store.rank == 1:
            with pytest.raises(UnknownKey, match="'c'"):
                on_loop(store, lambda: worker.look_up(client, ["a", "c"]))
            assert not client.keys
            on_loop(store, lambda: worker.look_up(client, ["a", "b"]))
            assert set(client.keys) == {"a", "b"}
        store.barrier()

    on_cluster(work)


@pytest.mark.parametrize("size", [3, 100_000])
def test_round_that_lasts_too_long_names_who_is_missing_and_stays_counted(
    size: int, caplog: pytest.LogCaptureFixture
) -> None:
    gave_up = threading.Event()

    def work(store: KVStore) -> None:
        store.init("w", np.zeros(size, "f4"))
        if store.rank == 0:
            value = np.ones(size, "f4")
            with pytest.raises(DeadlineExceeded, match=r"round 1 .*ranks \[1, 2\].*counted.*'w'"):
                store.pushpull("w", value)
            value[:] = -1  # it is the caller's again
            gave_up.set()
        else:
            assert gave_up.wait(10)
            store.push("w", np.full(size, 10, "f4"))
        assert np.all(store.pull("w") == 21)

    with caplog.at_level(logging.WARNING):
        on_cluster(work, workers=3, settings={"round_s": 0.4, "round_warning_s": 0.1})
    assert "waits for ranks [1, 2]: key 'w'" in caplog.text


def test_answer_that_a_live_server_owes_has_a_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    def work(store: KVStore) -> None:
        store.init("w", np.zeros(3, "f4"))
        monkeypatch.setattr(WorkerPort, "_counted", lambda *_: None)
        handle = store.push("w", np.ones(3, "f4"))
        with pytest.raises(DeadlineExceeded, match=r"server 0 .*clock 1.*key 'w'"):
            handle.wait(10)

    on_cluster(work, workers=1, servers=1, settings={"answer_s": 0.4})


@both_transports
@pytest.mark.parametrize("seed", range(3))
def test_links_that_are_cut_again_and_again_lose_and_double_nothing(
    transport: str, seed: int
) -> None:
    def work(store: KVStore) -> None:
        keys = ["a", "b", "large", "d"]
        sizes = [3, 700, 400_000, 5]
        store.init(keys, [np.zeros(s, "f4") for s in sizes])
        store.set_optimizer("test")
        rng = random.Random(100 * seed + store.rank)
        links, runtime = store._core.worker.links, store._runtime
        totals = [0] * len(keys)
        n = store.num_workers
        for turn in range(8):
            chosen = [0, 1, 2, 3] if turn % 3 else [2, turn % 2, 3]
            values = [np.full(sizes[i], turn + store.rank, "f4") for i in chosen]
            names = [keys[i] for i in chosen]
            cut = rng.choice(links)
            if rng.random() < 0.5:
                outs = [np.zeros(sizes[i], "f4") for i in chosen]
                handle = store.pushpull(names, values, out=outs, async_op=True)
                runtime.call(lambda link=cut: link.abort(ConnectionLost("cut by the test")))
                got = handle.wait(10)
            else:
                store.push(names, values)
                runtime.call(lambda link=cut: link.abort(ConnectionLost("cut by the test")))
                got = store.pull(names)
            for i, array in zip(chosen, got, strict=True):
                totals[i] += n * turn + n * (n - 1) // 2
                assert np.all(array == totals[i]), (turn, keys[i])
        store.barrier()
        assert all(server["parked"] == 0 for server in store.statistics()["servers"])
        store.barrier()

    on_cluster(work, transport=transport)


@both_transports
@pytest.mark.parametrize("size", [3, 500_000])
def test_memory_that_was_taken_back_is_not_written_and_the_push_counts(
    size: int, transport: str
) -> None:
    given_back = threading.Event()

    def work(store: KVStore) -> None:
        store.init("w", np.zeros(size, "f4"))
        if store.rank == 0:
            value = np.ones(size, "f4")
            handle = store.pushpull("w", value, async_op=True)
            on_loop(store, lambda: store._core.let_go(handle._call))
            value[:] = -7
            given_back.set()
            assert np.all(store.pull("w") == 11)
            assert np.all(value == -7)
        else:
            assert given_back.wait(10)
            store.push("w", np.full(size, 10, "f4"))
            assert np.all(store.pull("w") == 11)

    on_cluster(work, transport=transport)


def test_rank_0_that_leaves_first_does_not_leave_others_waiting_for_its_keys() -> None:
    def work(store: KVStore) -> str:
        store.barrier()
        if store.rank == 0:
            return "left"
        with pytest.raises(Exception, match=r"worker 0 left|rank 0 left") as error:
            store.init("never", np.zeros(3, "f4"))
        return type(error.value).__name__

    assert on_cluster(work) == ["left", "ClusterError"]


@pytest.mark.parametrize("polls", [True, False])
async def test_small_values_are_looked_for_by_the_server_and_by_a_worker_that_may(
    monkeypatch: pytest.MonkeyPatch, polls: bool
) -> None:
    told: list[tuple[Polling, str]] = []

    def watch(name: str) -> None:
        method = getattr(Polling, name)

        def watched(polling: Polling) -> None:
            told.append((polling, name))
            method(polling)

        monkeypatch.setattr(Polling, name, watched)

    watch("expect")
    watch("came")
    async with bench(num_workers=1) as made:
        theirs = made.server().polling
        config = made.config.replace(role="worker", rank=0)
        worker = Worker(config, made.network, made.scope.spawn, polls=polls)
        made.scope.roles.append(worker)
        await worker.start()
        words = StoreConfig("dist_sync", "arrival", "sum")
        store = AsyncKVStore(Core(worker, await worker.open_store("default", words)))
        large = np.ones(1 << 20, "f4")  # in whole chunks, which keep everybody awake
        await store.init(["small", "large"], [np.zeros(5, "f4"), np.zeros_like(large)])
        told.clear()
        for _ in range(3):
            assert (await store.pushpull("small", np.full(5, 7, "f4")) == 7).all()
        (ours,) = {link.polling for link in worker.links}
        assert (ours is not None) == polls
        course = [(ours, "expect"), (theirs, "came"), (theirs, "expect"), (ours, "came")]
        assert told == [event for event in course if event[0] is not None] * 3
        told.clear()
        assert (await store.pushpull("large", large) == 1).all()
        assert told == []


async def test_statistics_that_are_given_up_leave_no_question_unasked() -> None:
    async with bench(num_workers=1, num_servers=2) as made:
        for rank in range(2):
            made.server(rank)
        worker = Worker(made.config.replace(role="worker", rank=0), made.network, made.scope.spawn)
        made.scope.roles.append(worker)
        await worker.start()
        words = StoreConfig("dist_sync", "arrival", "sum")
        core = Core(worker, await worker.open_store("default", words))
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            asking = asyncio.create_task(core.statistics())
            await asyncio.sleep(0)
            asking.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asking
            del asking
            gc.collect()
        assert [str(each.message) for each in said] == []
        assert len((await core.statistics())["servers"]) == 2
