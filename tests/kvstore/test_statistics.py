"""What a store tells of itself: bytes, rounds, who was waited for, what waits."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

import asyncps
from asyncps.kvstore import KVStore
from tests.kvstore.test_faces import on_cluster


@pytest.mark.parametrize("transport", ["memory", "tcp"])
def test_open_round_names_whom_it_waits_for(transport: str) -> None:
    told: list[dict[str, Any]] = []
    go_on = threading.Event()

    def work(store: KVStore) -> None:
        store.init("w", np.zeros(300_000, "f4"))
        if store.rank == 1:
            assert go_on.wait(20)
        handle = store.push("w", np.ones(300_000, "f4"))
        if store.rank == 0:
            handle.wait(20)
            told.extend([store.statistics(), store.statistics()])
            while not told[1]["waiting_s"][1]:  # the loop's clock may count milliseconds
                told[1] = store.statistics()
            go_on.set()
        store.barrier()
        store.pull("w")
        if store.rank == 0:
            told.append(store.statistics())

    on_cluster(work, transport=transport)
    first, second, last = told
    assert set(first["waiting_s"]) == {1}
    assert 0 <= first["waiting_s"][1] <= second["waiting_s"][1]
    assert last["waiting_s"] == {}
    assert last["waited_s"][1] >= second["waiting_s"][1]
    assert [server["rank"] for server in last["servers"]] == [0, 1]
    assert last["queued_frames"] == last["queued_bytes"] == last["unanswered"] == 0


def test_bytes_of_lanes_count() -> None:
    def work(store: KVStore) -> tuple[int, int]:
        store.init("w", np.zeros(1000, "f4"))
        store.pushpull("w", np.ones(1000, "f4"))
        before = store.statistics()
        for _ in range(50):
            store.pushpull("w", np.ones(1000, "f4"))
        after = store.statistics()
        return (after["sent_bytes"] - before["sent_bytes"],
                after["received_bytes"] - before["received_bytes"])

    ((sent, received),) = on_cluster(work, workers=1, transport="tcp")
    assert sent > 50 * 4000
    assert received > 50 * 4000


def test_local_store_tells_the_same_names() -> None:
    with asyncps.create("local") as alone, asyncps.create("dist_sync") as embedded:
        assert set(alone.statistics()) == set(embedded.statistics())
