"""Which examples of a data set a worker reads, and which of a batch a local device."""

from __future__ import annotations

import operator
import random
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from asyncps.errors import ConfigError

__all__ = ["SplitSampler", "data_partition", "split_and_load", "split_data"]

_REMAINDERS = ("drop", "pad", "uneven")


class SplitSampler:
    """The indices of one part of a data set, in a new random order on every pass.

    The ``length`` indices are cut into ``num_parts`` runs of neighbours; part ``i`` is the i-th
    run. As it stands without options this is what the sampler of that name does in Apache MXNet's
    example/distributed_training, order for order: all parts have ``length // num_parts`` indices,
    and the ``length % num_parts`` last ones belong to no part. A part is a run of neighbours: data
    that is sorted by class must be shuffled before, or ``seed`` be given.

    Args:
        length: how many examples the data set has.
        num_parts: into how many parts it is split, usually ``store.num_workers``.
        part_index: which part to read, from 0, usually ``store.rank``.
        remainder: what happens when the parts do not divide the data set. ``"drop"``: the rest
            belongs to no part. ``"pad"``: all parts are as long as the longest, and the last ones
            begin again with the first examples. ``"uneven"``: the first parts have one more; then
            workers make different numbers of batches, and one that has none left must leave.
        seed: with a seed the whole data set is permuted first, the same way on all ranks, and a
            part is a run of the permutation, read in its order. Without one each part is shuffled
            by itself by Python's global ``random`` module (``random.seed(n)`` makes it repeatable).

    Raises:
        ConfigError: an argument is not an integer, out of range or unknown.

    Example:
        >>> sampler = SplitSampler(10, num_parts=3, part_index=1)
        >>> len(sampler), sorted(sampler)
        (3, [3, 4, 5])
    """

    def __init__(
        self,
        length: int,
        num_parts: int = 1,
        part_index: int = 0,
        *,
        remainder: str = "drop",
        seed: int | None = None,
    ) -> None:
        self._length = _at_least("SplitSampler: length", length, 0)
        num_parts, part_index = _part("SplitSampler", num_parts, part_index)
        if remainder not in _REMAINDERS:
            raise ConfigError(
                "SplitSampler: unknown remainder", expected=", ".join(_REMAINDERS),
                got=repr(remainder),
            )  # fmt: skip
        self._seed = None if seed is None else _at_least("SplitSampler: seed", seed, 0)
        self._epoch = 0
        size, rest = divmod(self._length, num_parts)
        if remainder == "pad" and rest:
            size += 1
        start = size * part_index
        if remainder == "uneven":
            start += min(part_index, rest)
            size += part_index < rest
        self._places = range(start, start + size)  # of the permutation; past its end from its start

    def set_epoch(self, epoch: int) -> None:
        """Choose the permutation of the passes from now on; all ranks say the same number.

        Raises:
            ConfigError: there is no seed, so there is no common permutation; or no such epoch.
        """
        if self._seed is None:
            raise ConfigError("SplitSampler: set_epoch needs a seed", expected="seed=...")
        self._epoch = _at_least("SplitSampler: epoch", epoch, 0)

    def __iter__(self) -> Iterator[int]:
        """Every index of the part once, in the order of this pass."""
        if not self._length:
            return iter(())
        if self._seed is not None:
            # NumPy keeps the stream of RandomState and of SeedSequence from version to version.
            bits = np.random.MT19937(np.random.SeedSequence([self._seed, self._epoch]))
            order = np.random.RandomState(bits).permutation(self._length)
            return iter(order[np.asarray(self._places, np.intp) % self._length].tolist())
        indices = [place % self._length for place in self._places]
        random.shuffle(indices)
        return iter(indices)

    def __len__(self) -> int:
        """How many examples the part has."""
        return len(self._places)

    def __repr__(self) -> str:
        return f"SplitSampler(indices {self._places.start}..{self._places.stop - 1})"


