"""What a codec keeps beside, and how often it was asked, is that codec's alone after a load."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from asyncps.errors import CheckpointError
from asyncps.kvstore import KVStore
from asyncps.tensor import codecs
from asyncps.tensor.feedback import KeyCoder
from tests.checkpoints.runs import begin, same, train
from tests.support.cluster import on_cluster

DGC = {"type": "dgc", "ratio": 0.1, "warmup": 8, "small_bytes": 0}
POWER = {"type": "powersgd", "rank": 2, "small_bytes": 0}
TOPK = {"type": "topk", "ratio": 0.1, "small_bytes": 0}
RANDOMK = {"type": "randomk", "ratio": 0.5, "small_bytes": 0}


@contextlib.contextmanager
def told(path: Path) -> Iterator[Any]:
    """What the meta of a checkpoint says of what was not sent, to be changed."""
    file = path / "checkpoint.json"
    whole = json.loads(file.read_text())
    yield whole["meta"]["residuals"]
    file.write_text(json.dumps(whole))


def coders(store: KVStore) -> Any:
    client: Any = store._core.client
    return client.compression.coders


def saved(path: Path, spec: Any, turns: int = 5, workers: int = 2) -> None:
    def work(store: KVStore) -> None:
        store.set_optimizer("sgd", learning_rate=0.1)
        store.set_gradient_compression(spec)
        begin(store)
        train(store, range(turns))
        store.save(path)

    on_cluster(work, workers=workers, servers=2, order="rank")


@pytest.mark.parametrize("first", ["load", "compression"])
@pytest.mark.parametrize("spec", [POWER, {**POWER, "start": 7}, DGC],
                         ids=["powersgd", "powersgd that starts", "dgc"])
@pytest.mark.parametrize("names", [True, False], ids=["names", "before there were names"])
def test_a_run_goes_on_as_if_uninterrupted(
    tmp_path: Path, spec: Any, first: str, names: bool
) -> None:
    def run(store: KVStore) -> list[Any]:
        store.set_optimizer("sgd", learning_rate=0.1)
        store.set_gradient_compression(spec)
        begin(store)
        return train(store, range(9))

    def go_on(store: KVStore) -> list[Any]:
        if first == "load":
            store.load(tmp_path / "c")
            store.set_gradient_compression(spec)
        else:
            store.set_gradient_compression(spec)
            begin(store)
            train(store, range(100, 103))  # what was there before is gone
            store.load(tmp_path / "c")
        return train(store, range(5, 9))

    saved(tmp_path / "c", spec)
    if not names:
        with told(tmp_path / "c") as meta:
            del meta["codecs"]
    expected = on_cluster(run, servers=2, order="rank")[0]
    for found in on_cluster(go_on, servers=2, order="rank"):
        same(found, expected)


@pytest.mark.parametrize("names", [True, False], ids=["names", "before there were names"])
def test_the_momentum_of_dgc_ends_under_another_codec(tmp_path: Path, names: bool) -> None:
    saved(tmp_path / "c", DGC)
    if not names:
        with told(tmp_path / "c") as meta:
            del meta["codecs"]

    def work(store: KVStore) -> None:
        store.set_gradient_compression(TOPK)
        store.load(tmp_path / "c")
        assert coders(store)["two"].extra is not None
        train(store, range(1, 3))
        assert all(coder.extra is None for _, coder in coders(store))
        store.save(tmp_path / "d")
        store.load(tmp_path / "d")
        store.set_gradient_compression(DGC)
        store.push("two", np.ones((700, 300), "f4")).wait()
        assert coders(store)["two"].pushes == 1

    on_cluster(work, order="rank")
    assert not [name for name in load_file(tmp_path / "d" / "residuals.safetensors")
                if name.endswith(".extra")]
    with told(tmp_path / "d") as meta:
        assert ["two", "topk"] in meta["codecs"]


@pytest.mark.parametrize("names", [True, False], ids=["names", "before there were names"])
def test_pushes_that_drew_seeds_are_no_warm_up(tmp_path: Path, names: bool) -> None:
    saved(tmp_path / "c", RANDOMK, turns=20)
    if not names:
        with told(tmp_path / "c") as meta:
            del meta["codecs"]

    def work(store: KVStore) -> None:
        store.load(tmp_path / "c")
        assert coders(store)["two"].pushes == 20
        store.set_gradient_compression({**DGC, "ratio": 0.001})
        store.push("two", np.ones((700, 300), "f4")).wait()
        assert coders(store)["two"].pushes == 1
        # The first of eight pushes of a warm-up sends a quarter, 8 bytes for each element.
        assert store.compression_report()["two"]["bytes_sent"] > 700 * 300

    on_cluster(work, order="rank")


def test_ranks_that_say_different_codecs(tmp_path: Path) -> None:
    """One has not pushed since another codec was set: what is kept beside is nobody's."""

    def save(store: KVStore) -> None:
        store.set_optimizer("sgd", learning_rate=0.1)
        store.init("w", np.zeros(100, "f4"))
        for spec in (RANDOMK, DGC):
            store.set_gradient_compression(spec)
            if spec is RANDOMK or store.rank:
                store.push("w", np.ones(100, "f4")).wait()
        store.save(tmp_path / "c")

    def load(store: KVStore) -> None:
        store.load(tmp_path / "c")
        store.set_gradient_compression(DGC)
        store.push("w", np.ones(100, "f4")).wait()
        assert coders(store)["w"].pushes == 1

    on_cluster(save, type="dist_async")
    on_cluster(load, type="dist_async")


@pytest.mark.parametrize("wrong", [
    7, [["two"]], [["two", 3]], [["two", "x" * 65]], [[None, "dgc"]],
])  # fmt: skip
def test_names_that_cannot_be_are_refused(tmp_path: Path, wrong: Any) -> None:
    saved(tmp_path / "c", DGC, turns=1)
    with told(tmp_path / "c") as meta:
        meta["codecs"] = wrong

    def load(store: KVStore) -> None:
        with pytest.raises(CheckpointError, match="no store has written: what was not sent"):
            store.load(tmp_path / "c")

    on_cluster(load)


def test_a_coder_forgets_what_is_of_another_codec() -> None:
    size, g = 1000, np.ones(1000, "f4")

    def encode(coder: KeyCoder, spec: Any) -> int:
        codec = codecs.made(codecs.checked(spec))
        return sum(each.nbytes for each in coder.encode(
            codec, g, 4 * size, [(0, size)], lambda n: np.empty(n, np.uint8), [0], shape=(size,)))

    kept, beside = np.zeros(size, "f4"), np.full(size, 9, "f4")
    coder = KeyCoder(size)
    coder.restore(kept.copy(), 7, None, beside.copy(), "dgc")
    encode(coder, {**DGC, "ratio": 0.001})
    assert coder.pushes == 8
    encode(coder, TOPK)
    assert coder.extra is None
    assert coder.codec == "topk"
    coder.restore(kept.copy(), 500, None, None, "randomk")
    # A quarter of all, sent as an index and a value.
    assert encode(coder, {**DGC, "ratio": 0.001, "warmup": 100}) == 250 * 8
    coder.restore(kept.copy(), 7, None, beside.copy(), "powersgd")  # as many elements by chance
    encode(coder, DGC)
    assert coder.pushes == 1
    assert coder.extra is not None
    assert np.abs(coder.extra).max() <= 1
