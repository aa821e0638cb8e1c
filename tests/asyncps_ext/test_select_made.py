"""The largest elements of what two arrays make, in every variant: topk of the sum or difference."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncps_ext import reference, select
from tests.asyncps_ext.arrays import Array, assert_bits, floats, read_only, unaligned
from tests.asyncps_ext.selects import ALL_SIZES, BODIES, layouts, magnitudes, variant

__all__ = ["variant"]

BIG = 200_003  # from 4096 on a sample is taken first
KINDS = pytest.mark.parametrize("kind", ["sum", "difference"])
Layout = Callable[[Array], Array]


def made(kind: str, a: Array, b: Array) -> Array:
    """What is searched."""
    with np.errstate(all="ignore"):
        return (a + b if kind == "sum" else a - b).astype(np.float32)


def first(x: Array, k: int) -> Array:
    """Sort by magnitude, downwards, and by index: the first k, ascending."""
    order = np.lexsort((np.arange(x.size), -magnitudes(x).astype(np.int64)))
    return np.sort(order[:k]).astype(np.uint32)


def check(
    body: ModuleType, kind: str, a: Array, b: Array, k: int, layout: Layout = np.copy
) -> None:
    """Both arrays and what is chosen, against the model."""
    expected = made(kind, a, b)
    x, y = layout(a), layout(read_only(b))
    indices, values = layout(np.full(k, 7, np.uint32)), layout(np.full(k, 7, np.float32))
    getattr(body, f"topk_{kind}")(x, y, k, indices, values)
    np.testing.assert_array_equal(indices, first(expected, k))
    assert_bits(values, expected[indices])
    assert_bits(x, expected if kind == "sum" else a)
    assert_bits(y, b)


def numbers(size: int, seed: int) -> Array:
    """All magnitudes, -0.0 and denormals; no NaN, whose payloads no rule gives to a sum."""
    x = floats(size, "float32", seed)
    x[~np.isfinite(x)] = -0.0
    return x


@BODIES
@layouts
@KINDS
@pytest.mark.parametrize("size", ALL_SIZES)
def test_it_is_topk_of_what_they_make(
    body: ModuleType, layout: Layout, kind: str, size: int
) -> None:
    a, b = numbers(size, 3), numbers(size, 4)
    for k in sorted({0, min(1, size), size // 100, size // 7, size // 2, max(size - 1, 0), size}):
        check(body, kind, a, b, k, layout)


@BODIES
@KINDS
@pytest.mark.parametrize("size", [4095, 4096, 4097, 65537, BIG])
@pytest.mark.parametrize("like", ["normal", "rows", "equal", "nothing", "one", "steep"])
def test_samples_that_tell_and_that_mislead(
    body: ModuleType, kind: str, size: int, like: str
) -> None:
    """Whatever a sample says the result is the same, and a sum is made once."""
    rng = np.random.default_rng(size)
    a = {
        "normal": lambda: rng.normal(size=size),
        "rows": lambda: rng.normal(size=size) * (np.arange(size) % 512 < 4),
        "equal": lambda: rng.integers(-2, 3, size),
        "nothing": lambda: np.zeros(size),
        "one": lambda: np.arange(size) == size - 3,
        "steep": lambda: 10.0 ** rng.integers(-30, 30, size),
    }[like]().astype(np.float32)
    b = np.where(np.arange(size) % 3 == 0, rng.integers(-1, 2, size), 0).astype(np.float32)
    for k in (1, 655, size // 100, size // 4, size):
        check(body, kind, a, b, k)


@BODIES
@KINDS
@pytest.mark.parametrize("size", [4096, 8191, BIG])
@pytest.mark.parametrize("more", [-40, -3, 0, 3, 40])
@pytest.mark.parametrize("steps", [1, 3, 1000])  # of changes: few of them have many equals
def test_where_about_k_are_not_zero(
    body: ModuleType, kind: str, size: int, more: int, steps: int
) -> None:
    """As what a server has changed by a worker's top-k: zeros fill up, or are left out."""
    rng = np.random.default_rng(size + more)
    k = size // 100
    b = rng.integers(-100, 100, size).astype(np.float32)
    a = b.copy() if kind == "difference" else -b
    places = rng.choice(size, max(0, k + more), replace=False)
    a[places] += rng.integers(1, 1 + steps, places.size) * rng.choice([-1, 1], places.size)
    check(body, kind, a.astype(np.float32), b, k)


@BODIES
@KINDS
def test_infinities_lie_above_numbers(body: ModuleType, kind: str) -> None:
    a = np.array([1, np.inf, 2, 3e38, -3], np.float32)
    b = np.array([1, 0, -np.inf, 3e38 if kind == "sum" else -3e38, 0], np.float32)
    for k in range(6):
        check(body, kind, a, b, k)


@settings(max_examples=60, deadline=None)
@given(st.data(), st.sampled_from(["sum", "difference"]), st.integers(0, 300))
def test_any_arrays(data: st.DataObject, kind: str, size: int) -> None:
    values = st.lists(st.floats(-9, 9, width=32), min_size=size, max_size=size)
    a, b = (np.array(data.draw(values), np.float32) for _ in range(2))
    k = data.draw(st.integers(0, size))
    for body in (select, reference.select):
        check(body, kind, a, b, k)
        check(body, kind, a, b, k, unaligned)


@BODIES
@KINDS
def test_arguments_are_checked(body: ModuleType, kind: str) -> None:
    run = getattr(body, f"topk_{kind}")
    a, b = np.ones(8, np.float32), np.ones(8, np.float32)
    indices, values = np.zeros(3, np.uint32), np.zeros(3, np.float32)
    for wrong, error, words in (
        ((a, b.astype("f8"), 3, indices, values), TypeError, "must be float32"),
        ((a.astype("i4"), b, 3, indices, values), TypeError, "must be float32"),
        ((a, b[:7], 3, indices, values), ValueError, "has 7 elements"),
        ((a, b, 9, indices, values), ValueError, "k must be from 0 to 8, not 9"),
        ((a, b, -1, indices, values), ValueError, "k must be from 0 to 8, not -1"),
        ((a, b, 2, indices, values), ValueError, "indices has 3 elements, expected 2"),
        ((a, b, 3, indices, values[:2]), ValueError, "has 2 elements"),
        ((a, b, 3, indices.astype("i8"), values), TypeError, "must be uint32"),
        ((a, b, 3, read_only(indices), values), ValueError, "read-only"),
        ((a, b, 3, indices, b[:3]), ValueError, "overlap"),
        ((a, b, 3, b[:3].view(np.uint32), values), ValueError, "overlap"),
        ((a, b, 3, indices, a[:3]), ValueError, "overlap"),
    ):  # fmt: skip
        with pytest.raises(error, match=words):
            run(*wrong)
        assert (a == 1).all()
    if kind == "sum":
        with pytest.raises(ValueError, match="read-only"):
            run(read_only(a), b, 3, indices, values)
        with pytest.raises(ValueError, match="overlap"):
            run(a[:6], a[2:], 3, indices, values)
    else:
        run(a, a, 3, indices, values)  # both are only read
        assert indices.tolist() == [0, 1, 2]
