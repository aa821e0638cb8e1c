"""Where a checkpoint may stand: nothing of the user's is replaced or removed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import asyncps
from asyncps.errors import CheckpointError, ConfigError, TensorError
from tests.support.cluster import on_cluster


def on_both(work: Any) -> None:
    on_cluster(work, workers=1, servers=1)
    store = asyncps.create("local")
    work(store)


def test_nothing_may_stand_in_a_checkpoint(tmp_path: Path) -> None:
    def work(store: Any) -> None:
        folder = tmp_path / store.type
        folder.mkdir()
        store.init("w", np.zeros(3, "f4"))
        store.save(folder / "run")
        with pytest.raises(CheckpointError, match="inside of another"):
            store.save(folder / "run" / "epoch-1")
        with pytest.raises(CheckpointError, match="inside of another"):
            store.save(folder / "run" / "deeper" / ".." / "epoch-1")
        notes = folder / "run" / "NOTES.txt"
        notes.write_text("mine")
        with pytest.raises(CheckpointError, match=r"to be replaced.*NOTES\.txt"):
            store.save(folder / "run")
        assert notes.read_text() == "mine"
        notes.unlink()
        store.save(folder / "run")
        (folder / "plain").mkdir()
        (folder / "plain" / "file").write_text("mine")
        with pytest.raises(CheckpointError, match="something else stands where"):
            store.save(folder / "plain")
        assert sorted(path.name for path in folder.iterdir()) == ["plain", "run"]

    on_both(work)


@pytest.mark.parametrize("path", [None, 5, b"bytes", "", "nul\0x", "\ud800s"])
def test_a_path_that_is_none_is_refused(path: Any) -> None:
    def work(store: Any) -> None:
        store.init("w", np.zeros(3, "f4"))
        store.set_optimizer("sgd")
        for verb in (store.save, store.load, store.save_optimizer_states,
                     store.load_optimizer_states):
            with pytest.raises(ConfigError):
                verb(path)

    on_both(work)


@pytest.mark.parametrize("key", ["x" * 1025, "\ud800", 1 << 70])
def test_a_key_that_no_store_of_a_cluster_has_is_refused_here_too(key: Any) -> None:
    store = asyncps.create("local")
    with pytest.raises((TensorError, ConfigError)):
        store.init(key, np.zeros(3, "f4"))
    with pytest.raises((TensorError, ConfigError)):
        store.init(key, asyncps.initializer.Zero(), shape=(5, 2))


def test_rows_that_are_too_large_are_refused_here_too() -> None:
    store = asyncps.create("local")
    with pytest.raises(TensorError, match="too large"):
        store.init("t", asyncps.initializer.Zero(), shape=(5, 1 << 30))
