"""The machine of `machine.py` with workers that join, are lost and leave, in any order.

The model keeps sets: for every row and clock who has contributed what, and who is waited for. It
moves when the last byte of a frame is delivered. What a lost worker had not brought over is gone;
what it had counts, row by row.
"""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule

from asyncps.protocol.frames import Kind
from asyncps.protocol.messages import Clocks
from asyncps.roles.attendance import attend, clocks, expel
from asyncps.state.requests import UnitTrack
from asyncps.state.rounds import CLOCK_WINDOW
from tests.roles.machine import CHUNK, RATE, SLAB, Asked, Dice, RowModel, StoreMachine, WorkerModel
from tests.support.ports import STORE, Frame


class JoinRow(RowModel):
    """One row: its values by clock, and the contributions to the clocks after by rank."""

    def __init__(self, value: np.ndarray[Any, Any], members: set[int], ranks: int,
                 optimizer: bool) -> None:
        super().__init__(value, ranks, optimizer)
        self.members = set(members)
        self.given: dict[int, dict[int, np.ndarray[Any, Any]]] = {}
        self.last = dict.fromkeys(range(ranks), 0)

    def push(self, rank: int, value: np.ndarray[Any, Any]) -> None:
        """It is on its way: nothing counts before it has come."""

    def came(self, rank: int, clock: int, value: np.ndarray[Any, Any]) -> None:
        """A contribution was delivered; one that was counted before changes nothing."""
        if clock <= self.last[rank]:
            return
        assert clock == self.last[rank] + 1
        self.last[rank] = clock
        self.given.setdefault(clock, {})[rank] = value
        self.complete()

    def complete(self) -> None:
        """Apply the clocks that wait for nobody any more."""
        while (given := self.given.get(len(self.values))) and given.keys() >= self.members:
            total = sum(value.astype("f8") for value in given.values())
            last = self.values[-1]
            self.values.append(
                (last.astype("f8") + RATE * total if self.optimizer else total).astype(last.dtype)
            )

    def back(self, live: set[int]) -> None:
        """All have joined: they are one set at one clock again."""
        self.members = set()
        self.complete()
        self.members = set(live)
        self.last = dict.fromkeys(self.last, len(self.values) - 1)


