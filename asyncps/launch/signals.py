"""The signals that end a launch, as something that select can wait for."""

from __future__ import annotations

import contextlib
import signal
import socket
import threading
from typing import Any, Self

# SIGHUP: the terminal went away. Under nohup it is ignored, and stays so.
ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Signals:
    """Catches SIGINT, SIGTERM and SIGHUP while its `with` block runs (in the main thread only)."""

    def __init__(self) -> None:
        self._woken, self._waker = socket.socketpair()
        self._woken.setblocking(False)
        self._waker.setblocking(False)
        self._before: dict[signal.Signals, Any] = {}
        self._fd_before = -1

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            self._fd_before = signal.set_wakeup_fd(self._waker.fileno())
            for number in ENDING:
                if number is signal.SIGHUP and signal.getsignal(number) is signal.SIG_IGN:
                    continue
                self._before[number] = signal.signal(number, lambda _number, _frame: None)
        return self

    def __exit__(self, *exc_info: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        if self._before:
            signal.set_wakeup_fd(self._fd_before)
        self._woken.close()
        self._waker.close()

    def fileno(self) -> int:
        """The descriptor that is readable when a signal came."""
        return self._woken.fileno()

    def received(self) -> list[signal.Signals]:
        """Return the signals that came since the last call."""
        data = b""
        with contextlib.suppress(BlockingIOError):
            data = self._woken.recv(4096)
        return [signal.Signals(number) for number in data if number in ENDING]
