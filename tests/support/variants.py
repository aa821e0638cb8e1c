"""All kernels of this process on one instruction set, for tests of what they are used for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from asyncps_ext import optim, quantize, reduce, select, sparse_fill, wire

FAMILIES = (reduce, optim, quantize, select, sparse_fill)


def all_on_each_variant(*, autouse: bool) -> Any:
    """A fixture to be called `variant`: each instruction set that this machine has.

    Args:
        autouse: in every test of the module; else in those that ask for it.
    """

    @pytest.fixture(autouse=autouse, params=reduce._variants())
    def variant(request: pytest.FixtureRequest) -> Iterator[str]:
        name: str = request.param
        # wire has variants of its own: its plain one goes with the others' plain one.
        of_wire = wire._variants()[-1 if name == reduce._variants()[-1] else 0]
        before = [(kernels, kernels._set_variant(name)) for kernels in FAMILIES]
        before.append((wire, wire._set_variant(of_wire)))
        yield name
        for kernels, chosen in before:
            kernels._set_variant(chosen)

    return variant
