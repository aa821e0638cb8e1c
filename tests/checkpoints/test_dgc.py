"""A run with dgc that is saved and loaded has the bits of one that never stopped."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from asyncps.kvstore import KVStore
from tests.checkpoints.runs import SHAPES, begin, same, train
from tests.support.cluster import on_cluster

# The warm-up is on its way when the run is saved: how often a key was pushed counts too.
SPEC = {"type": "dgc", "ratio": 0.1, "warmup": 8, "small_bytes": 0}


def ready(store: KVStore) -> None:
    store.set_optimizer("sgd", learning_rate=0.1)
    store.set_gradient_compression(SPEC)
    begin(store)


@pytest.mark.parametrize("first", ["load", "compression"])
def test_a_run_goes_on_as_if_uninterrupted(tmp_path: Path, first: str) -> None:
    def run(store: KVStore, turns: int, path: Path | None = None) -> list[Any]:
        ready(store)
        found = train(store, range(turns))
        if path is not None:
            store.save(path)
        return found

    def go_on(store: KVStore) -> list[Any]:
        if first == "load":
            store.load(tmp_path / "c")
            store.set_gradient_compression(SPEC)
        else:
            ready(store)
            train(store, range(100, 103))  # what was there before is gone
            store.load(tmp_path / "c")
        return train(store, range(5, 9))

    on_cluster(lambda store: run(store, 5, tmp_path / "c"), workers=3, servers=2, order="rank")
    expected = on_cluster(lambda store: run(store, 9), workers=3, servers=2, order="rank")[0]
    for found in on_cluster(go_on, workers=3, servers=3, order="rank"):
        same(found, expected)
    file = load_file(tmp_path / "c" / "residuals.safetensors")
    for key, shape in SHAPES.items():
        if 0 not in shape:
            name = f"int:{key}" if isinstance(key, int) else key
            assert file[f"{name}/2.extra"].shape == (int(np.prod(shape)),)


def test_on_fewer_workers_what_was_not_sent_is_kept(tmp_path: Path) -> None:
    def save(store: KVStore) -> Any:
        ready(store)
        train(store, range(4))
        store.save(tmp_path / "c")
        coder = store._core.client.compression.coders["two"]
        return coder.residual.astype("f8"), coder.extra

    def load(store: KVStore) -> Any:
        store.load(tmp_path / "c")
        store.set_gradient_compression(SPEC)
        coder = store._core.client.compression.coders["two"]
        kept = coder.residual.astype("f8"), coder.extra.copy()
        train(store, range(4, 6))
        return kept

    saved, loaded = on_cluster(save, workers=3), on_cluster(load, workers=2)
    assert np.allclose(sum(v for v, _ in saved), sum(v for v, _ in loaded), atol=1e-6)
    for rank in (0, 1):
        assert np.array_equal(loaded[rank][1], saved[rank][1])
