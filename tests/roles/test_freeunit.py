"""A unit whose pushes are applied as they come: what is answered, and what memory may be reused."""

from __future__ import annotations

from typing import Any

import hypothesis
import numpy as np
import pytest
from hypothesis.stateful import run_state_machine_as_test

from asyncps.errors import OptimizerError, RemoteProtocolError
from asyncps.roles.freeunit import FreeUnit
from asyncps.roles.slab import Slab
from asyncps.roles.unit import Rules, Waiter
from asyncps.tensor import dtypes
from tests.roles.free_machine import FreeMachine, free_walk
from tests.support.ports import CheckedPool

F32 = dtypes.by_name("float32")
HYPER = {0: {"rescale_grad": 1.0}, 1: {"rescale_grad": 10.0}}


class Bench:
    """A unit of two f32, its rules and pool, and shorter words for them."""

    def __init__(self, members: int = 2, bound: int | None = None, optimizer: str = "test",
                 dtype: str = "float32") -> None:
        self.pool = CheckedPool()
        self.dtype = dtypes.numpy_dtype(dtype)
        self.rules = Rules("arrival", "sum", (1 << members) - 1, bound, optimizer, dict(HYPER))
        self.unit = FreeUnit(dtypes.by_name(dtype), self.buffer(0, 0), self.pool, bound)
        self.number = 0

    def buffer(self, *values: float) -> Any:
        array = np.array(values, self.dtype)
        taken = self.pool.take(array.nbytes)
        taken[:] = array.view("u1")
        return taken

    def push(self, rank: int, clock: int, value: float, *, hyper: int = 0, acked: int = 0,
             now: float = 0.0) -> list[int]:
        """The ranks whose waiting this ends."""
        self.unit.arrived(rank, acked)
        ended = self.unit.contribute(
            rank, clock, self.buffer(value, value), hyper, self.rules, now)
        return [waiter.rank for waiter, place in ended if self.unit.give(waiter, place)]

    def pull(self, rank: int, clock: int, *, acked: int = 0, data: bool = True) -> Waiter:
        self.number += 1
        waiter = Waiter(rank, self.number, 0, 0, data, clock, [memoryview(b"")], 1)
        self.unit.arrived(rank, acked)
        self.unit.park(waiter, 0, clock)
        return waiter

    def read(self, waiter: Waiter) -> list[float]:
        assert waiter.pending == 0
        assert waiter.error is None
        values: list[float] = np.frombuffer(waiter.parts[0], self.dtype).tolist()
        return values


async def test_no_order_of_frames_halves_cuts_and_leavings_gives_a_wrong_byte() -> None:
    run_state_machine_as_test(
        FreeMachine,
        settings=hypothesis.settings(max_examples=40, stateful_step_count=40, deadline=None),
    )


@pytest.mark.parametrize("first", range(0, 400, 100))
async def test_random_walk_gives_no_wrong_byte(first: int) -> None:
    for seed in range(first, first + 100):
        try:
            free_walk(seed)
        except BaseException as error:
            error.add_note(f"free_walk({seed})")
            raise


def test_push_is_applied_when_it_comes_whoever_else_pushes() -> None:
    bench = Bench()
    for clock in range(1, 10):
        assert bench.push(0, clock, 1) == []
        assert bench.read(bench.pull(1, 0)) == [clock, clock]
    assert bench.rules.rounds == 9


def test_push_ahead_of_the_bound_waits_and_its_pull_with_it() -> None:
    bench = Bench(bound=1)
    bench.push(0, 1, 1)
    assert bench.read(bench.pull(0, 1)) == [1, 1]
    bench.push(0, 2, 10)
    mine, others = bench.pull(0, 2), bench.pull(1, 0)
    assert mine.pending
    assert bench.read(others) == [1, 1]
    assert bench.push(1, 1, 100) == [0]
    assert bench.read(mine) == [111, 111]
    assert bench.read(others) == [1, 1]


