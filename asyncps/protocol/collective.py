"""What a rank says of its collective calls: one table for a group of calls that are alike.

Ranks compare tables byte by byte: equal ones are equal calls. So a table holds nothing that may
differ between ranks which do the same; what may (how many rows this rank brings to an all-gather)
is told apart by `alike`.
"""

from __future__ import annotations

import math
from enum import IntEnum

import msgspec

from asyncps.errors import DtypeMismatch, RemoteProtocolError, is_text
from asyncps.tensor import dtypes

MAX_NAME = 4096  # characters of a name
MAX_DIMENSIONS = 64  # NumPy's


class Verb(IntEnum):
    """What is called."""

    ALL_REDUCE = 1
    REDUCE_SCATTER = 2
    ALL_GATHER = 3
    BROADCAST = 4
    ALL_TO_ALL = 5
    BARRIER = 6


class Op(IntEnum):
    """How elements are reduced."""

    NONE = 0
    SUM = 1
    MEAN = 2
    MIN = 3
    MAX = 4
    PRODUCT = 5


class Group(msgspec.Struct, array_like=True, frozen=True):
    """Calls of one verb, operation and dtype.

    Attributes:
        verb, op: Numbers of `Verb` and `Op`.
        dtype: The name on the wire; "" where nothing travels.
        root: Of a broadcast, else 0.
        factor: What the result is multiplied by.
        names: Of each call; "" is paired by its order among those without a name.
        shapes: Of each call's array.
        splits: Of an all-to-all: how many rows each rank gets.
        parts: The shapes of several arrays that one call reduces as one, behind each other.
    """

    verb: int
    op: int
    dtype: str
    root: int
    factor: float
    names: list[str]
    shapes: list[tuple[int, ...]]
    splits: list[int]
    parts: list[tuple[int, ...]] = []

    @property
    def itemsize(self) -> int:
        """Bytes of an element."""
        return dtypes.by_name(self.dtype).itemsize if self.dtype else 0

    @property
    def sizes(self) -> list[int]:
        """Bytes of each call's array."""
        item = self.itemsize
        return [math.prod(shape) * item for shape in self.shapes]


_decoder = msgspec.msgpack.Decoder(Group)
encode = msgspec.msgpack.Encoder().encode


def parse(table: bytes | memoryview) -> Group:
    """Read a table.

    Raises:
        RemoteProtocolError: It is none.
    """
    try:
        group = _decoder.decode(table)
        Verb(group.verb), Op(group.op)
        if group.dtype:
            dtypes.by_name(group.dtype)
    except (msgspec.DecodeError, ValueError, DtypeMismatch) as wrong:
        raise RemoteProtocolError(f"not a group of collective calls: {wrong}") from None
    if (
        not group.names or len(group.names) != len(group.shapes)
        or any(len(name) > MAX_NAME or not is_text(name) for name in group.names)
        or any(len(shape) > MAX_DIMENSIONS or min(shape, default=0) < 0
               for shape in group.shapes)
        or min(group.splits, default=0) < 0 or group.root < 0
        or any(size >= 1 << 63 for size in group.sizes)
    ):
        raise RemoteProtocolError("a group of collective calls with names or shapes that are none")
    return group


_FREE_ROWS = (Verb.ALL_GATHER, Verb.ALL_TO_ALL)  # whose first dimension may differ


def differences(mine: Group, mine_at: int, theirs: Group, theirs_at: int) -> list[str]:
    """Return what of two calls must be the same and is not; empty if they may go together."""
    found = []
    for word, a, b in (
        ("verb", Verb(mine.verb).name.lower(), Verb(theirs.verb).name.lower()),
        ("op", Op(mine.op).name.lower(), Op(theirs.op).name.lower()),
        ("dtype", mine.dtype, theirs.dtype), ("root", mine.root, theirs.root),
        ("factor", mine.factor, theirs.factor),
    ):
        if a != b:
            found.append(f"{word} {a} and {b}")
    shapes = tuple(mine.shapes[mine_at]), tuple(theirs.shapes[theirs_at])
    rows = 1 if mine.verb in _FREE_ROWS else 0
    if mine.parts != theirs.parts:
        found.append(f"arrays {_shown(mine.parts)} and {_shown(theirs.parts)}")
    elif len(shapes[0]) != len(shapes[1]) or shapes[0][rows:] != shapes[1][rows:]:
        found.append(f"shape {shapes[0]} and {shapes[1]}")
    return found


def _shown(parts: list[tuple[int, ...]]) -> str:
    """Return shapes as people read them, the first ones of many."""
    texts = [str(tuple(shape)) for shape in parts[:8]]
    return f"[{', '.join(texts)}{', ...' if len(parts) > 8 else ''}] ({len(parts)})"
