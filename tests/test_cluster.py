"""How a program gets its store: embedded, in process, by await, in a forked child."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from typing import Any

import numpy as np
import pytest

import asyncps
from asyncps.config import Config
from asyncps.errors import (
    ClosedError,
    ClusterError,
    ConfigError,
    RendezvousTimeout,
    UnknownKey,
)
from tests.faults.job import ROOT, START_S, TRAIN_BRIEFLY, Job, ReservedPort
from tests.support.processes import ProcessGroup

both_transports = pytest.mark.parametrize("transport", ["memory", "tcp"])


# ---- alone: an embedded cluster ----


def test_script_without_a_cluster_is_one_worker_of_an_embedded_one() -> None:
    with asyncps.create("dist_sync") as store:
        assert (store.type, store.rank, store.num_workers, store.local_rank) == (
            "dist_sync", 0, 1, 0)
        store.init("w", np.zeros(5, "f4"))
        assert (store.pushpull("w", np.ones(5, "f4")) == 1).all()


async def test_embedded_cluster_works_where_a_loop_is_running_already() -> None:
    with asyncps.create("dist_sync") as store:  # as in a notebook
        store.init("w", np.zeros(5, "f4"))
        assert (store.pushpull("w", np.ones(5, "f4")) == 1).all()


def test_stores_of_one_name_are_one_store_and_of_two_names_two() -> None:
    with asyncps.create("dist_sync") as first, asyncps.create("dist_sync", name="b") as other:
        first.init("w", np.zeros(5, "f4"))
        assert (asyncps.create("dist_sync").pull("w") == 0).all()
        other.init("w", np.ones(3, "f4"))
        assert (other.pull("w") == 1).all()


def test_store_that_was_closed_can_be_opened_again() -> None:
    with asyncps.create("dist_sync") as stays:
        stays.init("w", np.zeros(5, "f4"))
        for _ in range(3):
            with asyncps.create("dist_sync", name="again") as store:
                store.init("w", np.zeros(5, "f4"))
                assert (store.pushpull("w", np.ones(5, "f4")) == 1).all()


def test_values_of_a_store_that_all_have_closed_are_forgotten() -> None:
    with asyncps.create("dist_sync"):
        with asyncps.create("dist_sync", name="again") as store:
            store.init("w", np.ones(5, "f4"))
        with asyncps.create("dist_async", name="again") as store:  # other words, and other values
            with pytest.raises(UnknownKey):
                store.pull("w")
            store.init("w", np.zeros((2, 2), "i8"))
            assert (store.pull("w") == 0).all()


def test_last_store_to_close_leaves_and_the_next_begins_anew() -> None:
    with asyncps.create("dist_sync") as store:
        store.init("w", np.ones(5, "f4"))
    with asyncps.create("dist_sync") as store:
        store.init("w", np.zeros((2, 2), "i8"))  # nothing is known of an earlier key
        assert (store.pull("w") == 0).all()


def test_same_name_with_other_words_is_refused() -> None:
    with asyncps.create("dist_sync") as store:
        with pytest.raises(asyncps.errors.Disagreement):
            asyncps.create("dist_sync", order="rank")
        store.barrier()


def test_store_may_be_used_from_several_threads() -> None:
    errors: list[BaseException] = []
    with asyncps.create("dist_sync") as store:
        names = [f"k{n}" for n in range(4)]
        store.init(names, [np.zeros(1000, "f4")] * 4)

        def use(name: str) -> None:
            try:
                for step in range(20):
                    got = store.pushpull(name, np.full(1000, step, "f4"))
                    assert (got == step).all()
            except BaseException as error:  # noqa: BLE001 - raised in the test's thread
                errors.append(error)

        threads = [threading.Thread(target=use, args=(name,)) for name in names]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert errors == []


def test_forked_child_may_have_a_store_of_its_own(processes: ProcessGroup) -> None:
    program = """
import os, sys, numpy as np, asyncps
store = asyncps.create("dist_sync")
store.init("w", np.zeros(5, "f4"))
child = os.fork()
if child == 0:
    with asyncps.create("dist_sync") as mine:
        mine.init("w", np.ones(5, "f4"))
        assert (mine.pull("w") == 1).all()
    sys.exit(7)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
