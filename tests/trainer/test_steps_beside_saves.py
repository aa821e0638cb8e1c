"""A trainer's step beside a thread that saves or loads: it is pushed whole, or not at all."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import asyncps
from asyncps import RowSparse
from asyncps.errors import ClusterError, ShapeMismatch
from asyncps.kvstore import KVStore
from asyncps.wholecalls import Whole
from tests.support.cluster import on_cluster
from tests.trainer.params import Param

KEYS = ("a", "b", "c", "bias")


def made() -> dict[str, Param]:
    params = {key: Param(np.zeros(10 if key == "bias" else 20_000, "f4")) for key in KEYS}
    params["table"] = Param(np.zeros((10, 3), "f4"))
    params["table"].grad_stype = "row_sparse"  # type: ignore[attr-defined]
    for param in params.values():
        param.grad = np.ones_like(param.data)
    params["table"].grad = RowSparse([1], np.ones((1, 3), "f4"), (10, 3))
    return params


def values(store: KVStore) -> list[float]:
    return [*(float(store.pull(key)[0]) for key in KEYS),
            float(store.row_sparse_pull("table", [1]).values[0, 0])]


# With the first the small keys, and the rows, travel as they are.
WORDS = pytest.mark.parametrize("words", [{"type": "f16", "small_bytes": 100}, {"type": "f16"}],
                                ids=["some as they are", "all"])


@WORDS
@pytest.mark.parametrize("verb", ["save", "load"])
@pytest.mark.parametrize("begun", [0, 1, 3, 5])
def test_who_saves_waits_until_the_step_has_begun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: Any, verb: str, begun: int
) -> None:
    """Behind that many of its six calls another thread saves."""
    begin, seen = Whole.begin, [0]

    def train(store: KVStore) -> None:
        params = made()
        trainer = asyncps.Trainer(params, "sgd", {"learning_rate": 1.0}, kvstore=store,
                                  compression_params=words)
        trainer.step(1)
        store.save(tmp_path / "c")
        other = threading.Thread(target=getattr(store, verb), args=(tmp_path / "c",))
        client = store._core.client

        def slow(whole: Whole) -> Any:
            if seen[0] == begun:
                other.start()
                while not client.encodings.waited_for:
                    assert other.is_alive(), "it did not wait"
            seen[0] += 1
            return begin(whole)

        monkeypatch.setattr(Whole, "begin", slow)
        trainer.step(1)
        assert seen[0] == 6
        other.join()
        assert not client.encodings._under_way
        assert values(store) == [-2 if verb == "save" else -1] * 5

    on_cluster(train, workers=1)


@WORDS
def test_who_saves_first_refuses_all_of_the_step(words: Any) -> None:
    def train(store: KVStore) -> None:
        trainer = asyncps.Trainer(made(), "sgd", {"learning_rate": 1.0}, kvstore=store,
                                  compression_params=words)
        client = store._core.client
        client.still = "save"
        with pytest.raises(ClusterError, match="while save is under way"):
            trainer.step(1)
        client.still = ""
        assert not client.encodings._under_way
        assert values(store) == [0] * 5
        trainer.step(1)
        assert values(store) == [-1] * 5

    on_cluster(train, workers=1)


def test_weights_that_do_not_fit_a_table_are_refused_before_anything_is_pushed() -> None:
    def train(store: KVStore) -> None:
        params = made()
        trainer = asyncps.Trainer(params, "sgd", {"learning_rate": 1.0}, kvstore=store,
                                  compression_params={"type": "f16"})
        good = params["table"].data
        params["table"].data = np.zeros((10, 4), "f4")
        with pytest.raises(ShapeMismatch):
            trainer.step(1)
        params["table"].data = good
        assert values(store) == [0] * 5
        trainer.step(1)
        assert values(store) == [-1] * 5

    on_cluster(train, workers=1)
