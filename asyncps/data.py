"""Which examples of a data set a worker reads."""

from __future__ import annotations

import operator
import random
from collections.abc import Iterator

from asyncps.errors import ConfigError

__all__ = ["SplitSampler"]


class SplitSampler:
    """The indices of one part of a data set, in a new random order on every pass.

    The ``length`` indices are cut into ``num_parts`` runs of ``length // num_parts`` neighbours;
    part ``i`` is the i-th run. All parts are equally long, so all workers make the same number
    of batches; the ``length % num_parts`` last indices belong to no part. A part is a run of
    neighbours: data that is sorted by class must be shuffled before.

    The order comes from Python's global ``random`` module: ``random.seed(n)`` makes it
    repeatable. This is what the sampler of that name does in Apache MXNet's
    example/distributed_training, order for order.

    Args:
        length: how many examples the data set has.
        num_parts: into how many parts it is split, usually ``store.num_workers``.
        part_index: which part to read, from 0, usually ``store.rank``.

    Raises:
        ConfigError: an argument is not an integer or out of range.

    Example:
        >>> sampler = SplitSampler(10, num_parts=3, part_index=1)
        >>> len(sampler), sorted(sampler)
        (3, [3, 4, 5])
    """

    def __init__(self, length: int, num_parts: int = 1, part_index: int = 0) -> None:
        length = _integer("length", length)
        num_parts = _integer("num_parts", num_parts)
        part_index = _integer("part_index", part_index)
        if length < 0:
            raise ConfigError(f"SplitSampler: length must be 0 or more, got {length}")
        if num_parts < 1:
            raise ConfigError(f"SplitSampler: num_parts must be 1 or more, got {num_parts}")
        if not 0 <= part_index < num_parts:
            raise ConfigError(
                f"SplitSampler: part_index must be in 0..{num_parts - 1}"
                f" (num_parts={num_parts}), got {part_index}"
            )
        part_length = length // num_parts
        self._part = range(part_length * part_index, part_length * (part_index + 1))

    def __iter__(self) -> Iterator[int]:
        """Every index of the part once, in an order drawn for this pass."""
        indices = list(self._part)
        random.shuffle(indices)
        return iter(indices)

    def __len__(self) -> int:
        """How many examples the part has."""
        return len(self._part)

    def __repr__(self) -> str:
        return f"SplitSampler(indices {self._part.start}..{self._part.stop - 1})"


def _integer(name: str, value: object) -> int:
    """``value`` as an int; NumPy's integers are welcome, floats and bools are not."""
    if isinstance(value, bool):
        raise ConfigError(f"SplitSampler: {name} must be an integer, got {value!r}")
    try:
        return operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        raise ConfigError(f"SplitSampler: {name} must be an integer, got {value!r}") from None
