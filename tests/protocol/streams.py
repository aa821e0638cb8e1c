"""Frames as bytes, what a reader made of them, and Hypothesis strategies for both."""

from __future__ import annotations

import struct
import types
import typing
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import msgspec
from hypothesis import strategies as st

from asyncps import initializer
from asyncps.protocol import messages
from asyncps.protocol.frames import HEADER_SIZE, Header, Kind
from asyncps.protocol.reader import FrameReader
from asyncps_ext import wire

LAYOUT = struct.Struct("<IBBHIIQIiQQQQI")  # of a header without its crc
MAGIC = 0x31535041


@dataclass(frozen=True)
class Frame:
    """A frame and its parts."""

    header: Header
    table: bytes = b""
    payload: bytes = b""

    @property
    def data(self) -> bytes:
        return wire.pack_header(*self.header) + self.table + self.payload


def frame(
    kind: int = Kind.PUSH, table: bytes = b"", payload: bytes = b"", *, request: int = 1,
    flags: int = 0, unit: int = 0, priority: int = 0, clock: int = 1, acked: int = 0,
) -> Frame:
    """Make a frame whose lengths are those of its parts."""
    header = Header(
        kind, flags, 7, 1, request, unit, priority, clock, len(table), len(payload), acked, 0
    )
    return Frame(header, table, payload)


def raw_header(
    *, magic: int = MAGIC, version: int = 1, kind: int = 12, table_bytes: int = 0,
    payload_bytes: int = 0,
) -> bytes:
    """Pack a header by the published layout, whatever its values, with a right crc."""
    fields = (magic, version, kind, 0, 7, 1, 1, 0, 0, 1, table_bytes, payload_bytes, 0, 0)
    data = LAYOUT.pack(*fields)
    return data + struct.pack("<I", wire.crc32c(data))


@dataclass
class Recorder:
    """A sink that keeps all frames, in order, and drops the payloads of `drops`."""

    drops: frozenset[int] = frozenset()
    events: list[tuple[Any, ...]] = field(default_factory=list)
    tables: dict[int, bytes] = field(default_factory=dict)
    place: bytearray | None = None

    def begin(self, header: Header, table: memoryview) -> memoryview | None:
        assert header.payload_bytes > 0
        assert len(table) == header.table_bytes
        if header.request in self.drops:
            self.events.append(("dropped", header, bytes(table)))
            return None
        self.tables[header.request] = bytes(table)
        self.place = bytearray(header.payload_bytes)
        return memoryview(self.place)

    def finish(self, header: Header, table: memoryview) -> None:
        payload = b""
        kept = bytes(table)
        if header.payload_bytes:
            assert not kept
            assert self.place is not None
            payload, kept = bytes(self.place), self.tables.pop(header.request)
            self.place = None
        self.events.append(("frame", header, kept, payload))


def expected(frames: Iterable[Frame], drops: frozenset[int] = frozenset()) -> list[Any]:
    """What a `Recorder` keeps of these frames."""
    return [
        ("dropped", f.header, f.table) if f.payload and f.header.request in drops
        else ("frame", f.header, f.table, f.payload)
        for f in frames
    ]


def feed(reader: FrameReader, data: bytes, cuts: Iterable[int] = ()) -> None:
    """Give a stream to a reader as reads that end at `cuts`, and where its buffers end."""
    begin = 0
    for end in [*sorted({cut for cut in cuts if 0 < cut < len(data)}), len(data)]:
        while begin < end:
            place = reader.get_buffer()
            assert len(place) > 0
            count = min(len(place), end - begin)
            place[:count] = data[begin : begin + count]
            reader.buffer_updated(count)
            begin += count


def read(data: bytes, cuts: Iterable[int] = (), drops: frozenset[int] = frozenset()) -> list[Any]:
    """What a reader makes of a stream."""
    recorder = Recorder(drops)
    feed(FrameReader(recorder), data, cuts)
    return recorder.events


# Sizes around the edges: nothing, one byte, a header, the scratch, more than the scratch.
SIZES = st.one_of(
    st.integers(0, 200),
    st.sampled_from([
        65536 - HEADER_SIZE - 1, 65536 - HEADER_SIZE, 65536 - HEADER_SIZE + 1, 65536, 70000, 40000,
        33000,
    ]),
)


def _filled(size: int, seed: int) -> bytes:
    return bytes((seed + i) % 251 for i in range(min(size, 251))) * (size // 251 + 1)


@st.composite
def frames(draw: st.DrawFn) -> Frame:
    """A frame with or without table and payload, of any kind and any values that fit."""
    table_size, payload_size, seed = draw(SIZES), draw(SIZES), draw(st.integers(0, 250))
    return frame(
        draw(st.sampled_from(list(Kind))),
        _filled(table_size, seed)[:table_size],
        _filled(payload_size, seed + 100)[:payload_size],
        request=draw(st.integers(0, 2**64 - 1)),
        unit=draw(st.integers(0, 2**32 - 1)),
        priority=draw(st.integers(-(2**31), 2**31 - 1)),
        clock=draw(st.integers(0, 2**64 - 1)),
    )


STREAMS = st.lists(frames(), max_size=6, unique_by=lambda f: f.header.request)
CUTS = st.lists(st.integers(1, 200_000), max_size=40)

ALL_MESSAGES: tuple[type[messages.Message], ...] = typing.get_args(messages.AnyMessage)

_PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.text(max_size=8)
    | st.floats(allow_nan=False),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner,
                                                                max_size=3),
    max_leaves=6,
)
_SCALARS: dict[Any, st.SearchStrategy[Any]] = {
    int: st.integers(-(2**63), 2**64 - 1), str: st.text(max_size=12), bool: st.booleans(),
    type(None): st.none(), float: st.floats(allow_nan=False), Any: _PLAIN,
}


def values_of(kind: Any) -> st.SearchStrategy[Any]:
    """Values of an annotation that a message uses."""
    if kind in _SCALARS:
        return _SCALARS[kind]
    if kind in typing.get_args(initializer.Initializer):
        number = st.floats(0, 100)
        seeds = st.integers(0, 2**64 - 1)
        names = kind.__struct_fields__
        return st.builds(kind, **{name: seeds if name == "seed" else number for name in names})
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        hints = typing.get_type_hints(kind)
        return st.builds(kind, **{name: values_of(hints[name]) for name in kind.__struct_fields__})
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if origin in (types.UnionType, typing.Union):
        return st.one_of([values_of(arg) for arg in args])
    if origin is list:
        return st.lists(values_of(args[0]), max_size=3)
    if origin is tuple:
        return st.lists(values_of(args[0]), max_size=3).map(tuple)
    if origin is dict:
        return st.dictionaries(values_of(args[0]), values_of(args[1]), max_size=3)
    raise AssertionError(f"a field of a kind that this file does not know: {kind}")


MESSAGES = st.sampled_from(ALL_MESSAGES).flatmap(values_of)
