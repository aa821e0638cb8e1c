"""Elements that are taken out, sent and added: every variant against models of one element."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncps_ext import reference, select
from tests.asyncps_ext.arrays import Array, assert_bits, assert_same, floats, read_only
from tests.asyncps_ext.selects import (
    ALL_SIZES,
    BODIES,
    bits_of,
    layouts,
    some,
    sparse,
    variant,
)

__all__ = ["variant"]

Layout = Callable[[Array], Array]


def halves(many: int, seed: int = 0) -> Array:
    """Bits of float16, of all kinds."""
    return np.random.default_rng([seed, many]).integers(0, 1 << 16, many, dtype=np.uint16)


def widened(bits: Array) -> Array:
    return bits.copy().view(np.float16).astype(np.float32)


# ------------------------------------------------------------------------ what is taken, what stays


@BODIES
@layouts
def test_what_is_taken_and_what_stays_make_up_the_whole(body: ModuleType, layout: Layout) -> None:
    for size in ALL_SIZES:
        for many in sorted({0, min(1, size), size // 3, size}):
            before, indices = floats(size, "float32", 1), some(size, many)
            before[bits_of(before) == 0x80000000] = 0  # a sum with a residual is never -0.0
            x, values = layout(before), layout(np.full(many, 7, np.float32))
            body.take(x, layout(read_only(indices)), values)
            assert_bits(values, before[indices])
            assert not bits_of(x[indices]).any()
            dense = np.zeros(size, np.float32)
            dense[indices] = values
            finite = np.isfinite(before)
            assert_bits((dense + x)[finite], before[finite])
            untouched = np.ones(size, bool)
            untouched[indices] = False
            assert_bits(x[untouched], before[untouched])


def rounded(value: np.float32) -> np.float32:
    """To float16 and back by NumPy, numbers that become infinite to the largest one."""
    with np.errstate(all="ignore"):
        half = np.float16(value)
    is_over = np.isinf(half) and np.isfinite(value)
    return np.float32(np.copysign(65504, value) if is_over else half)


@BODIES
@layouts
def test_what_float16_leaves_out_stays(body: ModuleType, layout: Layout) -> None:
    edges = np.float32([65504, 65519.99, 65520, -65520, 1e30, np.inf, -np.inf, 2**-24, 2**-25, -0.0,
                        1e-45, 2049, 2051, -3e-8, np.nan])  # fmt: skip
    for before in (edges, *(floats(size, "float32", 2) for size in ALL_SIZES)):
        indices = some(before.size, before.size // 2 + 1 if before.size > 20 else before.size)
        x, values = layout(before), layout(np.full(indices.size, 7, np.uint16))
        body.take_f16(x, layout(indices), values)
        nan = np.isnan(before[indices])
        expected = np.array([rounded(v) for v in before[indices]], np.float32)
        assert set(values[nan].tolist()) <= {0x7E00}
        assert_bits(widened(values)[~nan], expected[~nan])
        with np.errstate(all="ignore"):
            left = before[indices] - expected
        left.view(np.uint32)[~np.isfinite(before[indices])] = 0x7FC00000
        assert_bits(x[indices], left)
        untouched = np.ones(before.size, bool)
        untouched[indices] = False
        assert_bits(x[untouched], before[untouched])


@BODIES
def test_float16_is_sent_and_kept_as_the_codec_f16_does(body: ModuleType) -> None:
    every = np.arange(65536, dtype=np.uint16).view(np.float16)
    rng = np.random.default_rng(8)
    exponents = np.arange(512, dtype=np.uint32) << 23
    words = exponents | rng.integers(0, 1 << 23, (40, 512), dtype=np.uint32)
    with np.errstate(invalid="ignore"):
        x = np.concatenate([every.astype(np.float32), words.ravel().view(np.float32)])
    expected, residual = np.zeros(x.size, np.uint16), np.full(x.size, -0.0, np.float32)
    reference.quantize.encode_f16(expected, residual, x)
    values = np.zeros(x.size, np.uint16)
    body.take_f16(x, np.arange(x.size, dtype=np.uint32), values)
    assert_bits(values, expected)
    assert_bits(x, residual)


@BODIES
def test_what_does_not_fit_float16_is_taken_later(body: ModuleType) -> None:
    x, values = np.array([100_000, -np.inf, 70_000], np.float32), np.zeros(2, np.uint16)
    for expected in ([65504, 65504], [34496, 4496], [0, 0]):
        body.take_f16(x, np.array([0, 2], np.uint32), values)
        assert values.view(np.float16).tolist() == expected
    assert x.tolist() == [0, -np.inf, 0]


@BODIES
@layouts
@pytest.mark.parametrize("momentum", [0.0, 0.9, -1.5, 1e-40, np.inf])
def test_dgc_adds_momentum_and_sums(body: ModuleType, layout: Layout, momentum: float) -> None:
    for size in ALL_SIZES:
        u0, v0, g = (floats(size, "float32", seed) for seed in (3, 4, 5))
        u, v = layout(u0), layout(v0)
        body.dgc_accumulate(u, v, layout(read_only(g)), momentum)
        with np.errstate(all="ignore"):
            # Products of float32 are exact in float64, and sums of two float32 round the same way.
            moved = (np.float64(np.float32(momentum)) * u0.astype("f8")).astype("f4")
            expected = (moved.astype("f8") + g.astype("f8")).astype("f4")
            sums = (v0.astype("f8") + expected.astype("f8")).astype("f4")
        assert_same(u, expected)
        assert_same(v, sums)


@BODIES
def test_dgc_rounds_the_product_before_the_sum(body: ModuleType) -> None:
    """A multiplication that is fused with the addition would leave 2**-24 * 2**-24."""
    u = np.full(40, 1 + 2.0**-23, np.float32)
    v, g = np.zeros(40, np.float32), np.full(40, -(1 + 2.0**-22), np.float32)
    body.dgc_accumulate(u, v, g, float(np.float32(1 + 2.0**-23)))
    assert not u.any()
    assert not v.any()


@BODIES
@layouts
def test_dgc_forgets_what_was_sent(body: ModuleType, layout: Layout) -> None:
    for size in ALL_SIZES:
        u0, v0, indices = floats(size, "f4", 6), floats(size, "f4", 7), some(size, size // 4)
        u, v, values = layout(u0), layout(v0), layout(np.full(size // 4, 7, np.float32))
        body.dgc_mask(u, v, layout(read_only(indices)), values)
        assert_bits(values, v0[indices])
        for array, before in ((u, u0), (v, v0)):
            before[indices] = 0
            assert_bits(array, before)


# ---------------------------------------------------------------------------- sums of what was sent


@BODIES
@layouts
def test_a_sparse_array_is_added_element_by_element(body: ModuleType, layout: Layout) -> None:
    for size in ALL_SIZES:
        before = floats(size, "float32", 8)
        indices, values = sparse(size, size // 2, 9)
        acc, expected = layout(before), before.copy()
        body.add_at(acc, layout(read_only(indices)), layout(read_only(values)))
        with np.errstate(all="ignore"):
            for i, value in zip(indices, values, strict=True):
                expected[i] = expected[i] + value
        assert_same(acc, expected)
        bits, acc, expected = halves(size // 2), layout(before), before.copy()
        body.add_at_f16(acc, layout(read_only(indices)), layout(read_only(bits)))
        with np.errstate(all="ignore"):
            for i, value in zip(indices, widened(bits), strict=True):
                expected[i] = expected[i] + value
        assert_same(acc, expected)


@BODIES
@layouts
def test_a_first_sparse_array_is_set(body: ModuleType, layout: Layout) -> None:
    for size in (*ALL_SIZES, 8192, 8193, 40_000):
        for many in sorted({0, min(size, 1), size // 5, size}):
            indices, values = sparse(size, many, 10)
            out = layout(np.full(size, 7, np.float32))
            body.set_at(out, layout(read_only(indices)), layout(read_only(values)))
            expected = np.zeros(size, np.float32)
            expected[indices] = values
            assert_bits(out, expected)


def merged(ia: Array, va: Array, ib: Array, vb: Array) -> tuple[Array, Array]:
    """The sum by a dictionary of Python."""
    found = {int(i): v for i, v in zip(ia, va, strict=True)}
    with np.errstate(all="ignore"):
        for i, v in zip(ib.tolist(), vb, strict=True):
            found[i] = found[i] + v if i in found else v
    keys = sorted(found)
    return np.array(keys, np.uint32), np.array([found[i] for i in keys], np.float32)


@BODIES
@layouts
def test_a_merge_is_the_sum_of_two_sparse_arrays(body: ModuleType, layout: Layout) -> None:
    shapes = [(0, 0, 0), (1, 0, 1), (1, 1, 0), (5, 5, 5), (9, 3, 7), (300, 200, 40)]
    shapes.append((40_000, 9_001, 11_000))
    for size, na, nb in shapes:
        (ia, va), (ib, vb) = sparse(size, na, 11), sparse(size, nb, 12)
        both = [layout(read_only(array)) for array in (ia, va, ib, vb)]
        indices, values = merged(ia, va, ib, vb)
        for extra in (0, 5):
            at = layout(np.full(na + nb + extra, 7, np.uint32))
            to = layout(np.full(na + nb + extra, 7, np.float32))
            count = body.merge(*both, at, to)
            assert count == indices.size
            assert_bits(at[:count], indices)
            assert_same(to[:count], values)
            assert (at[na + nb :] == 7).all()


pairs = st.dictionaries(
    st.integers(0, 30) | st.integers(0, 2**32 - 1),
    st.floats(width=32, allow_nan=False),
    max_size=40,
)


def as_arrays(found: dict[int, float]) -> tuple[Array, Array]:
    keys = sorted(found)
    return np.array(keys, np.uint32), np.array([found[k] for k in keys], np.float32)


@settings(max_examples=100, deadline=None)
@given(a=pairs, b=pairs)
def test_merge_equals_the_model(a: dict[int, float], b: dict[int, float]) -> None:
    (ia, va), (ib, vb) = as_arrays(a), as_arrays(b)
    indices, values = merged(ia, va, ib, vb)
    for body in (select, reference.select):
        at, to = np.empty(len(a) + len(b), "u4"), np.empty(len(a) + len(b), "f4")
        count = body.merge(ia, va, ib, vb, at, to)
        assert_bits(at[:count], indices)
        assert_same(to[:count], values)


@settings(max_examples=100, deadline=None)
@given(
    before=st.lists(st.floats(width=32), max_size=80),
    indices=st.lists(st.integers(0, 90) | st.integers(0, 2**32 - 1), max_size=30),
    is_sorted=st.booleans(),
)
def test_add_at_adds_all_or_touches_nothing(
    before: list[float], indices: list[int], is_sorted: bool
) -> None:
    """Whatever indices somebody sends."""
    chosen = sorted(set(indices)) if is_sorted else indices
    which = np.array(chosen, np.uint32)
    values = floats(which.size, "float32", 13)
    room = np.full(len(before) + 64, 7, np.float32)  # what lies behind is never touched
    is_good = all(i < len(before) for i in chosen) and chosen == sorted(set(chosen))
    for body in (select, reference.select):
        room[: len(before)] = before
        acc, start = room[: len(before)], np.array(before, np.float32)
        if not is_good:
            with pytest.raises(ValueError, match=r"indices\[\d+\] is \d+"):
                body.add_at(acc, which, values)
            assert_bits(acc, start)
        else:
            with np.errstate(all="ignore"):
                for i, value in zip(chosen, values, strict=True):
                    start[i] += value
            body.add_at(acc, which, values)
            assert_same(acc, start)
        assert (room[len(before) :] == 7).all()


# --------------------------------------------------------------------------------- indices that lie

GOOD = np.arange(0, 2000, 2, dtype=np.uint32)


def spoiled(at: int, value: int) -> Array:
    bad = GOOD.copy()
    bad[at] = value
    return bad


BAD = {
    "doubled": (spoiled(600, 1198), "indices\\[600\\] is 1198 after 1198, expected ascending ones"),
    "falling": (spoiled(256, 5), "indices\\[256\\] is 5 after 510, expected ascending ones"),
    "first": (spoiled(0, 2000), "indices\\[0\\] is 2000, expected less than 2000"),
    "one past the end": (spoiled(999, 2000), "indices\\[999\\] is 2000, expected less than 2000"),
    "huge": (spoiled(511, 2**32 - 1), "indices\\[511\\] is 4294967295, expected less than 2000"),
    "reversed": (GOOD[::-1].copy(), "indices\\[1\\] is 1996 after 1998, expected ascending ones"),
}


@BODIES
@pytest.mark.parametrize("name", BAD)
def test_bad_indices_are_named_and_nothing_is_touched(body: ModuleType, name: str) -> None:
    bad, text = BAD[name]
    x, u, values = floats(2000, "f4", 14), floats(2000, "f4", 15), floats(1000, "f4", 16)
    bits = halves(1000)
    arrays = (x, u, values, bits)
    before = [array.copy() for array in arrays]
    calls = [
        lambda: body.take(x, bad, values),
        lambda: body.take_f16(x, bad, bits),
        lambda: body.dgc_mask(u, x, bad, values),
        lambda: body.add_at(x, bad, values),
        lambda: body.add_at_f16(x, bad, bits),
        lambda: body.set_at(x, bad, values),
    ]
    for call in calls:
        with pytest.raises(ValueError, match=text):
            call()
        for array, start in zip(arrays, before, strict=True):
            assert_bits(array, start)


@BODIES
def test_a_merge_of_bad_indices_is_refused(body: ModuleType) -> None:
    values, at, to = np.ones(1000, "f4"), np.full(2000, 7, "u4"), np.full(2000, 7, "f4")
    bad = spoiled(600, 1198)
    with pytest.raises(ValueError, match=r"ia\[600\] is 1198 after 1198"):
        body.merge(bad, values, GOOD, values, at, to)
    with pytest.raises(ValueError, match=r"ib\[600\] is 1198 after 1198"):
        body.merge(GOOD, values, bad, values, at, to)
    with pytest.raises(ValueError, match="indices has 1999 elements, expected 2000 or more"):
        body.merge(GOOD, values, GOOD, values, at[1:], to)
    with pytest.raises(ValueError, match="values has 1999 elements, expected 2000 or more"):
        body.merge(GOOD, values, GOOD, values, at, to[1:])
    with pytest.raises(ValueError, match="indices and ia overlap"):
        body.merge(at[:5], values[:5], GOOD, values, at, to)
    with pytest.raises(ValueError, match="vb has 999 elements, ib has 1000"):
        body.merge(GOOD, values, GOOD, values[1:], at, to)
    assert (at == 7).all()
    assert (to == 7).all()


@BODIES
def test_arguments_are_checked(body: ModuleType) -> None:
    x, u = np.ones(9, "f4"), np.ones(9, "f4")
    indices, values, bits = np.arange(3, dtype="u4"), np.zeros(3, "f4"), np.zeros(3, "u2")
    wrong = [
        (body.take, (read_only(x), indices, values), ValueError, "x is read-only"),
        (body.take, (x, indices, read_only(values)), ValueError, "values is read-only"),
        (body.take, (x, indices, values[:2]), ValueError, "values has 2 elements, indices has 3"),
        (body.take, (x, indices, x[4:7]), ValueError, "x and values overlap"),
        (body.take, (x, x[4:7].view("u4"), values), ValueError, "x and indices overlap"),
        (body.take, (x, indices, indices.view("f4")), ValueError, "values and indices overlap"),
        (body.take, (x, indices.astype("i8"), values), TypeError, "indices must be uint32"),
        (body.take_f16, (x, indices, values), TypeError, "values must be uint16, not float32"),
        (body.take_f16, (x.astype("f8"), indices, bits), TypeError, "x must be float32"),
        (body.add_at, (x, indices, bits), TypeError, "values must be float32, not uint16"),
        (body.add_at, (read_only(x), indices, values), ValueError, "acc is read-only"),
        (body.add_at_f16, (x, indices, values), TypeError, "values must be uint16"),
        (body.set_at, (read_only(x), indices, values), ValueError, "out is read-only"),
        (body.set_at, (x, indices, x[:3]), ValueError, "out and values overlap"),
        (body.dgc_mask, (u, u, indices, values), ValueError, "u and v overlap"),
        (body.dgc_mask, (u[:8], x, indices, values), ValueError, "v has 9 elements, u has 8"),
        (body.dgc_accumulate, (u, x, x, 0.9), ValueError, "v and g overlap"),
        (body.dgc_accumulate, (u, u, x, 0.9), ValueError, "u and v overlap"),
        (body.dgc_accumulate, (u, x, x[:8].copy(), 0.9), ValueError, "g has 8 elements, u has 9"),
    ]
    for kernel, arguments, kind, text in wrong:
        with pytest.raises(kind, match=text):
            kernel(*arguments)
    assert (x == 1).all()
    assert (u == 1).all()
    body.add_at(x, indices, indices.astype("f4"))  # what is only read may be anything apart
    assert x[:3].tolist() == [1, 2, 3]
