"""Which elements of an array travel where only few do: the largest, or those of some magnitude."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from asyncps.errors import ConfigError, shown
from asyncps.tensor.codecs.sparse import count_of
from asyncps.tensor.dtypes import Array
from asyncps_ext import select

Pairs = tuple[npt.NDArray[np.uint32], npt.NDArray[np.float32]]


class Choice:
    """Which elements are sent.

    Args:
        spars: With `topk` the part of all elements, above 0 and at most 1; else the least magnitude
            that is sent, at least 0.
        topk: Whether it is a part; of equal elements those with lower indices are chosen.

    Raises:
        ConfigError: A number that cannot be right.
    """

    def __init__(self, spars: float, topk: bool) -> None:
        wanted = "above 0, at most 1" if topk else "at least 0"
        try:
            self._spars = float(spars)
        except (TypeError, ValueError):
            self._spars = math.nan
        fits = 0 < self._spars <= 1 if topk else 0 <= self._spars < math.inf
        if not fits:
            raise ConfigError(f"spars {'with' if topk else 'without'} topK", expected=wanted,
                              got=shown(spars))
        self._topk = topk

    def of(self, x: Array) -> Pairs:
        """Return indices, ascending, and values of the chosen elements of flat f32."""
        if self._topk:
            count = count_of(self._spars, x.size) if x.size else 0
        else:
            count = select.count_threshold(x, self._spars)
        indices, values = np.empty(count, np.uint32), np.empty(count, np.float32)
        if self._topk:
            select.topk(x, count, indices, values)
        else:
            select.threshold(x, self._spars, indices, values)
        return indices, values
