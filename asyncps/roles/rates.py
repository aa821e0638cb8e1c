"""The learning rate that a key's optimizer uses, as far as a worker knows it.

What a key has not sent was made for the rate of its time. Whoever changes the rate would apply it
with the new one; with `lr_scaled` it is multiplied by the old over the new before that.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from asyncps.errors import ConfigError
from asyncps.protocol.messages import Key
from asyncps.tensor.feedback import Rate


class Rates:
    """What is known of the rates of one store at one worker."""

    def __init__(self) -> None:
        self._optimizer: str | None = None
        self._hyper: Mapping[str, Any] = {}
        self._own: Any = None

    def use(self, optimizer: str | None, hyper: Mapping[str, Any]) -> None:
        """The servers have this optimizer, with these hyper-parameters; None: they have none."""
        self._optimizer, self._hyper = optimizer, hyper

    def use_own(self, rate: Any) -> None:
        """Updates happen at the workers, at this rate."""
        self._own = rate

    def of(self, key: Key) -> Rate | None:
        """Return the rate of a key and whose it is; None where that is no number above 0."""
        if self._optimizer is None:
            rate, factor = self._own, 1.0
        else:
            rate = self._hyper.get("learning_rate")
            factors = self._hyper.get("lr_mult") or ()
            factor = next((value for name, value in factors
                           if type(name) is type(key) and name == key), 1.0)
        if isinstance(rate, bool) or not isinstance(rate, (int, float)):
            return None  # none, or a schedule
        found = rate * factor
        return Rate(self._optimizer, found) if 0 < found < math.inf else None


def check_rate(rate: Any) -> None:
    """Refuse a schedule: a worker does not know how many updates a key has had.

    Raises:
        ConfigError: It is one.
    """
    if isinstance(rate, Mapping):
        raise ConfigError(
            "lr_scaled=True of a compression follows rates that are numbers",
            expected="a number, changed by set_hyperparameters or set_learning_rate",
            got=f"schedule {rate.get('schedule')}")
