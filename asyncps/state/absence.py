"""While a job has not begun: who is missing is said again and again, to all who wait."""

from __future__ import annotations

import logging

from asyncps.config import Config
from asyncps.protocol.messages import Absent
from asyncps.state.membership import Membership, Outbox


class Absence:
    """Says every `join_warning_s` who is missing.

    Args:
        config: The settings of the scheduler.
        membership: Who has come.
        outbox: Where it is said.
        now: When the scheduler began, in seconds.
    """

    def __init__(
        self, config: Config, membership: Membership, outbox: Outbox, now: float
    ) -> None:
        self._period_s = config.join_warning_s
        self._membership = membership
        self._outbox = outbox
        self._said = now

    def watch(self, now: float) -> None:
        """Say it if it is due; to be called with every tick while the job has not begun."""
        if now - self._said < self._period_s:
            return
        self._said = now
        text = self._membership.describe_absence()
        self._outbox.log(logging.WARNING, f"the job has not begun: {text}")
        for node in self._membership:
            if node.is_there:
                self._outbox.tell(node, Absent(text))
