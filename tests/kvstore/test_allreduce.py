"""The store type `allreduce` (`horovod`): ACCEPTANCE K11, K12, C5, C8 and C12 on stores."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import asyncps
from asyncps.allreducestore import AllReduceStore
from asyncps.errors import (
    ClosedError,
    ConfigError,
    DtypeMismatch,
    UnknownKey,
)
from tests.support.cluster import on_cluster, on_processes
from tests.support.processes import ProcessGroup

DTYPES = ("float16", "float32", "float64", "int8", "uint8", "int32", "int64", ml_dtypes.bfloat16)
LARGE = (1000, 900)  # travels in shares, and not with its word


def on_workers(work: Callable[[AllReduceStore], Any], workers: int = 2, **options: Any) -> Any:
    options = {"servers": 0, "transport": "tcp", "type": "allreduce", **options}
    return on_cluster(work, workers=workers, **options)


def k12(store: AllReduceStore) -> None:
    """K12: broadcast ones, then pushpull in place, 3 repeats: replaced, not accumulated."""
    n = store.num_workers
    for dtype in DTYPES:
        for shape in ((), (0,), (2, 3), (1211,), LARGE):
            key = f"{np.dtype(dtype).name} {shape}"
            out = np.empty(shape, dtype)
            assert store.broadcast(key, np.full(shape, store.rank + 1, dtype), out) is out
            assert np.all(out == 1)
            for _ in range(3):
                value = np.full(shape, store.rank + 1, dtype)
                assert store.pushpull(key, value) is value
                assert value.dtype == dtype
                assert np.all(value == n * (n + 1) / 2)


def k11(store: AllReduceStore) -> None:
    """K11's pushpull of two local devices into two outs; values stay as they are."""
    n = store.num_workers
    for dtype in ("float16", "float32"):
        for shape in ((2, 3), LARGE):
            key = f"devices {dtype} {shape}"
            outs = [np.zeros(shape, dtype), np.zeros(shape, dtype).T.copy().T]
            store.broadcast(key, np.full(shape, store.rank + 3, dtype), outs)
            assert all(np.all(out == 3) for out in outs)
            for _ in range(3):
                values = [np.full(shape, store.rank + 1, dtype) for _ in range(2)]
                store.pushpull(key, values, outs)
                assert all(np.all(out == n * (n + 1)) for out in outs)
                assert all(np.all(value == store.rank + 1) for value in values)
            assert store.pushpull(key, values) is values
            assert all(np.all(value == n * (n + 1)) for value in values)


@pytest.mark.parametrize("workers", [1, 2, 3])
@pytest.mark.parametrize("transport", ["memory", "tcp"])
def test_k11_and_k12(workers: int, transport: str) -> None:
    on_workers(k12, workers, transport=transport)
    on_workers(k11, workers, transport=transport)


def test_a_job_may_have_servers_beside() -> None:
    on_workers(k12, 2, servers=1, type="horovod")


def test_mean() -> None:
    def work(store: AllReduceStore) -> None:
        with pytest.raises(DtypeMismatch, match=r"mean of integers.*'i'"):
            store.init("i", np.zeros(3, "i4"))
        store.init("f", np.zeros(3, "f2"))
        value = np.full(3, 60000, "f2")
        assert np.all(store.pushpull("f", value) == 60000)

    on_workers(work, 3, reduce="mean")


def test_facts() -> None:
    def work(store: AllReduceStore) -> tuple[int, int]:
        assert store.type == "allreduce"
        assert store.num_workers == 3
        assert store.is_capable("optimizer") is False
        with pytest.raises(ConfigError, match="optimizer"):
            store.is_capable("flight")
        assert store.optimizer is None
        assert store.hyperparameters == {}
        assert store.num_dead_node() == 0
        store._barrier()
        return store.rank, store.local_rank

    assert on_workers(work, 3, type="horovod") == [(0, 0), (1, 1), (2, 2)]


def test_lists_of_keys_and_handles_in_any_order() -> None:
    keys = [f"k{i}" for i in range(40)] + [5, "5", 2**40]

    def work(store: AllReduceStore) -> None:
        n, mine = store.num_workers, list(keys)
        random.Random(store.rank).shuffle(mine)
        store.init(mine, [np.zeros(len(str(key)), "f4") for key in mine])
        values = {key: np.full(len(str(key)), at * (store.rank + 1), "f4")
                  for at, key in enumerate(keys)}
        handles = [(key, store.pushpull(key, values[key], async_op=True)) for key in mine]
        random.Random(9 - store.rank).shuffle(handles)
        for key, handle in handles:
            assert handle.wait() is values[key]
            assert handle.done()
            assert handle.exception() is None
            assert "done" in repr(handle)
            assert np.all(values[key] == keys.index(key) * n * (n + 1) / 2)
        store.pushpull(keys, [values[key] for key in keys], priority=-3)
        assert all(np.all(values[key] == at * n * n * (n + 1) / 2) for at, key in enumerate(keys))

    on_workers(work, 3)


