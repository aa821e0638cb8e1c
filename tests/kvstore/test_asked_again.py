"""A call whose wait has ended, by a deadline or a signal, made again: it waits for the same end."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from asyncps.errors import ConfigError, DeadlineExceeded
from asyncps.kvstore import KVStore
from tests.support.cluster import on_cluster

VERBS: dict[str, Callable[[KVStore, Path], Any]] = {
    "barrier": lambda store, path: store.barrier(),
    "set_optimizer": lambda store, path: store.set_optimizer("test"),
}


@pytest.mark.parametrize("verb", VERBS)
def test_answer_that_came_between_two_calls_is_the_second_ones(verb: str, tmp_path: Path) -> None:
    """Rank 0 gives up, rank 1 comes, rank 0 calls again: nobody waits for a second round of calls.
    """
    gave_up, came = threading.Event(), threading.Event()

    def work(store: KVStore) -> None:
        store.init("w", np.zeros(3, "f4"))
        questions = store._core.worker.questions
        if store.rank == 0:
            with pytest.raises(DeadlineExceeded):
                VERBS[verb](store, tmp_path)
            ((_, asking),) = questions._asked.values()
            assert asking is not None
            gave_up.set()
            store._runtime.run(lambda: ended(asking))
            came.set()
            VERBS[verb](store, tmp_path)
        else:
            assert gave_up.wait(20)
            VERBS[verb](store, tmp_path)
            assert came.wait(20)
        assert not questions._asked
        VERBS[verb](store, tmp_path)  # and the next ones are in step
        assert not questions._asked

    on_cluster(work, settings={"round_s": 1.0})


async def ended(asking: asyncio.Future[Any]) -> None:
    await asyncio.wait({asking})


def test_another_call_does_not_take_an_answer_that_nobody_fetched() -> None:
    gave_up, came = threading.Event(), threading.Event()

    def work(store: KVStore) -> None:
        if store.rank == 0:
            with pytest.raises(DeadlineExceeded):
                store.set_optimizer("test")
            ((_, asking),) = store._core.worker.questions._asked.values()
            gave_up.set()
            store._runtime.run(lambda: ended(asking))
            came.set()
        else:
            assert gave_up.wait(20)
            store.set_optimizer("test")
            assert came.wait(20)
        store.set_optimizer("sgd", learning_rate=0.5)
        assert store.optimizer == "sgd"

    on_cluster(work, settings={"round_s": 1.0})


def test_join_that_was_given_up_is_the_next_join() -> None:
    gave_up, joined = threading.Event(), threading.Event()

    def work(store: KVStore) -> list[int]:
        core = store._core

        async def given_up() -> None:
            joining = asyncio.create_task(core.join())
            for _ in range(3):  # it begins, asks, and waits
                await asyncio.sleep(0)
            assert core.client.joining is not None
            joining.cancel()
            await asyncio.wait({joining})

        if store.rank == 0:
            store._runtime.run(given_up)
            gave_up.set()
            assert joined.wait(20)
            return [store.join(), store.join()]
        assert gave_up.wait(20)
        first = store.join()
        joined.set()
        return [first, store.join()]

    one, other = on_cluster(work)
    assert one == other
    assert one[0] == 1


@pytest.mark.parametrize("verb", ["save", "save_optimizer_states"])
def test_path_that_is_no_unicode_is_a_path(verb: str, tmp_path: Path) -> None:
    path = os.fsdecode(os.fsencode(tmp_path) + b"/\xff")

    def work(store: KVStore) -> None:
        store.init("w", np.full(3, store.rank, "f4"))
        store.set_optimizer("test")
        getattr(store, verb)(path)
        getattr(store, verb.replace("save", "load"))(path)
        store.barrier()

    on_cluster(work)
    assert os.path.isdir(path)


def test_path_that_cannot_be_is_refused() -> None:
    def work(store: KVStore) -> None:
        for path in ("a\0b", 7, None, b"bytes"):
            for verb in (store.save, store.load):
                with pytest.raises(ConfigError, match="directory"):
                    verb(path)  # type: ignore[arg-type]
        store.barrier()

    on_cluster(work)


def test_question_that_cannot_be_put_into_words_fails_its_caller_alone() -> None:
    def work(store: KVStore) -> None:
        worker = store._core.worker
        message = worker.questions  # no message at all
        with pytest.raises(Exception, match="question"):
            store._runtime.run(lambda: worker.questions.ask(message, "to fail"))  # type: ignore
        store.barrier()

    on_cluster(work)
