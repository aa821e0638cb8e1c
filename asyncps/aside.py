"""A thread beside the loop, for what would hold that up; it is there while there is work."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable

log = logging.getLogger(__name__)

Work = Callable[[], None]


class Aside:
    """Does one piece of work after the other, in the order in which they came. Any thread."""

    def __init__(self) -> None:
        self._pieces: deque[Work] = deque()
        self._is_running = False
        self._lock = threading.Lock()

    def do(self, work: Work) -> None:
        """Have a piece of work done; what it raises is logged."""
        with self._lock:
            self._pieces.append(work)
            if self._is_running:
                return
            self._is_running = True
        try:
            threading.Thread(target=self._run, name="asyncps aside", daemon=True).start()
        except RuntimeError:  # there may be no more threads: better late than never
            self._run()

    def _run(self) -> None:
        while True:
            with self._lock:
                if not self._pieces:
                    self._is_running = False
                    return
                work = self._pieces.popleft()
            try:
                work()
            except Exception:
                log.exception("what was done beside the loop failed")
