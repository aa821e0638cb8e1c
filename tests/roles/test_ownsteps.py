"""Optimizers of the user's own beside the loop: order, answers, assignments, errors."""

from __future__ import annotations

from typing import Any

import hypothesis
import numpy as np
import pytest
from hypothesis.stateful import run_state_machine_as_test

from asyncps import optim
from asyncps.errors import OptimizerError
from asyncps.protocol.frames import Kind
from asyncps.protocol.messages import Install, Missing
from asyncps.roles.slab import Slab
from tests.roles.free_machine import FreeMachine, free_walk
from tests.roles.machine import CHUNK, SLAB, StoreMachine, random_walk
from tests.roles.own_machine import ManualWorkshop, OwnFreeMachine, OwnStoreMachine, serve
from tests.support.ports import STORE, FakeServer, make_frame, read_answer

pytestmark = pytest.mark.usefixtures("registered")


@pytest.mark.parametrize("machine", [OwnStoreMachine, OwnFreeMachine])
async def test_no_order_of_frames_cuts_and_work_gives_a_wrong_byte(machine: Any) -> None:
    run_state_machine_as_test(
        machine,
        settings=hypothesis.settings(max_examples=30, stateful_step_count=40, deadline=None),
    )


@pytest.mark.parametrize("first", range(0, 200, 100))
async def test_random_walk_gives_no_wrong_byte(first: int) -> None:
    walks: list[Any] = [(random_walk, OwnStoreMachine), (free_walk, OwnFreeMachine)]
    for walk, machine in walks:
        for seed in range(first, first + 100):
            try:
                walk(seed, machine)
            except BaseException as error:
                error.add_note(f"{walk.__name__}({seed}, {machine.__name__})")
                raise


class Bench:
    """A server with one chunk of one f32, and shorter words."""

    def __init__(self, members: int = 1, **words: Any) -> None:
        self.workshop = ManualWorkshop()
        self.server = serve(members, self.workshop, **words)
        self.server.init(CHUNK, "float32", [f4(0)], slab=False)
        self.number = 1

    def send(self, rank: int, kind: Kind, clock: int, *values: float, **words: Any) -> int:
        self.number += 1
        frame = make_frame(kind, self.number, words.pop("unit", CHUNK), clock, f4(*values),
                           size=words.pop("size", 4), **words)
        self.server.deliver(rank, frame)
        return self.number

    def answers(self, rank: int = 0) -> list[tuple[int, Any]]:
        """(request, value or error) of what was answered since."""
        found = []
        while self.server.answers(rank):
            _, number, body, error = read_answer(self.server.answers(rank).popleft())
            found.append((number, error or np.frombuffer(body, "f4").tolist()))
        return found


def f4(*values: float) -> bytes:
    return np.array(values, "f4").tobytes()


async def test_update_of_one_unit_keeps_no_other_waiting() -> None:
    bench = Bench()
    bench.server.init(2, "float32", [f4(7)], slab=False)
    slow = bench.send(0, Kind.PUSHPULL, 1, 1)
    other = bench.send(0, Kind.PULL, 0, unit=2)
    before = bench.send(0, Kind.PULL, 0)
    assert bench.answers() == [(other, [7]), (before, [0])]
    bench.workshop.turn()
    assert bench.answers() == [(slow, [3])]


async def test_round_that_is_complete_waits_for_the_one_before_and_is_then_applied() -> None:
    bench = Bench(2)
    for rank in (0, 1):
        for clock in (1, 2):
            bench.send(rank, Kind.PUSHPULL, clock, clock)
    assert len(bench.workshop.pieces) == 1
    bench.workshop.turn()
    bench.workshop.turn()
    assert [value for _, value in bench.answers(0)] == [[6], [18]]
    assert [value for _, value in bench.answers(1)] == [[6], [18]]
    assert bench.server.keeper.rules.rounds == 2


async def test_push_in_step_is_accepted_at_once_and_in_dist_async_when_it_is_applied() -> None:
    for words, late in (({}, False), ({"type": "dist_async"}, True)):
        bench = Bench(**words)
        push = bench.send(0, Kind.PUSH, 1, 1)
        assert bench.answers() == ([] if late else [(push, [])])
        bench.workshop.turn()
        assert bench.answers() == ([(push, [])] if late else [])


async def test_value_that_is_assigned_waits_for_what_is_complete_and_for_nothing_else() -> None:
    bench = Bench()
    bench.send(0, Kind.PUSH, 1, 1)
    bench.send(0, Kind.PUSH, 2, 1)
    assigned = bench.send(0, Kind.ASSIGN, 2, 100)
    bench.answers()
    later = bench.send(0, Kind.PULL, 2)
    bench.workshop.turn()
    assert bench.answers() == []
    bench.workshop.turn()
    assert bench.answers() == [(later, [6]), (assigned, [])]
    again = bench.send(0, Kind.PUSHPULL, 3, 1)
    bench.workshop.turn()
    assert bench.answers() == [(again, [103])]


