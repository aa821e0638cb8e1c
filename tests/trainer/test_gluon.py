"""Trainer makes of the same numbers what Gluon's Trainer made of them (golden/make_trainer.py)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import asyncps
from asyncps.kvstore import KVStore
from tests.support.cluster import on_cluster
from tests.trainer.params import Param

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "trainer.json").read_text())
SHAPES = {"first": (2, 3), "second": (4,)}


def numbers(name: str, step: int, device: int) -> np.ndarray:
    """As in make_trainer.py."""
    count = int(np.prod(SHAPES[name]))
    base = np.arange(count) * (3 if name == "first" else 5) + 7 * step + 11 * device
    return ((base % 17 - 8) / 8).astype("f4").reshape(SHAPES[name])


def name_of(case: dict[str, Any]) -> str:
    return f"{case['optimizer']} {case['kvstore']} {case['wanted']} {case['devices']}"


def train(case: dict[str, Any], store: Any, split: bool, rank: int = 0, workers: int = 1) -> None:
    """Walks the steps of a case; devices of MXNet are devices here, or workers."""
    devices = range(case["devices"]) if workers == 1 else [rank]
    lone = len(devices) == 1
    params = {}
    for name in SHAPES:
        data = [numbers(name, -1, 0) for _ in devices]
        if rank:
            data[0][:] = -99  # only rank 0's count
        params[name] = Param(data[0] if lone else data)
    kept = {name: param.data for name, param in params.items()}
    hyper = dict(case["hyper"])
    trainer = asyncps.Trainer(params, case["optimizer"], hyper, kvstore=store,
                              update_on_kvstore=case["wanted"])
    assert trainer.update_on_kvstore is case["on_store"]
    assert hyper == case["hyper"]
    for step, (batch_size, rate) in enumerate(GOLDEN["steps"]):
        if rate is not None:
            trainer.set_learning_rate(rate)
        for name, param in params.items():
            grads = [numbers(name, step, device) for device in devices]
            param.grad = grads[0] if lone else grads
        if split:
            trainer.allreduce_grads()
            trainer.update(batch_size)
        else:
            trainer.step(batch_size)
        for name, param in params.items():
            assert param.data is kept[name]
            for place, device in enumerate(devices):
                got = param.data if lone else param.data[place]
                expected = np.reshape(case["after"][step][name][device], SHAPES[name])
                np.testing.assert_allclose(got, expected, rtol=1e-6, atol=1e-7)
    assert trainer.learning_rate == case["learning_rate"]
    trainer.close()


@pytest.mark.parametrize("case", GOLDEN["cases"], ids=name_of)
def test_on_local_stores(case: dict[str, Any]) -> None:
    train(case, case["kvstore"], split=False)


@pytest.mark.parametrize("case", [c for c in GOLDEN["cases"] if not c["on_store"]], ids=name_of)
def test_reduced_and_updated_in_two_steps(case: dict[str, Any]) -> None:
    train(case, case["kvstore"], split=True)


@pytest.mark.parametrize("transport", ["memory", "tcp"])
@pytest.mark.parametrize("case", [
    c for c in GOLDEN["cases"] if c["devices"] == 2 and c["kvstore"]
], ids=name_of)  # fmt: skip
def test_two_workers_do_what_two_devices_did(case: dict[str, Any], transport: str) -> None:
    def work(store: KVStore) -> None:
        train(case, store, split=not case["on_store"], rank=store.rank, workers=2)

    on_cluster(work, workers=2, servers=2, transport=transport)


@pytest.mark.parametrize("case", [
    c for c in GOLDEN["cases"] if c["devices"] == 2 and c["kvstore"]
], ids=name_of)  # fmt: skip
def test_one_worker_with_two_devices_on_servers(case: dict[str, Any]) -> None:
    on_cluster(lambda store: train(case, store, split=False), workers=1)
