"""PowerSGD of one worker in plain float64, written from the paper (algorithms 1 and 2)."""

from __future__ import annotations

from typing import Any

import numpy as np


def first_q(n: int, rank: int, seed: int, push: int = 1) -> Any:
    """Normal values of the Mersenne Twister that the two words of the seed and the push begin."""
    state = np.random.RandomState([seed % 2**32, seed // 2**32, push, 0])
    return state.normal(0.0, 1.0, (n, rank))


def gram_schmidt(p: Any) -> Any:
    """The columns, one after the other, without what lies along those before."""
    found: list[Any] = []
    for column in p.T:
        for other in found:
            column = column - (other @ column) * other
        length = np.linalg.norm(column)
        found.append(column / length)
    return np.stack(found, axis=1)


class Model:
    """What is sent of each gradient, an m x n matrix, and what stays."""

    def __init__(self, q: Any, feedback: bool = True) -> None:
        self.q = np.array(q, np.float64)
        self.error: Any = 0.0
        self._feedback = feedback

    def push(self, gradient: Any) -> Any:
        matrix = gradient.astype(np.float64) + self.error
        p = gram_schmidt(matrix @ self.q)
        self.q = matrix.T @ p
        sent = p @ self.q.T
        if self._feedback:
            self.error = matrix - sent
        return sent


def payload_bytes(begin: int, stop: int, n: int, rank: int) -> int:
    """Of elements [begin, stop) of a matrix with n columns: 12, the rows of P, all of Q'."""
    rows = len({at // n for at in (*range(begin, stop, n), stop - 1)})
    return min(12 + 4 * rank * (rows + n), 4 * (stop - begin))
