"""What had not been sent, loaded where nobody sends it: a line in the log tells."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import pytest

import asyncps
from asyncps.kvstore import KVStore
from tests.support.cluster import on_cluster


def test_loading_what_nobody_sends_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def save(store: KVStore) -> None:
        store.init("w", np.zeros(5, "f4"))
        store.set_gradient_compression({"type": "2bit"}, keys="w")
        store.push("w", np.full(5, 0.3, "f4"))
        store.barrier()
        store.save(tmp_path / "c")
        store.load(tmp_path / "c")  # who compresses hears nothing

    def load(store: KVStore) -> None:
        store.load(tmp_path / "c")
        store.set_gradient_compression({"type": "2bit"}, keys="w")
        assert (store.pushpull("w", np.full(5, 0.2, "f4")) == 0.5).all()

    def told() -> list[str]:
        lines = [each.getMessage() for each in caplog.records if "not sent" in each.getMessage()]
        caplog.clear()
        return lines

    with caplog.at_level(logging.WARNING):
        on_cluster(save, workers=1)
        assert not told()
        on_cluster(load, workers=1)
        assert told() == [
            "worker 0 has what it had not sent of 1 compressed keys, such as 'w', from a "
            "checkpoint, and sends it when a compression is set for them "
            "(set_gradient_compression)"]
        with asyncps.create("local") as store:
            store.load(tmp_path / "c")
        assert told() == ["a store of one process sends nothing: it drops what compressed keys had "
                          "not sent, which this checkpoint has"]
