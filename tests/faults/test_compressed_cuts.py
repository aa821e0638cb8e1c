"""Connections cut in the middle of encoded pushes: the same bytes are sent again and count once."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from asyncps.kvstore import AsyncKVStore
from tests.faults.proxied import proxied
from tests.faults.test_cuts import through_cuts

SHAPES = {"large": (280, 250), "small": (20, 15), "less": (11,), "chunk": (100, 100)}
SPECS: list[dict[str, Any]] = [
    {"type": "2bit", "threshold": 1.0}, {"type": "f16"}, {"type": "topk", "ratio": 0.1},
    {"type": "threshold", "threshold": 2.5}, {"type": "randomk"}, {"type": "onebit"},
    {"type": "powersgd"}, {"type": "dgc", "ratio": 0.1, "momentum": 0.0},
]


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec["type"])
@pytest.mark.parametrize("type", ["dist_sync", "dist_async"])
async def test_cuts_at_random_places_lose_and_double_nothing(
    spec: dict[str, Any], type: str
) -> None:
    chance = random.Random(str(spec))
    order = chance.choice(["arrival", "rank"])
    names = list(SHAPES)
    async with proxied(servers=2, type=type, order=order, chunk_bytes=65536) as cluster:

        async def prepare(store: AsyncKVStore) -> None:
            await store.init(names, [np.zeros(shape, "f4") for shape in SHAPES.values()])
            await store.set_gradient_compression({**spec, "small_bytes": 0})
            await store.set_optimizer("test")

        await cluster.all(prepare)
        totals = {name: np.zeros(shape) for name, shape in SHAPES.items()}

        async def push(store: AsyncKVStore, step: int) -> None:
            numbers = np.random.default_rng([store.rank, step])
            values = [numbers.integers(-3, 4, shape).astype("f4") for shape in SHAPES.values()]
            for name, value in zip(names, values, strict=True):
                totals[name] += value
            if (store.rank + step) % 2:
                await (await store.push(names, values))
            else:
                await store.pushpull(names, values)

        await through_cuts(cluster, chance, 60_000, push)
        for name in names:
            for member in cluster.members:
                compression = member.store._core.client.compression
                if compression.coder_of(name) is not None:  # else it travels as it is
                    totals[name] -= compression.coder_of(name).residual.reshape(SHAPES[name])
            for got in await cluster.all(lambda store, name=name: store.pull(name)):
                assert np.allclose(got, totals[name], atol=1e-4), name
