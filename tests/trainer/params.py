"""Parameters for the tests of Trainer: the least that has data and grad."""

from __future__ import annotations

from typing import Any

import numpy as np


class Param:
    """Weights and a gradient: arrays, or lists of arrays of several devices."""

    def __init__(self, data: Any, grad: Any = None, grad_req: str = "write") -> None:
        self.data = data
        self.grad = grad
        self.grad_req = grad_req


def ones(*shape: int, dtype: Any = "f4") -> Param:
    return Param(np.ones(shape, dtype), np.ones(shape, dtype))