assert (store.pushpull("w", np.full(5, 3, "f4")) == 3).all()
"""
    script = processes.python("-W", "ignore::DeprecationWarning", "-c", program, cwd=ROOT)
    assert script.wait(START_S) == 0, script.output


# ---- LocalCluster ----


@both_transports
def test_local_cluster_gives_results_in_rank_order(transport: str) -> None:
    def train(store: Any) -> tuple[int, float]:
        store.init("w", np.zeros(30_000, "f4"))
        return store.rank, float(store.pushpull("w", np.full(30_000, store.rank + 1, "f4"))[0])

    with asyncps.LocalCluster(servers=2, workers=3, transport=transport) as cluster:
        assert cluster.run(train) == [(0, 6.0), (1, 6.0), (2, 6.0)]


@both_transports
def test_error_of_a_worker_is_raised_and_the_cluster_ends(transport: str) -> None:
    def train(store: Any) -> None:
        if store.rank == 1:
            raise ValueError("worker 1 has had enough")
        store.barrier()  # ends with an error that follows from the first

    with asyncps.LocalCluster(servers=1, workers=2, transport=transport) as cluster:
        with pytest.raises(ValueError, match="worker 1 has had enough"):
            cluster.run(train)


@both_transports
def test_barrier_does_not_wait_for_who_has_left(transport: str) -> None:
    def train(store: Any) -> None:
        if store.rank == 0:
            # If worker 1 leaves first, it is not waited for; if it leaves meanwhile, that is said.
            with contextlib.suppress(ClusterError):
                store.barrier()

    with asyncps.LocalCluster(servers=1, workers=2, transport=transport) as cluster:
        assert cluster.run(train) == [None, None]


def test_cluster_that_never_ran_ends_at_once() -> None:
    with asyncps.LocalCluster(servers=2, workers=2):
        pass


def test_local_cluster_refuses_what_it_does_not_know() -> None:
    with pytest.raises(ConfigError, match="unknown transport"):
        asyncps.LocalCluster(transport="carrier pigeon")
    with asyncps.LocalCluster() as cluster, pytest.raises(ConfigError, match="no local stores"):
        cluster.run(lambda store: None, "local")
    with pytest.raises(ConfigError, match="is not running"):
        asyncps.LocalCluster().run(lambda store: None)


# ---- await ----


async def test_connect_gives_a_store_to_await() -> None:
    async with asyncps.connect("dist_sync") as store:
        await store.init("w", np.zeros(5, "f4"))
        handle = await store.push("w", np.ones(5, "f4"))
        await handle
        assert (await store.pull("w") == 1).all()
        handle = await store.pushpull("w", np.full(5, 4, "f4"), async_op=True)
        assert (await handle == 4).all()


async def test_error_in_the_block_ends_the_connection_and_travels_on() -> None:
    async def fail() -> None:
        async with asyncps.connect("dist_sync") as store:
            await store.init("w", np.zeros(5, "f4"))
            raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        await fail()


async def test_cancelled_block_ends_the_connection() -> None:
    inside = asyncio.Event()

    async def stay() -> None:
        async with asyncps.connect("dist_sync"):
            inside.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(stay(), name="stays")
    await asyncio.wait_for(inside.wait(), 10.0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


def test_connect_of_a_local_store_is_refused() -> None:
    with pytest.raises(ConfigError, match="nothing to await"):
        asyncps.connect("local")


# ---- in a cluster ----


def test_cluster_of_the_environment_that_is_not_there_leaves_nothing_behind(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with ReservedPort() as port:
        monkeypatch.setenv("ASYNCPS_SCHEDULER", f"127.0.0.1:{port.number}")
        for _ in range(2):
            with pytest.raises(RendezvousTimeout, match="could not be reached"):
                asyncps.create("dist_sync", rendezvous_s=0.2)


async def test_connect_to_a_cluster_that_is_not_there_leaves_nothing_behind(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with ReservedPort() as port:
        monkeypatch.setenv("ASYNCPS_SCHEDULER", f"127.0.0.1:{port.number}")
        with pytest.raises(RendezvousTimeout, match="could not be reached"):
            async with asyncps.connect("dist_sync", rendezvous_s=0.2):
                pass


def test_server_process_has_no_store(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ASYNCPS_ROLE", "server")
    with pytest.raises(ConfigError, match="this process is a server"):
        asyncps.create("dist_sync")


def test_await_and_blocking_workers_are_of_one_cluster(processes: ProcessGroup) -> None:
    awaiting = """
