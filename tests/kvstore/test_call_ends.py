"""How calls end: who hears of it, what an error keeps alive, and what a callback may break."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import subprocess
import sys
import threading
import traceback
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import asyncps
from asyncps import cluster as clusters
from asyncps.errors import (
    AsyncPSError,
    ClosedError,
    ConfigError,
    OptimizerError,
    ShapeMismatch,
    TensorError,
)
from asyncps.kvstore import KVStore
from asyncps.roles.lane import Lanes
from tests.support.cluster import DEADLINES, on_cluster


def whole_numbers(store: KVStore) -> None:
    """A key whose rounds fail: sgd cannot update whole numbers."""
    store.init("n", np.zeros(3, "i4"))
    store.set_optimizer("sgd", learning_rate=1.0)


def fails_unseen(store: KVStore) -> None:
    handle = store.pushpull("n", np.ones(3, "i4"), async_op=True)
    while not handle.done():
        pass


# ---- waiting in the wrong place


async def test_blocking_wait_on_the_loop_of_the_await_face_is_refused() -> None:
    async with asyncps.connect("dist_sync") as store:
        await store.init("w", np.zeros(3, "f4"))
        handle = await store.pushpull("w", np.ones(3, "f4"), async_op=True)
        with pytest.raises(ConfigError, match="await the handle"):
            handle.wait(20)
        value = await handle
        assert (value == 1).all()
        assert handle.wait() is value  # it has ended: nothing is waited for


def test_blocking_wait_on_the_loops_own_thread_is_refused() -> None:
    def work(store: KVStore) -> None:
        store.init("w", np.zeros(3, "f4"))
        done = threading.Event()

        async def wait() -> None:
            handle = store.pushpull("w", np.ones(3, "f4"), async_op=True)
            with pytest.raises(ConfigError, match="await the handle"):
                handle.wait(20)
            assert (await handle == 1).all()
            done.set()

        async def begin() -> None:
            store._runtime.spawn(wait(), "a task of the user's")

        # Not by a blocking call, which could not begin another.
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(store._runtime, "check_thread", lambda: None)
            store._runtime.run(begin)
            assert done.wait(20)

    on_cluster(work, workers=1)


# ---- what callbacks may break


@pytest.mark.parametrize("transport", ["memory", "tcp"])
def test_user_loop_that_was_closed_disturbs_nobody(transport: str) -> None:
    def work(store: KVStore) -> None:
        store.init(["w", "v"], [np.zeros(3, "f4")] * 2)
        if store.rank == 1:
            store.barrier()
            store.pushpull("w", np.ones(3, "f4"))
            return
        links = store._core.worker.links
        before = [link.connection for link in links]
        handle = store.pushpull("w", np.ones(3, "f4"), async_op=True)

        async def give_up() -> None:
            async def wait() -> Any:
                return await handle

            waiting = asyncio.ensure_future(wait())
            await asyncio.sleep(0)
            waiting.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await waiting

        asyncio.run(give_up())
        store.barrier()
        assert (handle.wait() == 2).all()
        store.pull("v")
        assert [link.connection for link in links] == before
        assert not store._core.client.pushes

    on_cluster(work, transport=transport)


def test_place_that_can_no_longer_be_written_is_an_error_on_a_lane_too() -> None:
    def work(store: KVStore) -> None:
        store.init(["a", "b"], [np.zeros(3, "f4")] * 2)
        value, outs, hits = np.ones(3, "f4"), np.zeros((2, 3), "f4"), []
        places = [outs[0], outs[1]]
        for _ in range(3):
            store.pushpull(["a", "b"], [value, value], places)
        exchange = Lanes.exchange

        def exchanged(self: Lanes, *args: Any) -> Any:
            hits.append(True)
            found = exchange(self, *args)
            places[0].flags.writeable = False  # another thread did so
            return found

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Lanes, "exchange", exchanged)
            with pytest.raises(TensorError, match="no longer"):
                store.pushpull(["a", "b"], [value, value], places)
        assert hits
        places[0].flags.writeable = True
        store.pushpull(["a", "b"], [value * 7, value * 7], places)
        assert (outs == 7).all()

    on_cluster(work, workers=1, servers=1, transport="tcp")


# ---- errors and the memory that they lead to


def test_each_who_waits_has_an_error_of_its_own() -> None:
    def work(store: KVStore) -> None:
        whole_numbers(store)
        handle = store.pushpull("n", np.ones(3, "i4"), async_op=True)
        found: list[OptimizerError] = []

        def wait() -> None:
            with pytest.raises(OptimizerError) as caught:
                handle.wait()
            found.append(caught.value)

        wait()
        before = traceback.format_tb(found[0].__traceback__)
        other = threading.Thread(target=wait)
        other.start()
        other.join()
        first, second = found
        assert first is not second
        assert str(first) == str(second)
        assert (first.key, first.host) == (second.key, second.host) == ("n", second.host)
        assert traceback.format_tb(first.__traceback__) == before
        assert handle.exception() is handle.exception()
        assert getattr(handle.exception(), "__traceback__", 0) is None

    on_cluster(work, workers=1)


@contextlib.contextmanager
def no_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


class Memory:
    """What a caller holds while it calls."""


CALLS: dict[str, tuple[type[AsyncPSError], Callable[[KVStore], object]]] = {
    "pushpull": (OptimizerError, lambda store: store.pushpull("n", np.ones(3, "i4"))),
    "handle": (OptimizerError,
               lambda store: store.pushpull("n", np.ones(3, "i4"), async_op=True).wait()),
    "on the loop": (OptimizerError, lambda store: store.set_hyperparameters(nonsense=1)),
    "at a server": (ShapeMismatch, lambda store: store.init("n", np.zeros(4, "i4"))),
    "arguments": (ShapeMismatch, lambda store: store.pushpull("n", np.ones(4, "i4"))),
    "flush": (OptimizerError, lambda store: (fails_unseen(store), store.barrier())),
}


@pytest.mark.parametrize("name", CALLS)
def test_error_that_is_gone_keeps_nothing_of_its_caller(name: str) -> None:
    def work(store: KVStore) -> None:
        kind, verb = CALLS[name]
        whole_numbers(store)

        def call() -> weakref.ref[Memory]:
            memory = Memory()
            try:
                verb(store)
            except kind:
                return weakref.ref(memory)
            raise AssertionError

        with no_collector():
            assert call()() is None

    on_cluster(work, workers=1)


async def test_error_of_the_await_face_keeps_nothing_either() -> None:
    async with asyncps.connect("dist_sync") as store:
        await store.init("n", np.zeros(3, "i4"))
        await store.set_optimizer("sgd")

        async def call() -> weakref.ref[Memory]:
            memory = Memory()
            try:
                await store.pushpull("n", np.ones(3, "i4"))
            except OptimizerError:
                return weakref.ref(memory)
            raise AssertionError

        with no_collector():
            assert (await call())() is None


def test_error_that_a_run_raised_leads_to_no_circle() -> None:
    def call() -> weakref.ref[Memory]:
        memory = Memory()

        def work(store: KVStore) -> None:
            raise KeyError("mine")

        try:
            on_cluster(work, workers=1)
        except KeyError:
            return weakref.ref(memory)
        raise AssertionError

    with no_collector():
        assert call()() is None


def test_failure_that_nobody_has_seen_is_not_forgotten_for_those_seen() -> None:
    def work(store: KVStore) -> None:
        whole_numbers(store)
        fails_unseen(store)
        for _ in range(40):
            with pytest.raises(OptimizerError):
                store.pushpull("n", np.ones(3, "i4"))
            with pytest.raises(OptimizerError):
                store.pushpull("n", np.ones(3, "i4"), async_op=True).wait()
        with pytest.raises(OptimizerError):
            store.barrier()
        store.barrier()  # it is told once

    on_cluster(work, workers=1)


# ---- closing


def test_worker_whose_close_raises_has_left_all_the_same() -> None:
    closed, done = threading.Event(), threading.Event()

    def work(store: KVStore) -> None:
        if store.rank == 0:
            store.init(["w", "n"], [np.zeros(3, "f4"), np.zeros(3, "i4")])
        store.set_optimizer("sgd", learning_rate=1.0)
        store.init(["w", "n"], [np.zeros(3, "f4"), np.zeros(3, "i4")])
        if store.rank == 0:
            fails_unseen(store)
            with pytest.raises(OptimizerError):
                store.close()
            closed.set()
            assert done.wait(25)  # the cluster would close it again
            return
        with pytest.raises(OptimizerError):
            store.pushpull("n", np.ones(3, "i4"))
        assert closed.wait(20)
        for turn in range(3):
            assert (store.pushpull("w", np.ones(3, "f4")) == -1 - turn).all()
        done.set()

    on_cluster(work, settings={"round_s": 5.0})


def test_store_whose_close_raises_is_closed_and_the_last_one_leaves() -> None:
    first, second = (asyncps.create("dist_sync", name=name, **DEADLINES) for name in "ab")
    assert isinstance(first, KVStore)
    assert isinstance(second, KVStore)
    worker = first._core.worker
    for store in (first, second):
        whole_numbers(store)
        fails_unseen(store)
    with pytest.raises(OptimizerError):
        first.close()
    assert list(worker.clients) == ["b"]
    with pytest.raises(ClosedError):
        first.pull("n")
    with pytest.raises(OptimizerError):
        clusters._process[0].close()  # as at the end of the program
    assert worker._closed
    assert worker.node._leaving


async def test_push_whose_wait_for_the_budget_is_cancelled_is_let_go(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with asyncps.connect("dist_sync") as store:
        await store.init("w", np.zeros(3, "f4"))
        core, calls = store._core, []
        push = core.push

        def kept(*args: Any) -> Any:
            calls.append(push(*args))
            return calls[-1]

        with monkeypatch.context() as patch:
            patch.setattr(core, "push", kept)
            patch.setattr(core.budget, "_fits", lambda size: False)
            pushing = asyncio.ensure_future(store.push("w", np.ones(3, "f4")))
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            pushing.cancel()
            with pytest.raises(asyncio.CancelledError):
                await pushing
        assert calls[0].op.ended
        assert calls[0].op.observed
        assert core.budget.used == 0
        assert (await store.pull("w") == 0).all()
        await store.barrier()


def test_a_forked_child_does_not_wait_for_its_parents_handle() -> None:
    code = """
import os, signal
import numpy as np, asyncps
store = asyncps.create("dist_sync")
store.init("a", np.zeros(100_000))
ended = store.push("a", np.ones(100_000))
ended.wait()
handle = store.push("a", np.ones(100_000))
child = os.fork()
if child == 0:
    signal.alarm(20)
    try:
        ended.wait()
        handle.wait()
    except asyncps.errors.ClosedError:
        pass
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
handle.wait()
store.close()
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=25)
