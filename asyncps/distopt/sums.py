"""How a bucket of gradients becomes its mean over all workers: in full, or in halves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from asyncps.allended import wait_for_all
from asyncps.distopt.buckets import Bucket, Shelf, cut
from asyncps.distopt.calls import Calls
from asyncps.distopt.parameters import DistParameter
from asyncps.tensor.dtypes import Array
from asyncps_ext import reduce

__all__ = ["Halves", "Means", "Packed", "Sums", "to_half"]


class Means(Protocol):
    """One way for a bucket to become its mean."""

    def dtype_of(self, parameter: DistParameter) -> np.dtype[Any]:
        """Return the dtype in which the gradients of a parameter are packed."""

    def start(self, bucket: Bucket) -> None:
        """Send it; its values are not to be touched until `finish`."""

    def finish(self, bucket: Bucket) -> None:
        """Wait for it. Whatever fails here changes nothing that outlives the call."""

    def mean(self, bucket: Bucket) -> Array:
        """Return the mean of a finished bucket, flat, in a dtype that can be computed with."""


class Sums:
    """The sum travels, in the gradients' own dtype, and is divided where it arrives.

    Args:
        calls: Its communicator.
        most: Elements of a piece, for a bucket that is larger.
    """

    def __init__(self, calls: Calls, most: int) -> None:
        self._calls = calls
        self._most = most

    def dtype_of(self, parameter: DistParameter) -> np.dtype[Any]:
        """Return the parameter's own."""
        return parameter.numpy

    def start(self, bucket: Bucket) -> None:
        """Send it."""
        bucket.sent = _all_reduce(self._calls, bucket.values, "sum", self._most)

    def finish(self, bucket: Bucket) -> None:
        """Wait for it."""
        wait_for_all(bucket.sent)

    def mean(self, bucket: Bucket) -> Array:
        """Divide by the number of workers; f16 and bf16 in f32."""
        parameter = bucket.parts[0][0]
        values = bucket.values
        if parameter.dtype.widen is not None:
            values = parameter.wide(values)
        return divided(values, self._calls.world_size)


class Halves:
    """The mean travels in f16, summed in f32 by its owner: the sum of many would be beyond f16.

    Args:
        calls, most: See `Sums`.
        shelf: Where memory is from.
        clip: Largest magnitude of an element of the local gradient; None for no bound.
    """

    def __init__(self, calls: Calls, most: int, shelf: Shelf, clip: float | None) -> None:
        self._calls = calls
        self._most = most
        self._shelf = shelf
        self._clip = clip

    def dtype_of(self, parameter: DistParameter) -> np.dtype[Any]:
        """Return what the parameter's gradients are computed in."""
        return parameter.dtype.sum

    def start(self, bucket: Bucket) -> None:
        """Bound it, round it and send it."""
        values = bucket.values
        if self._clip is not None:
            np.clip(values, -self._clip, self._clip, out=values)
        half = self._shelf.array(np.float16, bucket.size)
        to_half(values, half)
        bucket.sent = half, _all_reduce(self._calls, half, "mean", self._most)

    def finish(self, bucket: Bucket) -> None:
        """Wait for it."""
        wait_for_all(bucket.sent[1])

    def mean(self, bucket: Bucket) -> Array:
        """Widen what came."""
        values, half = bucket.values, bucket.sent[0]
        if values.dtype == np.float32:
            reduce.widen_f16(values, half.view(np.uint16))
        else:
            values[...] = half
        return values


class Packed:
    """Arrays that become their sums or means over all workers, side by side on the wire.

    Args:
        calls, most: See `Sums`.
        op: "sum" or "mean".
        arrays: Flat ones of any float dtypes; written by `finish`. They are copied here.
        half: Let means in f16 travel; a sum is the mean multiplied back.
    """

    def __init__(
        self, calls: Calls, most: int, op: str, arrays: Sequence[Array], half: bool = False
    ) -> None:
        self._arrays = list(arrays)
        self._packed: list[tuple[list[Array], Array]] = []
        self._factor = calls.world_size if half and op == "sum" else 1
        self._handles: list[Any] = []
        kinds: dict[np.dtype[Any], list[Array]] = {}
        for array in self._arrays:
            kinds.setdefault(array.dtype, []).append(array)
        for members in kinds.values():
            values = np.concatenate(members)
            if half:
                full, values = values, np.empty(values.size, np.float16)
                to_half(full, values)
            self._packed.append((members, values))
            self._handles += _all_reduce(calls, values, "mean" if half else op, most)

    def wait(self) -> None:
        """Wait for all; nothing of the user's has been written yet."""
        wait_for_all(self._handles)
        self._handles = []

    def finish(self) -> None:
        """Wait for all, and write what came."""
        self.wait()
        for members, values in self._packed:
            begin = 0
            for array in members:
                part = values[begin : begin + array.size]
                begin += array.size
                if self._factor == 1:
                    array[...] = part
                else:
                    array[...] = part.astype(np.float32) * self._factor


def to_half(values: Array, half: Array) -> None:
    """Round values to float16, to the nearest and ties to even."""
    if values.dtype == np.float32:
        reduce.narrow_f16(half.view(np.uint16), values)
        return
    with np.errstate(over="ignore"):  # it is an infinity then, as in the kernel
        half[...] = values


def divided(values: Array, by: int) -> Array:
    """Divide floats in place, and return them."""
    if by != 1:
        np.divide(values, by, out=values)
    return values


def _all_reduce(calls: Calls, values: Array, op: str, most: int) -> list[Any]:
    return [calls.all_reduce(piece, op) for piece in cut(values, most)]
