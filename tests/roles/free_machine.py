"""The machine of `machine.py` for stores whose pushes are applied as they come.

Here the model moves when the last byte of a frame is delivered. It says then which answers are
made, and of what: each row's value at the moment when all that its asker had pushed was applied.
The bytes are looked at later, when the server has gone on and may have reused its memory.
"""

from __future__ import annotations

from collections import defaultdict, deque
from typing import Any

import numpy as np
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule

from asyncps.protocol.frames import Kind
from asyncps.state.requests import UnitTrack
from asyncps.state.rounds import CLOCK_WINDOW
from tests.roles.machine import CHUNK, RATE, SLAB, Asked, Dice, RowModel, StoreMachine, WorkerModel
from tests.support.ports import FakeServer, Frame, make_frame, read_answer

Array = np.ndarray[Any, Any]


class FreeRow(RowModel):
    """One row: its value now, and how much of each rank's pushes has come and is applied."""

    def __init__(self, value: Array, members: set[int], bound: int | None) -> None:
        self.value = value
        self.members, self.bound = members, bound
        self.pushed: list[list[Array]] = [[] for _ in range(8)]  # sent by each rank
        self.came, self.applied = [0] * 8, [0] * 8

    def push(self, rank: int, value: Array) -> None:
        self.pushed[rank].append(value)

    def deliver(self, rank: int, clock: int) -> None:
        self.came[rank] = max(self.came[rank], clock)
        self.settle()

    def settle(self) -> None:
        slowest = min((self.came[rank] for rank in self.members), default=1 << 60)
        for rank, came in enumerate(self.came):
            most = came if self.bound is None else min(came, slowest + self.bound)
            for clock in range(self.applied[rank] + 1, most + 1):
                step = RATE * self.pushed[rank][clock - 1].astype("f8")
                self.value = (self.value.astype("f8") + step).astype(self.value.dtype)
                self.applied[rank] = clock


