"""nonfinite="skip": a round in which somebody's gradient is not finite changes nothing for anybody.

The values are those of a model in NumPy: each worker encodes what is finite and keeps what it does
not send; what others have sent in such a round is lost, since the round is.
"""

from __future__ import annotations

import logging
import threading
from typing import Any

import numpy as np
import pytest

from asyncps.errors import ConfigError, RemoteProtocolError, TensorError
from asyncps.kvstore import KVStore
from asyncps.optim import Optimizer
from asyncps.tensor import codecs
from tests.kvstore.compressed import by_turns, model_2bit
from tests.support.cluster import on_cluster

T = 0.5
SPEC = {"type": "2bit", "threshold": T, "nonfinite": "skip"}
SIZES = {"a": 3, "b": 7, "large": 70_001, "c": 1, "chunk": 9000}
BAD = (np.nan, np.inf, -np.inf)


def is_bad(rank: int, turn: int, key: str) -> bool:
    """Most rounds of most keys have nobody; some have one, or more."""
    return np.random.default_rng([rank, turn, list(SIZES).index(key)]).random() < 0.15


def gradient(rank: int, turn: int, key: str) -> Any:
    chance = np.random.default_rng([7, rank, turn, list(SIZES).index(key)])
    g = chance.uniform(-1, 1, SIZES[key]).astype("f4")
    if is_bad(rank, turn, key):
        g[chance.integers(g.size)] = chance.choice(BAD)
    return g


class Model:
    """All workers' residuals, and the values."""

    def __init__(self, workers: int) -> None:
        self.residuals = [{key: np.zeros(size, "f4") for key, size in SIZES.items()}
                          for _ in range(workers)]
        self.values = {key: np.zeros(size, "f4") for key, size in SIZES.items()}

    def round(self, turn: int) -> None:
        for key in SIZES:
            total, skipped = np.zeros(SIZES[key], "f4"), False
            for rank, residual in enumerate(self.residuals):
                if is_bad(rank, turn, key):
                    skipped = True
                else:
                    total += model_2bit(residual[key], gradient(rank, turn, key), T)
            if not skipped:
                self.values[key] += total


def rounds(store: KVStore, optimizer: str = "test", turns: int = 8) -> None:
    keys = list(SIZES)
    store.init(keys, [np.zeros(size, "f4") for size in SIZES.values()])
    store.set_gradient_compression(SPEC)
    store.set_optimizer(optimizer)
    model = Model(store.num_workers)
    coders = store._core.client.compression.coders
    for turn in range(turns):
        grads = [gradient(store.rank, turn, key) for key in keys]
        model.round(turn)
        got = by_turns(store, keys, grads, turn)
        for key, value in zip(keys, got, strict=True):
            assert np.array_equal(value, model.values[key]), (turn, key)
            if any(not is_bad(store.rank, each, key) for each in range(turn + 1)):
                assert np.array_equal(coders[key].residual, model.residuals[store.rank][key])
    report = store.compression_report()
    for key in keys:
        assert report[key]["skipped"] == sum(
            is_bad(store.rank, turn, key) for turn in range(turns))


@pytest.mark.parametrize("order", ["arrival", "rank"])
@pytest.mark.parametrize("workers", [1, 2, 3, 7])
def test_rounds_are_skipped_for_all(workers: int, order: str) -> None:
    on_cluster(rounds, workers=workers, order=order, settings={"chunk_bytes": 65536})


@pytest.mark.usefixtures("registered")
@pytest.mark.parametrize("transport", ["memory", "tcp"])
def test_rounds_are_skipped_with_an_optimizer_of_the_users_own(transport: str) -> None:
    class Adds(Optimizer):
        """weight += grad."""

        def update(
            self, weight: Any, grad: Any, state: dict[str, Any], hyper: dict[str, Any]
        ) -> None:
            weight += grad

    on_cluster(lambda store: rounds(store, Adds.name), workers=3, transport=transport)


def test_a_skipped_round_is_no_update() -> None:
    def work(store: KVStore) -> None:
        store.init(["w", "same"], [np.zeros(5, "f4"), np.zeros(5, "f4")])
        store.set_gradient_compression({"type": "f16", "small_bytes": 0, "nonfinite": "skip"})
        store.set_optimizer("adam", learning_rate=0.1)
        for turn in range(4):
            good = np.full(5, 0.5, "f4")
            bad = np.full(5, np.nan, "f4")
            if turn == 2:
                store.push("w", bad if store.rank == 0 else good)
            else:
                store.push(["w", "same"], [good, good])
        value, same = store.pull(["w", "same"])
        assert np.array_equal(value, same)  # momentum and t know nothing of it

    on_cluster(work)


