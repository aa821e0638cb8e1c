"""One call of a user: many requests, one end."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from typing import TypeVar

from asyncps.errors import AsyncPSError
from asyncps.transport.link import Link
from asyncps.transport.request import Request

log = logging.getLogger(__name__)

T = TypeVar("T")

# A thread that waits looks for signals this often, for one that came just before it fell asleep.
LOOK_S = 0.5


def resolve(future: asyncio.Future[None]) -> None:
    """Resolve a future that may have been cancelled meanwhile."""
    if not future.done():
        future.set_result(None)


class Operation:
    """Counts its requests down; ends once, with an error or without.

    Written by the loop only; `wait` may be called from any thread.

    Attributes:
        verb: What the user called, for messages.
        ended: Whether it has ended.
        observed: Somebody waits for it, or has looked at its end.
        error: Why it failed, once ended.
        requests: Its requests that may still be unanswered, with their links.
        counted: A push of it has its clock, and so will count.
        lent: The payloads are the caller's memory until the end.
        whole: It is one of several calls that all begin, or none: whoever saves or loads waits
            until they have.
        since: When it began, loop time.
    """

    __slots__ = (
        "_callbacks", "_lock", "_remaining", "counted", "ended", "error", "finishing", "lent",
        "observed", "requests", "since", "verb", "whole",
    )

    def __init__(self, verb: str, *, lent: bool) -> None:
        self.verb = verb
        self.error: AsyncPSError | None = None
        self.requests: list[tuple[Link, Request]] = []
        self.lent = lent
        self.whole = False
        self.since = 0.0
        self.finishing: list[Callable[[], None]] = []
        self._remaining = 1  # held by whoever still adds requests
        self._callbacks: list[Callable[[Operation], None]] = []
        self.counted = False
        self.ended = False
        self.observed = False
        self._lock = threading.Lock()  # held until the end
        self._lock.acquire()

    def add(self) -> None:
        """One more part must end."""
        self._remaining += 1

    def part_done(self, error: AsyncPSError | None = None) -> None:
        """One part has ended; the last one ends the operation, an error is kept at once."""
        if error is not None and self.error is None:
            self.error = error
        self._remaining -= 1
        if self._remaining:
            return
        self.requests.clear()
        if self.error is None:
            self._finish()
        self.finishing.clear()
        self.ended = True
        self._lock.release()
        callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            try:
                callback(self)
            except Exception:
                # It is no end for the others, nor for the connection that brought the answer.
                log.exception("what was to follow a %s failed", self.verb)

    def _finish(self) -> None:
        for finish in self.finishing:
            try:
                finish()
            except Exception as error:
                # Such as a place of the caller's that cannot be written any more.
                log.exception("the end of a %s failed", self.verb)
                self.fail(AsyncPSError(f"{self.verb} failed at its end: {error!r}"))

    def fail(self, error: AsyncPSError) -> None:
        """Keep an error; the operation ends when its parts have."""
        if self.error is None:
            self.error = error

    def on_success(self, callback: Callable[[], None]) -> None:
        """Call back at the end if nothing failed, for memory that is free only then."""
        self.finishing.append(callback)

    def finally_(self, callback: Callable[[], None]) -> None:
        """Call back at the end, before it begins; the caller's thread owns it until then."""
        self._callbacks.append(lambda _: callback())

    def on_end(self, callback: Callable[[Operation], None]) -> None:
        """Call back at the end, on the loop; at once if it has ended."""
        if self.ended:
            callback(self)
        else:
            self._callbacks.append(callback)

    def end(self) -> asyncio.Future[None]:
        """Return a future of the running loop that is done at the end, well or not."""
        waiting: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.on_end(lambda _: resolve(waiting))
        return waiting

    def wait(self, timeout_s: float | None = None) -> bool:
        """Block this thread until the end; False when that did not come in time."""
        if self.ended:
            return True
        if timeout_s is None:
            while not self._lock.acquire(timeout=LOOK_S):
                pass
        elif not self._lock.acquire(timeout=max(0.0, timeout_s)):
            return False
        self._lock.release()
        return True


def why_failed(
    op: Operation, failed: Exception, give_up: Callable[[Exception], AsyncPSError]
) -> AsyncPSError:
    """Return what a caller hears whose operation failed while it was sent.

    Args:
        op: The operation.
        failed: What was raised.
        give_up: Ends this worker. A push that has a clock and cannot be sent must not just be
            missing: its round would wait for it, and every later push of that key would be refused.
    """
    if op.counted:
        return give_up(failed)
    if isinstance(failed, AsyncPSError):
        log.debug("%s failed", op.verb, exc_info=failed)
        return failed.with_traceback(None)  # it leads to the caller's memory
    # Such as no memory: the caller must hear of it, and nobody else.
    log.error("%s failed", op.verb, exc_info=failed)
    return AsyncPSError(f"{op.verb} failed: {failed!r}")


def result_of(future: asyncio.Future[T]) -> T:
    """Return the result of a future that is done, or raise a copy of its error.

    Each of those who wait has a traceback of its own; and what the future keeps leads to none, so
    that nothing waits for the garbage collector.
    """
    error = future.exception()
    if error is None:
        return future.result()
    raise error.again() if isinstance(error, AsyncPSError) else error


def no_worker(failed: Exception) -> AsyncPSError:
    """Stand for `give_up` where there is no worker to end."""
    return failed if isinstance(failed, AsyncPSError) else AsyncPSError(f"failed: {failed!r}")
