"""Whom rounds wait for: workers join, return, leave and are lost; no order gives a wrong byte."""

from __future__ import annotations

from typing import Any

import hypothesis
import numpy as np
import pytest
from hypothesis.stateful import run_state_machine_as_test

from asyncps.errors import RemoteProtocolError, StaleIncarnation
from asyncps.protocol.attending import MAX_CLOCK_UNITS
from asyncps.protocol.frames import Kind
from asyncps.protocol.messages import (
    Clocks,
    Died,
    ErrorInfo,
    Gone,
    Join,
    Joined,
    Members,
)
from asyncps.roles.attendance import attend, clocks, expel
from asyncps.transport.request import control_frame
from tests.roles.cluster import bench
from tests.roles.membership_machine import MembershipMachine, membership_walk
from tests.support.ports import STORE, FakeServer, make_frame, read_answer


async def test_no_order_of_frames_joins_and_losses_gives_a_wrong_byte() -> None:
    run_state_machine_as_test(
        MembershipMachine,
        settings=hypothesis.settings(max_examples=60, stateful_step_count=40, deadline=None),
    )


@pytest.mark.parametrize("first", range(0, 600, 100))
async def test_random_walk_gives_no_wrong_byte(first: int) -> None:
    for seed in range(first, first + 100):
        try:
            membership_walk(seed)
        except BaseException as error:
            error.add_note(f"membership_walk({seed})")
            raise


def value(*numbers: float) -> bytes:
    return np.asarray(numbers, "f4").tobytes()


def pushed(server: FakeServer, rank: int, clock: int, number: float) -> None:
    server.deliver(rank, make_frame(Kind.PUSHPULL, clock, 0, clock, value(number), acked=clock))


def nothing() -> None:
    pass


def values(server: FakeServer, rank: int) -> list[float]:
    found = []
    frames = server.answers(rank)
    while frames:
        kind, _, body, error = read_answer(frames.popleft())
        assert error is None
        if kind == Kind.DATA:
            found.append(float(np.frombuffer(body, "f4")[0]))
    return found


@pytest.mark.parametrize(("type", "staleness"), [("dist_async", 0), ("dist_ssp", 1)])
async def test_pushes_that_come_as_they_like_stand_at_one_clock_after_a_join(
    type: str, staleness: int
) -> None:
    server = FakeServer(2, optimizer="test", hyper={"rescale_grad": 1.0}, type=type,
                        staleness=staleness)
    server.init(0, "float32", [value(0)], slab=False)
    got = []
    for clock in range(1, 3):
        pushed(server, 0, clock, 1)
        got += values(server, 0)
    assert got == ([1, 2] if type == "dist_async" else [1])
    attend(server.keeper, 1, lambda: 0b11, nothing)  # who has joined holds nobody back
    assert values(server, 0) == ([] if type == "dist_async" else [2])
    for clock in range(3, 6):
        pushed(server, 0, clock, 1)
        assert values(server, 0) == [clock]
    attend(server.keeper, 0, lambda: 0b11, nothing)
    attend(server.keeper, None, lambda: 0b11, nothing)
    for rank in range(2):
        assert clocks(server.keeper, rank, Clocks(STORE, [0], [])).clocks == [[5]]
    for turn, rank in enumerate((1, 0), 1):
        pushed(server, rank, 6, 10)
        assert values(server, rank) == [5 + 10 * turn]


async def test_worker_that_closes_the_store_gets_what_it_waits_for_and_counts_no_more() -> None:
    server = FakeServer(3)
    server.init(0, "float32", [value(0)], slab=False)
    for rank in (0, 1):
        pushed(server, rank, 1, 1)
    attend(server.keeper, 2, lambda: 0b111, nothing, closed=True)
    assert values(server, 0) == values(server, 1) == [2]
    pushed(server, 1, 2, 5)
    attend(server.keeper, 1, lambda: 0b111, nothing, closed=True)
    assert values(server, 1) == []
    pushed(server, 0, 2, 5)
    assert values(server, 0) == values(server, 1) == [10]
    for _ in range(2):  # each join that begins and ends
        attend(server.keeper, 0, lambda: 0b111, nothing)
        attend(server.keeper, None, lambda: 0b111, nothing)
        assert server.keeper.rules.members == 0b001
    pushed(server, 0, 3, 7)
    assert values(server, 0) == [7]


async def test_mean_divides_by_those_who_contributed() -> None:
    server = FakeServer(3, reduce="mean")
    server.init(0, "float32", [value(0)], slab=False)
    pushed(server, 0, 1, 3)
    pushed(server, 1, 1, 9)
    attend(server.keeper, 0, lambda: 0b111, nothing)  # its contribution to the open round stands
    assert values(server, 1) == []
    server.keeper.left(2)
    assert values(server, 1) == [6]
    pushed(server, 1, 2, 9)
    assert values(server, 1) == [9]


async def test_lost_worker_has_no_door_and_no_memory_here() -> None:
    server = FakeServer(2)
    server.init(0, "float32", [value(0)], slab=False)
    pushed(server, 1, 1, 1)
    unit: Any = server.keeper.units[0]
    assert unit.parked
    free = server.pool.free_bytes
    half = make_frame(Kind.PUSHPULL, 2, 0, 2, value(9), acked=1)
    assert server.begin(1, half)
    closed = []
    connection: Any = server.ports[1].connection
    connection.abort = closed.append
    expel(1, server.ports, {})
    server.keeper.left(1)
    assert [error.rank for error in closed] == [1]
    assert 1 not in server.ports
    assert not unit.parked
    assert server.pool.free_bytes >= free
    pushed(server, 0, 1, 5)
    assert values(server, 0) == [6]  # the round in which it was lost has what had come of it
    pushed(server, 0, 2, 5)
    assert values(server, 0) == [5]


async def test_question_for_too_many_clocks_is_refused() -> None:
    server = FakeServer(1)
    with pytest.raises(RemoteProtocolError, match="too many units"):
        clocks(server.keeper, 0, Clocks(STORE, list(range(MAX_CLOCK_UNITS + 1)), []))
    with pytest.raises(RemoteProtocolError, match="twice"):
        clocks(server.keeper, 0, Clocks(STORE, [1, 0, 1], []))


async def test_lost_worker_is_shown_the_door_by_every_role(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with bench(num_workers=2, on_worker_lost="continue") as made:
        controls = [await made.peer("worker", rank) for rank in range(2)]
        for rank, control in enumerate(controls):
            control.say(control_frame(Join("worker", rank, 0, "", 0, "host", 1), 1, 0, 1))
            assert (await control.hear(Joined)).incarnation == rank + 1
        server = made.server()
        await controls[1].hear(Members)
        assert server._listening is not None
        port = server._listening.port
        worker = await made.peer("worker", 1, 2, port=port)
        assert list(server.ports) == [1]
        launcher = await made.peer("launcher", 0)
        launcher.say(control_frame(Died("worker", 1, "was killed"), 1, 0, 1))
        for control in controls:
            gone = await control.hear(Gone)
            assert (gone.rank, gone.reason) == (1, "was killed")
        await controls[1].wait_gone()
        await worker.wait_gone()
        assert not server.ports
        await (await made.peer("worker", 1, 2, port=port)).wait_gone()
        assert "is not wanted" in caplog.text
        back = await made.peer("worker", 1, 2)
        back.say(control_frame(Join("worker", 1, 2, "", 0, "host", 1), 7, 2, 1))
        assert (await back.hear(ErrorInfo)).code == StaleIncarnation.code
        await back.wait_gone()
        launcher.close()
        controls[0].close()
