"""Who has the momentum: the servers' optimizer, or a compression that has one of its own.

Both at once would be a momentum of a momentum, which nobody means.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from asyncps.errors import ConfigError

# Hyper-parameters that carry earlier gradients, by any number but 0, into later steps. Those that
# carry their squares (beta2, gamma1) are none.
_MOMENTA = ("momentum", "beta1")


def check_momentum(hyper: Mapping[str, Any], words: Mapping[str, Any]) -> None:
    """Refuse an optimizer with a momentum beside a compression that has it.

    Args:
        hyper: Of the optimizer, all of them.
        words: Of the compression.

    Raises:
        ConfigError: It names both.
    """
    names = [*_MOMENTA, *(["gamma2"] if hyper.get("centered") else [])]  # of rmsprop
    for name in names:
        if hyper.get(name):
            raise ConfigError(
                f"compression {words['type']} has the momentum ({words.get('momentum')}), and so "
                "has the optimizer", expected=f"{name}=0 of the optimizer",
                got=f"{name}={hyper[name]}")
