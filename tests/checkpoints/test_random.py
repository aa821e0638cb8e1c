"""Any keys, dtypes, shapes, optimizers and numbers of servers: saved, loaded, equal."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from asyncps.kvstore import KVStore
from asyncps.tensor import checkpoint
from tests.support.cluster import on_cluster

Array = np.ndarray[Any, Any]

DTYPES = ["f4", "f8", "f2", ml_dtypes.bfloat16, "i4", "u1"]
OPTIMIZERS: list[tuple[str, dict[str, Any]] | None] = [
    None, ("sgd", {"momentum": 0.5}), ("adam", {}), ("adagrad", {}),
    ("rmsprop", {"centered": True}), ("ftrl", {}), ("lamb", {}), ("test", {"rescale_grad": 2}),
]
KEYS = st.one_of(st.integers(-(2**63), 2**63 - 1), st.sampled_from(["5", 5, "a/b", "__metadata__"]),
                 st.text(st.characters(codec="utf-8"), max_size=8))
SHAPES = st.sampled_from([(), (0, 3), (1,), (7,), (3, 5), (8192,), (300, 100), (70_001,)])


@pytest.mark.slow
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=40)
@given(data=st.data())
def test_what_was_saved_is_loaded(tmp_path: Path, data: st.DataObject) -> None:
    optimizer = data.draw(st.sampled_from(OPTIMIZERS), "optimizer")
    master = data.draw(st.booleans(), "multi_precision")
    keys = data.draw(st.lists(KEYS, unique=True, min_size=1, max_size=7), "keys")
    floats = optimizer is not None and optimizer[0] != "test"
    dtypes = DTYPES[:4] if floats else DTYPES
    values: dict[Any, Array] = {}
    for place, key in enumerate(keys):
        shape, dtype = data.draw(SHAPES), np.dtype(data.draw(st.sampled_from(dtypes)))
        values[key] = np.random.default_rng(place).integers(0, 9, shape).astype(dtype)
    pushed = [data.draw(st.lists(st.sampled_from(keys), unique=True)) for _ in range(3)]
    first, second = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 4))
    more: dict[str, Any] = {"order": "rank", "multi_precision": master}

    def push(store: KVStore, chosen: list[Any]) -> None:
        if chosen:
            grads = [values[key] for key in chosen]
            store.pushpull(chosen, grads, out=[np.empty_like(each) for each in grads])

    def save(store: KVStore) -> Any:
        if optimizer is not None:
            store.set_optimizer(optimizer[0], **optimizer[1])
        store.init(keys, [values[key] for key in keys])
        for chosen in pushed:
            push(store, chosen)
        store.save(tmp_path / "a")
        held = [array.copy() for array in store.pull(keys)]
        push(store, keys)
        return held, store.pull(keys)

    def load(store: KVStore) -> Any:
        store.load(tmp_path / "a")
        store.save(tmp_path / "b")
        held = [array.copy() for array in store.pull(keys)]
        push(store, keys)
        return held, store.pull(keys)

    held, after = on_cluster(save, workers=2, servers=first, **more)[0]
    for again, then in on_cluster(load, workers=2, servers=second, **more):
        for key, *arrays in zip(keys, held, again, after, then, strict=True):
            before, found, ahead, came = (array.tobytes() for array in arrays)
            assert found == before, key
            assert came == ahead, key
    a, b = (checkpoint.read(tmp_path / name) for name in "ab")
    for each in (a, b):
        each.meta["clocks"].sort(key=lambda pair: (type(pair[0]).__name__, pair[0]))
    assert a.meta == b.meta
    assert a.state.keys() == b.state.keys()
    for key, arrays in a.state.items():
        assert {n: x.tobytes() for n, x in arrays.items()} == {
            n: x.tobytes() for n, x in b.state[key].items()}
