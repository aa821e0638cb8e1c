"""The leak check of every test: tasks, threads, file descriptors, child processes, loop errors.

Take a `Snapshot` before the test and ask it afterwards what is there that was not. Whatever is on
its way out gets a short time; what is there then is a leak. The check of asyncio tasks runs while
the test's own loop still lives (`running_tasks`), the others when everything is closed.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import gc
import logging
import os
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from tests.support.processes import command_line, descendants_of, is_alive, wait_gone

GRACE_S = 2.0  # for a thread or process that was told to end and is ending
_LOOK_AGAIN_S = 0.01
_PR_SET_CHILD_SUBREAPER = 36

AnyTask = asyncio.Task[Any]
T = TypeVar("T")


def adopt_orphans() -> None:
    """Makes this process the parent of its orphaned grandchildren, so that the check sees them."""
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def running_tasks() -> set[AnyTask]:
    """The unfinished tasks of the running loop, without the one that asks."""
    return asyncio.all_tasks() - {asyncio.current_task()}  # type: ignore[arg-type]


def pending_tasks() -> set[AnyTask]:
    """The unfinished tasks of all loops, those of other threads and closed loops included."""
    # Its name up to 3.11, then since 3.12; asyncio.all_tasks() asks the same set for one loop.
    tasks = getattr(asyncio.tasks, "_scheduled_tasks", None)
    if tasks is None:
        tasks = asyncio.tasks._all_tasks  # type: ignore[attr-defined]
    for _attempt in range(100):
        try:
            return {task for task in list(tasks) if not task.done()}
        except RuntimeError:  # another thread's task came or went while we looked
            continue
    raise RuntimeError("the set of tasks did not stay still for 100 looks")


def open_fds() -> dict[int, str]:
    """The open file descriptors and what each stands for."""
    found: dict[int, str] = {}
    for name in os.listdir("/proc/self/fd"):
        # The descriptor of the listing itself is gone by now.
        with contextlib.suppress(FileNotFoundError):
            found[int(name)] = os.readlink(f"/proc/self/fd/{name}")
    return found


def live_threads() -> set[threading.Thread]:
    """Python's living threads; those that foreign code started are not ours to end."""
    return {
        thread
        for thread in threading.enumerate()
        if not isinstance(thread, threading._DummyThread)  # type: ignore[attr-defined]
    }


class _LoopErrors(logging.Handler):
    """Keeps what asyncio can only log: exceptions and tasks that nobody waited for."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        if record.exc_info and record.exc_info[1] is not None:
            text += f" ({record.exc_info[1]!r})"
        self.messages.append(text)


@dataclass
class Snapshot:
    """What was there before a test; `close` tells what is there now and was not."""

    threads: set[threading.Thread] = field(default_factory=live_threads)
    fds: dict[int, str] = field(default_factory=open_fds)
    tasks: set[AnyTask] = field(default_factory=pending_tasks)
    children: set[int] = field(default_factory=lambda: set(descendants_of(os.getpid())))
    _errors: _LoopErrors = field(default_factory=_LoopErrors)

    def __post_init__(self) -> None:
        logging.getLogger("asyncio").addHandler(self._errors)

    def close(self, grace_s: float = GRACE_S) -> list[str]:
        """Returns one line for each leak, and kills leaked processes: each leak is told once."""
        deadline = time.monotonic() + grace_s
        leaks = [
            *self._leaked_children(deadline),
            *self._leaked_threads(deadline),
            *self._leaked_tasks(deadline),
            *self._leaked_fds(deadline),
        ]
        logging.getLogger("asyncio").removeHandler(self._errors)
        return leaks + [f"asyncio logged an error: {text}" for text in self._errors.messages]

    def _leaked_threads(self, deadline: float) -> list[str]:
        extra = live_threads() - self.threads
        for thread in extra:
            thread.join(max(0.0, deadline - time.monotonic()))
        return [f"thread still alive: {thread}" for thread in extra if thread.is_alive()]

    def _leaked_children(self, deadline: float) -> list[str]:
        extra = [pid for pid in descendants_of(os.getpid()) if pid not in self.children]
        left = wait_gone(extra, max(0.0, deadline - time.monotonic()))
        told = [f"child process still alive: {pid} ({command_line(pid)})" for pid in left]
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        wait_gone(left, GRACE_S)
        for pid in extra:
            # Adopted orphans have nobody else to reap them. A child whose Popen nobody waited
            # for makes a ResourceWarning, which fails its test.
            if not is_alive(pid):
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(pid, os.WNOHANG)
        return told

    def _leaked_tasks(self, deadline: float) -> list[str]:
        left = _settle(lambda: pending_tasks() - self.tasks, deadline)
        return [f"task still pending: {task!r}" for task in left]

    def _leaked_fds(self, deadline: float) -> list[str]:
        left = _settle(lambda: open_fds().items() - self.fds.items(), deadline)
        return [f"file descriptor still open: {fd} -> {target}" for fd, target in sorted(left)]


def _settle(look: Callable[[], set[T]], deadline: float) -> set[T]:
    """Looks until nothing is found or the deadline is over; returns the last look."""
    if not look():
        return set()
    gc.collect()  # what only a reference cycle holds is closed now, with a ResourceWarning
    never = threading.Event()
    while (found := look()) and time.monotonic() < deadline:
        never.wait(_LOOK_AGAIN_S)
    return found
