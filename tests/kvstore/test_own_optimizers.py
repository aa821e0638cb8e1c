"""Optimizers of the user's own, which work beside the servers' loops, as users see them."""

from __future__ import annotations

import threading
from asyncio import CancelledError
from typing import Any

import numpy as np
import pytest

import asyncps
from asyncps import optim
from asyncps.errors import DeadlineExceeded, OptimizerError
from asyncps.kvstore import KVStore
from asyncps.roles import workshop
from tests.support.cluster import on_cluster

both_transports = pytest.mark.parametrize("transport", ["memory", "tcp"])
TYPES = pytest.mark.parametrize(
    "options", [{}, {"type": "dist_async"}, {"type": "dist_ssp", "staleness": 1}],
    ids=["sync", "async", "ssp"],
)
SHAPES = {"small": (3,), "tiny": (1,), "large": (300_001,)}


pytestmark = pytest.mark.usefixtures("registered")


class Gate:
    """An optimizer that adds gradients, and stops at those of 99 until it is let go."""

    def __init__(self) -> None:
        self.reached, self.open = threading.Event(), threading.Event()
        gate = self

        class Gated(optim.Optimizer):
            def init(self, spec: optim.Spec) -> dict[str, Any]:
                return {"count": np.zeros(spec.shape, spec.dtype)}

            def update(self, weight: Any, grad: Any, state: Any, hyper: Any) -> None:
                state["count"] += 1
                if (state["count"] != hyper["t"]).any():
                    raise RuntimeError("updates and state have parted")
                if grad[0] == 99:
                    gate.reached.set()
                    gate.open.wait(30.0)
                if grad[0] == -1:
                    raise ValueError("downhill")
                weight += grad


@both_transports
@TYPES
def test_every_push_counts_once_and_is_seen_by_who_pushed_it(
    options: dict[str, Any], transport: str
) -> None:
    Gate()
    keys, pushes = list(SHAPES), 6

    def work(store: KVStore) -> None:
        store.init(keys, [np.zeros(SHAPES[key], "f4") for key in keys])
        store.set_optimizer("gated")
        for turn in range(pushes):
            values = [np.ones(SHAPES[key], "f4") for key in keys]
            if turn % 2:
                got = store.pushpull(keys, values)
            else:
                for key, value in zip(keys, values, strict=True):
                    store.push(key, value)
                got = store.pull(keys)
            least = turn + 1 if options else (turn + 1) * store.num_workers
            for value in got:
                assert (value >= least).all()
        store.barrier()
        assert all((value == pushes * store.num_workers).all() for value in store.pull(keys))

    on_cluster(work, workers=3, transport=transport, **options)


def test_dist_async_takes_many_pushes_at_once_and_its_barrier_means_applied() -> None:
    Gate()

    def work(store: KVStore) -> None:
        store.init("w", np.zeros(3, "f4"))
        store.set_optimizer("gated")
        handles = [store.push("w", np.ones(3, "f4")) for _ in range(30)]
        handles[-1].wait(10.0)
        assert (store.pull("w") >= 30).all()
        store.push("w", np.ones(3, "f4"))
        store.barrier()
        assert (store.pull("w") == 31 * store.num_workers).all()

    on_cluster(work, type="dist_async")


@both_transports
@TYPES
def test_update_that_hangs_stops_no_other_key_and_who_waits_hears_of_it(
    options: dict[str, Any], transport: str
) -> None:
    gate = Gate()

    def work(store: KVStore) -> None:
        store.init(["slow", "other"], [np.zeros(2, "f4"), np.zeros(2, "f4")])
        store.set_optimizer("gated")
        with pytest.raises(
            DeadlineExceeded, match=r"server 0 .*waits for its optimizer gated, .*key 'slow'"
        ):
            store.pushpull("slow", np.full(2, 99, "f4"))
        assert gate.reached.wait(10.0)
        # The loop lives: what needs no update of that kind is served meanwhile.
        store.assign("other", np.full(2, 5, "f4"))
        assert (store.pull("other") == 5).all()
        store.barrier()
        assert store.statistics()["servers"][0]["parked"] >= 1
        gate.open.set()
        assert (store.pull("slow") == 99).all()  # the push has counted

    with asyncps.LocalCluster(
        servers=1, workers=1, transport=transport, answer_s=10.0, round_s=0.5
    ) as cluster:
        try:
            cluster.run(work, **options)
        finally:
            gate.open.set()


@TYPES
def test_what_waits_for_an_update_is_given_as_long_as_a_round(options: dict[str, Any]) -> None:
    gate = Gate()

    def work(store: KVStore) -> None:
        store.init("w", np.zeros(2, "f4"))
        store.set_optimizer("gated")
        pushed = store.push("w", np.full(2, 99, "f4"))
        assert gate.reached.wait(10.0)
        waits = [lambda: store.assign("w", np.full(2, 5, "f4"))]
        if store.type == "dist_async":
            waits.append(pushed.wait)
        for wait in waits:
            with pytest.raises(DeadlineExceeded, match="waits for its optimizer gated"):
                wait()
        gate.open.set()
        store.pull("w")
        assert (store.pushpull("w", np.ones(2, "f4")) == 6).all()  # it was assigned all the same

    with asyncps.LocalCluster(servers=1, workers=1, answer_s=0.3, round_s=1.0) as cluster:
        try:
            cluster.run(work, **options)
        finally:
            gate.open.set()