def data_partition(x: Any, y: Any, rank: int, world_size: int) -> tuple[Any, Any]:
    """The ``rank``-th of ``world_size`` equal runs of a data set, as SINGA's examples do it.

    Args:
        x: examples along the first axis: an array, or anything with a length and slices.
        y: as many labels.
        rank: which run, from 0.
        world_size: how many runs.

    Returns:
        Examples and labels: slices, of arrays views. ``len(x) % world_size`` last examples belong
        to nobody.

    Raises:
        ConfigError: x and y are not equally long, or rank and world_size are no rank and size.
    """
    size, index = _part("data_partition", world_size, rank, "world_size", "rank")
    if len(x) != len(y):
        raise ConfigError("data_partition: x and y differ in length", expected=len(x), got=len(y))
    each = len(x) // size
    run = slice(each * index, each * (index + 1))
    return x[run], y[run]


def split_data(
    data: Any, num_slice: int, batch_axis: int = 0, even_split: bool = True
) -> list[Any]:
    """A batch in ``num_slice`` slices along an axis, as Gluon cuts it.

    Args:
        data: an array, or what NumPy makes one of.
        num_slice: how many slices.
        batch_axis: which axis counts the examples.
        even_split: refuse a batch that cannot be cut into equal slices; else the first ones have
            one more.

    Returns:
        Views of the batch.

    Raises:
        ConfigError: the batch cannot be cut like that.
    """
    count = _at_least("split_data: num_slice", num_slice, 1)
    if not (hasattr(data, "shape") and hasattr(data, "__getitem__")):
        data = np.asarray(data)
    axis = _integer("split_data: batch_axis", batch_axis)
    if not -len(data.shape) <= axis < len(data.shape):
        raise ConfigError("split_data: no such axis", expected=f"shape {tuple(data.shape)}",
                          got=axis)  # fmt: skip
    axis %= len(data.shape)
    each, rest = divmod(data.shape[axis], count)
    if even_split and rest:
        raise ConfigError(
            f"split_data: shape {tuple(data.shape)} cannot be cut evenly along axis {axis}",
            expected=f"a multiple of {count}, or even_split=False", got=data.shape[axis],
        )  # fmt: skip
    edges = [i * each + min(i, rest) for i in range(count + 1)]
    before = (slice(None),) * axis
    return [data[(*before, slice(*edges[i : i + 2]))] for i in range(count)]


def split_and_load(
    data: Any, devices: int | Sequence[Any], batch_axis: int = 0, even_split: bool = True
) -> list[Any]:
    """A batch in one slice for each local device, as Gluon's function of that name.

    Args:
        data: as in `split_data`.
        devices: how many, or a list of them. To NumPy a device is just a place in the list: the
            slices stay where the batch is, and whoever computes moves them.
        batch_axis: as in `split_data`.
        even_split: as in `split_data`.

    Returns:
        Views of the batch, one a device.

    Raises:
        ConfigError: there is no device, or the batch cannot be cut like that.
    """
    if isinstance(devices, (list, tuple)):
        devices = len(devices)
    count = _at_least("split_and_load: devices", devices, 1)
    return split_data(data, count, batch_axis, even_split)


def _part(
    who: str, parts: object, index: object, parts_name: str = "num_parts",
    index_name: str = "part_index",
) -> tuple[int, int]:  # fmt: skip
    """A number of parts, and which of them, checked."""
    count = _at_least(f"{who}: {parts_name}", parts, 1)
    number = _integer(f"{who}: {index_name}", index)
    if not 0 <= number < count:
        raise ConfigError(
            f"{who}: {index_name} must be in 0..{count - 1} ({parts_name}={count}), got {number}"
        )
    return count, number


def _at_least(name: str, value: object, least: int) -> int:
    number = _integer(name, value)
    if number < least:
        raise ConfigError(f"{name} must be {least} or more, got {number}")
    return number


def _integer(name: str, value: object) -> int:
    """``value`` as an int; NumPy's integers are welcome, floats and bools are not."""
    if isinstance(value, bool):
        raise ConfigError(f"{name} must be an integer, got {value!r}")
    try:
        return operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        raise ConfigError(f"{name} must be an integer, got {value!r}") from None
