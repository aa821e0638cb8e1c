"""Documented words that this version does not have: each says so, none pretends."""

from __future__ import annotations

from typing import Any, NoReturn

from asyncps.errors import NotYetError

# Public names of the design whose issue has not come.
LATER_NAMES = frozenset({
    "torch",
})


class LaterVerbs:
    """The verbs that a store of a cluster does not have."""

    def set_updater(self, *_: Any, **__: Any) -> NoReturn:
        """Of local stores only."""
        raise NotYetError("set_updater is of local stores only: on a cluster the servers update "
                          "(set_optimizer, or --import for an optimizer of your own)")

    _set_updater = set_updater
