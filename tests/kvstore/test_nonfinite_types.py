"""nonfinite="skip" by every type: a skipped round changes nothing, and all others count as ever."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

from asyncps.kvstore import KVStore
from tests.kvstore.compressed import TYPES, by_turns
from tests.support.cluster import on_cluster

SHAPES = {"a": (40, 30), "b": (16, 20), "large": (300, 250)}  # rows of a slab, and five chunks
EVERY = {**TYPES, "powersgd": {"type": "powersgd", "rank": 2}}
TURNS = 7


def who_is_bad(turn: int, key: str, workers: int) -> list[int]:
    """The first round is well; of the others every second key has somebody, at last all."""
    place = list(SHAPES).index(key)
    if turn == TURNS - 2:
        return list(range(workers))
    return [(turn + place) % workers] if turn and (turn + place) % 2 else []


def kept_of(store: KVStore, key: str) -> tuple[Any, Any]:
    """Return copies of what was not sent, and of what the codec keeps beside."""
    coder = store._core.client.compression.coder_of(key)
    return tuple(None if kept is None else kept.copy() for kept in (coder.residual, coder.extra))


def same(found: Any, expected: Any) -> bool:
    return np.array_equal(found, expected) if expected is not None else found is None


@pytest.mark.parametrize("order", ["arrival", "rank"])
@pytest.mark.parametrize("spec", EVERY.values(), ids=EVERY)
def test_rounds_are_skipped_by_all_types(spec: dict[str, Any], order: str) -> None:
    workers = 2
    together = threading.Barrier(workers)
    sent: dict[tuple[int, str, int], Any] = {}

    def work(store: KVStore) -> None:
        keys, rank = list(SHAPES), store.rank
        store.init(keys, [np.zeros(shape, "f4") for shape in SHAPES.values()])
        store.set_gradient_compression({**spec, "small_bytes": 0, "nonfinite": "skip"})
        store.set_optimizer("test")
        chance = np.random.default_rng(rank)
        values = {key: np.zeros(shape, "f4") for key, shape in SHAPES.items()}
        for turn in range(TURNS):
            grads = [chance.normal(size=shape).astype("f4") for shape in SHAPES.values()]
            pushed = [g.copy() for g in grads]
            for key, g in zip(keys, pushed, strict=True):
                if rank in who_is_bad(turn, key, workers):
                    g[-1, -1] = (np.nan, np.inf, -np.inf)[turn % 3]
            before = {key: kept_of(store, key) if turn else (np.zeros(g.size, "f4"), None)
                      for key, g in zip(keys, grads, strict=True)}
            got = dict(zip(keys, by_turns(store, keys, pushed, turn), strict=True))
            for key, g in zip(keys, grads, strict=True):
                if rank in who_is_bad(turn, key, workers):
                    for found, expected in zip(kept_of(store, key), before[key], strict=True):
                        assert same(found, expected), (turn, key)
                else:  # of momentum 0, too
                    left = kept_of(store, key)[0]
                    sent[turn, key, rank] = (g.reshape(-1) + before[key][0] - left).reshape(g.shape)
            together.wait(20)
            for key in keys:
                if who_is_bad(turn, key, workers):
                    assert np.array_equal(got[key], values[key]), (turn, key)
                else:
                    total = sum(sent[turn, key, each] for each in range(workers))
                    np.testing.assert_allclose(got[key] - values[key], total, atol=1e-3)
                values[key] = got[key].copy()
        report = store.compression_report()
        for key in keys:
            assert report[key]["codec"] == spec["type"]
            assert report[key]["skipped"] == sum(
                rank in who_is_bad(turn, key, workers) for turn in range(TURNS))

    on_cluster(work, order=order, settings={"chunk_bytes": 65536})


@pytest.mark.parametrize("type", ["dist_async", "dist_ssp"])
@pytest.mark.parametrize("spec", EVERY.values(), ids=EVERY)
def test_where_pushes_are_applied_as_they_come_that_push_is_dropped(
    spec: dict[str, Any], type: str
) -> None:
    def work(store: KVStore) -> None:
        keys = list(SHAPES)
        store.init(keys, [np.zeros(shape, "f4") for shape in SHAPES.values()])
        store.set_gradient_compression({**spec, "small_bytes": 0, "nonfinite": "skip"})
        store.set_optimizer("test")
        total = {key: np.zeros(shape) for key, shape in SHAPES.items()}
        for turn in range(4):
            for key, shape in SHAPES.items():
                g = np.full(shape, 0.1 * (turn + 1), "f4")
                if turn == 2:
                    g[0, 0] = np.nan
                else:
                    total[key] += g
                store.push(key, g)
        values = dict(zip(keys, store.pull(keys), strict=True))
        for key, shape in SHAPES.items():
            left = kept_of(store, key)[0].reshape(shape)
            np.testing.assert_allclose(values[key] + left, total[key], atol=1e-3)
            assert store.compression_report()[key]["skipped"] == 1

    options = {"staleness": 2} if type == "dist_ssp" else {}
    on_cluster(work, type=type, workers=1, settings={"chunk_bytes": 65536}, **options)
