"""What gradients hold before they are quantized: NaN and infinities, the largest magnitude."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from asyncps_ext.reference.checks import check_floats, check_like

__all__ = ["count_nonfinite", "first_nonfinite", "largest"]

Floats = NDArray[np.float32]


def count_nonfinite(x: Floats, residual: Floats | None = None) -> int:
    """Return how many values are NaN or infinite.

    Args:
        x: float32, only read.
        residual: float32 of as many elements, only read, x itself too; then x + residual is looked
            at, added in float32 as encoders do: it may overflow where both are finite.
    """
    return int(np.count_nonzero(_is_nonfinite(x, residual)))


def first_nonfinite(x: Floats, residual: Floats | None = None) -> int:
    """Return the index of the first value that is NaN or infinite, or -1; see count_nonfinite."""
    found = np.flatnonzero(_is_nonfinite(x, residual))
    return int(found[0]) if found.size else -1


def largest(x: Floats) -> float:
    """Return the largest magnitude: nan where there is a NaN, 0.0 where there is nothing.

    Args:
        x: float32, only read.
    """
    check_floats(x, "x")
    return float(np.abs(x).max()) if x.size else 0.0


def _is_nonfinite(x: Floats, residual: Floats | None) -> NDArray[np.bool_]:
    check_floats(x, "x")
    if residual is not None:
        check_floats(residual, "residual")
        check_like(residual, "residual", x, "x")
        with np.errstate(all="ignore"):
            x = x + residual
    is_nonfinite: NDArray[np.bool_] = ~np.isfinite(x)
    return is_nonfinite
