"""Whether no array comes twice among many."""

from __future__ import annotations

from types import ModuleType

import numpy as np
import pytest

from asyncps_ext import reference, wire

BODIES = pytest.mark.parametrize("body", [wire, reference.wire], ids=["chosen", "reference"])


@BODIES
@pytest.mark.parametrize("many", [0, 1, 2, 3, 64, 1000])
def test_arrays_that_are_all_different(body: ModuleType, many: int) -> None:
    arrays = [np.empty(1) for _ in range(many)]
    assert body.distinct(arrays) is True
    assert body.distinct(tuple(arrays)) is True
    for place in {0, many // 2, many}:
        if arrays:
            again = [*arrays[:place], arrays[many // 3], *arrays[place:]]
            assert body.distinct(again) is False
        for other in (None, 1, [np.empty(1)], np.empty(1).view(np.matrix), np.float32(1)):
            assert body.distinct([*arrays[:place], other, *arrays[place:]]) is False
