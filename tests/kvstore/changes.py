"""A NumPy model of pulls that bring changes only, and of the pushes before them."""

from __future__ import annotations

from typing import Any

import numpy as np

from asyncps.kvstore import KVStore
from asyncps_ext.reference.select_random import random_indices
from asyncps_ext.seeds import seed_of


def largest(x: Any, k: int) -> Any:
    """Where the k largest magnitudes are; of equal ones those with the lower index."""
    return np.sort(np.argsort(-np.abs(x), kind="stable")[:k])


def some(ratio: float, n: int) -> int:
    """How many of n values a ratio of them is."""
    return min(n, max(1, int(np.ceil(ratio * n - 1e-9))))


def chosen(spec: dict[str, Any], x: Any, seed: int) -> Any:
    """Which elements of a difference are sent."""
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
            places = chosen(self.spec, x, seed_of(unit, self.number))
            sent = x[places]
            if self.spec.get("values") == "f16":
                sent = np.clip(sent, -65504, 65504).astype("f2").astype("f4")
            self.value[begin:stop][places] += sent
        return self.value.copy()


class Pushed:
    """What the workers send of one key with topk, and what they keep."""

    def __init__(self, workers: int, size: int, ratio: float) -> None:
        self.residuals = [np.zeros(size, "f4") for _ in range(workers)]
        self.ratio = ratio

    def push(self, grads: list[Any]) -> Any:
        """The sum of what is sent, in rank order."""
        total = np.zeros(grads[0].size, "f4")
        for residual, grad in zip(self.residuals, grads, strict=True):
            residual += grad
            places = largest(residual, some(self.ratio, residual.size))
            total[places] += residual[places]
            residual[places] = 0
        return total
