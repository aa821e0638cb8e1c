"""Gradients of made-up models, and what NumPy makes of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

SHAPES = ((7, 5), (3,), (2, 3, 4), (), (0,), (40,), (1,))


def weights(dtype: Any = "f4", shapes: Any = SHAPES) -> list[Any]:
    """First weights, the same on all ranks."""
    rng = np.random.default_rng(7)
    return [rng.normal(size=shape).astype(dtype) for shape in shapes]


def gradients(rank: int, step: int, dtype: Any = "f4", shapes: Any = SHAPES) -> list[Any]:
    """Those of one rank and step."""
    rng = np.random.default_rng((rank, step))
    return [rng.normal(size=shape).astype(dtype) for shape in shapes]


def backward(params: list[Any], grads: list[Any]) -> Iterator[tuple[Any, Any]]:
    """A backward pass."""
    yield from zip(params, grads, strict=True)


def local_sgd(
    world_size: int, steps: int, lr: float, momentum: float, wd: float = 0.0, shapes: Any = SHAPES
) -> list[Any]:
    """The weights of SGD with the mean of all ranks' gradients, in f64."""
    params = [each.astype("f8") for each in weights(shapes=shapes)]
    kept = [np.zeros(each.shape) for each in params]
    for step in range(steps):
        of_all = [gradients(rank, step, shapes=shapes) for rank in range(world_size)]
        for i, param in enumerate(params):
            mean = sum(each[i].astype("f8") for each in of_all) / world_size + wd * param
            kept[i] = momentum * kept[i] + mean
            param -= lr * kept[i]
    return params
