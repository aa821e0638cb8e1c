"""A Hypothesis machine: a server's store under workers that push, pull, lag and are cut off.

The model keeps, for every row, its value by clock and the contributions of its open rounds, in
plain NumPy. Frames of one worker arrive in order, but a frame may be half in while others' frames
come and go. A cut loses what is on its way and sends every unanswered request again. Each answer
must come once, with the bytes that the row had at that clock, however late it is looked at: the
pool spoils memory that is given back.
"""

from __future__ import annotations

import copy
import random
from collections import deque
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from asyncps.protocol.frames import Kind
from asyncps.roles.slab import Slab
from asyncps.roles.unit import Unit
from asyncps.state.requests import Step, UnitTrack
from asyncps.state.rounds import CLOCK_WINDOW
from tests.support.ports import FakeServer, Frame, make_frame, read_answer

CHUNK, SLAB = 0, 1
RATE = 3


class RowModel:
    """One row: its values by clock, and who has contributed what to the clocks after."""

    def __init__(self, value: np.ndarray[Any, Any], members: int, optimizer: bool) -> None:
        self.values = [value]
        self.pushed: list[list[np.ndarray[Any, Any]]] = [[] for _ in range(members)]
        self.optimizer = optimizer

    def push(self, rank: int, value: np.ndarray[Any, Any]) -> None:
        self.pushed[rank].append(value)
        while all(len(pushes) >= len(self.values) for pushes in self.pushed):
            clock = len(self.values)
            total = sum(pushes[clock - 1].astype("f8") for pushes in self.pushed)
            last = self.values[-1]
            self.values.append(
                (last.astype("f8") + RATE * total if self.optimizer else total).astype(last.dtype)
            )


@dataclass
class Asked:
    """A request that is not answered yet, and what its answer must be."""

    kind: Kind
    frame: Frame
    unit: int
    clock: int
    rows: list[int]


@dataclass
class WorkerModel:
    """A worker: what it knows, what it sent, what it waits for."""

    tracks: dict[int, UnitTrack]
    rows: int
    queue: deque[Frame] = field(default_factory=deque)
    half: Frame | None = None  # the frame whose payload is under way
    unanswered: dict[int, Asked] = field(default_factory=dict)
    resent: set[int] = field(default_factory=set)
    number: int = 1


class Dice:
    """Stands for Hypothesis's data where a walk is drawn from a seed."""

    def __init__(self, seed: int, machine: StoreMachine) -> None:
        self.random = random.Random(seed)
        self.machine = machine

    def draw(self, _strategy: object, label: str) -> Any:
        if label == "rank":
            self.rank = self.random.choice(self.machine.present)
            return self.rank
        rows = self.machine.ranks[self.rank].rows
        return set(self.random.sample(range(rows), self.random.randint(1, rows)))

    def start(self, most_members: int) -> None:
        """Begin with anything."""
        rng = self.random
        self.machine.start(
            members=rng.randint(1, most_members),
            dtype=rng.choice(["int32", "float32", "float16", "int64"]),
            order=rng.choice(["arrival", "rank"]), optimizer=rng.random() < 0.5,
            sizes=[rng.randint(1, 3) for _ in range(rng.randint(1, 4))],
        )


def random_walk(seed: int, make: type[StoreMachine] | None = None) -> None:
    """A walk in which more happens at once than Hypothesis likes to try."""
    machine = (make or StoreMachine)()
    dice: Any = Dice(seed, machine)
    rng = dice.random
    dice.start(3)
    for _ in range(rng.randint(10, 120)):
        what = rng.random()
        if what < 0.3:
            verb = rng.choice([Kind.PUSH, Kind.PULL, Kind.PUSHPULL])
            machine.ask(dice, verb, rng.choice([CHUNK, SLAB, SLAB]), rng.random() < 0.6)
        elif what < 0.5:
            machine.deliver(dice)
        elif what < 0.65:
            machine.deliver_half(dice)
        elif what < 0.85:
            machine.receive(dice)
        elif what < 0.9:
            machine.cut(dice)
        elif what < 0.93:
            if len(machine.sizes[SLAB]) < 6:
                machine.add_row(rng.randint(1, 3))
        else:
            machine.hear_of_rows(dice)
        machine.meanwhile(rng)
        machine.memory_is_bounded()
    machine.teardown()


