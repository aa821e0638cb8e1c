"""Numbers of a key's pushes, of which seeds are made: the same at all workers of a round.

A number is that of the push's round. Where values are encoded nobody has given a clock yet, so what
has not begun is counted here; and the clock brings on whoever was away from a round. After a load
numbers go on where those of the checkpoint ended.
"""

from __future__ import annotations

import threading


class Draws:
    """Of one key at one worker. Any thread.

    Attributes:
        number: Of the last push.
    """

    __slots__ = ("_ahead", "_lock", "number")

    def __init__(self) -> None:
        self.number = 0
        self._ahead = 0  # of the clock
        self._lock = threading.Lock()  # two threads may push one key

    def restore(self, number: int, clock: int) -> None:
        """Go on behind a number that was saved; 0: nobody has said any.

        Args:
            number: The same at all workers.
            clock: The last round of the key that has begun here.
        """
        with self._lock:
            self.number = number
            self._ahead = number - clock if number else 0

    def next(self, clock: int = 0) -> int:
        """Return the number of the next push, from 1.

        Args:
            clock: The last round of the key that has begun, or one before that.
        """
        with self._lock:
            self.number = max(self.number, clock + self._ahead) + 1
            return self.number

    def undo(self) -> None:
        """The last push will not be sent: the next has its round."""
        with self._lock:
            self.number -= 1
