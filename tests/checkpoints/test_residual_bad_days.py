"""What compressed keys have not sent, on bad days: cuts, callers that give up, workers that go."""

from __future__ import annotations

import random
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from asyncps.errors import CheckpointError, DeadlineExceeded
from asyncps.kvstore import KVStore
from asyncps.protocol.parcels import KeptKey
from asyncps.roles import carrying, keeping
from asyncps.roles.carrying import Part, Stream
from asyncps.tensor import checkpoint
from tests.faults.proxied import proxied
from tests.faults.test_cuts import cuts_of
from tests.support.cluster import on_cluster

SIZE = 20_000
SPEC = {"type": "2bit", "threshold": 0.5}


def coder(store: Any) -> Any:
    return store._core.client.compression.coders["w"]


def gradient(rank: int, turn: int) -> Any:
    return np.random.default_rng([rank, turn]).uniform(-1, 1, SIZE).astype("f4")


def test_parts_of_a_stream() -> None:
    keys = [KeptKey("a", 2, 0), KeptKey("b", 0, 1), KeptKey("c", 3, 0), KeptKey("d", 0, 0)]
    stream = Stream(keys)
    assert stream.total == 20
    assert list(stream.parts(0, 20)) == [Part(0, 0, 8, 0), Part(2, 0, 12, 8)]
    assert list(stream.parts(4, 8)) == [Part(0, 4, 4, 0), Part(2, 0, 4, 4)]
    assert list(stream.parts(12, 8)) == [Part(2, 4, 8, 0)]
    assert list(Stream([]).parts(0, 0)) == []


@pytest.mark.parametrize("seed", range(5))
async def test_cuts_while_residuals_are_saved_and_loaded_change_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    monkeypatch.setattr(carrying, "MAX_PARCEL_BYTES", 4096)
    chance = random.Random(seed)
    async with proxied(workers=2, servers=2, order="rank") as cluster:

        async def prepare(store: Any) -> None:
            await store.init("w", np.zeros(SIZE, "f4"))
            await store.set_gradient_compression(SPEC)
            await store.set_optimizer("test")
            await store.pushpull("w", gradient(store.rank, 0))

        await cluster.all(prepare)
        kept = await cluster.all(lambda store: _residual(store))

        def cut() -> None:
            for member in cluster.members:
                for proxy in member.data:
                    proxy.cut_after(chance.randrange(1, 100_000), chance.choice(["up", "down"]),
                                    reset=chance.random() < 0.5)

        cut()
        await cluster.all(lambda store: store.save(tmp_path / "c"))
        await cluster.all(lambda store: store.pushpull("w", gradient(store.rank, 1)))
        cut()
        await cluster.all(lambda store: store.load(tmp_path / "c"))
        for before, after in zip(kept, await cluster.all(lambda store: _residual(store)),
                                 strict=True):
            assert np.array_equal(before, after)
        assert cuts_of(cluster) >= 2


async def _residual(store: Any) -> Any:
    return coder(store).residual.copy()


def ready(store: KVStore) -> None:
    store.init("w", np.zeros(SIZE, "f4"))
    store.set_gradient_compression(SPEC)
    store.set_optimizer("test")
    store.pushpull("w", gradient(store.rank, 0))


def test_a_save_that_fails_on_its_way_leaves_nothing_behind_that_disturbs_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, failures = keeping.Keeping.write, [True, True]

    async def write(self: Any, *given: Any) -> None:
        if failures:
            failures.pop()
            raise CheckpointError("the disk of this test is full")
        await real(self, *given)

    monkeypatch.setattr(keeping.Keeping, "write", write)
    monkeypatch.setattr(carrying, "MAX_PARCEL_BYTES", 4096)

    def work(store: KVStore) -> Any:
        ready(store)
        for _ in range(2):
            with pytest.raises(CheckpointError, match="this test is full"):
                store.save(tmp_path / "c")
        store.pushpull("w", gradient(store.rank, 1))
        store.save(tmp_path / "c")
        kept = coder(store).residual.copy()
        store.load(tmp_path / "c")
        assert np.array_equal(coder(store).residual, kept)

    on_cluster(work, workers=3)
    with checkpoint.Reader(tmp_path / "c") as reader:
        assert sorted(reader.residuals["w"]) == [0, 1, 2]


def test_a_worker_that_does_not_hand_over_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = threading.Event()

    async def nothing(*_: Any) -> None:
        pass

    monkeypatch.setattr("asyncps.roles.together.give", nothing)

    def work(store: KVStore) -> None:
        ready(store)
        with pytest.raises(DeadlineExceeded, match=r"did not hand over.*within 0.5 s.*rank 1"):
            store.save(tmp_path / "c")
        told.set()
        store.pushpull("w", gradient(store.rank, 1))

    on_cluster(work, settings={"answer_s": 0.5})
    assert told.is_set()
    assert not (tmp_path / "c").exists()
