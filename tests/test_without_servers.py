"""Stores in a job of workers alone: a typed error at once, of whatever face."""

from __future__ import annotations

import asyncio

import pytest

import asyncps
from asyncps.cluster import DIST_TYPES
from asyncps.config import Config
from asyncps.embedded import Scope, embed
from asyncps.errors import ConfigError
from asyncps.roles.plan import agreement
from asyncps.roles.worker import Worker

WORDS = r"a {} store keeps its values on servers, and this job has none \(num_servers is 0\)"


@pytest.mark.parametrize("kind", DIST_TYPES)
def test_create_says_what_is_missing_before_it_looks_for_anybody(kind: str) -> None:
    # Nobody listens there: it would have to wait.
    with pytest.raises(ConfigError, match=WORDS.format(kind)) as caught:
        asyncps.create(kind, num_servers=0, scheduler="127.0.0.1:1", rendezvous_s=20.0)
    assert "launch -s 1 or more" in str(caught.value)


def test_connect_says_it_too() -> None:
    with pytest.raises(ConfigError, match=WORDS.format("dist_sync")):
        asyncps.connect("dist_sync", num_servers=0)


def test_a_store_of_this_process_needs_no_servers() -> None:
    with asyncps.create("local", num_servers=0) as store:
        assert store.type == "local"


def test_a_worker_that_was_not_told_hears_it_from_the_scheduler() -> None:
    async def scenario() -> None:
        async with Scope() as scope:
            config, network = await embed(Config(), scope, 0, 1)
            told = config.replace(role="worker", num_servers=3)
            worker = Worker(told, network, scope.spawn)
            scope.roles.append(worker)
            await worker.start()
            with pytest.raises(ConfigError, match=WORDS.format("dist_sync")):
                await worker.open_store("s", agreement("dist_sync", "arrival", "sum"))
            await worker.meet()  # the job goes on
            await worker.close()

    asyncio.run(scenario())


@pytest.mark.parametrize("transport", ["memory", "tcp"])
def test_a_cluster_in_this_process_may_have_no_servers(transport: str) -> None:
    with asyncps.LocalCluster(servers=0, workers=2, transport=transport) as cluster:
        with pytest.raises(ConfigError, match=WORDS.format("dist_sync")):
            cluster.run(lambda store: store.rank)
