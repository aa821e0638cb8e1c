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
from tests.kvstore.changes import Bases, Pushed

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


@pytest.mark.parametrize(("seed", "spec"), [
    *((seed, {"type": "topk", "ratio": 0.02}) for seed in range(3)),
    *((3, {"type": type}) for type in ("f16", "int8", "onebit", "1bit")),
    (3, {"type": "2bit", "threshold": 0.5}),
], ids=str)
async def test_cuts_in_answers_that_are_changes_only(seed: int, spec: dict[str, Any]) -> None:
    """Some calls wait for each other and some do not; each brings the bits of its own round."""
    chance = random.Random(seed)
    size, spec = 70_000, {**spec, "pull": True}
    async with proxied(servers=2, order="rank", chunk_bytes=65536) as cluster:

        async def prepare(store: AsyncKVStore) -> None:
            await store.init("w", np.zeros(size, "f4"))
            await store.set_gradient_compression(spec)
            await store.set_optimizer("test")

        await cluster.all(prepare)
        bases = Bases(cluster.members[0].store, "w", spec)  # type: ignore[arg-type]
        pushed, value = Pushed(2, bases), np.zeros(size, "f4")
        proxies = [proxy for member in cluster.members for proxy in member.data]

        async def step(store: AsyncKVStore, grads: list[Any], expected: list[Any]) -> None:
            outs = [np.full(size, 7, "f4") for _ in grads]
            handles = []
            for place, (both, out) in enumerate(zip(grads, outs, strict=True)):
                handles.append(await store.pushpull("w", both[store.rank], out=out, async_op=True))
                if store.rank == place % 2:
                    await handles[-1]
            for handle in handles:
                await handle
            for out, told in zip(outs, expected, strict=True):
                assert np.array_equal(out, told)

        for turn in range(5):
            grads = [[np.random.default_rng([rank, turn, i]).normal(size=size).astype("f4")
                      for rank in range(2)] for i in range(chance.randint(1, 4))]
            expected = []
            for both in grads:
                value = value + pushed.push(both)
                expected.append(bases.pull(value))
            for proxy in proxies:
                proxy.cut_after(chance.randint(1, 90_000 if turn == 0 else 9000),
                                chance.choice(["up", "down"]), reset=chance.random() < 0.3)
            async with asyncio.timeout(20.0):
                await cluster.all(
                    lambda store, grads=grads, told=expected: step(store, grads, told))
        assert cuts_of(cluster) > 0
