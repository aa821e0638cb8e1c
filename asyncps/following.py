"""Trainers that must hear when what their store holds is replaced by a checkpoint's content."""

from __future__ import annotations

import weakref
from typing import Protocol

from asyncps.errors import AsyncPSError


class Follower(Protocol):
    """Somebody with copies of a store's values, such as a Trainer."""

    def check_checkpoint(self, verb: str) -> None:
        """Refuse a verb of checkpoints that would not do what its caller thinks.

        Raises:
            AsyncPSError: Why.
        """

    def refusal(self, optimizer: str) -> AsyncPSError | None:
        """Return what is against an optimizer that a checkpoint brings. Called in any thread."""

    def loaded(self) -> None:
        """The store has taken a checkpoint."""


class Followers:
    """Those of one store, as long as they are alive."""

    def __init__(self) -> None:
        self._known: weakref.WeakSet[Follower] = weakref.WeakSet()

    def add(self, follower: Follower) -> None:
        """Tell this one from now on."""
        self._known.add(follower)

    def discard(self, follower: Follower) -> None:
        """Tell this one no more."""
        self._known.discard(follower)

    def check(self, verb: str) -> None:
        """Ask all whether a verb may be.

        Raises:
            AsyncPSError: What one of them has against it.
        """
        for follower in list(self._known):
            follower.check_checkpoint(verb)

    def refusal(self, optimizer: str) -> AsyncPSError | None:
        """Return what any of them has against the optimizer of a checkpoint."""
        refusals = (follower.refusal(optimizer) for follower in list(self._known))
        return next((error for error in refusals if error is not None), None)

    def loaded(self) -> None:
        """Tell all that the store has taken a checkpoint."""
        for follower in list(self._known):
            follower.loaded()
