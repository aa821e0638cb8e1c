"""Optimizers as users name them: plain data that every worker says alike and servers carry out.

`store.set_optimizer("sgd", learning_rate=0.1)` and `store.set_optimizer(SGD(learning_rate=0.1))`
are the same. Both spellings are taken everywhere: learning_rate or lr, wd or weight_decay.
The update rules are Apache MXNet 1.9.1's operators (`src/operator/optimizer_op-inl.h`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar

from asyncps.errors import OptimizerError

_SPELLINGS = {"lr": "learning_rate", "weight_decay": "wd"}

# Decays of running means: at 1 nothing is ever taken in, and the correction divides by zero.
_DECAYS = frozenset({"beta1", "beta2"})


class Optimizer:
    """An optimizer by name and hyper-parameters.

    Args:
        hyper: Hyper-parameters in either spelling; those not given take their default.

    Attributes:
        hyper: All hyper-parameters under their canonical names.

    Raises:
        OptimizerError: An unknown hyper-parameter, or a value that cannot be right.
    """

    name: ClassVar[str] = ""
    defaults: ClassVar[Mapping[str, float | bool]] = {}

    def __init__(self, **hyper: float | bool) -> None:
        self.hyper: dict[str, float | bool] = {**self.defaults, **checked(type(self), hyper)}

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{k}={v}' for k, v in self.hyper.items())})"


class Test(Optimizer):
    """`w += rescale_grad * g`: exact sums, for tests."""

    __test__ = False  # not a test class of pytest
    name = "test"
    defaults: ClassVar = {"rescale_grad": 1.0}


class SGD(Optimizer):
    """Stochastic gradient descent with momentum, as MXNet's sgd and nag.

    `g' = rescale_grad*g + wd*w; m = momentum*m - learning_rate*g'; w += m`, without momentum
    `w -= learning_rate*g'`; `nesterov=True` is MXNet's nag. `clip_gradient` bounds
    `rescale_grad*g` before the weight decay is added; negative means no bound.
    """

    name = "sgd"
    defaults: ClassVar = {
        "learning_rate": 0.01, "momentum": 0.0, "wd": 0.0, "rescale_grad": 1.0,
        "clip_gradient": -1.0, "nesterov": False,
    }


class Adam(Optimizer):
    """Adam as MXNet 1.9.1's adam_update: weight decay joins the gradient.

    `g' = rescale_grad*g + wd*w` (then clipped); `m = beta1*m + (1-beta1)*g'`;
    `v = beta2*v + (1-beta2)*g'*g'`; `w -= lr_t*m/(sqrt(v)+epsilon)` with
    `lr_t = learning_rate*sqrt(1-beta2^t)/(1-beta1^t)`, t the updates of that key.
    Reference: Kingma and Ba, https://arxiv.org/abs/1412.6980, end of section 2.
    """

    name = "adam"
    defaults: ClassVar = {
        "learning_rate": 0.001, "beta1": 0.9, "beta2": 0.999, "epsilon": 1e-8, "wd": 0.0,
        "rescale_grad": 1.0, "clip_gradient": -1.0,
    }


REGISTRY: dict[str, type[Optimizer]] = {kind.name: kind for kind in (Test, SGD, Adam)}


def by_name(name: str) -> type[Optimizer]:
    """Return the optimizer of that name.

    Raises:
        OptimizerError: There is none; the known ones are listed.
    """
    kind = REGISTRY.get(str(name).lower())
    if kind is None and str(name).lower() == "nag":
        raise OptimizerError("nag is sgd with nesterov=True", expected="sgd", got=name)
    if kind is None:
        raise OptimizerError("unknown optimizer", expected=", ".join(sorted(REGISTRY)), got=name)
    return kind


def resolve(optimizer: str | Optimizer, hyper: Mapping[str, Any]) -> Optimizer:
    """Return the optimizer that a call of `set_optimizer` means."""
    if isinstance(optimizer, Optimizer):
        if hyper:
            raise OptimizerError("hyper-parameters beside an optimizer object",
                                 expected="one of the two", got=", ".join(hyper))
        return optimizer
    return by_name(optimizer)(**hyper)


def checked(kind: type[Optimizer], hyper: Mapping[str, Any]) -> dict[str, float | bool]:
    """Return hyper-parameters under their canonical names, each checked.

    Raises:
        OptimizerError: An unknown name (the known ones are listed), a name in both spellings, or a
            value that is no finite number.
    """
    result: dict[str, float | bool] = {}
    for given, value in hyper.items():
        name = _SPELLINGS.get(given, given)
        if name not in kind.defaults:
            raise OptimizerError(f"{kind.name} has no hyper-parameter {given!r}",
                                 expected=", ".join(kind.defaults), got=given)
        if name in result:
            raise OptimizerError(f"{name} is given in both spellings", got=given)
        if isinstance(kind.defaults[name], bool):
            if not isinstance(value, bool):
                raise OptimizerError(f"{name} must be true or false", got=repr(value))
            result[name] = value
            continue
        if name == "clip_gradient" and value is None:
            value = -1.0
        try:
            number = float(value)
        except (TypeError, ValueError, OverflowError):
            raise OptimizerError(f"{name} must be a number", got=repr(value)) from None
        if not math.isfinite(number):
            raise OptimizerError(f"{name} must be finite", got=repr(value))
        if name in _DECAYS and not 0.0 <= number < 1.0:
            raise OptimizerError(f"{name} is out of range", expected="at least 0, below 1",
                                 got=repr(value))
        result[name] = number
    return result
