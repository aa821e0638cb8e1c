"""Indexes from row ids to slots: compiled, twins, and a dictionary as the model of both."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncps_ext import reference, sparse_index
from tests.asyncps_ext.arrays import Array, read_only, unaligned

MAKERS: dict[str, Any] = {
    "hash": sparse_index.RowIndex,
    "hash twin": reference.sparse_index.RowIndex,
    "range": lambda: sparse_index.RangeIndex(0, 1_000_000),
    "range twin": lambda: reference.sparse_index.RangeIndex(0, 1_000_000),
}
makers = pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)


def inserted(index: Any, ids: Array) -> tuple[list[int], int]:
    slots = np.full(ids.size, -7, np.int64)
    new = index.insert(ids, slots)
    return slots.tolist(), new


def looked_up(index: Any, ids: Array) -> list[int]:
    slots = np.full(ids.size, -7, np.int64)
    index.lookup(ids, slots)
    result: list[int] = slots.tolist()
    return result


@makers
def test_slots_go_by_the_order_of_first_use(make: Any) -> None:
    index = make()
    assert (len(index), index.items().tolist()) == (0, [])
    assert inserted(index, np.array([70, 3, 70, 9])) == ([0, 1, 0, 2], 3)
    assert inserted(index, np.array([9, 4, 3])) == ([2, 3, 1], 1)
    assert looked_up(index, np.array([4, 5, 70, -1, -(2**63), 2**63 - 1])) == [3, -1, 0, -1, -1, -1]
    assert index.items().tolist() == [70, 3, 9, 4]
    assert len(index) == 4
    assert inserted(index, np.empty(0, np.int64)) == ([], 0)


@given(st.lists(st.lists(
    st.one_of(st.integers(0, 30), st.integers(0, 999_999)), max_size=40), max_size=8,
))  # fmt: skip
def test_any_calls_equal_a_dictionary(calls: list[list[int]]) -> None:
    for make in MAKERS.values():
        index, model = make(), dict[int, int]()
        for call in calls:
            before = len(model)
            ids = np.array(call, np.int64)
            assert looked_up(index, ids) == [model.get(id_, -1) for id_ in call]
            wanted = [model.setdefault(id_, len(model)) for id_ in call]
            assert inserted(index, ids) == (wanted, len(model) - before)
        assert index.items().tolist() == list(model)


@makers
@pytest.mark.parametrize("order", ["rising", "random"])
def test_many_ids_grow_the_index(make: Any, order: str) -> None:
    n = 200_000
    ids = np.arange(n, dtype=np.int64) * 5
    if order == "random":
        ids = np.random.default_rng(1).permutation(ids)
    index = make()
    for part in np.array_split(ids, 7):
        inserted(index, part)
    assert looked_up(index, ids) == list(range(n))
    assert looked_up(index, ids + 1) == [-1] * n
    np.testing.assert_array_equal(index.items(), ids)


def test_ids_of_any_size_are_found_again() -> None:
    for index in (sparse_index.RowIndex(), reference.sparse_index.RowIndex()):
        ids = np.concatenate([2 ** np.arange(62, dtype=np.int64), [0, 2**63 - 2]])
        assert inserted(index, ids)[0] == list(range(64))
        assert looked_up(index, ids) == list(range(64))


def test_memory_follows_the_ids_that_are_there() -> None:
    index = sparse_index.RowIndex()
    assert index.nbytes < 4096
    ids = np.random.default_rng(0).integers(0, 2**62, 300_000)
    inserted(index, ids)
    assert 16 * len(index) < index.nbytes < 64 * len(index)
    assert sparse_index.RangeIndex(5, 1005).nbytes == 4000


@makers
@pytest.mark.parametrize("bad", [-1, -(2**63), 2**63 - 1])
def test_an_id_out_of_range_changes_nothing(make: Any, bad: int) -> None:
    index = make()
    inserted(index, np.array([1]))
    with pytest.raises(ValueError, match=f"id {bad} at 1 is outside of 0"):
        inserted(index, np.array([2, bad]))
    assert (len(index), looked_up(index, np.array([1, 2]))) == (1, [0, -1])


@pytest.mark.parametrize("module", [sparse_index, reference.sparse_index])
def test_a_range_knows_its_ends(module: Any) -> None:
    index = module.RangeIndex(10, 13)
    assert inserted(index, np.array([12, 10])) == ([0, 1], 2)
    assert looked_up(index, np.array([9, 10, 11, 12, 13])) == [-1, 1, -1, 0, -1]
    for bad in (9, 13):
        with pytest.raises(ValueError, match=r"outside of 10\.\.12"):
            inserted(index, np.array([bad]))
    assert len(module.RangeIndex(7, 7)) == 0
    for first, stop in [(-1, 4), (5, 4), (0, 2**32 - 1)]:
        with pytest.raises(ValueError, match="cannot be kept"):
            module.RangeIndex(first, stop)


@makers
def test_arguments_are_checked(make: Any) -> None:
    index, ids = make(), np.array([1, 2])
    for call in (index.lookup, index.insert):
        with pytest.raises(TypeError, match="ids must be int64"):
            call(ids.astype("f8"), ids)
        with pytest.raises(TypeError, match="slots must be int64"):
            call(ids, ids.astype("i4"))
        with pytest.raises(ValueError, match="slots has 1 elements, ids has 2"):
            call(ids, ids[:1].copy())
        with pytest.raises(ValueError, match="slots is read-only"):
            call(ids, read_only(ids))
        place = np.arange(4)
        with pytest.raises(ValueError, match="overlap"):
            call(place[:2], place[1:3])
    given_ = unaligned(ids)
    index.insert(given_, given_)
    assert given_.tolist() == [0, 1]
