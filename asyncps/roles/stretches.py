"""Which elements of which key a unit holds: the map between servers and a checkpoint.

A checkpoint knows keys, servers know units: a chunk is a stretch of one key, a slab is many keys
side by side. Everything here counts in elements, for an array of state has as many of them as the
value, if of another size.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from asyncps.protocol.messages import Key, Placement

# Bytes that travel as one: large enough to be fast, small enough to be held many times.
RANGE_BYTES = 4 << 20


class Stretch(NamedTuple):
    """Elements [begin, begin + length) of a unit, which are those from `start` on of a key; `row`
    is the row of a slab, 0 of a chunk."""

    begin: int
    length: int
    key: Key
    start: int
    row: int


class Part(NamedTuple):
    """Bytes [at, at + size) of a range, which are those from `start` on of a key's array."""

    key: Key
    at: int
    size: int
    start: int


class Range(NamedTuple):
    """Bytes [begin, begin + size) of an array of a unit, and what they are."""

    begin: int
    size: int
    parts: list[Part]


@dataclass(slots=True)
class Place:
    """One unit as a checkpoint sees it.

    Attributes:
        server: Where it is.
        unit: Its number.
        itemsize: Bytes of one element of the value.
        stretches: What it holds, in order.
    """

    server: int
    unit: int
    itemsize: int
    stretches: list[Stretch] = field(default_factory=list)


def places_of(placements: Sequence[Placement]) -> list[Place]:
    """Return the units of some keys by their number, which goes from server to server."""
    found: dict[int, Place] = {}
    for placement in placements:
        spec = placement.spec
        for piece in placement.pieces:
            place = found.setdefault(piece.unit, Place(piece.server, piece.unit, spec.itemsize))
            place.stretches.append(Stretch(
                piece.offset // spec.itemsize, piece.size // spec.itemsize, spec.key,
                piece.start // spec.itemsize, max(piece.row, 0),
            ))
    for place in found.values():
        place.stretches.sort()
    return [found[unit] for unit in sorted(found)]


def ranges_of(
    stretches: Sequence[Stretch], itemsize: int, most_bytes: int = RANGE_BYTES
) -> Iterator[Range]:
    """Cut stretches of a unit into ranges; neighbours travel together.

    Args:
        stretches: In order; between them may be what is of no concern.
        itemsize: Of the array's elements.
        most_bytes: Of a range.
    """
    most = max(1, most_bytes // itemsize)
    begin, size = 0, 0
    parts: list[Part] = []
    for stretch in stretches:
        done = 0
        while done < stretch.length:
            at = stretch.begin + done
            if parts and (at != begin + size or size >= most):
                yield Range(begin * itemsize, size * itemsize, parts)
                parts = []
            if not parts:
                begin, parts, size = at, [], 0
            count = min(stretch.length - done, most - size)
            parts.append(Part(stretch.key, size * itemsize, count * itemsize,
                              (stretch.start + done) * itemsize))
            size += count
            done += count
    if parts:
        yield Range(begin * itemsize, size * itemsize, parts)
