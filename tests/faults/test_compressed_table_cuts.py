"""Connections cut in the middle of encoded rows: the same bytes are sent again and count once."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from asyncps import RowSparse
from asyncps.initializer import Zero
from asyncps.kvstore import AsyncKVStore
from tests.faults.proxied import proxied
from tests.faults.test_compressed_cuts import SPECS
from tests.faults.test_cuts import through_cuts

SHAPE = (3000, 8)


@pytest.mark.parametrize(
    "spec", [spec for spec in SPECS if spec["type"] not in ("dgc", "powersgd")],
    ids=lambda spec: spec["type"],
)
@pytest.mark.parametrize("type", ["dist_sync", "dist_async"])
async def test_cuts_at_random_places_lose_and_double_nothing(
    spec: dict[str, Any], type: str
) -> None:
    chance = random.Random(str(spec))
    order = chance.choice(["arrival", "rank"])
    async with proxied(servers=2, type=type, order=order) as cluster:

        async def prepare(store: AsyncKVStore) -> None:
            await store.init("t", Zero(), shape=SHAPE)
            await store.set_gradient_compression({**spec, "small_bytes": 0})
            await store.set_optimizer("test")

        await cluster.all(prepare)
        total = np.zeros(SHAPE)

        async def push(store: AsyncKVStore, step: int) -> None:
            numbers = np.random.default_rng([store.rank, step])
            ids = np.sort(numbers.choice(3000, 900, replace=False)).astype(np.int64)
            values = numbers.integers(-3, 4, (900, 8)).astype("f4")
            total[ids] += values
            rows = RowSparse(ids, values, SHAPE)
            if (store.rank + step) % 2:
                await (await store.push("t", rows))
            else:
                await store.pushpull("t", rows)

        await through_cuts(cluster, chance, 20_000, push)
        for member in cluster.members:
            coder: Any = member.store._core.client.compression.coders["t"]
            ids, kept = coder.rests.items()
            total[ids] -= kept.reshape(-1, 8)
        every = range(SHAPE[0])
        for got in await cluster.all(lambda store: store.row_sparse_pull("t", every)):
            assert np.allclose(got.values, total, atol=1e-4)
