"""save and load of a store of one process."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from asyncps.checkpointverbs import check_path
from asyncps.errors import CheckpointError, OptimizerError
from asyncps.following import Followers
from asyncps.localtables import LocalTables
from asyncps.localvalues import Kind, Value, alone, check_same, describe, restore
from asyncps.tensor import checkpoint
from asyncps.values import Array, Key

log = logging.getLogger(__name__)

Path = str | os.PathLike[str]
Updater = Callable[[Key, Array, Array], None]


class LocalCheckpointVerbs:
    """Verbs of a `LocalStore`."""

    type: str
    _followers: Followers
    _tell_followers: Callable[..., None]
    _values: dict[Key, Value]
    _tables: LocalTables
    _optimizer: Kind | None
    _hyper: Mapping[str, Any]
    _updater: Updater | None
    _check_open: Callable[[], None]

    @alone
    def save(self, directory: Path) -> None:
        """Write values, what the optimizer keeps, its hyper-parameters and the clocks.

        Args:
            directory: Where the checkpoint will stand: whole, or not at all; one that stands
                there is replaced. The form is told in `asyncps.tensor.checkpoint`.

        Raises:
            CheckpointError: It could not be written; an older one stands as it did.
            ConfigError: A trainer of this store updates outside of it, and has the weights.
        """
        self._check_open()
        check_path(directory)
        self._refuse("save", None)
        self._write(directory, {key: value.array for key, value in self._values.items()}, True)

    @alone
    def load(self, directory: Path) -> None:
        """Take values, optimizer and clocks from what `save` of any store has written.

        Keys that do not exist are initialised. The checkpoint's optimizer takes the place of this
        store's; if it has none, this store's stays and starts anew. Nothing has changed if this
        raises.

        Raises:
            CheckpointError: It cannot be read, or has not such a key as one of this store.
            ShapeMismatch, DtypeMismatch: A key exists here and is different there.
            OptimizerError: Its optimizer is not known here, or not that of a trainer of this store.
            ConfigError: As `save`.
        """
        self._check_open()
        check_path(directory)
        found = checkpoint.read(directory)
        lacking = [key for key in self._values if key not in found.weights]
        if lacking:
            alone = not found.weights and bool(found.state)
            raise CheckpointError("a checkpoint that lacks a key of this store", key=lacking[0],
                                  expected="load_optimizer_states of states without weights"
                                  if alone else None)
        made = {key: Value(key, array) for key, array in found.weights.items()}
        for key, value in self._values.items():
            check_same(key, value.array, made[key].array)
        tables = self._tables.compare(found, self._values, weights=True)
        known = self._values
        self._take("load", found, made)
        if checkpoint.KEPT in found.meta:
            log.warning("a store of one process sends nothing: it drops what compressed keys had "
                        "not sent, which this checkpoint has")
        self._tables.take(found, tables, weights=True)
        for key, value in known.items():  # in place: an adopted array is the caller's
            np.copyto(value.array, made[key].array)
            made[key].array = value.array
        self._tell_followers(weights=True)

    @alone
    def save_optimizer_states(self, path: Path, dump_optimizer: bool = True) -> None:
        """Write what the optimizer keeps for each key, without the values.

        Args:
            path: A checkpoint without weights, written as by `save`.
            dump_optimizer: As MXNet's; the optimizer's name and hyper-parameters are a few bytes
                and always written.

        Raises:
            OptimizerError: There is no optimizer.
            CheckpointError: As `save`.
        """
        self._check_open()
        check_path(path)
        if self._optimizer is None:
            raise OptimizerError("no optimizer is set", expected="set_optimizer first")
        self._write(path, {}, False)

    @alone
    def load_optimizer_states(self, path: Path) -> None:
        """Take optimizer, its hyper-parameters and states from a checkpoint; values stay.

        Raises:
            OptimizerError: It holds no optimizer, or one that is not known here.
            CheckpointError: It cannot be read, or its states are not those of this store's keys.
        """
        self._check_open()
        check_path(path)
        found = checkpoint.read(path)
        if found.meta.get("optimizer") is None:
            raise OptimizerError("a checkpoint without an optimizer", got=path)
        made = {key: Value(key, value.array) for key, value in self._values.items()}
        tables = self._tables.compare(found, self._values, weights=False)
        self._take("load_optimizer_states", found, made)
        self._tables.take(found, tables, weights=False)
        self._tell_followers(weights=True)

    # ---- inside ----

    def _write(self, path: Path, arrays: dict[Key, Array], weights: bool) -> None:
        states = {key: value.state for key, value in self._values.items()}
        meta = describe(self.type, self._optimizer, self._hyper, self._values)
        meta["clocks"] += self._tables.clocks()
        checkpoint.write(path, arrays, states, meta, self._tables.saved(weights=weights))

    def _refuse(self, verb: str, optimizer: str | None) -> None:
        refusal = self._followers.refusal(verb, optimizer)
        if refusal is not None:
            raise refusal

    def _take(
        self, verb: str, found: checkpoint.Checkpoint, made: dict[Key, Value]
    ) -> None:
        kind, hyper = restore(found, made)
        self._refuse(verb, None if kind is None else kind.name)
        if kind is not None:
            self._optimizer, self._hyper, self._updater = kind, hyper, None
        self._values = made