def test_member_that_leaves_frees_those_that_waited_for_it() -> None:
    bench = Bench(bound=1)
    bench.push(0, 1, 1)
    bench.push(0, 2, 10)
    mine = bench.pull(0, 2)
    bench.rules.members = 0b01
    for _, waiters in bench.unit.left(bench.rules):
        for waiter, place in waiters:
            assert bench.unit.give(waiter, place)
    assert bench.read(mine) == [11, 11]
    assert not bench.unit.parked


def test_what_one_sees_is_not_changed_by_what_others_push_until_it_has_arrived() -> None:
    bench = Bench(3)
    seen = bench.pull(0, 0)
    for clock in range(1, 5):
        bench.push(1, clock, 1)
        bench.pull(2, 0)
    assert bench.read(seen) == [0, 0]
    free = bench.pool.free_bytes
    bench.unit.arrived(0, 1)
    assert bench.pool.free_bytes > free


def test_version_that_an_earlier_answer_is_made_of_is_not_reused_when_a_later_one_arrives() -> None:
    bench = Bench(3)
    first, same = bench.pull(0, 0), bench.pull(1, 0)
    bench.push(2, 1, 1)
    second = bench.pull(0, 0)
    bench.push(1, 1, 1, acked=1)  # rank 1 has what rank 0's first answer is made of
    bench.push(2, 2, 1)
    assert bench.read(first) == bench.read(same) == [0, 0]
    assert bench.read(second) == [1, 1]


def test_late_frame_of_a_lane_does_not_free_what_is_on_its_way() -> None:
    bench = Bench()
    bench.push(0, 1, 1)
    bench.push(0, 2, 1)
    newest = bench.pull(0, 2)
    bench.pull(0, 1)  # the lane says again what the loop has said
    bench.push(0, 3, 1, acked=2)  # all below clock 2 has arrived
    bench.push(1, 1, 1)
    assert bench.read(newest) == [2, 2]


def test_one_who_only_pulls_keeps_one_old_version_at_most() -> None:
    bench = Bench(3)
    for clock in range(1, 300):
        bench.pull(0, 0)
        bench.push(1, clock, 1, acked=clock)
        assert len(bench.unit.old) <= 1


def test_old_versions_are_freed_after_another_optimizer_was_set() -> None:
    bench = Bench()
    for clock in range(1, 6):
        bench.push(1, clock, 1)
    seen = bench.pull(0, 0)
    bench.push(1, 6, 1)
    bench.unit.updates = 0  # as Keeper.install does
    assert bench.read(seen) == [5, 5]
    bench.unit.arrived(0, 1)
    assert not bench.unit.old


@pytest.mark.parametrize("bound", [None, 1])
def test_replay_changes_nothing_and_is_answered_by_what_is_there_now(bound: int | None) -> None:
    bench = Bench(bound=bound)
    bench.push(0, 1, 1)
    bench.push(1, 1, 10)
    assert bench.unit.is_replay(0, 1)
    assert bench.push(0, 1, 1) == []
    assert bench.read(bench.pull(0, 1)) == [11, 11]


def test_skipped_clock_is_refused_and_its_buffer_goes_back() -> None:
    bench = Bench()
    with pytest.raises(RemoteProtocolError, match="skips"):
        bench.push(0, 2, 1)
    assert bench.pool.free_bytes == 8


def test_each_push_uses_the_hyper_parameters_that_its_pusher_had() -> None:
    bench = Bench(3, bound=1)
    for rank, hyper in ((0, 1), (1, 0)):
        bench.push(rank, 1, 1, hyper=hyper)
        bench.push(rank, 2, 1, hyper=hyper)  # both wait for rank 2, at one clock
    bench.push(2, 1, 0)
    assert bench.read(bench.pull(2, 1)) == [22, 22]


