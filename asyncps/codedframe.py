"""What a rank sends of an array that all ranks sum, encoded: a head, and the bytes of its codec."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from asyncps.errors import CodecError, CollectiveMismatch
from asyncps.tensor import codecs, dtypes
from asyncps.tensor.codecs import Codec
from asyncps.tensor.pool import Bytes
from asyncps_ext.seeds import seed_of

# What a rank says of its array: it is here; its call is refused by all, since the array cannot be
# encoded; or all skip it.
OK, REFUSED, SKIPPED = range(3)
_STATES = (OK, REFUSED, SKIPPED)

# bytes in all, rank, state, operation, dtype, dimensions, factor; then the codec's, and the shape
_HEAD = struct.Struct("<QIBBBBd")
_MOST_TEXT = 400  # bytes of what is the matter


class Words(NamedTuple):
    """What must be the same at all ranks, beside the codec."""

    operation: int
    factor: float
    dtype: str
    shape: tuple[int, ...]


class Frame(NamedTuple):
    """What one rank has sent.

    Attributes:
        rank: Of the set that takes part.
        state: OK, REFUSED or SKIPPED.
        words: Of its call.
        codec: That decodes it.
        elements: That it says to have.
        seed: That it decodes with.
        payload: The encoded array; a text of a refused one.
    """

    rank: int
    state: int
    words: Words
    codec: Codec
    elements: int
    seed: int
    payload: Bytes

    @property
    def text(self) -> str:
        """What is the matter with a refused one."""
        return bytes(self.payload[:_MOST_TEXT]).decode(errors="replace")


def framed(
    rank: int, state: int, words: Words, head: bytes, payloads: Sequence[Bytes]
) -> Bytes:
    """Return the bytes of a frame; `payloads` lie in it one behind the other."""
    shape = struct.pack(f"<{len(words.shape)}Q", *words.shape)
    size = _HEAD.size + len(head) + len(shape) + sum(payload.nbytes for payload in payloads)
    begin = _HEAD.pack(size, rank, state, words.operation, dtypes.NAMES.index(words.dtype),
                       len(words.shape), words.factor)
    return np.concatenate([np.frombuffer(begin + head + shape, np.uint8), *payloads])


def parsed(raw: Bytes) -> list[Frame]:
    """Return the frames that lie behind each other.

    Raises:
        CodecError, RemoteProtocolError: They are none.
    """
    frames = []
    while raw.nbytes:
        frame, size = _parsed(raw)
        frames.append(frame)
        raw = raw[size:]
    return frames


def _parsed(raw: Bytes) -> tuple[Frame, int]:
    least = _HEAD.size + codecs.HEAD_BYTES
    if raw.nbytes < least:
        raise CodecError("an encoded array without a head", expected=f"{least} bytes or more",
                         got=raw.nbytes)
    size, rank, state, operation, dtype, axes, factor = _HEAD.unpack(raw[: _HEAD.size].data)
    begin = least + 8 * axes
    if not begin <= size <= raw.nbytes or state not in _STATES or dtype >= len(dtypes.NAMES):
        raise CodecError("an impossible head of an encoded array", rank=rank,
                         expected=f"{begin} to {raw.nbytes} bytes, a state of {_STATES}",
                         got=f"{size} bytes, state {state}, dtype {dtype}")
    codec, elements, seed = codecs.parse_head(bytes(raw[_HEAD.size : least]), codecs.BY_NUMBER)
    shape = struct.unpack(f"<{axes}Q", raw[least:begin].data)
    words = Words(operation, factor, dtypes.NAMES[dtype], shape)
    if codec.is_seeded:
        seed = seed_of(seed, 0)  # of the first piece, and there is one
    return Frame(rank, state, words, codec, elements, seed, raw[begin:size]), size


def common(frames: Sequence[Frame], name: str) -> None:
    """Refuse frames of different calls, or of one rank twice.

    Raises:
        CollectiveMismatch: It names two ranks and what differs.
        CodecError: A rank is there twice.
    """
    first = frames[0]
    if len({frame.rank for frame in frames}) < len(frames):
        raise CodecError("arrays of one rank twice", got=[frame.rank for frame in frames])
    for other in frames[1:]:
        found = [f"{word} {a} and {b}" for word, a, b in
                 zip(Words._fields, first.words, other.words, strict=True) if a != b]
        one, two = (_codec_of(frame) for frame in (first, other))
        if one != two:
            found.append(f"compression {one} and {two}")
        if found:
            raise CollectiveMismatch(f"the ranks make the sum {name!r} differently: ranks "
                                     f"{first.rank} and {other.rank}: {', '.join(found)}")


def _codec_of(frame: Frame) -> str:
    codec = frame.codec
    return f"{codec.name} ({codec.parameter:g}, {'f16' if codec.half else 'f32'})"
