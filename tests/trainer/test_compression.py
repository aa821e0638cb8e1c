"""Trainer(compression_params=...): as Gluon's where that works, with every store of a cluster."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import asyncps
from asyncps.errors import ConfigError, NotYetError
from asyncps.kvstore import KVStore
from tests.support.cluster import on_cluster
from tests.trainer.params import Param


def sends_what_mxnet_sends(store: Any, sizes: Any, where: bool | None) -> None:
    """Two steps by 2bit of two workers; weights are not compressed."""
    params = [Param(np.full(size, 0.3, "f4")) for size in sizes]
    trainer = asyncps.Trainer(
        params, "sgd", {"learning_rate": 1.0}, kvstore=store, update_on_kvstore=where,
        compression_params={"type": "2bit", "threshold": 0.5},
    )
    for param in params:
        assert (param.data == np.float32(0.3)).all()
    # 0.4 is not sent, 0.4 + 0.4 is sent as 0.5, 0.3 stays.
    for expected in (0.3, 0.3 - 2 * 0.5):
        for param in params:
            param.grad = np.full_like(param.data, 0.4)
        trainer.step(1)
        for param in params:
            assert np.allclose(param.data, expected, atol=1e-6)
    report = store.compression_report()
    assert sum(told["codec"] == "2bit" for told in report.values()) >= len(sizes)


@pytest.mark.parametrize("where", [True, False], ids=["on the store", "at the workers"])
@pytest.mark.parametrize("sizes", [(3,), (3, 20_000), (20_000,)], ids=str)
def test_gradients_are_compressed_and_weights_are_not(sizes: Any, where: bool) -> None:
    on_cluster(lambda store: sends_what_mxnet_sends(store, sizes, where))


def test_trainer_without_a_cluster_refuses_it() -> None:
    for store in (None, "local", "device"):
        with pytest.raises(ConfigError, match="sends nothing"):
            asyncps.Trainer([Param(np.ones(3, "f4"))], "sgd", kvstore=store,
                            compression_params={"type": "2bit"})


def test_wrong_words_are_refused() -> None:
    def train(store: KVStore) -> None:
        for words, kind in (({"type": "3bit"}, ConfigError),
                            ({"type": "powersgd", "pull": True}, NotYetError)):
            with pytest.raises(kind):
                asyncps.Trainer([Param(np.ones(3, "f4"))], "sgd", kvstore=store,
                                compression_params=words)

    on_cluster(train, workers=1)
