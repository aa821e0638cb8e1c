"""The largest elements of arrays, every variant, against models of sorting and comparing."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from asyncps_ext import reference, select
from tests.asyncps_ext.arrays import Array, assert_bits, floats, read_only, unaligned
from tests.asyncps_ext.selects import (
    ALL_SIZES,
    BODIES,
    bits_of,
    layouts,
    magnitudes,
    variant,
)

__all__ = ["variant"]

BIG = 200_003  # from 4096 on a sample is taken first
NAN = 0x7FC00000


def topk(
    body: ModuleType, x: Array, k: int, layout: Callable[[Array], Array] = np.copy
) -> tuple[Array, Array]:
    """What a kernel chooses, in room that held something else."""
    indices = layout(np.full(k, 7, np.uint32))
    values = layout(np.full(k, 7, np.float32))
    body.topk(x, k, indices, values)
    return indices, values


def sorted_topk(x: Array, k: int) -> Array:
    """Sort by magnitude, downwards, and by index: the first k."""
    order = np.lexsort((np.arange(x.size), -magnitudes(x).astype(np.int64)))
    return np.sort(order[:k]).astype(np.uint32)


def check_topk(body: ModuleType, x: Array, k: int) -> None:
    indices, values = topk(body, x, k)
    np.testing.assert_array_equal(indices, sorted_topk(x, k))
    assert_bits(values, x[indices])


@BODIES
@layouts
@pytest.mark.parametrize("size", ALL_SIZES)
def test_topk_is_the_head_of_a_sorted_list(
    body: ModuleType, layout: Callable[[Array], Array], size: int
) -> None:
    x = floats(size, "float32", 3)
    for k in sorted({0, min(1, size), size // 100, size // 7, size // 2, max(size - 1, 0), size}):
        indices, values = topk(body, layout(read_only(x)), k, layout)
        np.testing.assert_array_equal(indices, sorted_topk(x, k))
        assert_bits(values, x[indices])


@BODIES
def test_numbers_of_equal_magnitude_are_taken_from_the_front(body: ModuleType) -> None:
    x = np.array([1, -3, 3, 2, -2, 3, 0, -0.0], np.float32)
    assert topk(body, x, 2)[0].tolist() == [1, 2]
    assert topk(body, x, 4)[0].tolist() == [1, 2, 3, 5]
    assert topk(body, x, 7)[0].tolist() == [0, 1, 2, 3, 4, 5, 6]
    assert_bits(topk(body, x, 8)[1], x)


@BODIES
def test_nan_lies_above_infinity_and_infinity_above_numbers(body: ModuleType) -> None:
    words = [0x7F7FFFFF, 0xFF800000, NAN, 0x7F800001, 0xFFC00001, 1, 0x80000002, 0]
    x = np.array(words, np.uint32).view(np.float32)
    for k, expected in ((1, [4]), (2, [2, 4]), (3, [2, 3, 4]), (4, [1, 2, 3, 4]),
                        (5, [0, 1, 2, 3, 4]), (6, [0, 1, 2, 3, 4, 6])):  # fmt: skip
        indices, values = topk(body, x, k)
        assert indices.tolist() == expected
        assert bits_of(values).tolist() == [words[i] for i in expected]


def hard_inputs() -> dict[str, Array]:
    """What a histogram, or a sample, does not like."""
    rng = np.random.default_rng(11)
    signs = rng.integers(0, 2, BIG).astype(np.uint32) << 31
    few = np.where(rng.random(BIG) < 0.009, rng.standard_normal(BIG), 0).astype(np.float32)
    more = np.where(rng.random(BIG) < 0.011, rng.standard_normal(BIG), 0).astype(np.float32)
    misled = (1 + rng.random(BIG) * 1e-5).astype(np.float32)
    size = BIG // 64  # where the kernel looks first
    golden = np.arange(size, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15) >> np.uint64(32)
    looked_at = (golden * np.uint64(BIG) >> np.uint64(32)).astype(np.int64)
    misled[looked_at] = 0.5
    raised = np.zeros(BIG, np.float32)
    raised[looked_at] = rng.random(size, dtype=np.float32) + 1
    return {
        "normal": rng.standard_normal(BIG, dtype=np.float32),
        "equal": np.full(BIG, -0.5, np.float32),
        "zero": (signs * 1).view(np.float32),
        "one bin": (1 + rng.random(BIG) * 0.1).astype(np.float32),
        "neighbours": (signs | (0x3F800000 + rng.integers(0, 900, BIG).astype(np.uint32)))
        .astype(np.uint32)
        .view(np.float32),
        "few numbers": rng.integers(-20, 21, BIG).astype(np.float32),
        "denormals": (signs | rng.integers(1, 1 << 20, BIG).astype(np.uint32)).view(np.float32),
        "any bits": rng.integers(0, 1 << 32, BIG, dtype=np.uint32).view(np.float32),
        "not enough that differ": few,
        "enough that differ": more,
        "ascending": np.arange(BIG, dtype=np.float32),
        "the sample is all small": misled,
        "the sample is all large": raised,
        "largest last": np.repeat(np.float32([1, 2]), [BIG - 5, 5]),
    }


HARD = hard_inputs()


@BODIES
@pytest.mark.parametrize("name", HARD)
def test_topk_of_hard_inputs(body: ModuleType, name: str) -> None:
    for k in (1, 5, 6, 100, BIG // 100, BIG // 8, BIG // 2, BIG - 1, BIG):
        check_topk(body, HARD[name], k)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_topk_equals_the_model(data: st.DataObject) -> None:
    pool = st.sampled_from([0, 1, 2, 0x3F800000, 0x3F800001, 0x40000000, 0x7F800000, NAN])
    words = data.draw(st.lists(pool | st.integers(0, (1 << 32) - 1), max_size=60))
    repeat = data.draw(st.sampled_from([1, 1, 5, 2000]))
    x = np.tile(np.array(words, np.uint32), repeat).view(np.float32)
    k = data.draw(st.integers(0, x.size))
    expected = sorted_topk(x, k)
    indices, values = topk(select, x, k)
    np.testing.assert_array_equal(indices, expected)
    assert_bits(values, x[indices])


@BODIES
def test_topk_refuses_what_it_cannot_do(body: ModuleType) -> None:
    x, indices, values = np.ones(5, "f4"), np.zeros(3, "u4"), np.zeros(3, "f4")
    wrong = [
        ((x, 4, indices, values), ValueError, "indices has 3 elements, expected 4"),
        ((x, 6, np.zeros(6, "u4"), np.zeros(6, "f4")), ValueError, "k must be from 0 to 5, not 6"),
        ((x, -1, indices, values), ValueError, "k must be from 0 to 5, not -1"),
        ((x, 3, indices, values[:2]), ValueError, "values has 2 elements, indices has 3"),
        ((x.astype("f8"), 3, indices, values), TypeError, "x must be float32, not float64"),
        ((x, 3, indices.astype("i4"), values), TypeError, "indices must be uint32, not int32"),
        ((x, 3, indices.astype("u8"), values), TypeError, "indices must be uint32, not uint64"),
        ((x, 3, indices, values.astype("f2")), TypeError, "values must be float32, not float16"),
        ((x, 3, read_only(indices), values), ValueError, "indices is read-only"),
        ((x, 3, indices, read_only(values)), ValueError, "values is read-only"),
        ((x, 3, indices, indices.view("f4")), ValueError, "indices and values overlap"),
        ((x, 3, indices, x[2:]), ValueError, "x and values overlap"),
        ((x, 3, x[1:4].view("u4"), values), ValueError, "x and indices overlap"),
        ((x[::2], 3, indices, values), ValueError, "x must be 1-d and C-contiguous"),
        ((x.reshape(5, 1), 3, indices, values), ValueError, "x must be 1-d"),
        ((x.astype(">f4"), 3, indices, values), TypeError, "native byte order"),
        (([1.0], 1, indices[:1], values[:1]), TypeError, "x must be a NumPy array, not list"),
    ]
    for arguments, kind, text in wrong:
        with pytest.raises(kind, match=text):
            body.topk(*arguments)
    assert not indices.any()
    assert not values.any()


# ---------------------------------------------------------------------------------------- threshold


@BODIES
@layouts
@pytest.mark.parametrize("t", [0, 1e-45, 0.1, 1.0, 3e38, np.inf, 1e300, -1.0])
def test_threshold_chooses_what_is_as_large(
    body: ModuleType, layout: Callable[[Array], Array], t: float
) -> None:
    for size in ALL_SIZES:
        x = floats(size, "float32", 5)
        with np.errstate(over="ignore"):
            expected = np.flatnonzero((np.abs(x) >= np.float32(t)) | np.isnan(x))
        count = body.count_threshold(layout(read_only(x)), t)
        assert count == expected.size
        for room in (count, count + 1, size + 9):
            indices, values = layout(np.zeros(room, "u4")), layout(np.zeros(room, "f4"))
            assert body.threshold(layout(x), t, indices, values) == count
            np.testing.assert_array_equal(indices[:count], expected)
            assert_bits(values[:count], x[expected])


@BODIES
@pytest.mark.parametrize("size", [1, 9, 64, 301, 20_001])
def test_too_little_room_is_an_error_and_nothing_behind_it_is_written(
    body: ModuleType, size: int
) -> None:
    x = floats(size, "float32", 6)
    x[::3] = 5.0
    count = body.count_threshold(x, 5.0)
    for room in sorted({0, 1, count // 2, count - 1} - {count}):
        indices, values = np.full(room + 20, 7, "u4"), np.full(room + 20, 7, "f4")
        message = f"indices has {room} elements, expected {count} or more"
        with pytest.raises(ValueError, match=message):
            body.threshold(x, 5.0, indices[:room], values[:room])
        assert (indices[room:] == 7).all()
        assert (values[room:] == 7).all()


@BODIES
def test_a_threshold_is_a_number(body: ModuleType) -> None:
    x, indices, values = np.ones(3, "f4"), np.zeros(3, "u4"), np.zeros(3, "f4")
    with pytest.raises(ValueError, match="t must be a number, not nan"):
        body.threshold(x, np.nan, indices, values)
    with pytest.raises(ValueError, match="t must be a number, not nan"):
        body.count_threshold(x, float("nan"))
    assert body.count_threshold(x, -0.0) == 3
    assert body.count_threshold(x, -1e-60) == 3
    assert body.count_threshold(np.float32([0.1]), 0.1) == 1  # t is rounded to float32
    with pytest.raises(TypeError, match="x must be float32, not int64"):
        body.count_threshold(np.ones(3, "i8"), 1.0)


@BODIES
@pytest.mark.parametrize("t", [1e-60, 5e-324, 2.0**-150])
def test_a_threshold_that_float32_rounds_to_0_is_refused(body: ModuleType, t: float) -> None:
    x, indices, values = np.zeros(3, "f4"), np.zeros(3, "u4"), np.ones(3, "f4")
    message = f"t must be above 0 as a float32 too, not {t!r}"
    with pytest.raises(ValueError, match=message):
        body.threshold(x, t, indices, values)
    with pytest.raises(ValueError, match=message):
        body.count_threshold(x, t)
    assert values.tolist() == [1, 1, 1]
    x[1] = 2.0**-149
    assert body.threshold(x, np.nextafter(2.0**-150, 1), indices, values) == 1


@example(words=[0x3DCCCCCD] * 9, t=0.1, room=8)
@settings(max_examples=60, deadline=None)
@given(
    words=st.lists(st.integers(0, (1 << 32) - 1), max_size=200),
    t=st.floats(allow_nan=False).filter(lambda t: not 0 < t <= 2.0**-150),
    room=st.integers(0, 200),
)
def test_threshold_and_its_twin_agree(words: list[int], t: float, room: int) -> None:
    x = np.array(words, np.uint32).view(np.float32)
    count = reference.select.count_threshold(x, t)
    assert select.count_threshold(x, t) == count
    ours = np.zeros(room, "u4"), np.zeros(room, "f4")
    twins = np.zeros(room, "u4"), np.zeros(room, "f4")
    if room < count:
        for body, arrays in ((select, ours), (reference.select, twins)):
            with pytest.raises(ValueError, match=f"expected {count} or more"):
                body.threshold(x, t, *arrays)
        return
    assert select.threshold(x, t, *ours) == count
    assert reference.select.threshold(x, t, *twins) == count
    assert_bits(ours[0][:count], twins[0][:count])
    assert_bits(ours[1][:count], twins[1][:count])


def test_unaligned_twins_are_the_same(variant: str) -> None:
    x = floats(5001, "float32", 8)
    ours = topk(select, unaligned(x), 50, unaligned)
    twins = topk(reference.select, x, 50)
    assert_bits(ours[0], twins[0])
    assert_bits(ours[1], twins[1])
