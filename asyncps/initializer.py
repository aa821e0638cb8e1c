"""First values of the rows of a table, as plain data: a name and numbers.

A table of `store.init(key, asyncps.initializer.Normal(0.01), shape=..., dtype=...)` never travels:
each server makes a row when it is first asked for or updated. The value of row i depends on the
seed, the key and i alone, not on the order in which rows are made, the number of servers or how
rows are spread over them; `asyncps_ext.reference.sparse_fill` tells how the random ones come about.
"""

from __future__ import annotations

import math
from typing import TypeAlias

import msgspec

from asyncps.errors import ConfigError

__all__ = ["Constant", "Initializer", "Normal", "One", "Uniform", "Zero"]

_SEEDS = 1 << 64


class Zero(msgspec.Struct, frozen=True, tag="zero"):
    """Rows of zeros."""


class One(msgspec.Struct, frozen=True, tag="one"):
    """Rows of ones."""


class Constant(msgspec.Struct, frozen=True, tag="constant"):
    """Rows of one number, rounded to the dtype of the table.

    Args:
        value: Any finite number; for a table of integers a whole one that its dtype holds.
    """

    value: float

    def __post_init__(self) -> None:
        _check_number("value", self.value)


class Uniform(msgspec.Struct, frozen=True, tag="uniform"):
    """Rows of random numbers, evenly spread over (-scale, scale).

    Args:
        scale: Finite, at least 0.
        seed: 0 to 2**64 - 1; tables of other keys differ without one.
    """

    scale: float = 0.07
    seed: int = 0

    def __post_init__(self) -> None:
        _check_number("scale", self.scale, at_least=0.0)
        _check_seed(self.seed)


class Normal(msgspec.Struct, frozen=True, tag="normal"):
    """Rows of random numbers of the normal distribution with mean 0.

    Args:
        sigma: The standard deviation, finite, at least 0.
        seed: 0 to 2**64 - 1; tables of other keys differ without one.
    """

    sigma: float = 0.01
    seed: int = 0

    def __post_init__(self) -> None:
        _check_number("sigma", self.sigma, at_least=0.0)
        _check_seed(self.seed)


Initializer: TypeAlias = Zero | One | Constant | Uniform | Normal


def _check_number(name: str, value: object, *, at_least: float = -math.inf) -> None:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not is_number or not math.isfinite(value) or value < at_least:  # type: ignore[arg-type,operator]
        bound = "" if at_least == -math.inf else f", at least {at_least:g}"
        raise ConfigError(f"an initializer's {name} cannot be that",
                          expected=f"a finite number{bound}", got=repr(value))


def _check_seed(value: object) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < _SEEDS:
        raise ConfigError("an initializer's seed cannot be that",
                          expected="a whole number from 0 to 2**64 - 1", got=repr(value))
