"""Exactly once: whole workers and servers over a network that fails, by Hypothesis and by walks."""

from __future__ import annotations

import random

import hypothesis
import pytest
from hypothesis.stateful import run_state_machine_as_test

from tests.roles.together import FATES, GROUPS, KINDS, Together


def walk(seed: int, most: int = 150) -> None:
    """A walk in which more happens at once than Hypothesis likes to try."""
    machine, rng = Together(), random.Random(seed)
    machine.start(workers=rng.randint(1, 3), servers=rng.randint(1, 2), kind=rng.choice(KINDS),
                  order=rng.choice(["arrival", "rank"]), optimizer=rng.random() < 0.7)
    for _ in range(rng.randint(10, most)):
        what, rank, server = rng.random(), rng.randrange(3), rng.randrange(2)
        if what < 0.14:
            machine.call(rank, rng.choice(["push", "pull", "pushpull", "pushpull"]),
                         rng.randrange(len(GROUPS)), rng.randint(-2, 2), rng.random() < 0.5)
        elif what < 0.22:
            machine.call_on_a_lane(rank, rng.choice(["a", "b", "chunk"]), rng.choice(FATES))
        elif what < 0.52:
            machine.deliver(rank, server, rng.random() < 0.3, rng.random() < 0.2)
        elif what < 0.78:
            machine.receive(rank, server, rng.random() < 0.3)
        elif what < 0.81:
            machine.deliver_again(rank, server)
        elif what < 0.84:
            machine.go_on_with_lane(rank, server)
        elif what < 0.87:
            machine.cut(rank, server)
        elif what < 0.91:
            machine.come_back(rank, server)
        elif what < 0.94:
            machine.clog(rank, server, rng.random() < 0.5)
        elif what < 0.97:
            machine.flow(rank, server)
        elif what < 0.98:
            machine.give_up(rank, rng.randrange(10))
        elif what < 0.995:
            machine.deadline(rank, server, rng.randrange(10))
        else:
            machine.leave(rank)
        machine.memory_is_bounded()
        machine.callers_arrays_stay_as_they_were()
    machine.teardown()


async def test_no_fault_of_the_network_loses_a_push_or_counts_it_twice() -> None:
    run_state_machine_as_test(
        Together,
        settings=hypothesis.settings(max_examples=30, stateful_step_count=40, deadline=None),
    )


@pytest.mark.parametrize("first", range(0, 200, 50))
async def test_random_walk_loses_no_push_and_counts_none_twice(first: int) -> None:
    for seed in range(first, first + 50):
        try:
            walk(seed)
        except BaseException as error:
            error.add_note(f"walk({seed})")
            raise
