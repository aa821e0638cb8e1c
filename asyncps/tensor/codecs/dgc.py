"""Deep gradient compression: topk of gradients with momentum, which is the worker's own.

Source: Lin, Han, Mao, Wang and Dally 2018, https://arxiv.org/abs/1712.01887: momentum correction
(u = momentum*u + g; v += u), momentum factor masking (u and v are 0 where v was sent), local
clipping, and a ratio that falls to its value while training begins.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from asyncps.tensor.codecs.base import Codec, Floats, Pieces, Take
from asyncps.tensor.codecs.sparse import Sparse, count_of
from asyncps.tensor.codecs.stateful import Stateful
from asyncps.tensor.pool import Bytes
from asyncps_ext import select

FIRST_RATIO = 0.25  # of the first push of a warm-up

_BLOCK = 1 << 18  # elements whose squares are added at once
_LANES = 512  # sums that these go to: in one order whatever NumPy does within a row
_LARGEST = 1e37  # magnitude of a momentum that was divided back


class DGC(Sparse, Stateful):
    """The largest sums of momentum of the whole key. v is the residual, and u the extra."""

    name, number = "dgc", 10
    loop_bytes = 2 << 20
    options = {  # noqa: RUF012 - a class attribute of the base
        "ratio": 0.01, "momentum": 0.9, "warmup": 0, "clip": None, "values": "f32",
    }
    owns_momentum = True
    scales_extra = True

    def __init__(
        self, parameter: float = 0.0, *, half: bool = False, ratio: float = 0.0,
        momentum: float = 0.0, warmup: int = 0, limit: float = math.inf,
    ) -> None:
        super().__init__(parameter, half=half)
        self._ratio = ratio
        self._momentum = momentum
        self._warmup = warmup
        self._limit = limit

    @classmethod
    def made(cls, options: dict[str, Any]) -> Codec:
        """As `Codec.made`: each of n workers may bring 1/sqrt(n) of the norm that `clip` says."""
        clip = options["clip"]
        return cls(
            half=options["values"] == "f16", ratio=options["ratio"], momentum=options["momentum"],
            warmup=options["warmup"],
            limit=math.inf if clip is None else clip / math.sqrt(options["workers"]))

    def extra_size(self, shape: tuple[int, ...]) -> int:
        """As `Stateful.extra_size`: a momentum an element."""
        return math.prod(shape)

    def ratio_at(self, push: int) -> float:
        """Return the ratio of the push of that number, from 1.

        Of the `warmup` first ones it is 0.25 * (ratio/0.25)^((push - 1)/warmup), where that is more
        than `ratio`.
        """
        if push > self._warmup:
            return self._ratio
        fallen: float = (self._ratio / FIRST_RATIO) ** ((push - 1) / self._warmup)
        return max(self._ratio, FIRST_RATIO * fallen)

    def encode_with(
        self, g: Floats, residual: Floats, extra: Floats, shape: tuple[int, ...], push: int,
        pieces: Pieces, take: Take, seeds: Sequence[int],
    ) -> list[Bytes]:
        """As `Stateful.encode_with`."""
        g = self._clipped(g)
        count = count_of(self.ratio_at(push), g.size)
        indices, values = np.empty(count, np.uint32), np.empty(count, np.float32)
        select.dgc_accumulate(extra, residual, g, self._momentum)
        try:
            select.topk(residual, count, indices, values)
            sent = self._as_sent(values)
            payloads = self._cut(indices, sent, pieces, take)
            # Only now, and at once, does the key lose what is sent.
            if self.half:  # what f16 has rounded off stays in v
                select.take(extra, indices, values)
                select.take_f16(residual, indices, np.empty_like(sent))
            else:
                select.dgc_mask(extra, residual, indices, values)
        except BaseException:
            residual -= extra
            self._take_back(g, extra)
            raise
        return payloads

    def _clipped(self, g: Floats) -> Floats:
        """Return g, or a shorter one in the same direction."""
        if math.isinf(self._limit):
            return g
        norm = math.sqrt(_squares(g))
        return g if norm <= self._limit else g * np.float32(self._limit / norm)

    def _take_back(self, g: Floats, u: Floats) -> None:
        """Let u be what it was before g came."""
        u -= g
        factor = np.float32(self._momentum)
        if not factor:  # then it is never looked at
            u[:] = 0
            return
        with np.errstate(over="ignore"):
            u /= factor
        np.clip(u, -_LARGEST, _LARGEST, out=u)  # what was rounded, by a small factor

    def count_nonfinite(
        self, g: Floats, residual: Floats | None, extra: Floats | None
    ) -> tuple[int, int]:
        """As `Stateful.count_nonfinite`."""
        if residual is None or extra is None:
            return super().count_nonfinite(g, residual, extra)
        with np.errstate(all="ignore"):
            after = extra * np.float32(self._momentum)
            after += g
            after += residual
        bad = ~np.isfinite(after)
        count = int(np.count_nonzero(bad))
        return count, int(bad.argmax()) if count else -1


def _squares(x: Floats) -> float:
    """Return the sum of squares, the same on every machine: each addition has its place."""
    sums = np.zeros(_LANES)
    whole = x.size - x.size % _LANES
    for begin in range(0, whole, _BLOCK):
        block = np.square(x[begin : min(begin + _BLOCK, whole)], dtype=np.float64)
        sums += np.add.reduce(block.reshape(-1, _LANES), axis=0)
    rest = np.square(x[whole:], dtype=np.float64)
    return math.fsum([*sums.tolist(), *rest.tolist()])
