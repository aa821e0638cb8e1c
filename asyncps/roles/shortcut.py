"""When a pushpull may take the lane, and what happens when its answer stays away.

The lane sends in the caller's thread while the loop's thread owns everything else, so it is taken
only if nothing of this store is under way, and nothing may begin meanwhile: whoever begins
something holds the lanes (`held`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from asyncps.errors import AsyncPSError
from asyncps.protocol.frames import PUSHPULL
from asyncps.roles.client import Client
from asyncps.roles.framing import data_frame
from asyncps.roles.lane import LANE_BYTES, Lanes
from asyncps.roles.node import Node
from asyncps.roles.operation import Operation
from asyncps.roles.plan import Plan, RemoteUnit
from asyncps.state.requests import Step

__all__ = ["Attempt", "Shortcut", "Step"]


class Attempt:
    """One try on the lane.

    Args:
        op: What the user waits for.
        start: Has the loop carry it out, or go on with `step`; once, however often it is called.

    Attributes:
        step: The round that was begun, once it was.
        value: The answer; valid until the next try.
        error: The server's error.
    """

    __slots__ = ("error", "number", "op", "start", "step", "unit", "value")

    def __init__(self, op: Operation, start: Callable[[], None]) -> None:
        self.op = op
        self.start = start
        self.step: Step | None = None
        self.value: memoryview | None = None
        self.error: AsyncPSError | None = None
        self.number = 0
        self.unit: RemoteUnit | None = None

    @property
    def unanswered(self) -> Step | None:
        """The step that the loop must go on with, if there is one."""
        return self.step if self.value is None and self.error is None else None


class Shortcut:
    """What one store does with the lanes.

    Args:
        node: This worker.
        client: The store.
        lanes: Those of the worker.

    Attributes:
        held: Held while something of a store of this worker begins, and while a try lasts.
        live: Operations that were begun and have not ended.
    """

    def __init__(self, node: Node, client: Client, lanes: Lanes) -> None:
        self._node = node
        self._client = client
        self._lanes = lanes
        self.held = lanes.held
        self.live: set[object] = set()
        self._tried: Attempt | None = None  # begun, and not settled

    def note(self, op: Operation) -> None:
        """Something begins the ordinary way; to be called while they are held."""
        self.live.add(op)
        op.finally_(lambda: self.live.discard(op))
        if op.ended:  # meanwhile
            self.live.discard(op)

    @contextmanager
    def closed(self) -> Iterator[None]:
        """Keep the lanes closed while the loop changes what the store knows of its keys."""
        token = object()
        try:
            with self.held():
                self.live.add(token)
            yield
        finally:
            self.live.discard(token)

    def pushpull(self, plan: Plan, value: memoryview, attempt: Attempt) -> None:
        """Try to push a value and to pull the round's; `settle` must follow whatever happens.

        Args:
            plan: Its only unit is what travels.
            value: The bytes of that unit (of the rows of it that the plan names).
            attempt: Filled, even if this raises. Without a step nothing was begun.
        """
        unit = plan.lone
        client = self._client
        if unit is None or len(value) > LANE_BYTES or client.closed or self.live:
            return
        if unit.link.unanswered or unit.held or unit.track.waits:
            return
        if self._node.failure is not None or client.joining is not None:
            return
        track, lanes = unit.track, self._lanes
        step = track.next(plan.slabs[0].spoken_of if plan.slabs else None)
        if step is None or not lanes.ready(unit.server):
            return
        number = lanes.number()
        parts, size = data_frame(
            client, PUSHPULL, unit, step, number, 0, len(value), value
        )
        attempt.unit, attempt.number, attempt.step = unit, number, step
        self._tried = attempt  # from here on the round is begun, wherever a signal handler raises
        track.begin(step)
        track.asked(number, step.clock, step.rows)
        answer = lanes.exchange(unit.server, number, parts, size, len(value))
        if isinstance(answer, AsyncPSError):
            attempt.error = answer
        elif answer is not None:
            attempt.value = answer
            track.answered(number)

    def settle(self, on_loop: Callable[[Callable[[], None]], None]) -> None:
        """Have the loop go on with the last try if it had no answer; to be called while held.

        Signal handlers may raise in this too. So it is called again before anything else begins,
        and a second time changes nothing.
        """
        attempt = self._tried
        if attempt is None:
            return
        assert attempt.unit is not None
        assert attempt.step is not None
        attempt.unit.track.begin(attempt.step)
        attempt.unit.track.failed(attempt.number)  # nothing waits on the lane any more
        if attempt.unanswered is not None and not attempt.op.ended:
            self.note(attempt.op)
            on_loop(attempt.start)
        self._tried = None
