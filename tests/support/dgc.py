"""Deep gradient compression as its paper has it, in NumPy: what one worker sends of one key."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


class Model:
    """u = momentum*u + g; v += u; the k largest of v are sent, and u and v are 0 there.

    Args:
        size: Elements of the key.
        ratio, momentum, warmup, clip, half: As the options say.
        workers: How many there are.
    """

    def __init__(
        self, size: int, ratio: float = 0.01, momentum: float = 0.9, warmup: int = 0,
        clip: float | None = None, workers: int = 1, *, half: bool = False,
    ) -> None:
        self.u, self.v = np.zeros(size, "f4"), np.zeros(size, "f4")
        self.ratio, self.momentum, self.warmup = ratio, np.float32(momentum), warmup
        self.limit = math.inf if clip is None else clip / math.sqrt(workers)
        self.half = half
        self.pushes = 0
        self.total = np.zeros(size)  # of all u, in float64

    def count(self) -> int:
        """How many values the push of now sends."""
        ratio = self.ratio
        if self.pushes <= self.warmup:
            ratio = max(ratio, 0.25 * (ratio / 0.25) ** ((self.pushes - 1) / self.warmup))
        return min(self.v.size, max(1, math.ceil(ratio * self.v.size - 1e-9)))

    def push(self, g: Array) -> Array:
        """Take a gradient in; return what is sent, dense."""
        self.pushes += 1
        norm = math.sqrt(float(np.square(g.astype("f8")).sum()))
        if norm > self.limit:
            g = g * np.float32(self.limit / norm)
        self.u = self.momentum * self.u + g
        self.v = self.v + self.u
        self.total += self.u
        places = np.argsort(-np.abs(self.v), kind="stable")[: self.count()]
        sent = np.zeros_like(self.v)
        sent[places] = self.v[places]
        if self.half:
            most = np.float32(np.finfo(np.float16).max)
            sent = np.clip(sent, -most, most).astype("f2").astype("f4")
        self.u[places] = 0
        self.v[places] -= sent[places]
        return sent
