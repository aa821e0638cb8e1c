"""A Hypothesis machine: workers that are sent changes only, push, pull, give up and are cut off.

The model brings the base on at every clock whose value somebody asks for, in plain NumPy. Each
answer must leave the bits of its own clock, however late or often it comes.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from asyncps.protocol.frames import Flag, Header, Kind
from asyncps.roles.changes import DeltaLanding, DeltaPlace
from asyncps.state.requests import UnitTrack
from asyncps.tensor import codecs
from asyncps_ext import wire
from tests.kvstore.changes import sent
from tests.support.ports import STORE, FakeServer, Frame, read_answer

N = 12
ranks = st.integers(0, 2)


def asking(
    kind: Kind, request: int, clock: int, words: bytes, payload: bytes = b"", acked: int = 0,
    unit: int = 0, flags: int = Flag.DELTA, size: int = 4 * N,
) -> Frame:
    """A frame whose answer may be changes."""
    packed = wire.pack_header(kind, flags, 7, STORE, request, unit, 0, clock, len(words),
                              len(payload), acked, 0 if payload else size)
    return Header._make(wire.parse_header(packed)), words, payload


@dataclass
class Asked:
    """A request without an answer; `landing` is None when nobody wants it any more."""

    frame: Frame
    clock: int
    out: Any
    landing: DeltaLanding | None
    over: Any


@dataclass
class Peer:
    """A worker: what it holds, what it has sent."""

    unit: Any = field(default_factory=lambda: SimpleNamespace(copy=None, number=0))
    track: UnitTrack = field(default_factory=lambda: UnitTrack(1))
    queue: deque[Frame] = field(default_factory=deque)
    unanswered: dict[int, Asked] = field(default_factory=dict)
    number: int = 1


class BaseMachine(RuleBasedStateMachine):
    """Needs a running loop under it.

    Args:
        spec: By which codec changes are pulled; none that draws.
    """

    def __init__(self, spec: dict[str, Any]) -> None:
        super().__init__()
        self.spec = codecs.checked({**spec, "pull": True})
        changes = codecs.made_for_changes(self.spec)
        assert changes is not None
        self.codec, self.amount = changes
        self.pulled: set[int] = set()
        self.sums = [np.zeros(N, "f4")]
        self.pushed: list[list[Any]] = []
        self.seen = 0

    @initialize(members=st.integers(1, 3))
    def start(self, members: int) -> None:
        self.server = FakeServer(members, "rank", optimizer="test", hyper={"rescale_grad": 1.0})
        self.server.init(0, "float32", [bytes(4 * N)], slab=False)
        self.peers = [Peer() for _ in range(members)]
        self.pushed = [[] for _ in range(members)]

    @rule(rank=ranks, kind=st.sampled_from([Kind.PUSH, Kind.PULL, Kind.PUSHPULL]),
          seed=st.integers(0, 1 << 30))
    def ask(self, rank: int, kind: Kind, seed: int) -> None:
        rank %= len(self.peers)
        peer = self.peers[rank]
        step = peer.track.pull()[0] if kind == Kind.PULL else peer.track.next()
        if step is None:
            return  # the clock window is not open
        payload = b""
        if kind != Kind.PULL:
            peer.track.begin(step)
            value = np.random.default_rng(seed).normal(size=N).astype("f4")
            payload = value.tobytes()
            self._push(rank, value)
        peer.number += 1
        words, out, landing = b"", np.full(N, 7, "f4"), None
        flags, acked = 0, peer.track.floor(step)
        if kind != Kind.PUSH:
            self.pulled.add(step.clock)
            place = DeltaPlace(self.codec, self.amount, memoryview(out.view("u1")))
            words, _ = place.ask(peer.unit, 0)
            landing, flags = place.landing(peer.unit), Flag.DELTA
            peer.track.asked(peer.number, step.clock, None)
        frame = asking(kind, peer.number, step.clock, words, payload, acked, flags=flags)
        peer.queue.append(frame)
        over = None if landing is None else landing.over
        peer.unanswered[peer.number] = Asked(frame, step.clock, out, landing, over)

    @rule(rank=ranks)
    def deliver(self, rank: int) -> None:
        rank %= len(self.peers)
        if self.peers[rank].queue:
            self.server.deliver(rank, self.peers[rank].queue.popleft())

    @rule(rank=ranks)
    def receive(self, rank: int) -> None:
        rank %= len(self.peers)
        peer, answers = self.peers[rank], self.server.answers(rank)
        if not answers:
            return
        parts = answers.popleft()
        kind, request, body, error = read_answer(parts)
        assert error is None, error
        asked = peer.unanswered.pop(request, None)
        if asked is None:
            return  # it was asked again after a cut, and answered on both grounds
        if asked.over is None:
            assert kind == Kind.ACK
            return
        assert kind == Kind.DATA
        asked.over()
        if asked.landing is not None:
            asked.landing.room(len(body))[:] = body
            header = Header._make(wire.parse_header(parts[0]))
            assert asked.landing.settle(header) is None
            assert np.array_equal(asked.out, self._expected(asked.clock))
            self.seen += 1
        peer.track.answered(request)

    @rule(rank=ranks)
    def give_up(self, rank: int) -> None:
        for asked in self.peers[rank % len(self.peers)].unanswered.values():
            asked.landing = None

    @rule(rank=ranks)
    def cut(self, rank: int) -> None:
        rank %= len(self.peers)
        self.server.connect(rank)
        peer = self.peers[rank]
        peer.queue = deque(asked.frame for asked in peer.unanswered.values())

    def teardown(self) -> None:
        for rank in range(len(self.pushed)):
            self.cut(rank)
            while self.peers[rank].queue:
                self.deliver(rank)
        for rank in range(len(self.pushed)):
            while self.server.answers(rank):
                self.receive(rank)

    def _push(self, rank: int, value: Any) -> None:
        self.pushed[rank].append(value)
        while all(len(pushes) >= len(self.sums) for pushes in self.pushed):
            clock = len(self.sums)
            total = np.zeros(N, "f4")
            for pushes in self.pushed:
                total += pushes[clock - 1]
            self.sums.append(self.sums[-1] + total)

    def _expected(self, clock: int) -> Any:
        held = None
        for at in sorted(at for at in self.pulled if at <= clock):
            if held is None:
                held = self.sums[at].copy()
                continue
            held += sent(self.spec, self.sums[at] - held, 0)
        return held
