"""Pushes that are held: which may pass which."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncps.errors import ClosedError, DeadlineExceeded
from asyncps.protocol.frames import PUSH, PUSHPULL
from asyncps.roles.held import Held, HeldPushes
from asyncps.roles.operation import Operation
from asyncps.state.requests import Rows, Step

ROWS = st.none() | st.sets(st.integers(0, 4), min_size=1).map(sorted)


def held(rows: Rows, clock: int = 3, *, kind: int = PUSH, lent: bool = False) -> Held:
    op = Operation("push", lent=lent)
    value = memoryview(bytearray(b"value"))
    return Held(op, kind, Step(clock, rows, 1), 5, value, value, None, 0)


def meet(one: Rows, other: Rows) -> bool:
    return one is None or other is None or bool(set(one) & set(other))


@given(st.lists(ROWS, min_size=1, max_size=8), ROWS)
def test_heads_wait_for_nobody_and_all_others_do(named: list[Rows], fresh: Rows) -> None:
    pushes, every = HeldPushes(), [held(rows) for rows in named]
    for push in every:
        pushes.append(push)
    while every:
        assert list(pushes) == every
        free = [push for place, push in enumerate(every)
                if not any(meet(before.step.rows, push.step.rows) for before in every[:place])]
        assert pushes.heads() == free
        assert pushes.blocks(fresh) == any(meet(push.step.rows, fresh) for push in every)
        gone = free[-1]
        pushes.remove(gone)
        every.remove(gone)
    assert not pushes
    assert pushes.heads() == []


@given(st.lists(ROWS, min_size=1, max_size=8))
def test_behind_one_is_all_that_waits_for_it(named: list[Rows]) -> None:
    pushes, every = HeldPushes(), [held(rows) for rows in named]
    for push in every:
        pushes.append(push)
    for head in pushes.heads():
        waits = {id(head)}
        for place, push in enumerate(every):
            if any(id(before) in waits and meet(before.step.rows, push.step.rows)
                   for before in every[:place]):
                waits.add(id(push))
        assert [id(push) for push in pushes.behind(head)] == [
            id(push) for push in every if id(push) in waits]


def test_after_a_deadline_what_waits_behind_it_stays_and_its_callers_hear_of_it() -> None:
    pushes = HeldPushes()
    first, other, behind = held([0, 1]), held([2]), held([1])
    ops = [push.op for push in (first, other, behind)]
    for push in (first, other, behind):
        pushes.append(push)
    pushes.give_up(first, DeadlineExceeded("too long"))
    assert [op.ended for op in ops] == [True, False, True]
    assert list(pushes) == [first, other, behind]
    pushes.give_up(first, ClosedError("over"))
    assert not pushes
    assert ops[1].ended
    assert first.is_gone
    assert other.is_gone


def test_push_of_all_rows_is_one_of_those_there_were_when_there_are_more() -> None:
    pushes = HeldPushes()
    first, second, third = held(None), held([0, 1]), held(None)
    for push in (first, second, third):
        pushes.append(push)
    pushes.grow(range(2))
    assert [push.step.rows for push in pushes] == [range(2), [0, 1], range(2)]
    assert list(pushes) == [first, second, third]
    assert not pushes.blocks([2])
    for push in (first, second, third):
        assert pushes.heads() == [push]
        pushes.remove(push)


def test_detached_push_keeps_a_copy_and_asks_for_no_value() -> None:
    push = held(None, kind=PUSHPULL, lent=True)
    op, lent = push.op, push.value
    assert lent is not None
    push.detach(ClosedError("gave up"))
    lent[:] = b"other"
    assert op.ended
    assert isinstance(op.error, ClosedError)
    assert push.value == b"value"
    assert (push.kind, push.out, push.scatter) == (PUSH, None, None)
    assert not push.op.ended


async def test_whoever_waits_for_the_way_to_be_free_hears_of_it_once_it_is() -> None:
    push = held(None)
    push.let_go()
    await push.wait_gone(5.0)
    other = held(None)
    waiting = asyncio.ensure_future(other.wait_gone(5.0))
    await asyncio.sleep(0)
    other.let_go()
    await waiting


async def test_whoever_waits_for_a_push_that_was_due_hears_why_and_may_wait_again() -> None:
    pushes, push = HeldPushes(), held(None)
    pushes.append(push)
    waiting = asyncio.ensure_future(push.wait_gone(5.0))
    await asyncio.sleep(0)
    pushes.give_up(push, DeadlineExceeded("too long"))
    with pytest.raises(DeadlineExceeded, match="too long"):
        await waiting
    assert list(pushes) == [push]
    with pytest.raises(DeadlineExceeded, match=r"another 0\.001 s"):
        await push.wait_gone(0.001)
    again = asyncio.ensure_future(push.wait_gone(5.0))
    await asyncio.sleep(0)
    push.let_go()
    await again
