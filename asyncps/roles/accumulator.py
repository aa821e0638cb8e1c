"""The contributions of one open round, as they come or kept by rank."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from asyncps.errors import AsyncPSError
from asyncps.roles.encoded import Contribution, Encoded
from asyncps.tensor.dtypes import Dtype
from asyncps.tensor.pool import Bytes, Pool


class Accumulator:
    """The contributions of one open round.

    Attributes:
        began: When the first came.
        count: How many have come.
        hyper: The newest version of the hyper-parameters that a contributor had.
        sum: What they come to so far; None before the first, and while they are kept by rank.
        parts: Contributions that are kept, by rank.
        error: Why the round cannot be applied.
        skipped: Somebody has no gradient: nothing is to be done.
        outcome: Puts in place, at a clock, what was computed elsewhere; None if nothing was.
    """

    __slots__ = ("began", "count", "error", "hyper", "outcome", "parts", "skipped", "sum")

    def __init__(self, began: float) -> None:
        self.error: AsyncPSError | None = None
        self.outcome: Callable[[int], None] | None = None
        self.skipped = False
        self.began = began
        self.sum: Bytes | None = None
        self.parts: dict[int, Contribution] = {}
        self.count = 0
        self.hyper = 0

    def add(self, dtype: Dtype, buffer: Contribution, pool: Pool) -> None:
        """Add one contribution; the buffer is the accumulator's from now on.

        One that is encoded is added as it is; only the first is decoded.
        """
        if isinstance(buffer, Encoded):
            if buffer.codec.is_skip:
                self.skipped = True
                pool.give(buffer.buffer)
                return
            if self.sum is None:
                self.sum = pool.take(buffer.elements * dtype.sum.itemsize)
                buffer.decode(self.sum.view(dtype.sum))
            else:
                buffer.add(self.sum.view(dtype.sum))
            pool.give(buffer.buffer)
            return
        if self.sum is None:
            if dtype.widen is None:
                self.sum = buffer
                return
            self.sum = pool.take(buffer.nbytes // dtype.itemsize * dtype.sum.itemsize)
            dtype.widen(self.sum.view(dtype.sum), buffer.view(dtype.bits))
        else:
            dtype.add(self.sum.view(dtype.sum), buffer.view(dtype.bits))
        pool.give(buffer)

    def keep(self, rank: int, contribution: Contribution, dtype: Dtype, pool: Pool) -> None:
        """Keep one contribution by rank; it is the accumulator's from now on."""
        if isinstance(contribution, Encoded) and contribution.codec.is_skip:
            self.add(dtype, contribution, pool)
        else:
            self.parts[rank] = contribution

    def total(self, dtype: Dtype, pool: Pool, reduce: str = "sum") -> Bytes:
        """Return the sum or mean; contributions that were kept are added in rank order."""
        if self.parts:
            for rank in sorted(self.parts):
                self.add(dtype, self.parts[rank], pool)
            self.parts.clear()
        assert self.sum is not None
        if reduce == "mean":
            values = self.sum.view(dtype.sum)
            np.divide(values, self.count, out=values)
        return self.sum
