"""Rules by key beside a trainer's own words, and what both have to do with gradients' own keys."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import asyncps
from asyncps.errors import ConfigError, Disagreement, TensorError
from asyncps.kvstore import KVStore
from tests.support.cluster import on_cluster
from tests.trainer.params import Param

SIZE = 20_000
WHERE = pytest.mark.parametrize("where", [True, False], ids=["on the store", "at the workers"])


def trainer_of(store: KVStore, names: Any, where: bool | None = None, **options: Any) -> Any:
    params = {name: Param(np.zeros(SIZE, "f4"), np.ones(SIZE, "f4")) for name in names}
    return asyncps.Trainer(params, "sgd", {"learning_rate": 1.0}, kvstore=store,
                           update_on_kvstore=where, **options)


def codecs(store: KVStore) -> dict[Any, str]:
    return {key: told["codec"] for key, told in store.compression_report().items()}


# --------------------------------------------------- gradients are what a rule for their key means


@WHERE
def test_rules_by_key_are_of_gradients_wherever_updates_happen(where: bool) -> None:
    def train(store: KVStore) -> None:
        trainer = trainer_of(store, ["emb.w", "fc.w", 5, "none"], where)
        store.set_gradient_compression({"type": "topk", "ratio": 0.1}, keys="emb*")
        store.set_gradient_compression({"type": "int8"}, keys=["fc.w"])
        store.set_gradient_compression({"type": "f16"}, keys=5)
        trainer.step(1)
        report = store.compression_report()
        assert codecs(store) == {"emb.w": "topk", "fc.w": "int8", 5: "f16", "none": "dense"}
        assert report["emb.w"]["bytes_sent"] == 8 * SIZE // 10
        assert report[5]["bytes_sent"] == 2 * SIZE
        assert report["fc.w"]["bytes_before"] == 4 * SIZE

    on_cluster(train)


@pytest.mark.parametrize("small_bytes", [0, 1 << 20])
def test_a_gradient_that_is_refused_is_told_by_its_parameter_s_key(small_bytes: int) -> None:
    def train(store: KVStore) -> None:
        params = {"c": Param(np.zeros(10, "f4"), np.full(10, np.nan, "f4")),
                  "d": Param(np.zeros(SIZE, "f4"), np.full(SIZE, np.nan, "f4"))}
        del params["d" if not small_bytes else "c"]
        (key,) = params
        trainer = asyncps.Trainer(params, "sgd", kvstore=store, update_on_kvstore=False,
                                  compression_params={"type": "f16", "small_bytes": 0})
        with pytest.raises(TensorError, match=rf"not finite.*key '{key}', rank 0"):
            trainer.step(1)

    on_cluster(train, workers=1)


def test_a_rule_may_come_before_the_trainer_and_a_second_trainer_after_the_first() -> None:
    def train(store: KVStore) -> None:
        store.set_gradient_compression({"type": "topk"}, keys="w")
        for _ in range(2):  # the second finds all keys there
            trainer = trainer_of(store, ["w", "v"], False)
            trainer.step(1)
        assert codecs(store) == {"w": "topk", "v": "dense"}

    on_cluster(train)


# ------------------------------------------------------------------------------ changes, and sums


def test_changes_of_sums_are_refused_at_the_first_step() -> None:
    def train(store: KVStore) -> None:
        trainer = trainer_of(store, ["w", "v"], False)
        store.set_gradient_compression({"type": "topk", "pull": True}, keys="other*")
        trainer.step(1)
        store.set_gradient_compression({"type": "topk", "pull": True}, keys="v")
        with pytest.raises(ConfigError, match=r"pull=True of compression topk, for key 'v'.*expecte"
                                              r"d pull=None, or update_on_kvstore=True"):
            trainer.step(1)
        store.set_gradient_compression({"type": "topk", "pull": "f16"}, keys="v")
        trainer.step(1)

    on_cluster(train, workers=1)


@pytest.mark.parametrize("type", ["topk", "f16", "int8", "onebit", "2bit", "1bit"])
def test_changes_of_weights_are_taken(type: str) -> None:
    def train(store: KVStore) -> None:
        trainer = trainer_of(store, ["w"], True, compression_params={"type": type, "pull": True})
        trainer.step(1)

    on_cluster(train)


# ------------------------------------------------------------------- a trainer's words for all keys


def test_a_second_trainer_s_other_words_are_refused_and_the_same_are_not() -> None:
    def train(store: KVStore) -> None:
        trainer_of(store, ["a"], compression_params={"type": "topk", "ratio": 0.1})
        with pytest.raises(ConfigError, match=r"expected type='topk', ratio=0.1.*type='f16'"):
            trainer_of(store, ["b"], compression_params={"type": "f16"})
        with pytest.raises(ConfigError, match=r"expected type='topk', ratio=0.1;.*ratio=0.2"):
            trainer_of(store, ["b"], compression_params={"type": "topk", "ratio": 0.2})
        trainer_of(store, ["c"], compression_params={"ratio": 0.1, "type": "topk"})
        trainer_of(store, ["d"])
        assert set(codecs(store).values()) == {"topk"}
        store.set_gradient_compression({"type": "f16"})
        trainer_of(store, ["b"], compression_params={"type": "f16"})
        assert set(codecs(store).values()) == {"f16"}

    on_cluster(train)


@WHERE
@pytest.mark.parametrize("before", [True, False], ids=["before", "after"])
def test_rules_by_key_go_before_a_trainer_s_words(where: bool, before: bool) -> None:
    def train(store: KVStore) -> None:
        if before:
            store.set_gradient_compression({"type": "topk"}, keys="emb*")
        trainer = trainer_of(store, ["emb.w", "fc.w"], where, compression_params={"type": "f16"})
        if not before:
            store.set_gradient_compression({"type": "topk"}, keys="emb*")
        trainer_of(store, ["fc.v"], where, compression_params={"type": "f16"})
        trainer.step(1)
        assert codecs(store) == {"emb.w": "topk", "fc.w": "f16", "fc.v": "f16"}

    on_cluster(train)


# ----------------------------------------------------------------------------- states without rests


def test_what_save_states_does_not_write_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def train(store: KVStore) -> None:
        trainer = trainer_of(store, ["w", "v"], False)
        trainer.step(1)
        trainer.save_states(tmp_path / "dense")
        assert "save_states" not in caplog.text
        store.set_gradient_compression({"type": "dgc"}, keys="w")
        trainer.step(1)
        trainer.save_states(tmp_path / "dgc")
        trainer.load_states(tmp_path / "dgc")

    with caplog.at_level(logging.WARNING):
        on_cluster(train, workers=1)
    assert ("save_states does not write what compression has not sent yet, nor a momentum of dgc's:"
            " of 1 keys, such as 'w'") in caplog.text


def test_a_trainer_s_words_at_one_worker_and_a_verb_s_at_another_disagree() -> None:
    """Rules by key go before the former, and the latter before rules by key."""

    def train(store: KVStore) -> None:
        store.set_gradient_compression({"type": "topk"}, keys="emb*")
        words = {"type": "f16"}
        with pytest.raises(Disagreement, match=r"said default=True.*said default=False"):
            (store._compress_others if store.rank == 0 else store.set_gradient_compression)(words)

    on_cluster(train)