import asyncio, numpy as np, asyncps
async def train():
    async with asyncps.connect("dist_sync") as store:
        await store.init("w", np.zeros(1000, "f4"))
        for step in range(3):
            got = await store.pushpull("w", np.full(1000, store.rank + 1, "f4"))
        assert (got == 3).all(), got
asyncio.run(train())
"""
    job = Job(processes, workers=2)
    scheduler, server = job.scheduler(), job.server(0)
    workers = [job.worker(TRAIN_BRIEFLY, 0), job.worker(awaiting, 1)]
    for member in (*workers, server, scheduler):
        assert member.wait(START_S) == 0, member.output


def test_two_stores_of_one_process_share_its_rank(processes: ProcessGroup) -> None:
    program = """
import numpy as np, asyncps
a, b = asyncps.create("dist_sync"), asyncps.create("dist_sync", name="b", order="rank")
assert a.rank == b.rank
for store in (a, b):
    store.init("w", np.zeros(10, "f4"))
assert (a.pushpull("w", np.ones(10, "f4")) == 2).all()
assert (b.pushpull("w", np.full(10, 5, "f4")) == 10).all()
a.close()
assert (b.pushpull("w", np.ones(10, "f4")) == 2).all()
"""
    job = Job(processes, workers=2)
    scheduler, servers, workers = job.start(program)
    for member in (*workers, *servers, scheduler):
        assert member.wait(START_S) == 0, member.output


def test_store_that_one_worker_closes_goes_on_without_it(processes: ProcessGroup) -> None:
    program = """
import numpy as np, asyncps
from asyncps.errors import ClosedError
ones = np.ones(10, "f4")
a, b = asyncps.create("dist_sync"), asyncps.create("dist_sync", name="b")
b.init("w", np.zeros(10, "f4"))
b.set_optimizer("sgd", learning_rate=1.0)
for _ in range(3):
    b.pushpull("w", ones.copy())
a.barrier()
if a.rank == 0:
    b.push("w", ones)          # an open round, which worker 1 leaves
    a.barrier()
    assert (b.pull("w") == -7).all()
    for epoch in range(2):
        assert (b.pushpull("w", ones.copy()) == -8 - epoch).all()
        b.barrier()
        assert b.join() == 0
    a.barrier()
    b.close()
else:
    b.close()
    a.barrier()
    try:
        asyncps.create("dist_sync", name="b")
    except ClosedError as error:
        assert "worker 1 has closed store 'b'" in str(error), error
    else:
        raise SystemExit("opened it again")
    a.barrier()
a.barrier()
b = asyncps.create("dist_sync", name="b")  # a new one
b.init("w", np.zeros(10, "f4"))
assert (b.pushpull("w", ones) == 2).all()
"""
    job = Job(processes, workers=2)
    scheduler, servers, workers = job.start(program)
    for member in (*workers, *servers, scheduler):
        assert member.wait(START_S) == 0, member.output


def test_settings_may_be_given_by_name() -> None:
    with asyncps.create("dist_sync", chunk_bytes=65536, round_s=5.0, local_rank=3) as store:
        assert store.local_rank == 3
        store.init("w", np.zeros(100_000, "f4"))
        assert sum(server["units"] for server in store.statistics()["servers"]) >= 6
    with pytest.raises(ClosedError):
        store.pull("w")
    assert Config.from_env().chunk_bytes != 65536
    assert "ASYNCPS_CHUNK_BYTES" not in os.environ


@pytest.mark.parametrize("name", ["\udcff", "", "n" * 1025, None, 5], ids=ascii)
def test_name_of_a_store_is_text_that_can_travel(name: Any) -> None:
    for kind in ("local", "dist_sync"):
        with pytest.raises(ConfigError, match="text of 1 to 1024 characters"):
            asyncps.create(kind, name=name)
    with pytest.raises(ConfigError, match="text of 1 to 1024 characters"):
        asyncps.connect(name=name)
    with asyncps.LocalCluster() as cluster:
        for open_it in (lambda: cluster.run(print, name=name), lambda: cluster.store(0, name)):
            with pytest.raises(ConfigError, match="text of 1 to 1024 characters"):
                open_it()
        assert cluster.run(lambda store: store.num_workers) == [1]
