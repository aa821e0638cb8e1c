"""Whoever waits for others says now and then whom for, and names them when it is too long."""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from asyncps.errors import DeadlineExceeded
from asyncps.kvstore import KVStore
from tests.support.cluster import on_cluster

# What each verb waits for when rank 2 (and rank 1) stay away, and the end of the message.
VERBS: dict[str, tuple[Callable[[KVStore, Path], Any], str]] = {
    "barrier": (lambda store, path: store.barrier(), "at the barrier"),
    "set_optimizer": (lambda store, path: store.set_optimizer("test"), "to set the optimizer"),
    "save": (lambda store, path: store.save(path / "saved"), "to save"),
    "load": (lambda store, path: store.load(path / "saved"), "to load"),
}


@pytest.mark.parametrize("verb", VERBS)
def test_deadline_names_who_has_not_come_and_not_who_waits(verb: str, tmp_path: Path) -> None:
    call, tail = VERBS[verb]

    def work(store: KVStore) -> None:
        if store.rank == 0:
            with pytest.raises(DeadlineExceeded) as caught:
                call(store, tmp_path)
            said.append(str(caught.value))
            heard.set()
        assert heard.wait(20)

    said: list[str] = []
    heard = threading.Event()
    on_cluster(work, workers=3, settings={"round_s": 0.3})
    assert said == [f"waited 0.3 s for ranks [1, 2] {tail}"]


def test_init_names_rank_0() -> None:
    def work(store: KVStore) -> None:
        if store.rank == 1:
            with pytest.raises(DeadlineExceeded) as caught:
                store.init("w", np.zeros(3, "f4"))
            said.append(str(caught.value))
            heard.set()
        assert heard.wait(20)

    said: list[str] = []
    heard = threading.Event()
    on_cluster(work, settings={"round_s": 0.3})
    assert said == ["waited 0.3 s for ranks [0] to initialise these keys"]


class Heard(logging.Handler):
    """Lets others wait for a line."""

    def __init__(self, pattern: str) -> None:
        super().__init__()
        self._pattern = re.compile(pattern)
        self.heard = threading.Event()

    def emit(self, record: logging.LogRecord) -> None:
        if self._pattern.fullmatch(record.getMessage()):
            self.heard.set()


@pytest.mark.parametrize("verb", [*VERBS, "join"])
def test_wait_is_told_in_the_log(verb: str, tmp_path: Path) -> None:
    call, tail = VERBS.get(verb, (lambda store, path: store.join(), "to join"))

    def work(store: KVStore) -> None:
        store.init("w", np.zeros(3, "f4"))
        if verb == "load":
            store.save(tmp_path / "saved")
        if store.rank:
            assert handler.heard.wait(20)
        call(store, tmp_path)

    handler = Heard(rf"worker 0 has waited \d+ s for ranks \[1, 2\] {tail}")
    logger = logging.getLogger("asyncps.roles.questions")
    logger.addHandler(handler)
    try:
        on_cluster(work, workers=3, settings={"round_warning_s": 0.1})
    finally:
        logger.removeHandler(handler)


def test_barrier_ends_whatever_becomes_of_a_push_that_waits_in_the_worker() -> None:
    """The third push waits for a round that worker 1 owes, and goes when that has come."""
    def work(store: KVStore) -> Any:
        store.init("w", np.zeros(4, "f4"))
        if store.rank:
            assert heard.wait(20)
            for _ in range(3):
                store.push("w", np.ones(4, "f4"))
        else:
            for _ in range(3):
                store.push("w", np.ones(4, "f4"))
            for _ in range(2):
                with pytest.raises(DeadlineExceeded):
                    store.barrier()
            heard.set()
        return store.pull("w")[0]

    heard = threading.Event()
    assert on_cluster(work, settings={"round_s": 0.5}) == [2, 2]
