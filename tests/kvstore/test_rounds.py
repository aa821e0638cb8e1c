"""Rounds as users see them: windows, slabs that part and join, look-ups, order, priority."""

from __future__ import annotations

import random
import threading
from typing import Any

import numpy as np
import pytest

from asyncps.kvstore import KVStore
from tests.support.cluster import on_cluster

both_transports = pytest.mark.parametrize("transport", ["memory", "tcp"])


@both_transports
@pytest.mark.parametrize("size", [3, 300_000])
def test_more_pushes_than_the_clock_window_wait_and_none_is_lost(
    size: int, transport: str
) -> None:
    def work(store: KVStore) -> None:
        store.init("w", np.zeros(size, "f4"))
        store.set_optimizer("test")
        gone_ahead = 5
        if store.rank == 0:
            handles = [
                store.push("w", np.full(size, 10**i, "f4")) for i in range(gone_ahead)
            ]
            handles[1].wait(10)
            assert not handles[2].done()
            started.set()
            assert np.all(store.pull("w") == 11111 + 5)
        else:
            assert started.wait(10)
            for _ in range(gone_ahead):
                store.push("w", np.ones(size, "f4"))
            assert np.all(store.pull("w") == 11111 + 5)

    started = threading.Event()
    on_cluster(work, transport=transport)


@both_transports
def test_full_window_of_one_key_blocks_no_other_key(transport: str) -> None:
    def work(store: KVStore) -> None:
        store.init(["w", "v"], [np.zeros(100_000, "f4"), np.zeros(100_000, "f4")])
        if store.rank == 0:
            for _ in range(5):
                store.push("w", np.ones(100_000, "f4"))
            assert np.all(store.pushpull("v", np.ones(100_000, "f4")) == 2)
            store.pull("w")
        else:
            assert np.all(store.pushpull("v", np.ones(100_000, "f4")) == 2)
            for _ in range(5):
                store.push("w", np.ones(100_000, "f4"))
            assert np.all(store.pull("w") == 2)

    on_cluster(work, transport=transport)


def test_slab_that_grows_while_pushes_wait_for_the_window_loses_none() -> None:
    def work(store: KVStore) -> None:
        store.init(["a", "b"], [np.zeros(3, "f4"), np.zeros(3, "f4")])
        store.set_optimizer("test")
        one = np.ones(3, "f4")
        if store.rank == 0:
            handles = [store.push(["a", "b"], [one * 10**i, one]) for i in range(5)]
            handles[1].wait(10)
            store.init("c", np.full(3, 7, "f4"))
            ahead.set()
            store.push("c", one)
        else:
            assert ahead.wait(10)
            for _ in range(5):
                store.push(["a", "b"], [one, one])
            store.push("c", one)
        a, b, c = store.pull(["a", "b", "c"])
        assert np.all(a == 11111 + 5)
        assert np.all(b == 10)
        assert np.all(c == 9)

    ahead = threading.Event()
    on_cluster(work)


