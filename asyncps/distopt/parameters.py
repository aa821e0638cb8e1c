"""What DistOpt sees of its user's parameters: their weights on the host, and what is kept of each.

A parameter is an array of NumPy or CuPy, a torch tensor, or anything with such an array as `data`.
It is known by its memory, and numbered when it first comes: the same on all ranks, for a backward
pass has one order.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from asyncps.errors import CheckpointError, DtypeMismatch, ShapeMismatch, TensorError, shown
from asyncps.tensor import dtypes
from asyncps.tensor.arrays import from_host, host_memory, library_of, to_host
from asyncps.tensor.dtypes import Array

__all__ = ["DistParameter", "Kept", "Parameters", "flat_host"]

# What is known of a parameter that has not come yet: its count of updates, and arrays by name.
Kept = tuple[int, dict[str, Array]]


class DistParameter:
    """One parameter.

    Args:
        number: Its place in the order in which parameters first came.
        source: The array that holds its weights.

    Attributes:
        number: As given.
        shape, size: Of its weights.
        dtype: Of its weights: how they are stored and summed.
        numpy: The same as users see it.
        state: What its optimizer keeps, by name: flat arrays of `dtype.sum`.
        updates: How many steps it has had.

    Raises:
        TensorError: No floats, or weights that cannot be written.
    """

    def __init__(self, number: int, source: Any) -> None:
        self.number = number
        self._source = source
        self._own = host_memory(source)
        if self._own is None and isinstance(source, np.ndarray) and not source.flags.writeable:
            raise TensorError("weights that are read-only", key=number)
        host = self._own if self._own is not None else to_host(source)
        self.numpy = host.dtype
        self.dtype = dtypes.by_name(dtypes.name_of(host.dtype))
        if not self.dtype.is_float:
            raise DtypeMismatch("a parameter that is no floats", key=number, got=host.dtype)
        self.shape, self.size = host.shape, host.size
        # Where the weights are not in host memory this stands for them.
        self._host = self._own if self._own is not None else np.empty(self.shape, self.numpy)
        self.state: dict[str, Array] = {}
        self.updates = 0

    def __repr__(self) -> str:
        return f"<parameter {self.number}: {self.dtype.name}{list(self.shape)}>"

    def read(self) -> Array:
        """Return the weights of now, flat, to be read and written; `write_back` makes it count."""
        if self._own is None:
            np.copyto(self._host, to_host(self._source))
        return self._host.reshape(-1)

    def write_back(self) -> None:
        """Bring what was written into what `read` returned to the parameter's own array."""
        if self._own is None:
            from_host(self._source, self._host)

    def gradient(self, given: Any) -> Array:
        """Return a gradient of this parameter on the host, flat, to be read.

        Raises:
            ShapeMismatch, DtypeMismatch: It does not fit.
        """
        host = _on_host(given, f"the gradient of parameter {self.number}")
        if host.shape != self.shape:
            raise ShapeMismatch("a gradient of another shape than its parameter",
                                key=self.number, expected=self.shape, got=host.shape)
        if host.dtype != self.numpy:
            raise DtypeMismatch("a gradient of another dtype than its parameter",
                                key=self.number, expected=self.numpy, got=host.dtype)
        return host.reshape(-1)

    def wide(self, flat: Array) -> Array:
        """Return a copy of values of this dtype as floats that can be computed with."""
        return self.dtype.widened(flat)

    def take(self, kept: Kept) -> None:
        """Go on from what was kept of it.

        Raises:
            CheckpointError: It is of another parameter.
        """
        updates, state = kept
        for name, array in state.items():
            if array.shape != (self.size,) or array.dtype != self.dtype.sum:
                raise CheckpointError(
                    f"{name!r} of another parameter", key=self.number,
                    expected=f"{self.size} of {self.dtype.sum}",
                    got=f"{array.shape} of {array.dtype}")
        self.updates = updates
        self.state = {name: array.copy() for name, array in state.items()}


class Parameters:
    """All parameters that have come, and what waits for those that have not."""

    def __init__(self) -> None:
        self._known: dict[Any, DistParameter] = {}
        self._all: list[DistParameter] = []
        self._waiting: dict[int, Kept] = {}

    def __iter__(self) -> Iterator[DistParameter]:
        return iter(self._all)

    def __len__(self) -> int:
        return len(self._all)

    def of(self, source: Any) -> DistParameter:
        """Return the parameter that this array is, or that this object has as its `data`.

        Raises:
            TensorError: It is neither.
        """
        array = source
        if library_of(source) is None:
            array = getattr(source, "data", None)
            if library_of(array) is None:
                raise TensorError(
                    "not a parameter", got=shown(source),
                    expected="an array of NumPy or CuPy, a torch tensor, or something with data")
        identity = _identity(array)
        found = self._known.get(identity)
        if found is None:
            found = DistParameter(len(self._all), array)
            if found.number in self._waiting:
                found.take(self._waiting[found.number])
                del self._waiting[found.number]
            # It holds the array, whose memory no other can have as long as it does.
            self._known[identity] = found
            self._all.append(found)
        return found

    def kept(self) -> dict[int, Kept]:
        """Return what is kept of each, by number; the arrays are in use."""
        return {**self._waiting, **{each.number: (each.updates, each.state) for each in self._all}}

    def take(self, kept: dict[int, Kept]) -> None:
        """Go on from there; what is about a parameter that has not come waits for it.

        Raises:
            CheckpointError: It is of other parameters; nothing has changed.
        """
        there = {each.number: each for each in self._all}
        before = {each: (each.updates, each.state) for each in self._all}
        try:
            for number, each in there.items():
                each.take(kept.get(number, (0, {})))
        except CheckpointError:
            for each, (updates, state) in before.items():
                each.updates, each.state = updates, state
            raise
        self._waiting = {number: what for number, what in kept.items() if number not in there}


def flat_host(array: Any) -> Array:
    """Return an array of the user's as a flat one on the host, to be read.

    Raises:
        TensorError: It is no array of floats.
    """
    host = _on_host(array, "a tensor")
    if not dtypes.by_name(dtypes.name_of(host.dtype)).is_float:
        raise DtypeMismatch("a tensor that is no floats", got=host.dtype)
    return host.reshape(-1)


def _on_host(given: Any, what: str) -> Array:
    try:
        host = to_host(given)
    except (TypeError, ValueError) as error:
        raise TensorError(f"{what} is no array: {error}") from None
    return host if host.dtype.isnative else host.astype(host.dtype.newbyteorder("="))


def _identity(array: Any) -> Any:
    library = library_of(array)
    if library == "torch":
        return library, array.data_ptr(), tuple(array.shape), array.stride(), str(array.dtype)
    if library == "cupy":
        return library, array.data.ptr, tuple(array.shape), array.strides, str(array.dtype)
    if math.prod(array.shape) == 0:  # it has no memory of its own
        return id(array)
    return (library, array.__array_interface__["data"][0], array.shape, array.strides,
            array.dtype.str)
