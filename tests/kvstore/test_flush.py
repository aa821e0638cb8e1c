"""What a worker waits for: that its pushes are accepted, not that others finish their rounds."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from asyncps.errors import DeadlineExceeded
from asyncps.kvstore import KVStore
from tests.support.cluster import on_cluster


@pytest.mark.parametrize("transport", ["memory", "tcp"])
@pytest.mark.parametrize("size", [3, 300_000])
def test_barrier_does_not_wait_for_rounds_that_others_must_finish(
    size: int, transport: str
) -> None:
    def work(store: KVStore) -> None:
        store.init("w", np.zeros(size, "f4"))
        ones = np.ones(size, "f4")
        if store.rank == 0:
            handle = store.pushpull("w", ones, async_op=True)
            store.barrier()
            assert np.all(handle.wait(10) == 2)
        else:
            store.barrier()
            assert np.all(store.pushpull("w", ones) == 2)

    on_cluster(work, transport=transport)


@pytest.mark.parametrize("transport", ["memory", "tcp"])
@pytest.mark.parametrize("size", [3, 300_000])
def test_barrier_waits_for_held_pushpulls_to_be_accepted_and_no_longer(
    size: int, transport: str
) -> None:
    def work(store: KVStore) -> None:
        store.init("w", np.zeros(size, "f4"))
        ones = np.ones(size, "f4")
        ahead = 2 if store.rank == 0 else 4  # rank 1 is two ahead: inside the window
        handles = [
            store.pushpull("w", ones, out=np.empty_like(ones), async_op=True)
            for _ in range(ahead)
        ]
        store.barrier()
        handles += [store.push("w", ones) for _ in range(4 - ahead)]
        for handle in handles:
            handle.wait(10)

    for _ in range(5):
        on_cluster(work, servers=1, transport=transport)


def test_held_push_whose_deadline_passed_goes_later_with_what_it_was() -> None:
    """Its caller hears DeadlineExceeded and has the memory back; the clock is kept whole."""

    def work(store: KVStore) -> np.ndarray:
        store.init("w", np.zeros(300_000, "f4"))
        store.set_optimizer("test")
        if store.rank == 0:
            values = [np.full(300_000, 10**i, "f4") for i in range(4)]
            handles = [store.push("w", value, copy=False) for value in values]
            for handle in handles[2:]:
                with pytest.raises(DeadlineExceeded):
                    handle.wait(10)
            for value in values:
                value[:] = -7777  # ours again: nobody may look at it
            late.set()
        else:
            assert late.wait(10)
            for _ in range(4):
                store.push("w", np.ones(300_000, "f4"))
        return store.pull("w")

    late = threading.Event()
    for result in on_cluster(
        work, settings={"round_s": 0.5, "round_warning_s": 0.2, "answer_s": 5.0}
    ):
        np.testing.assert_array_equal(result, 1111 + 4)
