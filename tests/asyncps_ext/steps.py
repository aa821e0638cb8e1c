"""What the tests of update steps share: the variants of the kernels, the clipping of a model."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from asyncps_ext import optim, reference
from tests.asyncps_ext.arrays import LAYOUTS

BODIES = pytest.mark.parametrize("body", [optim, reference.optim], ids=["chosen", "reference"])
FLOATS = pytest.mark.parametrize("dtype", ["float32", "float64"])
layouts = pytest.mark.parametrize("layout", LAYOUTS)


@pytest.fixture(autouse=True, params=optim._variants())
def variant(request: pytest.FixtureRequest) -> Iterator[str]:
    """Each variant that this machine has, in every test of the module that imports this."""
    before = optim._set_variant(request.param)
    yield request.param
    optim._set_variant(before)


def clipped(x: Any, clip: Any) -> Any:
    """A gradient's element within bounds, as MXNet's operators clip it."""
    if not clip >= 0 or np.isnan(x):
        return x
    return min(max(x, -clip), clip) if abs(x) > clip else x
