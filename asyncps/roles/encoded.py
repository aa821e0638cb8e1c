"""An encoded contribution at a server: what its frame's table says, and its bytes.

Nothing of it is taken into memory before its sizes fit the unit that it speaks of, and nothing of
it is counted before its indices do.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from asyncps.errors import RemoteProtocolError, UnknownKey
from asyncps.protocol.frames import MAX_ROWS, PUSH, PUSHPULL, Flag, Header
from asyncps.roles.thinned import HALVES
from asyncps.tensor.codecs import BY_NUMBER, HEAD_BYTES, Codec, Floats, parse_head
from asyncps.tensor.pool import Bytes, Pool
from asyncps_ext.seeds import seed_of

if TYPE_CHECKING:
    from asyncps.roles.holdings import Holdings, Target


class Described(NamedTuple):
    """What the table of a frame says of its payload.

    Attributes:
        codec: How it is encoded.
        elements: Of all values.
        seed: Of the frame.
        rows: Of a slab; None for all.
        sizes: Bytes of each row's payload, where these depend on the values.
    """

    codec: Codec
    elements: int
    seed: int
    rows: list[int] | None
    sizes: list[int] | None


def describe(header: Header, table: memoryview) -> Described:
    """Read the table of a frame with the flag CODEC.

    Raises:
        RemoteProtocolError: It cannot be that.
    """
    words = len(table) - HEAD_BYTES
    allowed = Flag.ROWS | Flag.CODEC | Flag.DELTA | HALVES
    if header.kind not in (PUSH, PUSHPULL) or header.flags & ~allowed:
        raise RemoteProtocolError("a codec where none belongs", got=(header.kind, header.flags))
    if words < 0 or words % 4 or words > 8 * MAX_ROWS:
        raise RemoteProtocolError("the table of an encoded push", got=len(table),
                                  expected=f"{HEAD_BYTES} bytes, and u32")
    codec, elements, seed = parse_head(table[words:], BY_NUMBER)
    numbers: list[int] = np.frombuffer(table[:words], "<u4").tolist()
    rows: list[int] | None = None
    if header.flags & Flag.ROWS:
        count = len(numbers) if codec.is_fixed else len(numbers) // 2
        rows, numbers = numbers[:count], numbers[count:]
        if not rows or (numbers and len(numbers) != count):
            raise RemoteProtocolError("rows are u32", got=words)
    if numbers and codec.is_fixed:
        raise RemoteProtocolError(f"sizes of rows with codec {codec.name}", got=len(numbers))
    return Described(codec, elements, seed, rows, numbers or None)


def find(keeper: Holdings, header: Header, told: Described) -> Target:
    """Return what a frame speaks of, checked but for its payload.

    Raises:
        UnknownKey: There is no such unit.
        RemoteProtocolError: Its size or rows are wrong, or its values are not summed in f32.
    """
    unit = keeper.units.get(header.unit)
    if unit is None:
        raise UnknownKey("no such unit on this server", got=header.unit)
    if not unit.is_dense or unit.dtype.sum != np.float32:
        raise RemoteProtocolError(f"codec {told.codec.name} for values that are not encoded",
                                  expected="a dense unit of f32, f16 or bf16", got=unit.dtype.name)
    return keeper.find(header, told.rows, told.elements * unit.dtype.itemsize)


def layout(target: Target, header: Header, told: Described) -> tuple[list[int], list[int]]:
    """Return the elements of each row (of a chunk, which is one), and where its payload begins.

    Behind the beginnings stands the end of all.

    Raises:
        RemoteProtocolError: That is not the size of the payload.
    """
    counts, codec = counts_of(target), told.codec
    sizes = told.sizes
    if codec.is_fixed:
        sizes = [codec.nbytes(count) or 0 for count in counts]
    elif sizes is None and len(counts) == 1:
        sizes = [header.payload_bytes]
    if sizes is None or len(sizes) != len(counts) or sum(sizes) != header.payload_bytes:
        raise RemoteProtocolError(
            f"not the bytes of codec {codec.name}", got=header.payload_bytes,
            expected=f"{len(counts)} sizes" if sizes is None or len(sizes) != len(counts)
            else f"{sum(sizes)} bytes of {told.elements} values")
    return counts, [0, *accumulate(sizes)]


def counts_of(target: Target) -> list[int]:
    """Return the elements of each row that a frame speaks of."""
    unit, rows = target
    if rows is not None:
        sizes: list[int] = getattr(unit, "sizes", [])
        return [sizes[row] // unit.dtype.itemsize for row in rows]
    spans = getattr(unit, "spans", ())
    return [stop - begin for _, begin, stop in spans] or [unit.size // unit.dtype.itemsize]


class Encoded:
    """An encoded contribution of a chunk, or of rows of a slab.

    Args:
        codec: How.
        buffer: The payload; its own from now on.
        counts: Elements of each row.
        begins: Where each row's payload begins, and the end of all.
        seeds: Of each row.
    """

    __slots__ = ("_begins", "_counts", "_seeds", "buffer", "codec")

    def __init__(
        self, codec: Codec, buffer: Bytes, counts: Sequence[int], begins: Sequence[int],
        seeds: Sequence[int],
    ) -> None:
        self.codec = codec
        self.buffer = buffer
        self._counts = counts
        self._begins = begins
        self._seeds = seeds

    @property
    def elements(self) -> int:
        """Of all values."""
        return sum(self._counts)

    def check(self) -> None:
        """Refuse a payload that cannot be right, before it is counted.

        Raises:
            RemoteProtocolError: It says which codec, what was expected and what came.
        """
        for count, payload, seed in self._rows():
            self.codec.check(count, payload, seed)

    def decode(self, out: Floats) -> None:
        """out = the values."""
        begin = 0
        for count, payload, seed in self._rows():
            self.codec.decode(out[begin : begin + count], payload, seed)
            begin += count

    def add(self, acc: Floats) -> None:
        """acc += the values."""
        begin = 0
        for count, payload, seed in self._rows():
            self.codec.add(acc[begin : begin + count], payload, seed)
            begin += count

    def split(self) -> Iterator[Encoded]:
        """Yield each row, in memory of its own."""
        for count, payload, seed in self._rows():
            yield Encoded(self.codec, payload.copy(), (count,), (0, payload.nbytes), (seed,))

    def cut(self, begin: int) -> Encoded:
        """Return the row whose first element is `begin`, in memory of its own."""
        firsts = [0, *accumulate(self._counts)]
        place = firsts.index(begin)
        return list(self.split())[place]

    def _rows(self) -> Iterator[tuple[int, Bytes, int]]:
        for place, (count, seed) in enumerate(zip(self._counts, self._seeds, strict=True)):
            yield count, self.buffer[self._begins[place] : self._begins[place + 1]], seed


def received(target: Target, header: Header, told: Described, buffer: Bytes) -> Encoded:
    """Return a contribution whose payload has come.

    Raises:
        RemoteProtocolError: Its payload cannot be right.
    """
    counts, begins = layout(target, header, told)
    seeds = [0] * len(counts)
    if told.codec.is_seeded:
        rows = range(len(counts)) if target[1] is None else target[1]
        seeds = [seed_of(told.seed, row) for row in rows]
    encoded = Encoded(told.codec, buffer, counts, begins, seeds)
    encoded.check()
    return encoded


Contribution = Bytes | Encoded  # what a frame brings: values, or what they were encoded as


def drop(contribution: Contribution, pool: Pool) -> None:
    """Give the memory of a contribution back."""
    pool.give(contribution.buffer if isinstance(contribution, Encoded) else contribution)
