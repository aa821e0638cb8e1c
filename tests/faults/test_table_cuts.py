"""Connections that are cut while rows travel: every round counts once, every answer is right."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from asyncps import RowSparse
from asyncps.initializer import Zero
from asyncps.kvstore import AsyncKVStore
from tests.faults.proxied import proxied
from tests.faults.test_cuts import cuts_of

SHAPE = (5000, 8)
IDS = np.arange(0, 5000, 5)
# A push: header, 24 bytes of head, 1000 ids of 4 bytes, and the rows.
FRAME = 72 + 24 + 4000 + 1000 * 32
PLACES = [1, 71, 72, 73, 95, 96, 97, 4095, 4096, 4097, 20_000, FRAME - 1, FRAME, FRAME + 1]


def rows(store: AsyncKVStore, step: int, ids: Any = IDS) -> RowSparse:
    value = np.repeat(np.asarray(ids, "f4")[:, None], 8, axis=1) + step + store.rank
    return RowSparse(ids, value, SHAPE)


@pytest.mark.parametrize("direction", ["up", "down"])
@pytest.mark.parametrize("kind", ["dist_sync", "dist_async"])
async def test_cut_at_every_part_of_a_frame_of_rows_counts_once(
    kind: str, direction: Any
) -> None:
    async with proxied(type=kind) as cluster:
        await cluster.all(lambda store: store.init("t", Zero(), shape=SHAPE))
        await cluster.all(lambda store: store.set_optimizer("sgd", learning_rate=-1.0))
        model = np.zeros(SHAPE, "f4")
        for step, place in enumerate(PLACES):
            for member in cluster.members:
                member.data[0].cut_after(place, direction, reset=step % 2 == 1)

            async def one(store: AsyncKVStore, step: int = step) -> Any:
                await store.push("t", rows(store, step))
                await store.barrier()
                return await store.row_sparse_pull("t", IDS)

            model[IDS] += 2 * (IDS[:, None] + step) + 1
            for found in await cluster.all(one):
                assert np.array_equal(found.values, model[IDS])
            await cluster.all(lambda store: store.barrier())
        assert cuts_of(cluster) >= len(PLACES)


@pytest.mark.parametrize("seed", range(4))
async def test_cuts_at_random_places_change_nothing(seed: int) -> None:
    chance = random.Random(seed)
    async with proxied(workers=3, servers=2) as cluster:
        await cluster.all(lambda store: store.init("t", Zero(), shape=SHAPE))
        await cluster.all(lambda store: store.set_optimizer(
            "sgd", learning_rate=-1.0, momentum=0.5))
        weight, speed = np.zeros(SHAPE, "f4"), np.zeros(SHAPE, "f4")
        for step in range(12):
            for member in cluster.members:
                for proxy in member.data:
                    if chance.random() < 0.7:
                        proxy.cut_after(chance.randint(1, FRAME), chance.choice(["up", "down"]))
            sets = [np.array(sorted(chance.sample(range(5000), chance.choice([0, 1, 400, 900]))),
                             np.int64) for _ in range(3)]

            async def one(store: AsyncKVStore, step: int = step, sets: Any = sets) -> Any:
                await store.push("t", rows(store, step, sets[store.rank]))
                return await store.row_sparse_pull("t", range(5000))

            total = np.zeros(SHAPE, "f4")
            for rank, ids in enumerate(sets):
                total[ids] += ids[:, None] + np.float32(step + rank)
            touched = np.unique(np.concatenate(sets))
            speed[touched] = np.float32(0.5) * speed[touched] + total[touched]
            weight[touched] += speed[touched]
            for found in await cluster.all(one):
                np.testing.assert_allclose(found.values, weight, rtol=1e-6)
        assert cuts_of(cluster) > 0
