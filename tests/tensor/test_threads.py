"""Element-wise work over threads: once for each place, to the same bytes, or not at all."""

from __future__ import annotations

import os
import signal
import threading
from typing import Any

import numpy as np
import pytest

from asyncps.tensor import codecs, threads
from asyncps.tensor.codecs import Elementwise
from asyncps.tensor.feedback import KeyCoder
from asyncps.tensor.threads import spread, threads_for, threads_of

MANY = pytest.mark.parametrize("many", [1, 2, 3, 7])
SPECS: list[dict[str, Any]] = [
    {"type": name} for name, kind in codecs.KINDS.items() if issubclass(kind, Elementwise)
]
every = pytest.mark.parametrize("spec", SPECS, ids=lambda spec: str(spec["type"]))


@pytest.mark.parametrize(("processors", "expected"), [
    (1, 1), (2, 1), (4, 1), (7, 1), (8, 2), (15, 3), (16, 4), (128, 4),
])  # fmt: skip
def test_a_quarter_of_the_processors_and_at_most_four(
    processors: int, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda who: set(range(processors)), raising=False)
    assert threads_of(0) == expected
    assert [threads_of(setting) for setting in (1, 2, 64)] == [1, 2, 64]


def test_each_thread_has_a_place_and_some_milliseconds_of_work() -> None:
    mebi = 1 << 20
    sizes = (0, 7, 8, 12, 16, 400)
    assert [threads_for(4 * size * mebi, 100, 4) for size in sizes] == [1, 1, 2, 3, 4, 4]
    assert threads_for(400 * mebi, 3, 4) == 3
    assert threads_for(400 * mebi, 100, 1) == 1


@MANY
def test_each_place_is_worked_on_once_and_so_many_at_once(many: int) -> None:
    together = threading.Barrier(many, timeout=20)
    found: list[tuple[int, int]] = []

    def work(place: int) -> None:
        if place < many:
            together.wait()
        found.append((place, threading.get_ident()))

    done = bytearray(50)
    spread(work, done, many)
    assert sorted(place for place, _ in found) == list(range(50))
    assert all(done)
    assert len({thread for _, thread in found}) >= many


@MANY
def test_what_is_raised_reaches_the_caller_when_nobody_is_at_work_any_more(many: int) -> None:
    error = ValueError("the tenth")
    at_work: list[int] = []
    begun: list[int] = []

    def work(place: int) -> None:
        at_work.append(place)
        begun.append(place)
        try:
            if place == 9:
                raise error
        finally:
            at_work.remove(place)

    done = bytearray(10_000)
    with pytest.raises(ValueError, match="the tenth") as found:
        spread(work, done, many)
    assert found.value is error
    assert not at_work
    count = len(begun)
    assert sum(done) == count - 1
    assert count < 10_000
    assert not done[9]


def test_without_threads_the_caller_does_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", start)
    found: list[int] = []
    spread(found.append, done := bytearray(5), 3)
    assert found == [0, 1, 2, 3, 4]
    assert all(done)


def test_ctrl_c_while_threads_are_started_leaves_nobody_at_work(
    monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[threading.Thread] = []
    start = threading.Thread.start

    def interrupted(thread: threading.Thread) -> None:
        started.append(thread)
        start(thread)
        if len(started) == 2:
            raise KeyboardInterrupt  # the thread has begun, or is about to

    monkeypatch.setattr(threading.Thread, "start", interrupted)
    done = bytearray(1 << 20)
    with pytest.raises(KeyboardInterrupt):
        spread(lambda place: None, done, 3)
    before = bytes(done)
    for thread in started:
        thread.join(20)
        assert not thread.is_alive()
    assert bytes(done) == before
    assert len(started) == 2


@pytest.mark.parametrize("times", [1, 3])
def test_ctrl_c_ends_the_wait_when_the_threads_have_ended_their_places(times: int) -> None:
    at_work: list[int] = []
    heard: list[int] = []

    def handler(*_: object) -> None:
        heard.append(1)
        raise KeyboardInterrupt

    helping = threading.Event()

    def work(place: int) -> None:
        if threading.current_thread() is threading.main_thread():
            if place > 100:
                helping.wait(20)  # Ctrl-C comes here, or in the wait for the other thread
            return
        at_work.append(place)
        helping.set()
        for count in range(times):
            os.kill(os.getpid(), signal.SIGINT)
            while len(heard) <= count:
                os.sched_yield()
        at_work.remove(place)

    before = signal.signal(signal.SIGINT, handler)
    try:
        done = bytearray(1 << 24)
        with pytest.raises(KeyboardInterrupt):
            spread(work, done, 2)
    finally:
        signal.signal(signal.SIGINT, before)
    assert not at_work
    assert not all(done)


def test_a_forked_child_works_too() -> None:
    spread(lambda place: None, bytearray(9), 3)
    child = os.fork()
    if not child:
        done = bytearray(9)
        spread(lambda place: None, done, 3)
        os._exit(0 if all(done) else 1)
    assert os.waitpid(child, 0)[1] == 0


def made(spec: dict[str, Any]) -> Elementwise:
    codec = codecs.made(codecs.checked(spec))
    assert isinstance(codec, Elementwise)
    return codec


def new(size: int) -> Any:
    return np.empty(size, np.uint8)


N = 90_001
PIECES = [(at, min(at + 4096, N)) for at in range(0, N, 4096)]


@every
@pytest.mark.parametrize("feedback", [True, False])
def test_bytes_and_residuals_are_the_same_whatever_the_number_of_threads(
    spec: dict[str, Any], feedback: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(threads, "LEAST_BYTES", 1)
    chance, codec = np.random.default_rng(1), made(spec)
    coders = [KeyCoder(N, many) for many in (1, 2, 3, 7)]
    for _ in range(3):
        g = chance.normal(size=N).astype("f4")
        sent = [b"".join(coder.encode(codec, g, g.nbytes, PIECES, new, [0] * len(PIECES),
                                      feedback=feedback)) for coder in coders]
        assert len(set(sent)) == 1
    if feedback:
        kept = [coder.residual for coder in coders]
        assert len({each.tobytes() for each in kept if each is not None}) == 1
        assert np.any(kept[0])


@every
@pytest.mark.parametrize("many", [2, 7])
def test_an_encoding_that_fails_in_a_thread_leaves_the_residual(
    spec: dict[str, Any], many: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(threads, "LEAST_BYTES", 1)
    codec, coder = made(spec), KeyCoder(N, many)
    g = np.random.default_rng(2).normal(size=N).astype("f4")
    coder.encode(codec, g, g.nbytes, PIECES, new, [0] * len(PIECES))
    assert coder.residual is not None
    before, write = coder.residual.copy(), codec.write

    def failing(payload: Any, residual: Any, part: Any) -> None:
        if part.ctypes.data == g[PIECES[9][0] :].ctypes.data:
            raise MemoryError("the tenth piece")
        write(payload, residual, part)

    monkeypatch.setattr(codec, "write", failing)
    with pytest.raises(MemoryError, match="the tenth piece"):
        coder.encode(codec, g, g.nbytes, PIECES, new, [0] * len(PIECES))
    assert np.allclose(coder.residual, before, atol=1e-6)
