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

from asyncps.errors import ConfigError, shown

__all__ = ["Constant", "Initializer", "Normal", "One", "Uniform", "Zero"]

_SEEDS = 1 << 64
_WHOLE = 1 << 63


class Zero(msgspec.Struct, frozen=True, tag="zero"):
    """Rows of zeros."""


class One(msgspec.Struct, frozen=True, tag="one"):
    """Rows of ones."""


class Constant(msgspec.Struct, frozen=True, tag="constant"):
    """Rows of one number, rounded to the dtype of the table.

    Args:
        value: Any finite number that the table's dtype holds, for integers a whole one.
    """

    value: int | float  # of int64 tables too: a float cannot tell large whole numbers apart

    def __post_init__(self) -> None:
        _set_number(self, "value")


class Uniform(msgspec.Struct, frozen=True, tag="uniform"):
    """Rows of random numbers, evenly spread over (-scale, scale).

    Args:
        scale: Finite, at least 0; the table's dtype holds it.
        seed: 0 to 2**64 - 1; tables of other keys differ without one.
    """

    scale: float = 0.07
    seed: int = 0

    def __post_init__(self) -> None:
        _set_number(self, "scale", at_least=0.0)
        _check_seed(self.seed)


class Normal(msgspec.Struct, frozen=True, tag="normal"):
    """Rows of random numbers of the normal distribution with mean 0.

    Args:
        sigma: The standard deviation, finite, at least 0; the table's dtype holds 6.4 times that.
        seed: 0 to 2**64 - 1; tables of other keys differ without one.
    """

    sigma: float = 0.01
    seed: int = 0

    def __post_init__(self) -> None:
        _set_number(self, "sigma", at_least=0.0)
        _check_seed(self.seed)


Initializer: TypeAlias = Zero | One | Constant | Uniform | Normal


def _set_number(made: msgspec.Struct, name: str, *, at_least: float = -math.inf) -> None:
    """Let a field be a plain float, or a Constant's int of 64 bits: other numbers do not travel."""
    value = getattr(made, name)
    try:
        fits = (isinstance(value, (int, float)) and not isinstance(value, bool)
                and math.isfinite(value) and value >= at_least)
    except OverflowError:  # an int that is larger than all floats
        fits = False
    if not fits:
        bound = "" if at_least == -math.inf else f", at least {at_least:g}"
        raise ConfigError(f"an initializer's {name} cannot be that",
                          expected=f"a finite number{bound}", got=shown(value))
    whole = name == "value" and isinstance(value, int) and -_WHOLE <= value < _WHOLE
    msgspec.structs.force_setattr(made, name, int(value) if whole else float(value))


def _check_seed(value: object) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < _SEEDS:
        raise ConfigError("an initializer's seed cannot be that",
                          expected="a whole number from 0 to 2**64 - 1", got=shown(value))
