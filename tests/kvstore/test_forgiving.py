"""The error of a failed round ends with the value that it was about."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from asyncps import optim
from asyncps.errors import AsyncPSError
from asyncps.kvstore import KVStore
from tests.kvstore.scenarios import all_are
from tests.support.cluster import on_cluster

Mend = Callable[[KVStore, Path], float]


pytestmark = pytest.mark.usefixtures("registered")


def failing() -> optim.Optimizer:
    class Failing(optim.Optimizer):
        def init(self, spec: optim.Spec) -> dict[str, Any]:
            return {}

        def update(self, weight: Any, grad: Any, state: Any, hyper: Any) -> None:
            raise ValueError("of the user's own")

    return Failing()


def by_load(store: KVStore, path: Path) -> float:
    store.load(path)
    return 1


def by_assign(store: KVStore, path: Path) -> float:
    store.assign(["w", "v"], [np.full(4, 9, "f4"), np.full(20_000, 9, "f4")])
    return 9


def by_optimizer(store: KVStore, path: Path) -> float:
    store.set_optimizer("sgd", learning_rate=1.0)
    return 1


def by_join(store: KVStore, path: Path) -> float:
    store.join()
    return 1


@pytest.mark.parametrize("mend", [by_load, by_assign, by_optimizer, by_join])
@pytest.mark.parametrize("type", ["dist_sync", "dist_async"])
def test_error_of_a_round_is_forgotten(mend: Mend, type: str, tmp_path: Path) -> None:
    def work(store: KVStore) -> None:
        names, ones = ["w", "v"], [np.ones(4, "f4"), np.ones(20_000, "f4")]
        store.init(names, ones)
        store.set_optimizer("sgd", learning_rate=1.0)
        store.save(tmp_path / "saved")
        store.set_optimizer(optimizer)
        with pytest.raises(AsyncPSError, match="of the user's own"):
            store.pushpull(names, ones, out=[np.zeros_like(one) for one in ones])
        with pytest.raises(AsyncPSError, match="of the user's own"):
            store.pull(names)
        store.barrier()
        expected = mend(store, tmp_path / "saved")
        store.barrier()
        for got in store.pull(names):
            all_are(got, expected)

    optimizer = failing()
    on_cluster(work, type=type)
