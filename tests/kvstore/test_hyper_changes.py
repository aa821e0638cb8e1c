"""Changes of hyper-parameters: from several threads, and when some servers do not answer."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncps.errors import AsyncPSError, DeadlineExceeded, Disagreement
from asyncps.kvstore import KVStore
from asyncps.protocol.messages import AskStatistics, SetHyper, StoreConfig
from asyncps.roles.client import Client
from asyncps.roles.worker import Worker
from tests.support.cluster import on_cluster


def test_threads_of_one_worker_change_different_ones() -> None:
    def work(store: KVStore) -> None:
        store.set_optimizer("sgd", learning_rate=0.5)
        failed: list[Exception] = []

        def change(name: str) -> None:
            try:
                for turn in range(50):
                    store.set_hyperparameters(**{name: (turn + 1) / 1000})
            except AsyncPSError as error:
                failed.append(error)

        threads = [threading.Thread(target=change, args=(name,)) for name in ("lr", "wd")]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not failed
        assert store.hyperparameters["learning_rate"] == store.hyperparameters["wd"] == 0.05

    on_cluster(work, workers=1)


def test_change_that_one_server_was_late_with_burns_its_version_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def work(store: KVStore) -> None:
        keys = [f"w{n}" for n in range(8)]  # at both servers
        store.init(keys, [np.zeros(3000, "f4")] * 8)
        store.set_optimizer("sgd", learning_rate=0.5)
        worker = store._core.worker
        ask = worker.ask_server

        async def late(link: Any, message: Any, *more: Any) -> Any:
            if link is worker.links[1]:
                raise DeadlineExceeded("server 1 was late")
            return await ask(link, message, *more)

        with monkeypatch.context() as patch:
            patch.setattr(worker, "ask_server", late)
            with pytest.raises(DeadlineExceeded):
                store.set_hyperparameters(learning_rate=0.1)
        store.set_hyperparameters(learning_rate=0.25)
        store.set_hyperparameters(wd=0.0)
        for value in store.pushpull(keys, [np.ones(3000, "f4") for _ in keys]):
            assert (value == -0.25).all()

    on_cluster(work, workers=1, settings={"chunk_bytes": 4096})


async def test_all_servers_are_asked_at_once() -> None:
    """So that the deadlines of several do not add up."""
    asked: list[int] = []
    both = asyncio.Event()

    async def answer(link: int, message: Any, priority: int = 0) -> Any:
        asked.append(link)
        if len(asked) == 2:
            both.set()
        await both.wait()
        return message

    worker = stand_in(answer)
    async with asyncio.timeout(10):
        assert len(await worker.ask_all(AskStatistics(1))) == 2


def stand_in(answer: Any) -> Worker:
    """A worker with two servers that answer like this."""
    worker = Worker.__new__(Worker)
    worker.links = [0, 1]  # type: ignore[list-item]
    worker.ask_server = answer  # type: ignore[method-assign]
    return worker


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_no_version_has_two_meanings_and_the_last_good_change_counts(data: Any) -> None:
    """Changes at the same time, each of which may be lost, or heard and not answered, anywhere."""
    servers: list[dict[int, dict[str, Any]]] = [{}, {}]

    async def answer(link: int, message: SetHyper, priority: int = 0) -> Any:
        for _ in range(data.draw(st.integers(0, 2), "turns of the loop")):
            await asyncio.sleep(0)
        fate = data.draw(st.sampled_from(["taken", "taken", "lost", "late"]), "fate")
        if fate != "lost":
            known = servers[link].setdefault(message.version, dict(message.values))
            if known != message.values:
                raise Disagreement("two meanings")
        if fate != "taken":
            raise DeadlineExceeded("late")
        return message

    async def work() -> None:
        client = Client(1, StoreConfig("dist_sync", "arrival", "sum"), 1, [], lambda: 0.0)
        client.use_optimizer("sgd", {})
        worker = stand_in(answer)
        model: dict[str, Any] = {}

        async def change(name: str, value: int) -> None:
            try:
                await worker.set_hyper(client, {name: value})
            except DeadlineExceeded:
                return
            model[name] = value

        for turn in range(data.draw(st.integers(1, 4))):
            names = data.draw(st.lists(st.sampled_from("abc"), max_size=3, unique=True))
            await asyncio.gather(*[change(name, turn) for name in names])
            assert client.hyper == model
            for server in servers:
                assert client.hyper_version == 0 or server[client.hyper_version] == model

    asyncio.run(work())
