"""Calls that travel together are of one kind, and may lie in arrays of several dtypes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from asyncps import Communicator
from asyncps.collectivecall import CollectiveHandle
from asyncps.protocol.collective import Op, Verb
from tests.support.group import Group


@pytest.mark.parametrize("first", ["bits", "halves"])
def test_halves_and_the_bits_of_halves_travel_together(three: Group, first: str) -> None:
    """A coded sum posts bits as uint16; a plain one of float16 is of the same kind."""
    def work(comm: Communicator) -> tuple[Any, Any]:
        halves = np.full((2, 3), comm.rank + 1, np.float16)
        bits = np.full(5, comm.rank + 2, np.float16).view(np.uint16)

        def post_bits() -> CollectiveHandle:
            handle = CollectiveHandle(comm._fusing, "", bits, bits)
            comm._fusing.post((Verb.ALL_REDUCE, Op.SUM, "float16", 0, 1.0), handle, [])
            return handle

        def post_halves() -> Any:
            return comm.all_reduce(halves, async_op=True)

        posts = [post_bits, post_halves] if first == "bits" else [post_halves, post_bits]
        handles = [post() for post in posts]
        comm.flush()
        for handle in handles:
            handle.wait()
        return halves, bits.view(np.float16)

    for halves, bits in three.run(work):
        assert halves.tolist() == [[6] * 3] * 2
        assert bits.tolist() == [9] * 5
