"""The event loop of one process: a background thread, so that the user's own thread computes.

Submissions from other threads are batched and wake the loop once.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import threading
import weakref
from collections import deque
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, wait
from typing import Any, TypeVar, cast

from asyncps.config import Config
from asyncps.errors import AsyncPSError, ClosedError, ConfigError
from asyncps.roles.operation import LOOK_S

log = logging.getLogger(__name__)

T = TypeVar("T")


class Runtime:
    """A loop in a thread of its own.

    Args:
        make_loop: Makes the event loop.
    """

    def __init__(self, make_loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
        self._make_loop = make_loop
        self._calls: deque[Callable[[], None]] = deque()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._tasks: asyncio.TaskGroup | None = None
        self._stop: asyncio.Event | None = None
        self._closed = False
        self._ended = False  # the loop is over
        self.forked = False
        self.sockets: list[Callable[[], list[Any]]] = []
        started: Future[None] = Future()
        self._thread = threading.Thread(
            target=self._run, args=(started,), name="asyncps loop", daemon=True
        )
        self._thread.start()
        started.result()
        _close_sockets_after_fork(self)

    def spawn(self, work: Coroutine[Any, Any, Any], name: str) -> None:
        """Start a named task; on the loop only."""
        assert self._tasks is not None
        self._tasks.create_task(work, name=name)

    def call(self, work: Callable[[], None]) -> None:
        """Have the loop call something soon. Any thread; the caller does not wait.

        The loop is woken each time (which costs nothing when it is about to wake): a mark that it
        was woken already could be left behind by a Ctrl-C between the mark and the wake.
        """
        if self._closed or self.forked or self._loop is None:
            raise self._gone()
        self._calls.append(work)
        with contextlib.suppress(RuntimeError):  # the loop closed meanwhile
            self._loop.call_soon_threadsafe(self._drain)
        if self._ended:  # not is_alive(): a Ctrl-C in it leaves the thread marked as dead
            self._drain()  # it finds everything closed, and says so

    def run(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Make a coroutine on the loop, run it there, and wait for its result.

        Ctrl-C, and whatever else a signal handler raises, cancels it and waits until it has let go
        of what it held.
        """
        if self._closed or self.forked or self._loop is None:
            raise self._gone()
        self.check_thread()
        future: Future[None] = Future()
        # What came of it. It is taken out here: an error that its own traceback leads to would keep
        # the memory of all callers until the garbage collector comes.
        outcome: list[tuple[T | None, BaseException | None]] = []
        task: list[asyncio.Task[None]] = []

        async def carry() -> None:
            try:
                outcome.append((await work(), None))
            except BaseException as error:  # noqa: BLE001 - it is raised in the caller's thread
                outcome.append((None, error))
            future.set_result(None)

        def begin() -> None:
            assert self._tasks is not None
            if future.done():  # given up before it began
                return
            carried = carry()
            try:
                task.append(self._tasks.create_task(carried, name="a call from another thread"))
            except RuntimeError:  # the loop has ended
                carried.close()
                never_began()
            else:
                task[0].add_done_callback(never_began)  # one cancelled at once never runs

        def never_began(_: object = None) -> None:
            if not future.done():
                outcome.append((None, self._gone()))
                future.set_result(None)

        def give_up() -> None:
            if task:
                task[0].cancel()
            else:
                never_began()

        try:
            self.call(begin)
            _wait(future)
            result, error = outcome.pop()
            try:
                if error is not None:
                    raise without_internals(error)
            finally:
                del error
            return cast(T, result)
        except BaseException:
            if not future.done():  # else it is the coroutine's own error
                self.call(give_up)
                with contextlib.suppress(BaseException):
                    _wait(future)
                outcome.clear()
            raise

    @property
    def thread_ident(self) -> int | None:
        """The ident of the loop's thread."""
        return self._thread.ident

    def check_thread(self) -> None:
        """Refuse a blocking call on the loop's own thread, which would wait for itself."""
        if threading.current_thread() is self._thread:  # idents are given to others afterwards
            raise ConfigError("a blocking call inside the event loop; use asyncps.connect there")
        if self.forked:
            raise self._gone()

    def stop(self) -> None:
        """Stop the loop and do not wait; for whoever runs on it himself."""
        if self._loop is not None and self._stop is not None and not self._ended:
            with contextlib.suppress(RuntimeError):  # the loop closed meanwhile
                self._loop.call_soon_threadsafe(self._stop.set)

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until the loop has ended; return whether it has."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def close(self) -> None:
        """Stop the loop and wait for its thread."""
        if self._closed or self.forked:
            return
        self._closed = True
        self.stop()
        self._thread.join()

    def _gone(self) -> ClosedError:
        if self.forked:
            return ClosedError("a forked child has no store; make one of its own")
        return ClosedError("the store is closed")

    def _drain(self) -> None:
        calls = self._calls
        while True:
            try:
                call = calls.popleft()
            except IndexError:
                return
            try:
                call()
            except Exception:
                log.exception("a call from another thread failed")  # it is no end for the others

    def _run(self, started: Future[None]) -> None:
        try:
            with asyncio.Runner(loop_factory=self._make_loop) as runner:
                runner.run(self._main(started))
        except BaseException as error:
            if not started.done():
                started.set_exception(error)
                return
            raise
        finally:
            self._closed = self._ended = True
            self._drain()  # calls that came too late find everything closed, and say so

    async def _main(self, started: Future[None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        try:
            async with asyncio.TaskGroup() as tasks:
                self._tasks = tasks
                started.set_result(None)
                await self._stop.wait()
                raise _Stopped
        except* _Stopped:
            pass


def _wait(future: Future[Any]) -> None:
    """Wait for the end, and wake now and then.

    A signal that comes between Python's last look and the thread's sleep would otherwise be seen
    only when something else wakes the thread.
    """
    while not future.done():
        wait((future,), LOOK_S)  # not future.exception(): a handler may raise TimeoutError too


def without_internals(error: BaseException) -> BaseException:
    """Take the loop's frames from an error of ours, which its text explains; the log keeps them."""
    if isinstance(error, AsyncPSError):
        log.debug("a verb failed", exc_info=error)
        error.__traceback__ = None
    return error


class _Stopped(Exception):
    """Ends the task group and cancels what is left in it."""


def _close_sockets_after_fork(runtime: Runtime) -> None:
    """In a forked child close the runtime's sockets, so that the parent's death is seen at once."""
    reference = weakref.ref(runtime)

    def in_child() -> None:
        parent = reference()
        if parent is None or parent._closed:
            return
        parent.forked = True
        for find in parent.sockets:
            for sock in find():
                with contextlib.suppress(OSError):
                    # Detached where that can be: nobody shall close the number a second time.
                    real = isinstance(sock, socket.socket)
                    os.close(sock.detach() if real else sock.fileno())

    os.register_at_fork(after_in_child=in_child)


def loop_factory(config: Config) -> Callable[[], asyncio.AbstractEventLoop]:
    """Return what makes the event loop that the settings ask for."""
    if config.loop == "asyncio":
        return asyncio.new_event_loop
    import uvloop

    return uvloop.new_event_loop
