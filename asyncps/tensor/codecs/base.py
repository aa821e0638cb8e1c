"""What a codec is: few bytes out of float32 values, values out of bytes, and its head on the wire.

A codec knows nothing of keys, servers or frames. An encoder takes what of a key is not sent yet,
its residual, into account and leaves in it what was not sent this time; the arithmetic is that of
`asyncps_ext.quantize` and `asyncps_ext.select`. A decoder is made of a head alone.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from asyncps.errors import RemoteProtocolError
from asyncps.tensor.pool import Bytes, Pool
from asyncps.tensor.threads import spread, threads_for
from asyncps_ext import quantize

Floats = npt.NDArray[np.float32]
Take = Callable[[int], Bytes]  # memory of so many bytes
Pieces = Sequence[tuple[int, int]]  # first element and the one behind the last, of each chunk

# version, number of the codec, whether values are f16, 0, parameter, elements, seed
_HEAD = struct.Struct("<BBBBfQQ")
HEAD_BYTES = _HEAD.size
_VERSION = 1


class Codec:
    """One way to send fewer bytes.

    Attributes:
        name: As users say it.
        number: On the wire.
        is_fixed: How many bytes n values take depends on n alone.
        is_seeded: What is sent depends on a seed, which travels in the head.
        is_skip: It stands for no gradient, and its round does nothing.
        owns_momentum: Its encoder has the momentum, so the optimizer must have none.
        small_bytes: Keys below this size go dense, unless the user says another.
        loop_bytes: Of a key, as float32: up to this a loop may take the time to encode all of it.
        options: What it takes beside the options of all, with the default of each (None: none).
        parameter: A number that decoding needs.
        half: Values travel as f16.
    """

    name: ClassVar[str]
    number: ClassVar[int]
    is_fixed: ClassVar[bool] = True
    is_seeded: ClassVar[bool] = False
    is_skip: ClassVar[bool] = False
    owns_momentum: ClassVar[bool] = False
    small_bytes: ClassVar[int] = 64 << 10
    loop_bytes: ClassVar[int] = 0
    options: ClassVar[dict[str, Any]] = {}
    has_half: ClassVar[bool] = False

    def __init__(self, parameter: float = 0.0, *, half: bool = False) -> None:
        self.parameter = float(np.float32(parameter))
        self.half = half

    @classmethod
    def made(cls, options: dict[str, Any]) -> Codec:
        """Return the codec with these options, which have been checked."""
        return cls()

    @classmethod
    def is_parameter(cls, value: float) -> bool:
        """Tell whether a head may have this parameter."""
        return value == 0

    def nbytes(self, n: int) -> int | None:
        """Return the bytes that n values take; None where that depends on the values."""
        raise NotImplementedError

    def about(self, n: int) -> int:
        """Return about how many bytes n values will take; at most where nobody can know."""
        size = self.nbytes(n)
        return 4 * n if size is None else size

    def encode(
        self, g: Floats, residual: Floats | None, pieces: Pieces, take: Take,
        seeds: Sequence[int],
    ) -> list[Bytes]:
        """Return what is sent of g + residual, a payload a piece; what is not sent stays behind.

        Args:
            g: float32[n], finite; only read.
            residual: float32[n], read and written; None: what is not sent is lost.
            pieces: Where the key is cut; they cover it.
            take: Gives memory for the payloads.
            seeds: One a piece.

        If this raises, `residual` is what it was (of a sparse codec up to a rounding error).
        """
        raise NotImplementedError

    def encode_difference(
        self, value: Floats, base: Floats, pool: Pool, seed: int
    ) -> Bytes | None:
        """Return what is sent of value - base, of one piece; what is not is kept nowhere.

        Args:
            value, base: float32[n], only read.
            pool: Lends memory meanwhile.
            seed: As `encode` has it.

        Returns:
            None: it is not finite. What were sent would not lead to the value, nor would later
            differences, since infinity - infinity is none.
        """
        room = pool.take(value.nbytes)
        try:
            with np.errstate(all="ignore"):
                x = np.subtract(value, base, out=room.view(np.float32))
            if quantize.count_nonfinite(x):
                return None
            (payload,) = self.encode(x, None, [(0, x.size)], new_bytes, [seed])
        finally:
            pool.give(room)
        return payload

    def check(self, n: int, payload: Bytes, seed: int) -> None:
        """Refuse a payload that cannot be that of n values.

        Raises:
            RemoteProtocolError: It says which codec, what was expected and what came.
        """
        expected = self.nbytes(n)
        if expected is not None and payload.nbytes != expected:
            raise self.refusal(f"{expected} bytes of {n} values", payload.nbytes)

    def add(self, acc: Floats, payload: Bytes, seed: int) -> None:
        """acc += what a checked payload stands for."""
        raise NotImplementedError

    def decode(self, out: Floats, payload: Bytes, seed: int) -> None:
        """out = what a checked payload stands for."""
        raise NotImplementedError

    def refusal(self, expected: object, got: object) -> RemoteProtocolError:
        """Return the error of a payload that is none of this codec's."""
        return RemoteProtocolError(f"a payload that is not of codec {self.name}",
                                   expected=expected, got=got)

    def head(self, elements: int, seed: int) -> bytes:
        """Return what a decoder must know, as it travels.

        Args:
            elements: Of all values of the frame.
            seed: Of the frame.
        """
        return _HEAD.pack(_VERSION, self.number, self.half, 0, self.parameter, elements, seed)


