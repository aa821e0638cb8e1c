"""The examples are scripts: their folder goes on the path, as `python examples/x.py` does it."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from unittest import mock

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"

sys.path.insert(0, str(EXAMPLES))
with mock.patch.dict(os.environ):  # mnist_cnn sets the number of BLAS threads
    import mnist_cnn  # noqa: F401

from datasets import Dataset  # noqa: E402 - of examples

from tests.support.stripes import dataset  # noqa: E402


@pytest.fixture
def data() -> Dataset:
    """Images that are easy to learn."""
    return dataset()
