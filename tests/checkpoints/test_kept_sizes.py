"""What the worker that reads a checkpoint says of sizes is compared with the keys: no memory is
taken for what cannot be."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from asyncps import RowSparse
from asyncps.errors import CheckpointError, RemoteProtocolError, UnknownKey
from asyncps.initializer import Zero
from asyncps.kvstore import KVStore
from asyncps.protocol.parcels import KeptKey
from asyncps.roles import regiving
from tests.support.cluster import on_cluster

BIG = 1 << 32
WRONG = {
    "elements": [KeptKey("w", 11, 0)],
    "many elements": [KeptKey("w", BIG, 0)],
    "extra": [KeptKey("w", 12, 0, 4 * 12 + 1)],
    "much extra": [KeptKey("w", 0, 0, BIG)],
    "rows of a dense key": [KeptKey("w", 12, 0, 9, 4)],
    "a dense table": [KeptKey("t", 150, 0)],
    "another width": [KeptKey("t", 12, 0, 9, 4)],
    "many rows": [KeptKey("t", 3 * (50 * 1024 + 1), 0, 3 * (50 * 1024 + 1), 3)],
    "a table without a width": [KeptKey("t", 0, 0, 3)],
    "twice": [KeptKey("w", 12, 0), KeptKey("w", 12, 0)],
    "behind a good one": [KeptKey("w", 12, 1, 48), KeptKey("t", 6, 0, 6, 3), KeptKey("x", 8, 0)],
}


class Told:
    """Stands for a `Carrier` whose other side says something, and sends zeros."""

    keys: list[KeptKey] = []

    def __init__(self, *_: Any, **more: Any) -> None:
        pass

    def __enter__(self) -> Told:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    async def begin(self) -> list[KeptKey]:
        return self.keys

    async def rest(self, keys: Any, use: Any) -> None:
        total = regiving.Stream(keys).total
        assert total < 1 << 20
        await use(0, memoryview(bytearray(total)))


def collected(store: Any, keys: list[KeptKey]) -> Any:
    core = store._core
    Told.keys = keys
    return store._runtime.run(lambda: regiving.collect(core.worker, core.client, 0, 1))


@pytest.fixture(autouse=True)
def _told(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    if "said" in request.fixturenames:
        monkeypatch.setattr(regiving, "Carrier", Told)


@pytest.mark.parametrize("said", WRONG)
def test_what_does_not_fit_its_key_is_refused(said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[Any] = []
    monkeypatch.setattr(regiving, "_room", lambda keys: taken.append(keys) or ({}, []))

    def work(store: KVStore) -> None:
        store.init(["w", "x"], [np.zeros((3, 4), "f4"), np.zeros(7, "f2")])
        store.init("t", Zero(), shape=(50, 3))
        with pytest.raises(RemoteProtocolError, match="what was not sent"):
            collected(store, WRONG[said])

    on_cluster(work, workers=1)
    assert not taken


@pytest.mark.parametrize("said", ["right"])
def test_what_fits_is_taken(said: str) -> None:
    keys = [KeptKey("w", 12, 1, 48, 0, "dgc"), KeptKey("x", 0, 5), KeptKey("t", 6, 0, 6, 3)]

    def work(store: KVStore) -> None:
        store.init(["w", "x"], [np.zeros((3, 4), "f4"), np.zeros(7, "f2")])
        store.init("t", Zero(), shape=(50, 3))
        found = collected(store, keys)
        assert [found[each.key].told(each.key) for each in keys] == keys
        assert collected(store, [KeptKey("t", 0, 9)])["t"].pushes == 9
        assert collected(store, []) == {}
        with pytest.raises(UnknownKey):
            collected(store, [KeptKey("no such key", BIG, 0)])

    on_cluster(work, workers=1)


def test_keys_that_this_worker_has_not_used_yet_are_asked_for(tmp_path: Path) -> None:
    """All of a store that is made by the load."""

    def save(store: KVStore) -> None:
        store.init("w", np.zeros(12, "f4"))
        store.init("t", Zero(), shape=(50, 3))
        store.set_gradient_compression({"type": "2bit", "threshold": 0.5, "small_bytes": 0})
        store.push("w", np.full(12, 0.2, "f4"))
        store.push("t", RowSparse([3], np.full((1, 3), 0.2, "f4"), (50, 3)))
        store.save(tmp_path / "c")

    def load(store: KVStore) -> Any:
        store.load(tmp_path / "c")
        client: Any = store._core.client
        coders = client.compression.coders
        return coders["w"].residual.tolist(), coders["t"].rests.items()[0].tolist()

    on_cluster(save, workers=3)
    assert on_cluster(load, workers=3) == [([np.float32(0.2)] * 12, [3])] * 3


def test_a_checkpoint_with_more_than_a_codec_keeps_is_refused(tmp_path: Path) -> None:
    def work(store: KVStore) -> None:
        store.init("w", np.zeros(5, "f4"))
        store.set_gradient_compression({"type": "2bit", "small_bytes": 0})
        store.push("w", np.full(5, 0.2, "f4"))
        store.barrier()
        if store.rank == 0:
            store._core.client.compression.coders["w"].extra = np.zeros(20, "f4")  # type: ignore
        store.save(tmp_path / "c")
        store.load(tmp_path / "c")
        store.barrier()
        if store.rank == 0:
            file = tmp_path / "c" / "residuals.safetensors"
            save_file({**load_file(file), "w/0.extra": np.zeros(21, "f4")}, file)
        store.barrier()
        with pytest.raises(CheckpointError, match=r"does not fit it.*at most 20"):
            store.load(tmp_path / "c")

    on_cluster(work)