def test_push_that_cannot_be_applied_fails_for_its_pusher_alone() -> None:
    bench = Bench(dtype="int32")
    bench.push(1, 1, 5)
    bench.rules.optimizer = "sgd"
    bench.rules.hyper[0] = {"learning_rate": 1.0, "momentum": 0.0, "wd": 0.0, "rescale_grad": 1.0,
                            "clip_gradient": -1.0, "nesterov": False}  # fmt: skip
    bench.push(0, 1, 1)
    assert isinstance(bench.pull(0, 1).error, OptimizerError)
    assert isinstance(bench.pull(0, 1).error, OptimizerError)  # asked again
    assert bench.pull(0, 1, data=False).error is None
    assert bench.read(bench.pull(1, 1)) == [5, 5]
    bench.rules.optimizer, bench.rules.hyper[0] = "test", {"rescale_grad": 1.0}
    bench.push(0, 2, 1)
    assert bench.read(bench.pull(0, 2)) == [6, 6]


def test_each_of_two_pushes_applied_together_tells_its_own_end() -> None:
    bench = Bench(bound=1, dtype="int32")
    sgd = {"learning_rate": 1.0, "momentum": 0.0, "wd": 0.0, "rescale_grad": 1.0,
           "clip_gradient": -1.0, "nesterov": False}  # fmt: skip
    bench.rules.optimizer, bench.rules.hyper = "sgd", {0: sgd}
    bench.rules.members = 0b11
    for clock in (1, 2, 3):
        bench.push(0, clock, 1)
    waiting = [bench.pull(0, clock) for clock in (2, 3)]
    bench.rules.members = 0b01
    for _, waiters in bench.unit.left(bench.rules):
        for waiter, place in waiters:
            bench.unit.give(waiter, place)
    assert all(isinstance(waiter.error, OptimizerError) for waiter in waiting)
    assert all(waiter.pending == 0 for waiter in waiting)


def test_repeated_assign_does_not_undo_what_others_pushed_since() -> None:
    bench = Bench()
    bench.unit.assign(0, 0, 5, bench.buffer(50, 50))
    bench.push(1, 1, 1)
    bench.unit.assign(0, 0, 5, bench.buffer(50, 50))
    assert bench.read(bench.pull(1, 1)) == [51, 51]
    bench.unit.assign(0, 0, 6, bench.buffer(60, 60))
    bench.unit.assign(1, 1, 3, bench.buffer(70, 70))
    assert bench.read(bench.pull(1, 1)) == [70, 70]


def test_waiting_is_told_of_those_that_ended_it() -> None:
    bench = Bench(bound=1)
    bench.push(0, 1, 1, now=1.0)
    bench.push(0, 2, 1, now=2.0)
    bench.push(1, 1, 1, now=4.5)
    assert bench.rules.waited_s == {1: 2.5}


def free_slab(pool: CheckedPool) -> Slab:
    slab = Slab(F32, pool, lambda *given: FreeUnit(*given[:3], None, given[3]))
    buffer = pool.take(8)
    buffer[:] = 0
    slab.add_rows([4, 4], buffer)
    return slab


def test_slab_joins_though_somebody_has_not_said_that_its_rows_arrived() -> None:
    bench = Bench()
    slab = free_slab(bench.pool)
    assert slab.whole is not None
    seen = Waiter(1, 1, 0, 0, True, 0, [memoryview(b"")], 1)
    assert slab.whole.park(seen, 0, 0)
    slab.whole.contribute(0, 1, bench.buffer(1, 2), 0, bench.rules, 0.0)
    slab.split()
    row = Waiter(1, 2, 0, 0, True, 0, [memoryview(b"")], 1)
    assert slab.rows[0].park(row, 0, 0)
    for place in (0, 1):
        slab.rows[place].contribute(
            0, 2, bench.buffer(1, 2)[4 * place :][:4], 0, bench.rules, 0.0)
    assert slab.join()
    assert slab.whole is not None
    slab.whole.contribute(0, 3, bench.buffer(1, 2), 0, bench.rules, 0.0)
    assert slab.whole.current.buffer.view("f4").tolist() == [3, 6]
    assert bench.read(seen) == [0, 0]
    assert bench.read(row) == [1]
