"""A Hypothesis machine: whole workers and whole servers, and between them a network that fails.

`machine.py` and `free_machine.py` send a server what a worker could send. Here the workers are
real too: `Client` with its held pushes, `Link` that sends again, `Outbox`, `Shortcut`, and what
happens when a caller gives up or a deadline passes. Frames wait, come by halves, come twice, are
lost with their connection and sent again; a lane answers, is late, or breaks. The model keeps what
each worker pushed, and looks at each value and each array that a caller gets back.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from asyncps.errors import DeadlineExceeded
from asyncps.protocol.messages import KeySpec
from asyncps.roles.deadlines import expire
from asyncps.roles.operation import Operation
from asyncps.roles.shortcut import Attempt
from asyncps.roles.slab import parts_of
from asyncps.roles.unit import MAX_OLD
from asyncps.roles.worker import Worker
from asyncps.state.rounds import CLOCK_WINDOW
from asyncps.state.routing import Routing
from tests.roles.ends import WorkerEnd
from tests.support.ports import FakeServer

RATE = 3
SIZES = {"a": 1, "b": 3, "c": 6, "chunk": 300, "large": 2 * 4096 + 5}
NAMES = list(SIZES)
GROUPS = [["a"], ["b"], ["chunk"], ["a", "b", "c"], ["c", "a"], ["large"], NAMES]
KINDS = [("dist_sync", 0), ("dist_async", 0), ("dist_ssp", 1), ("dist_ssp", 2)]
FATES = ["answered", "late", "half", "lost", "unheard"]

RANK, SERVER = st.integers(0, 3), st.integers(0, 1)


class KeyModel:
    """What each rank pushed to one key; and in step, its values by clock."""

    def __init__(self, members: set[int], optimizer: bool) -> None:
        self.members, self.optimizer = members, optimizer
        self.pushed: list[list[int]] = [[] for _ in range(4)]
        self.values = [0]

    def settle(self) -> None:
        """Complete the clocks that every live member has pushed."""
        while self.members:
            clock = len(self.values)
            if not all(len(self.pushed[rank]) >= clock for rank in self.members):
                return
            total = sum(mine[clock - 1] for mine in self.pushed if len(mine) >= clock)
            self.values.append(self.values[-1] + RATE * total if self.optimizer else total)

    def sums(self, rank: int) -> list[int]:
        """What a rank's pushes made of its own elements, push by push."""
        return [0, *(RATE * np.cumsum(self.pushed[rank], dtype=int)).tolist()]