@both_transports
@pytest.mark.parametrize("order", ["arrival", "rank"])
def test_small_keys_pushed_whole_in_part_and_mixed_in_the_same_rounds(
    transport: str, order: str
) -> None:
    count = 200

    def work(store: KVStore) -> None:
        keys = [f"k{i}" for i in range(count)]
        for i, key in enumerate(keys):  # one by one: the slab grows row by row
            store.init(key, np.full(1 + i % 3, i, "f4"))
        store.set_optimizer("test")
        rng = random.Random(store.rank)
        total = np.arange(count, dtype="f8")
        n = store.num_workers
        for turn in range(6):
            value = [np.full(1 + i % 3, turn + i + store.rank, "f4") for i in range(count)]
            way = (turn + store.rank) % 3
            if way == 0:
                store.push(keys, value)
            elif way == 1:
                order = rng.sample(range(count), count)
                for begin in range(0, count, 70):
                    part = order[begin : begin + 70]
                    store.push([keys[i] for i in part], [value[i] for i in part])
            else:
                for i in rng.sample(range(count), count):
                    store.push(keys[i], value[i])
            total += [n * (turn + i) + n * (n - 1) // 2 for i in range(count)]
            if turn % 2:
                got = store.pull(keys)
            else:
                got = [store.pull(key) for key in keys]
            for i, array in enumerate(got):
                assert array.shape == (1 + i % 3,)
                assert np.all(array == total[i]), (turn, i)

    on_cluster(work, transport=transport, order=order)


def test_part_of_a_slab_may_be_rounds_ahead() -> None:
    def work(store: KVStore) -> None:
        keys = list(range(10))
        store.init(keys, [np.zeros(2, "f4") for _ in keys])
        store.set_optimizer("test")
        for turn in range(4):
            part = keys[: 2 * (turn + 1)]
            store.push(part, [np.ones(2, "f4") for _ in part])
        store.push(keys, [np.ones(2, "f4") for _ in keys])  # rows at five different clocks
        got = store.pull(keys)
        pushes = [1 + sum(1 for turn in range(4) if key < 2 * (turn + 1)) for key in keys]
        assert [float(v[0]) for v in got] == [p * store.num_workers for p in pushes]
        outs = [np.zeros(2, "f4") for _ in keys]
        store.pushpull(keys, [np.full(2, 5, "f4") for _ in keys], out=outs)
        n = store.num_workers
        assert [float(v[1]) for v in outs] == [p * n + 5 * n for p in pushes]

    on_cluster(work)


def test_worker_finds_keys_that_another_initialised() -> None:
    def work(store: KVStore) -> None:
        shapes = {f"k{i}": (3,) if i % 2 else (100, 200) for i in range(20)}
        if store.rank == 0:
            store.init(list(shapes), [np.full(s, i, "f4") for i, s in enumerate(shapes.values())])
        store.barrier()
        for i in (7, 3, 12, 19, 0):  # in an order of its own, some of them only
            assert np.all(store.pull(f"k{i}") == i)
        store.barrier()
        for i, (key, shape) in enumerate(shapes.items()):
            assert np.all(store.pushpull(key, np.full(shape, i, "f4")) == i * store.num_workers)

    on_cluster(work, workers=3)


@pytest.mark.parametrize("dtype", ["f4", "f2", "f8"])
def test_rank_order_gives_the_same_bits_on_any_number_of_servers(dtype: str) -> None:
    shapes = [(5,), (17, 3), (70_001,), (300, 700)]

    def work(store: KVStore) -> bytes:
        rng = np.random.default_rng(store.rank)
        # Magnitudes far apart: another order would round otherwise.
        values = [
            (rng.standard_normal(s) * 10.0 ** rng.integers(-3, 4, s)).astype(dtype) for s in shapes
        ]
        keys = list(range(len(shapes)))
        store.init(keys, [np.zeros(s, dtype) for s in shapes])
        digest = b""
        for turn in range(3):
            if store.rank == turn:
                store.push(keys[::-1], values[::-1])
                got = store.pull(keys)
            else:
                got = store.pushpull(keys, [v.copy() for v in values])
            digest += b"".join(v.tobytes() for v in got)
        return digest

    runs = [
        result for servers in (1, 2, 3, 1)
        for result in on_cluster(work, workers=3, servers=servers, order="rank")
    ]
    assert len(set(runs)) == 1
    wide = np.float64 if dtype == "f8" else np.float32
    rngs = [np.random.default_rng(rank) for rank in range(3)]
    expected = []
    drawn = [
        [(r.standard_normal(s) * 10.0 ** r.integers(-3, 4, s)).astype(dtype) for s in shapes]
        for r in rngs
    ]
    for a, b, c in zip(*drawn, strict=True):
        expected.append(((a.astype(wide) + b.astype(wide)) + c.astype(wide)).astype(dtype))
    assert runs[0][: len(runs[0]) // 3] == b"".join(e.tobytes() for e in expected)
    for result in on_cluster(work, workers=3, servers=2, order="arrival"):
        for got, want in zip(_split(result, expected), expected, strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-2 if dtype == "f2" else 1e-4, atol=1e-2)


def _split(raw: bytes, like: list[Any]) -> list[Any]:
    found, begin = [], 0
    for array in like:
        end = begin + array.nbytes
        found.append(np.frombuffer(raw[begin:end], array.dtype).reshape(array.shape))
        begin = end
    return found


@pytest.mark.parametrize("dtype", ["f4", "f2", "f8"])
def test_mean_divides_by_the_number_of_workers(dtype: str) -> None:
    def work(store: KVStore) -> None:
        for key, size in (("small", 3), ("large", 100_000)):
            store.init(key, np.zeros(size, dtype))
            value = np.full(size, 60000 - 32 * store.rank, dtype)
            store.pushpull(key, value)
            assert np.all(value == np.dtype(dtype).type(60000 - 32))

    on_cluster(work, workers=3, reduce="mean")


def test_mean_feeds_the_optimizer() -> None:
    def work(store: KVStore) -> None:
        store.init("w", np.zeros(3, "f4"))
        store.set_optimizer("test", rescale_grad=2)
        assert np.all(store.pushpull("w", np.full(3, store.rank + 1, "f4")) == 3)

    on_cluster(work, workers=2, reduce="mean")


@both_transports
def test_pull_sees_the_workers_own_last_push_whatever_the_priority(transport: str) -> None:
    def work(store: KVStore) -> None:
        keys = ["small", "large", "huge"]
        sizes = [3, 100_000, 2_000_000]
        store.init(keys, [np.zeros(s, "f4") for s in sizes])
        handles = []
        for turn in range(4):
            for i, (key, size) in enumerate(zip(keys, sizes, strict=True)):
                store.push(key, np.full(size, turn + 1, "f4"), priority=-i)
                handles.append(
                    (turn, store.pull(key, priority=100 * (turn % 2) + i, async_op=True))
                )
        for turn, handle in handles:
            assert np.all(handle.wait(10) == (turn + 1) * store.num_workers)

    on_cluster(work, transport=transport)


def test_assign_overwrites_and_rounds_go_on() -> None:
    def work(store: KVStore) -> None:
        keys = ["a", "b", "large"]
        shapes = [(3,), (2, 2), (100_000,)]
        store.init(keys, [np.zeros(s, "f4") for s in shapes])
        store.set_optimizer("test")
        for key, shape in zip(keys, shapes, strict=True):
            store.pushpull(key, np.ones(shape, "f4"))
        store.barrier()
        if store.rank == 0:
            store.assign(keys, [np.full(s, 50, "f4") for s in shapes])
            store.assign("b", np.full((2, 2), 60, "f4"))
        store.barrier()
        n = store.num_workers
        assert [float(v.flat[0]) for v in store.pull(keys)] == [50, 60, 50]
        outs = [np.zeros(s, "f4") for s in shapes]
        store.pushpull(keys, [np.ones(s, "f4") for s in shapes], out=outs)
        assert [float(v.flat[-1]) for v in outs] == [50 + n, 60 + n, 50 + n]

    on_cluster(work)


def test_two_stores_of_different_names_do_not_meet() -> None:
    import asyncps

    with asyncps.create("dist_sync", name="a") as a, asyncps.create("dist_sync", name="b") as b:
        a.init("w", np.zeros(3, "f4"))
        b.init("w", np.zeros((2, 2), "f8"))
        a.set_optimizer("test", rescale_grad=3)
        a.push("w", np.ones(3, "f4"))
        b.push("w", np.ones((2, 2), "f8"))
        assert a.pull("w").tolist() == [3, 3, 3]
        assert b.pull("w").tolist() == [[1, 1], [1, 1]]


def test_many_threads_may_use_one_store() -> None:
    def work(store: KVStore) -> None:
        keys = [f"k{i}" for i in range(8)]
        store.init(keys, [np.zeros(1 + 20_000 * (i % 2), "f4") for i in range(8)])
        errors: list[BaseException] = []

        def train(i: int) -> None:
            try:
                for turn in range(10):
                    value = np.full(1 + 20_000 * (i % 2), turn * 8 + i, "f4")
                    store.pushpull(keys[i], value)
                    assert np.all(value == (turn * 8 + i) * store.num_workers)
            except BaseException as error:  # noqa: BLE001 - told by the assert below
                errors.append(error)

        threads = [threading.Thread(target=train, args=(i,)) for i in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not errors, errors

    on_cluster(work)


@pytest.mark.parametrize("type", ["dist_sync", "dist_ssp"])
def test_small_keys_pushed_ahead_in_opposite_orders_wait_in_no_circle(type: str) -> None:
    keys = ["a", "b", "c"]

    def train(store: Any) -> None:
        store.init(keys, [np.zeros(3, "f4")] * 3)
        store.set_optimizer("test")
        mine = keys if store.rank else keys[::-1]
        handles = [store.push(key, np.ones(3, "f4")) for key in mine for _ in range(5)]
        for handle in handles:
            handle.wait()
        store.barrier()
        for got in store.pull(keys):
            assert (got == 10).all()

    on_cluster(train, type=type, staleness=int(type == "dist_ssp"))
