"""Answers that are changes only, at a server and at a worker: what is sent, and what is refused."""

from __future__ import annotations

import random
import struct
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from asyncps.errors import RemoteProtocolError
from asyncps.protocol import messages
from asyncps.protocol.frames import Flag, Header, Kind
from asyncps.roles.bases import MAX_LINKS, tail_of
from asyncps.roles.changes import Copy, DeltaPlace
from asyncps.tensor import codecs
from asyncps_ext import wire
from tests.roles.base_machine import BaseMachine, N, asking
from tests.support.ports import STORE, FakeServer, Frame, make_frame, read_answer

CODEC = codecs.made(codecs.checked({"type": "topk", "ratio": 0.25}))
FIRST = np.arange(N, dtype="f4")
WORDS: list[dict[str, Any]] = [
    {"type": "topk", "ratio": 0.25}, {"type": "f16"}, {"type": "int8"}, {"type": "onebit"},
    {"type": "2bit", "threshold": 0.5},
]


def words(number: int = 0, codec: Any = CODEC, amount: float = 0.25, elements: int = N) -> bytes:
    return tail_of(codec, elements, amount, number)


def served(workers: int = 1, type: str = "dist_sync") -> FakeServer:
    """Unit 0 is a chunk, 1 a slab, 2 a chunk of f16."""
    server = FakeServer(workers, "rank", optimizer="test", hyper={"rescale_grad": 1.0}, type=type)
    server.init(0, "float32", [FIRST.tobytes()], slab=False)
    server.init(1, "float32", [bytes(4 * N)], slab=True)
    server.init(2, "float16", [bytes(20)], slab=False)
    return server


def said(server: FakeServer, rank: int = 0) -> tuple[int, int, Any, Any]:
    """Number, whether it is whole, sizes, and what follows; or the error."""
    parts = server.answers(rank).popleft()
    kind, _, body, error = read_answer(parts)
    if error is not None:
        return -1, -1, error, b""
    assert kind == Kind.DATA
    assert Header._make(wire.parse_header(parts[0])).flags == Flag.DELTA
    number, whole, count = struct.unpack_from("<QII", body)
    sizes = struct.unpack_from(f"<{count}Q", body, 16)
    return number, whole, list(sizes), body[16 + 8 * count :]


def push(server: FakeServer, request: int, clock: int, value: Any, known: int) -> None:
    server.deliver(0, asking(Kind.PUSHPULL, request, clock, words(known), value.tobytes(), clock))


async def test_whole_first_and_then_what_is_lacking() -> None:
    server = served()
    server.deliver(0, asking(Kind.PULL, 2, 0, words()))
    assert said(server) == (1, 1, [], FIRST.tobytes())
    grad = np.zeros(N, "f4")
    grad[[2, 5, 6, 9]] = 1, -3, 2, 2
    push(server, 3, 1, grad, 1)
    # ceil(0.25 * 12) = 3 of them: indices, then values.
    link = np.array([5, 6, 9], "<u4").tobytes() + np.array([-3, 2, 2], "<f4").tobytes()
    assert said(server) == (2, 0, [24], link)
    server.deliver(0, asking(Kind.PULL, 4, 1, words(2), acked=1))
    assert said(server) == (2, 0, [], b"")
    push(server, 5, 2, np.zeros(N, "f4"), 2)
    assert said(server)[2:] == ([24], np.array([0, 1, 2], "<u4").tobytes()
                                + np.array([0, 0, 1], "<f4").tobytes())


async def test_answer_that_is_asked_for_again_is_the_same_whatever_has_come_since() -> None:
    server = served()
    asked = asking(Kind.PULL, 2, 0, words())
    server.deliver(0, asked)
    first = said(server)
    kept = [(asked, first)]
    for clock in (1, 2):  # no answer has arrived: both go on with what was known before
        frame = asking(Kind.PUSHPULL, 2 + clock, clock, words(), np.ones(N, "f4").tobytes(), 0)
        server.deliver(0, frame)
        kept.append((frame, said(server)))
    assert [answer[:2] for _, answer in kept] == [(1, 1), (2, 1), (3, 1)]
    server.connect(0)
    for frame, answer in kept:
        server.deliver(0, frame)
        assert said(server) == answer
    # What has arrived is kept no longer.
    server.deliver(0, asking(Kind.PULL, 9, 2, words(3), acked=2))
    base = server.keeper.units[0].base  # type: ignore[union-attr]
    assert base is not None
    assert [asked[:2] for asked in base._given[0]] == [(2, 0), (2, 3)]


