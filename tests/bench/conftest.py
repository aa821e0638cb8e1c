"""What a benchmark judges and expects is tested; its folder is on the path for these modules only.

It does not stay there, nor that of bench/peers: examples/ has a `report` of its own.
"""

from __future__ import annotations

import sys
from pathlib import Path

BENCH = str(Path(__file__).parents[2] / "bench")

before = list(sys.path)
sys.path.insert(0, BENCH)
import codectable  # noqa: E402, F401
import collectives  # noqa: E402, F401
import compression_worker  # noqa: E402, F401
import links  # noqa: E402, F401
import verdicts  # noqa: E402, F401

import distopt  # noqa: E402, F401

sys.path[:] = before
