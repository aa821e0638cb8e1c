"""A rule that names a key looks at its gradients, though they travel as they are, such as small."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import asyncps
from asyncps.errors import TensorError
from asyncps.initializer import Zero
from asyncps.kvstore import KVStore
from asyncps.roles.lane import Lanes
from asyncps.tensor.rowsparse import RowSparse
from tests.kvstore.compressed import by_turns
from tests.kvstore.scenarios import BF16
from tests.kvstore.test_nonfinite import skip_a_slab_whole
from tests.support.cluster import on_cluster
from tests.trainer.params import Param

RAISES = {"type": "f16"}
SKIPS = {"type": "f16", "nonfinite": "skip"}
# A row of a slab, and a chunk that is below 64 KiB.
SIZES = pytest.mark.parametrize("size", [5, 10_000], ids=["row", "chunk"])
DTYPES = pytest.mark.parametrize("dtype", ["f4", "f2", BF16], ids=["f32", "f16", "bf16"])
BAD = (np.nan, np.inf, -np.inf)


def with_bad(size: int, dtype: Any = "f4", value: float = np.nan) -> Any:
    g = np.ones(size, dtype)
    g[-2] = value
    return g


@SIZES
@DTYPES
@pytest.mark.parametrize("value", BAD)
@pytest.mark.parametrize("transport", ["memory", "tcp"])  # over tcp there are lanes
def test_it_is_refused_by_key_and_rank_and_nothing_is_sent(
    size: int, dtype: Any, value: float, transport: str
) -> None:
    def work(store: KVStore) -> None:
        keys = ["w", "other"]
        store.init(keys, [np.zeros(size, dtype)] * 2)
        store.set_gradient_compression(RAISES)
        bad, good = with_bad(size, dtype, value), np.ones(size, dtype)
        words = f"key 'w'.*rank {store.rank}.*1 of {size} values, the first at {size - 2}"
        for call in (
            lambda: store.push("w", bad),
            lambda: store.push("w", bad, copy=False),
            lambda: store.pushpull("w", bad, out=np.zeros(size, dtype)),
            lambda: store.push(keys, [bad, good]),
            lambda: store.pushpull(keys, [bad, good]),
        ):
            with pytest.raises(TensorError, match=words):
                call()
        for got in store.pushpull(keys, [good, good.copy()]):
            assert (got == 2).all()

    on_cluster(work, transport=transport)


def test_several_devices_and_keys_that_are_beside_compressed_ones_are_looked_at() -> None:
    def work(store: KVStore) -> None:
        store.init(["w", "large"], [np.zeros(5, "f4"), np.zeros(50_000, "f4")])
        store.set_gradient_compression(RAISES)
        good = np.ones(50_000, "f4")
        with pytest.raises(TensorError, match="key 'w'"):
            store.push(["large", "w"], [good, [np.ones(5, "f4"), with_bad(5)]])
        assert store._core.client.compression.coder_of("large") is None
        assert store.compression_report()["w"]["bytes_sent"] == 0

    on_cluster(work, workers=1)


def test_dense_keys_beside_rows_are_looked_at() -> None:
    def work(store: KVStore) -> None:
        store.init("t", Zero(), shape=(10, 3))
        store.init("w", np.zeros(5, "f4"))
        store.set_gradient_compression(SKIPS)
        rows = RowSparse([1], np.ones((1, 3), "f4"), shape=(10, 3))
        store.push(["t", "w"], [rows, np.ones(5, "f4") if store.rank else with_bad(5)])
        assert (store.pull("w") == 0).all()
        assert (store.row_sparse_pull("t", [1]).values == 2).all()
        store.set_gradient_compression(RAISES)
        with pytest.raises(TensorError, match="key 'w'"):
            store.push(["t", "w"], [rows, with_bad(5)])

    on_cluster(work)


def test_keys_that_no_rule_names_and_whose_compression_has_ended_are_not() -> None:
    def work(store: KVStore) -> None:
        keys = ["named", "not named", "ended", "ints"]
        store.init(keys, [*[np.zeros(5, "f4")] * 3, np.zeros(5, "i4")])
        store.set_gradient_compression(RAISES, keys=["named", "ended", "ints"])
        store.set_gradient_compression({"type": "none"}, keys=["ended"])
        bad = with_bad(5)
        _, *others = store.pushpull(keys, [np.ones(5, "f4"), bad, bad.copy(), np.ones(5, "i4")])
        assert np.isnan(others[0][3])
        assert np.isnan(others[1][3])
        with pytest.raises(TensorError, match="key 'named'"):
            store.push(keys, [bad, bad, bad, np.ones(5, "i4")])
        store.set_gradient_compression({"type": "none"})
        store.push("named", bad)

    on_cluster(work, workers=1)


def test_vectors_of_powersgd_are_looked_at() -> None:
    def work(store: KVStore) -> None:
        store.init("vector", np.zeros(70_000, "f4"))
        store.set_gradient_compression({"type": "powersgd", "nonfinite": "skip"})
        assert store.compression_report()["vector"]["codec"] == "dense"
        bad = with_bad(70_000)
        assert (store.pushpull("vector", bad if store.rank else np.ones(70_000, "f4")) == 0).all()
        assert (store.pushpull("vector", np.ones(70_000, "f4")) == 2).all()

    on_cluster(work, settings={"chunk_bytes": 65536})


# Of these "x" is encoded, and of "free" nobody looks at the gradients.
KEYS = {"a": 3, "b": 7, "x": 5, "free": 4, "c": 1, "chunk": 10_000, "large": 20_000}


def is_bad(rank: int, turn: int, key: str) -> bool:
    """Most rounds of most keys have nobody; some have one, or more."""
    return np.random.default_rng([rank, turn, list(KEYS).index(key)]).random() < 0.15


def rounds(store: KVStore) -> None:
    keys = list(KEYS)
    store.init(keys, [np.zeros(size, "f4") for size in KEYS.values()])
    store.set_gradient_compression({**SKIPS, "small_bytes": 0}, keys=["x"])
    store.set_gradient_compression(SKIPS, keys=["a", "b", "c", "chunk", "large"])
    store.set_optimizer("test")
    values, skipped = dict.fromkeys(keys, 0), dict.fromkeys(keys, 0)
    for turn in range(9):
        bad = [key for key in keys if key != "free" and is_bad(store.rank, turn, key)]
        grads = [np.full(KEYS[key], turn + 1, "f4") for key in keys]
        for key in bad:
            grads[keys.index(key)][-1] = BAD[turn % 3]
            skipped[key] += 1
        for key in keys:
            if key == "free" or not any(is_bad(rank, turn, key)
                                        for rank in range(store.num_workers)):
                values[key] += store.num_workers * (turn + 1)
        for key, value in zip(keys, by_turns(store, keys, grads, turn), strict=True):
            assert (value == values[key]).all(), (turn, key)
    report = store.compression_report()
    for key in keys:
        assert report[key].get("skipped", 0) == skipped[key]
    pushed = 9 - skipped["a"]
    assert report["a"]["bytes_before"] == report["a"]["bytes_sent"] == pushed * 12


@pytest.mark.parametrize("transport", ["memory", "tcp"])
@pytest.mark.parametrize("order", ["arrival", "rank"])
@pytest.mark.parametrize("workers", [1, 2, 3])
def test_rounds_are_skipped_for_all(workers: int, order: str, transport: str) -> None:
    on_cluster(rounds, workers=workers, order=order, transport=transport)


@SIZES
@DTYPES
def test_a_skipped_round_is_no_update(size: int, dtype: Any) -> None:
    def work(store: KVStore) -> None:
        store.init(["w", "same"], [np.zeros(size, dtype)] * 2)
        store.set_gradient_compression(SKIPS)
        store.set_optimizer("adam", learning_rate=0.1)
        good = np.full(size, 0.5, dtype)
        for turn in range(4):
            if turn == 2:
                store.push("w", with_bad(size, dtype) if store.rank == 0 else good)
            else:
                store.push(["w", "same"], [good, good])
        value, same = store.pull(["w", "same"])
        assert np.array_equal(value, same)  # momentum and t know nothing of it

    on_cluster(work)


@SIZES
@DTYPES
@pytest.mark.parametrize("type", ["dist_async", "dist_ssp"])
def test_where_pushes_are_applied_as_they_come_that_push_is_dropped(
    type: str, dtype: Any, size: int
) -> None:
    def work(store: KVStore) -> None:
        store.init(["v", "w"], [np.zeros(size, dtype)] * 2)
        store.set_gradient_compression(SKIPS)
        store.set_optimizer("test")
        for turn in range(4):
            g = np.ones(size, dtype)
            store.push(["v", "w"], [g, with_bad(size, dtype) if turn == store.rank else g])
        store.barrier()
        store.pull(["v", "w"])
        store.barrier()
        v, w = store.pull(["v", "w"])
        assert (v == 4 * store.num_workers).all()
        assert (w == 3 * store.num_workers).all()

    on_cluster(work, type=type, **({"staleness": 2} if type == "dist_ssp" else {}))


@pytest.mark.parametrize("order", ["arrival", "rank"])
def test_a_slab_that_is_skipped_whole_may_be_pushed_in_rows_by_others(order: str) -> None:
    skip_a_slab_whole(order, SKIPS, with_bad(5), np.ones(5, "f4"), 2)


def test_what_is_finite_takes_the_lane_and_what_is_skipped_does_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real, tried = Lanes.exchange, []

    def watched(lanes: Lanes, *arguments: Any) -> Any:
        tried.append(lanes)
        return real(lanes, *arguments)

    monkeypatch.setattr(Lanes, "exchange", watched)

    def work(store: KVStore) -> None:
        store.init("w", np.zeros(5, "f4"))
        store.set_gradient_compression(SKIPS)
        for value, expected in ((np.ones(5, "f4"), 1), (with_bad(5), 1), (np.full(5, 3, "f4"), 3)):
            before = len(tried)
            got = store.pushpull("w", value, out=np.zeros(5, "f4"))
            assert (got == expected).all()
            assert (len(tried) > before) is bool(np.isfinite(value).all())

    on_cluster(work, workers=1, transport="tcp")


@pytest.mark.parametrize("where", [True, False], ids=["on the store", "at the workers"])
def test_a_step_of_a_trainer_that_raises_has_pushed_nothing(where: bool) -> None:
    def work(store: KVStore) -> None:
        params = [Param(np.zeros(size, "f4"), np.ones(size, "f4")) for size in (5, 10_000, 20_000)]
        with asyncps.Trainer(params, "sgd", {"learning_rate": 1.0}, kvstore=store,
                             update_on_kvstore=where, compression_params=RAISES) as trainer:
            for bad in params:
                bad.grad[1] = np.nan
                with pytest.raises(TensorError, match=f"rank {store.rank}"):
                    trainer.step(2)
                bad.grad[1] = 1
            trainer.step(2)
            for param in params:
                assert (param.data == -1).all()

    on_cluster(work)


def test_a_step_of_a_trainer_skips_what_is_not_finite() -> None:
    def work(store: KVStore) -> None:
        params = [Param(np.zeros(size, "f4"), np.ones(size, "f4")) for size in (5, 6, 10_000)]
        with asyncps.Trainer(params, "sgd", {"learning_rate": 1.0}, kvstore=store,
                             compression_params=SKIPS) as trainer:
            if store.rank:
                params[0].grad[1] = params[2].grad[7] = np.inf
            trainer.step(2)
            for param, expected in zip(params, (0, -1, 0), strict=True):
                assert (param.data == expected).all()

    on_cluster(work)
