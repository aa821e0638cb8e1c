"""pull=True: answers that bring changes only leave the same bits at all workers, those of a model.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from asyncps.errors import Disagreement, NotYetError
from asyncps.kvstore import KVStore
from tests.kvstore.changes import Bases, Pushed
from tests.support.cluster import on_cluster

SIZE = 70_001
CHUNKS = {"chunk_bytes": 65536}
TOPK = {"type": "topk", "ratio": 0.05, "pull": True}
SPECS: list[dict[str, Any]] = [
    {"type": "topk", "ratio": 0.05}, {"type": "topk", "ratio": 1.0},
    {"type": "topk", "ratio": 0.01, "values": "f16"},
    {"type": "threshold", "threshold": 1.5}, {"type": "threshold", "threshold": 0.0},
    {"type": "threshold", "threshold": 99.0, "values": "f16"},
    {"type": "randomk", "ratio": 0.2}, {"type": "randomk", "ratio": 0.1, "values": "f16"},
    {"type": "f16"}, {"type": "bf16"}, {"type": "int8"}, {"type": "onebit"},
    {"type": "2bit", "threshold": 0.7}, {"type": "1bit", "threshold": 0.1},
]
# Those that send some of the values, a part of each, all of the key's chunk at once, and the type
# whose changes are another's.
CODED = [TOPK] + [{**spec, "pull": True} for spec in SPECS[-6:] if spec["type"] != "bf16"]
coded = pytest.mark.parametrize("spec", CODED, ids=lambda spec: spec["type"])


def grads_of(workers: int, turn: int, size: int = SIZE) -> list[Any]:
    """Of all workers; their sums are rounded, so the order matters."""
    return [np.random.default_rng([rank, turn]).normal(size=size).astype("f4")
            for rank in range(workers)]


def ready(store: KVStore, spec: dict[str, Any], first: Any, keys: Any = "w") -> Bases:
    """The key w, which is pushed as it is: a rule of its own speaks of what is pulled."""
    store.init("w", first)
    store.set_gradient_compression(spec, keys=keys)
    store.set_optimizer("test")
    return Bases(store, "w", spec)


@coded
@pytest.mark.parametrize(("workers", "servers"), [(1, 1), (2, 2), (3, 1), (7, 3)])
def test_both_ways_is_the_model(workers: int, servers: int, spec: dict[str, Any]) -> None:
    def work(store: KVStore) -> None:
        value = np.linspace(-3, 3, SIZE, dtype="f4")
        bases = ready(store, spec, value)
        pushed = Pushed(workers, bases)
        out = np.zeros(SIZE, "f4")
        for turn in range(6):
            grads = grads_of(workers, turn)
            value = value + pushed.push(grads)
            if turn % 3 == 2:  # the round's value is not asked for
                store.push("w", grads[store.rank])
                continue
            if turn % 3 == 1:
                store.push("w", grads[store.rank])
                store.pull("w", out=out)
            else:
                store.pushpull("w", grads[store.rank], out=out)
            expected = bases.pull(value)
            assert np.array_equal(out, expected), turn
            assert np.array_equal(store.pull("w"), expected)  # again: nothing is lacking
        assert not np.array_equal(out, value)

    on_cluster(work, workers=workers, servers=servers, order="rank", settings=CHUNKS)


@pytest.mark.parametrize("transport", ["memory", "tcp"])
@pytest.mark.parametrize("spec", SPECS, ids=str)
def test_changes_are_those_of_the_model(spec: dict[str, Any], transport: str) -> None:
    def work(store: KVStore) -> None:
        value = np.zeros(SIZE, "f4")
        bases = ready(store, {**spec, "pull": True}, value, keys=["w"])
        out = store.pull("w")
        bases.pull(value)
        for turn in range(4):
            store.pushpull("w", grads_of(2, turn)[store.rank], out=out)
            store.barrier()
            assert np.array_equal(out, bases.pull(held(store))), turn
            store.barrier()

    on_cluster(work, order="rank", transport=transport, settings=CHUNKS)


def held(store: KVStore) -> Any:
    """What the servers hold of w, whatever this worker's copy is."""
    rules, client = store._core.client.compression._rules, store._core.client
    kept = [rule.pull for rule in rules]
    for rule in rules:
        rule.pull = 0
    client._plans.clear()
    try:
        return store.pull("w")
    finally:
        for rule, pull in zip(rules, kept, strict=True):
            rule.pull = pull


def test_what_stays_the_same_comes_at_no_cost_and_what_is_left_out_comes_later() -> None:
    def work(store: KVStore) -> None:
        value = np.zeros(SIZE, "f4")
        ready(store, {**TOPK, "ratio": 0.25}, value)
        out = store.pull("w")
        zero = np.zeros(SIZE, "f4")
        grad = grads_of(1, 0)[0] if store.rank == 0 else zero
        for _ in range(5):  # each brings a quarter of what is lacking
            store.pushpull("w", grad, out=out)
            grad = zero
        assert np.array_equal(out, held(store))
        before = store.statistics()["received_bytes"]
        store.pull("w")
        assert store.statistics()["received_bytes"] - before < 2000

    on_cluster(work)