class Together(RuleBasedStateMachine):
    """Needs a running loop under it."""

    @initialize(workers=st.integers(1, 3), servers=st.integers(1, 2), kind=st.sampled_from(KINDS),
                order=st.sampled_from(["arrival", "rank"]), optimizer=st.booleans())
    def start(self, workers: int, servers: int, kind: tuple[str, int], order: str,
              optimizer: bool) -> None:
        self.type, staleness = kind
        self.in_step = self.type == "dist_sync"
        optimizer = optimizer or not self.in_step
        self.live = set(range(workers))
        self.count, self.drawn = workers, 0
        self.models = {name: KeyModel(self.live, optimizer) for name in NAMES}
        self.servers = [
            FakeServer(workers, order, optimizer="test" if optimizer else None,
                       hyper={"rescale_grad": float(RATE)} if optimizer else {},
                       type=self.type, staleness=staleness)
            for _ in range(servers)
        ]
        self.ends = [WorkerEnd(rank, self.servers) for rank in range(workers)]
        routing = Routing(servers, 4096 * 4, 4096, 1024)
        placed = routing.declare([KeySpec(k, "float32", (size,), 4) for k, size in SIZES.items()])
        for placement in placed:
            for piece in placement.pieces:
                self.servers[piece.server].init(
                    piece.unit, "float32", [bytes(piece.size)], slab=piece.row >= 0,
                    first_row=max(piece.row, 0))
        for end in self.ends:
            end.client.add_placements(placed)
        self.kept: list[tuple[Any, Any]] = []  # arrays of callers, and what they were at the end

    def _end(self, rank: int) -> WorkerEnd:
        live = sorted(self.live)
        return self.ends[live[rank % len(live)]]

    def _wire(self, rank: int, server: int) -> Any:
        return self._end(rank).wires[server % len(self.servers)]

    # ---- what workers do ----

    @rule(rank=RANK, verb=st.sampled_from(["push", "pull", "pushpull", "pushpull"]),
          group=st.integers(0, len(GROUPS) - 1), priority=st.integers(-2, 2), lent=st.booleans())
    def call(self, rank: int, verb: str, group: int, priority: int, lent: bool) -> None:
        self._call(self._end(rank), verb, GROUPS[group], priority, lent=lent)

    @rule(rank=RANK, key=st.sampled_from(["a", "b", "chunk"]), fate=st.sampled_from(FATES))
    def call_on_a_lane(self, rank: int, key: str, fate: str) -> None:
        end = self._end(rank)
        end.fate = fate
        self._call(end, "pushpull", [key], 0, lent=True, lane=True)

    def _call(self, end: WorkerEnd, verb: str, names: list[str], priority: int, *, lent: bool,
              lane: bool = False) -> Operation:
        plan = end.client.plan(tuple(names))
        assert plan is not None
        gives, wants = verb != "pull", verb != "push"
        values, outs = [], [np.full(SIZES[name], -7, "f4") for name in names]
        for name in names:
            value = np.zeros(SIZES[name], "f4")
            if gives:
                self.drawn += 1
                mine = self.drawn % 5 + 1
                value[slice(None) if self.in_step else slice(end.rank, None, self.count)] = mine
                self.models[name].pushed[end.rank].append(mine)
                self.models[name].settle()
            values.append(value)
        slabs = [np.concatenate([values[i] for i in slab.indices]) for slab in plan.slabs]
        given = [values[i] for i, _ in plan.large] + slabs  # what frames keep views of
        clocks = [len(self.models[name].pushed[end.rank]) for name in names]
        op = Operation(verb, lent=lent)

        def ended(_: Operation) -> None:
            if op.error is None and wants:
                for name, out, clock in zip(names, outs, clocks, strict=True):
                    self._check(end.rank, name, out, clock)
            if lent or op.error is None:
                for array in given:
                    array[:] = 77  # the caller's again
            self.kept.extend((out, out.copy()) for out in outs)

        op.on_end(ended)
        large = [memoryview(values[i].view("u1")) for i, _ in plan.large] if gives else None
        small = [slab.view("u1") for slab in slabs] if gives else None
        into = [memoryview(outs[i].view("u1")) for i, _ in plan.large] if wants else None
        rows = [[outs[i] for i in slab.indices] for slab in plan.slabs] if wants else None
        if lane:
            value = memoryview(given[0].view("u1"))

            def go_on() -> None:
                step = attempt.unanswered
                assert step is not None
                end.keep(op)
                end.client.go_on(op, plan, step, value, into[0] if into else None,
                                 rows[0] if rows else None, 0)

            attempt = Attempt(op, go_on)
            end.shortcut.pushpull(plan, value, attempt)
            end.shortcut.settle(lambda start: start())
            assert attempt.error is None
            if attempt.value is not None:
                outs[0].view("u1")[:] = attempt.value
                op.part_done()
            if attempt.step is not None:
                return op
        end.begin(op)
        end.client.send(op, plan, large, small, into, rows, priority)
        return op

    def _check(self, rank: int, name: str, out: Any, clock: int) -> None:
        model = self.models[name]
        if self.in_step:
            assert (out == model.values[clock]).all(), (name, clock, model.values, np.unique(out))
            return
        # All this worker's pushes until its call, and of others' a whole number of pushes.
        for other in range(self.count):
            allowed = model.sums(other)[clock if other == rank else 0 :]
            assert np.isin(out[other :: self.count], allowed).all(), (name, other, allowed, out)

    @rule(rank=RANK, which=st.integers(0, 9))
    def give_up(self, rank: int, which: int) -> None:
        """A caller is interrupted, or its task cancelled."""
        end = self._end(rank)
        if end.live:
            op = end.live[which % len(end.live)]
            holder: Any = SimpleNamespace(clients={"": end.client})
            Worker.let_go(holder, op)
            end.sweep()

    @rule(rank=RANK, server=SERVER, which=st.integers(0, 9))
    def deadline(self, rank: int, server: int, which: int) -> None:
        """An answer took too long."""
        end, link = self._end(rank), self._wire(rank, server).link
        waiting = [request for request in link.unanswered.values() if not request.expired]
        if waiting:
            expire(link, waiting[which % len(waiting)], DeadlineExceeded("it took too long"))
            end.sweep()

    @rule(rank=RANK)
    def leave(self, rank: int) -> None:
        """A worker goes for good, when all that it sent was answered."""
        end = self._end(rank)
        if len(self.live) < 2 or end.busy:
            return
        for number, server in enumerate(self.servers):
            end.end_lane(number)
            server.keeper.left(end.rank)
        self.live.discard(end.rank)
        for model in self.models.values():
            model.settle()

    # ---- what the network does ----

    @rule(rank=RANK, server=SERVER, half=st.booleans(), twice=st.booleans())
    def deliver(self, rank: int, server: int, half: bool, twice: bool) -> None:
        self._wire(rank, server).deliver(half=half, twice=twice)

    @rule(rank=RANK, server=SERVER)
    def deliver_again(self, rank: int, server: int) -> None:
        self._wire(rank, server).deliver_again()

    @rule(rank=RANK, server=SERVER, half=st.booleans())
    def receive(self, rank: int, server: int, half: bool) -> None:
        self._wire(rank, server).receive(half=half)

    @rule(rank=RANK, server=SERVER)
    def go_on_with_lane(self, rank: int, server: int) -> None:
        self._end(rank).end_lane(server % len(self.servers))

    @rule(rank=RANK, server=SERVER)
    def cut(self, rank: int, server: int) -> None:
        self._wire(rank, server).cut()

    @rule(rank=RANK, server=SERVER)
    def come_back(self, rank: int, server: int) -> None:
        self._wire(rank, server).come_back()

    @rule(rank=RANK, server=SERVER, up=st.booleans())
    def clog(self, rank: int, server: int, up: bool) -> None:
        self._wire(rank, server).clog(up=up)

    @rule(rank=RANK, server=SERVER)
    def flow(self, rank: int, server: int) -> None:
        self._wire(rank, server).flow()

    # ---- what must hold ----

    @invariant()
    def memory_is_bounded(self) -> None:
        for server in getattr(self, "servers", ()):
            for unit in server.keeper.units.values():
                for part in parts_of(unit):
                    assert len(part.old) <= MAX_OLD
                    assert len(part.open) <= CLOCK_WINDOW * self.count

    @invariant()
    def callers_arrays_stay_as_they_were(self) -> None:
        for array, at_end in getattr(self, "kept", [])[-3:]:
            assert (array == at_end).all(), "written after the end"

    def teardown(self) -> None:
        """The network recovers, everybody catches up: all is answered and every value right."""
        if not hasattr(self, "kept"):
            return
        self._settle()
        for name, model in self.models.items():
            target = max(len(model.pushed[rank]) for rank in self.live)
            for _ in range(target):
                for rank in self.live:
                    if len(model.pushed[rank]) < target:
                        self._call(self.ends[rank], "pushpull", [name], 0, lent=True)
                self._settle()
        for rank in self.live:
            end = self.ends[rank]
            for group in (NAMES, ["b"]):
                op = self._call(end, "pull", group, 0, lent=False)
                self._settle()
                assert op.ended
                assert op.error is None
            assert not end.busy
            for server in self.servers:
                assert not server.ports[rank].parked, "requests are counted as parked for ever"
        for array, at_end in self.kept:
            assert (array == at_end).all(), "written after the end"
        if not self.in_step:  # the last pull, of everybody: each push has counted, once
            for name, out in zip(NAMES, self.kept[-len(NAMES) - 1 : -1], strict=True):
                for rank in range(self.count):
                    assert (out[1][rank :: self.count] == self.models[name].sums(rank)[-1]).all()

    def _settle(self) -> None:
        moved = True
        while moved:
            moved = False
            for rank in sorted(self.live):
                end = self.ends[rank]
                for number, wire in enumerate(end.wires):
                    end.end_lane(number)
                    wire.come_back()
                    wire.flow()
                    while wire.deliver() or wire.receive():
                        moved = True
