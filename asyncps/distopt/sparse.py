"""Gradients as their few largest elements: what is sent, what stays, and the mean of it all.

On the wire each worker's part is int32: the count as two words, the indices, the bits of the f32
values. One all-gather brings everybody the parts of all, so that each adds them in rank order. Of
more elements than a message may be of each piece of them, chosen or not, has one of its own.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from asyncps.allended import wait_for_all
from asyncps.choosing import Choice, Pairs
from asyncps.distopt.buckets import Bucket
from asyncps.distopt.calls import Calls
from asyncps.distopt.parameters import DistParameter
from asyncps.distopt.sums import divided
from asyncps.errors import CheckpointError, CodecError, TensorError
from asyncps.tensor.dtypes import Array
from asyncps_ext import reduce, select

__all__ = ["Choice", "Residuals", "Sparse", "gather", "gathered", "summed"]

_HEAD = 2  # int32 words of the count, a 64-bit number


class Residuals:
    """What has not been sent yet, flat f32 by the numbers of parameters."""

    def __init__(self) -> None:
        self.of: dict[int, Array] = {}

    def add(self, bucket: Bucket) -> None:
        """bucket += residuals."""
        for parameter, begin, end in bucket.parts:
            kept = self.of.get(parameter.number)
            if kept is None:
                continue
            if kept.size != end - begin:
                raise CheckpointError("a residual of another parameter", key=parameter.number,
                                      expected=end - begin, got=kept.size)
            reduce.add(bucket.values[begin:end], kept)

    def keep(self, bucket: Bucket) -> None:
        """residuals = bucket, whose sent elements are zero."""
        for parameter, begin, end in bucket.parts:
            kept = self.of.get(parameter.number)
            if begin == end:
                continue
            if kept is None:
                self.of[parameter.number] = bucket.values[begin:end].copy()
            else:
                np.copyto(kept, bucket.values[begin:end])


class Sparse:
    """The chosen elements of gradient plus residual travel.

    Args:
        calls: Its communicator.
        most: Elements of a piece, for a bucket that is larger.
        choice: Which elements.
        residuals: What was not sent, from call to call; None drops it.
    """

    def __init__(
        self, calls: Calls, most: int, choice: Choice, residuals: Residuals | None
    ) -> None:
        self._calls = calls
        self._most = most
        self._choice = choice
        self._residuals = residuals

    def dtype_of(self, parameter: DistParameter) -> np.dtype[Any]:
        """Return float32, whatever the gradients are."""
        return np.dtype(np.float32)

    def start(self, bucket: Bucket) -> None:
        """Choose and send."""
        if self._residuals is not None:
            self._residuals.add(bucket)
        pairs = self._choice.of(bucket.values)
        bucket.sent = pairs, gather(self._calls, pairs, bucket.size, self._most)

    def finish(self, bucket: Bucket) -> None:
        """Wait for everybody's elements.

        Raises:
            TensorError: Some gradient has a NaN or an infinity; all workers raise it, and what was
                not sent before is what it was.
        """
        pairs, handles = bucket.sent
        found = gathered(handles, self._calls.world_size)
        for rank, (indices, values) in enumerate(found):
            finite = np.isfinite(values)
            if not finite.all():
                place = int(indices[np.argmin(finite)])
                number = next(p.number for p, begin, end in bucket.parts if begin <= place < end)
                raise TensorError(
                    f"the gradient of parameter {number} is not finite: nothing was updated",
                    rank=rank, got=values[np.argmin(finite)])
        bucket.sent = pairs, found

    def mean(self, bucket: Bucket) -> Array:
        """Keep what was not sent, and add up what was."""
        (indices, values), found = bucket.sent
        x = bucket.values
        if self._residuals is not None:
            select.take(x, indices, values)
            self._residuals.keep(bucket)
        summed(x, found)
        return divided(x, self._calls.world_size)


def gather(calls: Calls, pairs: Pairs, size: int, most: int) -> list[Any]:
    """Send this worker's elements, of so many, to all; returns the handles for `gathered`.

    Args:
        calls: Its communicator.
        pairs: Indices, ascending, and values.
        size: Of what they are chosen from, the same on all workers.
        most: Elements of a piece; each is a message.
    """
    indices, values = pairs
    ends = [*np.searchsorted(indices, range(most, size, most)).tolist(), indices.size]
    return [calls.all_gather(_packed(indices[begin:end], values[begin:end]))
            for begin, end in zip([0, *ends], ends, strict=False)]


def _packed(indices: Array, values: Array) -> Array:
    part = np.empty(_HEAD + 2 * indices.size, np.int32)
    part[:_HEAD] = np.array([indices.size], np.int64).view(np.int32)
    part[_HEAD : _HEAD + indices.size] = indices.view(np.int32)
    part[_HEAD + indices.size :] = values.view(np.int32)
    return part


def gathered(handles: list[Any], world_size: int) -> list[Pairs]:
    """Wait for all that `gather` has sent; return each rank's elements.

    Raises:
        CodecError: What came is no such thing.
    """
    wait_for_all(handles)
    pieces = [apart(handle.wait(), world_size) for handle in handles]
    if len(pieces) == 1:
        return pieces[0]
    return [(np.concatenate([indices for indices, _ in of_rank]),
             np.concatenate([values for _, values in of_rank]))
            for of_rank in zip(*pieces, strict=True)]


def apart(words: Array, world_size: int) -> list[Pairs]:
    """Return each rank's elements of what came of one piece.

    Raises:
        CodecError: It is no such thing.
    """
    found: list[Pairs] = []
    begin = 0
    for rank in range(world_size):
        head = words[begin : begin + _HEAD]
        count = int(head.copy().view(np.int64)[0]) if head.size == _HEAD else -1
        middle, end = begin + _HEAD + count, begin + _HEAD + 2 * count
        if count < 0 or end > words.size:
            raise CodecError("sparse gradients that are none", rank=rank, got=count)
        found.append((words[begin + _HEAD : middle].view(np.uint32),
                      words[middle:end].view(np.float32)))
        begin = end
    if begin != words.size:
        raise CodecError("more sparse gradients than workers", expected=begin, got=words.size)
    return found


def summed(out: Array, found: list[Pairs]) -> None:
    """Write the sum of all elements, in rank order.

    Raises:
        CodecError: Elements that lie outside.
    """
    out[...] = 0
    for rank, (indices, values) in enumerate(found):
        try:
            select.add_at(out, indices, values)
        except ValueError as error:
            raise CodecError(f"sparse gradients that do not fit: {error}", rank=rank) from None
