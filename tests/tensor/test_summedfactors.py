"""The sum of matrices as two thin ones, step by step, against NumPy in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from asyncps.tensor import summedfactors as factors

SHAPES = [(40, 30), (3, 500), (500, 3), (2, 2)]


def matrix(shape: tuple[int, int], seed: int) -> Any:
    return np.random.default_rng(seed).standard_normal(shape).astype("f4")


@pytest.mark.parametrize("rank", [1, 2])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_power_iteration_of_the_sum(shape: tuple[int, int], rank: int) -> None:
    each = [matrix(shape, seed) for seed in range(3)]
    total = sum(one.astype("f8") for one in each)
    before = matrix((shape[1], rank), 9)

    p = sum(factors.first(one.reshape(-1), before, 1, 1) for one in each)
    basis = factors.orthonormal(p)
    own = [factors.second(one.reshape(-1), basis) for one in each]
    q = sum(own)
    out = np.full(shape[0] * shape[1], np.nan, "f4")
    factors.product(out, basis, q)

    span, _ = np.linalg.qr(total @ before)
    np.testing.assert_allclose(out.reshape(shape), span @ span.T @ total, atol=2e-4)
    left = [one.reshape(-1).copy() for one in each]
    for rest, mine in zip(left, own, strict=True):
        factors.leave(rest, basis, mine)
    np.testing.assert_allclose(sum(left) + out, total.reshape(-1), atol=2e-4)


def test_columns_become_orthonormal_and_dependent_ones_zero() -> None:
    p = matrix((50, 4), 0)
    p[:, 2] = 3 * p[:, 0] - p[:, 1]
    basis = factors.orthonormal(p)
    np.testing.assert_allclose(basis.T @ basis, np.diag([1, 1, 0, 1]), atol=1e-6)
    assert not basis[:, 2].any()
    for zero in (np.zeros((5, 2), "f4"), np.zeros((0, 2), "f4")):
        assert not factors.orthonormal(zero).any()


@pytest.mark.parametrize("scale", [1e-30, 1.0, 1e35])
def test_columns_of_any_size(scale: float) -> None:
    basis = factors.orthonormal(matrix((60, 3), 4) * np.float32(scale))
    np.testing.assert_allclose(basis.T @ basis, np.eye(3), atol=1e-6)


def test_nearly_dependent_columns_are_at_right_angles_all_the_same() -> None:
    p = matrix((100, 2), 1)
    p[:, 1] = p[:, 0] + 1e-4 * p[:, 1]
    basis = factors.orthonormal(p)
    np.testing.assert_allclose(basis.T @ basis, np.eye(2), atol=1e-6)


def test_what_cannot_be_factored_without_an_infinity_is_told() -> None:
    x = matrix((100, 50), 0)
    assert factors.are_factored([x.reshape(-1), None], (100, 50))
    x[1, 2] = 0.6e36
    assert factors.are_factored([x.reshape(-1), None], (100, 50))
    assert not factors.are_factored([x.reshape(-1), x.reshape(-1)], (100, 50))
