"""Verbs that wait for what was pushed end though other threads go on pushing."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from asyncps.call import Handle
from asyncps.kvstore import KVStore
from tests.support.cluster import on_cluster

SIZE = 60_000


@pytest.mark.parametrize("verb", ["barrier", "set_optimizer", "statistics"])
@pytest.mark.parametrize("push", ["push", "pushpull"])
def test_a_verb_does_not_wait_for_pushes_that_come_after_it(verb: str, push: str) -> None:
    verbs: dict[str, Callable[[KVStore], Any]] = {
        "barrier": KVStore.barrier,
        "set_optimizer": lambda store: store.set_optimizer("test"),
        "statistics": KVStore.statistics,
    }

    def work(store: KVStore) -> None:
        store.init("a", np.zeros(SIZE))
        stop, begun = threading.Event(), threading.Semaphore(0)
        value = np.ones(SIZE)

        def pushing() -> None:
            pending: deque[Handle] = deque()
            while not stop.is_set():
                if push == "push":
                    store.push("a", value)
                else:
                    out = np.empty(SIZE)
                    pending.append(store.pushpull("a", value, out=out, async_op=True))
                    if len(pending) > 4:
                        pending.popleft().wait()
                begun.release()

        threads = [threading.Thread(target=pushing) for _ in range(3)]
        for thread in threads:
            thread.start()
        try:
            for _ in range(20):
                assert begun.acquire(timeout=10)
            verbs[verb](store)
        finally:
            stop.set()
            for thread in threads:
                thread.join()

    on_cluster(work, workers=1, servers=1, settings={"send_budget_bytes": 64 << 20})
