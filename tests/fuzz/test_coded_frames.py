"""Encoded pushes and wishes for changes that no worker of ours would send, at a server.

Whatever comes, the server answers with an error of the peer or counts it, and a round that
somebody else has begun keeps what it had.
"""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncps.errors import RemoteProtocolError, TensorError
from asyncps.initializer import Zero
from asyncps.protocol import messages
from asyncps.protocol.frames import Flag, Header, Kind
from asyncps.protocol.messages import TableSpec
from asyncps.protocol.rows import pack
from asyncps.roles.bases import tail_of
from asyncps.tensor.codecs import BY_NUMBER, HEAD_BYTES, Codec, Stateful
from asyncps_ext import wire
from asyncps_ext.seeds import seed_of
from tests.fuzz.payloads import SEED, SPECS, gradient, made, mutated, true_payload
from tests.support.ports import STORE, FakeServer, Frame, make_frame, read_answer

N = 300
ROWS = (5, 1, 40)
SHAPE = (30, 6)
IDS, OTHER_IDS = (2, 3, 5, 8, 13, 21, 29), (2, 8, 9)  # what the two workers push of the table
CHUNK, SLAB, TABLE = 0, 1, 2
OTHER = {unit: gradient(size, 77) for unit, size in (
    (CHUNK, N), (SLAB, sum(ROWS)), (TABLE, len(OTHER_IDS) * SHAPE[1]))}
FLAGS = st.sampled_from([Flag.CODEC, Flag.ROWS, Flag.DELTA, Flag.F16, Flag.BF16, Flag.IDS])
every = pytest.mark.parametrize("spec", SPECS, ids=str)


def served() -> FakeServer:
    """A store of two workers, of whom the second has begun the round of each unit."""
    server = FakeServer(2, "arrival")
    server.init(CHUNK, "float32", [bytes(4 * N)], slab=False)
    server.init(SLAB, "float32", [bytes(4 * count) for count in ROWS], slab=True)
    table = messages.encode(TableSpec("t", "float32", SHAPE, Zero(), 0, SHAPE[0]))
    server.deliver(0, make_frame(Kind.INIT, 1, TABLE, 0, table=table))
    for unit in (CHUNK, SLAB):
        server.deliver(1, make_frame(Kind.PUSHPULL, 2, unit, 1, OTHER[unit].tobytes()))
    rows = named(OTHER_IDS) + OTHER[TABLE].tobytes()
    server.deliver(1, make_frame(Kind.PUSH, 2, TABLE, 1, rows))
    for rank in (0, 1):  # what is pushed of a table is answered before its round is complete
        assert read_answer(server.answers(rank).popleft())[0] == Kind.ACK
        assert not server.answers(rank)
    return server


def named(ids: tuple[int, ...]) -> bytes:
    return pack(np.array(ids, np.int64), SHAPE[0])


def coded(codec: Codec, unit: int) -> tuple[int, bytes, bytes]:
    """Flags, table and payload of a true frame."""
    if unit == CHUNK:
        payload = true_payload(codec, gradient(N, 1), seed_of(SEED, 0))
        return int(Flag.CODEC), codec.head(N, SEED), payload
    if unit == TABLE:
        size = len(IDS) * SHAPE[1]
        payload = true_payload(codec, gradient(size, 3), seed_of(SEED, 0))
        return int(Flag.CODEC), codec.head(size, SEED), named(IDS) + payload
    parts = [true_payload(codec, gradient(count, 2), seed_of(SEED, row))
             for row, count in enumerate(ROWS)]
    sizes = b"" if codec.is_fixed else struct.pack(f"<{len(ROWS)}I", *map(len, parts))
    return int(Flag.CODEC), sizes + codec.head(sum(ROWS), SEED), b"".join(parts)


def framed(kind: int, flags: int, unit: int, table: bytes, payload: bytes) -> Frame:
    packed = wire.pack_header(kind, flags, 7, STORE, 3, unit, 0, 1, len(table), len(payload), 0,
                              0 if payload else 4 * OTHER[unit].size)
    return Header._make(wire.parse_header(packed)), table, payload


def survive(frame: Frame, unit: int) -> bool:
    """Deliver a frame, and after a refusal a plain one; tell whether it was accepted."""
    server = served()
    server.deliver(0, frame)
    answers = server.answers(0)
    refused = bool(answers) and read_answer(answers[0])[0] == Kind.ERROR
    if not refused:
        # Of a slab it may have been some of the rows; another's round is complete.
        kept: Any = server.keeper.units[unit]
        assert unit == SLAB or kept.current.clock == 1
        assert unit != CHUNK or len(server.answers(1)) == 1
        return True
    error = read_answer(answers.popleft())[3]
    assert isinstance(error, RemoteProtocolError) or (
        unit == TABLE and isinstance(error, TensorError))
    assert not answers
    if unit == TABLE:
        check_table(server)
        return False
    mine = gradient(OTHER[unit].size, 5)
    server.deliver(0, make_frame(Kind.PUSHPULL, 4, unit, 1, mine.tobytes()))
    for rank in (0, 1):
        sums = [read_answer(parts) for parts in server.answers(rank)]
        assert [told[2] for told in sums if told[0] == Kind.DATA] == [
            (OTHER[unit] + mine).tobytes()]
    return False


