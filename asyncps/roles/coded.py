"""Encoded values of one call, in the shapes in which `Client.send` takes values.

A large key is sliced by the bytes of its chunks, a slab is taken whole or row by row; what comes
out is a `Payload` instead of a view of the caller's memory.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from collections.abc import Set as AbstractSet
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from asyncps.protocol.messages import Piece
from asyncps.state.requests import Step
from asyncps.tensor.codecs import Codec, Skip
from asyncps.tensor.pool import Bytes

if TYPE_CHECKING:
    from asyncps.roles.plan import Plan


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


def skipped_key(pieces: Iterable[Piece], itemsize: int) -> CodedKey:
    """Return a large key whose chunks all say that there is no gradient."""
    return CodedKey({piece.start: Payload(Skip().head(piece.size // itemsize, 0), memoryview(b""))
                     for piece in pieces})


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


def sending_order(
    plan: Plan, values: Sequence[memoryview | Coded] | None
) -> Iterable[tuple[bool, int]]:
    """Return whether each is a slab, and its place among the plan's slabs or large keys.

    What is still to be encoded goes last, the largest last of all: servers have work meanwhile.
    """
    large, slabs = plan.large, [(True, place) for place in range(len(plan.slabs))]
    lazy = [type(value) is LazyKey for value in values] if plan.coded and values else ()
    if not any(lazy):
        return [*((False, place) for place in range(len(large))), *slabs]
    order = sorted(range(len(large)), key=lambda place: (lazy[place], large[place][1].nbytes))
    return [*slabs, *((False, place) for place in order)]


class SlabRows:
    """Rows of a slab that do not all travel in one frame as they are.

    Args:
        counts: The elements of each.
        kinds: Those of one kind may share a frame. None: such a row has no gradient.
    """

    __slots__ = ("_counts", "_kinds")

    def __init__(self, counts: Sequence[int], kinds: Sequence[int | None]) -> None:
        self._counts = counts
        self._kinds = kinds

    def apart(self, steps: list[Step], rows: Sequence[int]) -> list[Step]:
        """Return steps of which each is of rows of one kind.

        Args:
            steps: Frames, by their clocks.
            rows: All rows in the order of places.
        """
        if len(set(self._kinds)) == 1:
            return steps
        kinds = dict(zip(rows, self._kinds, strict=True))
        found = []
        for step in steps:
            parts: dict[int | None, list[int]] = {}
            for row in rows if step.rows is None else step.rows:
                parts.setdefault(kinds[row], []).append(row)
            found += [step._replace(rows=part) for part in parts.values()]
        return found

    @property
    def data(self) -> Payload | memoryview:
        """All rows, of one kind."""
        return self.part(range(len(self._counts)))

    def part(self, places: Sequence[int]) -> Payload | memoryview:
        """Return some of the rows, of one kind, by their places."""
        if self._kinds[places[0]] is None:
            elements = sum(self._counts[place] for place in places)
            return Payload(Skip().head(elements, 0), memoryview(b""))
        return self._part(places)

    def _part(self, places: Sequence[int]) -> Payload | memoryview:
        raise NotImplementedError


class PlainRows(SlabRows):
    """Rows as they are, beside some that have no gradient.

    Args:
        rows: All of them, one behind the other.
        counts: The elements of each.
        itemsize: Bytes of an element.
        skipped: Places of rows that have no gradient.
    """

    __slots__ = ("_ends", "_rows")

    def __init__(
        self, rows: Bytes, counts: Sequence[int], itemsize: int, skipped: AbstractSet[int]
    ) -> None:
        super().__init__(counts, [None if place in skipped else 0 for place in range(len(counts))])
        self._rows = rows
        self._ends = [0, *(itemsize * end for end in itertools.accumulate(counts))]

    def _part(self, places: Sequence[int]) -> memoryview:
        view, ends = self._rows.data, self._ends
        return memoryview(b"".join([view[ends[place] : ends[place + 1]] for place in places]))


class CodedRows(SlabRows):
    """Rows that are encoded.

    Args:
        codec: Of all of them.
        counts: The elements of each.
        payloads: Of each, one behind the other in memory.
        room: That memory.
        seeds: Of the frame of each; that of a row is made of it and of the row's number.
        skipped: Places of rows that have no gradient.
    """

    __slots__ = ("_codec", "_payloads", "_room", "_seeds")

    def __init__(
        self, codec: Codec, counts: Sequence[int], payloads: Sequence[Bytes], room: Bytes,
        seeds: Sequence[int], skipped: AbstractSet[int] = frozenset(),
    ) -> None:
        super().__init__(counts, [None if place in skipped else seed
                                  for place, seed in enumerate(seeds)])
        self._codec = codec
        self._payloads = payloads
        self._room = room
        self._seeds = seeds

    def _part(self, places: Sequence[int]) -> Payload:
        if len(places) == len(self._counts):
            data = self._room.data
        else:
            data = memoryview(b"".join([self._payloads[place].data for place in places]))
        return Payload(self._tail(places), data)

    def _tail(self, places: Sequence[int]) -> bytes:
        elements = sum(self._counts[place] for place in places)
        head = self._codec.head(elements, self._seeds[places[0]])
        if self._codec.is_fixed:
            return head
        sizes = [self._payloads[place].nbytes for place in places]
        return np.asarray(sizes, "<u4").tobytes() + head
