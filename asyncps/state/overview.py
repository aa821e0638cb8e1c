"""The job as observers see it: what nodes said of themselves, and who is waited for since when.

Nothing of it is kept up to date unless somebody asks: a question is answered with what is known,
and has the nodes asked for the next one, at most a few times a second however many ask.
"""

from __future__ import annotations

from asyncps.config import Config
from asyncps.errors import AsyncPSError, RemoteProtocolError
from asyncps.protocol import messages as m
from asyncps.state.agreements import Stores
from asyncps.state.membership import MAX_NAME, Membership, Node

MAX_WAITS = 64  # entries of one report: protects the memory of the scheduler
FRESH_S = 0.05  # a status is told to everybody who asks within that time
SILENT_S = 5.0  # nodes that have said nothing for longer are not asked
REPORT_S = 0.25  # nodes are asked no more often than that


class Overview:
    """What the scheduler knows of a job, told to observers.

    Args:
        config: The settings of the scheduler.
        now: When the scheduler began.
        membership: Who is a member.
        stores: What they agree on.
    """

    def __init__(self, config: Config, now: float, membership: Membership, stores: Stores) -> None:
        self._config = config
        self._began = now
        self._membership = membership
        self._stores = stores
        self._since: dict[tuple[int, str, int], float] = {}
        self._told: m.JobStatus | None = None
        self._told_at = self._asked_at = -1e9

    def take(self, node: Node, report: m.Report, now: float) -> None:
        """A node said how it is.

        Raises:
            RemoteProtocolError: It says more than it may.
        """
        words = [text for wait in report.waits for text in (wait.what, wait.key)]
        if len(report.waits) > MAX_WAITS or any(len(word) > MAX_NAME for word in words):
            raise RemoteProtocolError("a report that is too long", rank=node.rank,
                                      expected=f"at most {MAX_WAITS} waits")
        if len(report.waited_s) > self._config.num_workers:
            raise RemoteProtocolError("a report of more workers than there are", rank=node.rank,
                                      expected=self._config.num_workers, got=len(report.waited_s))
        node.report, node.reported = report, now

    def watch(self, now: float) -> None:
        """Note since when something has waited for workers; to be called with every tick."""
        self._since = {place: self._since.get(place, now)
                       for place, _, _ in self._stores.missing()}

    def to_ask(self, now: float) -> list[Node]:
        """Return the nodes that are to be asked for a report now."""
        if now - self._asked_at < REPORT_S:
            return []
        self._asked_at = now
        # A frozen node reads nothing: what it is asked must not fill its buffer.
        return [node for node in self._membership if node.is_there and now - node.heard < SILENT_S]

    def status(self, phase: str, error: AsyncPSError | None, now: float) -> m.JobStatus:
        """Return the job as it is known now."""
        if self._told is not None and now - self._told_at < FRESH_S and self._told.phase == phase:
            return self._told
        self.watch(now)
        nodes = [
            m.NodeStatus(
                node.member, node.standing.value, max(0.0, now - node.heard), node.report,
                max(0.0, now - node.reported) if node.report is not None else 0.0,
            )
            for node in self._membership
        ]
        waits = [
            m.Wait(what, store, "", rank, now - self._since[store, what, generation], count)
            for (store, what, generation), ranks, count in self._stores.missing()
            for rank in ranks
        ]
        self._told_at = now
        self._told = m.JobStatus(
            phase, now - self._began, self._config.num_workers, self._config.num_servers, nodes,
            self._stores.summaries(), waits, None if error is None else str(error),
        )
        return self._told
