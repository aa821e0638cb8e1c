"""What one call has encoded, while it can still be put back."""

from __future__ import annotations

from collections.abc import Callable

from asyncps.roles.operation import Operation


class Coding:
    """What one call has encoded, until it is known that it will be sent."""

    def __init__(self) -> None:
        self.undo: list[Callable[[], None]] = []
        self.sent_bytes = 0

    def watch(self, op: Operation) -> None:
        """Put all back if the call ends before it was given a clock."""
        op.on_end(lambda ended: None if ended.counted else self.put_back())

    def put_back(self) -> None:
        """Let the residuals be what they would be without this call."""
        undo, self.undo = self.undo, []
        for each in undo:
            each()
