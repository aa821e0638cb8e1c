"""Matrices of low rank: a key as a matrix, one power iteration, and parts of a product.

A key is flat, and cut where its bytes are cut, not at its rows. So a part of it begins in a row and
ends in one, and `spread` makes as much of a product as that part holds, in a scratch of its own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from asyncps.tensor.codecs.base import Floats

Store = Callable[[Floats, Floats], None]  # brings computed values into their place

_BLOCK = 1 << 16  # elements of a product that are made at once: they stay in the cache
# As large a power of two as a start is multiplied or divided by: both stay normal numbers.
_MOST_SCALE = 100


def sides(shape: Sequence[int]) -> tuple[int, int]:
    """Return the sides of a key as a matrix: its first axis, and the product of the others.

    Axes of one element count for nothing; what has fewer than two others is a vector, a column.
    """
    axes = [length for length in shape if length != 1]
    if len(axes) < 2:
        return math.prod(axes), 1
    return axes[0], math.prod(axes[1:])


def rows_of(begin: int, stop: int, n: int) -> int:
    """Return how many rows of n elements [begin, stop) touches."""
    return (stop - 1) // n - begin // n + 1


def drawn(n: int, rank: int, seed: int, push: int) -> npt.NDArray[np.float64]:
    """Return a start that nothing is known for: normal values, the same for the same numbers."""
    words = [seed & 0xFFFFFFFF, seed >> 32, push & 0xFFFFFFFF, push >> 32]
    return np.random.RandomState(words).standard_normal((n, rank))


def started(before: Floats, seed: int, push: int, most: float) -> Floats:
    """Return the matrix to multiply by, float32[n, rank].

    Args:
        before: What the last one led to, float32[n, rank]. Of a column that says nothing, since it
            is zero, a random one takes the place.
        seed, push: What that is drawn from.
        most: The largest magnitude of what is to be multiplied; so that the product neither
            overflows nor underflows, the columns, whose length changes nothing, suit it.
    """
    q = before.astype(np.float64)
    norms = np.sqrt(np.square(q).sum(axis=0))
    dead = ~((norms > 0) & np.isfinite(norms))
    if dead.any():
        q[:, dead] = drawn(len(q), q.shape[1], seed, push)[:, dead]
        norms = np.sqrt(np.square(q).sum(axis=0))
    exponent = -math.frexp(most)[1]
    q *= math.ldexp(1.0, max(-_MOST_SCALE, min(_MOST_SCALE, exponent))) / norms
    return q.astype(np.float32)


def orthonormal(p: Floats) -> Floats:
    """Return columns of length 1 at right angles, which span what these do, and perhaps more.

    In float64. Their signs are those of Gram and Schmidt. Columns that depend on others, or are
    zero, become any that fit.
    """
    basis, triangle = np.linalg.qr(p.astype(np.float64))
    basis *= np.where(np.diagonal(triangle) < 0, -1.0, 1.0)
    return basis.astype(np.float32)


def spread(store: Store, out: Floats, column: int, p: Floats, q: Floats) -> None:
    """Make the elements of p @ q.T that lie in `out`, and store them there.

    Args:
        store: Called with parts of `out` and their values, which are only lent.
        out: float32, one row behind the other; the first is cut at its begin, the last at its end.
        column: Where in p's first row `out` begins.
        p: float32[rows, rank], of the rows that `out` touches.
        q: float32[n, rank].
    """
    n = len(q)
    step = max(1, _BLOCK // n)
    scratch = np.empty(min(step * n, out.size), np.float32)
    done = row = 0

    def rows(count: int, begin: int, stop: int) -> None:
        nonlocal done, row
        size = count * (stop - begin)
        made = scratch[:size].reshape(count, stop - begin)
        np.matmul(p[row : row + count], q[begin:stop].T, out=made)
        store(out[done : done + size].reshape(made.shape), made)
        done, row = done + size, row + count

    with np.errstate(all="ignore"):  # what is too large becomes infinite, as in any sum
        if column:
            rows(1, column, min(n, column + out.size))
        while out.size - done >= n:
            rows(min(step, (out.size - done) // n), 0, n)
        if done < out.size:
            rows(1, 0, out.size - done)