async def test_after_a_cut_later_answers_wait_until_earlier_ones_have_come_again() -> None:
    server = served(2)
    frames = [asking(Kind.PUSHPULL, 1 + clock, clock, words(), np.ones(N, "f4").tobytes())
              for clock in (1, 2)]
    others = [make_frame(Kind.PUSH, 1 + clock, 0, clock, np.ones(N, "f4").tobytes())
              for clock in (1, 2)]
    for frame in frames:
        server.deliver(0, frame)
    server.deliver(1, others[0])
    server.connect(0)  # the first answer is lost
    server.deliver(1, others[1])
    assert not server.answers(0)
    for frame in frames:
        server.deliver(0, frame)
    assert [said(server)[:2] for _ in frames] == [(1, 1), (2, 1)]


async def test_several_links_bring_on_who_was_behind_and_too_many_are_the_whole() -> None:
    server = served()
    server.deliver(0, asking(Kind.PULL, 2, 0, words()))
    said(server)
    chance = np.random.default_rng(1)
    for clock in range(1, MAX_LINKS + 3):
        value = chance.normal(size=N).astype("f4")
        behind = clock  # its number when nothing of the last rounds has arrived
        push(server, 10 + clock, clock, value, 1)
        number, whole, sizes, _ = said(server)
        assert number == clock + 1
        # Twelve values take as many bytes as two links.
        assert (whole, len(sizes)) == ((0, behind) if behind <= 2 else (1, 0))


async def test_links_of_a_codec_of_all_values_are_the_difference_encoded() -> None:
    server, int8 = served(), codecs.made(codecs.checked({"type": "int8"}))
    server.deliver(0, asking(Kind.PULL, 2, 0, words(codec=int8, amount=0.0)))
    assert said(server) == (1, 1, [], FIRST.tobytes())
    grad = np.zeros(N, "f4")
    grad[:4] = 127, -3, 2.25, 0.5
    ask = words(1, codec=int8, amount=0.0)
    server.deliver(0, asking(Kind.PUSHPULL, 3, 1, ask, grad.tobytes(), 1))
    link = np.float32(1).tobytes() + np.array([127, -3, 2, 0], "i1").tobytes() + bytes(N - 4)
    assert said(server) == (2, 0, [4 + N], link)
    # What was rounded off is the next difference.
    ask = words(2, codec=int8, amount=0.0)
    server.deliver(0, asking(Kind.PUSHPULL, 4, 2, ask, bytes(4 * N), 2))
    number, whole, sizes, link = said(server)
    assert (number, whole, sizes) == (3, 0, [4 + N])
    assert link[:4] == (np.float32(0.5) / np.float32(127)).tobytes()
    assert list(link[4:8]) == [0, 0, 64, 127]


@pytest.mark.parametrize("spec", WORDS, ids=str)
async def test_what_is_not_finite_is_sent_whole(spec: dict[str, Any]) -> None:
    codec = codecs.made(codecs.checked(spec))
    amount = float(spec.get("ratio", spec.get("threshold", 0)))
    server = served()
    server.deliver(0, asking(Kind.PULL, 2, 0, words(codec=codec, amount=amount)))
    said(server)
    grad = np.ones(N, "f4")
    value = FIRST.copy()
    for clock, bad in enumerate([np.inf, 1, np.nan, 1], 1):
        grad[3] = bad
        value += grad
        tail = words(clock, codec=codec, amount=amount)
        server.deliver(0, asking(Kind.PUSHPULL, 2 + clock, clock, tail, grad.tobytes(), clock))
        number, whole, _, body = said(server)
        assert (number, whole) == (clock + 1, 1)
        assert np.array_equal(np.frombuffer(body, "f4"), value, equal_nan=True)


async def test_links_that_take_more_than_the_whole_are_not_kept() -> None:
    """Nobody is sent them."""
    server = served()
    server.deliver(0, asking(Kind.PULL, 1, 0, words(codec=F16, amount=0.0)))
    for clock in range(1, MAX_LINKS):
        value, ask = np.full(N, 0.1, "f4"), words(clock, codec=F16, amount=0.0)
        server.deliver(0, asking(Kind.PUSHPULL, 1 + clock, clock, ask, value.tobytes(), clock))
    assert [said(server)[2] for _ in range(MAX_LINKS)] == [[]] + [[2 * N]] * (MAX_LINKS - 1)
    base = server.keeper.units[0].base  # type: ignore[union-attr]
    assert base is not None
    assert [link.payload.nbytes for link in base._links] == [2 * N, 2 * N]


