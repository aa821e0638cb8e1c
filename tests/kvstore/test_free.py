"""dist_async and dist_ssp as users see them: K14, K15, and what a worker may rely on."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

import asyncps
from asyncps.errors import OptimizerError
from asyncps.kvstore import KVStore
from tests.kvstore import scenarios
from tests.kvstore.scenarios import all_are
from tests.kvstore.test_optimizers import SGDModel
from tests.support.cluster import on_cluster, on_processes
from tests.support.processes import ProcessGroup

both_transports = pytest.mark.parametrize("transport", ["memory", "tcp"])
FREE = pytest.mark.parametrize(
    "options", [{"type": "dist_async"}, {"type": "dist_ssp", "staleness": 1}],
    ids=["async", "ssp"],
)
SIZES = {"small": 7, "large": 300_001}


@both_transports
@FREE
@pytest.mark.parametrize(("workers", "servers"), [(1, 1), (2, 2), (3, 2)])
def test_k14_every_push_counts_once(
    workers: int, servers: int, options: dict[str, Any], transport: str
) -> None:
    on_cluster(scenarios.k14_pushes_as_they_come, workers=workers, servers=servers,
               transport=transport, **options)


@pytest.mark.slow
@both_transports
def test_k14_seven_workers_and_seven_servers(transport: str) -> None:
    on_cluster(
        scenarios.k14_pushes_as_they_come, workers=7, servers=7, transport=transport,
        type="dist_async", settings={"round_s": 120.0, "answer_s": 60.0},
    )


@pytest.mark.slow
@pytest.mark.launch
@FREE
def test_k14_on_real_processes(options: dict[str, Any], processes: ProcessGroup) -> None:
    on_processes(processes, scenarios.k14_pushes_as_they_come, workers=3, servers=2, **options)


@both_transports
@FREE
def test_push_without_an_optimizer_is_refused_and_the_store_works_when_it_has_one(
    options: dict[str, Any], transport: str
) -> None:
    def work(store: KVStore) -> None:
        keys = list(SIZES)
        store.init(keys, [np.ones(size, "f4") for size in SIZES.values()])
        for key, size in SIZES.items():
            value = np.full(size, 5, "f4")
            for verb in (
                lambda k=key, v=value: store.push(k, v),
                lambda k=key, v=value: store.push([k], [v], copy=False),
                lambda k=key, v=value: store.pushpull(k, v),
                lambda k=key, v=value: store.pushpull(k, v, async_op=True),
            ):
                with pytest.raises(OptimizerError, match=f"{options['type']}.*set_optimizer"):
                    verb()
            all_are(value, 5)
            all_are(store.pull(key), 1)
        store.barrier()
        store.set_optimizer("test")
        for key, size in SIZES.items():
            store.push(key, np.full(size, 3, "f4"))
        store.barrier()
        n = store.num_workers
        for key in keys:
            all_are(store.pull(key), 1 + 3 * n)

    on_cluster(work, transport=transport, **options)


def test_dist_ssp_with_staleness_0_is_dist_sync_without_an_optimizer_too() -> None:
    on_cluster(scenarios.k12_replaced_not_accumulated, type="dist_ssp")
    on_cluster(scenarios.k17_mixed_verbs, type="dist_ssp", staleness=0, workers=3)


@both_transports
@pytest.mark.parametrize("size", SIZES.values(), ids=SIZES)
@pytest.mark.parametrize("staleness", [0, 1, 2, 3])
def test_k15_nobody_is_more_than_s_clocks_ahead_and_everybody_may_be(
    staleness: int, size: int, transport: str
) -> None:
    """The last rank is slow: it pushes when the others are as far ahead as they may be."""
    clocks = 6
    began = [0]  # pushes of the slow worker that have begun
    reached = threading.Condition()
    clock_of = {0: 0, 1: 0}
    furthest = []

    def ahead(clock: int) -> bool:
        return min(clock_of.values()) >= min(clock, clocks)

    def work(store: KVStore) -> None:
        store.init("w", np.zeros(size, "f4"))
        store.set_optimizer("test")
        one = np.ones(size, "f4")
        if store.rank == 2:
            for clock in range(clocks):
                with reached:
                    assert reached.wait_for(lambda c=clock: ahead(c + staleness), 10)
                for _ in range(5):  # time enough for whoever would go too far
                    store.pull("w")
                began[0] = clock + 1
                store.push("w", one)
        else:
            for clock in range(1, clocks + 1):
                got = store.pushpull("w", one, out=np.empty(size, "f4"))
                lead = clock - began[0]
                furthest.append(lead)
                assert lead <= staleness
                # Two servers hold the ends of a large key, and each adds what has come to it.
                assert min(got[0], got[-1]) >= clock
                assert staleness or got[0] == got[-1]
                with reached:
                    clock_of[store.rank] = clock
                    reached.notify_all()
        store.barrier()
        # What is accepted may still wait for the slowest: a pull of all that one pushed does not.
        if staleness == 0 or store.rank != 2:
            assert store.pull("w")[0] <= 3 * clocks
        store.barrier()
        all_are(store.pull("w"), 3 * clocks)

    on_cluster(work, workers=3, servers=2, transport=transport, type="dist_ssp",
               staleness=staleness)
    assert max(furthest) == staleness


@pytest.mark.parametrize("servers", [1, 2, 3])
def test_k15_staleness_0_in_rank_order_has_the_bits_of_dist_sync(servers: int) -> None:
    shapes = {"small": (5,), "more": (17, 3), "large": (70_001,)}

    def work(store: KVStore) -> bytes:
        chance = np.random.default_rng(store.rank)
        keys = list(shapes)
        store.init(keys, [np.ones(shape, "f4") for shape in shapes.values()])
        store.set_optimizer("sgd", learning_rate=0.1, momentum=0.9)
        digest = b""
        for _ in range(4):
            grads = [
                (chance.standard_normal(s) * 10.0 ** chance.integers(-3, 4, s)).astype("f4")
                for s in shapes.values()
            ]
            digest += b"".join(got.tobytes() for got in store.pushpull(keys, grads))
        return digest

    wanted = on_cluster(work, workers=3, servers=1, order="rank")
    got = on_cluster(work, workers=3, servers=servers, order="rank", type="dist_ssp", staleness=0)
    assert len({*wanted, *got}) == 1


@both_transports
@FREE
def test_pull_sees_all_that_this_worker_pushed_whatever_the_priority(
    options: dict[str, Any], transport: str
) -> None:
    """Each worker pushes to elements of its own: they tell how often."""
    def work(store: KVStore) -> None:
        keys = list(SIZES)
        store.init(keys, [np.zeros(size, "f4") for size in SIZES.values()])
        store.set_optimizer("test")
        n, rank = store.num_workers, store.rank
        for turn in range(1, 9):
            handles = []
            for i, (key, size) in enumerate(SIZES.items()):
                mine = np.zeros(size, "f4")
                mine[rank::n] = 1
                store.push(key, mine, priority=-i)
                handles.append(store.pull(key, priority=100 * i, async_op=True))
            for handle in handles:
                all_are(handle.wait(10)[rank::n], turn)

    on_cluster(work, workers=3, transport=transport, **options)


@both_transports
@pytest.mark.parametrize("key", ["small", "large"])
def test_momentum_of_one_worker_is_that_of_a_local_optimizer(key: str, transport: str) -> None:
    size, hyper = SIZES[key], {"learning_rate": 0.1, "momentum": 0.9, "wd": 0.01}
    grads = [np.random.default_rng(turn).standard_normal(size).astype("f4") for turn in range(6)]

    def train(store: Any) -> list[Any]:
        store.init("w", np.ones(size, "f4"))
        store.set_optimizer("sgd", **hyper)
        got = []
        for turn, grad in enumerate(grads):
            if turn % 2:
                store.push("w", grad)
                got.append(store.pull("w"))
            else:
                got.append(store.pushpull("w", grad.copy()))
        return got

    (remote,) = on_cluster(train, workers=1, transport=transport, type="dist_async")
    with asyncps.create("local") as store:
        local = train(store)
    model = SGDModel(np.ones(size), **hyper)  # type: ignore[arg-type]
    for theirs, mine, grad in zip(remote, local, grads, strict=True):
        model.step(grad)
        assert theirs.tobytes() == mine.tobytes()
        np.testing.assert_allclose(theirs, model.w, rtol=1e-5, atol=1e-6)


@both_transports
@pytest.mark.parametrize("size", SIZES.values(), ids=SIZES)
@pytest.mark.parametrize("staleness", [1, 3])
def test_worker_that_leaves_frees_those_that_waited_for_it(
    staleness: int, size: int, transport: str
) -> None:
    waiting = threading.Event()

    def work(store: KVStore) -> None:
        store.init("w", np.zeros(size, "f4"))
        store.set_optimizer("test")
        store.pushpull("w", np.ones(size, "f4"))
        store.barrier()
        if store.rank == 1:
            assert waiting.wait(10)
            return
        # Two more than it may: they are accepted, and wait at the server.
        for _ in range(staleness + 2):
            handle = store.push("w", np.ones(size, "f4"))
        handle.wait(10)
        told = store.statistics()
        units = sum(server["units"] for server in told["servers"])
        assert told["rounds"] == (1 + 1 + staleness) * units
        pulled = store.pull("w", async_op=True)
        waiting.set()
        all_are(pulled.wait(10), 2 + staleness + 2)
        all_are(store.pushpull("w", np.ones(size, "f4")), 2 + staleness + 3)

    on_cluster(work, transport=transport, type="dist_ssp", staleness=staleness)


@FREE
def test_small_keys_pushed_whole_and_in_part_at_each_workers_own_pace(
    options: dict[str, Any],
) -> None:
    count, turns = 60, 12

    def work(store: KVStore) -> None:
        n, rank = store.num_workers, store.rank
        keys = [f"k{i}" for i in range(count)]
        store.init(keys, [np.zeros(n, "f4") for _ in keys])
        store.set_optimizer("test")
        mine = np.zeros(n, "f4")
        mine[rank] = 1
        for turn in range(turns):
            parts = [keys] if (turn + rank) % 3 else [keys[:20], keys[20:45], keys[45:]]
            for part in parts:
                if turn % 2:
                    store.push(part, [mine] * len(part))
                else:
                    outs = [np.empty(n, "f4") for _ in part]
                    store.pushpull(part, [mine] * len(part), out=outs)
                    assert all(out[rank] == turn + 1 for out in outs)
        store.barrier()
        for value in store.pull(keys):
            assert value[rank] == turns

    on_cluster(work, workers=3, **options)


def test_hyper_parameters_are_those_of_each_pusher_and_order_and_mean_say_nothing() -> None:
    def work(store: KVStore) -> None:
        store.init("w", np.zeros(3, "f4"))
        store.set_optimizer("test", rescale_grad=1.0)
        store.barrier()
        if store.rank == 1:
            store.set_hyperparameters(rescale_grad=10.0)
        for _ in range(2):
            store.push("w", np.ones(3, "f4"))
        store.barrier()
        all_are(store.pull("w"), 2 * 1 + 2 * 10)

    on_cluster(work, type="dist_async", order="rank", reduce="mean")


def test_two_thousand_pulls_while_another_pushes_take_no_more_memory() -> None:
    from tests.faults.test_resources import resident_bytes

    size = 150_000
    ended = threading.Event()

    def work(store: KVStore) -> Any:
        store.init("w", np.zeros(size, "f4"))
        store.set_optimizer("test")
        one, out = np.ones(size, "f4"), np.empty(size, "f4")
        store.barrier()
        if store.rank == 1:
            pushed = 0
            while not ended.is_set():
                store.push("w", one).wait(10)
                pushed += 1
            return pushed
        try:
            last = 0.0
            for turn in range(2000):
                got = store.pull("w", out=out)
                assert got[0] >= last
                last = got[0]
                if turn == 300:
                    before = resident_bytes()
            return resident_bytes() - before
        finally:
            ended.set()

    grown, pushed = on_cluster(work, transport="tcp", servers=1, type="dist_async")
    assert pushed > 100
    assert grown < 24 << 20
