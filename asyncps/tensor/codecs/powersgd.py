"""powersgd: a matrix as the product of two thin ones.

Source: Vogels, Karimireddy and Jaggi 2019. M, the gradient and what was not sent, is multiplied by
what the last push led to, Q; the columns of the product are made orthonormal, P; and what is sent
is P and M^T P, which is the next Q. Here each worker's own matrix is factored.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from asyncps.tensor.codecs.base import Codec, Floats, Pieces, Take, cut_room, viewed
from asyncps.tensor.codecs.matrices import Store, orthonormal, rows_of, sides, spread, started
from asyncps.tensor.codecs.stateful import Stateful
from asyncps.tensor.pool import Bytes
from asyncps_ext import quantize, reduce

MOST_RANK = 256

_HEAD = np.dtype("<u4")  # columns, the column of the first element, rank
_HEAD_BYTES = 12
# Of a matrix whose largest magnitude times the root of its longer side is at most this, no element
# of a factor or of their product is larger, but for rounding. So what is not sent is at most twice
# as large, and any gradient that `KeyCoder` lets pass on top of it is finite. Others travel dense.
_MOST_FACTORED = 1e37


class PowerSGD(Stateful):
    """Factors of each key; every piece has the rows of P that it touches, and all of the other.

    Attributes:
        rank: Columns of a factor.
        start: Pushes that travel as they are before that.
    """

    name, number, is_fixed = "powersgd", 11, False
    options = {"rank": 2, "start": 0}  # noqa: RUF012 - a class attribute of the base

    def __init__(
        self, parameter: float = 0.0, *, half: bool = False, rank: int = 1, start: int = 0
    ) -> None:
        super().__init__(parameter, half=half)
        self.rank = rank
        self.start = start

    @classmethod
    def made(cls, options: dict[str, Any]) -> Codec:
        """As `Codec.made`; who decodes reads the rank in each payload."""
        return cls(rank=options["rank"], start=options["start"])

    def nbytes(self, n: int) -> int | None:
        """As `Codec.nbytes`: it depends on the shape of the key."""
        return None

    def extra_size(self, shape: tuple[int, ...]) -> int:
        """As `Stateful.extra_size`: one factor, by which the next push begins."""
        return sides(shape)[1] * self.rank

    def unfit(self, shape: tuple[int, ...], nbytes: int, pieces: Pieces) -> str:
        """As `Stateful.unfit`."""
        m, n = sides(shape)
        if n == 1:
            return "a vector"
        if min(m, n) <= self.rank:
            return f"a matrix of {m} x {n} has no more than rank {self.rank}"
        if sum(self._size(begin, stop, n) for begin, stop in pieces) >= nbytes:
            return f"factors of rank {self.rank} take no fewer bytes"
        return ""

    def _size(self, begin: int, stop: int, n: int) -> int:
        """Return the bytes of a piece: of factors, or of its values if these are fewer."""
        factors = _HEAD_BYTES + 4 * self.rank * (rows_of(begin, stop, n) + n)
        return min(factors, 4 * (stop - begin))

    def encode_with(
        self, g: Floats, residual: Floats, extra: Floats, shape: tuple[int, ...], push: int,
        pieces: Pieces, take: Take, seeds: Sequence[int],
    ) -> list[Bytes]:
        """As `Stateful.encode_with`; the first seed is that of the key."""
        reduce.add(residual, g)
        q = extra.reshape(-1, self.rank)
        after = None
        sent: list[tuple[Floats, Bytes]] = []
        try:
            largest = quantize.largest(residual)
            if push <= self.start or not largest * math.sqrt(max(sides(shape))) <= _MOST_FACTORED:
                payloads = _as_they_are(residual, pieces, take)
            else:
                p, after = self._factors(residual, q, seeds[0], push, largest)
                payloads = self._written(p, after, pieces, take)
            for (begin, stop), payload in zip(pieces, payloads, strict=True):
                _bring(_subtract, residual[begin:stop], payload)
                sent.append((residual[begin:stop], payload))
        except BaseException:
            for left, payload in sent:
                _bring(_add, left, payload)
            residual -= g
            raise
        if after is not None:  # a column that is zero would teach nothing: the one before stays
            np.copyto(q, after, where=after.any(axis=0))
        return payloads

    @staticmethod
    def _factors(
        residual: Floats, q: Floats, seed: int, push: int, largest: float
    ) -> tuple[Floats, Floats]:
        matrix = residual.reshape(-1, len(q))
        p = orthonormal(np.matmul(matrix, started(q, seed, push, largest)))
        return p, np.matmul(matrix.T, p)

    def _written(self, p: Floats, q: Floats, pieces: Pieces, take: Take) -> list[Bytes]:
        n = len(q)
        payloads = cut_room(take, [self._size(begin, stop, n) for begin, stop in pieces])
        for (begin, stop), payload in zip(pieces, payloads, strict=True):
            first, column = divmod(begin, n)
            rows = p[first : first + rows_of(begin, stop, n)]
            if payload.nbytes == 4 * (stop - begin):
                spread(_set, payload.view(np.float32), column, rows, q)
                continue
            payload[:_HEAD_BYTES] = np.array([n, column, self.rank], _HEAD).view(np.uint8)
            middle = _HEAD_BYTES + rows.nbytes
            payload[_HEAD_BYTES:middle] = rows.reshape(-1).view(np.uint8)
            payload[middle:] = q.reshape(-1).view(np.uint8)
        return payloads

    def check(self, n: int, payload: Bytes, seed: int) -> None:
        """As `Codec.check`: the sizes are what the head says, and the factors finite."""
        if payload.nbytes == 4 * n:
            return
        if not _HEAD_BYTES <= payload.nbytes < 4 * n:
            raise self.refusal(f"{_HEAD_BYTES} to {4 * n} bytes of {n} values", payload.nbytes)
        columns, column, rank = _head(payload)
        if not 1 <= rank <= MOST_RANK or not column < columns:
            raise self.refusal(f"a rank from 1 to {MOST_RANK}, and a column that is there",
                               f"rank {rank}, column {column} of {columns}")
        expected = _HEAD_BYTES + 4 * rank * (-(-(column + n) // columns) + columns)
        if payload.nbytes != expected:
            raise self.refusal(f"{expected} bytes of {n} values at column {column} of {columns} "
                               f"with rank {rank}", payload.nbytes)
        if not np.isfinite(viewed(payload[_HEAD_BYTES:], np.float32)).all():
            raise self.refusal("finite factors", "a NaN or an infinity")

    def add(self, acc: Floats, payload: Bytes, seed: int) -> None:
        """As `Codec.add`."""
        _bring(_add, acc, payload)

    def decode(self, out: Floats, payload: Bytes, seed: int) -> None:
        """As `Codec.decode`."""
        _bring(_set, out, payload)


def _head(payload: Bytes) -> tuple[int, int, int]:
    columns, column, rank = viewed(payload[:_HEAD_BYTES], _HEAD).tolist()
    return columns, column, rank


def _as_they_are(values: Floats, pieces: Pieces, take: Take) -> list[Bytes]:
    payloads = cut_room(take, [4 * (stop - begin) for begin, stop in pieces])
    for (begin, stop), payload in zip(pieces, payloads, strict=True):
        payload[:] = values[begin:stop].view(np.uint8)
    return payloads


def _bring(store: Store, out: Floats, payload: Bytes) -> None:
    """Store what a payload stands for."""
    if payload.nbytes == 4 * out.size:
        store(out, viewed(payload, np.float32))
        return
    columns, column, rank = _head(payload)
    factors = viewed(payload[_HEAD_BYTES:], np.float32).reshape(-1, rank)
    rows = len(factors) - columns
    spread(store, out, column, factors[:rows], factors[rows:])


def _add(out: Floats, values: Floats) -> None:
    out += values


def _subtract(out: Floats, values: Floats) -> None:
    out -= values


def _set(out: Floats, values: Floats) -> None:
    out[...] = values
