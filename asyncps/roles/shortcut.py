"""When a pushpull may take the lane, and what happens when its answer stays away.

The lane sends in the caller's thread while the loop's thread owns everything else, so it is taken
only if nothing of this store is under way, and nothing may begin meanwhile: whoever begins
something holds the lanes (`held`).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from asyncps.errors import AsyncPSError
from asyncps.protocol.frames import PUSHPULL
from asyncps.roles.client import Client
from asyncps.roles.framing import data_frame
from asyncps.roles.lane import LANE_BYTES, Lanes
from asyncps.roles.node import Node
from asyncps.roles.operation import Operation
from asyncps.roles.plan import Plan
from asyncps.state.requests import Step

__all__ = ["Attempt", "Shortcut", "Step"]


class Attempt:
    """One try on the lane.

    Attributes:
        value: The answer; valid until the next try.
        step: The round that was begun: what the loop must go on with when there is no answer.
    """

    __slots__ = ("step", "value")

    def __init__(self) -> None:
        self.value: memoryview | None = None
        self.step: Step | None = None


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

    def note(self, op: Operation) -> None:
        """Something begins the ordinary way; to be called while they are held."""
        self.live.add(op)
        op.finally_(lambda: self.live.discard(op))

    @contextmanager
    def closed(self) -> Iterator[None]:
        """Keep the lanes closed while the loop changes what the store knows of its keys."""
        token = object()
        with self.held():
            self.live.add(token)
        try:
            yield
        finally:
            self.live.discard(token)

    def pushpull(self, plan: Plan, value: memoryview, attempt: Attempt) -> None:
        """Try to push a value and to pull the round's.

        Args:
            plan: Its only unit is what travels.
            value: The bytes of that unit (of the rows of it that the plan names).
            attempt: Filled, even if this raises: a step without a value goes on over the loop.

        Raises:
            AsyncPSError: The server's error; the round is over.
        """
        unit = plan.lone
        client = self._client
        if unit is None or len(value) > LANE_BYTES or client.closed or self.live:
            return
        if unit.link.unanswered or unit.held or unit.track.waits:
            return
        if self._node.failure is not None or client.joining is not None:
            return
        rows = plan.slabs[0].spoken_of if plan.slabs else None
        track, lanes = unit.track, self._lanes
        if not track.is_open(rows) or not lanes.ready(unit.server):
            return
        step = attempt.step = track.push(rows)[0]
        number = lanes.number()
        parts, size = data_frame(
            client, PUSHPULL, unit, step, number, 0, len(value), value
        )
        track.asked(number, step.clock, step.rows)
        try:
            attempt.value = lanes.exchange(unit.server, number, parts, size, len(value))
        except AsyncPSError:
            attempt.step = None
            raise
        finally:
            if attempt.value is None:
                track.failed(number)
            else:
                track.answered(number)
