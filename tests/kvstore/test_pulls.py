"""Answers in half the bytes: each is the nearest float16 or bfloat16 of what the store holds."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from asyncps.errors import TensorError
from asyncps.kvstore import KVStore
from tests.kvstore.scenarios import BF16
from tests.support.cluster import on_cluster

SHAPES: dict[str, tuple[tuple[int, ...], Any]] = {
    "large": ((70_001,), "f4"), "chunk": ((3, 5000), "f4"), "row": ((7,), "f4"),
    "one": ((1,), "f4"), "block": ((300,), "f4"), "half": ((9,), "f2"), "ints": ((20_000,), "i4"),
    "wide": ((11,), "f8"), "bf": ((13,), BF16), "none": ((0,), "f4"),
}
WHOLE = {"type": "topk", "ratio": 1.0, "small_bytes": 0}  # sends every value as it is


def rounded(values: Any, pull: str) -> Any:
    """The nearest value that travels, at most the largest finite one."""
    dtype, most = (np.dtype("f2"), 65504.0) if pull == "f16" else (BF16, 3.3895314e38)
    with np.errstate(over="ignore"):
        near = values.astype(dtype).astype("f4")
    return np.where(np.isinf(near), np.copysign(np.float32(most), values), near)


def values_of(seed: list[int]) -> dict[str, Any]:
    """Numbers whose sums are exact in f32, and most of which are none in f16 and bf16."""
    chance = np.random.default_rng(seed)
    return {
        key: chance.integers(-9, 10, shape).astype(dtype) if dtype != "f4" else
        (chance.integers(-9000, 9001, shape) * np.exp2(chance.integers(-3, 4, shape))).astype("f4")
        for key, (shape, dtype) in SHAPES.items()
    }


def pulls(store: KVStore, pull: str, optimizer: bool) -> None:
    names = list(SHAPES)
    first = values_of([99])
    store.init(names, list(first.values()))
    store.set_gradient_compression({**WHOLE, "pull": pull})
    if optimizer:
        store.set_optimizer("test")
    totals = {key: value.astype("f8") for key, value in first.items()}
    in_step = store.type == "dist_sync"

    def check(key: str, got: Any) -> None:
        dtype = SHAPES[key][1]
        expected = totals[key].astype(dtype)
        if dtype == "f4":
            expected = rounded(expected, pull)
        assert got.dtype == np.dtype(dtype)
        assert np.array_equal(got, expected), key

    for turn in range(4):
        grads = [values_of([rank, turn]) for rank in range(store.num_workers)]
        for key in names:
            added = sum(grad[key].astype("f8") for grad in grads)
            totals[key] = totals[key] + added if optimizer else added
        mine = grads[store.rank]
        store.barrier()  # in other types nobody pushes before all have pulled
        if turn == 0:
            store.push(names, list(mine.values()))
        elif turn == 1:
            for key in reversed(names):  # rows of slabs on their own
                store.push(key, mine[key])
        elif turn == 2 and in_step:
            for key, got in zip(names, store.pushpull(names, list(mine.values())), strict=True):
                check(key, got)
        else:
            outs = {key: np.zeros_like(mine[key]) for key in names}
            for key in names:
                store.pushpull(key, mine[key], out=outs[key])
                if in_step:
                    check(key, outs[key])
        store.barrier()
        for key, got in zip(names, store.pull(names), strict=True):
            check(key, got)
        outs = {key: [np.zeros_like(mine[key]) for _ in range(2)] for key in names}
        store.pull(names[::-1], out=[outs[key] for key in names[::-1]])
        for key in names:
            check(key, outs[key][0])
            check(key, outs[key][1])


@pytest.mark.parametrize("transport", ["memory", "tcp"])
@pytest.mark.parametrize("pull", ["f16", "bf16"])
@pytest.mark.parametrize("optimizer", [False, True], ids=["sums", "optimizer"])
def test_pulls_are_the_nearest_values(pull: str, optimizer: bool, transport: str) -> None:
    on_cluster(lambda store: pulls(store, pull, optimizer), transport=transport,
               settings={"chunk_bytes": 65536})


@pytest.mark.parametrize(("workers", "servers"), [(1, 1), (3, 2), (7, 3)])
def test_pulls_in_rank_order_by_any_number_of_workers(workers: int, servers: int) -> None:
    on_cluster(lambda store: pulls(store, "f16", True), workers=workers, servers=servers,
               order="rank", settings={"chunk_bytes": 65536})


@pytest.mark.parametrize("words", [
    {"type": "dist_async"}, {"type": "dist_ssp", "staleness": 2},
], ids=str)  # fmt: skip
def test_pulls_in_stores_without_rounds(words: dict[str, Any]) -> None:
    on_cluster(lambda store: pulls(store, "f16", True), settings={"chunk_bytes": 65536}, **words)


def test_only_the_keys_of_the_rule_and_no_small_ones() -> None:
    def work(store: KVStore) -> None:
        value = np.full(20_000, 1 + 2**-20, "f4")
        store.init(["a", "b", "small"], [value, value, value[:100]])
        store.set_gradient_compression({"type": "int8", "pull": "f16"}, keys=["a", "small"])
        told = store.pull(["a", "b", "small"])
        assert [float(got[0]) for got in told] == [1, 1 + 2**-20, 1 + 2**-20]
        store.set_gradient_compression({"type": "int8"}, keys=["a", "small"])
        assert store.pull("a")[0] == 1 + 2**-20

    on_cluster(work)


def test_infinity_and_nan_arrive_as_such() -> None:
    def work(store: KVStore) -> None:
        value = np.zeros(20_000, "f4")
        value[:4] = np.inf, -np.inf, np.nan, 1e9
        store.init("w", value)
        store.set_gradient_compression({"type": "2bit", "pull": "f16"})
        assert np.array_equal(store.pull("w")[:4], [np.inf, -np.inf, np.nan, 65504], equal_nan=True)

    on_cluster(work)


def test_half_the_bytes_travel_and_what_is_kept_is_counted() -> None:
    def work(store: KVStore) -> None:
        store.init("w", np.zeros(1_000_000, "f4"))
        before = store.statistics()
        store.set_gradient_compression({"type": "2bit", "pull": "f16"})
        store.barrier()
        for _ in range(3):
            store.pull("w")
        store.barrier()
        after = store.statistics()
        came = after["received_bytes"] - before["received_bytes"]
        assert 6_000_000 < came < 6_010_000, came
        kept = [sum(server["value_bytes"] for server in told["servers"])
                for told in (before, after)]
        assert kept == [4_000_000, 6_000_000]

    on_cluster(work)


@pytest.mark.parametrize("size", [100, 50_000], ids=["small", "large"])
def test_place_that_is_read_only_at_the_end_is_told(size: int) -> None:
    def work(store: KVStore) -> None:
        store.init("w", np.full(size, 3, "f4"))
        store.set_gradient_compression({"type": "2bit", "pull": "f16"})
        out = np.zeros(size, "f4")
        out.flags.writeable = False
        with pytest.raises(TensorError, match="read-only"):
            store.pull("w", out=out)
        assert store.pull("w").sum() == 3 * size

    on_cluster(work, workers=1)
