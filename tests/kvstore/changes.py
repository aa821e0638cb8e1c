"""A NumPy model of pulls that bring changes only, and of the pushes before them."""

from __future__ import annotations

from typing import Any

import numpy as np

from asyncps.kvstore import KVStore
from asyncps_ext.reference.quantize import onebit_prepare
from asyncps_ext.reference.select_random import random_indices
from asyncps_ext.seeds import seed_of
from tests.kvstore.scenarios import BF16


def largest(x: Any, k: int) -> Any:
    """Where the k largest magnitudes are; of equal ones those with the lower index."""
    return np.sort(np.argsort(-np.abs(x), kind="stable")[:k])


def some(ratio: float, n: int) -> int:
    """How many of n values a ratio of them is."""
    return min(n, max(1, int(np.ceil(ratio * n - 1e-9))))


def sent(spec: dict[str, Any], x: Any, seed: int) -> Any:
    """What arrives of the float32 values x, where one payload brings all of them."""
    kind = "onebit" if spec["type"] == "1bit" and spec["pull"] else spec["type"]
    if kind == "f16":
        return np.clip(x, -65504, 65504).astype("f2").astype("f4")
    if kind == "bf16":
        return x.astype(BF16).astype("f4")
    if kind == "int8":
        return of_blocks(x)
    if kind == "1bit":
        return np.where(x > spec.get("threshold", 0), np.float32(1), np.float32(-1))
    if kind == "2bit":
        t = np.float32(spec["threshold"])
        return np.where(x >= t, t, np.where(x <= -t, -t, np.float32(0)))
    if kind == "onebit":
        scale = np.float32(onebit_prepare(None, x) / x.size)
        return np.where(x >= 0, scale, -scale)
    found, places = np.zeros(x.size, "f4"), chosen(spec, x, seed)
    found[places] = x[places]
    if spec.get("values") == "f16":
        found = np.clip(found, -65504, 65504).astype("f2").astype("f4")
    return found


def of_blocks(x: Any) -> Any:
    """Multiples of a scale that 256 values share."""
    blocks = np.zeros((-(-x.size // 256), 256), "f4")
    blocks.reshape(-1)[: x.size] = x
    scales = np.abs(blocks).max(axis=1, keepdims=True) / np.float32(127)
    ratios = np.divide(blocks, scales, out=np.zeros_like(blocks), where=scales > 0)
    return (np.clip(np.rint(ratios), -127, 127) * scales).reshape(-1)[: x.size]


def chosen(spec: dict[str, Any], x: Any, seed: int) -> Any:
    """Which elements a codec sends that sends few of them."""
    if spec["type"] == "topk":
        return largest(x, some(spec["ratio"], x.size))
    if spec["type"] == "threshold":
        return np.flatnonzero((np.abs(x) >= spec["threshold"]) & (x != 0))
    found = np.empty(some(spec["ratio"], x.size), "u4")
    random_indices(seed, x.size, found.size, found)
    return found


class Bases:
    """What all workers hold of one key.

    Args:
        store: Where the key is.
        key: The key, which is no small one.
        spec: What was said of it.
    """

    def __init__(self, store: KVStore, key: Any, spec: dict[str, Any]) -> None:
        info = store._core.client.keys[key]
        self.chunks = [(unit.number, piece.start // 4, (piece.start + piece.size) // 4)
                       for unit, piece in info.pieces]
        self.spec = spec
        self.value: Any = None
        self.number = 0

    def pull(self, value: Any) -> Any:
        """What a pull brings when the store holds this value, and it has not been pulled yet."""
        self.number += 1
        if self.value is None:
            self.value = value.copy()
            return value
        for unit, begin, stop in self.chunks:
            x = value[begin:stop] - self.value[begin:stop]
            self.value[begin:stop] += sent(self.spec, x, seed_of(unit, self.number))
        return self.value.copy()


class Pushed:
    """What the workers send of one key, and what they keep; of any codec but randomk.

    Args:
        workers: How many.
        bases: Those of the key, which know its chunks and what was said of it.
    """

    def __init__(self, workers: int, bases: Bases) -> None:
        size = bases.chunks[-1][2]
        self.spec = {**bases.spec, "pull": None}
        self.residuals = [np.zeros(size, "f4") for _ in range(workers)]
        # The others see no further than a chunk.
        whole = self.spec["type"] in ("topk", "onebit")
        self.cuts = [(0, size)] if whole else [(begin, stop) for _, begin, stop in bases.chunks]

    def push(self, grads: list[Any]) -> Any:
        """The sum of what is sent, in rank order."""
        total = np.zeros(grads[0].size, "f4")
        for residual, grad in zip(self.residuals, grads, strict=True):
            residual += grad
            for begin, stop in self.cuts:
                went = sent(self.spec, residual[begin:stop], 0)
                total[begin:stop] += went
                residual[begin:stop] -= went
        return total