class StoreMachine(RuleBasedStateMachine):
    """Needs a running loop under it (`WorkerPort` asks for its clock)."""

    @initialize(
        members=st.integers(1, 3),
        dtype=st.sampled_from(["int32", "float32", "float16", "int64"]),
        order=st.sampled_from(["arrival", "rank"]),
        optimizer=st.booleans(),
        sizes=st.lists(st.integers(1, 3), min_size=1, max_size=4),
    )
    def start(self, members: int, dtype: str, order: str, optimizer: bool,
              sizes: list[int]) -> None:
        self.members = members
        self.dtype = np.dtype(dtype)
        self.optimizer = optimizer
        hyper = {"rescale_grad": float(RATE)} if optimizer else {}
        self.server = FakeServer(
            members, order, optimizer="test" if optimizer else None, hyper=hyper
        )
        self._fill(sizes)

    @property
    def present(self) -> list[int]:
        """The ranks that may do something."""
        return list(range(self.members))

    def _fill(self, sizes: list[int]) -> None:
        """Make the units, and workers that know them."""
        self.sizes = {CHUNK: [5], SLAB: list(sizes)}
        self.models: dict[int, list[RowModel]] = {}
        for unit, lengths in self.sizes.items():
            values = [np.full(n, 1 + i, self.dtype) for i, n in enumerate(lengths)]
            self.models[unit] = [self._model(v) for v in values]
            first = [v.tobytes() for v in values]
            self.server.init(unit, self.dtype.name, first, slab=unit == SLAB)
        self.ranks = [
            WorkerModel({CHUNK: self._track(1), SLAB: self._track(len(sizes))}, len(sizes))
            for _ in range(self.members)
        ]
        self.given = 0

    def meanwhile(self, rng: random.Random) -> None:
        """What else a walk may do after each step."""

    def _model(self, value: np.ndarray[Any, Any]) -> RowModel:
        return RowModel(value, self.members, self.optimizer)

    def _track(self, rows: int) -> UnitTrack:
        return UnitTrack(rows)

    # ---- what workers do ----

    def _pick(self, data: st.DataObject) -> tuple[int, WorkerModel]:
        rank = data.draw(st.integers(0, self.members - 1), "rank")
        return rank, self.ranks[rank]

    @rule(data=st.data(), verb=st.sampled_from([Kind.PUSH, Kind.PULL, Kind.PUSHPULL]),
          unit=st.sampled_from([CHUNK, SLAB, SLAB]), whole=st.booleans())
    def ask(self, data: st.DataObject, verb: Kind, unit: int, whole: bool) -> None:
        rank, worker = self._pick(data)
        track = worker.tracks[unit]
        rows = None
        if unit == SLAB and not whole:
            chosen = data.draw(st.sets(st.integers(0, worker.rows - 1), min_size=1), "rows")
            rows = sorted(chosen) if len(chosen) < worker.rows else None
        self._ask(rank, verb, unit, track, rows)

    def _ask(self, rank: int, verb: Kind, unit: int, track: UnitTrack,
             rows: list[int] | None) -> None:
        if verb == Kind.PULL:
            for step in track.pull(rows):
                self._send(rank, verb, unit, step)
            return
        peek = copy.deepcopy(track).push(rows)
        blocked = [step for step in peek if step.wait_for]
        if blocked:
            step = blocked[0]
            self._send(rank, Kind.WAIT, unit, Step(step.wait_for, step.rows, 0))
            return
        for step in track.push(rows):
            self._send(rank, verb, unit, step)

    def _send(self, rank: int, kind: Kind, unit: int, step: Step) -> None:
        worker = self.ranks[rank]
        track = worker.tracks[unit]
        every = list(range(track.rows)) if step.rows is None else list(step.rows)
        size = sum(self.sizes[unit][row] for row in every) * self.dtype.itemsize
        payload = b""
        number, worker.number = worker.number, worker.number + 1
        if kind in (Kind.PUSH, Kind.PUSHPULL):
            parts = []
            for row in every:
                self.given += 1
                value = np.full(self.sizes[unit][row], self.given % 7 - 3, self.dtype)
                self.models[unit][row].push(rank, value)
                parts.append(value.tobytes())
            payload = b"".join(parts)
        frame = make_frame(
            kind, number, unit, step.clock, payload, rows=step.rows if unit == SLAB else None,
            acked=track.floor(step), size=size,
        )
        if kind != Kind.PUSH:
            track.asked(number, step.clock, step.rows)
        worker.unanswered[number] = Asked(kind, frame, unit, step.clock, every)
        worker.queue.append(frame)

    # ---- what the network does ----

    @rule(data=st.data())
    def deliver(self, data: st.DataObject) -> None:
        rank, worker = self._pick(data)
        if worker.half is not None:
            self.server.end(rank, worker.half)
            worker.half = None
        elif worker.queue:
            self.server.deliver(rank, worker.queue.popleft())

    @rule(data=st.data())
    def deliver_half(self, data: st.DataObject) -> None:
        rank, worker = self._pick(data)
        if worker.half is None and worker.queue:
            frame = worker.queue.popleft()
            if self.server.begin(rank, frame):
                worker.half = frame

    @rule(data=st.data())
    def receive(self, data: st.DataObject) -> None:
        self._receive(self._pick(data)[0])

    def _receive(self, rank: int) -> None:
        frames = self.server.answers(rank)
        if not frames:
            return
        worker = self.ranks[rank]
        kind, number, body, error = read_answer(frames.popleft())
        assert error is None, (number, str(error))
        asked = worker.unanswered.pop(number, None)
        if asked is None:  # it was asked again before the first answer was on its way
            assert number in worker.resent, "answered twice"
            worker.resent.discard(number)
            return
        if asked.kind in (Kind.PULL, Kind.PUSHPULL):
            assert kind == Kind.DATA
            self._check_value(asked, body)
        else:
            assert kind == Kind.ACK
        if asked.kind != Kind.PUSH:
            worker.tracks[asked.unit].answered(number)

    def _check_value(self, asked: Asked, body: bytes) -> None:
        models = [self.models[asked.unit][row] for row in asked.rows]
        expected = [model.values[asked.clock] for model in models]
        assert body == b"".join(value.tobytes() for value in expected)

    @rule(data=st.data())
    def cut(self, data: st.DataObject) -> None:
        rank, worker = self._pick(data)
        self._cut(rank, worker)

    def _cut(self, rank: int, worker: WorkerModel) -> None:
        self.server.connect(rank)
        worker.half = None
        worker.queue = deque(asked.frame for asked in worker.unanswered.values())
        worker.resent = set(worker.unanswered)

    @rule(size=st.integers(1, 3))
    @precondition(lambda self: len(self.sizes[SLAB]) < 6)
    def add_row(self, size: int) -> None:
        """Rank 0 initialises one more small key; the others have not heard of it."""
        if self.ranks[0].half is not None or self.server.answers(0):
            return
        value = np.full(size, 50, self.dtype)
        first = len(self.sizes[SLAB])
        self.sizes[SLAB].append(size)
        self.models[SLAB].append(self._model(value))
        self.server.init(SLAB, self.dtype.name, [value.tobytes()], slab=True, first_row=first)

    @rule(data=st.data())
    def hear_of_rows(self, data: st.DataObject) -> None:
        _, worker = self._pick(data)
        worker.rows = len(self.sizes[SLAB])
        worker.tracks[SLAB].grow(worker.rows)

    # ---- what must hold ----

    def _parts(self, unit: int) -> list[Unit]:
        found = self.server.keeper.units[unit]
        if isinstance(found, Slab):
            return found.rows if found.whole is None else [found.whole]
        return [found]

    @invariant()
    def memory_is_bounded(self) -> None:
        if not hasattr(self, "server"):
            return
        for unit in (CHUNK, SLAB):
            for part in self._parts(unit):
                assert len(part.old) <= self.members * (CLOCK_WINDOW + 1)
                assert len(part.open) <= CLOCK_WINDOW

    def teardown(self) -> None:
        """Everybody catches up: every request is answered and every value is right."""
        if not hasattr(self, "server"):
            return
        self._settle()
        for worker in self.ranks:
            worker.rows = len(self.sizes[SLAB])
            worker.tracks[SLAB].grow(worker.rows)
        for unit, models in self.models.items():
            for row, model in enumerate(models):
                target = max(len(pushes) for pushes in model.pushed)
                named = [row] if unit == SLAB else None
                if unit == SLAB and len(models) == 1:
                    named = None
                for _ in range(2 * target + 2):
                    for rank, worker in enumerate(self.ranks):
                        if len(model.pushed[rank]) < target:
                            self._ask(rank, Kind.PUSHPULL, unit, worker.tracks[unit], named)
                    self._settle()
                assert all(len(pushes) == target for pushes in model.pushed)
        for unit, models in self.models.items():
            for rank, worker in enumerate(self.ranks):
                self._ask(rank, Kind.PULL, unit, worker.tracks[unit], None)
                self._settle()
                assert not worker.unanswered
            for model in models:
                assert len({len(pushes) for pushes in model.pushed}) == 1
        for port in self.server.ports.values():
            assert not port.parked, "requests are counted as parked for ever"

    def _settle(self) -> None:
        moved = True
        while moved:
            moved = False
            for rank, worker in enumerate(self.ranks):
                if worker.half is not None:
                    self.server.end(rank, worker.half)
                    worker.half = None
                while worker.queue:
                    moved = True
                    self.server.deliver(rank, worker.queue.popleft())
                while self.server.answers(rank):
                    moved = True
                    self._receive(rank)
