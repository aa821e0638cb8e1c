"""save and load of a store of a cluster: the verbs of both faces."""

from __future__ import annotations

import os
from collections.abc import Coroutine
from functools import partial
from typing import Any

from asyncps.core import Core
from asyncps.errors import AsyncPSError, ClusterError, ConfigError, DeadlineExceeded
from asyncps.following import Followers
from asyncps.roles import together
from asyncps.roles.runtime import Runtime

Path = str | os.PathLike[str]


class CheckpointVerbs:
    """The verbs of a blocking store."""

    _core: Core
    _runtime: Runtime

    def save(self, directory: Path) -> None:
        """Write values, what the optimizer keeps, its hyper-parameters and the clocks.

        Every worker calls this with the same words. It waits for all of them and for their pushes;
        then the lowest rank that is there fetches the state from the servers, some MiB at a time,
        and writes it. Returns when the checkpoint is durable.

        Args:
            directory: Where it will stand on that worker's host: whole, or not at all; a checkpoint
                that stands there is replaced in one step. The folder above must exist. It loads
                onto any number of servers and workers, and into local stores.

        Raises:
            CheckpointError: It could not be written; an older one stands as it did. The job may go
                on. At every worker, as all errors here.
            ConfigError: A trainer of this store updates at the workers: they have the weights.
            Disagreement: Workers said different words, or have not pushed each key equally often.
            DeadlineExceeded: Not all came, or it was not done, within `round_s`.
        """
        refusal = partial(self._followers.refusal, "save", None)
        self._at_once(partial(together.save, refusal=refusal), directory, weights=True)

    def load(self, directory: Path) -> None:
        """Take values, optimizer and clocks from what `save` of any store has written.

        Every worker calls this with the same words; the lowest rank that is there reads. Keys that
        do not exist are made. The checkpoint's optimizer takes the place of the store's, at all
        workers; if it has none, the store's stays and starts anew.

        Args:
            directory: On the host of that worker.

        Raises:
            CheckpointError: It cannot be read, or lacks a key of this store, or has it as another
                kind of key or with other first rows.
            ShapeMismatch, DtypeMismatch: A key exists here and is different there.
            OptimizerError: Its optimizer is not known here, is not that of a trainer of this store,
                or cannot have the keys as they lie.
            ConfigError: As `save`.
            Disagreement, DeadlineExceeded: As `save`.

        Nothing has changed when one of these is raised. If the disk or a node fails in the midst of
        it the store holds a part: load again.
        """
        self._load("load", directory, weights=True)

    def save_optimizer_states(self, path: Path, dump_optimizer: bool = True) -> None:
        """Write what the optimizer keeps for each key, without the values; as `save`.

        Args:
            path: A checkpoint without weights.
            dump_optimizer: As MXNet's; the optimizer's name and hyper-parameters are a few bytes
                and always written.

        Raises:
            OptimizerError: There is no optimizer.
            CheckpointError, Disagreement, DeadlineExceeded: As `save`.
        """
        self._at_once(together.save, path, weights=False)

    def load_optimizer_states(self, path: Path) -> None:
        """Take optimizer, its hyper-parameters and states from a checkpoint; values stay.

        Raises:
            OptimizerError: It holds no optimizer, or one that is not known here.
            CheckpointError: It cannot be read, or its states are not those of this store's keys.
            Disagreement, DeadlineExceeded: As `save`.
        """
        self._load("load_optimizer_states", path, weights=False)

    @property
    def _followers(self) -> Followers:
        return self._core.followers

    def _tell_followers(self, *, weights: bool = False) -> None:
        client = self._core.client
        self._followers.changed(client.optimizer, client.hyper, weights=weights)

    def _load(self, verb: str, path: Path, *, weights: bool) -> None:
        load = partial(together.load, refusal=partial(self._followers.refusal, verb))
        try:
            self._at_once(load, path, weights=weights)
        except BaseException as error:
            # It goes on without its caller; of any other error all workers hear, and it has ended.
            if isinstance(error, DeadlineExceeded) or not isinstance(error, AsyncPSError):
                self._followers.given_up(ClusterError(
                    "a load of the store was given up", expected="load again"))
            raise
        self._tell_followers(weights=True)

    def _at_once(self, verb: Any, path: Path, *, weights: bool) -> None:
        with self._core.lanes_closed():
            self._runtime.run(lambda: _carry_out(self._core, verb, path, weights=weights))


class AsyncCheckpointVerbs:
    """The same as coroutines."""

    _core: Core

    async def save(self, directory: Path) -> None:
        """As `KVStore.save`."""
        await _carry_out(self._core, together.save, directory, weights=True)

    async def load(self, directory: Path) -> None:
        """As `KVStore.load`."""
        await _carry_out(self._core, together.load, directory, weights=True)

    async def save_optimizer_states(self, path: Path, dump_optimizer: bool = True) -> None:
        """As `KVStore.save_optimizer_states`."""
        await _carry_out(self._core, together.save, path, weights=False)

    async def load_optimizer_states(self, path: Path) -> None:
        """As `KVStore.load_optimizer_states`."""
        await _carry_out(self._core, together.load, path, weights=False)


def check_path(path: object) -> None:
    """Refuse what names no directory.

    Raises:
        ConfigError: It says why.
    """
    if not isinstance(path, (str, os.PathLike)) or not isinstance(os.fspath(path), str):
        raise ConfigError("a checkpoint stands in a directory", expected="a str or a Path",
                          got=type(path).__name__)
    text = os.fspath(path)
    try:
        name = os.fsencode(text)
    except UnicodeEncodeError:
        name = b""
    if not name or b"\0" in name:
        raise ConfigError("no name of a directory", expected="a path", got=repr(text))


def _carry_out(core: Core, verb: Any, path: Path, *, weights: bool) -> Coroutine[Any, Any, None]:
    core.check_open()
    check_path(path)
    work: Coroutine[Any, Any, None] = verb(core.worker, core.client, path, weights=weights)
    return work
