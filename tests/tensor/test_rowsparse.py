"""RowSparse: what it keeps, what it refuses, from dense and from pairs."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import asyncps
from asyncps.errors import DtypeMismatch, ShapeMismatch, TensorError
from asyncps.tensor.rowsparse import RowSparse


def test_it_is_a_public_name() -> None:
    assert asyncps.RowSparse is RowSparse


def test_rows_and_values_that_fit_are_kept_and_others_copied() -> None:
    rows, values = np.array([1, 4]), np.ones((2, 3), np.float32)
    kept = RowSparse(rows, values, (5, 3))
    assert kept.rows is rows
    assert kept.values is values
    assert (kept.shape, kept.dtype, kept.nbytes, len(kept)) == ((5, 3), np.float32, 40, 2)
    assert repr(kept) == "RowSparse(2 rows of (5, 3), float32)"
    copied = RowSparse([1, 4], values[:, ::-1], [5, 3])
    assert copied.rows.dtype == np.int64
    assert copied.values.flags.c_contiguous


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint32", "int32", "uint64", ">i8"])
def test_other_integers_become_int64(dtype: str) -> None:
    made = RowSparse(np.array([0, 7], dtype), np.zeros((2, 1)), (8, 1))
    assert made.rows.dtype == np.int64
    assert made.rows.dtype.isnative
    assert made.rows.tolist() == [0, 7]


@pytest.mark.parametrize("rows", [
    np.array([0.0, 1.0]), np.array([0, 1], np.float32), np.empty(0, np.float64), [0.0, 1.0],
    np.array([False, True]), ["0", "1"], np.array([0, 1], object), [0, 2**70], [None],
])  # fmt: skip
def test_rows_that_are_no_integers_are_refused(rows: Any) -> None:
    with pytest.raises(DtypeMismatch, match="row ids must be integers") as caught:
        RowSparse(rows, np.zeros((len(rows), 1)), (8, 1))
    assert caught.value.expected == "int64"


@pytest.mark.parametrize("rows", [[1, 1], [2, 1], [-1, 0], [0, 8], np.array([0, 2**63], "u8")])
def test_rows_repeat_fall_or_lie_outside(rows: Any) -> None:
    with pytest.raises(TensorError):
        RowSparse(rows, np.zeros((2, 1)), (8, 1))


def test_from_pairs_is_named_to_who_repeats_a_row() -> None:
    with pytest.raises(TensorError, match=r"from_pairs.*expected at least 0, below 8.*got 3, 3"):
        RowSparse([3, 3], np.zeros((2, 1)), (8, 1))


@pytest.mark.parametrize(("rows", "values", "shape"), [
    ([0, 1], np.zeros((1, 2)), (4, 2)),
    ([0], np.zeros((1, 3)), (4, 2)),
    ([0], np.zeros(1), (4, 2)),
    ([[0]], np.zeros((1, 2)), (4, 2)),
    (0, np.zeros((1, 2)), (4, 2)),
    ([], np.zeros((0, 2)), ()),
    ([], np.zeros((0, 2)), (-4, 2)),
    ([], np.zeros((0, 2)), (4.5, 2)),
    ([], np.zeros((0, 2)), (5.0, 2)),
    ([], np.zeros((0, 2)), (5, np.float64(2))),
    ([], np.zeros((0, 2)), ("5", 2)),
    ([], np.zeros((0, 2)), (10**5000, 2)),
    ([], np.zeros((0, 2)), (2**63, 2)),
])  # fmt: skip
def test_shapes_that_do_not_fit_are_refused(rows: Any, values: Any, shape: Any) -> None:
    with pytest.raises(ShapeMismatch):
        RowSparse(rows, values, shape)


@pytest.mark.parametrize("dtype", ["complex64", "object", ">f4", "uint16", "bool"])
def test_values_of_a_dtype_that_is_not_stored_are_refused(dtype: str) -> None:
    with pytest.raises(DtypeMismatch):
        RowSparse([0], np.zeros((1, 2), dtype), (4, 2))


def test_nothing_at_all_is_fine() -> None:
    empty = RowSparse([], np.zeros((0, 2), np.float16), (2**40, 2))
    assert (len(empty), empty.nbytes) == (0, 0)
    assert RowSparse.from_pairs([], np.zeros((0, 2)), (4, 2)).to_dense().tolist() == [[0, 0]] * 4
    assert RowSparse.from_dense(np.zeros((0, 3))).shape == (0, 3)
    assert RowSparse([1], np.zeros((1, 0)), (4, 0)).to_dense().shape == (4, 0)
    assert RowSparse.from_pairs([1, 1], np.zeros((2, 0)), (4, 0)).rows.tolist() == [1]


def test_rows_that_are_all_zero_are_left_out_and_nan_is_not_zero() -> None:
    dense = np.array([[0, 0], [0, -0.0], [np.nan, 0], [0, 5e-324], [0, 0]])
    sparse = RowSparse.from_dense(dense)
    assert sparse.rows.tolist() == [2, 3]
    np.testing.assert_array_equal(sparse.to_dense(), dense)
    assert not np.shares_memory(sparse.values, dense)
    with pytest.raises(ShapeMismatch):
        RowSparse.from_dense(np.float32(3))


def test_vectors_and_higher_shapes_have_rows_too() -> None:
    vector = RowSparse.from_dense(np.array([0, 3, 0, 4], np.int32))
    assert (vector.rows.tolist(), vector.values.tolist()) == ([1, 3], [3, 4])
    cube = RowSparse.from_pairs([1, 0, 1], np.ones((3, 2, 2)), (3, 2, 2))
    assert cube.to_dense().sum(axis=(1, 2)).tolist() == [4, 8, 0]


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_halves_that_repeat_are_summed_in_f32_and_rounded_once(dtype: Any) -> None:
    # 64 times 1e-3: summed in halves the error adds up (ACCEPTANCE K22 for f16).
    values = np.full((64, 1), 1e-3, dtype)
    got = RowSparse.from_pairs(np.zeros(64, np.int64), values, (1, 1)).values[0, 0]
    expected = dtype(np.full(64, 1e-3, dtype).astype(np.float32).sum(dtype=np.float32))
    assert got == expected
    if dtype is np.float16:
        assert abs(float(got) - 0.06402588) < 1e-8


def test_integers_that_repeat_wrap() -> None:
    pairs = RowSparse.from_pairs([0, 0], np.array([[100], [100]], np.int8), (1, 1))
    assert pairs.values.tolist() == [[-56]]


@pytest.mark.parametrize("bad", [-1, 4])
def test_pairs_out_of_range_are_refused(bad: int) -> None:
    with pytest.raises(TensorError, match="out of range") as caught:
        RowSparse.from_pairs([0, bad], np.zeros((2, 2)), (4, 2))
    assert caught.value.got == str(bad)


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(-9, 9), st.integers(-9, 9)), max_size=30))
def test_pairs_sum_to_the_dense_sum(pairs: list[tuple[int, int, int]]) -> None:
    rows = np.array([row for row, *_ in pairs], np.int64)
    values = np.array([value for _, *value in pairs], np.float32).reshape(-1, 2)
    dense = np.zeros((10, 2), np.float32)
    np.add.at(dense, rows, values)
    sparse = RowSparse.from_pairs(rows, values, (10, 2))
    assert sparse.rows.tolist() == sorted(set(rows.tolist()))
    np.testing.assert_array_equal(sparse.to_dense(), dense)
    again = RowSparse.from_dense(dense)
    np.testing.assert_array_equal(again.to_dense(), dense)
    assert dense[again.rows].any(axis=1).all()
