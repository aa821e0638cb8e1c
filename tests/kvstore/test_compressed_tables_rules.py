"""Rules, refusals and rates of compressed row-sparse keys."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest

import asyncps
from asyncps import RowSparse
from asyncps.errors import AsyncPSError, NotYetError, TensorError
from asyncps.initializer import Zero
from asyncps.kvstore import KVStore
from tests.kvstore.compressed_tables import all_rows, kept_of
from tests.support.cluster import on_cluster

SHAPE = (50, 3)
TWO = {"type": "2bit", "threshold": 0.5}
BAD = (np.nan, np.inf, -np.inf)


def some(value: float, ids: Any = (1, 30), dtype: Any = "f4") -> RowSparse:
    return RowSparse(list(ids), np.full((len(ids), 3), value, dtype), SHAPE)


def ready(store: KVStore, spec: dict[str, Any] = TWO, keys: Any = None, dtype: Any = "f4") -> None:
    store.init("t", Zero(), shape=SHAPE, dtype=dtype)
    store.set_gradient_compression(spec, keys=keys)
    store.set_optimizer("test")


@pytest.mark.parametrize("keys", [None, "t*", ["t"], "t"])
def test_any_rule_that_names_a_table_encodes_it(keys: Any) -> None:
    def work(store: KVStore) -> None:
        ready(store, keys=keys)
        for sent in (0, 0.5):
            store.push("t", some(0.3))
            assert (store.row_sparse_pull("t", [1, 30]).values == sent).all()
        assert store.compression_report()["t"]["codec"] == "2bit"

    on_cluster(work, workers=1)


def test_int_keys_are_named_too() -> None:
    def work(store: KVStore) -> None:
        store.init(5, Zero(), shape=SHAPE)
        store.set_gradient_compression({"type": "f16"})
        store.set_gradient_compression(TWO, keys=5)
        store.set_optimizer("test")
        store.push(5, some(0.7))
        assert (store.row_sparse_pull(5, [1, 30]).values == 0.5).all()

    on_cluster(work, workers=1)


def test_what_is_kept_stays_when_the_codec_changes() -> None:
    def work(store: KVStore) -> None:
        ready(store)
        store.push("t", some(0.3, [1, 30, 49]))
        store.set_gradient_compression({"type": "f16", "small_bytes": 0})
        store.push("t", some(0.2))
        assert np.allclose(store.row_sparse_pull("t", [1, 30]).values, 0.5, atol=1e-3)
        assert (store.row_sparse_pull("t", [49]).values == 0).all()
        assert np.allclose(kept_of(store, "t")[49], 0.3)

    on_cluster(work, workers=1)


def test_without_error_feedback_what_is_not_sent_is_lost() -> None:
    def work(store: KVStore) -> None:
        ready(store, {**TWO, "error_feedback": False})
        for _ in range(3):
            store.push("t", some(0.4))
        assert not all_rows(store).any()
        assert store.compression_report()["t"]["error_norm"] == 0

    on_cluster(work, workers=1)


@pytest.mark.parametrize("spec", [
    {"type": "topk", "ratio": 0.1}, {"type": "threshold", "threshold": 2}, {"type": "randomk"},
], ids=str)
@pytest.mark.parametrize("dtype", ["f4", "f2"])
def test_more_rows_than_a_server_decodes_of_a_frame_go_as_they_are(
    spec: dict[str, Any], dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With what was kept of them; and of as many as it does decode nothing changes."""
    most = [0, 1, 2, 3]

    def work(store: KVStore) -> None:
        ready(store, {**spec, "small_bytes": 0}, dtype=dtype)
        store.push("t", some(0.5, most, dtype))
        assert np.count_nonzero(kept_of(store, "t")) == (
            12 if spec["type"] == "threshold" else 10)
        store.push("t", some(1, [*most, 4], dtype))
        expected = np.zeros(SHAPE)
        expected[most], expected[4] = 1.5, 1
        assert (all_rows(store) == expected).all()
        assert store.compression_report()["t"]["error_norm"] == 0
        # One row more of another server is no reason.
        store.push("t", some(0.5, [*most, 49], dtype))
        assert np.count_nonzero(kept_of(store, "t")) > 12

    monkeypatch.setattr("asyncps.roles.codingrows.MAX_DECODED_BYTES", 4 * 4 * SHAPE[1])
    on_cluster(work, workers=1, servers=2)


def test_dgc_is_refused_where_a_table_is_named() -> None:
    def work(store: KVStore) -> None:
        ready(store, {"type": "dgc"})
        told = store.compression_report()["t"]
        assert (told["codec"], told["why"]) == ("dense", "dgc is of dense keys")
        store.push("t", some(0.3))
        assert store.compression_report()["t"]["bytes_sent"] > told["bytes_sent"] == 0
        assert np.allclose(store.row_sparse_pull("t", [1, 30]).values, 0.3)
        for keys in ("t*", ["t"]):
            store.set_gradient_compression({"type": "dgc"}, keys=keys)
            with pytest.raises(NotYetError, match="dgc of row-sparse keys \\('t'\\)"):
                store.push("t", some(0.3))
        store.set_gradient_compression(TWO, keys=["t"])
        store.push("t", some(0.7))
        assert np.allclose(store.row_sparse_pull("t", [1, 30]).values, 0.8)

    on_cluster(work, workers=1)


