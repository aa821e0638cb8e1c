"""A store in plain threads: dist_sync with SGD and momentum, just enough for the examples' loop."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

WAIT_S = 20.0


class FakeCluster:
    """What the workers share: weights, momentum, and one open round a key."""

    def __init__(self, num_workers: int = 1) -> None:
        self.num_workers = num_workers
        self.changed = threading.Condition()
        self.weights: dict[str, np.ndarray] = {}
        self.momenta: dict[str, np.ndarray] = {}
        self.open_rounds: dict[tuple[str, int], list[np.ndarray]] = {}
        self.clocks: dict[str, int] = {}
        self.hyper: dict[str, float] = {}

    def run(self, job: Callable[[FakeStore], Any]) -> list[Any]:
        """``job(store)`` in a thread a worker; results in rank order."""
        with ThreadPoolExecutor(self.num_workers) as threads:
            return list(threads.map(job, [FakeStore(self, r) for r in range(self.num_workers)]))

    def _add(self, key: str, clock: int, gradient: np.ndarray) -> None:
        contributions = self.open_rounds.setdefault((key, clock), [])
        contributions.append(gradient)
        if len(contributions) == self.num_workers:
            weight, momentum = self.weights[key], self.momenta[key]
            total = np.sum(self.open_rounds.pop((key, clock)), axis=0)
            momentum *= self.hyper["momentum"]
            momentum -= self.hyper["learning_rate"] * (
                self.hyper["rescale_grad"] * total + self.hyper["wd"] * weight
            )
            weight += momentum
            self.clocks[key] = clock
            self.changed.notify_all()


class FakeStore:
    """One worker's face."""

    type = "dist_sync"

    def __init__(self, cluster: FakeCluster, rank: int = 0) -> None:
        self.cluster = cluster
        self.rank = self.local_rank = rank
        self.num_workers = cluster.num_workers
        self.pushed: dict[str, int] = {}
        self.log: list[tuple[str, tuple[str, ...], int]] = []

    def __enter__(self) -> FakeStore:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def set_optimizer(self, name: str, **hyper: float) -> None:
        assert name == "sgd"
        self.cluster.hyper = hyper

    def init(self, keys: list[str], values: list[np.ndarray]) -> None:
        cluster = self.cluster
        with cluster.changed:
            if self.rank == 0:
                for key, value in zip(keys, values, strict=True):
                    cluster.weights[key] = value.copy()
                    cluster.momenta[key] = np.zeros_like(value)
                    cluster.clocks[key] = 0
                cluster.changed.notify_all()
            assert cluster.changed.wait_for(lambda: set(keys) <= cluster.clocks.keys(), WAIT_S)

    def push(self, keys: list[str], values: list[np.ndarray], priority: int = 0) -> None:
        self.log.append(("push", tuple(keys), priority))
        with self.cluster.changed:
            for key, value in zip(keys, values, strict=True):
                assert isinstance(value, np.ndarray)
                assert value.flags.c_contiguous
                assert value.dtype == self.cluster.weights[key].dtype
                assert value.shape == self.cluster.weights[key].shape
                self.pushed[key] = self.pushed.get(key, 0) + 1
                self.cluster._add(key, self.pushed[key], value.copy())

    def pull(
        self, keys: list[str], out: list[np.ndarray], priority: int = 0, async_op: bool = False
    ) -> FakePull:
        assert async_op
        self.log.append(("pull", tuple(keys), priority))
        return FakePull(self, {key: self.pushed.get(key, 0) for key in keys}, out)


class FakePull:
    """Writes ``out`` when it is waited for."""

    def __init__(self, store: FakeStore, clocks: dict[str, int], out: list[np.ndarray]) -> None:
        self.store, self.clocks, self.out = store, clocks, out

    def wait(self, timeout: float | None = None) -> None:
        cluster = self.store.cluster
        with cluster.changed:
            for (key, clock), out in zip(self.clocks.items(), self.out, strict=True):
                assert cluster.changed.wait_for(
                    lambda key=key, clock=clock: cluster.clocks[key] >= clock, WAIT_S
                )
                out[...] = cluster.weights[key]
        self.store.log.append(("wait", tuple(self.clocks), 0))
