"""One connection's reader: any split gives the same frames, and nothing is held beyond limits."""

from __future__ import annotations

import random
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncps.errors import RemoteProtocolError
from asyncps.protocol.frames import HEADER_SIZE, MAX_PAYLOAD_BYTES, MAX_TABLE_BYTES, Kind
from asyncps.protocol.reader import SCRATCH_BYTES, FrameReader
from tests.protocol.streams import (
    CUTS,
    STREAMS,
    Frame,
    Recorder,
    expected,
    feed,
    frame,
    raw_header,
    read,
)


def pattern(size: int, seed: int = 1) -> bytes:
    return random.Random(seed).randbytes(size)


@given(STREAMS, CUTS, st.booleans())
def test_any_split_of_a_stream_gives_the_same_frames(
    frames: list[Frame], cuts: list[int], drop_some: bool
) -> None:
    drops = frozenset(f.header.request for f in frames[::2]) if drop_some else frozenset()
    data = b"".join(f.data for f in frames)
    assert read(data, cuts, drops) == expected(frames, drops)


def test_byte_by_byte_gives_the_same_frames() -> None:
    frames = [
        frame(Kind.CONTROL, b"table"), frame(Kind.PUSH, b"", b"payload", request=2),
        frame(Kind.PUSH, b"rows", b"p", request=3), frame(Kind.HEARTBEAT, request=4),
    ]
    data = b"".join(f.data for f in frames)
    assert read(data, range(len(data))) == expected(frames)