async def test_failure_keeps_value_and_state_and_reaches_every_waiter_with_its_key() -> None:
    bench = Bench(2)

    class Picky(optim.Optimizer):
        def update(self, weight: Any, grad: Any, state: Any, hyper: Any) -> None:
            weight += grad
            if grad[0] > 9:
                raise ValueError("too much")

    defaults = dict(optim.by_name("picky").defaults)
    bench.server.keeper.install(Install(STORE, bench.server.config_words, "picky", defaults))
    for rank in (0, 1):
        bench.send(rank, Kind.PUSHPULL, 1, 5)
    bench.workshop.turn()
    for rank in (0, 1):
        ((_, error),) = bench.answers(rank)
        assert isinstance(error, OptimizerError)
        assert error.message == "optimizer picky failed: ValueError('too much')"
        assert (error.key, error.host) == ("key 0.0", "here")
    for rank in (0, 1):
        bench.send(rank, Kind.PUSHPULL, 2, 1)
    bench.workshop.turn()
    assert bench.answers(0)[0][1] == bench.answers(1)[0][1] == [2]


async def test_another_optimizer_waits_for_the_step_that_is_under_way_and_drops_its_state() -> None:
    bench = Bench()
    first = bench.send(0, Kind.PUSHPULL, 1, 1)
    bench.server.keeper.install(
        Install(STORE, bench.server.config_words, "test", {"rescale_grad": 1.0}))
    second = bench.send(0, Kind.PUSHPULL, 2, 1)
    assert bench.answers() == []
    bench.workshop.turn()
    assert bench.answers() == [(first, [3]), (second, [4])]
    unit = bench.server.keeper.units[CHUNK]
    assert not isinstance(unit, Slab)
    assert (unit.state, unit.updates) == ({}, 1)
    third = bench.send(0, Kind.PUSHPULL, 3, 1)
    assert bench.answers() == [(third, [5])]


async def test_leaving_completes_the_next_round_only_when_the_step_is_done() -> None:
    bench = Bench(2)
    for rank, clock in ((0, 1), (1, 1), (0, 2)):
        bench.send(rank, Kind.PUSHPULL, clock, 1)
    bench.server.keeper.left(1)
    assert len(bench.workshop.pieces) == 1
    bench.workshop.turn()
    bench.workshop.turn()
    assert [value for _, value in bench.answers(0)] == [[6], [9]]
    assert bench.answers(1) == []


async def test_who_asks_whom_a_round_waits_for_hears_of_the_optimizer() -> None:
    bench = Bench(2)
    for rank in (0, 1):
        bench.send(rank, Kind.PUSH, 1, 1)
    keeper = bench.server.keeper
    told = keeper.missing(Missing(STORE, CHUNK, [], 1))
    assert (told.ranks, told.at_work) == ([], "moving")
    told = keeper.missing(Missing(STORE, CHUNK, [], 2))
    assert (told.ranks, told.at_work) == ([0, 1], "moving")
    bench.workshop.turn()
    assert keeper.missing(Missing(STORE, CHUNK, [], 1)).at_work == ""


async def test_rows_of_a_slab_move_apart_and_together_again_with_another_optimizer() -> None:
    bench = Bench()
    bench.server.init(SLAB, "float32", [f4(1), f4(2)], slab=True)
    slab = bench.server.keeper.units[SLAB]
    assert isinstance(slab, Slab)
    both = bench.send(0, Kind.PUSHPULL, 1, 1, 1, unit=SLAB)
    bench.workshop.turn()
    assert slab.whole is None
    assert bench.answers() == []
    bench.workshop.turn()
    assert bench.answers() == [(both, [4, 5])]
    bench.server.keeper.install(
        Install(STORE, bench.server.config_words, "test", {"rescale_grad": 1.0}))
    again = bench.send(0, Kind.PUSHPULL, 2, 1, 1, unit=SLAB, acked=2)
    bench.send(0, Kind.PULL, 2, unit=SLAB, size=8, acked=2)
    assert (again, [5, 6]) in bench.answers()
    assert slab.whole is not None


def test_machines_are_those_of_the_other_tests() -> None:
    assert issubclass(OwnStoreMachine, StoreMachine)
    assert issubclass(OwnFreeMachine, FreeMachine)
    assert FakeServer.answer is not None