def test_one_key_may_be_under_way_many_times() -> None:
    def work(store: AllReduceStore) -> None:
        store.init(["w", "v"], [np.zeros(300_000, "f4"), np.zeros(3, "f4")])
        for key, size in (("w", 300_000), ("v", 3)):
            values = [np.full(size, at + store.rank, "f4") for at in range(20)]
            handles = [store.pushpull(key, value, async_op=True) for value in values]
            for at, handle in enumerate(reversed(handles)):
                assert np.all(handle.wait() == 2 * (19 - at) + 1)

    on_workers(work)


def test_out_may_be_the_value_of_another_key() -> None:
    def work(store: AllReduceStore) -> None:
        a, b = np.full(4, 1.0), np.full(4, 10.0)
        store.init(["a", "b"], [a, b])
        store.pushpull(["a", "b"], [a, b], out=[b, a])
        assert np.all(b == 2)
        assert np.all(a == 20)

    on_workers(work)


def test_init_reads_nothing_and_broadcast_brings_it() -> None:
    def work(store: AllReduceStore) -> None:
        value = np.full(3, store.rank, "f4")
        value.flags.writeable = False
        store.init("w", value)
        store.init("w", value)
        assert value[0] == store.rank
        (new,) = store.broadcast(["w"], [value])
        assert np.all(new == 0)
        assert new is not value
        parameter = np.full(3, store.rank + 4, "f4")
        assert store.broadcast("w", parameter, out=parameter) is parameter
        assert np.all(parameter == 4)
        turned = np.asfortranarray(np.full((3, 4), store.rank + 4.0))[::-1]
        store.broadcast("t", turned, out=turned)
        assert np.all(turned == 4)

    on_workers(work)


def test_strided_values_and_outs() -> None:
    """C12 on a store."""
    def work(store: AllReduceStore) -> None:
        base = np.arange(24, dtype="f4").reshape(4, 6)
        for name, view in (("f", lambda x: x.T), ("n", lambda x: x[::-1, ::-2]),
                           ("s", lambda x: x[1:3, 2:5])):
            value = view(base.copy())
            store.init(name, value)
            out = view(np.zeros((4, 6), "f4"))
            assert store.pushpull(name, value, out) is out
            np.testing.assert_array_equal(out, 2 * view(base))
            np.testing.assert_array_equal(value, view(base))
            assert store.pushpull(name, value) is value
            np.testing.assert_array_equal(value, 2 * view(base))

    on_workers(work)


def test_close_waits_for_what_was_begun() -> None:
    begun = threading.Barrier(2)
    found: list[np.ndarray] = []

    def work(store: AllReduceStore) -> None:
        store.init("w", np.zeros(300_000, "f4"))
        value = np.ones(300_000, "f4")
        if store.rank:
            store.pushpull("w", value, async_op=True)
            begun.wait()
            store.close()
            found.append(value)
        else:
            begun.wait()
            store.pushpull("w", value)

    on_workers(work)
    assert np.all(found[0] == 2)


def c8(store: AllReduceStore) -> None:
    """C8 twice: ranks with 10, 10 and 11 steps; sums of those left, then all count again."""
    store.init("steps", np.zeros(4, "f4"))
    for _ in range(2):
        for step in range(10 + (store.rank == 2)):
            value = store.pushpull("steps", np.full(4, store.rank + 1, "f4"))
            assert np.all(value == (6 if step < 10 else 3))
        assert store.join() == 2
    assert np.all(store.broadcast("steps", np.full(4, store.rank + 7, "f4")) == 7)
    store.barrier()


def test_k18_workers_with_fewer_batches_join() -> None:
    on_workers(c8, 3)


def several(store: AllReduceStore) -> None:
    """Stores of other names in one process: keys of one are not keys of the other."""
    beside = asyncps.create("allreduce", name="beside", reduce="mean")
    store.init("w", np.zeros(3, "f4"))
    beside.init("w", np.zeros((2, 2), "f8"))
    value, other = np.full(3, store.rank + 1, "f4"), np.full((2, 2), store.rank + 1.0)
    order = [lambda: store.pushpull("w", value, async_op=True),
             lambda: beside.pushpull("w", other, async_op=True)]
    for handle in [make() for make in (order if store.rank else reversed(order))]:
        handle.wait()
    n = store.num_workers
    assert np.all(value == n * (n + 1) / 2)
    assert np.all(other == (n + 1) / 2)
    beside.close()
    with pytest.raises(ClosedError):
        beside.barrier()
    with pytest.raises(UnknownKey):
        asyncps.create("allreduce", name="beside").pushpull("w", other)
    again = asyncps.create("allreduce", name="beside")
    again.init("w", np.zeros(3, "f4"))
    assert np.all(again.pushpull("w", np.ones(3, "f4")) == n)
    store.barrier()


def everything(store: AllReduceStore) -> None:
    k12(store)
    k11(store)
    several(store)
    if store.num_workers == 3:
        c8(store)


def test_on_real_processes_without_servers(processes: ProcessGroup) -> None:
    on_processes(processes, everything, workers=3, servers=0, type="horovod")
