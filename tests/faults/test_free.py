"""dist_async and dist_ssp through proxies that cut, freeze and read slowly."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import numpy as np
import pytest

from asyncps.kvstore import AsyncKVStore
from tests.faults.proxied import proxied
from tests.faults.test_cuts import cuts_of

NAMES, SIZES = ["large", "small", "less", "chunk"], [70_000, 300, 11, 10_000]


@pytest.mark.parametrize("staleness", [None, 1, 2], ids=["async", "ssp 1", "ssp 2"])
@pytest.mark.parametrize("seed", range(4))
async def test_cuts_at_random_places_change_no_sum(seed: int, staleness: int | None) -> None:
    """Each worker pushes to elements of its own, at its own pace, and sees them all at once."""
    chance = random.Random(seed)
    kind = "dist_async" if staleness is None else "dist_ssp"
    workers, turns = 3, 10
    async with proxied(
        workers=workers, servers=2, type=kind, staleness=staleness or 0, chunk_bytes=65536
    ) as cluster:
        await cluster.all(
            lambda store: store.init(NAMES, [np.zeros(size, "f4") for size in SIZES]))
        await cluster.all(lambda store: store.set_optimizer("test"))

        async def train(store: AsyncKVStore) -> None:
            rank, proxies = store.rank, cluster.members[store.rank].data
            values = [np.zeros(size, "f4") for size in SIZES]
            for value in values:
                value[rank::workers] = 1
            for turn in range(1, turns + 1):
                for proxy in proxies:
                    proxy.cut_after(chance.randint(1, 400_000), chance.choice(["up", "down"]),
                                    reset=chance.random() < 0.3)
                if (rank + turn) % 2:
                    await store.push(NAMES, values)
                    got = await store.pull(NAMES)
                else:
                    got = await store.pushpull(NAMES, values, [np.empty_like(v) for v in values])
                for name, value in zip(NAMES, got, strict=True):
                    assert (value[rank::workers] == turn).all(), (name, turn)

        async with asyncio.timeout(25.0):
            await cluster.all(train)
            for got in await cluster.all(lambda store: store.pull(NAMES)):
                assert all((value == turns).all() for value in got)
        assert cuts_of(cluster) > 0


@pytest.mark.parametrize("staleness", [1, 2, 3])
async def test_k15_worker_behind_a_slow_network_holds_the_others_at_the_bound(
    staleness: int,
) -> None:
    size = 10_000  # one chunk
    async with proxied(workers=3, type="dist_ssp", staleness=staleness) as cluster:
        await cluster.all(lambda store: store.init("w", np.zeros(size, "f4")))
        await cluster.all(lambda store: store.set_optimizer("test"))
        first, second, slow = cluster.members
        one = np.ones(size, "f4")
        slow.data[0].freeze()
        held = await slow.store.push("w", one)
        for clock in range(1, staleness + 1):
            for member in (first, second):
                got = await member.store.pushpull("w", one.copy())
                assert clock <= got[0] <= 2 * clock
        for member in (first, second):
            accepted = await member.store.push("w", one)
            await accepted
        told = await first.store.statistics()
        assert told["rounds"] == 2 * staleness, "somebody is too far ahead"
        assert not held.done()
        slow.data[0].thaw()
        for member in (first, second):
            assert (await member.store.pull("w") == 2 * staleness + 3).all()
        told = await first.store.statistics()
        assert told["rounds"] == 2 * staleness + 3
        assert set(told["waited_s"]) == {2}


async def test_what_a_slow_reader_is_sent_does_not_change_under_it() -> None:
    size = 4_000_000
    async with proxied(workers=2, type="dist_async", chunk_bytes=1 << 20) as cluster:
        await cluster.all(lambda store: store.init("w", np.zeros(size, "f4")))
        await cluster.all(lambda store: store.set_optimizer("test"))
        reader, writer = cluster.members
        one = np.ones(size, "f4")
        proxy = reader.data[0]
        outs = [np.empty(size, "f4") for _ in range(3)]
        pulls: list[Any] = []
        for out in outs:
            before = proxy.bytes_down
            proxy.thaw()
            pulls.append(await reader.store.pull("w", out, async_op=True))
            await proxy.wait_bytes(before + 100_000, "down")
            proxy.freeze()
            for _ in range(4):
                await (await writer.store.push("w", one))
                await writer.store.pull("w")
        assert not pulls[-1].done()
        proxy.thaw()
        latest = np.zeros(size // (1 << 18) + 1)
        for pull in pulls:
            await pull
        for out in outs:
            for chunk in range(0, size, 1 << 18):
                values = np.unique(out[chunk : chunk + (1 << 18)])
                assert len(values) == 1, f"a mixture of versions {values}"
                assert latest[chunk >> 18] <= values[0] <= 12
                latest[chunk >> 18] = values[0]
        assert (await reader.store.pull("w") == 12).all()
