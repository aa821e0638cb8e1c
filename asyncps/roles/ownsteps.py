"""Rounds of a store with an optimizer of the user's own: applied aside, one by one for each unit.

What is complete goes to the workshop and is put in place when it comes back. Until then its unit
stands at the clock before: whoever may have that is answered, pushes of the next clock are taken,
whoever waits goes on waiting, and a value that is assigned waits for its turn. Other units do not
notice.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from asyncps.errors import AsyncPSError, OptimizerError
from asyncps.roles.accumulator import Accumulator
from asyncps.roles.unit import Rules, Unit, Waiter, internal
from asyncps.roles.workshop import Workshop
from asyncps.tensor import updates
from asyncps.tensor.steps import STEPS

Call = Callable[[], None]


def is_own(optimizer: str | None) -> bool:
    """Tell whether an optimizer is of the user's own."""
    return optimizer is not None and optimizer not in STEPS


@dataclass(slots=True)
class Assigned:
    """A value to be assigned.

    Attributes:
        due: What must be applied before: (clock, rank).
        asker: The rank and request that assign it.
        assign: Does it.
    """

    due: list[tuple[int, int]]
    asker: tuple[int, int]
    assign: Call


class OwnSteps:
    """What is under way in one store.

    Args:
        rules: Those of the store; whatever its optimizer is now.
        workshop: Where users' code works.
        give: Gives waiters their part of a unit.
    """

    def __init__(
        self, rules: Rules, workshop: Workshop,
        give: Callable[[Unit, list[tuple[Waiter, int]]], None],
    ) -> None:
        self._rules = rules
        self._workshop = workshop
        self._give = give
        self._busy: dict[Unit, str] = {}  # with the optimizer that works on it
        self._assigned: dict[Unit, deque[Assigned]] = {}
        self._when_idle: list[Call] = []

    def when_idle(self, call: Call) -> None:
        """Call once nothing is under way, maybe now: then nothing that was complete is left."""
        self._when_idle.append(call)
        if not self._busy:
            self.call_waiting()

    def call_waiting(self) -> None:
        """Let nobody wait for that any more: it is so, or the store is dropped."""
        waiting, self._when_idle = self._when_idle, []
        for call in waiting:
            call()

    def at_work(self, unit: Unit) -> str:
        """Return the optimizer that a unit waits for, or nothing."""
        return self._busy.get(unit, "")

    def advance(self, unit: Unit) -> None:
        """Apply what is complete, as far as that can be done here; begin to, where it cannot."""
        while unit not in self._busy:
            self._assign(unit)
            ready = unit.ready(self._rules.members)
            if not ready:
                return
            clock, rank = ready[0]
            step = self._step(unit, unit.held(clock, rank))
            if step is None:
                self._apply(unit, clock, rank)
            else:
                self._busy[unit] = step.name
                self._workshop.do(step.run, self._finish(unit, clock, rank))

    def assign(self, unit: Unit, rank: int, request: int, assign: Call) -> None:
        """Assign a value when all that is complete now has been applied.

        A request that comes again, after a cut, takes the place of the one before.
        """
        if unit not in self._busy:
            assign()
            return
        waiting = self._assigned.setdefault(unit, deque())
        for other in waiting:
            if other.asker == (rank, request):
                other.assign = assign
                return
        waiting.append(Assigned(unit.ready(self._rules.members), (rank, request), assign))

    def _assign(self, unit: Unit) -> None:
        waiting = self._assigned.get(unit)
        while waiting and all(unit.is_applied(rank, clock) for clock, rank in waiting[0].due):
            waiting.popleft().assign()
        if waiting is not None and not waiting:
            del self._assigned[unit]

    def _step(self, unit: Unit, held: Accumulator) -> OwnStep | None:
        """Return what the workshop has to do; None if that is nothing."""
        rules = self._rules
        name = rules.optimizer
        if name is None or not is_own(name) or held.error is not None or held.skipped:
            return None
        if not unit.dtype.is_float or not unit.is_dense:
            return None  # it is refused when the round is applied
        try:
            return OwnStep(unit, held, name, rules.hyper_for(held.hyper), rules)
        except Exception as error:  # noqa: BLE001 - logged, and the round fails for everybody
            held.outcome = partial(_fail, internal(error))
            return None

    def _finish(self, unit: Unit, clock: int, rank: int) -> Call:
        def finish() -> None:
            del self._busy[unit]
            self._apply(unit, clock, rank)
            self.advance(unit)
            if not self._busy and self._when_idle:
                self.call_waiting()

        return finish

    def _apply(self, unit: Unit, clock: int, rank: int) -> None:
        # They take their part before anything else is applied.
        self._give(unit, unit.apply(clock, rank, self._rules))


def _fail(error: AsyncPSError, clock: int) -> None:
    raise error


class OwnStep:
    """One update. What it reads stays as it is until it is put in place: nothing else is applied.

    Args:
        unit: Whose value is updated.
        held: The contributions.
        name: Of the optimizer.
        hyper: Its hyper-parameters.
        rules: Those of the store.
    """

    def __init__(
        self, unit: Unit, held: Accumulator, name: str, hyper: Mapping[str, Any], rules: Rules
    ) -> None:
        self.name = name
        self._unit = unit
        self._hyper = hyper
        self._master = rules.multi_precision
        self._weights = unit.current.buffer
        self._before = unit.state
        self._state = unit.state
        self._error: AsyncPSError | None = None
        self._total = held.total(unit.dtype, unit.pool, rules.reduce)
        self._buffer = unit.pool.take(unit.size)
        held.outcome = self._put

    def run(self) -> None:
        """Compute; in the workshop's thread."""
        unit, dtype = self._unit, self._unit.dtype
        try:
            state = dict(self._before)
            if updates.MASTER in state:
                state[updates.MASTER] = state[updates.MASTER].copy()
            updates.run(
                self.name, dtype, self._buffer.view(dtype.bits), self._weights.view(dtype.bits),
                self._total.view(dtype.sum), state, self._hyper, unit.updates + 1, unit.spans,
                self._master,
            )
            self._state = state
        except AsyncPSError as refused:
            self._error = refused
        except Exception as failed:  # noqa: BLE001 - logged, and the round fails for everybody
            self._error = internal(failed)
        except BaseException as failed:  # noqa: BLE001 - users' code raises it even when it is logged
            self._error = OptimizerError(f"optimizer {self.name} failed: {type(failed).__name__}")

    def _put(self, clock: int) -> None:
        """Let the result be the value.

        Raises:
            AsyncPSError: There is none.
        """
        unit = self._unit
        unit.pool.give(self._total)
        if self._error is not None:
            unit.pool.give(self._buffer)
            raise self._error
        if unit.state is self._before:
            unit.state = self._state
            unit.updates += 1
        elif updates.MASTER in self._state:  # another optimizer was set meanwhile
            unit.state[updates.MASTER] = self._state[updates.MASTER]
        unit.publish(self._buffer, clock)
