"""The loop in a thread of its own: calls from other threads, Ctrl-C, the end."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Callable, Iterator

import pytest

from asyncps.config import Config
from asyncps.errors import ClosedError, ConfigError
from asyncps.roles.runtime import Runtime, loop_factory


@pytest.fixture
def runtime() -> Iterator[Runtime]:
    made = Runtime(loop_factory(Config.from_env()))
    yield made
    made.close()


async def give(value: int) -> int:
    await asyncio.sleep(0)
    return value


def test_run_returns_what_the_coroutine_returns(runtime: Runtime) -> None:
    assert runtime.run(lambda: give(5)) == 5


def test_run_raises_what_the_coroutine_raises_and_goes_on(runtime: Runtime) -> None:
    async def fail() -> None:
        raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        runtime.run(fail)
    assert runtime.run(lambda: give(5)) == 5


def test_calls_come_in_their_order_on_the_loops_thread(runtime: Runtime) -> None:
    seen: list[tuple[int, int | None]] = []
    for number in range(100):
        runtime.call(lambda number=number: seen.append((number, threading.get_ident())))
    runtime.run(lambda: give(0))
    assert [number for number, _ in seen] == list(range(100))
    assert {ident for _, ident in seen} == {runtime._thread.ident}


def test_blocking_call_inside_the_loop_is_refused(runtime: Runtime) -> None:
    async def inside() -> int:
        return runtime.run(lambda: give(5))

    with pytest.raises(ConfigError, match="inside the event loop"):
        runtime.run(inside)


def test_closed_runtime_refuses_every_call() -> None:
    runtime = Runtime(asyncio.new_event_loop)
    runtime.close()
    runtime.close()
    for _ in range(3):
        with pytest.raises(ClosedError):
            runtime.run(lambda: give(5))
        with pytest.raises(ClosedError):
            runtime.call(lambda: None)


def test_calls_that_race_with_the_end_are_answered_or_refused() -> None:
    for _ in range(30):
        runtime = Runtime(asyncio.new_event_loop)
        ends: list[object] = []

        def go_on(runtime: Runtime = runtime, ends: list[object] = ends) -> None:
            try:
                while True:
                    runtime.run(lambda: give(5))
            except (ClosedError, asyncio.CancelledError) as error:
                ends.append(error)

        threads = [threading.Thread(target=go_on, name=f"caller {n}") for n in range(3)]
        for thread in threads:
            thread.start()
        runtime.close()
        for thread in threads:
            thread.join(10.0)
        assert len(ends) == 3


def test_ctrl_c_waits_until_the_coroutine_has_let_go(runtime: Runtime) -> None:
    let_go = []

    async def hold() -> None:
        try:
            os.kill(os.getpid(), signal.SIGINT)  # its handler runs in the waiting main thread
            await asyncio.sleep(3600)
        finally:
            await asyncio.sleep(0)
            let_go.append(True)

    with pytest.raises(KeyboardInterrupt):
        runtime.run(hold)
    assert let_go == [True]
    assert runtime.run(lambda: give(5)) == 5


@pytest.mark.parametrize("handed_over", [True, False])
def test_ctrl_c_while_a_call_is_handed_over_leaves_nothing_running(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch, handed_over: bool
) -> None:
    real, calls = runtime.call, []

    def call(work: Callable[[], None]) -> None:
        calls.append(work)
        if handed_over or len(calls) > 1:
            real(work)
        if len(calls) == 1:
            raise KeyboardInterrupt

    monkeypatch.setattr(runtime, "call", call)
    with pytest.raises(KeyboardInterrupt):
        runtime.run(lambda: asyncio.sleep(3600))
    assert len(calls) == 2
    assert runtime.run(lambda: give(5)) == 5


def test_loop_that_cannot_be_made_is_an_error_at_the_caller() -> None:
    def fail() -> asyncio.AbstractEventLoop:
        raise OSError("no descriptors left")

    with pytest.raises(OSError, match="no descriptors left"):
        Runtime(fail)


def test_loop_factory_follows_the_settings() -> None:
    loop = loop_factory(Config(loop="asyncio"))()
    try:
        assert isinstance(loop, asyncio.SelectorEventLoop)
    finally:
        loop.close()
    uvloop = pytest.importorskip("uvloop")
    loop = loop_factory(Config(loop="uvloop"))()
    try:
        assert isinstance(loop, uvloop.Loop)
    finally:
        loop.close()
