"""Encoded values of one call, in the shapes in which `Client.send` takes values.

A large key is sliced by the bytes of its chunks, a slab is taken whole or row by row; what comes
out is a `Payload` instead of a view of the caller's memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from asyncps.tensor.codecs import Codec
from asyncps.tensor.pool import Bytes


class Payload(NamedTuple):
    """What one frame brings of encoded values.

    Attributes:
        tail: What its table ends with: see docs/wire.md.
        data: The encoded bytes.
    """

    tail: bytes
    data: memoryview


class CodedKey:
    """A large key.

    Args:
        parts: The payload of each chunk, by the first byte of its values.
    """

    __slots__ = ("_parts",)

    def __init__(self, parts: dict[int, Payload]) -> None:
        self._parts = parts

    def __getitem__(self, values: slice) -> Payload:
        return self._parts[values.start]


class LazyKey:
    """A large key whose chunks are encoded when they are asked for, each once.

    Args:
        places: The first byte of each chunk's values, and its place.
        head: Of a chunk, by its place: see docs/wire.md.
        encode: Encodes a chunk, by its place.
    """

    __slots__ = ("_encode", "_head", "_places")

    def __init__(
        self, places: dict[int, int], head: Callable[[int], bytes],
        encode: Callable[[int], Bytes],
    ) -> None:
        self._places = places
        self._head = head
        self._encode = encode

    def __getitem__(self, values: slice) -> Payload:
        place = self._places[values.start]
        return Payload(self._head(place), self._encode(place).data)


Coded = CodedKey | LazyKey


class CodedRows:
    """Rows of a slab.

    Args:
        codec: Of all of them.
        counts: The elements of each.
        payloads: Of each, one behind the other in memory.
        room: That memory.
        seed: Of the frame; that of a row is made of it and of the row's number.
    """

    __slots__ = ("_codec", "_counts", "_payloads", "_room", "_seed")

    def __init__(
        self, codec: Codec, counts: Sequence[int], payloads: Sequence[Bytes], room: Bytes,
        seed: int,
    ) -> None:
        self._codec = codec
        self._counts = counts
        self._payloads = payloads
        self._room = room
        self._seed = seed

    @property
    def data(self) -> Payload:
        """All rows."""
        return Payload(self._tail(range(len(self._counts))), self._room.data)

    def part(self, places: Sequence[int]) -> Payload:
        """Return some of the rows, by their places."""
        joined = b"".join([self._payloads[place].data for place in places])
        return Payload(self._tail(places), memoryview(joined))

    def _tail(self, places: Sequence[int]) -> bytes:
        head = self._codec.head(sum(self._counts[place] for place in places), self._seed)
        if self._codec.is_fixed:
            return head
        sizes = [self._payloads[place].nbytes for place in places]
        return np.asarray(sizes, "<u4").tobytes() + head
