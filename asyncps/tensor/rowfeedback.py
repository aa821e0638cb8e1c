"""Error feedback by row: what of a table's rows was not sent yet is added when they come again.

A row that is not pushed again keeps what is left of it, as long as the store is open. The values of
one push are one array for the codec, whatever rows they are of; so are what is left of these rows.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from asyncps.tensor.codecs import Codec, Elementwise, Floats, Pieces, Take
from asyncps.tensor.codecs.bits import BF16, F16
from asyncps.tensor.feedback import SUMMABLE, KeyCoder, Rate
from asyncps.tensor.pool import Bytes
from asyncps.tensor.rowrests import RowRests
from asyncps.tensor.rowsparse import Ids
from asyncps_ext import quantize, reduce


class AsIs(Elementwise):
    """Float32 as they are: nothing is left. It never travels with a head."""

    name, number = "as is", 0

    def nbytes(self, n: int) -> int:
        """As `Codec.nbytes`: four bytes a value."""
        return 4 * n

    def write(self, payload: Bytes, residual: Floats | None, g: Floats) -> None:
        """As `Elementwise.write`."""
        values = payload.view(np.float32)
        values[:] = g
        if residual is not None:
            reduce.add(values, residual)
            residual[:] = 0

    def add(self, acc: Floats, payload: Bytes, seed: int) -> None:
        """As `Codec.add`."""
        reduce.add(acc, payload.view(np.float32))

    def decode(self, out: Floats, payload: Bytes, seed: int) -> None:
        """As `Codec.decode`."""
        out[:] = payload.view(np.float32)


# What makes of float32 what a table of a dtype stores. Of the halves something may be left.
AS_STORED: dict[str, Elementwise] = {"float32": AsIs(), "float16": F16(), "bfloat16": BF16()}


class Gathered(NamedTuple):
    """What is left of the rows of one push, as it was at one moment.

    Attributes:
        rests: float32, of these rows; whoever encodes with it uses it up.
        moment: The coder's count of changes.
        slots: Where these rows lie at that moment.
    """

    rests: Floats
    moment: int
    slots: Ids


class RowCoder(KeyCoder):
    """One row-sparse key at one worker.

    Args:
        width: Elements of a row.

    Attributes:
        rests: What was not sent, by row.
        width: As given.
    """

    __slots__ = ("_moment", "rests", "width")

    def __init__(self, width: int) -> None:
        super().__init__(0)
        self.width = width
        self.rests = RowRests(width)
        self._moment = 0

    def gather(self, ids: Ids) -> Gathered:
        """Return what is left of some rows, to be used by `count_nonfinite_rows` and `encode_rows`.

        Args:
            ids: int64, unique.
        """
        with self._lock:
            slots = self.rests.find(ids)
            return Gathered(self.rests.gather(ids, slots), self._moment, slots)

    @staticmethod
    def count_nonfinite_rows(g: Floats, rests: Floats | None) -> tuple[int, int]:
        """As `count_nonfinite`, of a gradient on top of what is left of its rows."""
        most = quantize.largest(g) + (0.0 if rests is None else quantize.largest(rests))
        if most <= SUMMABLE:
            return 0, -1
        bad = quantize.count_nonfinite(g, rests)
        return bad, quantize.first_nonfinite(g, rests) if bad else -1

    def encode_rows(
        self, codec: Codec, ids: Ids, g: Floats, nbytes: int, pieces: Pieces, take: Take,
        seeds: Sequence[int], gathered: Gathered | None,
    ) -> list[Bytes]:
        """Return what is sent of some rows, a payload a piece; see `Codec.encode`.

        Args:
            codec: How it is sent.
            ids: int64, unique: which rows.
            g: float32, finite: their values, one row behind the other; only read.
            nbytes: Of the values as the key stores them.
            pieces, take, seeds: As `Codec.encode` has them.
            gathered: What `gather` has returned of these rows. None: what is not sent is lost, and
                so is what is left of all rows.

        If this raises, what is left is what it was.
        """
        with self._lock:
            began = time.perf_counter()
            rests = slots = None
            if gathered is None:
                self.rests.clear()
            elif gathered.moment == self._moment:
                rests, slots = gathered.rests, gathered.slots
            else:  # another thread has pushed meanwhile
                rests = self.rests.gather(ids)
            payloads = codec.encode(g, rests, pieces, take, seeds)
            self._moment += 1
            if rests is not None:
                self.rests.put(ids, rests, slots)
            self._count(began, nbytes, sum(payload.nbytes for payload in payloads))
            return payloads

    def drop_nonfinite(self, ids: Ids) -> None:
        """Forget what is left of some rows where it is no finite number."""
        with self._lock:
            self._moment += 1
            rests = self.rests.gather(ids)
            rests[~np.isfinite(rests)] = 0
            self.rests.put(ids, rests)

    def put_rows_back(
        self, codec: Codec, ids: Ids, nbytes: int, pieces: Pieces, payloads: Sequence[Bytes],
        seeds: Sequence[int], *, feedback: bool,
    ) -> None:
        """Take note that these will not be sent: what they stand for is kept, for the next."""
        with self._lock:
            self.before_bytes -= nbytes
            self.sent_bytes -= sum(payload.nbytes for payload in payloads)
            if not feedback:
                return
            self._moment += 1
            rests = self.rests.gather(ids)
            for (begin, stop), payload, seed in zip(pieces, payloads, seeds, strict=True):
                codec.add(rests[begin:stop], payload, seed)
            self.rests.put(ids, rests)

    def _scale(self, factor: float, most: float, *, extra: bool) -> None:
        if len(self.rests):
            self._moment += 1
            self.rests.scale(factor, most)

    def restore(
        self, residual: Floats | None, pushes: int, rate: Rate | None,
        extra: Floats | None = None, codec: str = "", clock: int = 0,
    ) -> None:
        """Have nothing left of any row."""
        with self._lock:
            self.pushes, self._rate = pushes, rate
            self.draws.restore(pushes, clock)
            self._moment += 1
            self.rests.clear()

    def restore_rows(
        self, ids: Ids, rests: Floats, pushes: int, rate: Rate | None, clock: int = 0
    ) -> None:
        """Take what was saved.

        Args:
            ids: int64, unique.
            rests: float32, what is left of these rows.
            pushes: How often the key was encoded.
            rate: The learning rate that it is meant for.
            clock: Of the key.
        """
        self.restore(None, pushes, rate, clock=clock)
        with self._lock:
            self._moment += 1
            self.rests.put(ids, rests)

    def rows(self) -> tuple[Ids, Floats]:
        """Return the rows with something left, ascending, and what that is; copies."""
        with self._lock:
            return self.rests.items()

    def error_norm(self) -> float:
        """As `KeyCoder.error_norm`, of all rows with something left."""
        with self._lock:
            return self.rests.norm()

