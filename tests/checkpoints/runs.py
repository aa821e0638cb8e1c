"""Training runs that are saved and loaded, and what must be equal afterwards."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from asyncps.kvstore import KVStore
from tests.support.cluster import on_cluster

Array = np.ndarray[Any, Any]

# Rows of a slab, a key of one chunk, one of several, one of nothing; both sorts of key.
SHAPES: dict[int | str, tuple[int, ...]] = {
    "scalar": (), 5: (3,), "5": (7, 2), "one chunk": (9000,), "two": (700, 300), "none": (0, 4),
}


def gradient(rank: int, turn: int, key: int | str, dtype: str = "f4") -> Array:
    """What a rank pushes: different for each rank, turn and key."""
    place = list(SHAPES).index(key)
    made = np.random.default_rng([rank, turn, place]).standard_normal(SHAPES[key])
    return np.asarray(made, dtype)


def begin(store: KVStore, dtype: str = "f4") -> None:
    """Initialise all keys."""
    firsts = [np.asarray(np.random.default_rng([9, i]).standard_normal(shape), dtype)
              for i, shape in enumerate(SHAPES.values())]
    store.init(list(SHAPES), firsts)


def train(store: KVStore, turns: range, dtype: str = "f4") -> list[Array]:
    """Push and pull; every third turn only some keys, so that clocks and rows part."""
    for turn in turns:
        keys = list(SHAPES) if turn % 3 else ["5", "two"]
        grads = [gradient(store.rank, turn, key, dtype) for key in keys]
        store.pushpull(keys, grads, out=[np.empty_like(each) for each in grads])
    return [np.asarray(each) for each in store.pull(list(SHAPES))]


def same(found: list[Array], expected: list[Array]) -> None:
    """Equal to the last bit."""
    for key, a, b in zip(SHAPES, found, expected, strict=True):
        assert a.dtype == b.dtype, key
        assert a.shape == b.shape, key
        assert a.tobytes() == b.tobytes(), key


def uninterrupted(
    optimizer: str, hyper: dict[str, Any], *, turns: int, workers: int = 3, dtype: str = "f4",
    **options: Any,
) -> list[Array]:
    """The weights after some turns, of a run that never stopped."""

    def work(store: KVStore) -> list[Array]:
        store.set_optimizer(optimizer, **hyper)
        begin(store, dtype)
        return train(store, range(turns), dtype)

    return on_cluster(work, workers=workers, servers=2, order="rank", **options)[0]


def saved(
    path: Path, optimizer: str, hyper: dict[str, Any], *, turns: int, workers: int = 3,
    servers: int = 2, dtype: str = "f4", **options: Any,
) -> None:
    """A run that saves after some turns and ends there."""

    def work(store: KVStore) -> None:
        store.set_optimizer(optimizer, **hyper)
        begin(store, dtype)
        train(store, range(turns), dtype)
        store.save(path)

    on_cluster(work, workers=workers, servers=servers, order="rank", **options)
