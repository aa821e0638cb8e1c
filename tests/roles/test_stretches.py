"""Elements of keys, bytes of units: every element travels once, in ranges of a few MiB."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from asyncps.protocol.messages import KeySpec
from asyncps.roles.stretches import places_of, ranges_of
from asyncps.state.routing import Routing


@given(
    sizes=st.lists(st.integers(0, 70_000), min_size=1, max_size=12), servers=st.integers(1, 4),
    skipped=st.sets(st.integers(0, 11)), itemsize=st.sampled_from([1, 8]),
    most=st.integers(8, 40_000), small=st.integers(0, 4096),
)
def test_every_element_travels_once(
    sizes: list[int], servers: int, skipped: set[int], itemsize: int, most: int, small: int
) -> None:
    routing = Routing(servers, 32_768, 4096, small)
    specs = [KeySpec(key, "float32", (size,), 4) for key, size in enumerate(sizes)]
    seen: dict[Any, Any] = {key: np.zeros(n * itemsize, int) for key, n in enumerate(sizes)}
    for place in places_of(routing.declare(specs)):
        assert 0 <= place.server < servers
        end = 0
        wanted = [each for each in place.stretches if each.key not in skipped]
        for found in ranges_of(wanted, itemsize, most):
            assert 0 < found.size <= max(most, itemsize)
            assert sum(part.size for part in found.parts) == found.size
            for part in found.parts:
                held = next(each for each in place.stretches if each.key == part.key)
                # The same element, counted in the unit and in the key.
                assert found.begin + part.at - held.begin * itemsize == (
                    part.start - held.start * itemsize)
                seen[part.key][part.start : part.start + part.size] += 1
            assert found.begin >= end
            end = found.begin + found.size
    for key, marks in seen.items():
        assert (marks == (0 if key in skipped else 1)).all()
