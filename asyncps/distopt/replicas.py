"""Whether all workers have the same weights, to the bit, and who has not."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable
from typing import Any

import numpy as np

from asyncps.distopt.calls import Calls
from asyncps.distopt.parameters import DistParameter
from asyncps.errors import Disagreement
from asyncps.tensor.dtypes import Array

__all__ = ["check_replicas", "drifted"]

_SHOWN = 8  # parameters, or ranks, that a message names


def check_replicas(calls: Calls, parameters: Iterable[DistParameter]) -> None:
    """Compare digests of all parameters over all workers.

    Raises:
        Disagreement: They differ; it names ranks and parameters.
    """
    # The first column is there when no parameter is: a row has an element at least.
    mine = np.array([[0, *map(_digest, parameters)]], np.int64)
    found = drifted(calls.all_gather(mine).wait()[:, 1:])
    if found:
        names = ", ".join(map(str, list(found)[:_SHOWN]))
        where = sorted({number for numbers in found.values() for number in numbers})
        shown = ", ".join(map(str, where[:_SHOWN])) + (", ..." if len(where) > _SHOWN else "")
        raise Disagreement(
            f"replicas have drifted apart: rank {names} differs in {len(where)} parameters"
            f" ({shown})", rank=next(iter(found)), expected="the same weights on all workers")


def drifted(digests: Array) -> dict[int, list[int]]:
    """Return who differs, and in which parameters.

    Args:
        digests: int64, a row for each rank, a column for each parameter.

    Returns:
        By rank the columns in which it has not what most ranks have; where no value has a majority
        over another it is the one of the lowest rank that counts.
    """
    found: dict[int, list[int]] = {}
    for column in range(digests.shape[1]):
        values = digests[:, column].tolist()
        right = Counter(values).most_common(1)[0][0]  # of equals the one that came first
        for rank, value in enumerate(values):
            if value != right:
                found.setdefault(rank, []).append(column)
    return dict(sorted(found.items()))


def _digest(parameter: DistParameter) -> int:
    weights: Any = parameter.read().view(np.uint8)
    return int.from_bytes(hashlib.blake2b(weights, digest_size=8).digest(), "little", signed=True)
