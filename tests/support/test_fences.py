"""The fence that tests of decoders put around their arrays."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from tests.support.fences import Fence

STRAY = """
import ctypes, numpy as np
from tests.support.fences import Fence
array = Fence(100).{place}(np.arange(10, dtype="u1"))
print("here", flush=True)
ctypes.{call}
print("and there")
"""
BEHIND, BEFORE = "array.ctypes.data + 10", "array.ctypes.data - 1"


@pytest.mark.parametrize(("place", "call"), [
    ("back", f"string_at({BEHIND}, 1)"), ("front", f"string_at({BEFORE}, 1)"),
    ("back", f"memset({BEHIND}, 1, 1)"), ("front", f"memset({BEFORE}, 1, 1)"),
])  # fmt: skip
def test_one_byte_beyond_ends_the_process(place: str, call: str) -> None:
    code = STRAY.format(place=place, call=call)
    ended = subprocess.run([sys.executable, "-c", code], timeout=20, capture_output=True, text=True)
    assert ended.returncode
    assert ended.stdout == "here\n"


@pytest.mark.parametrize("size", [0, 1, 3, 4096, 5000])
def test_arrays_lie_there_with_their_content_and_what_is_written_beside_them_shows(
    size: int,
) -> None:
    fence = Fence(5000)
    content = np.random.default_rng(size).integers(0, 256, size, np.uint8)
    for put in (fence.back, fence.front):
        array = put(content)
        assert np.array_equal(array, content)
        assert fence.is_whole(array)
    inner = fence._inner
    inner[size] ^= 1
    assert not fence.is_whole(array)