@TYPES
def test_value_that_is_assigned_takes_its_turn(options: dict[str, Any]) -> None:
    Gate()

    def work(store: KVStore) -> None:
        for key, shape in SHAPES.items():
            store.init(key, np.zeros(shape, "f4"))
        store.set_optimizer("gated")
        for turn in range(4):
            for key, shape in SHAPES.items():
                store.push(key, np.ones(shape, "f4"))
                store.assign(key, np.full(shape, 10 * turn, "f4"))
            for key, shape in SHAPES.items():
                assert (store.pushpull(key, np.ones(shape, "f4")) == 10 * turn + 1).all()

    on_cluster(work, workers=1, **options)


def test_failed_update_names_key_and_server_and_the_next_one_counts() -> None:
    Gate()

    def work(store: KVStore) -> None:
        store.init("w", np.zeros(2, "f4"))
        store.set_optimizer("gated")
        with pytest.raises(OptimizerError, match=r"gated failed.*downhill") as caught:
            store.pushpull("w", np.full(2, -1 / store.num_workers, "f4"))
        assert caught.value.key == "w"
        assert str(caught.value.host).startswith("server 0 on ")
        assert (store.pushpull("w", np.ones(2, "f4")) == store.num_workers).all()

    on_cluster(work, servers=1)


def test_cluster_ends_though_an_update_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workshop, "END_S", 0.05)
    gate = Gate()

    def work(store: KVStore) -> None:
        store.init("w", np.zeros(2, "f4"))
        store.set_optimizer("gated")
        store.push("w", np.full(2, 99, "f4")).wait()
        assert gate.reached.wait(10.0)

    on_cluster(work, workers=1, servers=1)
    gate.open.set()


def test_whole_keys_are_kept_whole_if_the_optimizer_asks_for_it() -> None:
    class Centred(optim.Optimizer):
        whole_keys = True

        def update(self, weight: Any, grad: Any, state: Any, hyper: Any) -> None:
            weight += grad - grad.mean()

    def work(store: KVStore) -> None:
        store.set_optimizer("centred")
        store.init("w", np.zeros(1_000_000, "f8"))
        value = np.arange(1_000_000, dtype="f8")
        assert (store.pushpull("w", value.copy()) == 2 * (value - value.mean())).all()

    on_cluster(work)


class Rude(Exception):
    """One that cannot be shown."""

    def __init__(self, inner: type[BaseException] = RuntimeError) -> None:
        self.inner = inner

    def __str__(self) -> str:
        raise self.inner("no words")

    __repr__ = __str__


ANY = [KeyboardInterrupt(), GeneratorExit(), CancelledError(), SystemExit(1), Rude(),
       Rude(SystemExit), Rude(KeyboardInterrupt), OptimizerError("\udcff"), ValueError("\udcff")]


@pytest.mark.parametrize("where", ["init", "update"])
@pytest.mark.parametrize("number", range(len(ANY)), ids=lambda at: type(ANY[at]).__name__)
def test_whatever_it_raises_fails_its_round_and_no_other(number: int, where: str) -> None:
    failing = [True]

    def fail(self: Any, *given: Any) -> Any:
        if failing[0]:
            failing[0] = False
            raise ANY[number]
        if where == "update":
            given[0][:] += given[1]
        return {}

    def add(self: Any, weight: Any, grad: Any, *_: Any) -> None:
        weight += grad

    type("Mine", (optim.Optimizer,), {"update": add, where: fail})

    def work(store: KVStore) -> None:
        store.init("w", np.zeros(2, "f4"))
        store.set_optimizer("mine")
        with pytest.raises(OptimizerError, match=r"mine failed|udcff") as caught:
            store.pushpull("w", np.ones(2, "f4"))
        assert caught.value.key == "w"
        assert store.pushpull("w", np.ones(2, "f4")).tolist() == [1, 1]

    on_cluster(work, servers=1, workers=1)


@pytest.mark.parametrize("name", ["\udcff", "", "n" * 101, 5], ids=ascii)
@pytest.mark.parametrize("kind", ["local", "dist_sync"])
def test_state_of_a_name_that_cannot_travel_is_refused_at_the_first_round(
    kind: str, name: Any
) -> None:
    def init(self: Any, spec: optim.Spec) -> dict[Any, Any]:
        return {name: np.zeros(spec.shape)}

    type("Mine", (optim.Optimizer,), {"init": init, "update": lambda *_: None})
    with asyncps.create(kind) as store:
        store.init("w", np.zeros(2, "f4"))
        store.set_optimizer("mine")
        with pytest.raises(OptimizerError, match="state of optimizer mine cannot have that name"):
            store.pushpull("w", np.ones(2, "f4"))
        store.set_optimizer("test")
        assert store.pushpull("w", np.ones(2, "f4")).tolist() == [1, 1]
