"""Random indices, the same on every machine, in plain NumPy."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from asyncps_ext.reference.checks import check_array, check_dtype

__all__ = ["random_indices"]

_MOST = 1 << 32


def random_indices(seed: int, n: int, k: int, indices: NDArray[np.uint32]) -> None:
    """Draw k different indices of 0..n-1: all sets of k are equally likely.

    A function of seed, n and k alone, in integers, so the same on every machine. Words are the
    upper halves of the numbers of SplitMix64 (Steele, Lea, Flood, "Fast splittable pseudorandom
    number generators", 2014), which starts at its own finalizer of the seed. A word w becomes index
    w * n // 2**32; those with w * n % 2**32 < 2**32 % n are left out, so that all are equally
    likely (Lemire, "Fast random integer generation in an interval", 2019). As many words are taken
    as indices are missing, their indices are united with those had before, and so on until there
    are k. If k is more than n - k the n - k indices that are not in the result are drawn instead.
    Memory and time go with k and k log k.

    Args:
        seed: 0 to 2**64 - 1, see `seeds.seed_of`.
        n: 0 to 2**32.
        k: 0 to n.
        indices: uint32 of k elements, written, ascending.
    """
    check_array(indices, "indices", written=True)
    check_dtype(indices, "indices", "uint32")
    if not 0 <= seed < 1 << 64 or not 0 <= n < 1 << 64:
        raise OverflowError("seed and n must be from 0 to 2**64 - 1")
    if n > _MOST:
        raise ValueError(f"n must be from 0 to 2**32, not {n}")
    if not 0 <= k <= n:
        raise ValueError(f"k must be from 0 to {n}, not {k}")
    if indices.size != k:
        raise ValueError(f"indices has {indices.size} elements, expected {k}")
    if k <= n - k:
        indices[:] = _drawn(seed, n, k)
    else:
        is_left = np.ones(n, bool)
        is_left[_drawn(seed, n, n - k)] = False
        indices[:] = np.flatnonzero(is_left)


def _drawn(seed: int, n: int, k: int) -> NDArray[np.int64]:
    chosen = np.empty(0, np.int64)
    start, words = _mixed(np.array([seed], np.uint64)), 0
    while chosen.size < k:
        missing = k - chosen.size
        number = np.arange(words + 1, words + missing + 1, dtype=np.uint64)
        product = (_mixed(start + number * np.uint64(0x9E3779B97F4A7C15)) >> 32) * np.uint64(n)
        fair = product[(product & 0xFFFFFFFF) >= _MOST % n]
        chosen = np.sort(np.concatenate([chosen, (fair >> 32).astype(np.int64)]))
        is_first = np.ones(chosen.size, bool)
        is_first[1:] = chosen[1:] != chosen[:-1]
        chosen = chosen[is_first]
        words += missing
    return chosen


def _mixed(z: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The finalizer of SplitMix64."""
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))
