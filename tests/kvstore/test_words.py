"""How arguments may be said, and what is said when they are wrong."""

from __future__ import annotations

import traceback
from typing import Any

import numpy as np
import pytest

import asyncps
from asyncps.errors import OptimizerError, ShapeMismatch, UnknownKey
from asyncps.kvstore import KVStore
from tests.support.cluster import on_cluster


def on_both(work: Any) -> None:
    on_cluster(work, workers=1, servers=1)
    work(asyncps.create("local"))


def test_hyper_parameters_come_as_a_dict_or_by_keyword() -> None:
    def work(store: Any) -> None:
        store.set_optimizer("sgd", {"learning_rate": 0.5}, momentum=0.25)
        found = store.hyperparameters
        assert (store.optimizer, found["learning_rate"], found["momentum"]) == ("sgd", 0.5, 0.25)
        store.set_hyperparameters(wd=0.125)
        assert store.hyperparameters["wd"] == 0.125
        for params, hyper in (
            ({"wd": 1}, {"wd": 1}), ([1], {}), ({5: 1}, {}), ({"no such": 1}, {}), ("sgd", {}),
        ):
            with pytest.raises(OptimizerError):
                store.set_optimizer("sgd", params, **hyper)
        with pytest.raises(OptimizerError):
            store.set_optimizer(asyncps.optim.SGD(), {"wd": 1})
        assert store.hyperparameters["momentum"] == 0.25

    on_both(work)


def test_a_key_that_differs_in_case_is_told() -> None:
    def work(store: Any) -> None:
        store.init("W", np.zeros(3, "f4"))
        with pytest.raises(UnknownKey, match="there is 'W'"):
            store.pull("w")

    on_both(work)


@pytest.mark.parametrize("verb", ["push", "pushpull", "assign", "pull"])
def test_wrong_arguments_are_refused_without_our_frames(verb: str) -> None:
    def work(store: KVStore) -> None:
        store.init("w", np.zeros(3, "f4"))
        values = {"out": np.zeros(4, "f4")} if verb == "pull" else {"value": np.zeros(4, "f4")}
        with pytest.raises(ShapeMismatch) as caught:
            getattr(store, verb)("w", **values)
        files = [frame.filename for frame in traceback.extract_tb(caught.value.__traceback__)]
        assert [file.endswith("kvstore.py") for file in files[1:]] == [True, True]

    on_cluster(work, workers=1, servers=1)


def test_out_of_rows_says_how_many_there_are() -> None:
    def work(store: Any) -> None:
        store.init("t", asyncps.initializer.Zero(), shape=(10, 2))
        with pytest.raises(ShapeMismatch, match="one row for each different row id"):
            store.row_sparse_pull("t", np.array([1, 2]), out=np.zeros((10, 2), "f4"))
        with pytest.raises(ShapeMismatch, match="before an `out`"):
            store.row_sparse_pull("t", np.zeros((2, 2), "f4"), np.array([1, 2]))

    on_both(work)


def test_an_exception_of_the_program_alone_is_no_news_of_lost_servers(
    caplog: pytest.LogCaptureFixture
) -> None:
    def program() -> None:
        with asyncps.create("dist_sync") as store:
            store.init("w", np.zeros(3, "f4"))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        program()
    said = [record.getMessage() for record in caplog.records]
    assert not [text for text in said if "lost" in text], said