def test_few_bytes_come() -> None:
    def work(store: KVStore) -> None:
        size = 1_000_000
        store.init("w", np.zeros(size, "f4"))
        store.set_gradient_compression({**TOPK, "ratio": 0.01})
        store.set_optimizer("test")
        out = store.pull("w")
        before = store.statistics()["received_bytes"]
        store.pushpull("w", grads_of(2, 0, size)[store.rank], out=out)
        assert 80_000 < store.statistics()["received_bytes"] - before < 82_000
        store.barrier()
        kept = sum(server["value_bytes"] for server in store.statistics()["servers"])
        assert kept == 8 * size

    on_cluster(work)


BYTES = [("f16", 2.0), ("bf16", 2.0), ("int8", 1 + 4 / 256), ("onebit", 1 / 8), ("2bit", 1 / 4),
         ("1bit", 1 / 8)]


@pytest.mark.parametrize(("type", "each"), BYTES, ids=str)
def test_a_change_takes_the_bytes_of_its_codec(type: str, each: float) -> None:
    def work(store: KVStore) -> None:
        size = 1_000_000
        store.init("w", np.zeros(size, "f4"))
        store.set_gradient_compression({"type": type, "pull": True})
        store.set_optimizer("test")
        out = store.pull("w")
        before = store.statistics()["received_bytes"]
        store.pushpull("w", grads_of(2, 0, size)[store.rank], out=out)
        assert 0 < store.statistics()["received_bytes"] - before - each * size < 3000

    on_cluster(work)


@pytest.mark.parametrize("type", ["f16", "int8", "onebit"])
def test_what_a_codec_of_all_values_leaves_out_comes_with_later_rounds(type: str) -> None:
    def work(store: KVStore) -> None:
        first, zero = np.zeros(SIZE, "f4"), np.zeros(SIZE, "f4")
        ready(store, {"type": type, "error_feedback": False, "pull": True}, first)
        store.set_optimizer("test", rescale_grad=1 / 3)
        out = store.pull("w")
        store.push("w", grads_of(1, 0)[0])
        store.pushpull("w", grads_of(1, 1)[0], out=out)
        value, lacking = held(store), []
        for _ in range(6):
            lacking.append(float(np.linalg.norm(value - out)))
            store.pushpull("w", zero, out=out)  # another round, in which nothing is pushed
        assert np.linalg.norm(value) > lacking[0] > 2 * lacking[-1]

    on_cluster(work, workers=1, settings=CHUNKS)


@coded
def test_infinity_and_nan_arrive_as_such(spec: dict[str, Any]) -> None:
    def work(store: KVStore) -> None:
        value = np.linspace(-3, 3, SIZE, dtype="f4")
        ready(store, spec, value)
        out = store.pull("w")
        value[[5, 300]] = np.inf, np.nan
        store.assign("w", value)
        for turn in range(3):
            store.pushpull("w", grads_of(1, turn)[0], out=out)
            assert np.array_equal(np.isposinf(out), np.isposinf(value))
            assert np.array_equal(np.isnan(out), np.isnan(value))

    on_cluster(work, workers=1, settings=CHUNKS)


@coded
def test_values_from_elsewhere_come_whole(tmp_path: Path, spec: dict[str, Any]) -> None:
    def work(store: KVStore) -> None:
        first = np.zeros(SIZE, "f4")
        ready(store, spec, first)
        out = store.pull("w")
        store.pushpull("w", grads_of(2, 0)[store.rank], out=out)
        store.save(tmp_path / "saved")
        saved = held(store)
        store.barrier()
        if store.rank == 0:
            store.assign("w", np.full(SIZE, 0.3, "f4"))
        store.barrier()
        assert np.all(store.pull("w") == np.float32(0.3))
        store.pushpull("w", grads_of(2, 1)[store.rank], out=out)
        store.load(tmp_path / "saved")
        assert np.array_equal(store.pull("w"), saved)
        model = Bases(store, "w", spec)
        model.pull(saved)
        store.pushpull("w", grads_of(2, 2)[store.rank], out=out)
        store.barrier()
        assert np.array_equal(out, model.pull(held(store)))

    on_cluster(work, order="rank", settings=CHUNKS)


@coded
def test_who_has_been_away_is_sent_the_whole(spec: dict[str, Any]) -> None:
    def work(store: KVStore) -> None:
        ready(store, spec, np.zeros(SIZE, "f4"))
        out = store.pull("w")
        if store.rank == 1:
            store.join()
        else:
            for turn in range(12):  # more rounds than links are kept
                store.pushpull("w", grads_of(1, turn)[0], out=out)
            store.join()
        for turn in range(2):
            store.pushpull("w", grads_of(2, turn)[store.rank], out=out)
            same_at_both(store, results, out)

    results: dict[int, Any] = {}
    on_cluster(work, settings=CHUNKS)


