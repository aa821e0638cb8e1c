"""An optimizer that runs beside the model, for DistOpt: torch's meaning, the servers' kernels."""

from __future__ import annotations

import copy
from typing import Any

from asyncps import optim
from asyncps.distopt.parameters import DistParameter
from asyncps.errors import OptimizerError
from asyncps.tensor import updates
from asyncps.tensor.dtypes import Array
from asyncps.tensor.torchsteps import TORCH_STEPS
from asyncps.tensor.words import prepared

__all__ = ["LocalOptimizer"]


class LocalOptimizer:
    """An optimizer with its hyper-parameters of now; what it keeps is with each parameter.

    Args:
        opt: An optimizer of `asyncps.optim`, or its name. It is copied. `lr_mult` and `wd_mult`
            are by the numbers of parameters, from 0 in the order in which they first came.

    Attributes:
        words: The optimizer: name and hyper-parameters.
    """

    def __init__(self, opt: str | optim.Optimizer) -> None:
        self.words = copy.copy(optim.resolve(opt, {}))
        self.words.hyper = dict(self.words.hyper)
        self._prepared = prepared(self.words.hyper)

    @property
    def learning_rate(self) -> Any:
        """The learning rate, or its schedule.

        Raises:
            OptimizerError: The optimizer has none.
        """
        if "learning_rate" not in self.words.hyper:
            raise OptimizerError(f"{self.words.name} has no learning rate")
        return self.words.hyper["learning_rate"]

    def change(self, hyper: dict[str, Any]) -> None:
        """Change hyper-parameters; what is kept stays.

        Raises:
            OptimizerError: There is no such one, or its value cannot be right.
        """
        checked = optim.checked(type(self.words), hyper)
        self.words.hyper.update(checked)
        self._prepared = prepared(self.words.hyper)

    def step(self, parameter: DistParameter, gradient: Array) -> None:
        """Take one step.

        Args:
            parameter: Its weights are written.
            gradient: Flat, `parameter.dtype.sum`; written over.
        """
        updates.check_usable(self.words.name, parameter.dtype, self._prepared)
        bits = parameter.read().view(parameter.dtype.bits)
        count = parameter.updates + 1
        updates.run(
            self.words.name, parameter.dtype, bits, bits, gradient, parameter.state,
            self._prepared, count, ((parameter.number, 0, parameter.size),), steps=TORCH_STEPS,
        )
        parameter.updates = count
        parameter.write_back()
