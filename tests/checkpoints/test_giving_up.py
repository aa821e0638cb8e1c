"""Callers that give up: no torn checkpoint is put in place, and nobody waits for ever."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import asyncps
from asyncps import optim
from asyncps.errors import ClosedError, ClusterError, ConfigError, DeadlineExceeded, OptimizerError
from asyncps.kvstore import KVStore
from asyncps.roles import restoring, storing, together
from asyncps.tensor import checkpoint
from tests.support.cluster import on_cluster

SIZE = 1 << 20
KEYS = ["a", "b", "c"]


class Gate:
    """The leader's disk waits here for what a test does meanwhile."""

    def __init__(self) -> None:
        self.reached, self.opened = threading.Event(), threading.Event()

    def wait(self) -> None:
        self.reached.set()
        assert self.opened.wait(20.0)

    def before(self, real: Callable[..., None]) -> Callable[..., None]:
        """The same function, behind the gate."""

        def gated(*given: Any) -> None:
            self.wait()
            real(*given)

        return gated


@pytest.fixture
def writing(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    """Each write of a save waits."""
    gate = Gate()
    monkeypatch.setattr(storing, "_write", gate.before(storing._write))
    yield gate
    gate.opened.set()


def begin(store: KVStore) -> None:
    store.init(KEYS, [np.zeros(SIZE, "f4") for _ in KEYS])
    store.set_optimizer("sgd", learning_rate=1.0)
    store.barrier()


def push(store: KVStore) -> None:
    store.push(KEYS, [np.ones(SIZE, "f4") for _ in KEYS]).wait()


def test_worker_whose_wait_has_ended_stands_still_until_the_leader_has_written(
    tmp_path: Path, writing: Gate
) -> None:
    def work(store: KVStore) -> None:
        begin(store)
        if store.rank == 0:
            # It, too, waits for more than `round_s` until the others hear of its end: it works.
            store.save(tmp_path / "c")
        else:
            with pytest.raises(DeadlineExceeded, match="ranks \\[0\\]"):
                store.save(tmp_path / "c")
            with pytest.raises(ClusterError, match="save"):
                push(store)
            writing.opened.set()
        store.barrier()
        push(store)

    on_cluster(work, workers=2, servers=1, type="dist_async", round_s=1.0, round_warning_s=0.5)
    weights = checkpoint.read(tmp_path / "c").weights
    assert [np.unique(weights[key]).tolist() for key in KEYS] == [[0.0]] * 3


def test_cancelled_wait_changes_nothing_for_the_others(tmp_path: Path, writing: Gate) -> None:
    def work(store: KVStore) -> None:
        begin(store)
        if store.rank == 0:
            store.save(tmp_path / "c")
        else:
            core: Any = store._core
            runtime: Any = store._runtime

            async def cancelled() -> None:
                saving = asyncio.ensure_future(together.save(
                    core.worker, core.client, tmp_path / "c", weights=True))
                assert await asyncio.to_thread(writing.reached.wait, 20.0)
                saving.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await saving

            runtime.run(cancelled)
            with pytest.raises(ClusterError, match="save"):
                push(store)
            writing.opened.set()
        store.barrier()
        store.save(tmp_path / "d")

    on_cluster(work, workers=2, servers=1, type="dist_async")
    for name in ("c", "d"):
        weights = checkpoint.read(tmp_path / name).weights
        assert [np.unique(weights[key]).tolist() for key in KEYS] == [[0.0]] * 3


def test_nothing_is_written_when_a_caller_gave_up_before_all_had_come(tmp_path: Path) -> None:
    gone = threading.Event()

    def work(store: KVStore) -> None:
        begin(store)
        if store.rank == 1:
            with pytest.raises(DeadlineExceeded):
                store.save(tmp_path / "c")
            push(store)  # nobody saves yet
            gone.set()
        else:
            assert gone.wait(20.0)
            with pytest.raises(ClosedError, match="gave up"):
                store.save(tmp_path / "c")
            assert list(tmp_path.iterdir()) == []
        store.barrier()
        store.save(tmp_path / "c")

    on_cluster(work, workers=2, servers=1, type="dist_async", round_s=1.0, round_warning_s=0.5)
    assert (checkpoint.read(tmp_path / "c").weights["a"] == -1).all()


def test_worker_whose_wait_has_ended_stands_still_until_a_load_is_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate()
    monkeypatch.setattr(restoring.Loading, "_read", gate.before(restoring.Loading._read))

    def work(store: KVStore) -> None:
        begin(store)
        store.save(tmp_path / "c")
        store.barrier()
        if store.rank == 0:
            store.load(tmp_path / "c")
            assert all((value == 0).all() for value in store.pull(KEYS))
        else:
            with pytest.raises(DeadlineExceeded):
                store.load(tmp_path / "c")
            with pytest.raises(ClusterError, match="load"):
                push(store)
            gate.opened.set()

    on_cluster(work, workers=2, servers=1, type="dist_async", round_s=1.0, round_warning_s=0.5)


def test_cancelled_save_does_not_hold_the_loop(tmp_path: Path, monkeypatch: Any) -> None:
    gate = Gate()
    monkeypatch.setattr(checkpoint.Writer, "finish", gate.before(checkpoint.Writer.finish))

    async def work() -> None:
        async with asyncps.connect("dist_sync") as store:
            await store.init("w", np.zeros(4, "f4"))
            saving = asyncio.ensure_future(store.save(tmp_path / "c"))
            assert await asyncio.to_thread(gate.reached.wait, 20.0)
            saving.cancel()
            # Were the loop held until the thread has ended, nobody would open the gate.
            await asyncio.wait({saving}, timeout=0.01)
            gate.opened.set()
            with pytest.raises(asyncio.CancelledError):
                await saving

    asyncio.run(work())


def test_optimizer_that_one_worker_does_not_know_is_heard_by_all_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Mine(optim.Optimizer):
        def update(self, weight: Any, grad: Any, state: Any, hyper: Any) -> None:
            weight += grad

    real = optim.by_name
    strangers = threading.local()

    def known(name: str) -> Any:
        # Workers of a LocalCluster are threads of one process with one registry.
        if name == "mine" and getattr(strangers, "here", False):
            raise OptimizerError("no such optimizer", got=name)
        return real(name)

    def work(store: KVStore) -> None:
        store.init("w", np.zeros(3, "f4"))
        store.set_optimizer("mine")
        store.save(tmp_path / "c")
        store.barrier()
        if store.rank == 1:
            runtime: Any = store._runtime

            async def mark() -> None:
                strangers.here = True

            runtime.run(mark)
            monkeypatch.setattr(optim, "by_name", known)
        store.barrier()
        with pytest.raises(OptimizerError, match="no such optimizer"):
            store.load(tmp_path / "c")
        store.pushpull("w", np.ones(3, "f4"))

    try:
        on_cluster(work, workers=2, servers=1)
    finally:
        optim.REGISTRY.pop("mine")


def test_path_that_is_too_long_is_refused(tmp_path: Path) -> None:
    def work(store: KVStore) -> None:
        with pytest.raises(ConfigError, match="4096"):
            store.save(tmp_path / ("c" * 5000))

    on_cluster(work, workers=1, servers=1)
