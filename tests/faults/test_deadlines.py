"""Waits that end: who is named, and what stays counted."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from asyncps.errors import DeadlineExceeded
from tests.faults.proxied import proxied

SIZE = 30_000


async def test_round_that_never_completes_names_the_ranks_that_are_missing() -> None:
    async with proxied(workers=3, round_s=0.4) as cluster:
        await cluster.all(lambda store: store.init("w", np.zeros(SIZE, "f4")))
        first, second, third = (member.store for member in cluster.members)
        await second.push("w", np.ones(SIZE, "f4"))
        await first.push("w", np.ones(SIZE, "f4"))
        with pytest.raises(DeadlineExceeded, match=r"ranks \[2\].*stays counted.*key 'w'"):
            await first.pull("w")
        await third.push("w", np.ones(SIZE, "f4"))
        assert (await first.pull("w") == 3).all()


@pytest.mark.parametrize("size", [SIZE, 10], ids=["chunk", "slab"])
async def test_wait_for_the_slowest_of_dist_ssp_names_it(size: int) -> None:
    async with proxied(workers=3, round_s=0.4, type="dist_ssp", staleness=1) as cluster:
        await cluster.all(lambda store: store.init("w", np.zeros(size, "f4")))
        await cluster.all(lambda store: store.set_optimizer("test"))
        first, second, third = (member.store for member in cluster.members)
        one = np.ones(size, "f4")
        await second.push("w", one)
        await first.pushpull("w", one.copy())
        with pytest.raises(DeadlineExceeded, match=r"ranks \[2\].*stays counted.*key 'w'"):
            await first.pushpull("w", one.copy())
        await third.push("w", one)
        assert (await first.pull("w") == 4).all()


@pytest.mark.parametrize("size", [SIZE, 10], ids=["chunk", "slab"])
async def test_pushpull_that_took_too_long_stays_counted(size: int) -> None:
    async with proxied(round_s=0.4) as cluster:
        await cluster.all(lambda store: store.init("w", np.zeros(size, "f4")))
        first, second = (member.store for member in cluster.members)
        value = np.ones(size, "f4")
        with pytest.raises(DeadlineExceeded, match=r"ranks \[1\]"):
            await first.pushpull("w", value)
        value[:] = 77  # it is the caller's again
        await second.push("w", np.ones(size, "f4"))
        assert (await first.pull("w") == 2).all()
        for step in range(3):
            results = await cluster.all(lambda store: store.pushpull("w", np.ones(size, "f4")))
            assert all((got == 2).all() for got in results), step


async def test_server_that_owes_an_answer_is_named_and_the_push_counts_once() -> None:
    async with proxied(answer_s=0.4) as cluster:
        await cluster.all(lambda store: store.init("w", np.zeros(SIZE, "f4")))
        first, second = cluster.members
        first.data[0].freeze()
        handle = await first.store.push("w", np.ones(SIZE, "f4"))
        with pytest.raises(DeadlineExceeded, match=r"server 0 at .* did not answer within 0\.4 s"):
            await handle
        with pytest.raises(DeadlineExceeded, match=r"server 0 at .* did not answer"):
            await first.store.statistics()
        first.data[0].thaw()
        await second.store.push("w", np.ones(SIZE, "f4"))
        for got in await cluster.all(lambda store: store.pull("w")):
            assert (got == 2).all()


async def test_push_beyond_the_send_budget_waits_and_then_says_so() -> None:
    async with proxied(workers=1, round_s=0.4, send_budget_bytes=8 * SIZE) as cluster:
        (member,) = cluster.members
        await member.store.init("w", np.zeros(SIZE, "f4"))
        member.data[0].freeze()
        handles = [await member.store.push("w", np.ones(SIZE, "f4")) for _ in range(2)]
        with pytest.raises(DeadlineExceeded, match="did not accept earlier pushes"):
            await member.store.push("w", np.ones(SIZE, "f4"))
        member.data[0].thaw()
        for handle in handles:
            await handle
        await asyncio.wait_for(member.store.push("w", np.ones(SIZE, "f4")), 5.0)


async def test_cancelled_pull_gives_the_memory_back_and_the_store_goes_on() -> None:
    async with proxied() as cluster:
        await cluster.all(lambda store: store.init("w", np.zeros(SIZE, "f4")))
        first, second = (member.store for member in cluster.members)
        out = np.full(SIZE, -1, "f4")
        await first.push("w", np.ones(SIZE, "f4"))
        pull = asyncio.create_task(first.pull("w", out), name="a pull")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(pull, 0.1)
        await second.push("w", np.ones(SIZE, "f4"))
        assert (await first.pull("w") == 2).all()
        assert (out == -1).all()


async def test_pull_cancelled_in_mid_answer_stops_writing() -> None:
    size = 2_000_000
    async with proxied(workers=1) as cluster:
        (member,) = cluster.members
        await member.store.init("w", np.zeros(size, "f4"))
        proxy = member.data[0]
        before = proxy.bytes_down
        out = np.full(size, -1, "f4")
        pull = asyncio.create_task(member.store.pull("w", out), name="a pull")
        await proxy.wait_bytes(before + 100_000, "down")
        pull.cancel()
        with pytest.raises(asyncio.CancelledError):
            await pull
        kept = out.copy()
        assert (await member.store.pull("w") == 0).all()
        assert (out == kept).all()