class FreeMachine(StoreMachine):
    """Needs a running loop under it, as `StoreMachine`."""

    @initialize(
        members=st.integers(1, 4),
        dtype=st.sampled_from(["int32", "float32", "float16", "int64"]),
        bound=st.sampled_from([None, 1, 2]),
        sizes=st.lists(st.integers(1, 3), min_size=1, max_size=4),
    )
    def start(self, members: int, dtype: str, bound: int | None,  # type: ignore[override]
              sizes: list[int]) -> None:
        self.members, self.bound = members, bound
        self.active = set(range(members))
        self.dtype, self.optimizer = np.dtype(dtype), True
        self.server = self._serve(
            type="dist_async" if bound is None else "dist_ssp", staleness=bound or 0
        )
        self._fill(sizes)
        self.asked: dict[tuple[int, int], Asked] = {}
        # Answers that are not complete: what each row has given, None while it waits.
        self.waiting: dict[tuple[int, int], dict[int, bytes | None]] = {}
        self.due: dict[tuple[int, int], deque[bytes]] = defaultdict(deque)
        self.assigned: dict[tuple[int, int, int], int] = defaultdict(int)

    def _serve(self, **words: Any) -> FakeServer:
        hyper = {"rescale_grad": float(RATE)}
        return FakeServer(self.members, optimizer="test", hyper=hyper, **words)

    def _model(self, value: Array) -> FreeRow:
        return FreeRow(value, self.active, self.bound)

    def _track(self, rows: int) -> UnitTrack:
        return UnitTrack(rows, None if self.bound is None else CLOCK_WINDOW)

    def _row(self, unit: int, row: int) -> FreeRow:
        model = self.models[unit][row]
        assert isinstance(model, FreeRow)
        return model

    def _pick(self, data: st.DataObject) -> tuple[int, WorkerModel]:
        active = sorted(self.active)
        rank = active[data.draw(st.integers(0, self.members - 1), "rank") % len(active)]
        return rank, self.ranks[rank]

    # ---- what workers do ----

    @rule(data=st.data(), unit=st.sampled_from([CHUNK, SLAB]), whole=st.booleans())
    def assign(self, data: st.DataObject, unit: int, whole: bool) -> None:
        _, worker = self._pick(data)
        rows = None
        if unit == SLAB and not whole:
            rows = sorted(data.draw(st.sets(st.integers(0, worker.rows - 1), min_size=1), "rows"))
            rows = rows if len(rows) < worker.rows else None
        for step in worker.tracks[unit].pull(rows):
            every = list(range(worker.tracks[unit].rows)) if step.rows is None else list(step.rows)
            self.given += 1
            sizes = [self.sizes[unit][row] for row in every]
            payload = np.full(sum(sizes), self.given % 5, self.dtype).tobytes()
            number, worker.number = worker.number, worker.number + 1
            frame = make_frame(Kind.ASSIGN, number, unit, step.clock, payload,
                               rows=step.rows if unit == SLAB else None)
            worker.unanswered[number] = Asked(Kind.ASSIGN, frame, unit, step.clock, every)
            worker.queue.append(frame)

    @rule(data=st.data())
    @precondition(lambda self: len(self.active) > 1)
    def leave(self, data: st.DataObject) -> None:
        """A worker goes for good, when all that it sent has come."""
        rank, worker = self._pick(data)
        if worker.half is not None:
            self._end(rank, worker)
        while worker.queue:
            self._begin(rank, worker.queue.popleft(), halfway=False)
        self.active.discard(rank)
        self.server.keeper.left(rank)
        for unit, models in self.models.items():
            for row in range(len(models)):
                self._row(unit, row).settle()
        self._notice()

    # ---- what the network does ----

    @rule(data=st.data())
    def deliver(self, data: st.DataObject) -> None:
        rank, worker = self._pick(data)
        if worker.half is not None:
            self._end(rank, worker)
        elif worker.queue:
            self._begin(rank, worker.queue.popleft(), halfway=False)

    @rule(data=st.data())
    def deliver_half(self, data: st.DataObject) -> None:
        rank, worker = self._pick(data)
        if worker.half is None and worker.queue:
            self._begin(rank, worker.queue.popleft(), halfway=True)

    def _begin(self, rank: int, frame: Frame, *, halfway: bool) -> None:
        worker, number = self.ranks[rank], frame[0].request
        if (rank, number) not in self.asked:
            self.asked[rank, number] = worker.unanswered[number]
        if self.server.begin(rank, frame):
            worker.half = frame
            if not halfway:
                self._end(rank, worker)
        else:
            self._came(rank, frame)

    def _end(self, rank: int, worker: WorkerModel) -> None:
        frame, worker.half = worker.half, None
        assert frame is not None
        self.server.end(rank, frame)
        self._came(rank, frame)

    def _came(self, rank: int, frame: Frame) -> None:
        """The model's turn: a frame has come, perhaps again."""
        number = frame[0].request
        asked = self.asked[rank, number]
        unit, rows = asked.unit, asked.rows
        if asked.kind in (Kind.PUSH, Kind.PUSHPULL):
            for row in rows:
                self._row(unit, row).deliver(rank, asked.clock)
        elif asked.kind == Kind.ASSIGN:
            begin = 0
            for row in rows:
                end = begin + self.sizes[unit][row] * self.dtype.itemsize
                value = np.frombuffer(frame[2][begin:end], self.dtype)
                self._assign(rank, number, unit, row, value)
                begin = end
        self._ask_for_answer(rank, number, asked)
        self._notice()

    def _assign(self, rank: int, number: int, unit: int, row: int, value: Array) -> None:
        if number > self.assigned[rank, unit, row]:
            self.assigned[rank, unit, row] = number
            self._row(unit, row).value = value

    def _ask_for_answer(self, rank: int, number: int, asked: Asked) -> None:
        if asked.kind in (Kind.PUSH, Kind.ASSIGN):
            self.due[rank, number].append(b"")
        else:
            self.waiting[rank, number] = dict.fromkeys(asked.rows)

    def _notice(self) -> None:
        """Say what each answer is made of that can be made now."""
        for (rank, number), parts in list(self.waiting.items()):
            asked = self.asked[rank, number]
            for row, part in parts.items():
                model = self._row(asked.unit, row)
                if part is None and model.applied[rank] >= asked.clock:
                    parts[row] = (
                        b"" if asked.kind in (Kind.WAIT, Kind.PUSH) else model.value.tobytes()
                    )
            if all(part is not None for part in parts.values()):
                del self.waiting[rank, number]
                self.due[rank, number].append(b"".join(part or b"" for part in parts.values()))

    def _receive(self, rank: int) -> None:
        frames = self.server.answers(rank)
        if frames:
            _, number, body, error = read_answer(frames[0])
            assert error is None, (number, str(error))
            assert body == self.due[rank, number].popleft()
        super()._receive(rank)

    def _check_value(self, asked: Asked, body: bytes) -> None:
        """It was checked by what it had to be when it was made."""

    def _cut(self, rank: int, worker: WorkerModel) -> None:
        for frame in self.server.answers(rank):
            self.due[rank, read_answer(frame)[1]].popleft()
        super()._cut(rank, worker)

    # ---- what must hold ----

    @invariant()
    def memory_is_bounded(self) -> None:
        if not hasattr(self, "asked"):
            return
        for unit in (CHUNK, SLAB):
            for part in self._parts(unit):
                assert len(part.old) <= self.members + 1
                for rank in range(self.members):
                    assert sum(key[1] == rank for key in part.open) <= CLOCK_WINDOW

    def teardown(self) -> None:
        """Those left push equally often: everybody is answered and every value is right."""
        if not hasattr(self, "asked"):
            return
        for rank in set(range(self.members)) - self.active:
            self.ranks[rank].queue.clear()
            self.server.answers(rank).clear()
        self._settle()
        for rank in self.active:
            self.ranks[rank].rows = len(self.sizes[SLAB])
            self.ranks[rank].tracks[SLAB].grow(len(self.sizes[SLAB]))
        for unit, models in self.models.items():
            for row, model in enumerate(models):
                target = max(len(model.pushed[rank]) for rank in self.active)
                named = [row] if unit == SLAB and len(models) > 1 else None
                for _ in range(2 * target + 2):
                    for rank in self.active:
                        if len(model.pushed[rank]) < target:
                            track = self.ranks[rank].tracks[unit]
                            self._ask(rank, Kind.PUSHPULL, unit, track, named)
                    self._settle()
        for unit in self.models:
            for rank in self.active:
                self._ask(rank, Kind.PULL, unit, self.ranks[rank].tracks[unit], None)
        self._settle()
        for rank in self.active:
            assert not self.ranks[rank].unanswered
            assert not any(self.due[key] for key in self.due if key[0] == rank)
            assert not self.server.ports[rank].parked, "requests are counted as parked for ever"
        for unit, models in self.models.items():
            now = b"".join(self._row(unit, row).value.tobytes() for row in range(len(models)))
            found = self._parts(unit)
            assert b"".join(part.current.buffer.tobytes() for part in found) == now
            for model in models:
                assert isinstance(model, FreeRow)
                assert all(model.applied[rank] == model.came[rank] for rank in self.active)

    def _settle(self) -> None:
        moved = True
        while moved:
            moved = False
            for rank in sorted(self.active):
                worker = self.ranks[rank]
                if worker.half is not None:
                    self._end(rank, worker)
                while worker.queue:
                    moved = True
                    self._begin(rank, worker.queue.popleft(), halfway=False)
                while self.server.answers(rank):
                    moved = True
                    self._receive(rank)


