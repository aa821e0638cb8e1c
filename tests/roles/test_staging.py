"""Large values that are encoded chunk by chunk as they are sent: what may come between."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import asyncps
from asyncps.errors import AsyncPSError, TensorError
from asyncps.kvstore import AsyncKVStore, KVStore
from asyncps.roles.operation import Operation
from asyncps.roles.staging import Staging
from tests.support.cluster import DEADLINES, on_cluster

SIZE = 50_000
CHUNKS = {"chunk_bytes": 4096}  # 49 of them


def plan(*keys: str) -> Any:
    """What Staging looks at in a plan."""
    return SimpleNamespace(infos=list(keys))


class Log:
    """Walks of some steps, and what they did."""

    def __init__(self, staging: Staging) -> None:
        self.staging = staging
        self.done: list[str] = []

    def begin(self, name: str, steps: int, *keys: str, error: Exception | None = None) -> Operation:
        op = Operation("pushpull", lent=True)

        def walk() -> Iterator[None]:
            for step in range(steps):
                self.done.append(f"{name}{step}")
                yield
            if error is not None:
                raise error
            op.part_done()

        self.staging.add(op, plan(*keys), walk())
        return op


async def test_calls_go_on_in_their_order_between_other_work_of_the_loop() -> None:
    log = Log(Staging())
    first, second = log.begin("a", 3, "x"), log.begin("b", 2, "y")
    assert log.done == ["a0"]
    assert log.staging.concerns(plan("x"))
    assert log.staging.concerns(plan("z", "y"))
    assert not log.staging.concerns(plan("z"))
    seen = []
    while not second.ended:
        await asyncio.sleep(0)
        seen.append(len(log.done))
    assert first.ended
    assert log.done == ["a0", "a1", "a2", "b0", "b1"]
    assert len(set(seen)) > 2  # not all at once
    assert not log.staging.concerns(plan("x", "y"))


async def test_finish_sends_all_at_once() -> None:
    log = Log(Staging())
    ops = [log.begin(name, 3, "x") for name in "abc"]
    log.staging.finish()
    assert all(op.ended and op.error is None for op in ops)
    assert log.done == [f"{name}{step}" for name in "abc" for step in range(3)]
    log.begin("d", 2, "x")
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert log.done[9:] == ["d0", "d1"]


@pytest.mark.parametrize("error", [TensorError("no"), MemoryError("none")])
async def test_a_call_that_fails_ends_and_the_next_goes_on(error: Exception) -> None:
    log = Log(Staging())
    failed, fine = log.begin("a", 1, "x", error=error), log.begin("b", 1, "x")
    log.staging.finish()
    assert isinstance(failed.error, AsyncPSError)
    assert fine.ended
    assert fine.error is None


def compressed(store: KVStore, *keys: str) -> None:
    store.set_optimizer("test")
    store.init(list(keys), [np.zeros(SIZE, "f4")] * len(keys))
    store.set_gradient_compression({"type": "2bit", "threshold": 1.0}, keys="c*")


def test_verbs_that_follow_at_once_see_what_went_before() -> None:
    def work(store: KVStore) -> None:
        compressed(store, "c1", "c2", "plain")
        ones, outs = np.ones(SIZE, "f4"), [np.empty(SIZE, "f4") for _ in range(6)]
        for turn in range(5):
            base = 2.0 * store.num_workers * turn
            handles = [
                store.pushpull("c1", ones, out=outs[0], async_op=True),
                store.pushpull(["c2", "plain"], [ones, ones], out=outs[1:3], async_op=True),
                store.pull("c1", out=outs[3], async_op=True),
                store.push("c1", ones),
                store.pull("c1", out=outs[4], async_op=True),
                store.pushpull("c2", ones, out=outs[5], async_op=True),
            ]
            for handle in handles:
                handle.wait()
            n = store.num_workers
            assert (outs[0] == base + n).all()
            assert (outs[3] == base + n).all()
            assert (outs[4] == base + 2 * n).all()
            assert (outs[5] == base + 2 * n).all()
            assert (outs[2] == n * (turn + 1)).all()

    on_cluster(work, workers=2, servers=2, settings=CHUNKS)


def test_an_assign_behind_a_pushpull_replaces_what_it_made() -> None:
    def work(store: KVStore) -> None:
        compressed(store, "c")
        out = np.empty(SIZE, "f4")
        for _ in range(5):
            handle = store.pushpull("c", np.ones(SIZE, "f4"), out=out, async_op=True)
            store.assign("c", np.full(SIZE, 7, "f4"))
            handle.wait()
            assert (store.pull("c") == 7).all()

    on_cluster(work, workers=1, servers=2, settings=CHUNKS)


def test_answers_may_fall_into_the_value_itself() -> None:
    def work(store: KVStore) -> None:
        compressed(store, "c")
        rng = np.random.default_rng(3)
        total = np.zeros(SIZE, "f4")
        for _ in range(5):
            g = rng.choice(np.array([-1, 0, 1], "f4"), SIZE)
            total += store.num_workers * g
            assert np.array_equal(store.pushpull("c", g), total)
            assert np.array_equal(g, total)

    on_cluster(work, workers=2, servers=2, settings=CHUNKS)


@pytest.mark.parametrize("turns", [0, 1, 5, 30])
async def test_a_cancelled_call_gives_its_memory_back_and_counts_whole(turns: int) -> None:
    """What the caller does to its array afterwards is not sent."""
    async with asyncps.connect("dist_sync", **DEADLINES, **CHUNKS) as store:
        await prepared(store)
        g = np.ones(SIZE, "f4")
        call = asyncio.ensure_future(store.pushpull("c", g, out=np.empty(SIZE, "f4")))
        await asyncio.sleep(0)
        for _ in range(turns):
            await asyncio.sleep(0)
        call.cancel()
        try:
            await call
        except asyncio.CancelledError:
            g[:] = -100
        value = await store.pull("c")
        assert (value == value[0]).all()
        assert value[0] in (0, 1)
        assert (await store.pushpull("c", np.ones(SIZE, "f4"), out=np.empty(SIZE, "f4"))
                == value[0] + 1).all()


async def test_save_takes_what_is_still_being_sent(tmp_path: Path) -> None:
    async with asyncps.connect("dist_sync", **DEADLINES, **CHUNKS) as store:
        await prepared(store)
        store._core.client.staging._go_on = lambda: None  # a loop that never comes to it
        call = asyncio.ensure_future(
            store.pushpull("c", np.ones(SIZE, "f4"), out=np.empty(SIZE, "f4")))
        await asyncio.sleep(0)
        await store.save(tmp_path / "c")
        del store._core.client.staging._go_on
        assert (await call == 1).all()
        await store.pushpull("c", np.ones(SIZE, "f4"), out=np.empty(SIZE, "f4"))
        await store.load(tmp_path / "c")
        assert (await store.pull("c") == 1).all()


async def prepared(store: AsyncKVStore) -> None:
    await store.set_optimizer("test")
    await store.init("c", np.zeros(SIZE, "f4"))
    await store.set_gradient_compression({"type": "2bit", "threshold": 1.0})
