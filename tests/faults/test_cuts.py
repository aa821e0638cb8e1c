"""Connections that are cut or frozen in mid-work: every result is exact, nothing counts twice."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any

import numpy as np
import pytest

from asyncps.kvstore import AsyncKVStore
from tests.faults.proxied import Member, Proxied, proxied
from tests.support.proxy import TcpProxy

HEADER = 72
LARGE = 10_000  # f32: one chunk of 40,000 bytes
FRAME = HEADER + 4 * LARGE

# One byte in, in the header, its last byte, its end, in the payload, its last byte, its end.
IN_A_LARGE_FRAME = [1, 40, HEADER - 1, HEADER, HEADER + 1, 20_000, FRAME - 1, FRAME]
# The push of one row of a slab has a table of one u32 between header and payload of 28 bytes.
IN_A_ROW = [HEADER + 1, HEADER + 3, HEADER + 4, HEADER + 5, HEADER + 31, HEADER + 32]


class Model:
    """What the values must be: by no optimizer, or by SGD with momentum (exact in f32 here)."""

    def __init__(self, momentum: bool) -> None:
        self.momentum = momentum
        self.weight = np.float32(0)
        self.speed = np.float32(0)

    async def prepare(self, store: AsyncKVStore) -> None:
        if self.momentum:
            await store.set_optimizer("sgd", learning_rate=0.5, momentum=0.5)

    def step(self, total: float) -> np.float32:
        if not self.momentum:
            self.weight = np.float32(total)
        else:
            self.speed = np.float32(0.5) * self.speed - np.float32(0.5) * np.float32(total)
            self.weight = self.weight + self.speed
        return self.weight


@pytest.mark.parametrize("momentum", [False, True], ids=["plain", "momentum"])
@pytest.mark.parametrize("direction", ["up", "down"])
async def test_cut_at_every_part_of_a_large_frame_counts_once(
    direction: Any, momentum: bool
) -> None:
    model = Model(momentum)
    async with proxied() as cluster:
        await cluster.all(model.prepare)
        await cluster.all(lambda store: store.init("w", np.zeros(LARGE, "f4")))
        for step, position in enumerate(IN_A_LARGE_FRAME):
            for member in cluster.members:
                member.data[0].cut_after(position, direction, reset=step % 2 == 1)
            await check_round(cluster, ["w"], [LARGE], model, step)
        assert cuts_of(cluster) >= 2 * len(IN_A_LARGE_FRAME) - 2


@pytest.mark.parametrize("momentum", [False, True], ids=["plain", "momentum"])
async def test_cut_at_every_part_of_a_frame_with_a_table_counts_once(momentum: bool) -> None:
    model = Model(momentum)
    async with proxied() as cluster:
        await cluster.all(model.prepare)
        await cluster.all(lambda store: store.init(["a", "b", "c"], [np.zeros(7, "f4")] * 3))
        for step, position in enumerate(IN_A_ROW):
            for member in cluster.members:
                member.data[0].cut_after(position)
            await check_round(cluster, ["b"], [7], model, step)
        for member in cluster.members:
            assert (await member.store.pull("a") == 0).all()
        assert cuts_of(cluster) >= 2 * len(IN_A_ROW) - 2


@pytest.mark.parametrize("momentum", [False, True], ids=["plain", "momentum"])
@pytest.mark.parametrize("seed", range(6))
async def test_cuts_at_random_places_change_nothing(seed: int, momentum: bool) -> None:
    chance = random.Random(seed)
    names, sizes = ["large", "small", "less", "chunk"], [70_000, 300, 11, LARGE]
    model = Model(momentum)
    order = chance.choice(["arrival", "rank"])
    async with proxied(servers=2, order=order, chunk_bytes=65536) as cluster:
        await cluster.all(model.prepare)
        await cluster.all(
            lambda store: store.init(names, [np.zeros(size, "f4") for size in sizes])
        )
        proxies = [proxy for member in cluster.members for proxy in member.data]
        for step in range(6):
            for proxy in proxies:
                proxy.cut_after(chance.randint(1, 250_000), chance.choice(["up", "down"]),
                                reset=chance.random() < 0.3)
            await check_round(cluster, names, sizes, model, step)
        assert cuts_of(cluster) > 0


async def test_pushes_that_nobody_waits_for_count_once_through_cuts() -> None:
    chance = random.Random(7)
    async with proxied(servers=2) as cluster:
        await cluster.all(lambda store: store.init("w", np.zeros(LARGE, "f4")))
        await cluster.all(lambda store: store.set_optimizer("test", rescale_grad=1))
        proxies = [proxy for member in cluster.members for proxy in member.data]

        async def push_many(store: AsyncKVStore) -> Any:
            for _ in range(30):
                await store.push("w", np.ones(LARGE, "f4"))
            return await store.pull("w")

        for proxy in proxies:
            proxy.cut_after(chance.randint(1, 30 * FRAME // 2))
        for got in await cluster.all(push_many):
            assert (got == 60).all()
        assert cuts_of(cluster) > 0


async def test_everything_cut_at_once_in_each_round() -> None:
    async with proxied(workers=3, servers=2) as cluster:
        await cluster.all(lambda store: store.init("w", np.zeros(300_000, "f4")))
        for step in range(4):
            for member in cluster.members:
                for proxy in member.data:
                    proxy.cut_after(100_000)
                member.control.cut()
            await check_round(cluster, ["w"], [300_000], Model(False), step)
        assert cuts_of(cluster) >= 12


@pytest.mark.parametrize("seed", range(4))
async def test_cut_control_connections_lose_no_agreement(seed: int) -> None:
    chance = random.Random(seed)
    async with proxied(servers=2) as cluster:
        for step in range(5):
            for member in cluster.members:
                member.control.cut_after(chance.randint(1, 400), chance.choice(["up", "down"]))

            async def agree(store: AsyncKVStore, key: int = step) -> Any:
                await store.init([key, f"big{key}"], [np.zeros(3, "f4"), np.zeros(LARGE, "f4")])
                await store.set_optimizer("test", rescale_grad=key + 1)
                await store.barrier()
                return await store.pushpull(key, np.ones(3, "f4"))

            for got in await cluster.all(agree):
                assert (got == 2 * (step + 1)).all()
        assert sum(member.control.connections for member in cluster.members) > 2


async def test_close_while_the_scheduler_is_cut_off_is_a_clean_end(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO")
    async with proxied() as cluster:
        await cluster.all(lambda store: store.init("w", np.zeros(3, "f4")))
        for member in cluster.members:
            member.control.refuse()
            member.control.cut()
            await member.wait_cut_off()
        closing = asyncio.create_task(cluster.all(lambda store: store.close()), name="closing")
        await asyncio.sleep(0)
        for member in cluster.members:
            member.control.accept()
        await asyncio.wait_for(closing, 10.0)
    told = [record.getMessage() for record in caplog.records]
    assert sum(line.startswith("worker") and line.endswith(" left") for line in told) == 2
    assert not any("lost:" in line for line in told)


async def test_short_freeze_changes_nothing() -> None:
    async with proxied(heartbeat_s=0.1, frozen_server_s=2.0, reconnect_s=0.5) as cluster:
        await cluster.all(lambda store: store.init("w", np.zeros(300_000, "f4")))
        for step in range(3):
            for member in cluster.members:
                for proxy in (*member.data, member.control):
                    proxy.freeze()
            rounds = asyncio.create_task(
                check_round(cluster, ["w"], [300_000], Model(False), step), name="a frozen round"
            )
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(asyncio.shield(rounds), 0.6)
            for member in cluster.members:
                for proxy in (*member.data, member.control):
                    proxy.thaw()
            await rounds
        assert cuts_of(cluster) == 0


async def check_round(
    cluster: Proxied, names: list[str], sizes: list[int], model: Model, step: int
) -> None:
    """Do one round at all workers, half of them by push and pull, and check every value."""

    async def work(store: AsyncKVStore) -> Any:
        values = [np.full(size, store.rank + 1 + step, "f4") for size in sizes]
        if (store.rank + step) % 2:
            await store.push(names, values)
            return await store.pull(names)
        return await store.pushpull(names, values, [np.empty_like(value) for value in values])

    async with asyncio.timeout(20.0):
        results = await cluster.all(work)
    n = len(results)
    wanted = model.step(n * (n + 1) / 2 + n * step)
    for result in results:
        for name, value in zip(names, result, strict=True):
            assert (value == wanted).all(), (name, step, wanted, np.unique(value))


def cuts_of(cluster: Proxied) -> int:
    """How often data connections came back."""
    return sum(_again(proxy) for member in cluster.members for proxy in _data(member))


async def through_cuts(
    cluster: Proxied, chance: random.Random, most: int,
    push: Callable[[AsyncKVStore, int], Awaitable[None]],
) -> None:
    """Let all push six times, each data connection being cut within `most` bytes each time."""
    proxies = [proxy for member in cluster.members for proxy in _data(member)]
    for step in range(6):
        for proxy in proxies:
            proxy.cut_after(chance.randint(1, most), chance.choice(["up", "down"]),
                            reset=chance.random() < 0.3)
        async with asyncio.timeout(20.0):
            await cluster.all(lambda store, step=step: push(store, step))
    await cluster.all(lambda store: store.barrier())
    assert cuts_of(cluster) > 0


def _data(member: Member) -> list[TcpProxy]:
    return member.data


def _again(proxy: TcpProxy) -> int:
    return proxy.connections - 1
