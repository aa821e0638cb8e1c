"""Handles of several calls of which one has failed: what came of the others is in its place."""

from __future__ import annotations

import numpy as np
import pytest

from asyncps.allreducecalls import CallsHandle
from asyncps.collectivecall import CollectiveHandle
from asyncps.errors import TensorError


class Over:
    """Calls that have ended: nobody waits."""


@pytest.mark.parametrize("ask", ["wait", "done", "exception"])
def test_the_sums_behind_one_that_failed_are_brought(ask: str) -> None:
    places = [np.zeros(3), np.zeros(3), np.zeros(3)]

    def made(at: int) -> CollectiveHandle:
        def finish(raw: object) -> None:
            places[at][:] = at + 1

        return CollectiveHandle(Over(), "", places[at], None, finish)  # type: ignore[arg-type]

    handles = [made(at) for at in range(3)]
    for at in (0, 2):
        handles[at].end(None, None)
    handles[1].end(None, TensorError("not finite"))
    several = CallsHandle("pushpull", handles, (), None, lambda _: None)
    if ask == "wait":
        with pytest.raises(TensorError, match="not finite"):
            several.wait()
    else:
        getattr(several, ask)()
    assert [place.tolist() for place in places] == [[1] * 3, [0] * 3, [3] * 3]
