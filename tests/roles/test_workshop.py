"""The thread beside the loop: order, what comes back, and its end."""

from __future__ import annotations

import asyncio
import logging
import threading

import pytest

from asyncps.roles import workshop as module
from asyncps.roles.workshop import Workshop


async def test_pieces_are_done_in_order_beside_the_loop_and_come_back_to_it() -> None:
    workshop, done = Workshop(), asyncio.Event()
    here = threading.get_ident()
    told: list[tuple[int, bool, bool]] = []
    worked: list[int] = []

    def piece(number: int) -> None:
        def work() -> None:
            worked.append(threading.get_ident())

        def then() -> None:
            told.append((number, worked[number] != here, threading.get_ident() == here))
            if number == 4:
                done.set()

        workshop.do(work, then)

    for number in range(5):
        piece(number)
    await done.wait()
    assert told == [(number, True, True) for number in range(5)]
    assert len(set(worked)) == 1
    await workshop.close()


async def test_closed_workshop_drops_what_has_not_begun_and_tells_nobody() -> None:
    workshop, begun, go_on = Workshop(), threading.Event(), threading.Event()
    told: list[str] = []

    def first() -> None:
        begun.set()
        go_on.wait(10.0)

    workshop.do(first, lambda: told.append("first"))
    workshop.do(lambda: told.append("second is done"), lambda: told.append("second"))
    await asyncio.to_thread(begun.wait, 10.0)
    closing = asyncio.create_task(workshop.close(), name="closing")
    await asyncio.sleep(0)
    go_on.set()
    await closing
    workshop.do(lambda: told.append("third is done"), lambda: told.append("third"))
    assert told == []


async def test_workshop_that_never_worked_has_no_thread_to_end() -> None:
    await Workshop().close()


async def test_work_that_does_not_end_is_left_behind(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "END_S", 0.05)
    workshop, begun, go_on = Workshop(), threading.Event(), threading.Event()

    def stuck() -> None:
        begun.set()
        go_on.wait(10.0)

    workshop.do(stuck, lambda: None)
    await asyncio.to_thread(begun.wait, 10.0)
    with caplog.at_level(logging.WARNING):
        await workshop.close()
    go_on.set()  # its thread ends, though the loop may be gone by then
    assert "is left behind" in caplog.text