@pytest.mark.parametrize("how", ["assign", "restore"])
async def test_value_from_elsewhere_is_sent_whole(how: str) -> None:
    server = served()
    server.deliver(0, asking(Kind.PULL, 2, 0, words()))
    said(server)
    value = np.full(N, 0.5, "f4")
    if how == "assign":
        server.deliver(0, make_frame(Kind.ASSIGN, 3, 0, 0, value.tobytes()))
    else:
        told = messages.encode(messages.StateRange(STORE, 0, "", "", 0, 4 * N))
        server.deliver(0, make_frame(Kind.RESTORE, 3, 0, 0, value.tobytes(), table=told))
    server.answers(0).popleft()
    server.deliver(0, asking(Kind.PULL, 4, 0, words(1)))
    assert said(server) == (2, 1, [], value.tobytes())


async def test_another_codec_than_that_of_the_links_is_sent_the_whole() -> None:
    server = served()
    server.deliver(0, asking(Kind.PULL, 2, 0, words()))
    said(server)
    push(server, 3, 1, np.ones(N, "f4"), 1)
    server.deliver(0, asking(Kind.PULL, 4, 1, words(1, amount=0.5)))
    assert said(server)[:3] == (2, 0, [24])
    assert said(server)[:2] == (2, 1)
    server.deliver(0, asking(Kind.PULL, 5, 1, words(2, amount=0.5)))
    assert said(server)[:3] == (2, 0, [])


F16, ONE, TWO, RANKED = (codecs.made(codecs.checked({"type": type}))
                         for type in ("f16", "1bit", "2bit", "powersgd"))
PUSHED = bytes(4 * N)


@pytest.mark.parametrize(("type", "frame"), [
    ("dist_async", asking(Kind.PULL, 2, 0, words())),
    ("dist_async", asking(Kind.PUSHPULL, 2, 1, words(), PUSHED)),
    ("dist_sync", asking(Kind.PULL, 2, 0, words(), unit=1)),
    ("dist_sync", asking(Kind.PULL, 2, 0, words(elements=5), unit=2, size=20)),
    ("dist_sync", asking(Kind.PUSH, 2, 1, words(), PUSHED)),
    ("dist_sync", asking(Kind.ASSIGN, 2, 0, words(), PUSHED)),
    ("dist_sync", asking(Kind.WAIT, 2, 0, words())),
    ("dist_sync", asking(Kind.PULL, 2, 0, words(), flags=Flag.DELTA | Flag.F16)),
    ("dist_sync", asking(Kind.PULL, 2, 0, words()[:-1])),
    ("dist_sync", asking(Kind.PULL, 2, 0, words(elements=N - 1))),
    ("dist_sync", asking(Kind.PUSHPULL, 2, 1, words(codec=F16), PUSHED)),  # it has no amount
    ("dist_sync", asking(Kind.PULL, 2, 0, words(codec=ONE, amount=0.0))),
    ("dist_sync", asking(Kind.PULL, 2, 0, words(codec=RANKED, amount=0.0))),
    ("dist_sync", asking(Kind.PULL, 2, 0, words(codec=TWO, amount=0.0))),
    ("dist_sync", asking(Kind.PULL, 2, 0, words(codec=TWO, amount=0.25))),  # its head says 0.5
    ("dist_sync", asking(Kind.PUSHPULL, 2, 1, words(amount=0.0), PUSHED)),
    ("dist_sync", asking(Kind.PULL, 2, 0, words(amount=float("nan")))),
    ("dist_sync", asking(Kind.PULL, 2, 0, b"\2" + words()[1:])),
], ids=str)  # fmt: skip
async def test_what_cannot_be_is_refused_and_nothing_counted(type: str, frame: Frame) -> None:
    server = served(type=type)
    server.deliver(0, frame)
    assert isinstance(said(server)[2], RemoteProtocolError)
    assert not server.keeper.beside
    server.deliver(0, make_frame(Kind.PUSHPULL, 3, 0, 1, np.ones(N, "f4").tobytes()))
    assert read_answer(server.answers(0).popleft())[2] == (FIRST + 1).tobytes()


def whole(number: int) -> bytes:
    return struct.pack("<QII", number, 1, 0) + FIRST.tobytes()