def free_walk(seed: int, make: type[FreeMachine] | None = None) -> None:
    """A walk in which more happens at once than Hypothesis likes to try."""
    machine = (make or FreeMachine)()
    dice: Any = Dice(seed, machine)
    rng = dice.random
    machine.start(
        members=rng.randint(1, 4), dtype=rng.choice(["int32", "float32", "float16", "int64"]),
        bound=rng.choice([None, 1, 2]), sizes=[rng.randint(1, 3) for _ in range(rng.randint(1, 4))],
    )
    verbs = [Kind.PUSH, Kind.PULL, Kind.PUSHPULL]
    for _ in range(rng.randint(10, 150)):
        what = rng.random()
        if what < 0.3:
            machine.ask(dice, rng.choice(verbs), rng.choice([CHUNK, SLAB]), rng.random() < 0.6)
        elif what < 0.5:
            machine.deliver(dice)
        elif what < 0.65:
            machine.deliver_half(dice)
        elif what < 0.83:
            machine.receive(dice)
        elif what < 0.88:
            machine.cut(dice)
        elif what < 0.91:
            machine.assign(dice, rng.choice([CHUNK, SLAB]), rng.random() < 0.5)
        elif what < 0.93 and len(machine.sizes[SLAB]) < 6 and 0 in machine.active:
            machine.add_row(rng.randint(1, 3))
        elif what < 0.935 and len(machine.active) > 1:
            machine.leave(dice)
        else:
            machine.hear_of_rows(dice)
        machine.meanwhile(rng)
        machine.memory_is_bounded()
    machine.teardown()
