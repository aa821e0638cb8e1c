"""Looking before sleeping: when it is worth it, and what else the loop does meanwhile."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest

from asyncps.transport import polling as module
from asyncps.transport.polling import Bet, Polling

LIMIT_S = 0.25  # and all times are sums of powers of two: exact


class Machine:
    """A clock that a test sets, and a processor that is given away at each look."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.events: list[str] = []

    def monotonic(self) -> float:
        return self.now

    def sched_yield(self) -> None:
        self.events.append("look")

    @property
    def looks(self) -> int:
        return self.events.count("look")


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    """What the module under test takes for the clock and the processor; the loop keeps its own."""
    made = Machine()
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=made.monotonic))
    monkeypatch.setattr(module, "os", SimpleNamespace(sched_yield=made.sched_yield))
    return made


# ---- the bet ------------------------------------------------------------------------------------


def test_limit_of_zero_never_looks(machine: Machine) -> None:
    bet = Bet(0.0)
    for _ in range(3):
        assert bet.expect() == 0.0
        bet.came()  # in no time at all


def test_first_message_and_whatever_follows_a_quick_one_is_looked_for(machine: Machine) -> None:
    bet = Bet(LIMIT_S)
    for wait_s in (0.0, LIMIT_S / 2, LIMIT_S):
        assert bet.expect() == LIMIT_S
        machine.now += wait_s
        bet.came()
    assert bet.expect() == LIMIT_S


def looked_for(bet: Bet, machine: Machine, count: int, wait_s: float) -> list[int]:
    """Which of so many messages, each after the same wait, were looked for."""
    found = []
    for number in range(count):
        if bet.expect():
            found.append(number)
        machine.now += wait_s
        bet.came()
    return found


@pytest.mark.parametrize("wait_s", [LIMIT_S + 2**-20, 2 * LIMIT_S, 3600.0])
def test_late_messages_are_looked_for_more_and_more_rarely(
    machine: Machine, wait_s: float
) -> None:
    bet = Bet(LIMIT_S)
    # One is passed after the first look, then 3, 7, 15, 31, 63, and never more than 63.
    expected = [0, 2, 6, 14, 30, 62, 126, 190, 254]
    assert looked_for(bet, machine, 300, wait_s) == expected


def test_quick_message_that_was_looked_for_forgets_the_late_ones(machine: Machine) -> None:
    bet = Bet(LIMIT_S)
    assert looked_for(bet, machine, 10, 1.0) == [0, 2, 6]
    # Quick ones that are slept for prove nothing; the next look does.
    assert looked_for(bet, machine, 10, LIMIT_S) == [4, 5, 6, 7, 8, 9]
    assert looked_for(bet, machine, 3, 1.0) == [0, 2]


def test_message_that_stays_away_is_a_late_one(machine: Machine) -> None:
    bet = Bet(LIMIT_S)
    assert bet.expect() == LIMIT_S
    bet.lost()
    assert bet.expect() == 0.0
    bet.lost()  # it was not looked for: that says nothing
    assert bet.expect() == LIMIT_S


def test_wait_is_counted_from_when_the_message_was_last_expected(machine: Machine) -> None:
    bet = Bet(LIMIT_S)
    bet.expect()
    machine.now += 100.0
    bet.expect()
    bet.came()
    assert bet.expect() == LIMIT_S


# ---- the loop -----------------------------------------------------------------------------------

BOTH_LOOPS = pytest.mark.asyncio(loop_factories=["uvloop", "asyncio"])


async def turns(machine: Machine, count: int) -> list[str]:
    """Let the loop go round so often; return what happened from the first turn to the last."""
    loop, over = asyncio.get_running_loop(), asyncio.Event()
    before = len(machine.events)

    def turn(left: int) -> None:
        machine.events.append("turn")
        if left > 1:
            loop.call_soon(turn, left - 1)
        else:
            over.set()

    loop.call_soon(turn, count)
    await over.wait()
    found = machine.events[before:]
    while found[-1] != "turn":
        found.pop()
    return found[found.index("turn") :]


async def settled(machine: Machine) -> bool:
    """Whether the loop looks no more; a look that was under way may end."""
    await turns(machine, 2)
    return await turns(machine, 5) == ["turn"] * 5


@BOTH_LOOPS
async def test_loop_looks_only_while_a_message_is_expected(machine: Machine) -> None:
    polling = Polling(LIMIT_S)
    assert await settled(machine)
    assert machine.looks == 0
    polling.expect()
    await turns(machine, 5)
    assert machine.looks >= 5
    machine.now += LIMIT_S - 2**-20
    assert not await settled(machine)
    machine.now += 2**-20
    assert await settled(machine)
    polling.expect()  # not too late yet: nothing came, nothing was lost
    assert not await settled(machine)
    polling.came()
    assert await settled(machine)


@BOTH_LOOPS
async def test_loop_looks_no_more_when_the_message_came(machine: Machine) -> None:
    polling = Polling(LIMIT_S)
    for _ in range(3):
        polling.expect()
        assert not await settled(machine)
        polling.came()
        assert await settled(machine)


@BOTH_LOOPS
async def test_message_that_comes_before_the_first_look_is_not_looked_for(
    machine: Machine,
) -> None:
    polling = Polling(LIMIT_S)
    polling.expect()
    polling.came()
    await turns(machine, 3)
    assert machine.looks == 0


@BOTH_LOOPS
async def test_limit_of_zero_lets_the_loop_sleep(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    polling = Polling(0.0)
    calls: list[object] = []
    monkeypatch.setattr(polling, "_loop", SimpleNamespace(call_soon=calls.append))
    for _ in range(3):
        polling.expect()
        polling.came()
    assert calls == []


@BOTH_LOOPS
async def test_late_message_lets_the_loop_sleep_until_one_is_quick_again(
    machine: Machine,
) -> None:
    polling = Polling(LIMIT_S)
    polling.expect()
    machine.now += 2 * LIMIT_S
    polling.came()
    polling.expect()
    await turns(machine, 3)
    assert machine.looks == 0
    polling.came()  # at once
    polling.expect()
    await turns(machine, 3)
    assert machine.looks > 0
    polling.came()
    assert await settled(machine)


@BOTH_LOOPS
async def test_message_that_is_expected_anew_is_looked_for_from_then_on(machine: Machine) -> None:
    polling = Polling(LIMIT_S)
    polling.expect()
    await turns(machine, 2)
    machine.now += LIMIT_S - 2**-20
    polling.expect()
    machine.now += LIMIT_S - 2**-20
    assert not await settled(machine)
    machine.now += 2**-20
    assert await settled(machine)


@BOTH_LOOPS
async def test_whatever_else_is_ready_runs_between_two_looks(machine: Machine) -> None:
    polling = Polling(LIMIT_S)
    polling.expect()
    assert await turns(machine, 20) == ["turn", "look"] * 19 + ["turn"]
    polling.came()
    assert await settled(machine)


@BOTH_LOOPS
async def test_one_look_a_turn_however_many_messages_are_expected(machine: Machine) -> None:
    polling = Polling(LIMIT_S)
    for _ in range(5):
        polling.expect()
    assert await turns(machine, 5) == ["turn", "look"] * 4 + ["turn"]
    for _ in range(5):
        polling.came()
        polling.expect()  # while the look before it is still to end
    assert await turns(machine, 5) == ["turn", "look"] * 4 + ["turn"]
    polling.came()
    assert await settled(machine)