# --------------------------------------------------------------------------------- not finite


@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("spec", [TWO, {"type": "topk"}], ids=["encoded", "as they are"])
@pytest.mark.parametrize("dtype", ["f4", "f2"])
def test_nan_is_refused_by_key_and_rank_and_nothing_is_changed(
    bad: float, spec: dict[str, Any], dtype: str
) -> None:
    def work(store: KVStore) -> None:
        store.init("d", np.zeros(5, dtype))
        ready(store, {**spec, "small_bytes": 0}, keys=["t", "d"], dtype=dtype)
        store.push(["d", "t"], [np.full(5, 0.4, dtype), some(0.4, dtype=dtype)])
        store.set_gradient_compression(spec, keys=["t", "d"])
        before, table = kept_of(store, "t"), all_rows(store)
        dense = store._core.client.compression.coders["d"].residual.copy()
        wrong = some(1, dtype=dtype)
        wrong.values[1, 2] = bad
        for _ in range(2):
            with pytest.raises(TensorError, match="not finite") as raised:
                store.push(["d", "t"], [np.ones(5, dtype), wrong])
            assert (raised.value.key, raised.value.rank) == ("t", store.rank)
        assert np.array_equal(kept_of(store, "t"), before)
        assert np.array_equal(store._core.client.compression.coders["d"].residual, dense)
        store.barrier()
        assert np.array_equal(all_rows(store), table)

    on_cluster(work)


@pytest.mark.parametrize("type", ["dist_sync", "dist_async"])
@pytest.mark.parametrize("order", ["arrival", "rank"])
def test_a_round_with_a_nan_is_skipped_at_every_server(type: str, order: str) -> None:
    """Even at the one that keeps no row of the push that is not finite."""

    def work(store: KVStore) -> None:
        ready(store, {**TWO, "nonfinite": "skip"})
        store.push("t", some(0.7))
        store.barrier()
        before = all_rows(store)
        assert before.any()
        store.barrier()
        bad = some(np.nan, [2])
        store.push("t", bad if store.rank == 0 else some(5, [1, 2, 30]))
        store.barrier()
        now = all_rows(store)
        if type == "dist_sync":
            assert np.array_equal(now, before)
        else:  # that push alone is dropped
            assert (now[[1, 2, 30]] - before[[1, 2, 30]] == 0.5).all()
        store.barrier()
        assert np.allclose(kept_of(store, "t")[1], 0.2 if store.rank == 0 else 4.7)
        store.push("t", some(0.4))
        store.barrier()
        assert (all_rows(store)[[1, 30]] > before[[1, 30]]).any()
        assert store.compression_report()["t"]["skipped"] == (store.rank == 0)

    on_cluster(work, type=type, order=order)


# -------------------------------------------------------------------------------- put back, rates


@pytest.mark.parametrize("spec", [TWO, {"type": "topk"}], ids=["encoded", "as it is"])
def test_a_push_that_is_refused_later_is_put_back(spec: dict[str, Any]) -> None:
    async def work() -> None:
        async with asyncps.connect("dist_sync") as store:
            await store.init("t", Zero(), shape=SHAPE)
            await store.set_gradient_compression(spec)
            core = store._core
            core.client.joining = asyncio.get_running_loop().create_future()
            handle = await store.push("t", some(0.9))
            with pytest.raises(AsyncPSError, match="push of a worker that has joined"):
                await handle
            core.client.joining = None
            coder: Any = core.client.compression.coders["t"]
            ids, kept = coder.rests.items()
            assert ids.tolist() == [1, 30]
            assert np.allclose(kept, 0.9)
            told = store.compression_report()["t"]
            assert (told["bytes_before"], told["bytes_sent"]) == (0, 0)
            found = await store.pushpull("t", some(0.1))
            assert np.allclose(found.values, 0.5 if spec is TWO else 1.0)

    asyncio.run(work())


def test_what_is_kept_follows_the_learning_rate() -> None:
    def work(store: KVStore) -> None:
        ready(store, {**TWO, "lr_scaled": True})
        store.set_optimizer("sgd", learning_rate=0.1)
        store.push("t", some(0.02))
        store.row_sparse_pull("t", [1])
        store.set_hyperparameters(learning_rate=0.01)
        store.push("t", some(0.3))  # and 0.2 of before
        assert np.allclose(store.row_sparse_pull("t", [1, 30]).values, -0.005)
        assert np.allclose(kept_of(store, "t"), 0, atol=1e-6)

    on_cluster(work, workers=1)


def test_pulled_rows_are_as_they_are() -> None:
    def work(store: KVStore) -> None:
        ready(store, {"type": "topk", "pull": "f16"})
        store.assign("t", some(1 / 3))
        assert (store.row_sparse_pull("t", [1]).values == np.float32(1 / 3)).all()

    on_cluster(work, workers=1)
