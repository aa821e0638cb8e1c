"""Other threads that push while a store is saved or loaded: what was not sent is in one piece."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

import asyncps
from asyncps import RowSparse
from asyncps.errors import AsyncPSError, ClusterError
from asyncps.initializer import Zero
from asyncps.kvstore import KVStore
from asyncps.roles.coders import Coders
from asyncps.tensor.feedback import KeyCoder
from asyncps.tensor.rowfeedback import RowCoder
from tests.support.cluster import on_cluster

SIZE = 5000
HALF = {"type": "topk", "ratio": 0.5, "small_bytes": 0}
SPARSE = RowSparse([1, 30], np.arange(1, 7, dtype="f4").reshape(2, 3), (50, 3))


def ready(store: KVStore) -> None:
    store.init("w", np.zeros(SIZE, "f4"))
    store.init("t", Zero(), shape=(50, 3))
    store.set_gradient_compression(HALF)
    store.push("w", np.arange(SIZE, dtype="f4")).wait()
    store.push("t", SPARSE).wait()


def kept(store: Any) -> list[Any]:
    coders = store._core.client.compression.coders
    ids, rests = coders["t"].rests.items()
    return [coders["w"].residual.tolist(), ids.tolist(), rests.tolist()]


@pytest.mark.parametrize("verb", ["save", "load"])
@pytest.mark.parametrize("key", ["w", "t"])
def test_a_push_that_encodes_already_is_waited_for(
    tmp_path: Path, key: str, verb: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoding, looked = threading.Event(), threading.Event()
    slow: list[int] = []  # the thread that is to be slow
    kind: Any = KeyCoder if key == "w" else RowCoder
    name = "encode" if key == "w" else "encode_rows"
    encode = getattr(kind, name)

    def work(store: KVStore) -> None:
        ready(store)
        client = store._core.client
        store.save(tmp_path / "first")

        def slowly(*words: Any, **more: Any) -> Any:
            if threading.get_ident() in slow:
                encoding.set()
                while not (looked.is_set() or client.encodings.waited_for):
                    pass
            return encode(*words, **more)

        def watched(what: Any) -> Any:
            def look(*words: Any) -> Any:
                looked.set()
                return what(*words)
            return look

        monkeypatch.setattr(kind, name, slowly)
        monkeypatch.setattr(Coders, "kept", watched(Coders.kept))
        monkeypatch.setattr(Coders, "take", watched(Coders.take))
        said: list[str] = []

        def push() -> None:
            slow.append(threading.get_ident())
            try:
                store.push(key, SPARSE if key == "t" else np.ones(SIZE, "f4")).wait()
            except ClusterError as error:
                said.append(error.message)

        before = kept(store)
        other = threading.Thread(target=push)
        other.start()
        assert encoding.wait(20)
        if verb == "save":
            store.save(tmp_path / "second")
        else:
            store.load(tmp_path / "first")
        other.join()
        assert said == [f"push while {verb} is under way"]
        if verb == "load":
            assert kept(store) == before
            return
        found = load_file(tmp_path / "second" / "residuals.safetensors")
        values = kept(store)
        assert [found["w/0"].tolist(), found["t/0"].tolist()] == [values[0], values[2]]

    on_cluster(work, workers=1)


def test_a_push_while_a_store_is_saved_changes_nothing() -> None:
    """It would change what is being written."""

    def work(store: KVStore) -> None:
        ready(store)
        client: Any = store._core.client
        before = kept(store)
        views = client.compression.coders.kept()  # as a save has them
        told = store.compression_report()
        for still in ("save", "load"):
            client.still = still
            for key, value in (("w", np.ones(SIZE, "f4")), ("t", SPARSE)):
                handle = store.push(key, value)
                with pytest.raises(ClusterError, match=f"push while {still} is under way"):
                    handle.wait()
                with pytest.raises(ClusterError, match=f"pushpull while {still} is under way"):
                    store.pushpull(key, value)
            with pytest.raises(ClusterError, match="under way"):
                store.push(["w", "t"], [np.ones(SIZE, "f4"), SPARSE]).wait()
        client.still = ""
        assert kept(store) == before
        assert views["w"].residual.tolist() == before[0]
        assert store.compression_report() == told
        store.push("w", np.ones(SIZE, "f4")).wait()
        assert kept(store) != before

    on_cluster(work, workers=1)


def test_nor_does_one_of_the_await_face() -> None:
    async def work() -> None:
        async with asyncps.connect("dist_sync") as store:
            await store.init("w", np.zeros(SIZE, "f4"))
            await store.set_gradient_compression(HALF)
            client: Any = store._core.client
            client.still = "save"
            handle = await store.push("w", np.ones(SIZE, "f4"))
            with pytest.raises(AsyncPSError, match="push while save is under way"):
                await handle
            with pytest.raises(AsyncPSError, match="pushpull while save is under way"):
                await store.pushpull("w", np.ones(SIZE, "f4"))
            client.still = ""
            assert client.compression.coder_of("w") is None
            await store.push("w", np.ones(SIZE, "f4"))
            assert client.compression.coder_of("w").residual.sum() == SIZE / 2

    asyncio.run(work())
