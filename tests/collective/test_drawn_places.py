"""randomk between ranks: those that take part in a sum draw the same places."""

from __future__ import annotations

import numpy as np
import pytest

from asyncps.codedsum import Encoded
from asyncps.communicator import Communicator
from asyncps.errors import AsyncPSError
from tests.support.group import group

SPEC = {"type": "randomk", "ratio": 0.1, "small_bytes": 0, "nonfinite": "skip"}
SIZE = 1000


def summed(comm: Communicator, value: float = 1.0) -> int:
    """Return how many elements of a sum are not zero."""
    return np.count_nonzero(comm.all_reduce(np.full(SIZE, value, "f4"), name="w"))


def test_who_has_joined_draws_with_those_who_went_on() -> None:
    with group(3) as three:
        def work(comm: Communicator) -> None:
            comm.set_gradient_compression(SPEC)
            assert summed(comm) == SIZE // 10
            for _ in range(comm.rank):
                assert summed(comm) == SIZE // 10
            comm.join()
            assert summed(comm) == SIZE // 10
            assert summed(comm, np.nan if comm.rank == 1 else 1.0) == 0  # it is skipped
            assert summed(comm) == SIZE // 10

        three.run(work)


def test_a_rank_that_has_failed_before_it_drew_draws_with_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real, calls = Encoded.encode, []

    def failing(coded: Encoded) -> int:
        if coded.what.fusing.rank == 1:
            calls.append(coded)
            if len(calls) == 2:
                raise MemoryError("no memory")
        return real(coded)

    monkeypatch.setattr(Encoded, "encode", failing)
    with group(2) as two:
        def work(comm: Communicator) -> None:
            comm.set_gradient_compression(SPEC)
            assert summed(comm) == SIZE // 10
            with pytest.raises(AsyncPSError):
                summed(comm)
            assert summed(comm) == SIZE // 10

        two.run(work)
