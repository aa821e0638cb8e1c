"""Connections cut in the middle of answers in fewer bytes: each worker has them right all the same.
"""

from __future__ import annotations

import asyncio
import random
from typing import Any

import numpy as np
import pytest

from asyncps.kvstore import AsyncKVStore
from tests.faults.proxied import proxied
from tests.faults.test_cuts import cuts_of

SIZES = {"large": 70_000, "small": 300, "less": 11, "chunk": 10_000}


@pytest.mark.parametrize("type", ["dist_sync", "dist_async"])
async def test_cuts_in_answers_of_half_the_bytes(type: str) -> None:
    chance = random.Random(type)
    names = list(SIZES)
    async with proxied(servers=2, type=type, chunk_bytes=65536) as cluster:

        async def prepare(store: AsyncKVStore) -> None:
            await store.init(names, [np.zeros(size, "f4") for size in SIZES.values()])
            await store.set_gradient_compression(
                {"type": "topk", "ratio": 1.0, "small_bytes": 0, "pull": "f16"})
            await store.set_optimizer("test")

        await cluster.all(prepare)
        totals = {name: np.zeros(size, "f4") for name, size in SIZES.items()}
        proxies = [proxy for member in cluster.members for proxy in member.data]

        async def step(store: AsyncKVStore, values: list[Any]) -> None:
            outs = [np.full(size, 7, "f4") for size in SIZES.values()]
            for name, value, out in zip(names, values, outs, strict=True):
                if chance.random() < 0.3:
                    await (await store.push(name, value))
                    await store.pull(name, out=out)
                else:
                    await store.pushpull(name, value, out=out)
            if type == "dist_sync":
                for name, out in zip(names, outs, strict=True):
                    assert np.array_equal(out, totals[name].astype("f2").astype("f4")), name

        for turn in range(8):
            chances = [np.random.default_rng([rank, turn]) for rank in range(2)]
            pushed = [[each.integers(-900, 900, size).astype("f4") + np.float32(0.125)
                       for size in SIZES.values()] for each in chances]
            for values in pushed:
                for name, value in zip(names, values, strict=True):
                    totals[name] += value
            for proxy in proxies:
                proxy.cut_after(chance.randint(1, 90_000), chance.choice(["up", "down"]),
                                reset=chance.random() < 0.3)
            async with asyncio.timeout(20.0):
                await cluster.all(lambda store, pushed=pushed: step(store, pushed[store.rank]))
        await cluster.all(lambda store: store.barrier())
        assert cuts_of(cluster) > 0
        for name in names:
            for got in await cluster.all(lambda store, name=name: store.pull(name)):
                assert np.array_equal(got, totals[name].astype("f2").astype("f4")), name
