"""One collective call: what users wait for."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from asyncps.errors import AsyncPSError, DeadlineExceeded, ShapeMismatch
from asyncps.roles.operation import LOOK_S

log = logging.getLogger(__name__)


class Calls(Protocol):
    """Those who end calls."""

    def wait(self, handle: CollectiveHandle, timeout: float | None) -> None:
        """Wait for one."""

    def flush(self) -> None:
        """Begin those that wait for others."""


# Names of calls that this package makes for itself begin so. Each is used once, so nothing is kept
# of them, and no compression is of them.
OWN = "asyncps/"

_LOCKS = threading.Lock()  # held while a handle gets one of its own


class CollectiveHandle:
    """A collective call under way: `wait()` for it, in any order.

    Until it has ended the array is the communicator's: it reads it and, in the verbs that work in
    place, writes it.
    """

    __slots__ = ("_calls", "_ended", "_error", "_finish", "_lock", "_name", "_result", "array")

    takes_name = True  # nobody else may use it before the end

    def __init__(
        self, calls: Calls, name: str, array: Any, result: Any,
        finish: Callable[[Any], Any] | None = None,
    ) -> None:
        self._calls = calls
        self._name = name
        self._result = result  # what `wait` returns, or the bytes that `finish` makes it of
        self._finish = finish
        self._ended = False
        self._error: AsyncPSError | None = None
        self._lock: threading.RLock | None = None
        self.array = array  # contiguous, on the host

    def __repr__(self) -> str:
        state = "under way" if not self._ended else "done" if self._error is None else self._error
        return f"<handle of the collective call {self._name!r}: {state}>"

    def wait(self, timeout: float | None = None) -> Any:
        """Wait for the end and return the result.

        Args:
            timeout: Seconds; None waits as long as the communicator's own deadline.

        Raises:
            DeadlineExceeded: It has not ended in time, and names who has not called; it goes on,
                and may be waited for again.
            CollectiveMismatch: The ranks have called differently.
            AsyncPSError: Why it failed.
        """
        if not self._ended:
            self._calls.wait(self, timeout)
        self._settle()
        if self._error is not None:
            raise self._error.again()
        return self._result

    def done(self) -> bool:
        """Tell whether it has ended, well or not; the result is in its place then."""
        if not self._ended:
            self._calls.flush()
            return False
        self._settle()
        return True

    def exception(self) -> AsyncPSError | None:
        """Return why it failed, None if it did not or has not ended; as `done` does."""
        if self._ended:
            self._settle()
        return self._error

    def _settle(self) -> None:
        """It has ended: make of what came what `wait` returns."""
        if self._finish is None or self._error is not None:
            return
        with _LOCKS:
            lock = self._lock = self._lock or threading.RLock()
        with lock:  # another thread may be at it
            self._bring()

    def _bring(self) -> None:
        if self._finish is None or self._error is not None:
            return
        try:
            self._result = self._finish(self._result)
        except AsyncPSError as error:
            self._error = error
        except Exception as error:
            log.exception("the end of the collective call %r failed", self._name)
            self._error = AsyncPSError(
                f"the collective call {self._name!r} failed at its end: {error!r}")
        self._finish = None  # only now: after an interrupt the next wait does it again

    # ---- the communicator's ----

    def finish_by(self, finish: Callable[[Any], Any]) -> None:
        """Let this make what `wait` returns of what comes; before the call is made."""
        self._finish = finish

    def put(self) -> Any:
        """Bring `array` to where it is to be, without a call; return what `wait` would."""
        return self._result if self._finish is None else self._finish(None)

    @property
    def name(self) -> str:
        """What pairs it; "" for its place among those without a name."""
        return self._name

    @property
    def ended(self) -> bool:
        """Whether it has ended."""
        return self._ended

    @property
    def has_failed(self) -> bool:
        """Whether it has ended, and not well, as far as is known before the result is looked at."""
        return self._error is not None

    def end(self, result: Any, error: AsyncPSError | None) -> None:
        """It has ended. `result` is the bytes of a new array, None where `array` is it."""
        if result is not None:
            self._result = result
        self._error = error
        if error is not None:
            self._finish = None
        self._ended = True


class Step(CollectiveHandle):
    """A call whose end leads to something, for those who make several of them for one of a user's.

    Args:
        calls, name, array: As `CollectiveHandle` has them.
        then: Called on the loop with what came, or with the error.
    """

    __slots__ = ("_then",)

    takes_name = False  # it is the other call's

    def __init__(
        self, calls: Calls, name: str, array: Any,
        then: Callable[[Any, AsyncPSError | None], None],
    ) -> None:
        super().__init__(calls, name, array, None)
        self._then = then

    def end(self, result: Any, error: AsyncPSError | None) -> None:
        """It has ended."""
        super().end(result, error)
        self._then(result, error)


class Ends:
    """Threads that wait for the ends of calls."""

    def __init__(self) -> None:
        self._condition = threading.Condition(threading.Lock())

    def told(self) -> None:
        """Some have ended."""
        with self._condition:
            self._condition.notify_all()

    def wait(
        self, handle: CollectiveHandle, timeout: float | None, whom: Callable[[], str]
    ) -> None:
        """Wait for one.

        Raises:
            DeadlineExceeded: It has not ended in time.
        """
        with self._condition:
            if timeout is None:
                while not handle.ended:
                    self._condition.wait(LOOK_S)
                return
            ended = self._condition.wait_for(
                lambda: handle.ended, min(timeout, threading.TIMEOUT_MAX))
        if not ended:
            called = f"the collective call {handle.name!r}" if handle.name else "a collective call"
            raise DeadlineExceeded(f"{called} has not ended within {timeout:g} s: {whom()}")


def rows_of(raw: Any, array: Any) -> Any:
    """Return rows like those of an array, of their bytes.

    Raises:
        ShapeMismatch: They have none, so nobody can tell how many rows came; all ranks hear it.
    """
    if 0 in array.shape[1:]:
        raise ShapeMismatch("rows of no elements", expected="one or more", got=array.shape)
    return np.frombuffer(raw, array.dtype).reshape(-1, *array.shape[1:])
