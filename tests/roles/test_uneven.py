"""Workers that leave after different numbers of rounds are told of, once."""

from __future__ import annotations

import numpy as np
import pytest

import asyncps
from asyncps.kvstore import KVStore
from asyncps.protocol.frames import Kind
from asyncps.roles.attendance import attend
from tests.support.cluster import DEADLINES, on_cluster
from tests.support.ports import FakeServer, make_frame


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records
            if record.name == "asyncps.roles.uneven"]


def pushes(store: KVStore, key: str, count: int) -> None:
    for _ in range(count):
        store.pushpull(key, np.ones(3, "f4"))


@pytest.mark.parametrize("counts", [(2, 4), (4, 2), (0, 1), (3, 3, 2), (2, 3, 3)])
def test_who_made_fewer_rounds_is_named_with_the_key(
    caplog: pytest.LogCaptureFixture, counts: tuple[int, ...]
) -> None:
    def work(store: KVStore) -> None:
        store.init(["same", "w"], [np.zeros(3, "f4")] * 2)
        pushes(store, "same", 2)
        pushes(store, "w", counts[store.rank])

    on_cluster(work, workers=len(counts), servers=1)
    (said,) = warnings(caplog)
    low = min(counts)
    assert f"worker {counts.index(low)} left after {low} rounds of key 'w', worker" in said
    # The other may be on its way still.
    assert any(f"worker {rank} has pushed {seen}:" in said
               for rank, count in enumerate(counts) for seen in range(low + 1, count + 1)), said


async def test_who_closes_the_store_has_left_it(caplog: pytest.LogCaptureFixture) -> None:
    server = FakeServer(3)
    server.init(0, "float32", [np.zeros(1, "f4").tobytes()], slab=False)
    for rank, count in ((0, 1), (1, 2), (2, 2)):
        for clock in range(1, count + 1):
            frame = make_frame(Kind.PUSHPULL, clock, 0, clock, np.ones(1, "f4").tobytes())
            server.deliver(rank, frame)
    attend(server.keeper, 1, lambda: 0b111, lambda: None, closed=True)
    assert warnings(caplog) == []  # the others may still come that far
    for _ in range(2):
        attend(server.keeper, 0, lambda: 0b111, lambda: None, closed=True)
    (said,) = warnings(caplog)
    assert "worker 0 left after 1 rounds of key 'key 0.0', worker 1 has pushed 2:" in said


@pytest.mark.parametrize("ahead", [0, 2])
async def test_who_left_before_the_others_joined_is_compared_once(
    caplog: pytest.LogCaptureFixture, ahead: int
) -> None:
    """Afterwards the clocks of all are the same, and of who has left they are gone."""
    server = FakeServer(3)
    server.init(0, "float32", [np.zeros(1, "f4").tobytes()], slab=False)

    def push(rank: int, clock: int) -> None:
        server.deliver(
            rank, make_frame(Kind.PUSHPULL, clock, 0, clock, np.ones(1, "f4").tobytes()))

    for clock in range(1, 4):
        for rank in range(3):
            push(rank, clock)
    attend(server.keeper, 2, lambda: 0b111, lambda: None, closed=True)
    for clock in range(4, 4 + ahead):
        for rank in range(2):
            push(rank, clock)
    for rank in range(2):
        attend(server.keeper, rank, lambda: 0b111, lambda: None)
    attend(server.keeper, None, lambda: 0b111, lambda: None)
    for rank in range(2):
        attend(server.keeper, rank, lambda: 0b111, lambda: None, closed=True)
    said = warnings(caplog)
    assert len(said) == (ahead > 0)
    if ahead:
        assert "worker 2 left after 3 rounds of key 'key 0.0', worker 0 has pushed 5" in said[0]


async def test_many_keys_are_all_looked_at_when_the_last_one_leaves(
    caplog: pytest.LogCaptureFixture
) -> None:
    server = FakeServer(2)
    for unit in range(1000):
        server.init(unit, "float32", [np.zeros(1, "f4").tobytes()], slab=False)
    frame = make_frame(Kind.PUSHPULL, 1, 999, 1, np.ones(1, "f4").tobytes())
    server.deliver(1, frame)
    attend(server.keeper, 0, lambda: 0b11, lambda: None, closed=True)
    assert warnings(caplog) == []
    attend(server.keeper, 1, lambda: 0b11, lambda: None, closed=True)
    (said,) = warnings(caplog)
    assert "worker 0 left after 0 rounds of key 'key 999.0', worker 1 has pushed 1" in said


def test_equal_rounds_joins_and_pushes_that_are_applied_as_they_come_are_silent(
    caplog: pytest.LogCaptureFixture
) -> None:
    def equal(store: KVStore) -> None:
        store.init("w", np.zeros(3, "f4"))
        pushes(store, "w", 3)

    def joined(store: KVStore) -> None:
        store.init("w", np.zeros(3, "f4"))
        pushes(store, "w", 3 + store.rank)
        store.join()

    def free(store: KVStore) -> None:
        store.set_optimizer("test")
        store.init("w", np.zeros(3, "f4"))
        pushes(store, "w", 3 + store.rank)

    on_cluster(equal, workers=3, servers=2)
    on_cluster(joined, workers=2, servers=2)
    with asyncps.LocalCluster(workers=2, servers=2, **DEADLINES) as cluster:
        cluster.run(free, "dist_async")
    assert warnings(caplog) == []
