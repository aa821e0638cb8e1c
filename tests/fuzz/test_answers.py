"""Answers that no server of ours would send, at a worker: an error of the peer, or plain values."""

from __future__ import annotations

import struct
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncps.errors import RemoteProtocolError
from asyncps.protocol.frames import Flag, Header, Kind
from asyncps.roles.changes import Copy, DeltaPlace
from asyncps.roles.landing import HalfPlace, Landing
from asyncps.tensor.codecs import DELTAS
from asyncps.tensor.pool import Pool
from asyncps_ext import wire
from asyncps_ext.seeds import seed_of
from tests.fuzz.payloads import SPECS, gradient, made, mutated, true_payload
from tests.support.fences import Fence

N = 100
UNIT = 3
FIRST = gradient(N, 1)
OUT, VALUES = Fence(4 * N), Fence(4 * N)
MORE: dict[str, dict[str, Any]] = {"topk": {"ratio": 0.2}, "threshold": {"threshold": 2}}
CHANGES = pytest.mark.parametrize(
    "spec", [{**s, **MORE.get(s["type"], {})} for s in SPECS if s["type"] in DELTAS], ids=str)
NUMBERS = st.integers(0, 12) | st.sampled_from([2**32, 2**63, 2**64 - 1])


@st.composite
def wrong_indices(draw: st.DrawFn, payload: bytes) -> bytes:
    """A payload of the same size, one of whose first words is another."""
    at = 4 * draw(st.integers(0, max(0, len(payload) // 8 - 1)))
    word = draw(st.sampled_from([0, N - 1, N, 2**31, 2**32 - 1]))
    return payload[:at] + word.to_bytes(4, "little")[: len(payload) - at] + payload[at + 4 :]


@st.composite
def answers(draw: st.DrawFn, spec: dict[str, Any], held: int) -> bytes:
    """The whole, or links, and what becomes of either on the way."""
    codec = made(spec)
    count = draw(st.integers(0, 4) | st.integers(0, 9))
    number = draw(st.just(min(held + count, 2**64 - 1)) | NUMBERS)
    if draw(st.integers(0, 4)) == 0:
        data = struct.pack("<QII", number, draw(st.integers(0, 2)), 0) + gradient(N, 2).tobytes()
    else:
        payloads = [true_payload(codec, gradient(N, 3 + i), seed_of(UNIT, number - count + 1 + i))
                    for i in range(count)]
        if payloads and draw(st.booleans()):
            at = draw(st.integers(0, count - 1))
            payloads[at] = draw(mutated(payloads[at]) | wrong_indices(payloads[at]))
        sizes = [len(payload) for payload in payloads]
        told = draw(st.just(count) | st.integers(0, 9))
        data = struct.pack(f"<QII{count}Q", number, 0, told, *sizes) + b"".join(payloads)
    return draw(mutated(data)) if draw(st.integers(0, 2)) == 0 else data


def header(flags: int, size: int) -> Header:
    packed = wire.pack_header(Kind.DATA, flags, 7, 1, 3, UNIT, 0, 1, 0, size, 0, 0)
    return Header._make(wire.parse_header(packed))


@CHANGES
@given(data=st.data())
def test_changed_answer_is_refused_and_nothing_touched_or_brings_the_copy_on(
    spec: dict[str, Any], data: st.DataObject
) -> None:
    unit: Any = SimpleNamespace(copy=None, number=UNIT)
    out = OUT.back(np.full(N, 9, np.float32))
    place = DeltaPlace(made(spec), 0.5, out.view(np.uint8).data)
    unit.copy = copy = Copy()
    if data.draw(st.booleans()):
        copy.number, copy.values = 4, VALUES.back(FIRST)
    for _ in range(2):
        before = (copy.number, None if copy.values is None else copy.values.copy(), out.copy())
        place.ask(unit, 0)
        landing = place.landing(unit)
        said = data.draw(answers(spec, copy.number) | st.binary(max_size=4 * N))
        flags = data.draw(st.sampled_from([Flag.DELTA, Flag.DELTA, Flag.DELTA, 0, Flag.F16]))
        try:
            room = landing.room(len(said))
            room[:] = said
            with np.errstate(all="ignore"):
                wrong = landing.settle(header(flags, len(said)))
        except RemoteProtocolError as refused:
            wrong = refused
        landing.over()
        if wrong is not None:
            assert isinstance(wrong, RemoteProtocolError)
            assert copy.number == before[0]
            np.testing.assert_array_equal(copy.values, before[1])
            np.testing.assert_array_equal(out, before[2])
        else:
            assert copy.values is not None
            assert out.tobytes() == copy.values.tobytes()
        assert OUT.is_whole(out)
        if copy.values is not None and VALUES.holds(copy.values):
            assert VALUES.is_whole(copy.values)


@pytest.mark.parametrize("flag", [Flag.F16, Flag.BF16])
@settings(max_examples=100)
@given(n=st.integers(1, N), data=st.data())
def test_any_answer_of_half_the_bytes_is_values_or_refused(
    flag: Flag, n: int, data: st.DataObject
) -> None:
    out = OUT.back(np.full(n, 9, np.float32))
    pool = Pool(0)
    landing = Landing(pool, 4 * n, HalfPlace(int(flag), out.view(np.uint8).data), None)
    said = data.draw(st.binary(min_size=2 * n, max_size=2 * n))
    landing.view[:] = said
    flags = data.draw(st.sampled_from([0, flag, Flag.F16 | Flag.BF16, Flag.F16, Flag.BF16]))
    with np.errstate(all="ignore"):
        wrong = landing.settle(header(flags, 2 * n))
    assert OUT.is_whole(out)
    assert (wrong is None) == (flags == flag)
    if wrong is not None:
        assert isinstance(wrong, RemoteProtocolError)
        assert (out == 9).all()
    else:
        bits = np.frombuffer(said, np.uint16)
        expected = (bits.view(np.float16).astype(np.float32) if flag == Flag.F16
                    else (bits.astype(np.uint32) << 16).view(np.float32))
        np.testing.assert_array_equal(out, expected)
