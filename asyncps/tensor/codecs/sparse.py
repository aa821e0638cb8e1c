"""Codecs that send few of the values and leave the others: topk, threshold, randomk.

What is sent of a value leaves it exactly where values travel as f32: what was sent and what stays
add up to what there was, to the bit.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from asyncps.tensor.codecs.base import (
    Codec,
    Floats,
    Pieces,
    Take,
    cut_room,
    new_bytes,
    viewed,
)
from asyncps.tensor.pool import Bytes, Pool
from asyncps_ext import quantize, reduce, select, sparse

Indices = npt.NDArray[np.uint32]

check_ids: Callable[..., int] = sparse.check_ids


def count_of(ratio: float, n: int) -> int:
    """Return how many of n values a ratio of them is; at least one."""
    return min(n, max(1, math.ceil(ratio * n - 1e-9)))


class Sparse(Codec):
    """What these have in common: indices of the whole key are chosen, then cut at the pieces.

    A payload is u32 indices, ascending and relative to their piece, and then the values.
    """

    is_fixed = False
    has_half = True
    options = {"values": "f32"}  # noqa: RUF012 - a class attribute of the base
    index_bytes = 4

    def choose(
        self, x: Floats, pieces: Pieces, seeds: Sequence[int]
    ) -> tuple[Indices, Floats]:
        """Return which values of the whole key are sent, ascending, and what they are."""
        raise NotImplementedError

    def choose_of_sum(
        self, residual: Floats, g: Floats, pieces: Pieces, seeds: Sequence[int]
    ) -> tuple[Indices, Floats]:
        """Let residual += g, and `choose` of that; if this raises, the residual is as it was."""
        reduce.add(residual, g)
        try:
            return self.choose(residual, pieces, seeds)
        except BaseException:
            residual -= g
            raise

    @property
    def _value_bytes(self) -> int:
        return 2 if self.half else 4

    def nbytes(self, n: int) -> int | None:
        """As `Codec.nbytes`: it depends on the values."""
        return None

    def encode(
        self, g: Floats, residual: Floats | None, pieces: Pieces, take: Take,
        seeds: Sequence[int],
    ) -> list[Bytes]:
        """As `Codec.encode`."""
        if residual is None:
            indices, values = self.choose(g, pieces, seeds)
        else:
            indices, values = self.choose_of_sum(residual, g, pieces, seeds)
        try:
            sent = self._as_sent(values)
            payloads = self._cut(indices, sent, pieces, take)
            # Only now, and at once, does the residual lose what is sent.
            if residual is not None and self.half:
                select.take_f16(residual, indices, np.empty_like(sent))
            elif residual is not None:
                select.take(residual, indices, np.empty_like(values))
        except BaseException:
            if residual is not None:
                residual -= g
            raise
        return payloads

    def _as_sent(self, values: Floats) -> npt.NDArray[Any]:
        if not self.half:
            return values
        sent = np.empty(values.size, np.uint16)
        quantize.encode_f16(sent, None, values)
        return sent

    def _cut(
        self, indices: Indices, sent: npt.NDArray[Any], pieces: Pieces, take: Take
    ) -> list[Bytes]:
        if len(pieces) == 1:
            payload = take((self.index_bytes + self._value_bytes) * sent.size)
            middle = self.index_bytes * sent.size
            if middle:
                payload[:middle] = indices.view(np.uint8)
            payload[middle:] = sent.view(np.uint8)
            return [payload]
        edges = np.searchsorted(indices, [stop for _, stop in pieces]).tolist()
        begins = [0, *edges]
        each = self.index_bytes + self._value_bytes
        payloads = cut_room(take, [(end - begin) * each
                                   for begin, end in zip(begins, edges, strict=False)])
        for place, payload in enumerate(payloads):
            begin, end = begins[place], edges[place]
            middle = self.index_bytes * (end - begin)
            if middle:
                np.subtract(indices[begin:end], np.uint32(pieces[place][0]),
                            out=payload[:middle].view(np.uint32))
            payload[middle:] = sent[begin:end].view(np.uint8)
        return payloads

    def check(self, n: int, payload: Bytes, seed: int) -> None:
        """As `Codec.check`: the indices ascend, and lie within."""
        each = self.index_bytes + self._value_bytes
        count = payload.nbytes // each
        if payload.nbytes % each or count > n:
            raise self.refusal(f"at most {n} times {each} bytes", payload.nbytes)
        if self.index_bytes and count:
            indices = viewed(payload[: 4 * count], np.uint32)
            at = check_ids(indices, n)
            if at >= 0:
                raise self.refusal(f"indices that ascend, below {n}",
                                   f"{int(indices[at])} at place {at}")

    def _parted(self, n: int, payload: Bytes, seed: int) -> tuple[Indices, npt.NDArray[Any]]:
        count = payload.nbytes // (4 + self._value_bytes)
        values = viewed(payload[4 * count :], np.uint16 if self.half else np.float32)
        return viewed(payload[: 4 * count], np.uint32), values

    def add(self, acc: Floats, payload: Bytes, seed: int) -> None:
        """As `Codec.add`."""
        indices, values = self._parted(acc.size, payload, seed)
        (select.add_at_f16 if self.half else select.add_at)(acc, indices, values)

    def decode(self, out: Floats, payload: Bytes, seed: int) -> None:
        """As `Codec.decode`."""
        if self.half:
            out[:] = 0
            self.add(out, payload, seed)
            return
        select.set_at(out, *self._parted(out.size, payload, seed))


class TopK(Sparse):
    """The values of largest magnitude of the whole key; of equal ones those of lower index."""

    name, number = "topk", 7
    loop_bytes = 4 << 20
    options = {"ratio": 0.01, "values": "f32"}  # noqa: RUF012

    def __init__(self, parameter: float = 0.0, *, half: bool = False, ratio: float = 0.0) -> None:
        super().__init__(parameter, half=half)
        self._ratio = ratio

    def about(self, n: int) -> int:
        """As `Codec.about`: its share of the values."""
        return (self.index_bytes + self._value_bytes) * count_of(self._ratio, n)

    @classmethod
    def made(cls, options: dict[str, Any]) -> Codec:
        """As `Codec.made`."""
        return cls(half=options["values"] == "f16", ratio=options["ratio"])

    def choose(
        self, x: Floats, pieces: Pieces, seeds: Sequence[int]
    ) -> tuple[Indices, Floats]:
        """As `Sparse.choose`."""
        indices, values = self._room(x.size)
        select.topk(x, values.size, indices, values)
        return indices, values

    def choose_of_sum(
        self, residual: Floats, g: Floats, pieces: Pieces, seeds: Sequence[int]
    ) -> tuple[Indices, Floats]:
        """As `Sparse.choose_of_sum`, in one pass over both."""
        indices, values = self._room(g.size)
        select.topk_sum(residual, g, values.size, indices, values)
        return indices, values

    def encode_difference(
        self, value: Floats, base: Floats, pool: Pool, seed: int
    ) -> Bytes | None:
        """As `Codec.encode_difference`, without the difference in memory."""
        indices, values = self._room(value.size)
        select.topk_difference(value, base, values.size, indices, values)
        if quantize.count_nonfinite(values):  # they are above all others: one would be among these
            return None
        (payload,) = self._cut(indices, self._as_sent(values), [(0, value.size)], new_bytes)
        return payload

    def _room(self, n: int) -> tuple[Indices, Floats]:
        count = count_of(self._ratio, n)
        return np.empty(count, np.uint32), np.empty(count, np.float32)


class Threshold(Sparse):
    """All values of at least a magnitude; a zero never."""

    name, number = "threshold", 8
    loop_bytes = 1 << 20
    options = {"threshold": None, "values": "f32"}  # noqa: RUF012

    def __init__(self, parameter: float = 0.0, *, half: bool = False, least: float = 0.0) -> None:
        super().__init__(parameter, half=half)
        # A threshold of 0 means all that is not 0: the smallest magnitude there is.
        self._least = least or float(np.finfo(np.float32).smallest_subnormal)

    @classmethod
    def made(cls, options: dict[str, Any]) -> Codec:
        """As `Codec.made`."""
        return cls(half=options["values"] == "f16", least=options["threshold"])

    def choose(
        self, x: Floats, pieces: Pieces, seeds: Sequence[int]
    ) -> tuple[Indices, Floats]:
        """As `Sparse.choose`."""
        count = select.count_threshold(x, self._least)
        indices, values = np.empty(count, np.uint32), np.empty(count, np.float32)
        select.threshold(x, self._least, indices, values)
        return indices, values


class RandomK(Sparse):
    """Values at random places, which both sides draw from one seed: only values travel."""

    name, number, is_seeded = "randomk", 9, True
    loop_bytes = 1 << 20
    options = {"ratio": 0.1, "values": "f32"}  # noqa: RUF012
    index_bytes = 0

    def __init__(self, parameter: float = 0.0, *, half: bool = False, ratio: float = 0.0) -> None:
        super().__init__(parameter, half=half)
        self._ratio = ratio

    def about(self, n: int) -> int:
        """As `Codec.about`: its share of the values."""
        return (self.index_bytes + self._value_bytes) * count_of(self._ratio, n)

    @classmethod
    def made(cls, options: dict[str, Any]) -> Codec:
        """As `Codec.made`."""
        return cls(half=options["values"] == "f16", ratio=options["ratio"])

    def choose(
        self, x: Floats, pieces: Pieces, seeds: Sequence[int]
    ) -> tuple[Indices, Floats]:
        """As `Sparse.choose`; each piece draws its share of the whole key's values."""
        count = count_of(self._ratio, x.size)
        indices = np.empty(count, np.uint32)
        done = 0
        for (begin, stop), seed in zip(pieces, seeds, strict=True):
            after = count * stop // x.size
            mine = indices[done:after]
            select.random_indices(seed, stop - begin, after - done, mine)
            mine += np.uint32(begin)
            done = after
        return indices, x[indices]

    def _parted(self, n: int, payload: Bytes, seed: int) -> tuple[Indices, npt.NDArray[Any]]:
        values = viewed(payload, np.uint16 if self.half else np.float32)
        indices = np.empty(values.size, np.uint32)
        select.random_indices(seed, n, values.size, indices)
        return indices, values
