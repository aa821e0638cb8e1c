"""on_worker_lost="continue" in one process: a worker's thread fails, and the others go on."""

from __future__ import annotations

import contextlib
import threading
from typing import Any

import numpy as np
import pytest

import asyncps
from asyncps.errors import AsyncPSError, ConnectionLost, StaleIncarnation
from asyncps.kvstore import KVStore
from asyncps.roles.scheduler import Scheduler
from asyncps.state.membership import Standing
from tests.kvstore.scenarios import RATE, all_are
from tests.support.cluster import DEADLINES, on_cluster

SETTINGS: dict[str, Any] = {"on_worker_lost": "continue", "reconnect_s": 0.2}
SIZES = {"a": 3, "chunk": 20_000, "big": 300_000}

both_transports = pytest.mark.parametrize("transport", ["memory", "tcp"])


def pull_for_ever(store: KVStore) -> None:
    while True:
        store.pull("w")


class Enough(Exception):
    """What the lost worker ends by."""


@both_transports
@pytest.mark.parametrize("reduce", ["sum", "mean"])
def test_others_go_on_without_a_worker_that_failed(transport: str, reduce: str) -> None:
    seen = {}

    def work(store: KVStore) -> None:
        store.init(list(SIZES), [np.zeros(size, "f4") for size in SIZES.values()])
        for step in range(1, 9):
            if step == 5 and store.rank == 1:
                raise Enough
            values = [np.full(size, 2 * store.rank + 2, "f4") for size in SIZES.values()]
            count = 3 if step < 5 else 2
            total = 12 if step < 5 else 8
            for got in store.pushpull(list(SIZES), values):
                all_are(got, total / count if reduce == "mean" else total)
        store.barrier()
        store.set_optimizer("test", rescale_grad=RATE)
        store.init("late", np.zeros(3, "f4"))
        all_are(store.pushpull("late", np.ones(3, "f4")), 2 * RATE / (2 if reduce == "mean" else 1))
        seen[store.rank] = (store.num_dead_node(), store.join() in (0, 2))

    with pytest.raises(Enough):
        on_cluster(work, workers=3, transport=transport, settings=SETTINGS, reduce=reduce)
    assert seen == {0: (1, True), 2: (1, True)}


@pytest.mark.parametrize(("type", "options"), [("dist_async", {}), ("dist_ssp", {"staleness": 1})])
def test_pushes_as_they_come_do_not_wait_for_a_lost_worker(
    type: str, options: dict[str, Any]
) -> None:
    seen = {}

    def work(store: KVStore) -> None:
        store.init(list(SIZES), [np.zeros(size, "f4") for size in SIZES.values()])
        store.set_optimizer("test", rescale_grad=RATE)
        ones = [np.ones(size, "f4") for size in SIZES.values()]
        store.pushpull(list(SIZES), ones)
        store.barrier()
        if store.rank == 1:
            raise Enough
        for _ in range(6):
            store.pushpull(list(SIZES), [np.ones(size, "f4") for size in SIZES.values()])
        store.join()
        for got in store.pull(list(SIZES)):
            all_are(got, RATE * (3 + 2 * 6))
        seen[store.rank] = True

    with pytest.raises(Enough):
        on_cluster(work, workers=3, settings=SETTINGS, type=type, **options)
    assert seen == {0: True, 2: True}


@both_transports
def test_lost_worker_that_had_joined_is_not_counted_again(transport: str) -> None:
    joined = threading.Event()
    seen = []

    def work(store: KVStore) -> None:
        store.init("w", np.zeros(3, "f4"))
        store.pushpull("w", np.ones(3, "f4"))
        if store.rank == 1:
            client, worker = store._core.client, store._core.worker

            async def quietly() -> None:
                with contextlib.suppress(AsyncPSError):
                    await store._core.join()

            async def join_and_go() -> None:
                worker.node.spawn(quietly(), "a join that nobody waits for")

            async def has_joined() -> bool:
                return client.joining is not None and not client.pushes

            store._runtime.run(join_and_go)
            while not store._runtime.run(has_joined):
                pass
            joined.set()
            raise Enough
        assert joined.wait(10)
        all_are(store.pushpull("w", np.ones(3, "f4")), 2)
        store.join()
        all_are(store.pushpull("w", np.ones(3, "f4")), 2)
        seen.append(store.rank)

    with pytest.raises(Enough):
        on_cluster(work, workers=3, transport=transport, settings=SETTINGS)
    assert sorted(seen) == [0, 2]


@both_transports
def test_worker_that_comes_back_after_its_loss_hears_that_it_is_stale(transport: str) -> None:
    """It was cut off when all were told, and hears it as the answer to its greeting."""
    with asyncps.LocalCluster(workers=2, transport=transport, **DEADLINES) as cluster:
        opened, over = threading.Event(), threading.Event()

        def other() -> None:
            with cluster.store(0) as store:
                store.init("w", np.zeros(3, "f4"))
                opened.set()
                assert over.wait(10)

        thread = threading.Thread(target=other)
        thread.start()
        store = cluster.store(1)
        scope, link = cluster._scope, store._core.worker.node.link
        assert scope is not None
        (scheduler,) = [role for role in scope.roles if isinstance(role, Scheduler)]

        async def cut_off() -> None:
            node = scheduler._state._membership.get("worker", 1)
            assert node is not None
            node.standing = Standing.LOST
            link.abort(ConnectionLost("cut by the test"))

        assert opened.wait(10)
        store._runtime.run(cut_off)
        with pytest.raises(StaleIncarnation, match="declared lost"):
            pull_for_ever(store)
        store.close()
        over.set()
        thread.join()