class Elementwise(Codec):
    """A codec whose pieces are encoded each for itself."""

    def write(self, payload: Bytes, residual: Floats | None, g: Floats) -> None:
        """Encode one piece."""
        raise NotImplementedError

    def encode(
        self, g: Floats, residual: Floats | None, pieces: Pieces, take: Take,
        seeds: Sequence[int], threads: int = 1,
    ) -> list[Bytes]:
        """As `Codec.encode`; over so many threads, which changes nothing of what is sent."""
        if len(pieces) == 1:  # as of every small key: a thousand of them are noticed
            payload = take(self.nbytes(g.size) or 0)
            self.write(payload, residual, g)
            return [payload]
        payloads = cut_room(take, [self.nbytes(stop - begin) or 0 for begin, stop in pieces])
        done = bytearray(len(pieces))

        def write(place: int) -> None:
            begin, stop = pieces[place]
            left = None if residual is None else residual[begin:stop]
            self.write(payloads[place], left, g[begin:stop])

        try:
            spread(write, done, threads_for(g.nbytes, len(pieces), threads))
        except BaseException:
            if residual is not None:
                for place in (place for place, is_done in enumerate(done) if is_done):
                    begin, stop = pieces[place]
                    self.add(residual[begin:stop], payloads[place], 0)
                    residual[begin:stop] -= g[begin:stop]
            raise
        return payloads


def cut_room(take: Take, sizes: Sequence[int]) -> list[Bytes]:
    """Return memory of these sizes, one behind the other."""
    room = take(sum(sizes))
    found, begin = [], 0
    for size in sizes:
        found.append(room[begin : begin + size])
        begin += size
    return found


def new_bytes(size: int) -> Bytes:
    """Return memory that nobody lends."""
    return np.empty(size, np.uint8)


def viewed(payload: Bytes, dtype: Any) -> npt.NDArray[Any]:
    """Return bytes as numbers; a copy where they do not lie as numbers must."""
    view: npt.NDArray[Any] = payload.view(dtype)
    return view if view.flags.aligned else view.copy()


def parse_head(data: bytes | memoryview, kinds: dict[int, type[Codec]]) -> tuple[Codec, int, int]:
    """Return the codec, the elements and the seed of a head.

    Args:
        data: HEAD_BYTES bytes.
        kinds: Codecs by number.

    Raises:
        RemoteProtocolError: It cannot be that.
    """
    version, number, half, zero, parameter, elements, seed = _HEAD.unpack(data)
    kind = kinds.get(number)
    if version != _VERSION or zero or kind is None:
        raise RemoteProtocolError("a codec that nobody knows",
                                  expected=f"version {_VERSION}, codecs {sorted(kinds)}",
                                  got=(version, number, zero))
    if half > kind.has_half or not math.isfinite(parameter) or not kind.is_parameter(parameter):
        raise RemoteProtocolError(f"an impossible head of codec {kind.name}",
                                  got=(half, parameter))
    return kind(parameter, half=bool(half)), elements, seed
