"""Gradients of several batches that become one update."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from asyncps.distopt.parameters import DistParameter
from asyncps.tensor.dtypes import Array

__all__ = ["Accumulated", "Rest"]


class Rest(tuple[Any, ...]):
    """A backward pass without a batch: only what was accumulated is applied."""


class Accumulated:
    """Sums of gradients by parameter, f16 and bf16 in f32.

    Attributes:
        batches: How many batches they are of.
    """

    def __init__(self) -> None:
        self.batches = 0
        self._sums: dict[int, tuple[DistParameter, Array]] = {}

    def add(self, pairs: list[tuple[DistParameter, Array]]) -> None:
        """Take in the gradients of one batch: copies of its own, in f32 where they are halves."""
        for parameter, wide in pairs:
            if parameter.number not in self._sums:
                self._sums[parameter.number] = parameter, wide
            else:
                self._sums[parameter.number][1][...] += wide
        self.batches += 1

    def mean_with(self, parameter: DistParameter, gradient: Array) -> Array:
        """Return the mean of the batches before and of this last one's gradient."""
        if not self.batches:
            return gradient
        wide = parameter.wide(gradient)
        if parameter.number in self._sums:
            wide += self._sums[parameter.number][1]
        wide /= self.batches + 1
        return wide.astype(parameter.numpy, copy=False)

    def rest(self, seen: set[int], *, last: bool) -> Iterator[tuple[DistParameter, Array]]:
        """Yield the means of parameters that did not come with the last batch.

        Args:
            seen: The numbers of those that came.
            last: There was no last batch.
        """
        batches = self.batches + (not last)
        for number, (parameter, total) in list(self._sums.items()):
            if number not in seen:
                yield parameter, (total / batches).astype(parameter.numpy)

    def clear(self) -> None:
        """They have been applied."""
        self.batches = 0
        self._sums.clear()
