"""Trainer.save_states and load_states in a job whose servers update."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import asyncps
from asyncps.errors import OptimizerError
from asyncps.kvstore import KVStore
from tests.support.cluster import on_cluster
from tests.trainer.params import Param


def steps(trainer: asyncps.Trainer, param: Param, rank: int, turns: range) -> None:
    for turn in turns:
        param.grad = np.random.default_rng([rank, turn]).standard_normal(50).astype("f4")
        trainer.step(2 if turn % 2 else 4)


def test_states_of_servers_are_saved_and_go_on_as_if_nothing_had_been(tmp_path: Path) -> None:
    def whole(store: KVStore) -> bytes:
        param = Param(np.ones(50, "f4"))
        trainer = asyncps.Trainer([param], "adam", {"lr": 0.5}, kvstore=store)
        steps(trainer, param, store.rank, range(7))
        return param.data.tobytes()

    def first(store: KVStore) -> np.ndarray:
        param = Param(np.ones(50, "f4"))
        trainer = asyncps.Trainer([param], "adam", {"lr": 0.5}, kvstore=store)
        steps(trainer, param, store.rank, range(3))
        trainer.save_states(tmp_path / "states")
        return param.data.copy()

    def second(store: KVStore) -> bytes:
        param = Param(weights.copy())
        trainer = asyncps.Trainer([param], "adam", {"lr": 0.125}, kvstore=store)
        trainer.load_states(tmp_path / "states")
        assert trainer.learning_rate == 0.5
        steps(trainer, param, store.rank, range(3, 7))
        return param.data.tobytes()

    expected = on_cluster(whole, workers=2, order="rank")
    weights = on_cluster(first, workers=2, order="rank")[0]
    assert on_cluster(second, workers=2, servers=3, order="rank") == expected

    def another(store: KVStore) -> None:
        trainer = asyncps.Trainer([Param(weights.copy())], "sgd", kvstore=store)
        with pytest.raises(OptimizerError):
            trainer.load_states(tmp_path / "states")

    on_cluster(another, workers=2)
