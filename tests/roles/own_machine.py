"""The machines of `machine.py` and `free_machine.py` with an optimizer of the user's own.

Its work is done when a rule says so, and what it reads then must still be there. In step nothing
else changes: an answer is the value at its clock, however late. Without rounds the model knows, row
by row, what is at work, what waits for it, and which assignments wait for their turn.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np
from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule

from asyncps import optim
from asyncps.protocol.frames import Kind
from asyncps.roles.unit import Unit
from asyncps.state.requests import UnitTrack
from tests.roles.free_machine import Array, FreeMachine, FreeRow
from tests.roles.machine import CHUNK, RATE, SLAB, Asked, StoreMachine
from tests.support.ports import FakeServer

FLOATS = ["float16", "float32", "float64"]


class ManualWorkshop:
    """Works when it is told to."""

    def __init__(self) -> None:
        self.pieces: deque[tuple[Any, Callable[[], None]]] = deque()

    def do(self, work: Any, then: Callable[[], None]) -> None:
        """Keep a piece of work."""
        self.pieces.append((work, then))

    def turn(self) -> Unit:
        """Do the first piece; return the unit that it was for."""
        work, then = self.pieces.popleft()
        unit: Unit = work.__self__._unit
        work()
        then()
        return unit


def register() -> None:
    """Have an optimizer that does what the model does, and keeps state."""

    class Moving(optim.Optimizer):
        """The test optimizer, and the number of updates beside it."""

        def init(self, spec: optim.Spec) -> dict[str, Any]:
            return {"count": np.zeros(spec.shape, spec.dtype)}

        def update(self, weight: Any, grad: Any, state: Any, hyper: Any) -> None:
            state["count"] += 1
            assert (state["count"] == hyper["t"]).all()
            weight += hyper["rescale_grad"] * grad


def serve(members: int, workshop: ManualWorkshop, **words: Any) -> FakeServer:
    """A server whose store has that optimizer."""
    register()
    hyper = {**optim.by_name("moving").defaults, "rescale_grad": float(RATE)}
    return FakeServer(members, optimizer="moving", hyper=hyper, workshop=workshop, **words)


class OwnStoreMachine(StoreMachine):
    """Rounds in step."""

    @initialize(
        members=st.integers(1, 3), dtype=st.sampled_from(FLOATS),
        order=st.sampled_from(["arrival", "rank"]),
        sizes=st.lists(st.integers(1, 3), min_size=1, max_size=4),
    )
    def start(self, members: int, dtype: str, order: str, sizes: list[int],  # type: ignore[override]
              optimizer: bool = True) -> None:
        self.members, self.optimizer = members, True
        self.dtype = np.dtype(dtype if dtype in FLOATS else "float64")
        self.workshop = ManualWorkshop()
        self.server = serve(members, self.workshop, order=order)
        self._fill(sizes)

    @rule()
    @precondition(lambda self: hasattr(self, "workshop") and self.workshop.pieces)
    def work(self) -> None:
        self.workshop.turn()

    def meanwhile(self, rng: random.Random) -> None:
        """As `StoreMachine.meanwhile`."""
        if self.workshop.pieces and rng.random() < 0.3:
            self.work()

    def _settle(self) -> None:
        super()._settle()
        while self.workshop.pieces:
            self.workshop.turn()
            super()._settle()


class OwnRow(FreeRow):
    """One row, and what is at work for it."""

    def __init__(self, value: Array, members: set[int], bound: int | None) -> None:
        super().__init__(value, members, bound)
        self.at_work: tuple[int, int] | None = None
        self.assigns: deque[list[Any]] = deque()  # what is due before, the asker, the action

    def ready(self) -> list[tuple[int, int]]:
        slowest = min((self.came[rank] for rank in self.members), default=1 << 60)
        return sorted(
            (clock, rank) for rank, came in enumerate(self.came)
            for clock in range(self.applied[rank] + 1, came + 1)
            if self.bound is None or clock <= slowest + self.bound
        )

    def settle(self) -> None:
        """Begin with the next; nothing is applied before it is done."""
        if self.at_work is None and (ready := self.ready()):
            self.at_work = ready[0]

    def assign(self, asker: tuple[int, int], action: Callable[[], None]) -> None:
        before = [entry for entry in self.assigns if entry[1] == asker]
        if self.at_work is None:
            action()
        elif before:
            before[0][2] = action
        else:
            self.assigns.append([self.ready(), asker, action])

    def finish(self, notice: Callable[[], None]) -> None:
        assert self.at_work is not None
        (clock, rank), self.at_work = self.at_work, None
        step = RATE * self.pushed[rank][clock - 1].astype("f8")
        self.value = (self.value.astype("f8") + step).astype(self.value.dtype)
        self.applied[rank] = clock
        notice()
        while self.assigns and all(self.applied[r] >= c for c, r in self.assigns[0][0]):
            self.assigns.popleft()[2]()
        self.settle()


class OwnFreeMachine(FreeMachine):
    """Pushes that are applied as they come."""

    @initialize(
        members=st.integers(1, 4), dtype=st.sampled_from(FLOATS),
        bound=st.sampled_from([None, 1, 2]),
        sizes=st.lists(st.integers(1, 3), min_size=1, max_size=4),
    )
    def start(self, members: int, dtype: str, bound: int | None, sizes: list[int]) -> None:
        self.workshop = ManualWorkshop()
        self.promise: list[int] | None = None
        super().start(members, dtype if dtype in FLOATS else "float64", bound, sizes)

    def _serve(self, **words: Any) -> FakeServer:
        return serve(self.members, self.workshop, **words)

    def _model(self, value: Array) -> FreeRow:
        return OwnRow(value, self.active, self.bound)

    def _track(self, rows: int) -> UnitTrack:
        return UnitTrack(rows)  # a worker keeps the clock window, whatever the store

    @rule()
    @precondition(lambda self: hasattr(self, "workshop") and self.workshop.pieces)
    def work(self) -> None:
        # The model first: it says what each answer is made of.
        unit = self.workshop.pieces[0][0].__self__._unit
        for number in (CHUNK, SLAB):
            for row, part in enumerate(self._parts(number)):
                if part is unit:
                    model = self._row(number, row)
                    assert isinstance(model, OwnRow)
                    model.finish(self._notice)
                    self._notice()
        assert self.workshop.turn() is unit

    def meanwhile(self, rng: random.Random) -> None:
        """As `StoreMachine.meanwhile`."""
        if self.workshop.pieces and rng.random() < 0.3:
            self.work()

    def _assign(self, rank: int, number: int, unit: int, row: int, value: Array) -> None:
        model = self._row(unit, row)
        assert isinstance(model, OwnRow)
        if self.promise is None:
            self.promise = [len(self.asked[rank, number].rows)]
        left = self.promise  # rows of this frame that are not assigned yet

        def action() -> None:
            FreeMachine._assign(self, rank, number, unit, row, value)
            left[0] -= 1
            if not left[0]:
                self.due[rank, number].append(b"")

        model.assign((rank, number), action)

    def _ask_for_answer(self, rank: int, number: int, asked: Asked) -> None:
        if asked.kind == Kind.PUSH and self.bound is None:
            self.waiting[rank, number] = dict.fromkeys(asked.rows)
        elif asked.kind == Kind.ASSIGN:
            self.promise = None
        else:
            super()._ask_for_answer(rank, number, asked)

    def _settle(self) -> None:
        super()._settle()
        while self.workshop.pieces:
            self.work()
            super()._settle()
