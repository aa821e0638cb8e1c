"""One store at one worker: which frames a verb becomes, and what their answers do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from asyncps.errors import AsyncPSError, ClosedError, DeadlineExceeded, WorkerLost
from asyncps.protocol.frames import HEADER_SIZE, Flag, Header, Kind
from asyncps.protocol.messages import KeySpec, Placement, StoreConfig
from asyncps.roles.client import Client
from asyncps.roles.operation import Operation
from asyncps.state.routing import Routing
from asyncps.transport.request import Request
from asyncps_ext import wire


class FakeLink:
    """Keeps requests; the test answers them."""

    def __init__(self) -> None:
        self.sent: list[Request] = []
        self.last = 0

    def number(self) -> int:
        self.last += 1
        return self.last

    def request(self, request: Request) -> None:
        self.sent.append(request)

    def take(self) -> tuple[Header, list[int] | None, bytes, Request]:
        """The next frame: header, rows, payload."""
        request = self.sent.pop(0)
        frame = b"".join(request.parts)
        assert len(frame) == request.size
        header = Header._make(wire.parse_header(frame))
        end = HEADER_SIZE + header.table_bytes
        rows = None
        if header.flags & Flag.ROWS:
            rows = np.frombuffer(frame[HEADER_SIZE:end], "<u4").tolist()
        assert len(frame) == end + header.payload_bytes
        return header, rows, frame[end:], request


def answer(request: Request, payload: bytes = b"", error: AsyncPSError | None = None) -> None:
    """The answer has come, its payload into the request's place."""
    header = Header._make(wire.parse_header(request.parts[0]))
    if payload:
        assert request.place is not None
        request.place[:] = payload
    request.answered(request, None if error else header, None, error)


class Bench:
    """A client with two servers and the keys that a routing table places."""

    def __init__(self, keys: dict[str, int]) -> None:
        self.links = [FakeLink(), FakeLink()]
        config = StoreConfig("dist_sync", "arrival", "sum")
        self.client = Client(7, config, 3, self.links, lambda: 0.0)  # type: ignore[arg-type]
        self.routing = Routing(2, 4096 * 4, 4096, 1024)
        self.init(keys)

    def init(self, keys: dict[str, int]) -> list[Placement]:
        specs = [KeySpec(key, "float32", (size,), 4) for key, size in keys.items()]
        placements = self.placements = self.routing.declare(specs)
        self.client.add_placements(placements)
        return placements

    def send(self, verb: str, keys: Sequence[str], value: float = 1.0, priority: int = 0,
             op: Operation | None = None) -> tuple[Operation, list[Any]]:
        plan = self.client.plan(tuple(keys))
        assert plan is not None
        arrays = [np.full(info.shape, value, "f4") for info in plan.infos]
        outs = [np.zeros(info.shape, "f4") for info in plan.infos]
        op = op or Operation(verb, lent=False)
        gives, wants = verb != "pull", verb.startswith("pull") or verb == "pushpull"
        self.client.send(
            op, plan,
            [memoryview(arrays[i].view("u1")) for i, _ in plan.large] if gives else None,
            [np.concatenate([arrays[i] for i in slab.indices]).view("u1")
             for slab in plan.slabs] if gives else None,
            [memoryview(outs[i].view("u1")) for i, _ in plan.large] if wants else None,
            [[outs[i] for i in slab.indices] for slab in plan.slabs] if wants else None,
            priority,
        )
        return op, outs

    def take(self) -> tuple[Header, list[int] | None, bytes, Request]:
        (link,) = [link for link in self.links if link.sent]
        return link.take()

    def accept_all(self) -> None:
        for link in self.links:
            while link.sent:
                answer(link.take()[3])


def test_keys_that_are_not_known_have_no_plan() -> None:
    bench = Bench({"a": 3})
    assert bench.client.plan(("a", "b")) is None
    bench.init({"b": 3})
    assert bench.client.plan(("a", "b")) is not None


def test_large_key_becomes_a_frame_for_each_chunk_and_answers_land_in_place() -> None:
    bench = Bench({"w": 4096 * 2 + 5})
    op, (out,) = bench.send("pushpull", ["w"], 3.0)
    frames = [link.take() for link in bench.links for _ in range(len(link.sent))]
    assert sorted(header.payload_bytes for header, *_ in frames) == [20, 16384, 16384]
    for header, rows, payload, request in frames:
        assert (header.kind, header.clock, header.store, rows) == (Kind.PUSHPULL, 1, 7, None)
        assert not op.ended
        answer(request, payload)
    assert op.ended
    assert np.all(out == 3)


def test_whole_slab_is_one_frame_and_part_of_it_names_its_rows() -> None:
    bench = Bench({"a": 3, "b": 1, "c": 2})
    bench.send("push", ["c", "a", "b"])
    header, rows, payload, _ = bench.take()
    assert (header.clock, rows, len(payload)) == (1, None, 24)
    bench.send("push", ["c", "a"])
    header, rows, payload, _ = bench.take()
    assert (header.clock, rows, len(payload)) == (2, [0, 2], 20)


def test_rows_at_different_clocks_travel_in_a_frame_each_and_come_back_in_order() -> None:
    bench = Bench({"a": 1, "b": 1, "c": 1})
    bench.send("push", ["b"], 5.0)
    bench.take()
    op, outs = bench.send("pushpull", ["c", "b", "a"], 7.0)
    seen = {}
    for _ in range(2):
        header, rows, payload, request = bench.take()
        assert payload == np.full(len(rows or ()), 7, "f4").tobytes()
        seen[tuple(rows or ())] = header.clock
        answer(request, np.array(rows, "f4").tobytes())
    assert seen == {(0, 2): 1, (1,): 2}
    assert op.ended
    assert [float(out[0]) for out in outs] == [2, 1, 0]


