"""What the tests of update steps share: the variants of the kernels, the clipping of a model."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from asyncps_ext import optim, reference
from tests.asyncps_ext.arrays import LAYOUTS, each_variant

BODIES = pytest.mark.parametrize("body", [optim, reference.optim], ids=["chosen", "reference"])
FLOATS = pytest.mark.parametrize("dtype", ["float32", "float64"])
layouts = pytest.mark.parametrize("layout", LAYOUTS)


variant = each_variant(optim)


def clipped(x: Any, clip: Any) -> Any:
    """A gradient's element within bounds, as MXNet's operators clip it."""
    if not clip >= 0 or np.isnan(x):
        return x
    return min(max(x, -clip), clip) if abs(x) > clip else x
