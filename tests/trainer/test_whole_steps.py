"""A step of a trainer with compression is whole: refused at one gradient, it has pushed none."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import asyncps
from asyncps import RowSparse
from asyncps.errors import NotYetError, TensorError
from asyncps.kvstore import KVStore
from tests.support.cluster import on_cluster
from tests.trainer.params import Param

# The small one goes first, and is the one that is encoded at once: see `Large.may_wait`.
SIZES = {"bias": 10, "a": 30_000, "b": 20_000, "c": 30_000}
QUICK = {"round_s": 5.0}  # a half step makes the others wait for a round that never comes
WHERE = pytest.mark.parametrize("where", [True, False], ids=["on the store", "at the workers"])
TYPES = pytest.mark.parametrize(
    "words", [{"type": "f16"}, {"type": "f16", "small_bytes": 0}, {"type": "topk", "ratio": 1.0},
              {"type": "dgc", "ratio": 1.0, "momentum": 0.0}],
    ids=["f16", "all f16", "topk", "dgc"])  # fmt: skip


def dense(devices: int = 1) -> dict[str, Param]:
    if devices == 1:
        return {key: Param(np.zeros(size, "f4")) for key, size in SIZES.items()}
    return {key: Param([np.zeros(size, "f4") for _ in range(devices)])
            for key, size in SIZES.items()}


VALUE = 1 + 2**-12  # of which f16 sends 1 first, and keeps the rest


def fill(params: dict[str, Param], value: float = VALUE) -> None:
    for param in params.values():
        data = param.data
        param.grad = ([np.full_like(each, value) for each in data] if isinstance(data, list)
                      else np.full_like(data, value))


def last_device(param: Param) -> Any:
    return param.grad[-1] if isinstance(param.grad, list) else param.grad


def residuals(store: KVStore) -> dict[Any, Any]:
    kept = store._core.client.compression.coders.kept()  # type: ignore[union-attr]
    return {key: (each.pushes, None if each.residual is None else each.residual.copy())
            for key, each in kept.items()}


@WHERE
@TYPES
@pytest.mark.parametrize("devices", [1, 2])
@pytest.mark.parametrize("bad", ["b", "c"])
def test_a_step_with_a_nan_pushes_nothing(
    where: bool, words: dict[str, Any], devices: int, bad: str
) -> None:
    def train(store: KVStore) -> None:
        params = dense(devices)
        trainer = asyncps.Trainer(
            params, "sgd", {"learning_rate": 1.0}, kvstore=store, update_on_kvstore=where,
            compression_params=words)
        for step in range(3):
            fill(params)
            if store.rank == 1 and step == 1:
                last_device(params[bad])[5] = np.nan
                before, report = residuals(store), store.compression_report()
                with pytest.raises(TensorError, match=r"rank 1.*the first at 5"):
                    trainer.step(2 * devices)
                after = residuals(store)
                assert before.keys() == after.keys()
                if words["type"] == "f16":  # the others leave nothing
                    assert before
                    assert all((each == devices * (VALUE - 1)).all() for _, each in before.values())
                for key, (pushes, kept) in before.items():
                    assert after[key][0] == pushes
                    assert np.array_equal(after[key][1], kept)
                for key, told in store.compression_report().items():
                    assert told.get("bytes_sent") == report[key].get("bytes_sent")
                fill(params)
            trainer.step(2 * devices)
            for key, param in params.items():
                for data in param.data if devices > 1 else [param.data]:
                    assert np.allclose(data, -(step + 1), atol=0.002), (key, step)

    on_cluster(train, settings=QUICK)


@WHERE
def test_with_skip_only_that_key_s_round_is_skipped(where: bool) -> None:
    def train(store: KVStore) -> None:
        params = dense()
        trainer = asyncps.Trainer(
            params, "sgd", {"learning_rate": 1.0}, kvstore=store, update_on_kvstore=where,
            compression_params={"type": "f16", "nonfinite": "skip"})
        for step in range(3):
            fill(params)
            if store.rank == 1 and step == 1:
                params["c"].grad[5] = np.nan
            trainer.step(2)
        for key, param in params.items():
            rounds = 2 if key == "c" and where else 3
            # At the workers the sum before counts.
            assert np.allclose(param.data, -rounds, atol=0.002), key

    on_cluster(train, settings=QUICK)


@pytest.mark.parametrize("small_bytes", [0, 1 << 20])
def test_a_step_that_is_refused_skips_no_round(small_bytes: int) -> None:
    def train(store: KVStore) -> None:
        params = {key: Param(np.zeros(10 if small_bytes else 20_000, "f4")) for key in "ab"}
        params["t"] = Param(np.zeros((10, 3), "f4"))
        params["t"].grad_stype = "row_sparse"  # type: ignore[attr-defined]
        words = {"type": "f16", "small_bytes": 0}
        for key in "at":
            store.set_gradient_compression({**words, "nonfinite": "skip"}, keys=key)
        trainer = asyncps.Trainer(params, "sgd", {"learning_rate": 1.0}, kvstore=store,
                                  compression_params=words)

        def skipped() -> list[int]:
            report = store.compression_report()
            return [report[key]["skipped"] for key in "at"]

        fill({key: params[key] for key in "ab"}, np.nan)
        params["t"].grad = RowSparse([1], np.full((1, 3), np.nan, "f4"), (10, 3))
        with pytest.raises(TensorError, match="key 'b'"):
            trainer.step(1)
        assert skipped() == [0, 0]
        fill({"b": params["b"]}, 1)
        trainer.step(1)
        assert skipped() == [1, 1]

    on_cluster(train, workers=1)


@pytest.mark.parametrize("devices", [1, 2])
def test_rows_that_are_refused_leave_dense_keys_unpushed(devices: int) -> None:
    def rows(value: float) -> Any:
        made = [RowSparse([1, 3], np.full((2, 3), value, "f4"), (10, 3)) for _ in range(devices)]
        return made if devices > 1 else made[0]

    def train(store: KVStore) -> None:
        params = dense(devices)
        table = [np.zeros((10, 3), "f4") for _ in range(devices)]
        params["table"] = Param(table if devices > 1 else table[0])
        params["table"].grad_stype = "row_sparse"  # type: ignore[attr-defined]
        trainer = asyncps.Trainer(params, "sgd", {"learning_rate": 1.0}, kvstore=store,
                                  compression_params={"type": "f16"})
        for step in range(3):
            fill(params)
            params["table"].grad = rows(1.0)
            if store.rank == 1 and step == 1:
                params["table"].grad = rows(np.nan)
                with pytest.raises(TensorError, match="key 'table', rank 1"):
                    trainer.step(2 * devices)
                params["table"].grad = rows(1.0)
            trainer.step(2 * devices)
        for key, param in params.items():
            for data in param.data if devices > 1 else [param.data]:
                assert np.allclose(data[[1, 3]], -3, atol=0.002), key
        assert store.compression_report()["table"]["bytes_before"] == 3 * 24

    on_cluster(train, settings=QUICK)


def test_rows_with_a_codec_of_dense_keys_leave_dense_keys_unpushed() -> None:
    def train(store: KVStore) -> None:
        params = dense()
        params["table"] = Param(np.zeros((10, 3), "f4"))
        params["table"].grad_stype = "row_sparse"  # type: ignore[attr-defined]
        trainer = asyncps.Trainer(params, "sgd", {"learning_rate": 1.0}, kvstore=store)
        store.set_gradient_compression({"type": "powersgd"}, keys="tab*")
        fill(params)
        params["table"].grad = RowSparse([1], np.ones((1, 3), "f4"), (10, 3))
        with pytest.raises(NotYetError, match="'table'"):
            trainer.step(1)
        assert not any(store.pull("a"))

    on_cluster(train, workers=1)


def test_a_store_that_stands_still_takes_nothing_of_a_step() -> None:
    def train(store: KVStore) -> None:
        params = dense()
        trainer = asyncps.Trainer(params, "sgd", {"learning_rate": 1.0}, kvstore=store,
                                  compression_params={"type": "f16"})
        fill(params)
        client = store._core.client
        client.still = "save"
        with pytest.raises(asyncps.errors.ClusterError, match="while save is under way"):
            trainer.step(1)
        client.still = ""
        assert not client.encodings._under_way
        assert not store.pull("bias").any()
        trainer.step(1)
        assert (params["bias"].data == -VALUE).all()

    on_cluster(train, workers=1)
