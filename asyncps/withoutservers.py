"""Verbs that need somebody who keeps values: of a store without servers each names its like."""

from __future__ import annotations

from typing import Any, NoReturn

from asyncps.errors import ConfigError, NotYetError, OptimizerError

_NOBODY = "an allreduce store keeps no values"
_TABLES = "row-sparse keys of an allreduce store are not there yet"
_TRAINER = "asyncps.Trainer(params, optimizer, kvstore=store), which updates at each worker"
_CHECKPOINTS = "the parameters' data saved by yourself, and Trainer.save_states"


class WithoutServers:
    """The verbs that a store without servers does not have; all raise."""

    def push(self, *_: Any, **__: Any) -> NoReturn:
        """Nobody keeps what is pushed: `pushpull` brings the sum back at once."""
        raise ConfigError(f"push: {_NOBODY}", expected="pushpull, or asyncps.Trainer")

    def pull(self, *_: Any, **__: Any) -> NoReturn:
        """Nobody keeps values: `broadcast` brings those of rank 0, `pushpull` sums."""
        raise ConfigError(f"pull: {_NOBODY}",
                          expected="broadcast, pushpull(key, value, out), or asyncps.Trainer")

    def assign(self, *_: Any, **__: Any) -> NoReturn:
        """Nobody keeps values: `broadcast` brings those of rank 0."""
        raise ConfigError(f"assign: {_NOBODY}", expected="broadcast")

    def row_sparse_pull(self, *_: Any, **__: Any) -> NoReturn:
        """There are no row-sparse keys."""
        raise NotYetError(_TABLES, expected="a store of type dist_sync")

    def set_optimizer(self, *_: Any, **__: Any) -> NoReturn:
        """Nobody can update but the workers: `Trainer`."""
        raise OptimizerError("set_optimizer of an allreduce store: there is no server to run it",
                             expected=_TRAINER)

    _take_optimizer = set_optimizer

    def set_hyperparameters(self, *_: Any, **__: Any) -> NoReturn:
        """As `set_optimizer`."""
        raise OptimizerError("set_hyperparameters of an allreduce store: it has no optimizer",
                             expected=f"{_TRAINER}, and its set_learning_rate")

    def set_updater(self, *_: Any, **__: Any) -> NoReturn:
        """As `set_optimizer`."""
        raise OptimizerError("set_updater of an allreduce store: it keeps nothing to update",
                             expected=_TRAINER)

    _set_updater = set_updater

    def save(self, *_: Any, **__: Any) -> NoReturn:
        """The workers have the weights."""
        raise ConfigError(f"save: {_NOBODY}", expected=_CHECKPOINTS)

    def load(self, *_: Any, **__: Any) -> NoReturn:
        """The workers have the weights."""
        raise ConfigError(f"load: {_NOBODY}", expected=_CHECKPOINTS)

    def save_optimizer_states(self, *_: Any, **__: Any) -> NoReturn:
        """The workers have the states."""
        raise ConfigError(f"save_optimizer_states: {_NOBODY}", expected="Trainer.save_states")

    def load_optimizer_states(self, *_: Any, **__: Any) -> NoReturn:
        """The workers have the states."""
        raise ConfigError(f"load_optimizer_states: {_NOBODY}", expected="Trainer.load_states")

    def statistics(self) -> NoReturn:
        """What a worker sent to others is not counted."""
        raise NotYetError("statistics of an allreduce store are not there yet")

    @staticmethod
    def refuse_tables() -> NoReturn:
        """Say that there are no row-sparse keys."""
        raise NotYetError(_TABLES, expected="an array, or a store of type dist_sync")
