"""Compression: who must agree, which keys it is for, what is refused and what that leaves."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import numpy as np
import pytest

import asyncps
from asyncps.errors import (
    AsyncPSError,
    ClosedError,
    ConfigError,
    DeadlineExceeded,
    Disagreement,
    NotYetError,
    ShapeMismatch,
    TensorError,
)
from asyncps.initializer import Zero
from asyncps.kvstore import KVStore
from tests.kvstore.scenarios import all_are
from tests.support.cluster import on_cluster

TWO = {"type": "2bit", "threshold": 0.5}
SIZES = pytest.mark.parametrize("size", [5, 50_000], ids=["small", "large"])


def residual(store: KVStore, key: Any) -> Any:
    return store._core.client.compression._coders[key].residual


def ready(store: KVStore, size: int, spec: Any = TWO, **options: Any) -> None:
    store.init("w", np.zeros(size, "f4"))
    store.set_gradient_compression(spec, **options)
    store.set_optimizer("test")


# ------------------------------------------------------------------------------------ agreement


def test_all_workers_must_say_the_same() -> None:
    def work(store: KVStore) -> None:
        store.init("w", np.zeros(5, "f4"))
        with pytest.raises(Disagreement, match=r"different compressions: worker 0 said threshold=0"
                                               r".5; worker 1 said threshold=0.25"):
            store.set_gradient_compression({"type": "2bit", "threshold": 0.5 / (1 + store.rank)})
        with pytest.raises(Disagreement, match="keys=None; worker 1 said keys='w'"):
            store.set_gradient_compression(TWO, keys="w" if store.rank else None)
        verb = store.set_optimizer if store.rank else store.set_gradient_compression
        with pytest.raises(Disagreement, match=r"some an optimizer \(set_optimizer\) and "
                           r"some a compression \(set_gradient_compression\)"):
            verb("test" if store.rank else TWO)
        assert store.compression_report() == {}
        all_are(store.pushpull("w", np.full(5, 0.4, "f4")), np.float32(0.8))
        store.set_gradient_compression(TWO)  # and now they agree
        all_are(store.pushpull("w", np.full(5, 0.6, "f4")), 1)

    on_cluster(work)


def test_wait_for_others_names_them() -> None:
    def work(store: KVStore) -> None:
        if store.rank == 0:
            with pytest.raises(DeadlineExceeded, match=r"ranks \[1\] to set the compression"):
                store.set_gradient_compression(TWO)
            told.set()
        assert told.wait(10)
        store.set_gradient_compression(TWO)  # rank 0's is the same question as before
        assert store._core.client.compression is not None

    told = threading.Event()
    on_cluster(work, settings={"round_s": 0.3})


# ----------------------------------------------------------------------------------- which keys


def test_last_rule_that_names_a_key_counts() -> None:
    def work(store: KVStore) -> None:
        keys: list[Any] = ["layer1", "layer2", "bias", 5, "5", "table"]
        store.init(keys[:5], [np.zeros(5, "f4")] * 5)
        store.init("ints", np.zeros(5, "i4"))
        store.init("table", Zero(), shape=(4, 2))
        store.set_gradient_compression(TWO)
        store.set_gradient_compression({"type": "int8"}, keys="layer*")
        store.set_gradient_compression({"type": "1bit"}, keys=["layer2", 5])
        told = {key: found["codec"] for key, found in store.compression_report().items()}
        assert told == {"layer1": "dense", "layer2": "1bit", "bias": "2bit", 5: "1bit",
                        "5": "2bit", "ints": "dense", "table": "2bit"}
        why = store.compression_report()
        assert why["layer1"]["why"] == "smaller than 65536 bytes"
        assert why["ints"]["why"] == "its dtype is int32"
        # One call over all of them, in the slab that they share.
        out = store.pushpull(keys[:5], [np.full(5, 0.6, "f4") for _ in range(5)])
        for key, value in zip(keys, out, strict=False):
            all_are(value, {"layer1": np.float32(1.2), "layer2": 2, 5: 2}.get(key, 1))
        for value in store.pull(keys[:5]):
            assert value[0] >= 1

    on_cluster(work)


def test_small_keys_go_dense_and_large_ones_do_not() -> None:
    def work(store: KVStore) -> None:
        store.init(["small", "large"], [np.zeros(16_383, "f4"), np.zeros(16_384, "f4")])
        store.set_gradient_compression({"type": "topk"})
        report = store.compression_report()
        assert report["small"] == {"codec": "dense", "why": "smaller than 65536 bytes",
                                   "bytes_before": 0, "bytes_sent": 0, "error_norm": 0,
                                   "skipped": 0}
        assert report["large"]["codec"] == "topk"

    on_cluster(work, workers=1)


@pytest.mark.parametrize("keys", [5.5, [None], ["\ud800"], "\ud800", True])
def test_keys_that_are_none_are_refused(keys: Any) -> None:
    def work(store: KVStore) -> None:
        with pytest.raises(ConfigError):
            store.set_gradient_compression(TWO, keys=keys)

    on_cluster(work, workers=1)


@pytest.mark.parametrize("type", ["local", "device"])
def test_local_stores_refuse_it(type: str) -> None:
    with asyncps.create(type) as store:
        with pytest.raises(ConfigError, match="sends nothing"):
            store.set_gradient_compression(TWO)
        assert store.compression_report() == {}


@pytest.mark.parametrize(("spec", "kind"), [
    ({"type": "3bit"}, ConfigError), ({"type": "dgc", "momentum": 1}, ConfigError),
    ({"type": "powersgd", "pull": True}, NotYetError),
])  # fmt: skip
def test_wrong_words_raise_before_anybody_is_asked(spec: Any, kind: type[AsyncPSError]) -> None:
    def work(store: KVStore) -> None:
        if store.rank == 0:
            with pytest.raises(kind):
                store.set_gradient_compression(spec)

    on_cluster(work)


# --------------------------------------------------------------------- what is never compressed


@SIZES
def test_first_values_and_assigned_ones_travel_as_they_are(size: int) -> None:
    def work(store: KVStore) -> None:
        store.init("w", np.zeros(size, "f4"))
        store.set_gradient_compression(TWO)
        store.assign("w", np.full(size, 0.3, "f4"))
        store.barrier()
        all_are(store.pull("w"), np.float32(0.3))
        all_are(store.broadcast("b", np.full(size, 0.2, "f4")), np.float32(0.2))

    on_cluster(work)


# ------------------------------------------------------------------------------------- refusals


@SIZES
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("dtype", ["f4", "f2"])
def test_nan_is_refused_by_key_and_rank_and_nothing_is_changed(
    size: int, bad: float, dtype: str
) -> None:
    def work(store: KVStore) -> None:
        store.init(["a", "w"], [np.zeros(size, dtype), np.zeros(size, dtype)])
        store.set_gradient_compression(TWO)
        store.set_optimizer("test")
        good, grad = np.full(size, 0.4, dtype), np.full(size, 0.4, dtype)
        store.push(["a", "w"], [good, good])
        grad[3] = bad
        before = residual(store, "a").copy(), residual(store, "w").copy()
        with pytest.raises(TensorError, match=rf"key 'w', rank {store.rank}.*the first at 3"):
            store.push(["a", "w"], [good, grad])
        assert np.array_equal(residual(store, "a"), before[0])
        assert np.array_equal(residual(store, "w"), before[1])
        store.push(["a", "w"], [good, good])
        for value in store.pull(["a", "w"]):
            all_are(value, 1)  # of two workers, who sent 0.5 of 0.8

    on_cluster(work)


@SIZES
def test_a_sum_with_the_residual_that_is_infinite_is_refused(size: int) -> None:
    def work(store: KVStore) -> None:
        store.init("w", np.zeros(size, "f4"))
        store.set_gradient_compression(TWO)
        large = np.zeros(size, "f4")
        large[3] = 3e38
        store.push("w", large)
        before = residual(store, "w").copy()
        with pytest.raises(TensorError, match=r"at 3: 3.* beside 3.* that was not sent yet"):
            store.push("w", large)
        with pytest.raises(TensorError, match="the first at 3"):
            store.pushpull("w", large, out=np.empty_like(large))
        assert np.array_equal(residual(store, "w"), before)
        store.push("w", -large)
        assert residual(store, "w")[3] == 0
        for _ in range(300):  # however often, what is small is never refused
            store.push("w", np.full(size, 0.25, "f4"))

    on_cluster(work, workers=1)


@SIZES
def test_a_call_that_raises_at_once_leaves_the_residual(size: int) -> None:
    def work(store: KVStore) -> None:
        ready(store, size)
        grad = np.full(size, 0.9, "f4")
        store.pushpull("w", grad, out=np.zeros(size, "f4"))
        before = residual(store, "w").copy()
        with pytest.raises(ShapeMismatch):
            store.pushpull("w", grad, out=np.zeros(size + 1, "f4"))
        with pytest.raises(ConfigError):
            store.push("w", grad, priority=1 << 40)
        assert np.array_equal(residual(store, "w"), before)

    on_cluster(work, workers=1)


@SIZES
def test_a_push_that_is_refused_later_is_put_back(size: int) -> None:
    async def work() -> None:
        async with asyncps.connect("dist_sync") as store:
            await store.init("w", np.zeros(size, "f4"))
            await store.set_gradient_compression(TWO)
            core = store._core
            core.client.joining = asyncio.get_running_loop().create_future()
            handle = await store.push("w", np.full(size, 0.9, "f4"))
            with pytest.raises(AsyncPSError, match="push of a worker that has joined"):
                await handle
            core.client.joining = None
            all_are(core.client.compression._coders["w"].residual, np.float32(0.9))
            assert store.compression_report()["w"]["bytes_sent"] == 0

    asyncio.run(work())


def test_a_push_beyond_the_budget_is_put_back() -> None:
    async def work() -> None:
        async with asyncps.connect("dist_sync", send_budget_bytes=4096) as store:
            await store.init("w", np.zeros(50_000, "f4"))
            await store.set_gradient_compression(TWO)
            core = store._core
            core.deadline_s = 0.05
            core.budget._used = 1  # somebody's push that is never accepted
            with pytest.raises(DeadlineExceeded):
                await store.push("w", np.full(50_000, 0.9, "f4"))
            core.budget._used = 0
            all_are(core.client.compression._coders["w"].residual, np.float32(0.9))
            # 0.9 + 0.1 send one threshold, and keep the other.
            all_are(await store.pushpull("w", np.full(50_000, 0.1, "f4")), 0.5)

    asyncio.run(work())


def test_a_closed_store_takes_nothing() -> None:
    with asyncps.create("dist_sync") as store:
        ready(store, 50_000)
    with pytest.raises(ClosedError):
        store.push("w", np.full(50_000, 0.9, "f4")).wait(5)


# ------------------------------------------------------------------------------ rounds and bytes


@SIZES
def test_pushes_beyond_the_clock_window_are_sent_when_it_opens(size: int) -> None:
    def work(store: KVStore) -> None:
        ready(store, size)
        if store.rank == 0:
            handles = [store.push("w", np.full(size, 0.5, "f4")) for _ in range(5)]
            last = store.pushpull("w", np.full(size, 0.5, "f4"), async_op=True)
            store.init("there", np.zeros(1, "f4"))
        else:
            store.init("there", np.zeros(1, "f4"))  # rank 0 has pushed all of its own
            for _ in range(6):
                store.push("w", np.full(size, 0.5, "f4"))
        all_are(store.pull("w"), 6)
        if store.rank == 0:
            for handle in handles:
                handle.wait(5)
            all_are(last.wait(5), 6)

    on_cluster(work)


@pytest.mark.parametrize("type", ["dist_async", "dist_ssp"])
@SIZES
def test_pushes_that_are_applied_as_they_come(type: str, size: int) -> None:
    def work(store: KVStore) -> None:
        ready(store, size)
        for _ in range(4):
            store.push("w", np.full(size, 0.25 * (1 + store.rank), "f4"))
        store.barrier()
        store.pull("w")
        store.barrier()
        all_are(store.pull("w"), 0.5 * (2 + 4))

    options = {"staleness": 2} if type == "dist_ssp" else {}
    on_cluster(work, type=type, **options)


@pytest.mark.parametrize(("spec", "size", "payload"), [
    ({"type": "2bit"}, 1_000_003, 4 * 62_501), ({"type": "1bit"}, 1_000_003, 4 * 31_251),
    ({"type": "f16"}, 1_000_003, 2_000_006), ({"type": "topk"}, 1_000_000, 80_000),
    ({"type": "int8"}, 1_000_000, 1_000_000 + 4 * 3907), ({"type": "2bit"}, 100, 28),
])  # fmt: skip
def test_bytes_on_the_wire_are_those_of_the_formula(
    spec: dict[str, Any], size: int, payload: int
) -> None:
    def work(store: KVStore) -> None:
        ready(store, size, spec)
        store.barrier()
        grad = np.random.default_rng(1).normal(size=size).astype("f4")
        before = sum(server["received_bytes"] for server in store.statistics()["servers"])
        store.push("w", grad).wait(10)
        after = sum(server["received_bytes"] for server in store.statistics()["servers"])
        report = store.compression_report()["w"]
        assert report["bytes_sent"] == payload
        assert report["bytes_before"] == 4 * size
        assert report["encode_s"] > 0
        norm = np.linalg.norm(residual(store, "w").astype("f8"))
        assert report["error_norm"] == pytest.approx(norm)
        assert payload <= after - before <= payload + 1500  # headers, heads and questions

    on_cluster(work, workers=1, transport="tcp")


def test_mean_of_reduce_is_of_what_was_decoded() -> None:
    def work(store: KVStore) -> None:
        store.init("w", np.zeros(5, "f2"))
        store.set_gradient_compression(TWO)
        all_are(store.pushpull("w", np.full(5, 0.6, "f2")), 0.5)

    on_cluster(work, workers=3, reduce="mean")


@SIZES
def test_arrays_of_every_kind_are_encoded(size: int) -> None:
    def work(store: KVStore) -> None:
        ready(store, size, {"type": "f16", "small_bytes": 0})
        frozen = np.full(size, 0.5, "f4")
        frozen.flags.writeable = False
        odd = np.zeros(4 * size + 1, "u1")[1:].view("f4")
        odd[:] = 0.5
        kinds = [frozen, odd, np.full(2 * size, 0.5, "f4")[::-2], np.full(size, 0.5, "f4")]
        for turn, grad in enumerate(kinds, 1):
            store.push("w", grad)
            all_are(store.pull("w"), 0.5 * turn)

    on_cluster(work, workers=1)


def test_two_threads_push_one_key() -> None:
    def work(store: KVStore) -> None:
        ready(store, 50_000, {"type": "f16", "small_bytes": 0})

        def push() -> None:
            for _ in range(20):
                store.push("w", np.full(50_000, 0.1, "f4")).wait(10)

        threads = [threading.Thread(target=push) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert np.allclose(store.pull("w") + residual(store, "w"), 4, atol=1e-3)

    on_cluster(work, workers=1)


def test_a_list_of_device_values_is_summed_and_then_encoded() -> None:
    def work(store: KVStore) -> None:
        ready(store, 5)
        all_are(store.pushpull("w", [np.full(5, 0.3, "f4")] * 2, out=np.zeros(5, "f4")), 0.5)

    on_cluster(work, workers=1)


def test_what_was_not_sent_goes_with_another_codec() -> None:
    def work(store: KVStore) -> None:
        ready(store, 5)
        store.push("w", np.full(5, 0.4, "f4"))
        store.set_gradient_compression({"type": "f16", "small_bytes": 0})
        store.push("w", np.full(5, 0.125, "f4"))
        value = store.pull("w")
        assert np.allclose(value, 0.525, atol=1e-3)
        assert np.allclose(value + residual(store, "w"), 0.525, atol=1e-6)

    on_cluster(work, workers=1)
