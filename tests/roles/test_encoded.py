"""Encoded pushes at a server: counted as others are, added without being decoded, or refused."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from asyncps.errors import RemoteProtocolError, UnknownKey
from asyncps.protocol.frames import Flag, Header, Kind
from asyncps.tensor import codecs
from asyncps.tensor.codecs import Codec
from asyncps_ext import wire
from asyncps_ext.seeds import seed_of
from tests.support.ports import STORE, FakeServer, Frame, make_frame, read_answer

N = 300
ROWS = (5, 1, 40)
SPECS: list[dict[str, Any]] = [
    {"type": "f16"}, {"type": "bf16"}, {"type": "int8"}, {"type": "1bit"}, {"type": "2bit"},
    {"type": "onebit"}, {"type": "topk", "ratio": 0.2}, {"type": "topk", "values": "f16"},
    {"type": "threshold", "threshold": 1}, {"type": "threshold", "threshold": 9},
    {"type": "randomk", "ratio": 0.3}, {"type": "randomk", "values": "f16"},
]
every = pytest.mark.parametrize("spec", SPECS, ids=str)
both_orders = pytest.mark.parametrize("order", ["arrival", "rank"])


def made(spec: dict[str, Any]) -> Codec:
    return codecs.made(codecs.checked(spec))


def new(size: int) -> Any:
    return np.empty(size, np.uint8)


def frame(
    codec: Codec, values: Sequence[Any], *, kind: Kind = Kind.PUSHPULL, request: int = 2,
    unit: int = 0, clock: int = 1, rows: Sequence[int] | None = None, slab: bool = False,
    seed: int = 11, acked: int = 0,
) -> tuple[Frame, list[Any]]:
    """A frame of these values, a row each, and what a server makes of them."""
    numbers = range(len(values)) if rows is None else rows
    payloads, sums = [], []
    for row, value in zip(numbers, values, strict=True):
        own = seed_of(seed, row)
        (payload,) = codec.encode(value, None, [(0, value.size)], new, [own])
        out = np.zeros(value.size, "f4")
        codec.add(out, payload, own)
        payloads.append(payload)
        sums.append(out)
    table = b"" if rows is None else np.asarray(rows, "<u4").tobytes()
    if slab and not codec.is_fixed:
        table += np.asarray([p.nbytes for p in payloads], "<u4").tobytes()
    table += codec.head(sum(value.size for value in values), seed)
    flags = Flag.CODEC | (0 if rows is None else Flag.ROWS)
    data = b"".join(p.tobytes() for p in payloads)
    return raw(kind, flags, table, data, request, unit, clock, acked), sums


def raw(
    kind: int, flags: int, table: bytes, payload: bytes, request: int = 2, unit: int = 0,
    clock: int = 1, acked: int = 0,
) -> Frame:
    packed = wire.pack_header(kind, flags, 7, STORE, request, unit, 0, clock, len(table),
                              len(payload), acked, 0)
    return Header._make(wire.parse_header(packed)), table, payload


def answer(server: FakeServer, rank: int, dtype: str = "f4") -> Any:
    """The value or the error of the next answer; None of an ACK."""
    kind, _, body, error = read_answer(server.answers(rank).popleft())
    if kind == Kind.ACK:
        return None
    return error or np.frombuffer(body, dtype)


def served(order: str = "arrival", workers: int = 2, dtype: str = "float32") -> FakeServer:
    """Unit 0 is a chunk, unit 1 a slab."""
    size = np.dtype("f4" if dtype == "float32" else "u2").itemsize
    server = FakeServer(workers, order)
    server.init(0, dtype, [bytes(N * size)], slab=False)
    server.init(1, dtype, [bytes(count * size) for count in ROWS], slab=True)
    return server


def gradient(seed: int, size: int = N) -> Any:
    return np.random.default_rng(seed).normal(size=size).astype("f4")


@every
@both_orders
async def test_encoded_contributions_are_summed(spec: dict[str, Any], order: str) -> None:
    server = served(order, workers=3)
    total = np.zeros(N, "f4")
    for rank in range(3):
        told, (sent,) = frame(made(spec), [gradient(rank)], seed=rank)
        total += sent
        server.deliver(rank, told)
    for rank in range(3):
        assert np.array_equal(answer(server, rank), total)


async def test_dense_and_encoded_contributions_meet_in_one_round() -> None:
    for first in (0, 1):
        server = served()
        told, (sent,) = frame(made({"type": "2bit"}), [gradient(1)])
        dense = make_frame(Kind.PUSHPULL, 2, 0, 1, gradient(2).tobytes())
        server.deliver(first, told)
        server.deliver(1 - first, dense)
        assert np.array_equal(answer(server, 0), sent + gradient(2))


async def test_f16_values_are_summed_in_f32_and_rounded_once() -> None:
    server = served(dtype="float16")
    total = np.zeros(N, "f4")
    for rank in range(2):
        told, (sent,) = frame(made({"type": "bf16"}), [gradient(rank)])
        total += sent
        server.deliver(rank, told)
    assert np.array_equal(answer(server, 0, "f2"), total.astype("f2"))


@pytest.mark.parametrize("spec", [{"type": "2bit"}, {"type": "threshold", "threshold": 99}])
@pytest.mark.parametrize("kind", [Kind.PUSH, Kind.PUSHPULL])
async def test_one_that_comes_again_counts_once(spec: dict[str, Any], kind: Kind) -> None:
    server = served()
    told, (sent,) = frame(made(spec), [gradient(1)], kind=kind)
    again, _ = frame(made(spec), [gradient(1)], kind=kind, request=3)
    server.deliver(0, told)
    server.connect(0)
    server.deliver(0, again)
    server.deliver(0, again)
    server.deliver(1, make_frame(Kind.PUSHPULL, 2, 0, 1, gradient(2).tobytes()))
    assert np.array_equal(answer(server, 1), gradient(2) + sent)
    first = answer(server, 0)
    assert (first is None) == (kind == Kind.PUSH)


@pytest.mark.parametrize("seed", range(25))
@both_orders
async def test_rows_of_a_slab_together_or_apart(order: str, seed: int) -> None:
    """Whole, some rows or one, dense or in any codec; halfway, and by several workers at once."""
    chance = random.Random(seed)
    server = served(order, workers=3)
    request = 10
    for clock in range(1, 5):
        totals = [np.zeros(count, "f4") for count in ROWS]
        frames: list[tuple[int, Frame]] = []
        for rank in range(3):
            groups: list[list[int] | None] = [None]
            if chance.random() < 0.6:
                order_of = chance.sample(range(3), 3)
                cut = chance.randint(1, 2)
                groups = [order_of[:cut], order_of[cut:]]
            for rows in groups:
                request += 1
                named = range(3) if rows is None else rows
                values = [gradient(chance.randint(0, 1 << 30), ROWS[row]) for row in named]
                if chance.random() < 0.2:
                    told = make_frame(Kind.PUSH, request, 1, clock,
                                      b"".join(v.tobytes() for v in values), rows=rows)
                    sums: Sequence[Any] = values
                else:
                    told, sums = frame(
                        made(chance.choice(SPECS)), values, kind=Kind.PUSH, request=request,
                        unit=1, clock=clock, rows=rows, slab=True, seed=request)
                for row, found in zip(named, sums, strict=True):
                    totals[row] += found
                frames.append((rank, told))
        chance.shuffle(frames)
        begun = {}
        for rank, told in frames:
            if rank in begun:
                server.end(rank, begun.pop(rank))
            if server.begin(rank, told):
                begun[rank] = told  # its end comes after other workers' frames
        for rank, told in begun.items():
            server.end(rank, told)
        for rank in range(3):
            while server.answers(rank):
                assert answer(server, rank) is None
            server.deliver(rank, make_frame(Kind.PULL, 1000 + clock, 1, clock,
                                            size=4 * sum(ROWS), acked=clock))
            assert np.allclose(answer(server, rank), np.concatenate(totals), atol=1e-5)


async def test_slab_that_grows_while_an_encoded_push_is_on_its_way() -> None:
    server = served()
    told, sent = frame(made({"type": "topk"}), [gradient(i, n) for i, n in enumerate(ROWS)],
                       unit=1, slab=True)
    assert server.begin(1, told)
    server.init(1, "float32", [bytes(8)], slab=True, first_row=3)
    server.end(1, told)
    server.deliver(0, told)
    assert np.array_equal(answer(server, 1), 2 * np.concatenate(sent))


# -------------------------------------------------------------------------------- rude peers

HEAD = made({"type": "2bit"}).head(N, 0)
TWO = bytes(4 * -(-N // 16))
TOP = made({"type": "topk"}).head(N, 0)
CODED, BOTH = Flag.CODEC, Flag.CODEC | Flag.ROWS


def pairs(*indices: int) -> bytes:
    return np.array(indices, "<u4").tobytes() + np.ones(len(indices), "<f4").tobytes()


def words(*numbers: int) -> bytes:
    return np.array(numbers, "<u4").tobytes()


RUDE: dict[str, Frame] = {
    "no head": raw(Kind.PUSH, CODED, b"", TWO),
    "half a head": raw(Kind.PUSH, CODED, HEAD[:20], TWO),
    "bytes before the head": raw(Kind.PUSH, CODED, b"abc" + HEAD, TWO),
    "too many words": raw(Kind.PUSH, BOTH, bytes(4 * 8193) + HEAD, TWO),
    "unknown codec": raw(Kind.PUSH, CODED, bytes([1, 99]) + HEAD[2:], TWO),
    "no threshold": raw(Kind.PUSH, CODED, HEAD[:4] + bytes(4) + HEAD[8:], TWO),
    "too short": raw(Kind.PUSH, CODED, HEAD, TWO[:-4]),
    "too long": raw(Kind.PUSHPULL, CODED, HEAD, TWO + bytes(4)),
    "other elements": raw(Kind.PUSH, CODED, made({"type": "2bit"}).head(N - 1, 0), TWO),
    "elements of 2**63": raw(Kind.PUSH, CODED, made({"type": "2bit"}).head(1 << 63, 0), TWO),
    "sizes that none needs": raw(Kind.PUSH, CODED, words(8) + HEAD, TWO),
    "rows of a chunk": raw(Kind.PUSH, BOTH, words(0) + HEAD, TWO),
    "an assign": raw(Kind.ASSIGN, CODED, HEAD, TWO),
    "a pull": raw(Kind.PULL, CODED, HEAD, b""),
    "ids": raw(Kind.PUSH, CODED | Flag.IDS, HEAD, TWO),
    "indices twice": raw(Kind.PUSH, CODED, TOP, pairs(4, 4)),
    "indices that fall": raw(Kind.PUSH, CODED, TOP, pairs(9, 3)),
    "an index outside": raw(Kind.PUSHPULL, CODED, TOP, pairs(1, N)),
    "more than there are": raw(Kind.PUSH, CODED, TOP, bytes(8 * (N + 1))),
    "half an index": raw(Kind.PUSH, CODED, TOP, bytes(12)),
    "sizes of a chunk": raw(Kind.PUSH, CODED, words(8, 8) + TOP, bytes(16)),
    "no sizes of rows": raw(Kind.PUSH, CODED, made({"type": "topk"}).head(sum(ROWS), 0),
                            pairs(1), unit=1),
    "other sizes of rows": raw(Kind.PUSH, CODED, words(8, 0, 8) + made({"type": "topk"}).head(
        sum(ROWS), 0), pairs(1), unit=1),
    "an index of another row": raw(Kind.PUSH, CODED, words(8, 8, 0) + made(
        {"type": "topk"}).head(sum(ROWS), 0), pairs(4) + pairs(1), unit=1),
    "rows twice": raw(Kind.PUSH, BOTH, words(1, 1) + made({"type": "f16"}).head(2, 0), bytes(4),
                      unit=1),
    "rows that are not there": raw(Kind.PUSH, BOTH, words(7) + made({"type": "f16"}).head(2, 0),
                                   bytes(4), unit=1),
    "no rows": raw(Kind.PUSH, BOTH, made({"type": "f16"}).head(2, 0), bytes(4), unit=1),
    "no scale": raw(Kind.PUSH, CODED, made({"type": "onebit"}).head(N, 0),
                    np.float32(np.nan).tobytes() + bytes(4 * -(-N // 32))),
}  # fmt: skip


@pytest.mark.parametrize("name", RUDE)
async def test_rude_frame_is_refused_and_not_counted(name: str) -> None:
    server = served(workers=1)
    server.deliver(0, RUDE[name])
    error = answer(server, 0)
    assert isinstance(error, RemoteProtocolError)
    assert error.host == "here"
    assert not server.answers(0)
    for unit, values in ((0, [gradient(1)]), (1, [gradient(i, n) for i, n in enumerate(ROWS)])):
        told, sent = frame(made({"type": "2bit"}), values, unit=unit, slab=bool(unit), request=9)
        server.deliver(0, told)
        assert np.array_equal(answer(server, 0), np.concatenate(sent))


@pytest.mark.parametrize("name", [
    "too short", "other elements", "elements of 2**63", "unknown codec", "other sizes of rows",
    "rows twice",
])  # fmt: skip
async def test_what_cannot_fit_takes_no_memory(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = served(workers=1)
    monkeypatch.setattr(server.pool, "take", lambda size: pytest.fail(f"{size} bytes"))
    server.deliver(0, RUDE[name])
    assert isinstance(answer(server, 0), RemoteProtocolError)


async def test_integers_are_not_encoded_and_unknown_units_are_unknown() -> None:
    server = served(workers=1)
    server.init(2, "int32", [bytes(4 * N)], slab=False)
    server.deliver(0, raw(Kind.PUSH, CODED, HEAD, TWO, unit=2))
    error = answer(server, 0)
    assert isinstance(error, RemoteProtocolError)
    assert "f32, f16 or bf16" in str(error)
    server.deliver(0, raw(Kind.PUSH, CODED, HEAD, TWO, unit=77))
    assert isinstance(answer(server, 0), UnknownKey)
