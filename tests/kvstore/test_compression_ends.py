"""{"type": "none"}: keys travel as they are again, and what they have kept with their next push."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import asyncps
from asyncps import RowSparse
from asyncps.errors import AsyncPSError, ConfigError
from asyncps.initializer import Zero
from asyncps.kvstore import KVStore
from tests.support.cluster import on_cluster
from tests.trainer.params import Param

TWO = {"type": "2bit", "threshold": 0.5}
NONE = {"type": "none"}
SIZES = pytest.mark.parametrize("size", [5, 50_000], ids=["small", "large"])


def kept(store: KVStore, key: Any = "w") -> Any:
    return store._core.client.compression.coders[key].residual  # type: ignore[union-attr]


def ready(store: KVStore, size: int, dtype: Any = "f4", spec: Any = TWO) -> None:
    """Of each key 0.375 is kept; all values are zero."""
    store.init(["w", "v"], [np.zeros(size, dtype), np.zeros(size, dtype)])
    store.set_gradient_compression(spec)
    store.set_optimizer("test")
    store.pushpull(["w", "v"], [np.full(size, 0.375, dtype)] * 2,
                   out=[np.zeros(size, dtype), np.zeros(size, dtype)])
    assert (kept(store) == 0.375).all()


@SIZES
@pytest.mark.parametrize("dtype", ["f4", "f2"])
@pytest.mark.parametrize("verb", ["push", "lent", "pushpull", "list"])
@pytest.mark.parametrize("none", [NONE, None])
def test_what_was_kept_goes_with_the_next_push(
    size: int, dtype: str, verb: str, none: Any
) -> None:
    def work(store: KVStore) -> None:
        ready(store, size, dtype)
        store.set_gradient_compression(none)
        for turn in range(1, 4):  # of two workers: 0.375 once, and 0.25 a turn
            g = np.full(size, 0.25, dtype)
            out = np.zeros(size, dtype)
            if verb == "pushpull":
                store.pushpull("w", g, out=out)
            elif verb == "list":
                store.pushpull(["w", "v"], [g, g], out=[out, np.zeros(size, dtype)])
            else:
                store.push("w", g, copy=verb == "push").wait(10)
                store.pull("w", out=out)
            assert (out == 2 * (0.375 + 0.25 * turn)).all()
            assert (g == 0.25).all()
            assert kept(store) is None
        told = store.compression_report()["w"]
        assert (told["codec"], told["error_norm"]) == ("dense", 0)
        assert told["why"] == "no compression is set for it"
        assert told["bytes_before"] == 4 * size * np.dtype(dtype).itemsize
        assert (kept(store, "v") is None) is (verb == "list")
        if verb == "pushpull" and size == 5:
            assert store._core.worker.lanes.sent_bytes > 0  # as any that is small and dense

    on_cluster(work, transport="tcp")


def test_only_keys_that_are_named_end_and_may_begin_again() -> None:
    def work(store: KVStore) -> None:
        ready(store, 5)
        store.set_gradient_compression(NONE, keys="w")
        g = np.full(5, 0.25, "f4")
        w, v = store.pushpull(["w", "v"], [g, g], out=[np.zeros(5, "f4"), np.zeros(5, "f4")])
        assert (w == 0.625).all()
        assert (v == 0.5).all()  # of 0.625
        store.set_gradient_compression(TWO, keys="w")
        assert (store.pushpull("w", g, out=np.zeros(5, "f4")) == 0.625).all()
        assert (kept(store) == 0.25).all()

    on_cluster(work, workers=1)


@SIZES
def test_a_push_that_is_refused_later_gives_it_back(size: int) -> None:
    async def work() -> None:
        async with asyncps.connect("dist_sync") as store:
            await store.init("w", np.zeros(size, "f4"))
            await store.set_gradient_compression(TWO)
            await store.pushpull("w", np.full(size, 0.375, "f4"))
            await store.set_gradient_compression(NONE)
            core = store._core
            core.client.joining = asyncio.get_running_loop().create_future()
            handle = await store.push("w", np.full(size, 0.25, "f4"))
            with pytest.raises(AsyncPSError, match="push of a worker that has joined"):
                await handle
            core.client.joining = None
            assert (core.client.compression.coders["w"].residual == 0.375).all()  # type: ignore[union-attr]
            assert (await store.pushpull("w", np.full(size, 0.25, "f4")) == 0.625).all()

    asyncio.run(work())


def test_rows_take_along_what_is_left_of_them() -> None:
    def work(store: KVStore) -> None:
        store.init("t", Zero(), shape=(100, 3))
        store.set_gradient_compression(TWO)
        store.set_optimizer("test")

        def push(*rows: int) -> None:
            g = np.full((len(rows), 3), 0.25, "f4")
            store.push("t", RowSparse(rows, g, (100, 3))).wait(10)

        push(1, 70)
        store.set_gradient_compression(NONE)
        for _ in range(2):
            push(1, 2)
        found = store.row_sparse_pull("t", [1, 2, 70]).values
        assert (found == np.float32([[0.75], [0.5], [0]])).all()
        told = store.compression_report()["t"]
        assert told["codec"] == "dense"
        assert told["error_norm"] == pytest.approx(0.25 * 3**0.5)
        push(70)
        assert (store.row_sparse_pull("t", [70]).values == 0.5).all()
        assert store.compression_report()["t"]["error_norm"] == 0

    on_cluster(work, workers=1)


def test_the_momentum_of_dgc_ends_with_it() -> None:
    def work(store: KVStore) -> None:
        store.init("w", np.zeros(20_000, "f4"))
        store.set_optimizer("test")
        store.set_gradient_compression({"type": "dgc", "ratio": 0.5, "momentum": 0.5}, keys="w")
        with pytest.raises(ConfigError, match="has the momentum"):
            store.set_optimizer("sgd", momentum=0.9)
        store.push("w", np.ones(20_000, "f4"))
        store.set_gradient_compression(NONE, keys="w")
        # Half was sent; what the other half has kept is the sum of its momentum, and not that.
        assert (store.pushpull("w", np.zeros(20_000, "f4")) == 1).all()
        store.set_optimizer("sgd", momentum=0.9)

    on_cluster(work, workers=1)


def test_what_is_loaded_of_a_key_that_has_ended_goes_too(tmp_path: Path) -> None:
    def work(store: KVStore) -> None:
        ready(store, 5)
        store.set_gradient_compression(NONE)
        store.save(tmp_path / "c")
        g, expected = np.full(5, 0.25, "f4"), 2 * 0.625
        assert (store.pushpull("w", g, out=np.zeros(5, "f4")) == expected).all()
        store.load(tmp_path / "c")
        assert (kept(store) == 0.375).all()
        assert (store.pushpull("w", g, out=np.zeros(5, "f4")) == expected).all()

    on_cluster(work)


def test_nobody_is_warned_of_what_is_loaded_and_goes(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def work(store: KVStore) -> None:
        ready(store, 5)
        store.save(tmp_path / "c")
        store.set_gradient_compression(NONE)
        store.load(tmp_path / "c")
        assert "had not sent" not in caplog.text

    on_cluster(work, workers=1)


def test_other_words_than_none_are_told_by_the_type_alone() -> None:
    def train(store: KVStore) -> None:
        store.set_gradient_compression(NONE)
        params = {"w": Param(np.zeros(5, "f4"), np.zeros(5, "f4"))}
        with pytest.raises(ConfigError, match=r"expected type='none'; or set_gradient.*"
                           r"got type='2bit', "):
            asyncps.Trainer(params, "sgd", kvstore=store, compression_params=TWO)

    on_cluster(train, workers=1)


def test_pulls_come_as_they_are_again() -> None:
    def work(store: KVStore) -> None:
        third = np.full(50_000, 1 / 3, "f4")
        store.init("w", third)
        store.set_gradient_compression({"type": "f16", "pull": "f16"})
        assert store.pull("w")[0] != third[0]
        store.set_gradient_compression(NONE)
        assert store.pull("w")[0] == third[0]

    on_cluster(work, workers=1)


@pytest.mark.parametrize("where", [True, False], ids=["on the store", "at the workers"])
def test_a_trainer_goes_on_without_it(where: bool) -> None:
    def train(store: KVStore) -> None:
        params = {key: Param(np.zeros(size, "f4")) for key, size in (("w", 20_000), ("b", 3))}
        trainer = asyncps.Trainer(params, "sgd", {"learning_rate": 1.0}, kvstore=store,
                                  update_on_kvstore=where, compression_params=TWO)
        for turn in range(3):
            for param in params.values():
                param.grad = np.full_like(param.data, 0.25)
            if turn == 1:
                store.set_gradient_compression(NONE)
            trainer.step(1)
        for param in params.values():
            assert (param.data == -2 * 0.75).all()

    on_cluster(train)


@pytest.mark.parametrize("words", [{"type": "none", "pull": "f16"}, {"type": "None"}])
def test_it_has_no_options_and_one_spelling(words: Any) -> None:
    def work(store: KVStore) -> None:
        with pytest.raises(ConfigError, match=r"expected (type|f16, .*, none)"):
            store.set_gradient_compression(words)

    on_cluster(work, workers=1)


@pytest.mark.parametrize("words", [
    {"type": "2bit", "lr_scaled": True}, {"type": "dgc", "ratio": 0.5, "momentum": 0.5}
], ids=["lr_scaled", "momentum"])  # fmt: skip
@pytest.mark.parametrize("after", [NONE, {"type": "f16"}], ids=["none", "f16"])
def test_rules_that_count_for_nobody_forbid_nothing(words: Any, after: Any) -> None:
    """A schedule of the learning rate, and a momentum, are what such words do not go with."""
    schedule = asyncps.optim.lr.step(10, 0.5, base_lr=0.1)

    def work(store: KVStore) -> None:
        store.init("w", np.zeros(20_000, "f4"))
        store.set_gradient_compression(words, keys="w*")
        with pytest.raises(ConfigError):
            store.set_optimizer("sgd", learning_rate=schedule, momentum=0.9)
        store.set_gradient_compression(after)
        store.set_optimizer("sgd", learning_rate=schedule, momentum=0.9)

    on_cluster(work, workers=1)
