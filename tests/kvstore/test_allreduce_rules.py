"""The store type `allreduce`: ACCEPTANCE K10 and C4 on stores, what it refuses, and its ends."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

import asyncps
from asyncps.allreducestore import AllReduceStore
from asyncps.errors import (
    ClosedError,
    ClusterError,
    CollectiveMismatch,
    ConfigError,
    DeadlineExceeded,
    Disagreement,
    DtypeMismatch,
    KeyExists,
    NotYetError,
    OptimizerError,
    ShapeMismatch,
    TensorError,
    UnknownKey,
)
from tests.kvstore.test_allreduce import k11, k12, on_workers


def test_k10_mistakes_raise_at_the_caller_and_the_store_still_works() -> None:
    def work(store: AllReduceStore) -> None:
        store.init([5, "w"], [np.zeros(3, "f4"), np.zeros((2, 3), "f4")])
        good = np.ones((2, 3), "f4")
        frozen = good.copy()
        frozen.flags.writeable = False
        for error, text, wrong in (
            (UnknownKey, "there is 5, of type int", lambda: store.pushpull("5", np.zeros(3, "f4"))),
            (UnknownKey, "'nobody'", lambda: store.pushpull("nobody", good)),
            (ShapeMismatch, "'w'", lambda: store.pushpull("w", np.ones((3, 2), "f4"))),
            (DtypeMismatch, "'w'", lambda: store.pushpull("w", np.ones((2, 3)))),
            (DtypeMismatch, "'w'", lambda: store.pushpull("w", good.astype(">f4"))),
            (DtypeMismatch, "'w'", lambda: store.pushpull("w", good, np.ones((2, 3)))),
            (TensorError, "writable", lambda: store.pushpull("w", frozen)),
            (TensorError, "writable", lambda: store.pushpull("w", good, frozen)),
            (TensorError, "two keys", lambda: store.broadcast(["a", "b"], [good, good],
                                                              [good, good])),
            (TensorError, "'w'", lambda: store.pushpull("w", "text")),
            (TensorError, "takes as many", lambda: store.pushpull(["w"], [good, good])),
            (KeyExists, "twice", lambda: store.pushpull(["w", "w"], [good, good.copy()])),
            (ConfigError, "a key is", lambda: store.pushpull(1.5, good)),
            (ConfigError, "priority", lambda: store.pushpull("w", good, priority="high")),
            (ShapeMismatch, "'w'", lambda: store.init("w", np.zeros(2, "f4"))),
            (DtypeMismatch, "'w'", lambda: store.broadcast("w", np.zeros((2, 3)))),
            (DtypeMismatch, "'c'", lambda: store.init("c", np.zeros(3, "c8"))),
            (TensorError, "too long", lambda: store.init("x" * 1025, good)),
            (ConfigError, "Unicode", lambda: store.init("\ud800", good)),
            (ShapeMismatch, "dimensions", lambda: store.init("d", np.zeros((1,) * 64))),
            (NotYetError, "row-sparse", lambda: store.init(
                "t", asyncps.RowSparse([0], np.ones((1, 2), "f4"), (3, 2)))),
            (NotYetError, "row-sparse", lambda: store.init(
                "t", asyncps.initializer.Zero(), shape=(3, 2))),
        ):
            with pytest.raises(error, match=text):
                wrong()
        assert np.all(store.pushpull("w", good.copy()) == 2)
        odd = "\x01" * 1024  # its name is longer than a call's may be
        store.init(odd, good)
        assert np.all(store.pushpull(odd, good) == 2)

    on_workers(work)


def test_workers_that_differ_hear_it_all_and_go_on() -> None:
    def work(store: AllReduceStore) -> None:
        rank = store.rank
        with pytest.raises(CollectiveMismatch, match=(
            r"key 'w' of store 'default'.*ranks 0 and 2: shape \(3,\) and \(4, 2\)$"
        )):
            store.init("w", np.zeros((4, 2) if rank == 2 else 3, "f4"))
        with pytest.raises(CollectiveMismatch, match=r"ranks 0 and 1: shape \(\) and \(3,\)"):
            store.init("w", np.zeros(() if rank == 0 else 3, "f4"))
        with pytest.raises(CollectiveMismatch, match="dtype float32 and float64"):
            store.broadcast("w", np.zeros(3, "f8" if rank == 1 else "f4"))
        store.init(["w", "v"], [np.zeros(3, "f4")] * 2)
        verb = store.broadcast if rank else store.pushpull
        with pytest.raises(CollectiveMismatch, match="verb all_reduce and broadcast"):
            verb("w", np.zeros(3, "f4"))
        handle = store.pushpull(["v", "w"], [np.ones(3, "f4"), np.ones(3, "f4")], async_op=True)
        assert all(np.all(value == 3) for value in handle.wait())

    on_workers(work, 3)


def test_a_failed_pushpull_is_told_by_its_handle_or_by_close() -> None:
    heard: list[str] = []

    def work(store: AllReduceStore) -> None:
        store.init("w", np.zeros(3, "f4"))

        def differ() -> Any:
            if store.rank:
                return store.pushpull("w", np.ones(3, "f4"), async_op=True)
            with pytest.raises(CollectiveMismatch):
                store.broadcast("w", np.ones(3, "f4"))
            return None

        handle = differ()
        if handle is not None:
            with pytest.raises(CollectiveMismatch):
                handle.wait()
            assert isinstance(handle.exception(), CollectiveMismatch)
            assert "Mismatch" in repr(handle)
        differ()
        store.barrier()
        try:
            store.close()
        except CollectiveMismatch:
            heard.append(f"rank {store.rank}")
        with pytest.raises(ClosedError):
            store.barrier()

    on_workers(work)
    assert heard == ["rank 1"]


def test_a_worker_that_does_not_come_is_named() -> None:
    gate = threading.Event()

    def work(store: AllReduceStore) -> None:
        store.init("w", np.zeros(3, "f4"))
        if store.rank == 0:
            handle = store.pushpull("w", np.ones(3, "f4"), async_op=True)
            with pytest.raises(DeadlineExceeded, match=r"key 'w'.*lacks ranks \[1\]"):
                handle.wait(0.01)
            gate.set()
            assert np.all(handle.wait() == 2)
        else:
            assert gate.wait(10)
            assert np.all(store.pushpull("w", np.ones(3, "f4")) == 2)

    on_workers(work)


def test_a_worker_that_has_joined_makes_no_calls() -> None:
    joining = threading.Event()

    def work(store: AllReduceStore) -> None:
        store.init("w", np.zeros(4, "f4"))
        store.barrier()
        if store.rank == 0:
            thread = threading.Thread(target=store.join)
            thread.start()
            while not store._calling._joining:
                pass
            for verb in (store.barrier, store.join,
                         lambda: store.pushpull("w", np.ones(4, "f4"))):
                with pytest.raises(ClusterError, match="has joined"):
                    verb()
            joining.set()
            thread.join()
        else:
            assert joining.wait(10)
            store.join()
        assert np.all(store.pushpull("w", np.ones(4, "f4")) == 2)

    on_workers(work)


@pytest.mark.parametrize(("verb", "kind", "instead"), [
    ("push", ConfigError, r"pushpull, or asyncps\.Trainer"),
    ("pull", ConfigError, r"broadcast, .*or asyncps\.Trainer"),
    ("assign", ConfigError, "broadcast"), ("row_sparse_pull", NotYetError, "dist_sync"),
    ("set_optimizer", OptimizerError, "asyncps.Trainer"),
    ("set_hyperparameters", OptimizerError, "asyncps.Trainer"),
    ("set_updater", OptimizerError, "asyncps.Trainer"),
    ("save", ConfigError, "Trainer.save_states"), ("load", ConfigError, "Trainer.save_states"),
    ("save_optimizer_states", ConfigError, "Trainer.save_states"),
    ("load_optimizer_states", ConfigError, "Trainer.load_states"),
])  # fmt: skip
def test_verbs_that_need_servers_name_what_there_is(
    verb: str, kind: type[Exception], instead: str
) -> None:
    with asyncps.create("allreduce") as store:
        with pytest.raises(kind, match=instead):
            getattr(store, verb)("w", np.ones(3, "f4"))
        assert store.compression_report() == {}
        with pytest.raises(NotYetError, match="statistics"):
            store.statistics()


def test_words_that_cannot_be_are_refused() -> None:
    with pytest.raises(NotYetError, match=r"connect.*create"):
        asyncps.connect("allreduce")
    for wrong in ({"staleness": 1}, {"multi_precision": True}, {"reduce": "max"}, {"ordre": 1}):
        with pytest.raises(ConfigError, match=next(iter(wrong))):
            asyncps.create("horovod", **wrong)


def test_alone_it_is_one_rank_and_a_store_with_servers_may_stand_beside() -> None:
    with asyncps.create("allreduce") as store, asyncps.create("dist_sync", name="b") as other:
        assert (store.rank, store.num_workers, store.local_rank) == (0, 1, 0)
        k12(store)
        k11(store)
        assert store.join() == 0
        other.init("w", np.ones(3))
        assert np.all(other.pull("w") == 1)
        assert asyncps.create("horovod") is store
        for wrong in ({"type": "dist_sync"}, {"type": "horovod", "reduce": "mean"},
                      {"type": "allreduce", "name": "b"}):
            with pytest.raises(Disagreement):
                asyncps.create(**wrong)
        other.close()
        store.barrier()


def test_a_process_that_has_met_nobody_says_so() -> None:
    with asyncps.create("dist_sync"):
        with pytest.raises(ConfigError, match=r"without being connected.*store of type allreduce"):
            asyncps.create("allreduce", name="b")
