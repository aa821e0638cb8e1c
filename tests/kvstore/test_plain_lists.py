"""A list of plain numbers is no array: as values of several devices its numbers would be summed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import asyncps
from asyncps.errors import TensorError
from asyncps.kvstore import KVStore
from tests.support.cluster import on_cluster

LISTS = pytest.mark.parametrize("value", [
    [1, 2, 3], (1.0, 2.0, 3.0), [True, False, True], [1j, 2j, 3j], [np.float32(1)] * 3,
    [np.int64(1)], [[1, 2], [3, 4]], [np.zeros(3, "f4"), 1.0], [[1.0, 2.0, 3.0]],
], ids=repr)  # fmt: skip
TYPES = pytest.mark.parametrize("type", ["local", "device", "dist_sync", "dist_async", "dist_ssp"])
VERBS: dict[str, Callable[[Any, Any], Any]] = {
    "init": lambda s, v: s.init("new", v),
    "init of several": lambda s, v: s.init(["new", "newer"], [np.zeros(3, "f4"), v]),
    "init again": lambda s, v: s.init("w", v),
    "broadcast": lambda s, v: s.broadcast("new", v),
    "assign": lambda s, v: s.assign("w", v),
    "push": lambda s, v: s.push("w", v),
    "push of several": lambda s, v: s.push(["w", "x"], [np.zeros(3, "f4"), v]),
    "push lent": lambda s, v: s.push("w", v, copy=False),
    "pushpull": lambda s, v: s.pushpull("w", v),
    "pushpull into out": lambda s, v: s.pushpull("w", v, out=np.zeros(3, "f4")),
}
SAID = r"a list is one value a device; for one array write np\.array\(\[\.\.\.\]\)"


def prepare(store: Any) -> None:
    for key in ("w", "x"):
        store.init(key, np.zeros(3, "f4"))
    if store.type in ("dist_async", "dist_ssp"):
        store.set_optimizer("test")


@LISTS
@TYPES
def test_list_of_plain_numbers_is_refused_by_all_verbs(type: str, value: Any) -> None:
    with asyncps.create(type) as store:
        prepare(store)
        for verb in VERBS.values():
            with pytest.raises(TensorError, match=SAID) as error:
                verb(store, value)
            assert error.value.key in ("w", "x", "new", "newer")
            assert error.value.got is not None
        store.push("w", [np.ones(3, "f4")] * 2)  # device values are what a list is for
        assert store.pull("w").tolist() == [2, 2, 2]
        with pytest.raises(TensorError):
            store.pull("new")  # nothing of it was made


@LISTS
def test_list_of_plain_numbers_is_refused_by_the_awaited_face(value: Any) -> None:
    async def work() -> None:
        async with asyncps.connect("dist_sync") as store:
            await store.init("w", np.zeros(3, "f4"))
            for verb in (store.push, store.pushpull, store.assign):
                with pytest.raises(TensorError, match=SAID):
                    await verb("w", value)
            with pytest.raises(TensorError, match=SAID):
                await store.init("new", value)

    asyncio.run(work())


@pytest.mark.parametrize("size", [3, 100_000])
@pytest.mark.parametrize("transport", ["memory", "tcp"])
def test_list_of_plain_numbers_costs_no_round(size: int, transport: str) -> None:
    def work(store: KVStore) -> None:
        store.init("w", np.zeros(size, "f4"))
        for verb in (store.push, store.pushpull, store.assign):
            with pytest.raises(TensorError, match=SAID):
                verb("w", [0.0] * size)
        assert np.all(store.pushpull("w", np.ones(size, "f4")) == store.num_workers)

    on_cluster(work, transport=transport)


@TYPES
def test_plain_number_is_the_value_of_a_scalar_key(type: str) -> None:
    with asyncps.create(type) as store:
        store.init(["a", "b"], [1.0, np.float64(2)])
        assert [each.shape for each in store.pull(["a", "b"])] == [(), ()]
        store.assign(["a", "b"], [3.0, 4.0])
        assert [float(each) for each in store.pull(["a", "b"])] == [3, 4]


def test_list_of_a_row_sparse_key_is_told_what_it_takes() -> None:
    with asyncps.create("dist_sync") as store:
        store.init("t", asyncps.initializer.Zero(), shape=(3, 2))
        with pytest.raises(TensorError, match=r"'t'.*asyncps\.RowSparse"):
            store.push("t", [1.0, 2.0])
        for wrong in ([[1.0]], [1, 2]):
            with pytest.raises(TensorError, match=SAID):
                store.init("u", wrong)


def test_what_is_no_array_is_named_once() -> None:
    for type in ("local", "dist_sync"):
        with asyncps.create(type) as store:
            store.init("w", np.zeros(3, "f4"))
            with pytest.raises(TensorError) as error:
                store.push("w", None)
            assert str(error.value) == "not an array of numbers (key 'w', got NoneType)"


@pytest.mark.parametrize("type", ["local", "dist_sync"])
def test_barrier_has_the_name_of_mxnet_too(type: str) -> None:
    with asyncps.create(type) as store:
        store._barrier()
