"""The outer optimizer of DiLoCo: where all were at the last outer step, and its momentum."""

from __future__ import annotations

import numpy as np

from asyncps import optim
from asyncps.distopt.parameters import DistParameter
from asyncps.errors import CheckpointError, OptimizerError
from asyncps.tensor.dtypes import Array
from asyncps.tensor.torchsteps import TORCH_STEPS

__all__ = ["Outer"]


class Outer:
    """SGD with Nesterov's momentum over how far workers have come.

    Attributes:
        anchors: The weights at the last outer step, by number; flat, `dtype.sum`.
        momenta: The momentum likewise.
    """

    def __init__(self) -> None:
        self.anchors: dict[int, Array] = {}
        self.momenta: dict[int, Array] = {}
        self._words: optim.SGD | None = None

    def use(self, lr: float, momentum: float) -> None:
        """Take these hyper-parameters from here on.

        Raises:
            OptimizerError: They cannot be right.
        """
        before = None if self._words is None else self._words.hyper["momentum"]
        self._words = optim.SGD(learning_rate=lr, momentum=momentum, nesterov=True)
        if not 0 <= self._words.hyper["momentum"] < 1:
            raise OptimizerError("outer_momentum is out of range", expected="at least 0, below 1",
                                 got=momentum)
        if before is not None and (before == 0) != (momentum == 0):
            self.momenta.clear()

    def begin(self, parameter: DistParameter) -> None:
        """Remember where a parameter is, if that is not known; before its first local step.

        Raises:
            CheckpointError: What was loaded is of another parameter.
        """
        known = self.anchors.get(parameter.number)
        if known is None:
            self.anchors[parameter.number] = parameter.wide(parameter.read())
        elif known.size != parameter.size or known.dtype != parameter.dtype.sum:
            raise CheckpointError("the outer weights of another parameter", key=parameter.number,
                                  expected=parameter.size, got=known.size)

    def way(self, parameter: DistParameter) -> Array:
        """Return how far this worker has come since the last outer step, negated."""
        here = parameter.wide(parameter.read())
        return np.subtract(self.anchors[parameter.number], here, out=here)

    def step(self, parameter: DistParameter, mean: Array) -> None:
        """Take the outer step with the mean of all workers' ways, which is written over."""
        assert self._words is not None
        anchor, number = self.anchors[parameter.number], parameter.number
        state = {}
        if self._words.hyper["momentum"]:
            state["momentum"] = self.momenta.setdefault(number, np.zeros_like(anchor))
        TORCH_STEPS["sgd"].step(anchor, anchor, mean, state, self._words.hyper, 1)
        weights = parameter.read()
        if parameter.dtype.narrow is None:
            np.copyto(weights, anchor)
        else:
            parameter.dtype.narrow(weights.view(parameter.dtype.bits), anchor)
        parameter.write_back()