def test_pull_asks_for_the_clock_of_this_workers_last_push() -> None:
    bench = Bench({"a": 1, "b": 1})
    bench.send("push", ["a"])
    bench.take()
    bench.send("pull", ["a"])
    header, rows, _, _ = bench.take()
    assert (header.kind, header.clock, header.hyper, rows) == (Kind.PULL, 1, 4, [0])
    bench.send("pull", ["b"])
    assert bench.take()[0].clock == 0


def test_push_beyond_the_window_is_held_until_word_of_the_clock_comes() -> None:
    bench = Bench({"w": 2000})
    for _ in range(2):
        bench.send("push", ["w"])
        bench.accept_all()
    third, _ = bench.send("push", ["w"], 3.0)
    fourth, _ = bench.send("push", ["w"], 4.0)
    header, _, _, word = bench.take()
    assert (header.kind, header.clock) == (Kind.WAIT, 1)
    assert not any(link.sent for link in bench.links)
    answer(word)
    header, _, payload, request = bench.take()
    assert (header.kind, header.clock) == (Kind.PUSH, 3)
    assert np.all(np.frombuffer(payload, "f4") == 3)
    answer(request)
    assert third.ended
    assert not fourth.ended
    header, _, _, word = bench.take()
    assert (header.kind, header.clock) == (Kind.WAIT, 2)
    answer(word)
    assert bench.take()[0].clock == 4


def test_held_push_of_a_whole_slab_speaks_of_the_rows_that_it_knew() -> None:
    bench = Bench({"a": 1, "b": 1})
    for _ in range(2):
        bench.send("push", ["a", "b"])
        bench.accept_all()
    bench.send("push", ["a", "b"])
    word = bench.take()[3]
    bench.init({"c": 1})
    answer(word)
    header, rows, payload, _ = bench.take()
    assert (header.kind, header.clock, rows, len(payload)) == (Kind.PUSH, 3, [0, 1], 8)
    bench.send("push", ["c"])
    header, rows, _, _ = bench.take()
    assert (header.clock, rows) == (1, [2])


def test_pull_overtakes_held_pushes_of_other_keys_only_in_name() -> None:
    bench = Bench({"w": 2000, "v": 2000})
    for _ in range(2):
        bench.send("push", ["w"])
        bench.accept_all()
    bench.send("push", ["w"])
    bench.take()
    bench.send("pull", ["v"])
    assert bench.take()[0].kind == Kind.PULL
    bench.send("pull", ["w"])  # of clock 3: the server keeps it until the held push has come
    assert bench.take()[0].clock == 3


def test_word_that_never_comes_fails_what_was_held() -> None:
    bench = Bench({"w": 2000})
    for _ in range(2):
        bench.send("push", ["w"])
        bench.accept_all()
    held = [bench.send("push", ["w"])[0] for _ in range(2)]
    lost = WorkerLost("gone", rank=1)
    answer(bench.take()[3], error=lost)
    assert all(op.ended and op.error is lost for op in held)


def test_acknowledged_clock_stays_behind_an_answer_that_has_not_come() -> None:
    bench = Bench({"w": 2000})
    bench.send("pushpull", ["w"])
    first = bench.take()
    assert first[0].acked == 1
    bench.send("pushpull", ["w"])
    second = bench.take()
    assert second[0].acked == 1
    answer(first[3], first[2])
    answer(second[3], second[2])
    bench.send("push", ["w"])
    assert bench.take()[0].acked == 3


def test_priority_never_overtakes_an_earlier_request_of_the_same_unit() -> None:
    bench = Bench({"w": 2000})
    bench.send("push", ["w"], priority=-5)
    bench.send("pull", ["w"], priority=9)
    assert bench.take()[3].priority == -5
    assert bench.take()[3].priority == -5


def test_assign_has_no_clock_and_moves_none() -> None:
    bench = Bench({"a": 1, "w": 2000})
    bench.send("assign", ["a", "w"])
    for link in bench.links:
        while link.sent:
            header = link.take()[0]
            assert (header.kind, header.clock) == (Kind.ASSIGN, 0)
    bench.send("pull", ["w"])
    assert bench.take()[0].clock == 0


def test_pushes_are_remembered_until_they_are_accepted() -> None:
    bench = Bench({"w": 2000})
    op, _ = bench.send("push", ["w"])
    pull, _ = bench.send("pull", ["w"])
    assert bench.client.pushes == {op}
    answer(bench.take()[3], error=DeadlineExceeded("late"))
    assert not bench.client.pushes
    assert isinstance(op.error, DeadlineExceeded)
    assert not pull.ended


def test_empty_call_ends_at_once() -> None:
    assert Bench({}).send("push", [])[0].ended
    assert Bench({"none": 0}).send("pushpull", ["none"])[0].ended


@pytest.mark.parametrize("verb", ["push", "pull", "pushpull", "assign"])
def test_closed_client_ends_every_verb_with_an_error(verb: str) -> None:
    bench = Bench({"w": 2000})
    bench.client.closed = True
    op, _ = bench.send(verb, ["w"])
    assert isinstance(op.error, ClosedError)
    assert op.ended


def test_key_that_is_told_twice_stays_where_it_was() -> None:
    bench = Bench({"a": 3})
    info = bench.client.keys["a"]
    bench.init({"a": 3})
    assert bench.client.keys["a"] is info
