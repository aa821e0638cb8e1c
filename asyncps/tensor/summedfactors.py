"""The sum of many matrices as the product of two thin ones: what each rank computes of its own.

Source: Vogels, Karimireddy and Jaggi 2019, over sums instead of means. With Q of the sum before,
the products M Q of all ranks are summed; their columns, made orthonormal, are P; the products M^T P
of all ranks are summed, and are the next Q. The sum is P Q^T. What a rank has not sent is its own
M - P (M^T P)^T.

All ranks must come to the same bits whatever machines they are, so what all compute of the same
numbers is written as additions and multiplications in a fixed order, and no BLAS is asked.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from asyncps.tensor.codecs.base import Floats
from asyncps.tensor.codecs.matrices import sides, spread, started
from asyncps_ext import quantize

Wide = npt.NDArray[np.float64]

# Largest magnitudes times the root of the longer side: no factor of a matrix below it has an
# infinity, nor the sum of those of 30 ranks.
_MOST_FACTORED = 1e37

_DEPENDENT = 1e-7  # a column of which less is left, beside the others, is one of theirs
_LANES = 64
_BLOCK = 1 << 15  # elements that are made at once: they stay in the cache


def are_factored(terms: Sequence[Floats | None], shape: tuple[int, ...]) -> bool:
    """Tell whether the sum of some matrices, None for zeros, is factored without an infinity."""
    largest = sum(quantize.largest(term) for term in terms if term is not None)
    return largest * math.sqrt(max(sides(shape))) <= _MOST_FACTORED


def first(matrix: Floats, before: Floats, seed: int, push: int) -> Floats:
    """Return this rank's part of P, before its columns are orthonormal: float32[m, rank].

    Args:
        matrix: float32[m * n], M.
        before: float32[n, rank], the same at all ranks: what the sum before led to, zeros at first.
        seed, push: What a column is drawn from that is zero; the same at all ranks.
    """
    found: Floats = np.matmul(matrix.reshape(-1, len(before)), started(before, seed, push, 1.0))
    return found


def second(matrix: Floats, p: Floats) -> Floats:
    """Return this rank's part of Q: float32[n, rank].

    Args:
        matrix: As `first` had it.
        p: float32[m, rank], orthonormal.
    """
    found: Floats = np.matmul(matrix.reshape(len(p), -1).T, p)
    return found


def leave(matrix: Floats, p: Floats, q: Floats) -> None:
    """Let what this rank has not sent be in its matrix: M - P Q^T, with its own part of Q."""
    spread(_subtract, matrix, 0, p, q)


def orthonormal(p: Floats) -> Floats:
    """Return columns of length 1 at right angles that span what these do; zeros for those that
    depend on others. The same bits everywhere.

    Source: Gram and Schmidt, each column twice, in float64.
    """
    columns = np.ascontiguousarray(p.T, np.float64)
    basis = np.zeros_like(columns)
    for at, column in enumerate(columns):
        length = _length(column)
        if not 0 < length < math.inf:
            continue
        left = column / length
        for _ in range(2):
            for other in basis[:at]:
                left -= other * _dot(other, left)
        rest = _length(left)
        if rest > _DEPENDENT:
            basis[at] = left / rest
    return np.ascontiguousarray(basis.T, np.float32)


def product(out: Floats, p: Floats, q: Floats) -> None:
    """out = P Q^T, float32[m * n]. The same bits everywhere."""
    n = len(q)
    rows = max(1, _BLOCK // n)
    term = np.empty((rows, n), np.float32)
    across = np.ascontiguousarray(q.T)
    with np.errstate(all="ignore"):  # what is too large becomes infinite, as in any sum
        for begin in range(0, len(p), rows):
            part = p[begin : begin + rows]
            made = out[begin * n : (begin + len(part)) * n].reshape(len(part), n)
            np.multiply(part[:, :1], across[:1], out=made)
            for at in range(1, len(across)):
                made += np.multiply(part[:, at : at + 1], across[at : at + 1],
                                    out=term[: len(part)])


def _dot(a: Wide, b: Wide) -> float:
    """Return a sum in which each addition has its place."""
    products = a * b
    whole = products.size - products.size % _LANES
    lanes = np.add.reduce(products[:whole].reshape(-1, _LANES), axis=0)
    return math.fsum([*lanes.tolist(), *products[whole:].tolist()])


def _length(a: Wide) -> float:
    return math.sqrt(_dot(a, a))


def _subtract(out: Floats, values: Floats) -> None:
    out -= values
