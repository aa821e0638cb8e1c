"""Bytes from a hostile or broken peer: an error of the peer, or something that is a frame.

`corpus/` keeps streams that matter, one a file, named by what they are: each is read whole, byte by
byte and in pieces, and is the seed of the mutations. Put every stream that once broke us there.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncps.errors import HandshakeError, RemoteProtocolError
from asyncps.protocol import messages
from asyncps.protocol.frames import HEADER_SIZE, Header, Kind
from asyncps.protocol.handshake import Handshake, Hello
from asyncps.protocol.reader import FrameReader
from tests.protocol.streams import CUTS, STREAMS, Frame, feed, raw_header

CORPUS = sorted((Path(__file__).parent / "corpus").glob("*.bin"))
SEEDS = [path.read_bytes() for path in CORPUS]


class Role:
    """A sink that does with frames what roles do: decodes control, takes small payloads."""

    def __init__(self) -> None:
        self.frames = 0
        self.most = 0

    def begin(self, header: Header, table: memoryview) -> memoryview | None:
        if header.kind == Kind.INIT:
            messages.decode(table)
        if header.payload_bytes > 1 << 20:
            return None
        self.most = max(self.most, header.payload_bytes)
        return memoryview(bytearray(header.payload_bytes))

    def finish(self, header: Header, table: memoryview) -> None:
        self.frames += 1
        if header.kind in (Kind.CONTROL, Kind.ERROR):
            messages.decode(table)


def survive(data: bytes, cuts: list[int] | range = range(0)) -> tuple[int, str]:
    """Read a stream; return how many frames came, and the error of the peer, if any."""
    role = Role()
    try:
        feed(FrameReader(role), data, cuts)
    except RemoteProtocolError as error:
        return role.frames, error.message
    return role.frames, ""


def test_there_is_a_corpus() -> None:
    assert len(CORPUS) >= 10


@pytest.mark.parametrize("path", CORPUS, ids=lambda path: path.stem)
def test_kept_stream_ends_alike_however_it_is_cut(path: Path) -> None:
    data = path.read_bytes()
    whole = survive(data)
    assert survive(data, range(len(data))) == whole
    assert survive(data, range(0, len(data), 61)) == whole
    assert bool(whole[1]) == path.stem.startswith("bad-")


@given(st.sampled_from(SEEDS), st.data(), CUTS)
def test_mutated_stream_gives_frames_or_an_error_of_the_peer(
    seed: bytes, data: st.DataObject, cuts: list[int]
) -> None:
    stream = bytearray(seed)
    for _ in range(data.draw(st.integers(0, 5))):
        position = data.draw(st.integers(0, len(stream) - 1))
        action = data.draw(st.sampled_from("sdi"))
        if action == "s":
            stream[position] = data.draw(st.integers(0, 255))
        elif action == "d" and len(stream) > 1:
            del stream[position]
        else:
            stream.insert(position, data.draw(st.integers(0, 255)))
    survive(bytes(stream), cuts)


@given(
    st.integers(0, 255), st.integers(0, 2**64 - 1) | st.integers(0, 300),
    st.integers(0, 2**64 - 1) | st.integers(0, 300), st.binary(max_size=400), CUTS,
)
def test_true_header_before_garbage_gives_frames_or_an_error_of_the_peer(
    kind: int, table_bytes: int, payload_bytes: int, rest: bytes, cuts: list[int]
) -> None:
    header = raw_header(kind=kind, table_bytes=table_bytes, payload_bytes=payload_bytes)
    survive(header + rest, cuts)


@given(STREAMS, st.binary(min_size=HEADER_SIZE, max_size=300), CUTS)
def test_garbage_behind_true_frames_changes_none_of_them(
    frames: list[Frame], garbage: bytes, cuts: list[int]
) -> None:
    class Counting(Role):
        def finish(self, header: Header, table: memoryview) -> None:
            self.frames += 1

        def begin(self, header: Header, table: memoryview) -> memoryview | None:
            return memoryview(bytearray(header.payload_bytes))

    role = Counting()
    with pytest.raises(RemoteProtocolError):
        feed(FrameReader(role), b"".join(f.data for f in frames) + garbage, cuts)
    assert role.frames == len(frames)


@given(st.data(), st.booleans())
def test_mutated_handshake_never_succeeds(data: st.DataObject, connector_breaks: bool) -> None:
    connector = Handshake(Hello("worker", 0, 1, "job", bytes(32)), "token", connector=True)
    acceptor = Handshake(Hello("server", 0, 1, "job", b"n" * 32), "token", connector=False)
    hello = bytearray(connector.start())
    try:
        if not connector_breaks:
            answer = bytearray(acceptor.receive(hello))
            answer[data.draw(st.integers(0, len(answer) - 1))] ^= data.draw(st.integers(1, 255))
            connector.receive(answer)
        else:
            proof = bytearray(connector.receive(acceptor.receive(hello)))
            proof[data.draw(st.integers(0, len(proof) - 1))] ^= data.draw(st.integers(1, 255))
            acceptor.receive(proof)
    except HandshakeError:
        pass
    assert not connector.done
    assert not acceptor.done