@pytest.mark.parametrize("size", [5, 70_001], ids=["small", "large"])
@pytest.mark.parametrize("dtype", ["f4", "f2"])
@pytest.mark.parametrize("type", ["dist_async", "dist_ssp"])
def test_where_pushes_are_applied_as_they_come_that_push_is_dropped(
    type: str, dtype: str, size: int
) -> None:
    def work(store: KVStore) -> None:
        store.init("w", np.zeros(size, dtype))
        store.set_gradient_compression(SPEC)
        store.set_optimizer("test")
        for turn in range(4):
            g = np.full(size, T, dtype)
            if turn == store.rank:
                g[-1] = np.nan
            store.push("w", g)
        store.barrier()
        store.pull("w")
        store.barrier()
        assert (store.pull("w") == 3 * T * store.num_workers).all()

    options = {"staleness": 2} if type == "dist_ssp" else {}
    on_cluster(work, type=type, **options)


def test_without_an_optimizer_the_value_stays() -> None:
    def work(store: KVStore) -> None:
        store.init("w", np.full(5, 9, "f4"))
        store.set_gradient_compression(SPEC)
        g = np.full(5, np.nan if store.rank else T, "f4")
        assert (store.pushpull("w", g, out=np.zeros(5, "f4")) == 9).all()
        assert (store.pushpull("w", np.full(5, T, "f4"), out=np.zeros(5, "f4")) == 1).all()

    on_cluster(work)


def skip_a_slab_whole(order: str, spec: dict[str, Any], bad: Any, good: Any, total: float) -> None:
    """One worker's slab is skipped whole, and the other pushes its keys one by one."""

    def work(store: KVStore) -> None:
        keys = ["a", "b"]
        store.init(keys, [np.zeros(5, "f4"), np.zeros(5, "f4")])
        store.set_gradient_compression(spec)
        store.set_optimizer("test")
        if store.rank == 0:
            store.push(keys, [bad] * 2).wait(10)
            pushed.set()
        else:
            assert pushed.wait(10)
            for key in keys:
                store.push(key, good)
        for value in store.pull(keys):
            assert (value == 0).all()
        for value in store.pushpull(keys, [good, good.copy()]):  # and together again
            assert (value == total).all()

    pushed = threading.Event()
    on_cluster(work, order=order)


@pytest.mark.parametrize("order", ["arrival", "rank"])
def test_a_slab_that_is_skipped_whole_may_be_pushed_in_rows_by_others(order: str) -> None:
    skip_a_slab_whole(order, SPEC, np.full(5, np.nan, "f4"), np.full(5, T, "f4"), 1)


def test_it_is_said_where_it_happens(caplog: pytest.LogCaptureFixture) -> None:
    def work(store: KVStore) -> None:
        store.init("w", np.zeros(5, "f4"))
        store.set_gradient_compression(SPEC)
        for _ in range(5):
            store.push("w", np.full(5, np.inf if store.rank else T, "f4"))
            store.pull("w")

    with caplog.at_level(logging.WARNING, "asyncps.roles.nonfinite"):
        on_cluster(work)
    said = [record.getMessage() for record in caplog.records
            if record.name == "asyncps.roles.nonfinite"]
    assert len(said) == 3  # the 1st, 2nd and 4th
    assert all("key 'w' at rank 1 is not finite (5 of 5 values" in text for text in said)


def test_others_still_raise() -> None:
    def work(store: KVStore) -> None:
        store.init(["skips", "raises"], [np.zeros(5, "f4"), np.zeros(5, "f4")])
        store.set_gradient_compression({"type": "2bit"})
        store.set_gradient_compression(SPEC, keys=["skips"])
        bad = np.full(5, np.nan, "f4")
        with pytest.raises(TensorError, match="key 'raises'"):
            store.push(["skips", "raises"], [np.ones(5, "f4"), bad])
        store.push(["skips", "raises"], [bad, np.full(5, T, "f4")])
        skips, raises = store.pull(["skips", "raises"])
        assert (skips == 0).all()
        assert (raises == T).all()

    on_cluster(work, workers=1)


def test_words_and_payloads_that_cannot_be_are_refused() -> None:
    with pytest.raises(ConfigError, match="error or skip"):
        codecs.checked({"type": "2bit", "nonfinite": "zero"})
    with pytest.raises(ConfigError, match="unknown type"):
        codecs.checked({"type": "skip"})
    skip = codecs.Skip()
    assert skip.head(8, 0).hex() == "01ff0000" "00000000" "0800000000000000" "0000000000000000"
    codec, elements, _ = codecs.parse_head(skip.head(8, 0), codecs.BY_NUMBER)
    assert (codec.name, elements) == ("skip", 8)
    with pytest.raises(RemoteProtocolError, match="0 bytes of 8 values"):
        codec.check(8, np.zeros(1, "u1"), 0)