@pytest.mark.parametrize("before", [0, 1, SCRATCH_BYTES // 2, SCRATCH_BYTES - HEADER_SIZE - 10])
@pytest.mark.parametrize(
    "table", [1, 500, SCRATCH_BYTES - HEADER_SIZE, SCRATCH_BYTES - HEADER_SIZE + 1, 300_000]
)
@pytest.mark.parametrize("read_size", [1000, 4099, 10**9])
def test_table_across_the_end_of_the_scratch_is_whole(
    before: int, table: int, read_size: int
) -> None:
    frames = [
        frame(Kind.CONTROL, pattern(before), request=1),
        frame(Kind.CONTROL, pattern(table, 2), request=2),
        frame(Kind.PUSH, pattern(table, 3), pattern(90_000, 4), request=3),
        frame(Kind.CONTROL, b"end", request=4),
    ]
    data = b"".join(f.data for f in frames)
    assert read(data, range(0, len(data), read_size)) == expected(frames)


def test_payload_lands_in_the_memory_that_the_sink_named() -> None:
    place = bytearray(b"-" * 100_000)

    class Named(Recorder):
        def begin(self, header, table):  # type: ignore[no-untyped-def]
            return memoryview(place)

        def finish(self, header, table):  # type: ignore[no-untyped-def]
            self.events.append(header.request)

    sink, payload = Named(), pattern(100_000)
    reader = FrameReader(sink)
    data = frame(payload=payload, request=5).data
    feed(reader, data[:1000])
    direct = reader.get_buffer()
    assert len(direct) == len(data) - 1000  # straight into its place, and no byte beyond
    feed(reader, data[1000:])
    assert sink.events == [5]
    assert place == payload


def test_memory_of_another_size_than_the_payload_is_our_own_defect() -> None:
    class Wrong(Recorder):
        def begin(self, header, table):  # type: ignore[no-untyped-def]
            return memoryview(bytearray(3))

    with pytest.raises(AssertionError):
        feed(FrameReader(Wrong()), frame(payload=b"four").data)


@pytest.mark.parametrize("payload", [10, SCRATCH_BYTES, 1_000_000])
@pytest.mark.parametrize("arrived", [0, 1, 7])
def test_abandoned_payload_is_dropped_and_the_next_frame_is_read(
    payload: int, arrived: int
) -> None:
    sink = Recorder()
    reader = FrameReader(sink)
    first = frame(Kind.DATA, b"", pattern(payload), request=1)
    later = [
        frame(Kind.CONTROL, b"next", request=2), frame(Kind.DATA, b"", b"and next", request=3)
    ]
    head = HEADER_SIZE + arrived
    feed(reader, first.data[:head])
    assert reader.current == first.header
    place = sink.place
    assert place is not None
    assert reader.abandon_payload()
    assert reader.current is None
    assert not reader.abandon_payload()
    feed(reader, first.data[head:] + b"".join(f.data for f in later))
    assert sink.events == expected(later)
    assert place[arrived:] == bytes(payload - arrived)  # nothing landed there any more


@pytest.mark.parametrize("table", [b"", b"rows"])
def test_missing_is_what_a_payload_lacks_and_nothing_else(table: bytes) -> None:
    reader = FrameReader(Recorder(drops=frozenset({3})))
    data = frame(Kind.PUSH, table, pattern(1000), request=1).data
    head = HEADER_SIZE + len(table)
    assert reader.missing == 0
    feed(reader, data[: head - 1])  # not known yet
    assert reader.missing == 0
    feed(reader, data[head - 1 : head])
    assert reader.missing == 1000
    feed(reader, data[head : head + 1])
    assert reader.missing == 999
    feed(reader, data[head + 1 : -1])
    assert reader.missing == 1
    feed(reader, data[-1:] + frame(payload=pattern(70_000), request=2).data[: HEADER_SIZE + 69_000])
    assert reader.missing == 1000
    assert reader.abandon_payload()
    assert reader.missing == 0
    feed(reader, bytes(1000) + frame(payload=pattern(50), request=3).data[:-7])  # dropped
    assert reader.missing == 0
    feed(reader, bytes(7) + frame(Kind.CONTROL, pattern(300_000), request=4).data[:100_000])
    assert reader.missing == 0  # of a table


def test_nothing_is_abandoned_between_frames() -> None:
    sink = Recorder()
    reader = FrameReader(sink)
    feed(reader, frame(payload=b"all", request=1).data)
    assert not reader.abandon_payload()
    feed(reader, frame(Kind.CONTROL, b"next", request=2).data[:20])
    assert not reader.abandon_payload()


@pytest.mark.parametrize(
    ("table_bytes", "payload_bytes", "what"),
    [
        (MAX_TABLE_BYTES + 1, 0, "table"), (2**63, 0, "table"), (2**64 - 1, 0, "table"),
        (0, MAX_PAYLOAD_BYTES + 1, "payload"), (0, 2**63, "payload"), (0, 2**64 - 1, "payload"),
        (MAX_TABLE_BYTES, 2**63, "payload"),
    ],
)
def test_lengths_beyond_the_limits_are_refused_before_anything_is_allocated(
    table_bytes: int, payload_bytes: int, what: str
) -> None:
    data = raw_header(table_bytes=table_bytes, payload_bytes=payload_bytes)
    sink = Recorder()
    reader = FrameReader(sink)
    tracemalloc.start()
    try:
        with pytest.raises(RemoteProtocolError, match=f"{what} too long"):
            feed(reader, data)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 50_000
    assert sink.events == []


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (raw_header(magic=0x32535041), "magic"), (raw_header(version=2), "version"),
        (raw_header()[:-1] + b"\0", "crc"), (b"GET / HTTP/1.1\r\n" * 5, "magic"),
        (bytes(HEADER_SIZE), "magic"), (b"\xff" * HEADER_SIZE, "magic"),
    ],
)
def test_what_is_no_header_is_refused(data: bytes, what: str) -> None:
    with pytest.raises(RemoteProtocolError, match=what):
        read(data)


def test_frames_before_garbage_are_given_out() -> None:
    sink = Recorder()
    good = frame(Kind.CONTROL, b"good")
    with pytest.raises(RemoteProtocolError):
        feed(FrameReader(sink), good.data + b"x" * 100)
    assert sink.events == expected([good])


@given(st.binary(max_size=300), CUTS)
def test_garbage_gives_an_error_of_the_peer_and_nothing_else(data: bytes, cuts: list[int]) -> None:
    try:
        assert read(data, cuts) == []
    except RemoteProtocolError:
        assert len(data) >= HEADER_SIZE
    else:
        assert len(data) < HEADER_SIZE
