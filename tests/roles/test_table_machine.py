"""A Hypothesis machine: a table's rounds on a server, against a table in plain NumPy.

Workers push rows, pull rows, and are cut off in the middle; what was not answered is sent again,
as a link does. The model counts contributions by worker and clock. Each answer must come, once if
it was not asked for again, with the rows that the table had at that clock.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from asyncps.errors import TensorError
from asyncps.initializer import Constant
from asyncps.protocol import messages, rows
from asyncps.protocol.frames import Flag, Header, Kind
from asyncps.protocol.messages import TableSpec
from asyncps.state.rounds import CLOCK_WINDOW
from asyncps.tensor import codecs
from asyncps_ext import wire
from tests.roles.test_encoded import raw
from tests.support.ports import STORE, FakeServer, Frame, make_frame, read_answer

ROWS, FIRST, STOP, WIDTH = 40, 10, 30, 2
IDS = st.one_of(
    st.sets(st.integers(FIRST, STOP - 1), max_size=4),
    st.integers(FIRST, STOP - 1).map(lambda first: set(range(first, STOP))),
)
RATE = 3


class Model:
    """The table by clock, and what each worker has contributed."""

    def __init__(self, members: int, optimizer: bool, dtype: str) -> None:
        self.tables = [np.full((ROWS, WIDTH), 5, dtype)]
        self.pushed: list[list[tuple[Any, Any]]] = [[] for _ in range(members)]
        self.optimizer = optimizer

    def push(self, rank: int, ids: Any, values: Any) -> None:
        self.pushed[rank].append((ids, values))
        while all(len(pushes) >= len(self.tables) for pushes in self.pushed):
            last = self.tables[-1]
            total = np.zeros(last.shape, "f8")
            for pushes in self.pushed:
                which, what = pushes[len(self.tables) - 1]
                total[which] += what
            table = last.astype("f8") + RATE * total if self.optimizer else total
            self.tables.append(table.astype(last.dtype))


@dataclass
class Worker:
    """What a worker waits for, and what is on its way."""

    number: int = 1
    clock: int = 0
    unanswered: dict[int, tuple[Frame, Any, int]] = field(default_factory=dict)
    queue: deque[Frame] = field(default_factory=deque)
    resent: set[int] = field(default_factory=set)


class TableMachine(RuleBasedStateMachine):
    @initialize(
        members=st.integers(1, 3), order=st.sampled_from(["arrival", "rank"]),
        optimizer=st.booleans(), dtype=st.sampled_from(["float32", "float64", "float16", "int32"]),
    )
    def start(self, members: int, order: str, optimizer: bool, dtype: str) -> None:
        hyper = {"rescale_grad": RATE} if optimizer else {}
        self.server = FakeServerOffLoop(members, order, "test" if optimizer else None, hyper)
        self.dtype = np.dtype(dtype)
        spec = TableSpec("t", dtype, (ROWS, WIDTH), Constant(5.0), FIRST, STOP)
        for _ in range(2):  # the second is a repetition
            self.server.deliver(
                0, make_frame(Kind.INIT, 1, 0, 0, table=messages.encode(spec)))
            assert read_answer(self.server.answers(0).popleft())[0] == Kind.ACK
        self.model = Model(members, optimizer, dtype)
        self.workers = [Worker(number=2) for _ in range(members)]

    @rule(rank=st.integers(0, 2), ids=IDS, seed=st.integers(0, 99),
          encoded=st.sampled_from([None, "f16", "topk"]))
    def push(self, rank: int, ids: set[int], seed: int, encoded: str | None) -> None:
        rank %= len(self.workers)
        worker = self.workers[rank]
        if worker.clock >= self.applied + CLOCK_WINDOW:
            return
        worker.clock += 1
        which = np.array(sorted(ids), np.int64)
        values = np.random.default_rng(seed).integers(-4, 5, (which.size, WIDTH))
        payload = rows.pack(which, ROWS) + values.astype(self.dtype).tobytes()
        frame = make_frame(Kind.PUSH, worker.number, 0, worker.clock, payload)
        if encoded is not None and self.dtype.name in ("float32", "float16") and which.size:
            codec = codecs.made(codecs.checked({"type": encoded}))
            g = values.reshape(-1).astype("f4")  # small integers: exact in float16
            (coded,) = codec.encode(g, None, [(0, g.size)], lambda n: np.empty(n, np.uint8), [0])
            codec.decode(g, coded, 0)
            values = g.reshape(-1, WIDTH)
            frame = raw(Kind.PUSH, Flag.CODEC, codec.head(g.size, 0),
                        rows.pack(which, ROWS) + coded.tobytes(), worker.number,
                        clock=worker.clock)
        self._ask(rank, frame, None)
        self.model.push(rank, which, values)

    @rule(rank=st.integers(0, 2), ids=IDS.filter(bool))
    def pull(self, rank: int, ids: set[int]) -> None:
        rank %= len(self.workers)
        worker = self.workers[rank]
        which = np.array(sorted(ids), np.int64)
        table = rows.pack(which, ROWS)
        header = Header(Kind.PULL, Flag.IDS, 7, STORE, worker.number, 0, 0, worker.clock,
                        len(table), 0, 0, which.size * WIDTH * self.dtype.itemsize)
        packed = Header._make(wire.parse_header(wire.pack_header(*header)))
        self._ask(rank, (packed, table, b""), which)

    @rule(rank=st.integers(0, 2), bad=st.sampled_from([[FIRST - 1, FIRST], [STOP], [12, 12]]))
    def bad_rows(self, rank: int, bad: list[int]) -> None:
        """Refused, and counted nowhere."""
        rank %= len(self.workers)
        worker = self.workers[rank]
        self._deliver_all(rank)
        if worker.clock >= self.applied + CLOCK_WINDOW:
            return
        payload = np.array([8, 0, len(bad), *bad], "<i8").tobytes()
        payload += bytes(len(bad) * WIDTH * self.dtype.itemsize)
        answers = self.server.answers(rank)
        before = len(answers)
        self.server.deliver(rank, make_frame(Kind.PUSH, 1 << 40, 0, worker.clock + 1, payload))
        assert len(answers) == before + 1
        assert isinstance(read_answer(answers.pop())[3], TensorError)

    @rule(rank=st.integers(0, 2))
    def deliver(self, rank: int) -> None:
        worker = self.workers[rank % len(self.workers)]
        if worker.queue:
            self.server.deliver(rank % len(self.workers), worker.queue.popleft())

    @rule(rank=st.integers(0, 2), half=st.booleans())
    def cut(self, rank: int, half: bool) -> None:
        """What is on its way is lost, and sent again; one frame may be half in."""
        rank %= len(self.workers)
        worker = self.workers[rank]
        if half and worker.queue:
            self.server.begin(rank, worker.queue.popleft())
        self.server.connect(rank)
        worker.queue = deque(frame for frame, _, _ in worker.unanswered.values())
        worker.resent = set(worker.unanswered)

    @rule(rank=st.integers(0, 2))
    def read(self, rank: int) -> None:
        self._read(rank % len(self.workers))

    def teardown(self) -> None:
        if not hasattr(self, "workers"):
            return
        furthest = max(worker.clock for worker in self.workers)
        for _ in range(furthest + 1):
            for rank, worker in enumerate(self.workers):
                if worker.clock < furthest:
                    self.push(rank, set(), 0, None)
                self._deliver_all(rank)
        for rank in range(len(self.workers)):
            self._read(rank)
        for rank, worker in enumerate(self.workers):
            assert worker.clock == furthest == self.applied
            assert not worker.unanswered, (rank, worker.unanswered)

    @property
    def applied(self) -> int:
        """The clock that a worker could know of: it asks with WAIT before it pushes further."""
        unit: Any = self.server.keeper.units[0]
        applied: int = unit.rounds.applied
        return applied

    def _ask(self, rank: int, frame: Frame, which: Any) -> None:
        worker = self.workers[rank]
        worker.unanswered[worker.number] = frame, which, worker.clock
        worker.queue.append(frame)
        worker.number += 1

    def _deliver_all(self, rank: int) -> None:
        queue = self.workers[rank].queue
        while queue:
            self.server.deliver(rank, queue.popleft())

    def _read(self, rank: int) -> None:
        worker, answers = self.workers[rank], self.server.answers(rank)
        while answers:
            kind, request, body, error = read_answer(answers.popleft())
            assert error is None
            if request not in worker.unanswered:
                # One that waited was answered before it came again: links read past the second.
                assert request in worker.resent, "answered twice"
                continue
            _, which, clock = worker.unanswered.pop(request)
            if which is None:
                assert kind == Kind.ACK
                continue
            assert kind == Kind.DATA
            got = np.frombuffer(body, self.dtype).reshape(-1, WIDTH)
            # Asked again after a cut, it may be the rows of a later clock: there are no versions.
            assert any(np.array_equal(got, table[which]) for table in self.model.tables[clock:])


class FakeServerOffLoop(FakeServer):
    """A port wants a running loop for its clock only."""

    def __init__(self, members: int, order: str, optimizer: str | None, hyper: Any) -> None:
        async def made() -> None:
            FakeServer.__init__(self, members, order, "sum", optimizer, hyper)

        asyncio.run(made())
        for port in self.ports.values():
            port._now = lambda: 0.0


TestTable = pytest.mark.slow(TableMachine.TestCase)
TestTable.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
