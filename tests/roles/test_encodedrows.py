"""Encoded rows at a server: counted as others are, added in f32, or refused and not counted."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncps.errors import AsyncPSError, RemoteProtocolError, TensorError
from asyncps.initializer import Zero
from asyncps.protocol import messages, rows
from asyncps.protocol.frames import MAX_DECODED_BYTES, Flag, Kind
from asyncps.protocol.messages import TableSpec
from asyncps.tensor.codecs import Skip
from asyncps_ext.seeds import seed_of
from tests.roles.test_encoded import SPECS as ALL_SPECS
from tests.roles.test_encoded import made, new, raw
from tests.support.ports import FakeServer, Frame, make_frame, read_answer

ROWS, FIRST, STOP, WIDTH = 100, 20, 60, 3
IDS = (21, 22, 40, 59)
SPECS = [spec for spec in ALL_SPECS if spec["type"] != "dgc"]
SHAPE = (STOP - FIRST, WIDTH)
DTYPES = {"float32": "f4", "float16": "f2"}
every = pytest.mark.parametrize("spec", SPECS, ids=str)


def gradient(seed: int, many: int = len(IDS)) -> Any:
    return np.random.default_rng(seed).normal(size=many * WIDTH).astype("f4")


def coded(
    spec: dict[str, Any], ids: Any, values: Any, *, request: int = 2, clock: int = 1, seed: int = 5
) -> tuple[Frame, Any]:
    """A push of these rows, and the table that it comes to."""
    codec, which = made(spec), np.array(ids, np.int64)
    own = seed_of(seed, 0)
    (payload,) = codec.encode(values, None, [(0, values.size)], new, [own])
    out = np.empty(values.size, "f4")
    codec.decode(out, payload, own)
    table = np.zeros(SHAPE, "f4")
    table[which - FIRST] = out.reshape(-1, WIDTH)
    data = rows.pack(which, ROWS) + payload.tobytes()
    return raw(Kind.PUSH, Flag.CODEC, codec.head(values.size, seed), data, request,
               clock=clock), table


def plain(ids: Any, values: Any, dtype: str = "f4", request: int = 2) -> tuple[Frame, Any]:
    which = np.array(ids, np.int64)
    table = np.zeros(SHAPE, "f4")
    table[which - FIRST] = values.reshape(-1, WIDTH)
    data = rows.pack(which, ROWS) + values.astype(dtype).tobytes()
    return make_frame(Kind.PUSH, request, 0, 1, data), table


def served(
    order: str = "arrival", workers: int = 2, dtype: str = "float32", many: int = ROWS
) -> FakeServer:
    server = FakeServer(workers, order)
    spec = TableSpec("t", dtype, (many, WIDTH), Zero(), FIRST, min(many, STOP))
    server.deliver(0, make_frame(Kind.INIT, 1, 0, 0, table=messages.encode(spec)))
    assert read_answer(server.answers(0).popleft())[0] == Kind.ACK
    return server


def table_of(server: FakeServer, dtype: str = "f4") -> Any:
    unit: Any = server.keeper.units[0]
    found = np.empty(SHAPE[0] * WIDTH, unit.table.dtype.bits)
    unit.table.gather(np.arange(FIRST, STOP), found)
    return found.view(dtype).reshape(SHAPE)


def refusal(server: FakeServer, rank: int = 0) -> AsyncPSError | None:
    (parts,) = server.answers(rank)
    server.answers(rank).clear()
    error: AsyncPSError | None = read_answer(parts)[3]
    return error


@every
@pytest.mark.parametrize("order", ["arrival", "rank"])
@pytest.mark.parametrize("dtype", DTYPES)
async def test_encoded_rows_are_summed_in_f32(
    spec: dict[str, Any], order: str, dtype: str
) -> None:
    """The same rows, others, none and some that are as they are, in one round."""
    server = served(order, workers=5, dtype=dtype)
    small = DTYPES[dtype]
    frames = [
        coded(spec, IDS, gradient(0)), coded(spec, IDS, gradient(1)),
        coded(spec, (20, 40, 41), gradient(2, 3)),
        plain(IDS, gradient(3).astype(small), small),
        plain((), gradient(0, 0), small),
    ]
    for rank in (4, 1, 0, 3, 2):
        server.deliver(rank, frames[rank][0])
        assert refusal(server, rank) is None
    # Contributions are added in their order, in f32, and rounded once.
    expected = sum(table for _, table in frames)
    limit = 1e-6 if dtype == "float32" else 2e-3
    assert np.allclose(table_of(server, small), expected, rtol=limit, atol=limit)


@every
async def test_one_that_comes_again_counts_once(spec: dict[str, Any]) -> None:
    server = served()
    told, table = coded(spec, IDS, gradient(1))
    again, _ = coded(spec, IDS, gradient(1), request=3)
    server.deliver(0, told)
    server.connect(0)
    server.deliver(0, again)
    server.deliver(0, again)
    other, more = coded(spec, IDS, gradient(2))
    server.deliver(1, other)
    assert np.allclose(table_of(server), table + more, atol=1e-6)


async def test_a_skip_ends_the_round_and_changes_nothing() -> None:
    for last in (0, 1):
        server = served()
        first, table = coded({"type": "f16"}, IDS, gradient(1))
        for rank in (0, 1):
            server.deliver(rank, first)
        assert np.allclose(table_of(server), 2 * table)
        skip = raw(Kind.PUSH, Flag.CODEC, Skip().head(0, 0), rows.pack(np.empty(0, np.int64), 1),
                   request=3, clock=2)
        frames = [coded({"type": "f16"}, IDS, gradient(2), request=3, clock=2)[0], skip]
        server.deliver(last, frames[last])
        server.deliver(1 - last, frames[1 - last])
        assert np.allclose(table_of(server), 2 * table)
        assert server.keeper.units[0].current.clock == 2


NAMES = rows.pack(np.array(IDS, np.int64), ROWS)
N = WIDTH * len(IDS)
TWO = made({"type": "2bit"})
TOP = made({"type": "topk"})
BITS = bytes(4)
RUNS = rows.pack(np.arange(20, 24), ROWS)


def ids_of(*ids: int) -> bytes:
    packed = np.array([4, 0, len(ids)], "<i8").tobytes() + np.array(ids, "<u4").tobytes()
    return packed + bytes(-len(packed) % 8)


def push(table: bytes, payload: bytes, kind: int = Kind.PUSH, flags: int = Flag.CODEC) -> Frame:
    return raw(kind, flags, table, payload)


RUDE: dict[str, Frame] = {
    "no head": push(b"", NAMES + BITS),
    "half a head": push(TWO.head(N, 0)[:20], NAMES + BITS),
    "words before the head": push(bytes(4) + TWO.head(N, 0), NAMES + BITS),
    "a size before the head": push(bytes(4) + TOP.head(N, 0), NAMES),
    "an assign": push(TWO.head(N, 0), NAMES + BITS, kind=Kind.ASSIGN),
    "a pushpull": push(TWO.head(N, 0), NAMES + BITS, kind=Kind.PUSHPULL),
    "rows of a slab": push(bytes(4) + TWO.head(N, 0), NAMES + BITS, flags=Flag.CODEC | Flag.ROWS),
    "ids in the table": push(TWO.head(N, 0), NAMES + BITS, flags=Flag.CODEC | Flag.IDS),
    "halves": push(TWO.head(N, 0), NAMES + BITS, flags=Flag.CODEC | Flag.F16),
    "half a row": push(TWO.head(N - 1, 0), NAMES + BITS),
    "more rows than there are": push(TWO.head(3 * 41, 0), RUNS + bytes(4 * 8)),
    "elements of 2**63": push(TWO.head(3 << 61, 0), NAMES + BITS),
    "elements without bytes": push(TWO.head(N, 0), NAMES),
    "nothing": push(TOP.head(0, 0), b""),
    "a head of names that is cut off": push(TOP.head(0, 0), bytes(16)),
    "too short": push(TWO.head(N, 0), RUNS[:20]),
    "too long": push(TWO.head(N, 0), NAMES + bytes(40)),
    "one byte more": push(TWO.head(N, 0), NAMES + BITS + bytes(1)),
    "other rows than elements": push(TWO.head(N + 3, 0), NAMES + BITS),
    "names that are too many": push(TOP.head(N, 0), np.array([4, 0, 1 << 40], "<i8").tobytes()),
    "neighbours without end": push(TOP.head(N, 0), np.array([0, 20, 1 << 60], "<i8").tobytes()),
    "rows twice": push(TWO.head(6, 0), ids_of(30, 30) + BITS),
    "rows that fall": push(TWO.head(6, 0), ids_of(31, 30) + BITS),
    "rows of another server": push(TWO.head(6, 0), ids_of(59, 60) + BITS),
    "rows before the first": push(TWO.head(6, 0), ids_of(19, 30) + BITS),
    "indices twice": push(TOP.head(N, 0), NAMES + np.array([3, 3, 0, 0], "<u4").tobytes()),
    "an index outside": push(TOP.head(N, 0), NAMES + np.array([N, 0], "<u4").tobytes()),
    "half an index": push(TOP.head(N, 0), NAMES + bytes(12)),
    "no scale": push(made({"type": "onebit"}).head(N, 0),
                     NAMES + np.float32(np.inf).tobytes() + BITS),
    "a codec of dense keys": push(made({"type": "dgc"}).head(N, 0), NAMES),
    "a skip with bytes": push(Skip().head(N, 0), NAMES + bytes(8)),
}  # fmt: skip


@pytest.mark.parametrize("name", RUDE)
async def test_rude_frame_is_refused_and_not_counted(name: str) -> None:
    server = served(workers=1)
    server.deliver(0, RUDE[name])
    error = refusal(server)
    assert isinstance(error, TensorError if name.startswith("rows ") and name != "rows of a slab"
                      else RemoteProtocolError)
    assert error.host == "here"
    told, table = coded({"type": "2bit"}, IDS, gradient(1), request=9)
    server.deliver(0, told)
    assert refusal(server) is None
    assert np.array_equal(table_of(server), table)


@pytest.mark.parametrize("name", [
    "half a row", "more rows than there are", "elements of 2**63",
    "a head of names that is cut off", "too short", "too long",
])  # fmt: skip
async def test_what_cannot_fit_takes_no_memory(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = served(workers=1)
    monkeypatch.setattr(server.pool, "take", lambda size: pytest.fail(f"{size} bytes"))
    server.deliver(0, RUDE[name])
    assert isinstance(refusal(server), RemoteProtocolError)


async def test_few_bytes_do_not_stand_for_more_rows_than_a_push_can_bring() -> None:
    server = FakeServer(1)
    many = 1 << 40
    spec = TableSpec("t", "float32", (many, WIDTH), Zero(), 0, many)
    server.deliver(0, make_frame(Kind.INIT, 1, 0, 0, table=messages.encode(spec)))
    server.answers(0).clear()
    names = np.array([0, 0, 1 << 36], "<i8").tobytes()
    server.deliver(0, push(TOP.head(3 << 36, 0), names))
    assert isinstance(refusal(server), RemoteProtocolError)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("spec", [
    {"type": "topk"}, {"type": "threshold", "threshold": 1}, {"type": "randomk"},
], ids=str)
async def test_few_bytes_stand_for_at_most_64_mib_of_values(
    spec: dict[str, Any], dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, width, codec = FakeServer(1), 1 << 20, made(spec)
    most = (64 << 20) // (4 * width)
    assert MAX_DECODED_BYTES == 64 << 20  # as docs/wire.md says
    table = TableSpec("t", dtype, (most + 1, width), Zero(), 0, most + 1)
    server.deliver(0, make_frame(Kind.INIT, 1, 0, 0, table=messages.encode(table)))
    server.answers(0).clear()
    value = np.array([3], "<f4").tobytes()
    data = value if codec.is_seeded else np.array([0], "<u4").tobytes() + value

    def of(number: int) -> Frame:
        named = np.array([0, 0, number], "<i8").tobytes()
        return push(codec.head(number * width, 5), named + data)

    server.deliver(0, of(most))
    assert refusal(server) is None
    monkeypatch.setattr(server.pool, "take", lambda size: pytest.fail(f"{size} bytes"))
    server.deliver(0, of(most + 1))
    error = refusal(server)
    assert isinstance(error, RemoteProtocolError)
    assert f"at most {64 << 20} bytes" in str(error)
    assert f"{(64 << 20) + 4 * width}" in str(error)
    assert server.keeper.units[0].current.clock == 1


@pytest.mark.parametrize("dtype", ["float64", "int32"])
async def test_rows_that_are_not_summed_in_f32_are_not_encoded(dtype: str) -> None:
    server = served(workers=1, dtype=dtype)
    server.deliver(0, coded({"type": "2bit"}, IDS, gradient(1))[0])
    error = refusal(server)
    assert isinstance(error, RemoteProtocolError)
    assert "f32, f16 or bf16" in str(error)


@given(st.sampled_from(SPECS), st.data())
async def test_mutated_frames_are_counted_or_refused_with_a_typed_error(
    spec: dict[str, Any], data: st.DataObject
) -> None:
    server = served(workers=1)
    frame, _ = coded(spec, IDS, gradient(1))
    parts = [bytearray(frame[1]), bytearray(frame[2])]
    for _ in range(data.draw(st.integers(1, 4))):
        part = parts[data.draw(st.integers(0, 1))]
        at = data.draw(st.integers(0, max(0, len(part) - 1)))
        what = data.draw(st.sampled_from("sdix"))
        if what == "s" and part:
            part[at] = data.draw(st.integers(0, 255))
        elif what == "d" and part:
            del part[at]
        elif what == "i":
            part.insert(at, data.draw(st.integers(0, 255)))
        elif len(part) >= at + 8:
            part[at : at + 8] = data.draw(st.integers(0, (1 << 64) - 1)).to_bytes(8, "little")
    server.deliver(0, push(bytes(parts[0]), bytes(parts[1])))
    error = refusal(server)
    assert error is None or isinstance(error, (RemoteProtocolError, TensorError)), error
    clock = server.keeper.units[0].current.clock
    assert clock == (error is None)
    told, table = coded({"type": "2bit"}, IDS, gradient(2), request=9, clock=clock + 1)
    server.deliver(0, told)
    assert refusal(server) is None
    assert np.array_equal(table_of(server), table)


async def test_bytes_of_a_push_are_those_of_the_wire_page() -> None:
    """docs/wire.md: 2bit of eight values in rows 2 and 9 of a table of ten."""
    server = FakeServer(1)
    spec = TableSpec("t", "float32", (10, 4), Zero(), 0, 10)
    server.deliver(0, make_frame(Kind.INIT, 1, 0, 0, table=messages.encode(spec)))
    server.answers(0).clear()
    table = bytes.fromhex("01050000 0000003f 0800000000000000 0000000000000000")
    payload = bytes.fromhex(
        "0400000000000000 0000000000000000 0200000000000000 02000000 09000000 e3830000")
    server.deliver(0, push(table, payload))
    assert refusal(server) is None
    unit: Any = server.keeper.units[0]
    found = np.empty(40, "f4")
    unit.table.gather(np.arange(10), found)
    expected = np.zeros((10, 4), "f4")
    expected[2], expected[9] = (.5, -.5, 0, .5), (-.5, 0, 0, .5)
    assert np.array_equal(found.reshape(10, 4), expected)