LINK = np.array([5, 6], "<u4").tobytes() + np.array([1, 2], "<f4").tobytes()


def links(number: int, *payloads: bytes) -> bytes:
    sizes = [len(payload) for payload in payloads]
    return struct.pack(f"<QII{len(sizes)}Q", number, 0, len(sizes), *sizes) + b"".join(payloads)


def bring_on(copy: Copy, answer: bytes) -> None:
    copy.bring_on(CODEC, 0, N, np.frombuffer(answer, "u1"))


def test_links_that_are_here_already_are_left_out() -> None:
    copy = Copy()
    bring_on(copy, whole(4))
    bring_on(copy, links(5, LINK))
    bring_on(copy, links(6, LINK, LINK))
    bring_on(copy, links(6))
    assert copy.number == 6
    expected = FIRST.copy()
    expected[[5, 6]] += 2, 4
    assert np.array_equal(copy.values, expected)


@pytest.mark.parametrize("answer", [
    whole(5)[:-1], whole(5) + b"\0", struct.pack("<QII", 5, 2, 0) + FIRST.tobytes(),
    struct.pack("<QII", 5, 1, 1) + FIRST.tobytes(), links(6, LINK), links(9), links(5, LINK)[:-1],
    links(5, LINK) + b"\0", links(5, LINK, LINK[:-1]), links(5, LINK, LINK[4:] + LINK[:4]),
    links(5, LINK, np.array([5, N], "<u4").tobytes() + LINK[8:]),
    links(13, *[b""] * 9), struct.pack("<QII", 5, 0, 1), struct.pack("<QIIQ", 5, 0, 1, 1 << 63),
], ids=lambda answer: answer.hex()[:40])  # fmt: skip
def test_answer_that_cannot_be_changes_nothing(answer: bytes) -> None:
    copy = Copy()
    bring_on(copy, whole(4))
    with pytest.raises(RemoteProtocolError):
        bring_on(copy, answer)
    assert copy.number == 4
    assert np.array_equal(copy.values, FIRST)


def test_changes_of_nothing_are_refused() -> None:
    with pytest.raises(RemoteProtocolError, match="changes of what is not here"):
        bring_on(Copy(), links(0))


@pytest.mark.parametrize("size", [0, 15, 16 + 8 * MAX_LINKS + 4 * N + 1])
def test_sizes_that_no_answer_has_are_refused_before_memory_is_taken(size: int) -> None:
    unit: Any = SimpleNamespace(copy=None, number=0)
    place = DeltaPlace(CODEC, 0.25, memoryview(bytearray(4 * N)))
    place.ask(unit, 0)
    with pytest.raises(RemoteProtocolError, match="another size"):
        place.landing(unit).room(size)


def test_a_request_of_higher_priority_does_not_overtake() -> None:
    unit: Any = SimpleNamespace(copy=None, number=0)
    place = DeltaPlace(CODEC, 0.25, memoryview(bytearray(4 * N)))
    assert [place.ask(unit, priority)[1] for priority in (3, 5, 1, 4)] == [3, 3, 1, 1]
    landings = [place.landing(unit) for _ in range(4)]
    for landing in landings:
        landing.over()
    assert place.ask(unit, 7)[1] == 7


@pytest.mark.parametrize("spec", WORDS, ids=str)
async def test_hypothesis_finds_no_answer_that_is_wrong(spec: dict[str, Any]) -> None:
    run_state_machine_as_test(  # type: ignore[no-untyped-call]
        lambda: BaseMachine(spec),
        settings=settings(max_examples=60 if spec is WORDS[0] else 15, stateful_step_count=40,
                          deadline=None))


@pytest.mark.parametrize("seed", range(40))
async def test_random_walk(seed: int) -> None:
    rng = random.Random(seed)
    machine = BaseMachine(WORDS[seed % len(WORDS)] if seed % 2 else WORDS[0])
    machine.start(rng.randint(1, 3))
    for _ in range(rng.randint(50, 300)):
        rank, what = rng.randrange(3), rng.random()
        if what < 0.35:
            kind = rng.choice([Kind.PUSH, Kind.PULL, Kind.PUSHPULL, Kind.PUSHPULL])
            machine.ask(rank, kind, rng.randrange(1 << 30))
        elif what < 0.65:
            machine.deliver(rank)
        elif what < 0.95:
            machine.receive(rank)
        elif what < 0.97:
            machine.give_up(rank)
        else:
            machine.cut(rank)
    machine.teardown()
    assert machine.seen
