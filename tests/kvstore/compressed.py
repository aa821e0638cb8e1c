"""K4 to K6 of ACCEPTANCE and other scenarios of compressed pushes, as functions of a store."""

from __future__ import annotations

from typing import Any

import numpy as np

from asyncps.kvstore import KVStore
from tests.kvstore.scenarios import BF16, RATE, all_are

SHAPES = {"small": (2, 3), "odd": (1211, 1211), "big": (1200, 1200)}
T = 0.5


def k4_2bit(store: KVStore) -> None:
    """K4: what is below the threshold stays, and is sent when it has come together."""
    n = store.num_workers
    v = T * RATE * n
    keys: dict[str, tuple[Any, float]] = {
        f"{name} {first}": (shape, first) for name, shape in SHAPES.items() for first in (0, 1)
    }
    store.set_gradient_compression({"type": "2bit", "threshold": T})
    for key, (shape, first) in keys.items():
        store.init(key, np.full(shape, first, "f4"))
    store.set_optimizer("test", rescale_grad=RATE)
    for key, (_, first) in keys.items():
        all_are(store.pull(key), first)
    for grad, expected in ((0, 0), (0.4, 0), (T - 0.4, v), (0.2, v), (T - 0.2, 2 * v), (T, 3 * v)):
        for key, (shape, _) in keys.items():
            store.push(key, np.full(shape, grad, "f4"))
        for key, (_, first) in keys.items():
            all_are(store.pull(key), expected + first)


def by_turns(store: KVStore, keys: list[str], grads: list[Any], turn: int) -> list[Any]:
    """Push and pull one round, each turn by other verbs."""
    if turn % 3 == 0:
        return list(store.pushpull(keys, grads, out=[np.zeros_like(g) for g in grads]))
    if turn % 3 == 1:
        store.push(keys, grads)
        return list(store.pull(keys))
    for key, g in zip(keys, grads, strict=True):
        store.push(key, g)
    return [store.pull(key) for key in keys]


def model_2bit(residual: Any, g: Any, t: float) -> Any:
    """What is sent of one gradient; the residual is changed."""
    residual += g
    sent = np.where(residual >= t, np.float32(t), np.where(residual <= -t, -np.float32(t), 0))
    residual -= sent.astype("f4")
    return sent


def k5_random_gradients(store: KVStore) -> None:
    """K5: the same random gradients on all workers, seven rounds."""
    n = store.num_workers
    store.set_gradient_compression({"type": "2bit", "threshold": T})
    for key, shape in SHAPES.items():
        store.init(key, np.zeros(shape, "f4"))
    store.set_optimizer("test", rescale_grad=RATE)
    chance = np.random.default_rng(5)
    residuals = {key: np.zeros(shape, "f4") for key, shape in SHAPES.items()}
    values = {key: np.zeros(shape, "f4") for key, shape in SHAPES.items()}
    for turn in range(7):
        for key, shape in SHAPES.items():
            g = chance.uniform(-1, 1, shape).astype("f4")
            values[key] += n * RATE * model_2bit(residuals[key], g, T)
            if turn % 2:
                store.push(key, g)
                got = store.pull(key)
            else:
                got = store.pushpull(key, g, out=np.zeros(shape, "f4"))
            assert np.array_equal(got, values[key]), (key, turn)


def k6_1bit(store: KVStore) -> None:
    """K6: every value is sent as +1 or -1, and what that is wrong by stays."""
    n = store.num_workers
    store.set_gradient_compression({"type": "1bit", "threshold": 0})
    for key, shape in SHAPES.items():
        store.init(key, np.zeros(shape, "f4"))
    store.set_optimizer("test", rescale_grad=RATE)
    for grad, expected in ((1, 1), (-1, 0), (2, 1), (0, 2), (-2, 1)):
        for key, shape in SHAPES.items():
            store.push(key, np.full(shape, grad, "f4"))
            all_are(store.pull(key), expected * RATE * n)


