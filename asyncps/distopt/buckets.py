"""Which gradients travel together: the rule of a threshold, and the memory they are packed in."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Generic, TypeVar

import numpy as np

from asyncps.distopt.parameters import DistParameter
from asyncps.errors import ConfigError, shown
from asyncps.tensor.dtypes import Array

__all__ = ["Bucket", "Groups", "Packer", "Shelf", "checked_count"]

Item = TypeVar("Item")


class Groups(Generic[Item]):
    """SINGA's rule: what is larger than the threshold goes alone, the rest fills groups.

    A group is closed when its size exceeds the threshold, and the last one at the end. What is
    large does not close the group that is open.

    Args:
        threshold: Of any unit that sizes have too.
    """

    def __init__(self, threshold: float) -> None:
        self._threshold = threshold
        self._open: list[Item] = []
        self._size = 0

    def goes_alone(self, size: int) -> bool:
        """Tell whether something of this size is a group of its own."""
        return size > self._threshold

    def add(self, item: Item, size: int) -> list[Item]:
        """Take the next one; returns a group that is closed now, or nothing."""
        if self.goes_alone(size):
            return [item]
        self._open.append(item)
        self._size += size
        return self.rest() if self._size > self._threshold else []

    def rest(self) -> list[Item]:
        """Close the group that is open, and return it, empty if there is none."""
        closed, self._open, self._size = self._open, [], 0
        return closed


class Bucket:
    """Gradients side by side, of one dtype.

    Args:
        room: Memory of its own until its call is over.

    Attributes:
        parts: Parameters, each with the begin and end of its gradient.
        sent: What whoever sends it keeps about it.
    """

    def __init__(self, room: Room) -> None:
        self._room = room
        self.parts: list[tuple[DistParameter, int, int]] = []
        self.size = 0
        self.sent: Any = None

    def add(self, parameter: DistParameter, gradient: Array) -> None:
        """Copy a gradient in."""
        begin, self.size = self.size, self.size + gradient.size
        self._room.reserve(begin, self.size)
        self._room.array[begin : self.size] = gradient
        self.parts.append((parameter, begin, self.size))

    @property
    def values(self) -> Array:
        """All of them, flat."""
        return self._room.array[: self.size]


class Room:
    """Memory that grows and is used again: fresh large memory costs a page fault each 4 KiB."""

    def __init__(self, dtype: np.dtype[Any]) -> None:
        self.array: Array = np.empty(0, dtype)

    def reserve(self, used: int, size: int) -> None:
        """Have room for `size` elements; the first `used` are kept."""
        if size > self.array.size:
            before = self.array
            self.array = np.empty(size if used == 0 else max(size, 2 * before.size), before.dtype)
            self.array[:used] = before[:used]


class Shelf:
    """The rooms of all buckets, in the order in which a call asks for them."""

    def __init__(self) -> None:
        self._rooms: dict[np.dtype[Any], list[Room]] = {}
        self._taken: dict[np.dtype[Any], int] = {}

    def take(self, dtype: Any) -> Room:
        """Lend a room of this dtype until `restore`."""
        kind = np.dtype(dtype)
        rooms, taken = self._rooms.setdefault(kind, []), self._taken.get(kind, 0)
        if taken == len(rooms):
            rooms.append(Room(kind))
        self._taken[kind] = taken + 1
        return rooms[taken]

    def array(self, dtype: Any, size: int) -> Array:
        """Lend memory of one size until `restore`."""
        room = self.take(dtype)
        room.reserve(0, size)
        return room.array[:size]

    def restore(self) -> None:
        """Take all back: nobody reads or writes them any more."""
        self._taken.clear()


class Packer:
    """Gradients as they come into buckets that can be sent.

    Args:
        threshold: See `Groups`.
        by_bytes: It counts bytes of gradients, not elements.
        shelf: Where memory is from.
        dtype_of: The dtype in which a parameter's gradient is packed; a group whose gradients
            differ in it is a bucket of each.
    """

    def __init__(
        self, threshold: float, by_bytes: bool, shelf: Shelf,
        dtype_of: Callable[[DistParameter], np.dtype[Any]],
    ) -> None:
        self._groups: Groups[DistParameter] = Groups(threshold)
        self._by_bytes = by_bytes
        self._shelf = shelf
        self._dtype_of = dtype_of
        self._open: dict[np.dtype[Any], Bucket] = {}

    def add(self, parameter: DistParameter, gradient: Array) -> list[Bucket]:
        """Copy a gradient; returns the buckets that can be sent now."""
        dtype, size = self._dtype_of(parameter), weight(parameter, self._by_bytes)
        alone = self._groups.goes_alone(size)
        if alone or dtype not in self._open:
            bucket = Bucket(self._shelf.take(dtype))
        else:
            bucket = self._open[dtype]
        bucket.add(parameter, gradient)
        if alone:
            return [bucket]
        self._open[dtype] = bucket
        return self._close() if self._groups.add(parameter, size) else []

    def rest(self) -> list[Bucket]:
        """Return what is left."""
        self._groups.rest()
        return self._close()

    def _close(self) -> list[Bucket]:
        closed = list(self._open.values())
        self._open = {}
        return closed


def weight(parameter: DistParameter, by_bytes: bool) -> int:
    """Return what a parameter counts for a threshold: its elements or their bytes."""
    return parameter.size * (parameter.numpy.itemsize if by_bytes else 1)


def cut(values: Array, most: int) -> Iterator[Array]:
    """Cut flat values into pieces of at most `most` elements; of none there is one, empty."""
    for begin in range(0, max(values.size, 1), most):
        yield values[begin : begin + most]


def checked_count(word: str, value: Any, least: int = 1) -> int:
    """Return a whole number of at least `least`.

    Raises:
        ConfigError: It is none.
    """
    if isinstance(value, bool) or not hasattr(value, "__index__") or int(value) < least:
        raise ConfigError(f"{word} is a whole number", expected=f"at least {least}",
                          got=shown(value))
    return int(value)
