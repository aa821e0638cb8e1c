"""Steps on rows of tables, every variant of them: what the same step makes of arrays."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np
import pytest

from asyncps_ext import optim, reference
from tests.asyncps_ext.arrays import Array, assert_same, floats, integers, read_only, unaligned
from tests.asyncps_ext.steps import BODIES, FLOATS
from tests.asyncps_ext.steps import variant as variant
from tests.asyncps_ext.test_optim import STEPS, steps

EACH = 8  # rows of a block
widths = pytest.mark.parametrize("width", [1, 3, 8, 64, 1037])
blocks = pytest.mark.parametrize("blocks", [1, 5])


def table(blocks: int, values: Array) -> list[Array]:
    """Blocks at odd addresses with these values one behind the other."""
    return [unaligned(part) for part in values.reshape(blocks, -1)]


def some_slots(rows: int, n: int) -> Array:
    return np.random.default_rng(n).permutation(rows)[:n].astype(np.int64)


def together(blocks: list[Array], width: int) -> Array:
    return np.concatenate(blocks).reshape(-1, width)


@BODIES
@blocks
@widths
@FLOATS
@steps
def test_rows_take_the_step_of_arrays_and_no_other_row_changes(
    name: str, dtype: str, width: int, blocks: int, body: ModuleType
) -> None:
    states, hyper = STEPS[name]
    rows = EACH * blocks
    slots = some_slots(rows, rows // 2 + 3)
    special = width != 8
    before = [floats(rows * width, dtype, seed, special=special) for seed in range(1 + states)]
    before[1:] = [np.abs(state) for state in before[1:]]
    g = unaligned(floats(slots.size * width, dtype, 9, special=special))

    tables = [table(blocks, values) for values in before]
    w, *state = [body.Rows(each, width, slots) for each in tables]
    getattr(body, name)(w, w, g, *state, *hyper)

    copies = [values.reshape(-1, width)[slots].reshape(-1) for values in before]
    getattr(optim, name)(copies[0], copies[0], g, *copies[1:], *hyper)
    for found, values, copy in zip(tables, before, copies, strict=True):
        expected = values.reshape(-1, width).copy()
        expected[slots] = copy.reshape(-1, width)
        assert_same(together(found, width), expected)


@BODIES
@blocks
@pytest.mark.parametrize("width", [1, 7])
@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "int64"])
def test_integer_rows_take_the_test_step(
    dtype: str, width: int, blocks: int, body: ModuleType
) -> None:
    before, slots = integers(blocks * EACH * width, dtype, 1), some_slots(blocks * EACH, 5)
    g = integers(5 * width, dtype, 2)
    found = table(blocks, before)
    w = body.Rows(found, width, slots)
    body.test(w, w, g, -3)
    expected = before.reshape(-1, width).copy()
    factor = np.array(-3 % 256).astype(dtype) if dtype == "uint8" else np.array(-3, dtype)
    with np.errstate(all="ignore"):
        expected[slots] += factor * g.reshape(-1, width)
    assert_same(together(found, width), expected)


@steps
def test_many_rows_agree_with_the_twin(name: str) -> None:
    """So many that the GIL is away meanwhile."""
    states, hyper = STEPS[name]
    rows, width = 4096, 5
    slots = some_slots(rows, 3000)
    before = [np.abs(floats(rows * width, "float32", seed)) for seed in range(1 + states)]
    g = floats(slots.size * width, "float32", 9)
    found = []
    for body in (optim, reference.optim):
        tables = [[part.copy() for part in values.reshape(4, -1)] for values in before]
        w, *state = [body.Rows(each, width, slots) for each in tables]
        getattr(body, name)(w, w, g, *state, *hyper)
        found.append(tables)
    for ours, twins in zip(*found, strict=True):
        assert_same(together(ours, width), together(twins, width))


@BODIES
def test_rows_tell_their_size_and_none_are_no_work(body: ModuleType) -> None:
    block = np.ones(12, np.float32)
    w = body.Rows([block], 4, np.array([2, 0]))
    assert (w.size, w.dtype) == (8, np.float32)
    none = body.Rows([block], 4, np.empty(0, np.int64))
    body.sgd(none, none, np.empty(0, np.float32), 0.1, 0.0, 1.0, -1.0)
    assert none.size == 0
    assert block.tolist() == [1.0] * 12


@BODIES
def test_tables_that_cannot_be_are_refused(body: ModuleType) -> None:
    block, slots = np.ones(8, np.float32), np.array([1, 0])
    with pytest.raises(IndexError, match=r"slot 2 at 1 is outside of the 2 rows"):
        body.Rows([block], 4, np.array([0, 2]))
    with pytest.raises(IndexError, match="slot -1"):
        body.Rows([block], 4, np.array([-1]))
    with pytest.raises(ValueError, match="width must be at least 1"):
        body.Rows([block], 0, slots)
    with pytest.raises(ValueError, match="without blocks"):
        body.Rows([], 4, slots)
    with pytest.raises(ValueError, match="expected a power of two"):
        body.Rows([np.ones(12), np.ones(12)], 4, slots)
    with pytest.raises(ValueError, match="expected rows of 3"):
        body.Rows([block], 3, slots)
    with pytest.raises(ValueError, match="read-only"):
        body.Rows([block, read_only(block)], 4, slots)
    for bad in (np.ones(8, np.float16), np.ones(8, np.uint16), np.ones(8, object)):
        with pytest.raises(TypeError):
            body.Rows([bad], 4, slots)
    with pytest.raises(TypeError):
        body.Rows([block, np.ones(8)], 4, slots)
    with pytest.raises(TypeError):
        body.Rows((block,), 4, slots)
    with pytest.raises(TypeError, match="slots must be int64"):
        body.Rows([block], 4, slots.astype(np.int32))


@BODIES
def test_a_step_on_rows_wants_rows_that_fit(body: ModuleType) -> None:
    slots, g = np.array([1, 0]), np.ones(8, np.float32)

    def rows(dtype: str = "float32", width: int = 4) -> Any:
        return body.Rows([np.ones(2 * width, dtype)], width, slots)

    w, m = rows(), rows()
    hyper, adam = (0.1, 0.0, 1.0, -1.0), (0.1, 0.9, 0.999, 1e-8, 0.0, 1.0, -1.0)
    moved = (0.1, 0.9, 0.0, 1.0, -1.0, False)
    with pytest.raises(ValueError, match="out must be w"):
        body.sgd(rows(), w, g, *hyper)
    with pytest.raises(ValueError, match="out must be w"):
        body.sgd(np.ones(8, np.float32), w, g, *hyper)
    with pytest.raises(TypeError):
        body.sgd(w, np.ones(8, np.float32), g, *hyper)
    for bad in (g[:7], g[:4], np.ones(12, np.float32)):
        with pytest.raises(ValueError, match="elements"):
            body.sgd(w, w, bad, *hyper)
    with pytest.raises(TypeError):
        body.sgd(w, w, g.astype("f8"), *hyper)
    with pytest.raises(TypeError):
        body.sgd(w, w, w, *hyper)
    with pytest.raises(TypeError, match="must be rows of a table"):
        body.sgd_momentum(w, w, g, np.ones(8, np.float32), *moved)
    with pytest.raises(TypeError):
        body.sgd_momentum(w, w, g, rows("float64"), *moved)
    with pytest.raises(TypeError):
        body.sgd_momentum(np.ones(8, "f4"), np.ones(8, "f4"), g, m, *moved)
    with pytest.raises(ValueError, match="slots and the width"):
        body.sgd_momentum(w, w, g, rows(width=3), *moved)
    other = body.Rows([np.ones(8, np.float32)], 4, slots.copy())
    with pytest.raises(ValueError, match="slots and the width"):
        body.sgd_momentum(w, w, g, other, *moved)
    for pair in ((m, m), (w, m), (m, w)):
        with pytest.raises(ValueError, match="overlap"):
            body.adam(w, w, g, *pair, *adam)
    block = np.ones(8, np.float32)
    near = body.Rows([block], 4, slots)
    with pytest.raises(ValueError, match="overlap"):
        body.sgd(near, near, block, *hyper)
    whole = body.Rows([np.ones(8, np.int32)], 4, slots)
    with pytest.raises(TypeError):
        body.sgd(whole, whole, np.ones(8, np.int32), *hyper)


@BODIES
def test_slots_that_change_later_change_nothing(body: ModuleType) -> None:
    slots = np.array([1, 3])
    block = np.zeros(8, np.float32)
    rows = body.Rows([block], 2, slots)
    slots[:] = 1 << 40
    body.test(rows, rows, np.ones(4, np.float32), 1.0)
    assert_same(block, np.array([0, 0, 1, 1, 0, 0, 1, 1], np.float32))


@BODIES
def test_a_state_with_fewer_rows_than_the_weights_is_refused(body: ModuleType) -> None:
    slots = np.array([0])
    w = body.Rows([np.zeros(8, np.float32)], 1, slots)
    m = body.Rows([np.zeros(7, np.float32)], 1, slots)
    with pytest.raises(ValueError, match="7 rows, expected the 8 of w"):
        body.sgd_momentum(w, w, np.ones(1, np.float32), m, 0.1, 0.9, 0.0, 1.0, -1.0, False)


@BODIES
def test_a_state_may_be_named(body: ModuleType) -> None:
    slots = np.array([2, 0])
    block = np.zeros(3, np.float32)
    w, m = body.Rows([block], 1, slots), body.Rows([np.zeros(3, np.float32)], 1, slots)
    g = np.array([1, 2], np.float32)
    body.sgd_momentum(w, w, g, m=m, lr=1.0, momentum=0.5, wd=0.0, rescale=1.0, clip=-1.0,
                      nesterov=False)
    assert_same(block, np.array([-2, 0, -1], np.float32))