ACCEPTANCE = (k4_2bit, k5_random_gradients, k6_1bit)

# Every type, with options that make small keys travel encoded too.
TYPES: dict[str, dict[str, Any]] = {
    "f16": {"type": "f16"},
    "bf16": {"type": "bf16"},
    "int8": {"type": "int8"},
    "1bit": {"type": "1bit"},
    "2bit": {"type": "2bit", "threshold": 0.3},
    "onebit": {"type": "onebit"},
    "topk": {"type": "topk", "ratio": 0.1},
    "topk f16": {"type": "topk", "ratio": 0.1, "values": "f16"},
    "threshold": {"type": "threshold", "threshold": 0.7},
    "threshold f16": {"type": "threshold", "threshold": 0.7, "values": "f16"},
    "randomk": {"type": "randomk", "ratio": 0.1},
    "randomk f16": {"type": "randomk", "ratio": 0.1, "values": "f16"},
    # with a momentum more is sent than the gradients
    "dgc": {"type": "dgc", "ratio": 0.1, "momentum": 0.0},
    "dgc f16": {"type": "dgc", "ratio": 0.1, "momentum": 0.0, "values": "f16"},
}
MIXED: dict[str, tuple[tuple[int, ...], Any]] = {
    "one": ((1,), "f4"), "seven": ((7,), "f4"), "row": ((3, 5), "f4"), "block": ((257,), "f4"),
    "large": ((100_003,), "f4"), "none": ((0,), "f4"), "half": ((1001,), "f2"),
    "half large": ((70_001,), "f2"), "bf": ((99,), BF16), "bf large": ((40_000,), BF16),
}


def nothing_is_lost(store: KVStore, spec: dict[str, Any]) -> None:
    """All that was sent, and what all workers have not sent yet, is the sum of all gradients."""
    for key, (shape, dtype) in MIXED.items():
        store.init(key, np.zeros(shape, "f4") if dtype == "f4" else np.zeros(shape, dtype))
    store.set_gradient_compression({**spec, "small_bytes": 0})
    store.set_optimizer("test")
    f32 = [key for key, (_, dtype) in MIXED.items() if dtype == "f4"]
    totals = {key: np.zeros(shape) for key, (shape, _) in MIXED.items()}
    chance = np.random.default_rng(store.rank)
    for turn in range(5):
        grads = {key: chance.normal(size=shape).astype(dtype)
                 for key, (shape, dtype) in MIXED.items()}
        for key, g in grads.items():
            totals[key] += g.astype("f8")
        if turn == 1:  # from here on the rows of a slab stand at different clocks
            store.push("seven", grads["seven"])
            totals["seven"] += grads["seven"]
        keys = list(MIXED) if turn % 2 else list(reversed(MIXED))
        if turn == 3:
            for key in keys:  # rows on their own
                store.push(key, grads[key])
        elif turn == 4:
            for key in keys:
                store.pushpull(key, grads[key], out=grads[key])
        else:
            store.push(keys, [grads[key] for key in keys])
    store.barrier()
    coders = store._core.client.compression._coders
    for key in f32:
        if key != "none":
            totals[key] -= coders[key].residual.reshape(totals[key].shape)
    # What all have sent of a key is summed under a second key, which is not compressed.
    store.init([f"{key} told" for key in f32], [np.zeros(MIXED[key][0], "f4") for key in f32])
    store.set_gradient_compression(
        {**spec, "small_bytes": 1 << 40}, keys=[f"{key} told" for key in f32]
    )
    for key in f32:
        store.push(f"{key} told", totals[key].astype("f4"))
    for key in f32:
        sent, told = store.pull(key), store.pull(f"{key} told")
        # in float32 each of the rounds has rounded its sum
        assert np.allclose(sent, told, rtol=1e-6, atol=5e-6), key
    report = store.compression_report()
    for key in MIXED:
        assert report[key]["codec"] == ("dense" if key == "none" else spec["type"]), report[key]
