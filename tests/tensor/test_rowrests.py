"""What was not sent of rows, where a signal handler raises in the midst of it."""

from __future__ import annotations

import contextlib
import itertools
import sys
from collections.abc import Iterator
from functools import partial
from types import FrameType
from typing import Any

import numpy as np
import pytest

from asyncps.tensor import rowrests
from asyncps.tensor.rowrests import RowRests

WIDTH = 2


@contextlib.contextmanager
def interrupted(at: int) -> Iterator[None]:
    """Raise at the so manieth line of this module's that is run."""
    lines = itertools.count()

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        if frame.f_code.co_filename != rowrests.__file__:
            return None
        if event == "line" and next(lines) == at:
            raise KeyboardInterrupt
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        yield
    finally:
        sys.settrace(before)


def recycled(size: int, dtype: Any) -> Any:
    """Memory in which something else has been."""
    return np.full(size, 777, dtype)


def full() -> tuple[RowRests, dict[int, float]]:
    """Rows with something left, some more of which nothing is, and what that is."""
    rests = RowRests(WIDTH)
    rests._blocks._new = recycled  # type: ignore[assignment]
    rests._blocks.grow(1)
    rests._blocks.view(0, 1)[:] = 0
    ids = np.arange(0, 600, 2)
    values = np.where(ids < 302, 1.0, 0.0)
    rests.put(ids, np.repeat(np.ones(ids.size, "f4"), WIDTH))
    rests.put(ids, np.repeat(values.astype("f4"), WIDTH))
    return rests, dict(zip(ids.tolist(), values.tolist(), strict=True))


# Old rows and new ones; and so many zeros that all others move together.
PUTS = {
    "mixed": (np.arange(250, 350), lambda ids: np.where(ids % 3, 0.0, 5.0)),
    "zeros": (np.arange(0, 400, 2), lambda ids: np.zeros(ids.size)),
}


@pytest.mark.parametrize("what", [*PUTS, "clear"])
def test_a_row_has_what_it_had_or_what_it_was_to_get(what: str) -> None:
    everything = np.arange(600)
    for at in itertools.count():
        rests, old = full()
        new = dict(old)
        if what == "clear":
            work: Any = rests.clear
            new = dict.fromkeys(old, 0.0)
        else:
            ids, made = PUTS[what]
            values = made(ids)
            new.update(zip(ids.tolist(), values.tolist(), strict=True))
            work = partial(rests.put, ids, np.repeat(values.astype("f4"), WIDTH))

        ended = False
        with contextlib.suppress(KeyboardInterrupt), interrupted(at):
            work()
            ended = True
        for row, found in enumerate(rests.gather(everything).reshape(-1, WIDTH)):
            assert found.tolist() in ([old.get(row, 0.0)] * WIDTH, [new.get(row, 0.0)] * WIDTH), at
        assert len(rests) == rests.items()[0].size, at
        if ended:
            assert at > 1
            return
        rests.put(everything, np.repeat(everything.astype("f4"), WIDTH))  # and it goes on
        assert rests.gather(everything).reshape(-1, WIDTH)[:, 0].tolist() == everything.tolist()
        assert len(rests) == rests.items()[0].size == 599


def test_rows_that_were_never_written_are_zero() -> None:
    """Else the norm of all would be anything."""
    rests = RowRests(WIDTH)
    rests.put(np.array([1]), np.ones(WIDTH, "f4"))
    blocks: Any = rests._blocks
    scatter = blocks.scatter

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    blocks.scatter = interrupt
    with pytest.raises(KeyboardInterrupt):
        rests.put(np.array([2]), np.ones(WIDTH, "f4"))
    blocks.scatter = scatter
    assert rests.gather(np.array([1, 2])).tolist() == [1, 1, 0, 0]
    assert not rests._blocks.view(2, 100).any()
    assert rests.norm() == pytest.approx(2 ** 0.5)