class MembershipMachine(StoreMachine):
    """Needs a running loop under it, as `StoreMachine`."""

    @initialize(
        members=st.integers(1, 4),
        dtype=st.sampled_from(["int32", "float32", "float16", "int64"]),
        order=st.sampled_from(["arrival", "rank"]),
        optimizer=st.booleans(),
        sizes=st.lists(st.integers(1, 3), min_size=1, max_size=4),
    )
    def start(self, members: int, dtype: str, order: str, optimizer: bool,
              sizes: list[int]) -> None:
        self.live = set(range(members))
        self.joined: set[int] = set()
        self.joins = 0
        self.loose: list[Asked] = []
        super().start(members, dtype, order, optimizer, sizes)
        end = self.server.end

        def ended(rank: int, frame: Frame) -> None:
            self._came(rank, frame)
            end(rank, frame)

        self.server.end = ended  # type: ignore[method-assign]

    @property
    def present(self) -> list[int]:
        """As `StoreMachine.present`."""
        return sorted(self.live)

    def _model(self, value: np.ndarray[Any, Any]) -> RowModel:
        return JoinRow(value, self.live - self.joined, self.members, self.optimizer)

    def _rows(self) -> list[JoinRow]:
        return [row for rows in self.models.values() for row in rows if isinstance(row, JoinRow)]

    def _came(self, rank: int, frame: Frame) -> None:
        header, _, payload = frame
        asked = self.ranks[rank].unanswered.get(header.request) if rank in self.live else None
        if asked is None or header.kind not in (Kind.PUSH, Kind.PUSHPULL):
            return
        begin = 0
        for row in asked.rows:
            end = begin + self.sizes[asked.unit][row] * self.dtype.itemsize
            model = self.models[asked.unit][row]
            assert isinstance(model, JoinRow)
            model.came(rank, asked.clock, np.frombuffer(payload[begin:end], self.dtype))
            begin = end

    def _pick(self, data: st.DataObject) -> tuple[int, WorkerModel]:
        rank = data.draw(st.sampled_from(self.present), "rank")
        return rank, self.ranks[rank]

    def _ask(self, rank: int, verb: Kind, unit: int, track: UnitTrack,
             rows: list[int] | None) -> None:
        if verb == Kind.PULL or rank not in self.joined:
            before = set(self.ranks[rank].unanswered)
            super()._ask(rank, verb, unit, track, rows)
            if rank in self.joined:
                asked = self.ranks[rank].unanswered
                self.loose += [asked[number] for number in asked.keys() - before]

    def _check_value(self, asked: Asked, body: bytes) -> None:
        """Others have gone on without who asks after it has joined: it sees what is there."""
        if not any(asked is other for other in self.loose):
            super()._check_value(asked, body)
            return
        begin = 0
        for row in asked.rows:
            end = begin + self.sizes[asked.unit][row] * self.dtype.itemsize
            values = self.models[asked.unit][row].values[asked.clock :]
            assert body[begin:end] in [value.tobytes() for value in values]
            begin = end

    # ---- who is counted ----

    @rule(data=st.data())
    @precondition(lambda self: self.live - self.joined)
    def join(self, data: st.DataObject) -> None:
        rank, _ = self._pick(data)
        if rank not in self.joined:
            self._join(rank)

    def _join(self, rank: int) -> None:
        self._flush(rank)
        self.joined.add(rank)
        self._change(rank)
        self._return()

    @rule(data=st.data())
    @precondition(lambda self: len(self.live) > 1)
    def lose(self, data: st.DataObject) -> None:
        """It takes with it whatever is still on its way."""
        rank, worker = self._pick(data)
        worker.half = None
        expel(rank, self.server.ports)
        self._part(rank)

    @rule(data=st.data())
    @precondition(lambda self: len(self.live) > 1)
    def leave(self, data: st.DataObject) -> None:
        """It flushes first."""
        rank, _ = self._pick(data)
        self._flush(rank)
        self._part(rank)

    def _part(self, rank: int) -> None:
        self.live.discard(rank)
        self.joined.discard(rank)
        self.ranks[rank].queue.clear()
        self.server.keeper.left(rank)
        for row in self._rows():
            row.members.discard(rank)
            row.complete()
        self._return()

    def _flush(self, rank: int) -> None:
        worker = self.ranks[rank]
        if worker.half is not None:
            self.server.end(rank, worker.half)
            worker.half = None
        while worker.queue:
            self.server.deliver(rank, worker.queue.popleft())

    def _change(self, rank: int | None) -> None:
        everybody = sum(1 << member for member in self.live)
        done: list[bool] = []
        attend(self.server.keeper, rank, lambda: everybody, lambda: done.append(True))
        assert done
        for row in self._rows():
            if rank is not None:
                row.members.discard(rank)
                row.complete()
            else:
                row.back(self.live)

    def _return(self) -> None:
        if not self.joined or self.joined != self.live:
            return
        self._change(None)
        self.joined.clear()
        self.joins += 1
        for rank in self.live:
            for unit, track in self.ranks[rank].tracks.items():
                self._catch_up(rank, unit, track)

    def _catch_up(self, rank: int, unit: int, track: UnitTrack) -> None:
        answer = clocks(self.server.keeper, rank, Clocks(STORE, [unit, 99], []))
        assert answer.clocks[1] == []
        track.catch_up(answer.clocks[0])

    @rule(data=st.data())
    def hear_of_rows(self, data: st.DataObject) -> None:
        rank, worker = self._pick(data)
        self._hear_of_rows(rank, worker)

    def _hear_of_rows(self, rank: int, worker: WorkerModel) -> None:
        worker.rows = len(self.sizes[SLAB])
        worker.tracks[SLAB].grow(worker.rows)
        if self.joins:
            self._catch_up(rank, SLAB, worker.tracks[SLAB])

    @rule(size=st.integers(1, 3))
    @precondition(lambda self: len(self.sizes[SLAB]) < 6 and 0 in self.live)
    def add_row(self, size: int) -> None:
        super().add_row(size)

    # ---- the end ----

    def teardown(self) -> None:
        """All join, and go on as one set at one clock."""
        if not hasattr(self, "server"):
            return
        self._settle()
        for rank in sorted(self.live - self.joined):
            self._join(rank)
        assert not self.joined
        self._settle()
        for rank in self.live:
            self._hear_of_rows(rank, self.ranks[rank])
        for turn in range(CLOCK_WINDOW + 1):
            for rank in sorted(self.live):
                for unit, track in self.ranks[rank].tracks.items():
                    before = [len(row.values) for row in self.models[unit]]
                    steps = track.pull()
                    assert {step.clock for step in steps} == {clock - 1 for clock in before}, turn
            for rank in sorted(self.live):
                for unit, track in self.ranks[rank].tracks.items():
                    while any(step.wait_for for step in copy.deepcopy(track).push()):
                        self._ask(rank, Kind.PUSHPULL, unit, track, None)  # it asks for word
                        self._settle()
                    self._ask(rank, Kind.PUSHPULL, unit, track, None)
            self._settle()
        for rank in self.live:
            assert not self.ranks[rank].unanswered
            assert not self.server.ports[rank].parked, "requests are counted as parked for ever"
        for unit in (CHUNK, SLAB):
            now = b"".join(row.values[-1].tobytes() for row in self.models[unit])
            parts = self._parts(unit)
            assert b"".join(part.current.buffer.tobytes() for part in parts) == now
            for part in parts:
                assert not part.parked
                assert not part.open
                owed = [part.current.owed, *(version.owed for version in part.old)]
                for rank in set(range(self.members)) - self.live:
                    assert not any(bits >> rank & 1 for bits in owed)

    def _settle(self) -> None:
        moved = True
        while moved:
            moved = False
            for rank in sorted(self.live):
                self._flush(rank)
                while self.server.answers(rank):
                    moved = True
                    self._receive(rank)


def membership_walk(seed: int) -> None:
    """A walk in which more happens at once than Hypothesis likes to try."""
    machine = MembershipMachine()
    data: Any = Dice(seed, machine)
    rng = data.random
    data.start(4)
    for _ in range(rng.randint(10, 150)):
        what = rng.random()
        if what < 0.33:
            verb = rng.choice([Kind.PUSH, Kind.PULL, Kind.PUSHPULL])
            machine.ask(data, verb, rng.choice([CHUNK, SLAB, SLAB]), rng.random() < 0.6)
        elif what < 0.53:
            machine.deliver(data)
        elif what < 0.65:
            machine.deliver_half(data)
        elif what < 0.8:
            machine.receive(data)
        elif what < 0.85:
            machine.cut(data)
        elif what < 0.93:
            if machine.live - machine.joined:
                machine.join(data)
        elif what < 0.95:
            if len(machine.sizes[SLAB]) < 6 and 0 in machine.live:
                machine.add_row(rng.randint(1, 3))
        elif what < 0.96 and len(machine.live) > 1:
            rng.choice([machine.lose, machine.leave])(data)
        else:
            machine.hear_of_rows(data)
        machine.memory_is_bounded()
    machine.teardown()