def same_at_both(store: KVStore, results: dict[int, Any], out: Any) -> None:
    """Both workers come with what they hold, and it is the same bits."""
    results[store.rank] = out.copy()
    store.barrier()
    assert np.array_equal(results[0], results[1])
    store.barrier()


@coded
def test_calls_that_do_not_wait_for_each_other(spec: dict[str, Any]) -> None:
    def work(store: KVStore) -> None:
        value = np.zeros(SIZE, "f4")
        bases = ready(store, spec, value)
        pushed = Pushed(2, bases)
        outs = [np.zeros(SIZE, "f4") for _ in range(10)]
        handles, expected = [], []
        for turn, out in enumerate(outs):
            grads = grads_of(2, turn)
            value = value + pushed.push(grads)
            expected.append(bases.pull(value))
            handles.append(store.pushpull("w", grads[store.rank], out=out, async_op=True,
                                          priority=turn * (-1) ** turn))
        for handle in handles:
            handle.wait()
        for turn, (out, told) in enumerate(zip(outs, expected, strict=True)):
            assert np.array_equal(out, told), turn

    on_cluster(work, order="rank", settings=CHUNKS, transport="tcp")


@coded
def test_other_keys_come_as_they_are(spec: dict[str, Any]) -> None:
    def work(store: KVStore) -> None:
        keys = {"slab": np.full(300, 0.1, "f4"), "half": np.full(30_000, 0.1, "f2")}
        store.init(list(keys), list(keys.values()))
        store.set_gradient_compression({**spec, "small_bytes": 0})
        store.set_optimizer("test")
        for key, value in keys.items():
            store.pushpull(key, np.ones_like(value), out=np.zeros_like(value))
            store.barrier()
            assert np.array_equal(store.pull(key), held_as(store, key))

    def held_as(store: KVStore, key: str) -> Any:
        store.set_gradient_compression({"type": "topk"}, keys=key)
        return store.pull(key)

    on_cluster(work)


def test_a_rule_that_changes_begins_anew_or_goes_on() -> None:
    def work(store: KVStore) -> None:
        ready(store, TOPK, np.zeros(SIZE, "f4"))
        out = store.pull("w")
        for turn, spec in enumerate([TOPK, {**TOPK, "ratio": 0.1}, {"type": "2bit"}, TOPK,
                                     {"type": "threshold", "threshold": 1, "pull": True},
                                     *CODED]):
            store.set_gradient_compression(spec, keys="w")
            for _ in range(2):
                store.pushpull("w", grads_of(2, turn)[store.rank], out=out)
                same_at_both(store, results, out)

    results: dict[int, Any] = {}
    on_cluster(work, settings=CHUNKS)


@pytest.mark.parametrize("words", [{"type": "dist_async"}, {"type": "dist_ssp", "staleness": 2}],
                         ids=lambda words: words["type"])
def test_where_it_is_not_there_yet_it_says_so(words: dict[str, Any]) -> None:
    def work(store: KVStore) -> None:
        store.init("w", np.zeros(SIZE, "f4"))
        for spec in CODED:
            with pytest.raises(NotYetError, match=f"pull=True in a store of type {words['type']}"):
                store.set_gradient_compression(spec)
        with pytest.raises(NotYetError, match="pull=True of compression powersgd is not there"):
            store.set_gradient_compression({"type": "powersgd", "pull": True})

    on_cluster(work, **words)


def test_workers_must_agree() -> None:
    def work(store: KVStore) -> None:
        with pytest.raises(Disagreement, match="pull=True; worker 1 said pull='f16'"):
            store.set_gradient_compression({**TOPK, "pull": "f16" if store.rank else True})

    on_cluster(work)


@coded
def test_a_caller_that_gives_up_loses_nothing(spec: dict[str, Any]) -> None:
    """Its answer finds nobody; the next one brings what it would have brought."""
    def work(store: KVStore) -> None:
        value = np.zeros(SIZE, "f4")
        bases = ready(store, spec, value, keys="w")
        pushed = Pushed(2, bases)
        out = store.pull("w")
        bases.pull(value)
        for turn in range(4):
            grads = grads_of(2, turn)
            value = value + pushed.push(grads)
            expected = bases.pull(value)
            if turn % 2 == 0 and store.rank == 1:
                op = store.pushpull("w", grads[1], out=out, async_op=True)._call.op

                async def give_up(op: Any = op) -> None:
                    store._core.worker.let_go(op)

                store._runtime.run(give_up)
                store.barrier()  # the round is complete only after this
                continue
            if turn % 2 == 0:
                store.barrier()
            store.pushpull("w", grads[store.rank], out=out)
            assert np.array_equal(out, expected), turn

    on_cluster(work, order="rank", settings=CHUNKS)
