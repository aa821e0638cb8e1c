"""Table: a server's rows, made at first use and updated by rounds; K2 and K3 of ACCEPTANCE."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from asyncps import optim
from asyncps.errors import ConfigError, DtypeMismatch, ShapeMismatch, TensorError
from asyncps.initializer import Constant, Normal, One, Uniform, Zero
from asyncps.tensor import steps, updates
from asyncps.tensor.dtypes import NAMES, by_name, numpy_dtype
from asyncps.tensor.sparsesum import SparseSum
from asyncps.tensor.table import RANGE_ROWS, Step, Table

F32 = by_name("float32")


def ids(*values: int) -> np.ndarray[Any, Any]:
    return np.array(values, np.int64)


def step(name: str, t: int = 1, lazy: bool = True, **hyper: Any) -> Step:
    return Step(name, optim.by_name(name)(**hyper).hyper, t, lazy)


def rows_of(table: Table, *which: int) -> np.ndarray[Any, Any]:
    out = np.empty(len(which) * table.width, table.dtype.bits)
    table.gather(ids(*which), out)
    return out.view(numpy_dtype(table.dtype.name)).reshape(-1, table.width)


def summed(table: Table, *parts: tuple[np.ndarray[Any, Any], Any]) -> SparseSum:
    total = SparseSum(table.dtype, table.width)
    for which, values in parts:
        stored = np.asarray(values, numpy_dtype(table.dtype.name)).reshape(-1)
        total.add(which, stored.view(table.dtype.bits))
    return total


# ------------------------------------------------------------------------- ACCEPTANCE K2 and K3


@pytest.mark.parametrize("dtype", ["float32", "float16", "int32"])
@pytest.mark.parametrize("shape", [(5, 3), (2, 200, 3), (5,)])
@pytest.mark.parametrize("workers", [1, 2, 3, 7])
def test_k2_rows_of_odd_and_even_ranks(workers: int, shape: tuple[int, ...], dtype: str) -> None:
    table, rate = Table("k", shape, by_name(dtype), One()), 2
    for repeat in range(7):
        parts = [(ids(rank % 2), np.full((1, *shape[1:]), rank + 1)) for rank in range(workers)]
        total = summed(table, *parts)
        assert total.count == workers
        table.apply(total.ids, total.values, step("test", repeat + 1, rescale_grad=rate))
        got = rows_of(table, *range(shape[0]))
        for row in range(shape[0]):
            pushed = sum(rank + 1 for rank in range(workers) if rank % 2 == row)
            assert (got[row] == 1 + pushed * rate * (repeat + 1)).all()


@pytest.mark.parametrize("lazy", [True, False])
def test_k3_nobody_pushes_a_row(lazy: bool) -> None:
    table = Table("k", (4, 3), F32, One())
    for repeat in range(3):
        total = summed(table, *[(ids(), np.empty((0, 3)))] * 7)
        table.apply(total.ids, total.values, step("test", repeat + 1, lazy, rescale_grad=2))
    assert (rows_of(table, 0, 1, 2, 3) == 1).all()
    table.apply(total.ids, total.values, None)
    assert (rows_of(table, 0, 1, 2, 3) == 0).all()


@pytest.mark.parametrize("dtype", ["float32", "float16", "int32"])
def test_without_an_optimizer_the_table_becomes_the_sum(dtype: str) -> None:
    table = Table("k", (4, 2), by_name(dtype), One())
    assert (rows_of(table, 0, 2) == 1).all()
    for shift in range(3):  # K12's rule: replaced, not accumulated
        total = summed(table, (ids(1, 3), [[1 + shift, 2], [3, 4]]), (ids(3), [[10, 10]]))
        table.apply(total.ids, total.values, None)
        assert rows_of(table, 0, 1, 2, 3).tolist() == [[0, 0], [1 + shift, 2], [0, 0], [13, 14]]
        total = summed(table, (ids(0, 1, 2, 3), [[shift, 5]] * 4))
        table.apply(total.ids, total.values, None)
        assert rows_of(table, 0, 1, 2, 3).tolist() == [[shift, 5]] * 4


# --------------------------------------------------------------------------------- lazy and full

# MXNet 1.9.1's own results; make_lazy_golden.py made them.
GOLDEN = json.loads(Path(__file__).with_name("lazy_golden.json").read_text())


@pytest.mark.parametrize("case", GOLDEN, ids=lambda case: f"{case['name']}-{case['lazy']}")
@pytest.mark.parametrize("block_bytes", [64 << 20, 16])
def test_steps_equal_mxnets(case: dict[str, Any], block_bytes: int) -> None:
    table = Table("k", (4, 2), F32, Zero(), block_bytes=block_bytes)
    table.assign(np.arange(4), np.arange(1, 9, dtype=np.float32) / 4)
    rounds = zip(case["pushes"], case["after"], strict=True)
    for t, ((which, gradient), wanted) in enumerate(rounds, 1):
        g = np.array(gradient, np.float32).reshape(-1)
        table.apply(ids(*which), g, step(case["name"], t, case["lazy"], **case["hyper"]))
        np.testing.assert_allclose(rows_of(table, 0, 1, 2, 3).reshape(-1), wanted, rtol=2e-6)


def dense_twin(
    table: Table, which: np.ndarray[Any, Any], sums: np.ndarray[Any, Any], how: Step,
    w: np.ndarray[Any, Any], state: dict[str, np.ndarray[Any, Any]],
) -> None:
    """The same step on a dense copy of the whole table, by the kernels for dense values."""
    width, chosen = table.width, which if how.lazy else np.arange(len(w))
    g = np.zeros_like(w, table.dtype.sum)
    g[which] = sums.reshape(-1, width)
    for name in steps.STEPS[how.name].state_names(how.hyper):
        state.setdefault(name, np.zeros_like(g))
    some = {name: array[chosen].reshape(-1) for name, array in state.items()}
    part = w[chosen].reshape(-1)
    updates.run(how.name, table.dtype, part, part, g[chosen].reshape(-1), some, how.hyper, how.t)
    w[chosen] = part.reshape(-1, width)
    for name, array in some.items():
        state[name][chosen] = array.reshape(-1, width)


STEPS = [
    ("sgd", {"learning_rate": 0.1, "wd": 0.01}),
    ("sgd", {"learning_rate": 0.1, "momentum": 0.9, "wd": 0.01}),
    ("sgd", {"learning_rate": 0.1, "momentum": 0.9, "nesterov": True, "clip_gradient": 0.5}),
    ("adam", {"learning_rate": 0.01, "wd": 0.01}),
    ("adamw", {"learning_rate": 0.01, "wd": 0.01}),
    ("adamw", {"rescale_grad": 0.0}),
    ("adagrad", {"learning_rate": 0.1}),
    ("rmsprop", {"learning_rate": 0.01}),
    ("rmsprop", {"learning_rate": 0.01, "centered": True}),
    ("ftrl", {"learning_rate": 0.1}),
    ("ftrl", {"learning_rate": 0.0}),
    ("test", {"rescale_grad": 0.5}),
]


@pytest.mark.parametrize("block_bytes", [64 << 20, 4096])
@pytest.mark.parametrize("lazy", [True, False])
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
@pytest.mark.parametrize(("name", "hyper"), STEPS)
def test_rows_take_the_dense_step_bit_for_bit(
    name: str, hyper: dict[str, Any], dtype: str, lazy: bool, block_bytes: int
) -> None:
    rows, width, rng = 400, 70, np.random.default_rng(0)
    table = Table("k", (rows, width), by_name(dtype), Normal(1.0), block_bytes=block_bytes)
    every = np.arange(rows)
    w = rows_of(Table("k", (rows, width), by_name(dtype), Normal(1.0)), *every)
    w, state = np.ascontiguousarray(w.view(table.dtype.bits)), dict[str, np.ndarray[Any, Any]]()
    chosen = [np.sort(rng.choice(rows, n, replace=False)) for n in (1, 399, 37, 0)]
    for t, which in enumerate([*chosen, every, np.arange(50, 300)], 1):
        sums = rng.standard_normal(which.size * width).astype(table.dtype.sum)
        how = step(name, t, lazy, **hyper)
        before = sums.copy()
        table.apply(which, sums, how)
        np.testing.assert_array_equal(sums, before)
        dense_twin(table, which, sums, how, w, state)
        assert rows_of(table, *every).view(table.dtype.bits).tobytes() == w.tobytes()
    for state_name in table.state_names:
        out = np.empty(rows * width, table.dtype.sum)
        table.gather_state(state_name, every, out)
        assert out.tobytes() == state[state_name].tobytes()


def test_a_full_update_makes_every_row() -> None:
    table = Table("k", (1000, 2), F32, One(), first=100, stop=300)
    table.apply(ids(150), np.zeros(2, np.float32), step("sgd", 1, False, lr=0.5, wd=0.5))
    assert len(table) == 200
    assert (rows_of(table, 100, 299) == 0.75).all()
    lazy = Table("k", (1000, 2), F32, One())
    lazy.apply(ids(150), np.zeros(2, np.float32), step("sgd", 1, True, lr=0.5, wd=0.5))
    assert len(lazy) == 1
    assert rows_of(lazy, 149, 150, 151).tolist() == [[1, 1], [0.75, 0.75], [1, 1]]


# ------------------------------------------------------------------------------ rows at first use


@pytest.mark.parametrize("dtype", NAMES)
def test_rows_do_not_depend_on_order_ranges_or_blocks(dtype: str) -> None:
    what = Uniform(1.0, seed=9) if by_name(dtype).is_float else Constant(3)
    whole = Table("k", (1000, 5), by_name(dtype), what)
    halves = [Table("k", (1000, 5), by_name(dtype), what, first=first, stop=first + 500,
                    block_bytes=64) for first in (0, 500)]  # fmt: skip
    rows_of(whole, 999)
    rows_of(halves[0], 3, 77)
    for which in ((1, 77, 499), (500, 998, 999)):
        half = halves[which[0] // 500]
        np.testing.assert_array_equal(rows_of(whole, *which), rows_of(half, *which))


def test_only_rows_that_are_used_take_memory() -> None:
    table = Table("k", (2**40, 64), F32, Normal(0.01))
    which = np.sort(np.random.default_rng(0).integers(0, 2**40, 5000))
    out = np.empty(5000 * 64, np.float32)
    table.gather(which, out)
    table.gather(which, out)
    assert len(table) == 5000
    assert 5000 * 256 < table.used_bytes < 5000 * 320
    np.testing.assert_array_equal(table.used_ids(), which)
    small = Table("k", (2**40, 64), F32, Normal(0.01))
    np.testing.assert_array_equal(rows_of(small, int(which[7]))[0], out.reshape(-1, 64)[7])


def test_both_kinds_of_index_keep_the_same_rows() -> None:
    near, far = (Table("k", (rows, 3), F32, Normal(1.0)) for rows in (RANGE_ROWS, RANGE_ROWS + 1))
    for table in (near, far):
        table.apply(ids(5, 70, 71), np.ones(9, np.float32), step("sgd", lr=0.5, momentum=0.5))
        table.apply(ids(2, 71), np.ones(6, np.float32), step("sgd", 2, lr=0.5, momentum=0.5))
    np.testing.assert_array_equal(rows_of(near, 2, 5, 70, 71, 72), rows_of(far, 2, 5, 70, 71, 72))


def test_a_reply_is_a_copy_that_no_update_touches() -> None:
    table = Table("k", (4, 2), F32, One())
    reply = np.empty(4, np.float32)
    table.gather(ids(0, 1), reply)
    table.apply(ids(0, 1), np.full(4, 9, np.float32), None)
    assert reply.tolist() == [1, 1, 1, 1]


@pytest.mark.parametrize("block_bytes", [64 << 20, 64])
@pytest.mark.parametrize("made", ["whole", "pieces", "tail first", "scattered", "parted"])
def test_neighbours_keep_their_values_however_they_were_made(made: str, block_bytes: int) -> None:
    rows = 100
    table = Table("k", (rows, 3), F32, Normal(1.0), block_bytes=block_bytes)
    model = rows_of(Table("k", (rows, 3), F32, Normal(1.0)), *range(rows)).copy()
    for which in {
        "whole": [range(rows)], "pieces": [range(10, 40), range(40, 90), range(90, 100)],
        "tail first": [range(60, 100), range(60)],
        "parted": [range(50), [80], range(50, 80), range(81, 100)],
        "scattered": [range(0, 100, 3), range(5, 95)],
    }[made]:  # fmt: skip
        rows_of(table, *which)
    rng = np.random.default_rng(0)
    parts = [(0, 100), (20, 70), (39, 41), (60, 100), (0, 10), (99, 100), (50, 50)]
    some = [np.arange(1, 100, 9), np.arange(61, 99, 2), ids(0, 59, 60, 99), ids(40, 42, 89)]
    for which in [*(np.arange(*part) for part in parts), *some]:
        values = rng.random((which.size, 3), dtype=np.float32)
        np.testing.assert_array_equal(rows_of(table, *which), model[which])
        table.apply(which, values.reshape(-1), step("test"))
        model[which] += values
        np.testing.assert_array_equal(rows_of(table, *range(rows)), model)
        table.assign(which, values.reshape(-1))
        model[which] = values
        np.testing.assert_array_equal(rows_of(table, *range(rows)), model)
    assert table.used_ids().tolist() == list(range(rows))


def test_memory_that_rows_lie_in_never_moves() -> None:
    table = Table("k", (1000, 4), F32, One(), block_bytes=256)
    rows_of(table, 0)
    first = table._values.blocks[0]
    rows_of(table, *range(1000))
    assert table._values.blocks[0] is first
    assert len(table._values.blocks) == 63


def test_rows_can_be_stored_and_state_too() -> None:
    table = Table("k", (6, 2), F32, One())
    table.assign(ids(1, 4), np.arange(4, dtype=np.float32))
    table.assign_state("momentum", ids(4), np.full(2, 8, np.float32))
    table.apply(ids(1, 4), np.zeros(4, np.float32), step("sgd", lr=1.0, momentum=0.5))
    assert rows_of(table, 0, 1, 4).tolist() == [[1, 1], [0, 1], [6, 7]]
    other = np.empty(4, np.float32)
    table.gather_state("momentum", ids(0, 4), other)
    assert other.tolist() == [0, 0, 4, 4]
    assert table.state_names == ("momentum",)
    assert table.used_ids().tolist() == [0, 1, 4]


# ----------------------------------------------------------------------------------- contributions


@pytest.mark.parametrize("dtype", NAMES)
def test_contributions_are_summed_in_their_order(dtype: str) -> None:
    kind, rng = by_name(dtype), np.random.default_rng(1)
    total, model = SparseSum(kind, 3), np.zeros((40, 3), kind.sum)
    touched: set[int] = set()
    for n in (0, 5, 40, 40, 12, 0):
        which = np.sort(rng.choice(40, n, replace=False))
        values = rng.integers(-60, 60, (n, 3)).astype(numpy_dtype(dtype))
        given_ = values.reshape(-1).view(kind.bits)
        total.add(which, given_)
        model[which] += values.astype(kind.sum)
        touched |= set(which.tolist())
        given_[:] = 1  # it was copied
    assert total.ids.tolist() == sorted(touched)
    assert total.values.dtype == kind.sum
    np.testing.assert_array_equal(total.values.reshape(-1, 3), model[total.ids])
    assert total.count == 6


def test_rows_between_the_same_ends_are_told_apart() -> None:
    total = SparseSum(F32, 1)
    for which in (ids(0, 1, 3), ids(0, 2, 3), ids(0, 1, 2, 3), ids(0, 1, 2, 3)):
        total.add(which, np.ones(which.size, np.float32))
    assert (total.ids.tolist(), total.values.tolist()) == ([0, 1, 2, 3], [4, 3, 3, 4])


def test_a_first_contribution_can_become_the_sum() -> None:
    which, values, total = ids(1, 2), np.ones(4, np.float32), SparseSum(F32, 2)
    total.add(which, values, keep=True)
    assert total.values is values
    total.add(which.copy(), np.full(4, 2, np.float32))
    assert values.tolist() == [3, 3, 3, 3]
    total.scale(0.5)
    assert values.tolist() == [1.5] * 4
    assert total.nbytes == 32


# ------------------------------------------------------------------------------------------ errors

CALLS: list[Callable[[Table, Any, Any], None]] = [
    Table.gather, Table.assign, lambda table, which, rows: table.apply(which, rows, None),
    lambda table, which, rows: table.apply(which, rows, step("sgd", momentum=0.5)),
    lambda table, which, rows: table.assign_state("momentum", which, rows),
]


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("bad", [
    ids(-1, 3), ids(3, 3), ids(5, 4), ids(3, 10), ids(0, 2**62), ids(1, 3),
])  # fmt: skip
def test_hostile_ids_change_nothing(call: Callable[..., None], bad: np.ndarray[Any, Any]) -> None:
    table, rows = Table("k", (12, 2), F32, One(), first=2, stop=10), np.full(4, 7, np.float32)
    with pytest.raises(TensorError, match=r"key 'k', expected at least 2, below 10, above"):
        call(table, bad, rows)
    assert (len(table), rows.tolist(), table.state_names) == (0, [7] * 4, ())


@pytest.mark.parametrize("call", CALLS)
def test_rows_must_fit(call: Callable[..., None]) -> None:
    table = Table("k", (12, 2), F32, One())
    with pytest.raises(ShapeMismatch, match=r"key 'k'.*expected \(4,\).*got \(3,\)"):
        call(table, ids(1, 2), np.zeros(3, np.float32))
    with pytest.raises(DtypeMismatch, match="expected float32, got float64"):
        call(table, ids(1, 2), np.zeros(4))
    with pytest.raises(DtypeMismatch, match="expected int64, got uint32"):
        call(table, ids(1, 2).astype(np.uint32), np.zeros(4, np.float32))
    assert len(table) == 0


@pytest.mark.parametrize(("shape", "first", "stop"), [
    ((4, 0), 0, None), ((), 0, None), ((4, 2), -1, None), ((4, 2), 3, 2), ((4, 2), 0, 5),
])  # fmt: skip
def test_shapes_that_no_table_has_are_refused(shape: Any, first: int, stop: int | None) -> None:
    with pytest.raises(ShapeMismatch):
        Table("k", shape, F32, One(), first=first, stop=stop)


def test_random_integers_are_refused() -> None:
    with pytest.raises(ConfigError, match="int8"):
        Table("k", (4, 2), by_name("int8"), Normal(1.0))


def test_an_empty_table_has_no_rows() -> None:
    table = Table("k", (0, 2), F32, One())
    table.apply(ids(), np.empty(0, np.float32), step("adam", 1, lazy=False))
    assert (rows_of(table).size, len(table), table.used_ids().size) == (0, 0, 0)
