"""What ranks tell each other of an array that they sum in few bytes: first a word, then the array.

The word says what the call is and whether the array can be encoded. So ranks that call differently,
and an array that is not finite, are known to all before any rank has encoded anything.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from enum import IntEnum
from typing import NamedTuple

import msgspec
import numpy as np

from asyncps.errors import (
    AsyncPSError,
    CodecError,
    CollectiveMismatch,
    ShapeMismatch,
    TensorError,
)
from asyncps.tensor.pool import Bytes

_SIZE = struct.Struct("<I")  # before a word: its bytes
_MOST_WORD = 64 << 10
_MOST_DRAWN = 1 << 62

# Before an encoded array: its bytes, the seed of its codec, and whether its rank has failed.
_HEAD = struct.Struct("<QQB")


class State(IntEnum):
    """What a rank says of its array."""

    THERE = 0
    WHOLE = 1  # there, but it must not be factored: all send theirs as they are
    SKIPPED = 2  # not finite, and the sum is skipped by all
    REFUSED = 3  # not finite
    ANOTHER = 4  # of another shape than the one before, of which something is kept
    FAILED = 5  # the rank could not look at it


class Word(msgspec.Struct, array_like=True, frozen=True):
    """What one rank says of a call.

    Attributes:
        rank: Of the job.
        state: A number of `State`.
        operation, factor, dtype, shape, compression: What must be the same at all ranks.
        text: What is the matter with the array.
        largest: No magnitude that it encodes is larger; of sums of f16.
        drawn: The number of its last push that something was drawn for; the next one's is behind
            those of all.
    """

    rank: int
    state: State
    operation: str
    factor: float
    dtype: str
    shape: tuple[int, ...]
    compression: str
    text: str = ""
    largest: float = 0.0
    drawn: int = 0


_SAME = ("operation", "factor", "dtype", "shape", "compression")


def word_bytes(word: Word) -> Bytes:
    """Return a word as it travels."""
    data = msgspec.msgpack.encode(word)
    return np.frombuffer(_SIZE.pack(len(data)) + data, np.uint8)


def agree(raw: Bytes, name: str, key: int | str, ranks: Sequence[int]) -> list[Word]:
    """Return what all say, in the order of ranks; they say the same, and there may be a sum.

    Args:
        raw: Their words, one behind the other.
        name: Of the call.
        key: Whose array it is, for messages.
        ranks: That may take part.

    Raises:
        AsyncPSError: A rank has failed.
        CollectiveMismatch: They call differently; it names two ranks and what differs.
        TensorError: An array is not finite.
        ShapeMismatch: An array is another than the one before.
        CodecError: These are no words.
    """
    words = _words(raw)
    found = [word.rank for word in words]
    if not found or found != sorted(set(found)) or not set(found) <= set(ranks):
        raise CodecError("words of ranks that take no part", expected=list(ranks), got=found)
    if not all(0 <= word.largest < math.inf for word in words):
        raise CodecError("a largest magnitude that is none", got=[word.largest for word in words])
    if not all(0 <= word.drawn < _MOST_DRAWN for word in words):
        raise CodecError("a number of a push that is none", expected=f"0 to {_MOST_DRAWN - 1}",
                         got=[word.drawn for word in words])
    first = words[0]
    for other in words[1:]:
        differing = [f"{what} {getattr(first, what)} and {getattr(other, what)}"
                     for what in _SAME if str(getattr(first, what)) != str(getattr(other, what))]
        if differing:
            raise CollectiveMismatch(f"the ranks make the sum {name!r} differently: ranks "
                                     f"{first.rank} and {other.rank}: {', '.join(differing)}")
    for word in words:
        if word.state == State.REFUSED:
            raise TensorError("a gradient of a key with a compression is not finite", key=key,
                              rank=word.rank, expected="no NaN and no infinity", got=word.text)
        if word.state == State.FAILED:
            raise AsyncPSError(f"rank {word.rank} has failed in the sum {name!r}: {word.text}")
        if word.state == State.ANOTHER:
            raise ShapeMismatch("another array than before, of which something is kept that was "
                                "not sent", key=key, rank=word.rank, expected=word.text,
                                got=f"{word.dtype} of shape {word.shape}")
    return words


def _words(raw: Bytes) -> list[Word]:
    words, data, begin = [], raw.tobytes(), 0
    while begin < len(data):
        middle = begin + _SIZE.size
        size = _SIZE.unpack(data[begin:middle])[0] if middle <= len(data) else _MOST_WORD
        begin = middle + size
        if size >= _MOST_WORD or begin > len(data):
            raise CodecError("a word of no length", expected=f"below {_MOST_WORD}", got=size)
        try:
            words.append(msgspec.msgpack.decode(data[middle:begin], type=Word))
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise CodecError(f"no word of a sum: {error}") from None
    return words


class Frame(NamedTuple):
    """One rank's encoded array.

    Attributes:
        seed: That it is decoded with.
        has_failed: The rank could not encode it.
        payload: The encoded array.
    """

    seed: int
    has_failed: bool
    payload: Bytes


def framed(seed: int, payloads: Sequence[Bytes] | None) -> Bytes:
    """Return a frame as it travels.

    Args:
        seed: Of the codec.
        payloads: They lie in it one behind the other; None: this rank has failed.
    """
    size = _HEAD.size + sum(payload.nbytes for payload in payloads or ())
    head = np.frombuffer(_HEAD.pack(size, seed, payloads is None), np.uint8)
    return np.concatenate([head, *(payloads or ())])


def frames_of(raw: Bytes, count: int) -> list[Frame]:
    """Return so many frames that lie behind each other.

    Raises:
        CodecError: They do not.
    """
    frames = []
    while raw.nbytes:
        size, seed, failed = (_HEAD.unpack(raw[: _HEAD.size].data)
                              if raw.nbytes >= _HEAD.size else (0, 0, 0))
        if not _HEAD.size <= size <= raw.nbytes:
            raise CodecError("an encoded array of no length",
                             expected=f"{_HEAD.size} to {raw.nbytes} bytes", got=size)
        frames.append(Frame(seed, bool(failed), raw[_HEAD.size : size]))
        raw = raw[size:]
    if len(frames) != count:
        raise CodecError("another number of encoded arrays than of ranks that have agreed",
                         expected=count, got=len(frames))
    return frames
