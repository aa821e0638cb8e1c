"""Where the payload of an answer lands at a worker that cannot land in its place, and how it gets
there: rows of slabs are scattered, values that travel in half their bytes are widened."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from asyncps.errors import AsyncPSError, RemoteProtocolError, TensorError
from asyncps.protocol.frames import Flag, Header
from asyncps.roles.changes import DeltaLanding, DeltaPlace
from asyncps.roles.thinned import HALVES, half_codec
from asyncps.tensor.pool import POOLED_BYTES, Bytes, Pool
from asyncps_ext import wire

if TYPE_CHECKING:
    from asyncps.roles.held import Scatter
    from asyncps.roles.plan import RemoteUnit
    from asyncps.roles.rules import Rule

# By what users say of `pull`.
FLAGS: dict[str | bool | None, int] = {
    "f16": int(Flag.F16), "bf16": int(Flag.BF16), True: int(Flag.DELTA),
}


class HalfPlace(NamedTuple):
    """The place of an answer that is asked for in half its bytes.

    Attributes:
        flag: Of the request.
        out: Of a chunk; None of rows, which are scattered.
    """

    flag: int
    out: memoryview | None

    def ask(self, _unit: RemoteUnit, priority: int) -> tuple[bytes, int]:
        """Return what the request's table ends with, and the priority that it may have."""
        return b"", priority


Place = memoryview | HalfPlace | DeltaPlace | None


def place_of(rule: Rule | None, dtype: np.dtype[Any], out: memoryview | None) -> Place:
    """Return where an answer goes, and so how it is asked for."""
    if rule is None or not rule.pull or dtype != np.float32:
        return out
    if rule.changes is not None:  # of chunks only
        return out if out is None else DeltaPlace(*rule.changes, out)
    return HalfPlace(rule.pull, out)


def landing_of(
    pool: Pool, unit: RemoteUnit, size: int, place: Place, scatter: Scatter | None
) -> Landing | DeltaLanding | None:
    """Return where an answer of `size` bytes lands; None: in its place."""
    if isinstance(place, DeltaPlace):
        return place.landing(unit)
    half = place if isinstance(place, HalfPlace) else None
    return None if scatter is None and half is None else Landing(pool, size, half, scatter)


class Landing:
    """Memory for one answer, until it is where it belongs.

    Args:
        pool: Where large memory comes from.
        size: Bytes of the values.
        half: The place, and how they travel; None: as they are.
        scatter: The arrays of rows, or None.

    Attributes:
        view: The memory.
    """

    __slots__ = ("_buffer", "_half", "_pool", "_scatter", "_size", "view")
    room = None  # its size is known

    def __init__(
        self, pool: Pool, size: int, half: HalfPlace | None, scatter: Scatter | None
    ) -> None:
        self._pool = pool
        self._size = size
        self._half = half
        self._scatter = scatter
        self._buffer = self._take(size if half is None else size // 2)
        self.view = self._buffer.data

    def settle(self, header: Header) -> AsyncPSError | None:
        """Put an answer that has come where it belongs; return what is wrong with it."""
        half, error = self._half, None
        expected = 0 if half is None else half.flag
        if header.flags & HALVES != expected:
            return RemoteProtocolError("an answer in another form", expected=expected,
                                       got=header.flags)
        if half is None:
            error = self._spread(self._buffer)
        elif half.out is not None:
            half_codec(half.flag).decode(np.frombuffer(half.out, np.float32), self._buffer, 0)
        else:
            wide = self._take(self._size)
            half_codec(half.flag).decode(wide.view(np.float32), self._buffer, 0)
            error = self._spread(wide)
            self._give(wide)
        self._give(self._buffer)
        return error

    def over(self) -> None:
        """The request is answered, well or not."""

    def _spread(self, rows: Bytes) -> AsyncPSError | None:
        assert self._scatter is not None
        if wire.scatter_rows(rows, *self._scatter) >= 0:
            return TensorError("out can no longer be written")
        return None

    def _take(self, size: int) -> Bytes:
        return np.empty(size, np.uint8) if size < POOLED_BYTES else self._pool.take(size)

    def _give(self, buffer: Bytes) -> None:
        if buffer.nbytes >= POOLED_BYTES:
            self._pool.give(buffer)
