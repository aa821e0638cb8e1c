"""The trainers of one store: what they must agree on, and what they hear when it changes.

What is refused here must be refused at all workers alike. So it does not depend on which trainers
are garbage already: one that was not closed counts until another takes its place.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from asyncps import optim
from asyncps.errors import AsyncPSError, ConfigError, OptimizerError

# Said anew before each step, as the batch sizes of trainers may differ.
_OF_A_STEP = "rescale_grad"
_APART = "a store of its own, create(..., name=...)"


class Trains(Protocol):
    """What a trainer does when it is told."""

    def _check_places(self) -> None:
        """Raise if a parameter cannot take weights any more."""

    def _take(self, *, weights: bool) -> None:
        """Take hyper-parameters from the store, and weights; and train again if it may."""

    def _bar(self, why: AsyncPSError) -> None:
        """Raise this from all that would train."""


@dataclass(frozen=True, slots=True)
class _Entry:
    keys: frozenset[Any]
    optimizer: str
    words: Mapping[str, Any]
    on_store: bool
    trainer: weakref.ref[Any]


class Followers:
    """The trainers of one store at one worker. Any thread may ask."""

    def __init__(self) -> None:
        self._entries: list[_Entry] = []
        self._lock = threading.Lock()

    def check(self, keys: frozenset[Any], optimizer: optim.Optimizer) -> None:
        """Refuse a trainer that updates on the store in another way than one of other keys.

        Raises:
            ConfigError: A store has one optimizer, with one set of hyper-parameters.
        """
        words = _lasting(optimizer.hyper)
        for entry in self._listed():
            if not entry.on_store or entry.keys & keys:
                continue
            if (entry.optimizer, entry.words) != (optimizer.name, words):
                raise ConfigError(
                    "two trainers of one store with different optimizers or hyper-parameters",
                    expected=f"{_APART}, or close() of the other trainer",
                    got=f"{optimizer.name} beside {entry.optimizer}")

    def add(
        self, trainer: Trains, keys: frozenset[Any], optimizer: optim.Optimizer, *, on_store: bool
    ) -> None:
        """Take a trainer in, in the place of those with some of its keys."""
        entry = _Entry(keys, optimizer.name, _lasting(optimizer.hyper), on_store,
                       weakref.ref(trainer))
        with self._lock:
            replaced = [each for each in self._entries if each.keys & keys]
            self._entries = [each for each in self._entries if not each.keys & keys]
            self._entries.append(entry)
        for each in replaced:
            former = each.trainer()
            if former is not None:
                former._bar(ConfigError(
                    "another trainer has taken over keys of this one",
                    expected=f"names of their own in a dict of parameters, or {_APART}",
                    got=", ".join(sorted(repr(key) for key in each.keys & keys)[:5])))

    def discard(self, trainer: Trains) -> None:
        """A trainer is closed."""
        with self._lock:
            self._entries = [each for each in self._entries if each.trainer() is not trainer]

    def refusal(self, verb: str, optimizer: str | None) -> AsyncPSError | None:
        """Return what is against a verb of checkpoints, or the optimizer that one brings."""
        for entry in self._listed():
            if not entry.on_store:
                return ConfigError(
                    f"{verb} of a store whose trainer updates at the workers, who have the weights",
                    expected="the parameters' data saved by yourself, and Trainer.save_states")
            if optimizer is not None and optimizer != entry.optimizer:
                return OptimizerError("a checkpoint with another optimizer than the trainer's",
                                      expected=entry.optimizer, got=optimizer)
        for trainer in self._alive():
            try:
                trainer._check_places()
            except AsyncPSError as error:
                return error
        return None

    def check_join(self) -> None:
        """Refuse a join of workers that update by themselves.

        Raises:
            ConfigError: A worker that has joined would miss the updates of the others for good.
        """
        if any(not entry.on_store for entry in self._listed()):
            raise ConfigError("join on a store whose trainer updates at the workers",
                              expected="equally many steps; or, of a store that has servers, "
                              "update_on_kvstore=True")

    def changed(self, optimizer: str | None, hyper: Mapping[str, Any], *, weights: bool = False
                ) -> None:
        """Tell all that the store has this optimizer now, and may have other `weights`.

        Raises:
            AsyncPSError: The first error of a trainer, when all have been told.
        """
        with self._lock:
            self._entries = [
                _Entry(each.keys, optimizer or "", _lasting(hyper), True, each.trainer)
                if each.on_store else each for each in self._entries
            ]
        failed: AsyncPSError | None = None
        for trainer in self._alive():
            try:
                trainer._take(weights=weights)
            except AsyncPSError as error:
                trainer._bar(error)
                failed = failed or error
        if failed is not None:
            raise failed

    def given_up(self, why: AsyncPSError) -> None:
        """A load goes on without its caller: what trainers have is the store's no longer."""
        for trainer in self._alive():
            trainer._bar(why)

    def _listed(self) -> list[_Entry]:
        with self._lock:
            return list(self._entries)

    def _alive(self) -> list[Any]:
        found = [entry.trainer() for entry in self._listed()]
        return [trainer for trainer in found if trainer is not None]


def _lasting(hyper: Mapping[str, Any]) -> dict[str, Any]:
    given = optim.as_given(hyper)
    given.pop(_OF_A_STEP, None)
    return given
