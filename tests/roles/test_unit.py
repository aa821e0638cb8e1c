"""One unit of a server: versions, open rounds, and who waits for them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from asyncps.errors import OptimizerError, RemoteProtocolError
from asyncps.roles.accumulator import Accumulator
from asyncps.roles.unit import Rules, Unit, Waiter
from asyncps.tensor import dtypes
from tests.support.ports import CheckedPool

SGD = {"learning_rate": 1.0, "momentum": 0.0, "wd": 0.0, "rescale_grad": 1.0,
       "clip_gradient": -1.0, "nesterov": False}  # fmt: skip


class Bench:
    """A unit, its rules and pool, and shorter words for them."""

    def __init__(self, members: int = 1, dtype: str = "float32", first: Any = (0, 0),
                 **rules: Any) -> None:
        self.pool = CheckedPool()
        self.dtype = dtypes.numpy_dtype(dtype)
        self.rules = Rules("arrival", "sum", (1 << members) - 1, **rules)
        self.unit = Unit(dtypes.by_name(dtype), self.buffer(first), self.pool)

    def buffer(self, values: Any) -> Any:
        array = np.array(values, self.dtype)
        taken = self.pool.take(array.nbytes)
        taken[:] = array.view("u1")
        return taken

    def push(self, rank: int, clock: int, *values: float, hyper: int = 0) -> list[Any]:
        return self.unit.contribute(rank, clock, self.buffer(values), hyper, self.rules, 0.0)

    def pull(self, rank: int, clock: int) -> Waiter:
        waiter = Waiter(rank, 1, 0, 0, True, clock, [memoryview(b"")], 1)
        self.unit.park(waiter, 0, clock)
        return waiter

    def read(self, waiter: Waiter) -> list[float]:
        values: list[float] = np.frombuffer(waiter.parts[0], self.dtype).tolist()
        return values


def test_first_contribution_becomes_the_accumulator_without_a_copy() -> None:
    bench = Bench(2)
    mine = bench.buffer([1, 2])
    bench.unit.contribute(0, 1, mine, 0, bench.rules, 0.0)
    assert bench.unit.open[1].sum is mine
    bench.push(1, 1, 10, 20)
    assert bench.unit.current.buffer is mine
    assert mine.view("f4").tolist() == [11, 22]


def test_version_that_is_owed_to_nobody_is_updated_in_place() -> None:
    bench = Bench(optimizer="sgd", hyper={0: SGD})
    before = bench.unit.current.buffer
    bench.push(0, 1, 1, 1)
    assert bench.unit.current.buffer is before
    assert before.view("f4").tolist() == [-1, -1]
    assert not bench.unit.old


def test_owed_version_stays_until_its_reader_says_that_it_arrived() -> None:
    bench = Bench(optimizer="sgd", hyper={0: SGD})
    first = bench.pull(0, 0)
    bench.push(0, 1, 1, 1)
    second = bench.pull(0, 1)
    bench.push(0, 2, 1, 1)
    assert bench.read(first) == [0, 0]
    assert bench.read(second) == [-1, -1]
    assert bench.read(bench.pull(0, 1)) == [-1, -1]  # asked again after a cut
    assert len(bench.unit.old) == 2
    bench.unit.arrived(0, 1)
    assert [version.clock for version in bench.unit.old] == [1]
    bench.unit.arrived(0, 2)
    assert not bench.unit.old
    assert bench.read(bench.pull(0, 2)) == [-2, -2]


def test_version_is_kept_for_the_slowest_of_its_readers() -> None:
    bench = Bench(2)
    one, two = bench.pull(0, 0), bench.pull(1, 0)
    for rank in (0, 1):
        bench.push(rank, 1, 5, 5)
    bench.unit.arrived(0, 1)
    assert bench.read(one) == bench.read(two) == [0, 0]
    bench.unit.arrived(1, 1)
    assert not bench.unit.old


def test_buffer_of_a_replay_and_of_a_refused_push_goes_back() -> None:
    bench = Bench(2)
    bench.push(0, 1, 1, 1)
    free = bench.pool.free_bytes
    bench.push(0, 1, 9, 9)
    assert bench.pool.free_bytes == free + 8
    with pytest.raises(RemoteProtocolError):
        bench.push(0, 5, 9, 9)
    assert bench.pool.free_bytes == free + 8
    bench.push(1, 1, 2, 2)
    assert bench.read(bench.pull(0, 1)) == [3, 3]


def test_waiter_that_comes_again_takes_the_place_of_the_first() -> None:
    bench = Bench(1)
    old, new = bench.pull(0, 1), bench.pull(0, 1)
    waiters = bench.push(0, 1, 4, 4)
    assert [waiter for waiter, _ in waiters] == [new]
    assert old.pending == 1


def test_rank_order_adds_in_rank_order_and_arrival_as_they_come() -> None:
    parts = {0: 1e8, 1: 1.0, 2: -1e8}
    for order, came, expected in (
        ("rank", (0, 1, 2), 0.0), ("rank", (2, 0, 1), 0.0), ("rank", (1, 2, 0), 0.0),
        ("arrival", (0, 2, 1), 1.0),
    ):
        bench = Bench(3, first=[0])
        bench.rules.order = order
        for rank in came:
            bench.push(rank, 1, parts[rank])
        assert bench.read(bench.pull(0, 1)) == [expected]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_is_accumulated_in_f32_and_rounded_once(dtype: str) -> None:
    kind = dtypes.numpy_dtype(dtype)
    bench = Bench(64, dtype=dtype, first=[0])
    value = np.array([1e-3], kind)
    for rank in range(64):
        bench.push(rank, 1, 1e-3)
    got = bench.unit.current.buffer.view(kind)
    assert got == (value.astype("f4") * 64).astype(kind)


def test_failed_round_keeps_the_value_moves_the_clock_and_tells_every_waiter() -> None:
    bench = Bench(2, dtype="int32", optimizer="sgd", hyper={0: SGD})
    waiting = bench.pull(0, 1)
    bench.push(0, 1, 1, 1)
    for waiter, position in bench.push(1, 1, 1, 1):
        assert bench.unit.give(waiter, position)
    assert isinstance(waiting.error, OptimizerError)
    assert isinstance(bench.pull(1, 1).error, OptimizerError)  # whoever asks later
    word = Waiter(0, 9, 0, 0, False, 1, [memoryview(b"")], 1)
    assert bench.unit.park(word, 0, 1)
    assert word.error is None
    bench.rules.optimizer = None
    bench.push(0, 2, 3, 3)
    bench.push(1, 2, 4, 4)
    assert bench.read(bench.pull(0, 2)) == [7, 7]


def test_statistics_of_rounds_name_the_last_contributor() -> None:
    bench = Bench(2)
    bench.unit.contribute(0, 1, bench.buffer([1, 1]), 0, bench.rules, 10.0)
    bench.unit.contribute(1, 1, bench.buffer([1, 1]), 0, bench.rules, 12.5)
    assert bench.rules.rounds == 1
    assert bench.rules.waited_s == {1: 2.5}


def test_hyper_parameters_of_a_version_that_is_gone_are_the_next_ones() -> None:
    rules = Rules("arrival", "sum", 1, 0, "test", {3: {"a": 3}, 5: {"a": 5}})
    assert [rules.hyper_for(v)["a"] for v in (1, 3, 4, 5, 9)] == [3, 3, 5, 5, 5]


def test_no_buffer_is_lost_to_the_pool_over_many_rounds() -> None:
    for order in ("arrival", "rank"):
        bench = Bench(2, dtype="float16", optimizer="sgd", hyper={0: SGD})
        bench.rules.order = order
        for clock in range(1, 20):
            for rank in (0, 1):
                bench.unit.arrived(rank, clock)
                bench.push(rank, clock, 1, 1)
                bench.pull(rank, clock)
        assert bench.pool.free_bytes + 4 * (1 + len(bench.unit.old)) <= 4 * 6 + 8 * 2


def test_accumulator_totals_by_rank() -> None:
    pool = CheckedPool()
    accumulator = Accumulator(0.0)
    for rank in (2, 0, 1):
        part = pool.take(8)
        part.view("i4")[:] = [rank, 10**rank]
        accumulator.parts[rank] = part
    total = accumulator.total(dtypes.by_name("int32"), pool)
    assert total.view("i4").tolist() == [3, 111]
    assert not accumulator.parts
