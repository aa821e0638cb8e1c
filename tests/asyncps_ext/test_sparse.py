"""Rows by slot and sums of sparse rows: compiled kernels and twins against models."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncps_ext import reference, sparse
from tests.asyncps_ext.arrays import LAYOUTS, Array, assert_same, numbers, read_only, unaligned

BODIES = pytest.mark.parametrize("body", [sparse, reference.sparse], ids=["chosen", "reference"])
SUMS = ["float32", "float64", "int8", "uint8", "int32", "int64"]
sums = pytest.mark.parametrize("dtype", SUMS)
widths = pytest.mark.parametrize("width", [1, 3, 64, 1037])
layouts = pytest.mark.parametrize("layout", LAYOUTS)
NAMES = [
    "check_ids", "unique_rows", "gather_rows_at", "scatter_set_at", "scatter_add_at", "merge_rows",
    "sum_groups", "sum_duplicates",
]


def ids(*values: int) -> Array:
    return np.array(values, np.int64)


def some_ids(n: int, below: int, seed: int = 0) -> Array:
    """Unique ascending ids."""
    return np.sort(np.random.default_rng(seed).choice(below, n, replace=False)).astype(np.int64)


# ------------------------------------------------------------------------------------- check_ids

BAD_IDS = [
    ([], 0, -1), ([], 10, -1), ([0], 1, -1), ([0], 0, 0), ([1], 1, 0), ([-1], 10, 0),
    ([3, 3], 10, 1), ([3, 2], 10, 1), ([0, 1, 2, 9], 10, -1), ([0, 1, 2, 10], 10, 3),
    ([5, 6, -7, 8], 10, 2), ([2**63 - 1], 2**63 - 1, 0), ([0, 2**63 - 2], 2**63 - 1, -1),
    ([-(2**63)], 10, 0), ([4, 1, 0], 3, 0),
]  # fmt: skip


@BODIES
@layouts
@pytest.mark.parametrize(("values", "limit", "bad"), BAD_IDS)
def test_the_first_bad_id_is_found(
    body: ModuleType, layout: Callable[[Array], Array], values: list[int], limit: int, bad: int
) -> None:
    assert body.check_ids(layout(np.array(values, np.int64)), limit) == bad
    if all(0 <= value < 2**32 for value in values):
        assert body.check_ids(read_only(np.array(values, np.uint32)), limit) == bad


@BODIES
def test_ids_are_int64_or_uint32(body: ModuleType) -> None:
    for dtype in ("int32", "float64", "uint64"):
        with pytest.raises(TypeError, match="int64 or uint32"):
            body.check_ids(np.zeros(1, dtype), 5)
    with pytest.raises(TypeError, match="NumPy array"):
        body.check_ids([1], 5)


@BODIES
@pytest.mark.parametrize("dtype", ["int64", "uint32"])
@pytest.mark.parametrize("at", [1, 255, 256, 257, 511, 512, 513, 999])
def test_a_fault_among_many_ids_is_found(body: ModuleType, dtype: str, at: int) -> None:
    many = np.arange(1000).astype(dtype)
    assert body.check_ids(many, 1000) == -1
    assert body.check_ids(many, at) == at
    many[at] = many[at - 1]
    assert body.check_ids(many, 1000) == at
    many[at - 1 :] = np.arange(2000, 2001 + 1000 - at)
    assert body.check_ids(many, 2000) == at - 1


@given(st.lists(st.integers(-3, 12), max_size=8), st.integers(0, 12))
def test_checking_ids_equals_the_model(values: list[int], limit: int) -> None:
    rising = [b > a for a, b in zip([-1, *values], values, strict=False)]
    good = [up and 0 <= v < limit for up, v in zip(rising, values, strict=True)]
    expected = good.index(False) if False in good else -1
    for body in (sparse, reference.sparse):
        assert body.check_ids(np.array(values, np.int64), limit) == expected


# ----------------------------------------------------------------------------------- unique_rows


@given(st.lists(
    st.one_of(st.integers(-(2**63), 2**63 - 1), st.integers(0, 9), st.integers(0, 5000)),
    max_size=60,
))  # fmt: skip
def test_unique_rows_equals_numpy(values: list[int]) -> None:
    array = np.array(values, np.int64)
    expected = np.unique(array, return_inverse=True)
    for body in (sparse, reference.sparse):
        for actual, wanted in zip(body.unique_rows(array), expected, strict=True):
            assert_same(actual, wanted.astype(np.int64))


@pytest.mark.parametrize("span", [1, 1000, 10**6, 10**9, 2**40, 2**63 - 1])
@pytest.mark.parametrize("n", [0, 1, 1001, 50_000])
def test_unique_rows_of_many_ids(n: int, span: int) -> None:
    array = np.random.default_rng(n).integers(0, span, n)
    for given_ in (array, np.sort(array), unaligned(array - span // 2), read_only(array)):
        expected = np.unique(given_, return_inverse=True)
        for actual, wanted in zip(sparse.unique_rows(given_), expected, strict=True):
            assert_same(actual, wanted)


# ---------------------------------------------------------------------------------- rows by slot


def table(dtype: str, width: int, blocks: int, each: int = 8) -> tuple[list[Array], Array]:
    """A table in blocks at odd addresses, and the same as one 2-d array."""
    whole = numbers(blocks * each * width, dtype, width)
    parts = [unaligned(part) for part in np.split(whole, blocks)] if blocks else []
    return parts, whole.reshape(-1, width).copy()


@BODIES
@layouts
@widths
@pytest.mark.parametrize("dtype", [*SUMS, "uint16"])
@pytest.mark.parametrize("blocks", [1, 4])
def test_rows_are_gathered_and_scattered(
    body: ModuleType, layout: Callable[[Array], Array], dtype: str, width: int, blocks: int
) -> None:
    parts, whole = table(dtype, width, blocks)
    for n in (0, 1, 7, 33):
        slots = np.random.default_rng(n).integers(0, len(whole), n)
        out = layout(np.zeros(n * width, dtype))
        body.gather_rows_at([read_only(part) for part in parts], width, layout(slots), out)
        assert_same(out, whole[slots].reshape(-1))
        rows = numbers(n * width, dtype, 5 + n)
        body.scatter_set_at(parts, width, read_only(slots), layout(rows))
        for slot, row in zip(slots, rows.reshape(-1, width), strict=True):
            whole[slot] = row
        assert_same(np.concatenate(parts), whole.reshape(-1))


@BODIES
@layouts
@widths
@sums
@pytest.mark.parametrize("blocks", [1, 4])
def test_rows_are_added_one_after_another(
    body: ModuleType, layout: Callable[[Array], Array], dtype: str, width: int, blocks: int
) -> None:
    parts, whole = table(dtype, width, blocks)
    slots = np.random.default_rng(1).integers(0, len(whole), 50)
    rows = numbers(50 * width, dtype, 9)
    body.scatter_add_at(parts, width, layout(slots), layout(rows))
    with np.errstate(all="ignore"):
        for slot, row in zip(slots, rows.reshape(-1, width), strict=True):
            whole[slot] = whole[slot] + row
    assert_same(np.concatenate(parts), whole.reshape(-1))


@BODIES
def test_one_block_may_have_any_number_of_rows(body: ModuleType) -> None:
    block, out = np.arange(10.0), np.empty(4)
    body.gather_rows_at([block], 2, ids(4, 0), out)
    assert out.tolist() == [8.0, 9.0, 0.0, 1.0]


@BODIES
@pytest.mark.parametrize("slot", [-1, 16, 2**40, -(2**63), 2**63 - 1])
@pytest.mark.parametrize("name", ["gather_rows_at", "scatter_set_at", "scatter_add_at"])
def test_a_slot_outside_of_the_table_touches_nothing(
    body: ModuleType, name: str, slot: int
) -> None:
    parts, rows = [np.ones(16), np.ones(16)], np.full(4, 7.0)
    with pytest.raises(IndexError, match=rf"slot {slot} at 1 is outside of the 16 rows"):
        getattr(body, name)(parts, 2, ids(3, slot), rows)
    assert np.concatenate(parts).tolist() == [1.0] * 32
    assert rows.tolist() == [7.0] * 4
    with pytest.raises(IndexError, match="outside of the 0 rows"):
        getattr(body, name)([], 2, ids(0), rows[:2])


@BODIES
@pytest.mark.parametrize("name", ["gather_rows_at", "scatter_set_at", "scatter_add_at"])
def test_what_is_no_table_is_refused(body: ModuleType, name: str) -> None:
    kernel, rows, slots = getattr(body, name), np.zeros(4), ids(0, 1)
    wrong: list[tuple[Any, int, Any, Any, type[Exception], str]] = [
        ([np.zeros(8), np.zeros(6)], 2, slots, rows, ValueError, "expected rows of 2, 4 in every"),
        ([np.zeros(7)], 2, slots, rows, ValueError, "expected rows of 2"),
        ([np.zeros(6), np.zeros(6)], 2, slots, rows, ValueError, "a power of two"),
        ([np.zeros(8, "f4")], 2, slots, rows, TypeError, "must be float64, not float32"),
        ([np.zeros(8)], 3, slots, rows, ValueError, "expected 2 rows of 3"),
        ([np.zeros(8)], 0, slots, rows, ValueError, "at least 1"),
        ([np.zeros(8)], 2, slots.astype("i4"), rows, TypeError, "slots must be int64"),
        ((np.zeros(8),), 2, slots, rows, TypeError, "list"),
        ([rows], 2, slots, rows, ValueError, "overlap"),
        ([np.zeros((2, 4))], 2, slots, rows, ValueError, "1-d"),
    ]
    for blocks, width, which, given_, kind, text in wrong:
        with pytest.raises(kind, match=text):
            kernel(blocks, width, which, given_)
    blocks = [np.zeros(8)]
    written = "out" if name == "gather_rows_at" else "block"
    if written == "out":
        rows = read_only(rows)
    else:
        blocks = [read_only(blocks[0])]
    with pytest.raises(ValueError, match=f"{written} is read-only"):
        kernel(blocks, 2, slots, rows)


# ------------------------------------------------------------------------------------------ sums


def merged(body: ModuleType, a: Array, x: Array, b: Array, y: Array, width: int) -> Any:
    room = a.size + b.size
    union, out = np.empty(room, np.int64), unaligned(np.empty(room * width, x.dtype))
    k = body.merge_rows(a, x, b, y, width, union, out)
    return union[:k], out[: k * width]


def model_sum(width: int, dtype: str, *parts: tuple[Array, Array]) -> tuple[Array, Array]:
    """The first row of an id is taken, each further one added."""
    found: dict[int, Array] = {}
    with np.errstate(all="ignore"):
        for which, rows in parts:
            for id_, row in zip(which.tolist(), rows.reshape(-1, width), strict=True):
                found[id_] = found[id_] + row if id_ in found else row
    keys = sorted(found)
    flat = [found[key] for key in keys] or [np.empty(0, dtype)]
    return np.array(keys, np.int64), np.concatenate(flat)


@BODIES
@layouts
@widths
@sums
def test_sorted_rows_are_merged(
    body: ModuleType, layout: Callable[[Array], Array], dtype: str, width: int
) -> None:
    for na, nb in [(0, 0), (0, 5), (5, 0), (1, 1), (40, 40), (3, 60), (60, 3), (99, 99)]:
        a, b = some_ids(na, 100, 1), some_ids(nb, 100, 2)
        x, y = numbers(na * width, dtype, 3), numbers(nb * width, dtype, 4)
        expected = model_sum(width, dtype, (a, x), (b, y))
        got = merged(body, layout(a), layout(x), read_only(b), read_only(y), width)
        assert_same(got[0], expected[0])
        assert_same(got[1], expected[1])


@BODIES
@widths
@sums
def test_rows_with_the_same_id_are_summed_in_their_order(
    body: ModuleType, dtype: str, width: int
) -> None:
    for n, span in [(0, 1), (1, 1), (60, 1), (60, 10), (60, 10**12)]:
        which = np.random.default_rng(n).integers(0, span, n)
        rows = numbers(n * width, dtype, 3)
        expected = model_sum(width, dtype, (which, rows))
        got = body.sum_duplicates(read_only(which), unaligned(rows), width)
        assert_same(got[0], expected[0])
        assert_same(got[1], expected[1])


@BODIES
def test_a_group_without_rows_is_zero_and_a_single_minus_zero_stays(body: ModuleType) -> None:
    out = np.full(3, 9.0)
    body.sum_groups(ids(2, 0, 2), np.array([1.0, -0.0, 2.0]), 1, out)
    assert_same(out, np.array([-0.0, 0.0, 3.0]))
    with pytest.raises(IndexError, match="group 3 at 1"):
        body.sum_groups(ids(0, 3), np.ones(2), 1, out)
    assert_same(out, np.array([-0.0, 0.0, 3.0]))


@BODIES
def test_merging_wants_room_and_one_dtype(body: ModuleType) -> None:
    a, x = ids(1, 2), np.zeros(2)
    with pytest.raises(ValueError, match="ids has 3 elements, expected 4"):
        body.merge_rows(a, x, a.copy(), x.copy(), 1, np.empty(3, np.int64), np.empty(4))
    with pytest.raises(ValueError, match="out has 3 elements"):
        body.merge_rows(a, x, a.copy(), x.copy(), 1, np.empty(4, np.int64), np.empty(3))
    with pytest.raises(TypeError, match="b must be float64"):
        body.merge_rows(a, x, a.copy(), x.astype("f4"), 1, np.empty(4, np.int64), np.empty(4))
    with pytest.raises(TypeError, match="float16"):
        body.merge_rows(a, x.astype("f2"), a, x, 1, np.empty(4, np.int64), np.empty(4))
    place = np.empty(6)
    with pytest.raises(ValueError, match="out and a overlap"):
        body.merge_rows(a, place[:2], a.copy(), x, 1, np.empty(4, np.int64), place[1:5])
    with pytest.raises(ValueError, match="read-only"):
        body.merge_rows(a, x, a, x, 1, np.empty(4, np.int64), read_only(np.empty(4)))


row_sets = st.lists(
    st.lists(st.tuples(st.integers(0, 20), st.integers(-50, 50)), max_size=12), max_size=6
)


@given(row_sets)
def test_a_chain_of_merges_equals_a_dictionary(contributions: list[list[tuple[int, int]]]) -> None:
    total: dict[int, int] = {}
    for body in (sparse, reference.sparse):
        total.clear()
        have, values = ids(), np.empty(0, np.int64)
        for pairs in contributions:
            which = np.array([id_ for id_, _ in pairs], np.int64)
            rows = np.array([value for _, value in pairs], np.int64)
            have, values = merged(body, have, values, *body.sum_duplicates(which, rows, 1), 1)
            for id_, value in pairs:
                total[id_] = total.get(id_, 0) + value
        assert dict(zip(have.tolist(), values.tolist(), strict=True)) == total
        assert have.tolist() == sorted(total)


@pytest.mark.parametrize("name", NAMES)
def test_a_twin_has_the_parameters_of_its_kernel(name: str) -> None:
    ours, twin = (inspect.signature(getattr(body, name)) for body in (sparse, reference.sparse))
    assert list(ours.parameters) == list(twin.parameters)