def check_table(server: FakeServer) -> None:
    """Of a table too the round is that of the other and a plain push."""
    mine = gradient(len(IDS) * SHAPE[1], 5)
    server.deliver(0, make_frame(Kind.PUSH, 4, TABLE, 1, named(IDS) + mine.tobytes()))
    assert read_answer(server.answers(0).popleft())[0] == Kind.ACK
    expected = np.zeros(SHAPE, np.float32)
    expected[list(OTHER_IDS)] += OTHER[TABLE].reshape(-1, SHAPE[1])
    expected[list(IDS)] += mine.reshape(-1, SHAPE[1])
    found = np.empty(expected.size, np.float32)
    unit: Any = server.keeper.units[TABLE]
    unit.table.gather(np.arange(SHAPE[0]), found)
    assert found.tobytes() == expected.tobytes()


@every
async def test_changed_frame_is_refused_or_counted(spec: dict[str, Any]) -> None:
    codec = made(spec)
    for unit, kind in ((CHUNK, Kind.PUSHPULL), (SLAB, Kind.PUSHPULL), (TABLE, Kind.PUSH)):
        accepted = survive(framed(kind, *with_unit(coded(codec, unit), unit)), unit)
        assert accepted is not (unit == TABLE and isinstance(codec, Stateful))

    @settings(max_examples=90)
    @given(st.data(), st.sampled_from([CHUNK, SLAB, TABLE]))
    def check(data: st.DataObject, unit: int) -> None:
        flags, table, payload = coded(codec, unit)
        what = data.draw(st.sampled_from(["table", "payload", "both", "flags"]))
        if what in ("table", "both"):
            table = data.draw(mutated(table))
        if what in ("payload", "both"):
            payload = data.draw(mutated(payload) if payload else st.binary(max_size=9))
        if what == "flags":
            flags ^= data.draw(FLAGS)
        kind = data.draw(st.sampled_from([Kind.PUSH, Kind.PUSHPULL]))
        with np.errstate(all="ignore"):
            survive(framed(kind, flags, unit, table, payload), unit)

    check()


def with_unit(told: tuple[int, bytes, bytes], unit: int) -> tuple[int, int, bytes, bytes]:
    flags, table, payload = told
    return flags, unit, table, payload


async def test_any_table_and_payload_are_refused_or_counted() -> None:

    @settings(max_examples=300)
    @given(
        st.sampled_from([CHUNK, SLAB, TABLE]), st.sampled_from([Kind.PUSHPULL, Kind.PUSH]),
        st.lists(FLAGS, max_size=2), st.sampled_from(sorted(BY_NUMBER)),
        st.sampled_from([1, N - 1, N, sum(ROWS), len(IDS) * SHAPE[1], 2**63]),
        st.binary(max_size=24).map(lambda words: words[: len(words) // 4 * 4]),
        st.integers(0, 2 * N).flatmap(lambda size: st.binary(min_size=size, max_size=size)),
    )
    def check(
        unit: int, kind: Kind, flags: list[Flag], number: int, elements: int, words: bytes,
        payload: bytes,
    ) -> None:
        head = struct.pack("<BBBBfQQ", 1, number, 0, 0, 0.5 if number == 5 else 0.0, elements, 3)
        assert len(head) == HEAD_BYTES
        told = int(Flag.CODEC)
        for flag in flags:
            told ^= flag
        if unit == TABLE and len(payload) % 2:
            payload = named(IDS) + payload
        with np.errstate(all="ignore"):
            survive(framed(kind, told, unit, words + head, payload), unit)

    check()


async def test_changed_wish_for_changes_is_refused_or_answered() -> None:

    @settings(max_examples=300)
    @given(st.data(), st.sampled_from(SPECS), st.sampled_from([CHUNK, CHUNK, SLAB]))
    def check(data: st.DataObject, spec: dict[str, Any], unit: int) -> None:
        codec = made(spec)
        amount = data.draw(st.sampled_from([0.0, 0.5]))  # some codecs have none
        tail = tail_of(codec, N, amount, data.draw(st.integers(0, 2**64 - 1)))
        if data.draw(st.booleans()):
            tail = data.draw(mutated(tail))
        dense = gradient(OTHER[unit].size, 3).tobytes()
        flags = int(Flag.DELTA) | data.draw(st.sampled_from([0, 0, Flag.F16, Flag.ROWS]))
        with np.errstate(all="ignore"):
            survive(framed(Kind.PUSHPULL, flags, unit, tail, dense), unit)

    check()
