"""Large element-wise work over a few threads: kernels let go of the interpreter.

The threads of a piece of work are made for it and end with it: there is nothing to close, nothing
that a fork could lose, and no processor is kept from anybody. What comes out is the same whatever
their number, since each place is worked on by itself.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable

# Bytes of input for each thread at least: three milliseconds of work. To start a thread takes 0.3
# where a sleeping processor must wake up for it.
LEAST_BYTES = 16 << 20
_MOST = 4  # chosen by itself: by then memory is the limit


def processors() -> int:
    """Return how many processors this process may use."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not on macOS and Windows
        return os.cpu_count() or 1


def threads_of(setting: int) -> int:
    """Return how many threads may work at once.

    Args:
        setting: What the user says; 0 is a quarter of the processors that this process may use, at
            most 4. Other roles of the job, and the user's own arithmetic, live on the same host.
    """
    if setting:
        return setting
    return max(1, min(_MOST, processors() // 4))


def threads_for(size: int, count: int, most: int) -> int:
    """Return how many threads are worth their while.

    Args:
        size: Bytes of input.
        count: Places that it is cut into.
        most: What `threads_of` has said.
    """
    return max(1, min(most, count, size // LEAST_BYTES))


def spread(work: Callable[[int], None], done: bytearray, threads: int) -> None:
    """Call `work` for each place, from the first on.

    Args:
        work: Takes a place. Several threads call it at once, each with another place.
        done: A byte a place, 0; becomes 1 when `work` has returned.
        threads: So many, the caller's own among them.

    Raises:
        BaseException: What `work` has raised first, or what interrupted the caller. No other place
            is begun then, and no thread is at work any more.
    """
    crew = _Crew(work, done)
    if threads > 1:
        crew.lead(threads - 1)
    else:
        crew.go_on()
    error, crew.error = crew.error, None
    if error is not None:
        try:
            raise error
        finally:
            del error  # whose traceback holds this frame


class _Crew:
    """The threads of one piece of work."""

    def __init__(self, work: Callable[[int], None], done: bytearray) -> None:
        self.error: BaseException | None = None
        self._work = work
        self._done = done
        self._places = iter(range(len(done)))  # taken by whoever is free
        self._gate = threading.Lock()
        self._closed = False  # nobody enters any more
        self._entered: list[threading.Lock] = []  # of each thread: it lets go of it at its end

    def go_on(self) -> None:
        """Work until no place is left, or something has failed."""
        try:
            for place in self._places:
                if self.error is not None:
                    break
                self._work(place)
                self._done[place] = 1
        except BaseException as failed:  # noqa: BLE001 - `spread` raises it
            self._fail(failed)

    def lead(self, helpers: int) -> None:
        """Let so many threads help, and wait for those that have begun."""
        try:
            for number in range(helpers):
                busy = threading.Lock()
                busy.acquire()
                thread = threading.Thread(target=self._help, args=(busy,), daemon=True,
                                          name=f"asyncps-kernels-{number}")
                try:
                    thread.start()
                except RuntimeError:  # the system has no more, or the interpreter is ending
                    break
            self.go_on()
        except BaseException as interrupted:  # noqa: BLE001 - `spread` raises it
            self._fail(interrupted)
        while True:
            try:
                self._end()
                return
            except BaseException as interrupted:  # noqa: BLE001 - as above
                self._fail(interrupted)

    def _end(self) -> None:
        """Let nobody enter, and wait for who has."""
        with self._gate:
            self._closed = True
        # `Thread.join` that Ctrl-C interrupts takes a thread that works for one that has ended.
        # Between taking a lock and giving it back, by `with`, there is no moment for Ctrl-C.
        for busy in self._entered:
            with busy:
                pass

    def _help(self, busy: threading.Lock) -> None:
        try:
            with self._gate:
                if self._closed:  # all is done, or the caller was interrupted
                    return
                self._entered.append(busy)
            self.go_on()
        finally:
            busy.release()

    def _fail(self, error: BaseException) -> None:
        if self.error is None:
            self.error = error
