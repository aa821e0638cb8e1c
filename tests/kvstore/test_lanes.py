"""Small blocking pushpulls on their own connection: when, what comes back, and what may go wrong.

Whether an answer comes within a few milliseconds is chance on a busy machine. So tests that must
see the lane used wait for long, and tests of late answers hold the other worker back.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import msgspec
import numpy as np
import pytest

import asyncps
from asyncps.core import Core
from asyncps.errors import ClosedError, OptimizerError, SchedulerLost
from asyncps.kvstore import KVStore
from asyncps.roles import lane as module
from asyncps.roles.lane import LANE_BYTES, Lanes
from asyncps.roles.server import Server
from asyncps.transport.blocking import send_parts, wait_at_most
from asyncps.transport.polling import Bet
from tests.support.cluster import DEADLINES, on_cluster, on_processes
from tests.support.processes import ProcessGroup
from tests.support.proxy import ThreadProxy
from tests.support.threads import together

LONG_S = 8.0


class Watched:
    """Every try on a lane, by the rank of its worker: True when the answer came in time."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.tries: dict[int, list[bool]] = {}
        self.on_miss: Callable[[int], None] = lambda rank: None
        self._monkeypatch = monkeypatch
        exchange = Lanes.exchange

        def watched(lanes: Lanes, *arguments: Any) -> Any:
            rank = lanes._node.rank
            got = None
            try:
                got = exchange(lanes, *arguments)
            finally:
                self.tries.setdefault(rank, []).append(isinstance(got, memoryview))
            if got is None:
                self.on_miss(rank)
            return got

        monkeypatch.setattr(Lanes, "exchange", watched)

    def patient(self, seconds: float = LONG_S) -> None:
        """Let lanes that are opened from now on wait longer than any round lasts."""
        self._monkeypatch.setattr(module, "PATIENCE_S", seconds)


@pytest.fixture
def lanes(monkeypatch: pytest.MonkeyPatch) -> Watched:
    """All lanes of this process under watch."""
    return Watched(monkeypatch)


def lanes_of(store: KVStore) -> Lanes:
    """The lanes of a store."""
    shortcut = store._core.shortcut
    assert shortcut is not None
    return shortcut._lanes


def detour(store: KVStore, proxy: ThreadProxy) -> None:
    """Lead the lanes of a store through a proxy; the loop has its connections already."""
    node = store._core.worker.node
    host, port = proxy.address
    node.members = [
        msgspec.structs.replace(m, host=host, port=port) if m.role == "server" else m
        for m in node.members
    ]


def settle(store: KVStore) -> None:
    """Wait until the loop has cleaned up behind the last call."""

    async def nothing() -> None:
        pass

    store._runtime.run(nothing)


def server_of(cluster: asyncps.LocalCluster) -> Server:
    """The only server, once it listens."""
    scope, runtime = cluster._scope, cluster._runtime
    assert scope is not None
    assert runtime is not None

    async def turn_of_the_loop() -> None:
        await asyncio.sleep(0)

    while True:
        for role in scope.roles:
            if isinstance(role, Server) and role._listening is not None:
                return role
        runtime.run(turn_of_the_loop)


def in_step(store: KVStore, key: Any, value: Any, **more: Any) -> Any:
    """One pushpull with nothing else under way."""
    settle(store)
    return store.pushpull(key, value, **more)


# ---- values -------------------------------------------------------------------------------------

SLAB = ["a", "b", "c"]


def slab_row(store: KVStore, turn: int) -> None:
    got = in_step(store, "b", np.full(5, store.rank + turn, "f4"))
    assert (got == 2 * turn + 1).all()


def whole_slab(store: KVStore, turn: int) -> None:
    got = in_step(store, SLAB, [np.full(5, store.rank + turn + i, "f4") for i in range(3)])
    for i, value in enumerate(got):
        assert (value == 2 * (turn + i) + 1).all()


def some_rows_backwards(store: KVStore, turn: int) -> None:
    outs = [np.zeros(5, "f4"), np.zeros(5, "f4")]
    values = [np.full(5, turn, "f4"), np.full(5, -turn, "f4")]
    in_step(store, ["c", "a"], values, out=outs)
    assert (outs[0] == 2 * turn).all()
    assert (outs[1] == -2 * turn).all()


def chunk_of_64_kib(store: KVStore, turn: int) -> None:
    value = np.arange(LANE_BYTES // 4, dtype="f4") + turn + store.rank
    got = in_step(store, "chunk", value)
    assert got is value
    assert (got == 2 * (np.arange(LANE_BYTES // 4) + turn) + 1).all()


def f16(store: KVStore, turn: int) -> None:
    out = np.zeros((3, 1), "f2")
    got = in_step(store, "half", np.full((3, 1), turn + store.rank, "f2"), out=out)
    assert got is out
    assert (out == 2 * turn + 1).all()


def devices(store: KVStore, turn: int) -> None:
    values = [np.full(5, turn, "f4"), np.full(5, store.rank, "f4")]
    outs = [np.zeros(5, "f4"), np.zeros((5, 2), "f4")[:, 0]]
    in_step(store, "a", values, out=outs)
    assert all((out == 2 * turn + 1).all() for out in outs)


def number(store: KVStore, turn: int) -> None:
    got = in_step(store, "number", np.asarray(turn + store.rank, "i8"))
    assert got.shape == ()
    assert got == 2 * turn + 1


@pytest.mark.parametrize("turn", [
    slab_row, whole_slab, some_rows_backwards, chunk_of_64_kib, f16, devices, number,
], ids=lambda work: work.__name__)  # fmt: skip
def test_values_on_the_lane_are_right(
    lanes: Watched, turn: Callable[[KVStore, int], None]
) -> None:
    lanes.patient()

    def work(store: KVStore) -> None:
        store.init(SLAB, [np.zeros(5, "f4")] * 3)
        store.init("chunk", np.zeros(LANE_BYTES // 4, "f4"))
        store.init("half", np.zeros((3, 1), "f2"))
        store.init("number", np.asarray(0, "i8"))
        for i in range(5):
            turn(store, i)

    on_cluster(work, servers=1, transport="tcp")
    assert lanes.tries == {0: [True] * 5, 1: [True] * 5}


def test_every_server_has_a_lane_of_its_own_and_optimizers_work(lanes: Watched) -> None:
    lanes.patient()

    def work(store: KVStore) -> None:
        keys = [f"k{i}" for i in range(4)]
        for key in keys:
            store.init(key, np.ones(10_000, "f4"))  # chunks, spread over the servers
        store.set_optimizer("sgd", learning_rate=0.5, momentum=0.5)
        weight, momentum = 1.0, 0.0
        for _ in range(4):
            momentum = 0.5 * momentum - 0.5 * 2
            weight += momentum
            for key in keys:
                got = in_step(store, key, np.ones(10_000, "f4"))
                assert (got == weight).all()
        assert set(lanes_of(store)._open) == {0, 1}

    on_cluster(work, servers=2, transport="tcp")
    assert lanes.tries == {0: [True] * 16, 1: [True] * 16}


def test_server_counts_the_bytes_of_lanes_and_knows_whose_they_are(lanes: Watched) -> None:
    lanes.patient()
    with asyncps.LocalCluster(workers=2, transport="tcp", **DEADLINES) as cluster:

        def work(store: KVStore) -> None:
            store.init("w", np.zeros(LANE_BYTES // 4, "f4"))
            store.barrier()
            before = store.statistics()["servers"][0]["received_bytes"]
            store.barrier()
            for _ in range(3):
                in_step(store, "w", np.ones(LANE_BYTES // 4, "f4"))
            store.barrier()
            after = store.statistics()["servers"][0]
            assert after["received_bytes"] - before >= 6 * LANE_BYTES
            assert after["rounds"] == 3
            assert after["parked"] == 0
            assert set(server_of(cluster).lanes) == {0, 1}
            store.barrier()

        cluster.run(work)


# ---- not on the lane ----------------------------------------------------------------------------


@pytest.mark.parametrize("case", ["large", "two chunks", "two slabs", "two servers", "handle"])
def test_other_pushpulls_go_over_the_loop(lanes: Watched, case: str) -> None:
    lanes.patient()

    def work(store: KVStore) -> None:
        store.init(["a", "b"], [np.zeros(5, "f4"), np.zeros(5, "f8")])
        store.init(["c", "d"], [np.zeros(10_000, "f4"), np.zeros(10_000, "f4")])
        store.init("large", np.zeros(LANE_BYTES // 4 + 1, "f4"))
        for _ in range(3):
            settle(store)
            match case:
                case "large":
                    got = store.pushpull("large", np.ones(LANE_BYTES // 4 + 1, "f4"))
                    assert (got == 2).all()
                case "two chunks" | "two servers":
                    got = store.pushpull(["c", "d"], [np.ones(10_000, "f4"), np.ones(10_000, "f4")])
                    assert all((value == 2).all() for value in got)
                case "two slabs":
                    got = store.pushpull(["a", "b"], [np.ones(5, "f4"), np.ones(5, "f8")])
                    assert all((value == 2).all() for value in got)
                case "handle":
                    assert (store.pushpull("a", np.ones(5, "f4"), async_op=True).wait() == 2).all()

    on_cluster(work, servers=2 if case == "two servers" else 1, transport="tcp")
    assert lanes.tries == {}


def test_there_are_no_lanes_in_memory(lanes: Watched) -> None:
    def work(store: KVStore) -> None:
        assert store._core.shortcut is None
        store.init("a", np.zeros(5, "f4"))
        assert (store.pushpull("a", np.ones(5, "f4")) == 2).all()

    on_cluster(work, transport="memory")
    assert lanes.tries == {}


def test_lane_is_closed_while_something_else_is_under_way(lanes: Watched) -> None:
    lanes.patient()
    over = threading.Event()

    def work(store: KVStore) -> None:
        store.init(["a", "b"], [np.zeros(5, "f4"), np.zeros(5, "f8")])
        if store.rank == 0:
            store.push("b", np.ones(5, "f8"))
            pull = store.pull("b", async_op=True)  # waits for the other
            for _ in range(3):
                assert (in_step(store, "a", np.ones(5, "f4")) == 2).all()
            assert 0 not in lanes.tries
            over.set()
            assert (pull.wait() == 2).all()
        else:
            for _ in range(3):
                assert (in_step(store, "a", np.ones(5, "f4")) == 2).all()
            assert over.wait(10)
            store.push("b", np.ones(5, "f8")).wait()
        assert (in_step(store, "a", np.full(5, 3, "f4")) == 6).all()

    on_cluster(work, servers=1, transport="tcp")
    assert lanes.tries == {0: [True], 1: [True] * 4}


# ---- late answers -------------------------------------------------------------------------------


@pytest.mark.parametrize("optimizer", [None, "sgd"])
@pytest.mark.parametrize("size", [5, LANE_BYTES // 4], ids=["slab", "chunk"])
def test_straggler_makes_the_loop_take_over_and_every_sum_is_right(
    lanes: Watched, size: int, optimizer: str | None
) -> None:
    turns = 12
    gave_up = [threading.Event() for _ in range(turns)]
    lanes.on_miss = lambda rank: gave_up[len(lanes.tries[0]) - 1].set() if rank == 0 else None

    def work(store: KVStore) -> None:
        store.init(["a", "w"], [np.zeros(1, "f4"), np.zeros(size, "f4")])
        if optimizer:
            store.set_optimizer(optimizer, learning_rate=1.0, momentum=1.0)
        weight = momentum = 0.0
        for turn in range(turns + 3):
            if turn == turns and store.rank == 0:
                wait_at_most(lanes_of(store)._open[0].sock, LONG_S, LONG_S)
            if turn < turns and store.rank == 1:
                assert gave_up[turn].wait(10)
            got = in_step(store, "w", np.full(size, turn + store.rank, "f4"))
            total = 2 * turn + 1
            momentum -= total
            weight += momentum
            assert (got == (weight if optimizer else total)).all(), turn

    on_cluster(work, servers=1, transport="tcp")
    # On one and the same lane: twelve late answers were read past before the first that counts.
    assert lanes.tries[0] == [False] * turns + [True] * 3


def test_call_that_went_on_over_the_loop_may_be_followed_by_any_other(lanes: Watched) -> None:
    late = threading.Event()
    lanes.on_miss = lambda rank: late.set() if rank == 0 else None

    def work(store: KVStore) -> None:
        store.init(["a", "w"], [np.zeros(3, "f4"), np.zeros(5, "f4")])
        store.set_optimizer("test")
        if store.rank == 1:
            assert late.wait(10)
        assert (in_step(store, "w", np.ones(5, "f4")) == 2).all()
        store.push("w", np.ones(5, "f4"))
        store.push(["w", "a"], [np.ones(5, "f4"), np.ones(3, "f4")])
        assert (store.pull("w") == 6).all()
        assert (store.pushpull(["a", "w"], [np.ones(3, "f4"), np.ones(5, "f4")])[1] == 8).all()
        assert (store.pull("a") == 4).all()

    on_cluster(work, servers=1, transport="tcp")


def test_stores_of_one_worker_share_its_lanes_and_no_answers(lanes: Watched) -> None:
    lanes.patient()

    def work(store: KVStore) -> None:
        worker, runtime = store._core.worker, store._runtime
        client = runtime.run(lambda: worker.open_store("second", store._core.client.config))
        core = Core(worker, client, worker.shortcut(client))
        second = KVStore(core, runtime, lambda _: None)
        store.init("w", np.zeros(5, "f4"))
        second.init("w", np.zeros(5, "f4"))
        for turn in range(10):
            assert (in_step(store, "w", np.full(5, turn, "f4")) == 2 * turn).all()
            assert (in_step(second, "w", np.full(5, -turn, "f4")) == -2 * turn).all()
        assert lanes_of(second) is lanes_of(store)

    on_cluster(work, servers=1, transport="tcp")
    assert lanes.tries == {0: [True] * 20, 1: [True] * 20}


def test_two_threads_on_two_stores_of_one_worker(lanes: Watched) -> None:
    def work(store: KVStore) -> None:
        worker, runtime = store._core.worker, store._runtime
        client = runtime.run(lambda: worker.open_store("second", store._core.client.config))
        second = KVStore(Core(worker, client, worker.shortcut(client)), runtime, lambda _: None)
        for each in (store, second):
            each.init("w", np.zeros(5, "f4"))

        def one(mine: KVStore, sign: int) -> None:
            for turn in range(40):
                got = mine.pushpull("w", np.full(5, sign * turn, "f4"))
                assert (got == 2 * sign * turn).all(), turn

        together(partial(one, store, 1), partial(one, second, -1))

    on_cluster(work, servers=1, transport="tcp")


# ---- broken lanes -------------------------------------------------------------------------------

HELLO_UP, HELLO_DOWN = 92 + 32, 92 + 32 + 256
VALUE = 4 * 250


@pytest.mark.parametrize("reset", [False, True], ids=["closed", "reset"])
@pytest.mark.parametrize(("direction", "count"), [
    ("up", 1), ("up", 71), ("up", 72), ("up", 73), ("up", 72 + VALUE - 1), ("up", 72 + VALUE),
    ("down", 1), ("down", 72), ("down", 73), ("down", 72 + VALUE - 1),
])  # fmt: skip
def test_lane_that_is_cut_in_the_middle_counts_once(
    lanes: Watched, direction: Any, count: int, reset: bool
) -> None:
    lanes.patient()
    with asyncps.LocalCluster(workers=2, transport="tcp", **DEADLINES) as cluster:

        def work(store: KVStore) -> None:
            store.init(["a", "w"], [np.zeros(1, "f8"), np.zeros(250, "f4")])
            store.set_optimizer("sgd", learning_rate=1.0, momentum=0.5)
            weight = momentum = 0.0
            mine = lanes_of(store)
            for turn in range(5):
                if store.rank == 0 and turn == 0:
                    detour(store, proxy)
                if store.rank == 0 and turn == 2:
                    proxy.cut_after(count, direction, reset=reset)
                if store.rank == 0 and turn == 3:
                    mine._closed_until.clear()  # its pause is over
                momentum = 0.5 * momentum - (2 * turn + 1)
                weight += momentum
                got = in_step(store, "w", np.full(250, turn + store.rank, "f4"))
                assert (got == np.float32(weight)).all(), turn

        with ThreadProxy(("127.0.0.1", port_of(cluster))) as proxy:
            cluster.run(work)
            assert proxy.connections == 2
    assert lanes.tries == {0: [True, True, False, True, True], 1: [True] * 5}


def port_of(cluster: asyncps.LocalCluster) -> int:
    """The port of the only server."""
    listening = server_of(cluster)._listening
    assert listening is not None
    return listening.port


def test_server_that_closes_its_lanes_changes_no_sum(lanes: Watched) -> None:
    lanes.patient()
    with asyncps.LocalCluster(workers=2, transport="tcp", **DEADLINES) as cluster:

        def work(store: KVStore) -> None:
            store.init("w", np.zeros(5, "f4"))
            store.set_optimizer("test")
            for turn in range(6):
                if turn in (2, 4):
                    store.barrier()
                    connection = server_of(cluster).lanes[store.rank].connection
                    assert connection is not None
                    store._runtime.call(connection.abort if turn == 2 else connection.close)
                    settle(store)
                    lanes_of(store)._closed_until.clear()
                assert (in_step(store, "w", np.ones(5, "f4")) == 2 * (turn + 1)).all()
                if turn in (2, 4):
                    lanes_of(store)._closed_until.clear()

        cluster.run(work)
    assert lanes.tries[0] == lanes.tries[1] == [True, True, False, True, False, True]


def test_lane_that_is_refused_changes_nothing(lanes: Watched) -> None:
    with asyncps.LocalCluster(workers=2, transport="tcp", **DEADLINES) as cluster:

        def work(store: KVStore) -> None:
            detour(store, proxy)
            store.init("w", np.zeros(5, "f4"))
            for _ in range(3):
                lanes_of(store)._closed_until.clear()
                assert (in_step(store, "w", np.ones(5, "f4")) == 2).all()

        with ThreadProxy(("127.0.0.1", port_of(cluster))) as proxy:
            proxy.refuse()
            cluster.run(work)
    assert lanes.tries == {}


# ---- errors -------------------------------------------------------------------------------------


def test_error_of_the_server_is_raised_and_the_store_goes_on(lanes: Watched) -> None:
    lanes.patient()

    def work(store: KVStore) -> None:
        store.init("number", np.full(5, 7, "i4"))
        store.init("w", np.ones(5, "f4"))
        store.set_optimizer("sgd", learning_rate=0.5)
        for turn in range(3):
            settle(store)
            with pytest.raises(OptimizerError, match="number"):
                store.pushpull("number", np.ones(5, "i4"))
            assert (in_step(store, "w", np.ones(5, "f4")) == -turn).all()
        assert (store.pull("w") == -2).all()
        store.set_optimizer("test")
        assert (in_step(store, "number", np.ones(5, "i4")) == 9).all()

    on_cluster(work, servers=1, transport="tcp")
    # Rounds that failed prove nothing about clocks: at the edge of the window the loop asks first.
    assert lanes.tries[0][:4] == lanes.tries[1][:4] == [False, True, False, True]


@pytest.mark.parametrize("moment", ["before", "half", "sent", "received"])
def test_ctrl_c_on_the_lane_leaves_a_round_that_counts(
    lanes: Watched, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    lanes.patient()
    interrupted = threading.local()
    receive = module._Lane.receive

    def sends(sock: Any, parts: Any, size: int) -> None:
        if not getattr(interrupted, "now", False):
            send_parts(sock, parts, size)
            return
        if moment == "half":
            sock.sendall(b"".join(parts)[: size - 4])
        elif moment == "sent":
            send_parts(sock, parts, size)
        if moment != "received":
            raise KeyboardInterrupt
        send_parts(sock, parts, size)

    def receives(lane: Any, look_s: float) -> Any:
        got = receive(lane, look_s)
        if getattr(interrupted, "now", False):
            raise KeyboardInterrupt
        return got

    monkeypatch.setattr(module, "send_parts", sends)
    monkeypatch.setattr(module._Lane, "receive", receives)

    def work(store: KVStore) -> None:
        store.init(["a", "w"], [np.zeros(1, "f4"), np.zeros(50, "f4")])
        store.set_optimizer("sgd", learning_rate=1.0, momentum=1.0)
        weight = momentum = 0.0
        for turn in range(6):
            momentum -= 2 * turn + 1
            weight += momentum
            value = np.full(50, turn + store.rank, "f4")
            if turn in (1, 3) and store.rank == 0:
                interrupted.now = True
                settle(store)
                with pytest.raises(KeyboardInterrupt):
                    store.pushpull("w", value)
                interrupted.now = False
                value[:] = -1e6  # it is the caller's again
                lanes_of(store)._closed_until.clear()
                got = store.pull("w")
            else:
                got = in_step(store, "w", value)
            assert (got == weight).all(), turn

    on_cluster(work, servers=1, transport="tcp")
    assert lanes.tries[0] == [True, False, True, False, True, True]


def test_signal_during_an_exchange(lanes: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    lanes.patient(0.5)  # a signal just before the system call does not end it
    main = threading.main_thread().ident
    assert main is not None
    waiting, raised = threading.Event(), threading.Event()

    def sends(sock: Any, parts: Any, size: int) -> None:
        send_parts(sock, parts, size)
        if threading.get_ident() == main:
            waiting.set()

    monkeypatch.setattr(module, "send_parts", sends)
    with asyncps.LocalCluster(workers=2, transport="tcp", **DEADLINES) as cluster:

        def other() -> None:
            with cluster.store(1) as store:
                store.init("w", np.zeros(5, "f4"))
                assert waiting.wait(10)
                signal.pthread_kill(main, signal.SIGINT)
                assert raised.wait(10)
                for turn in range(4):
                    store.pushpull("w", np.full(5, turn, "f4"))

        thread = threading.Thread(target=other)
        thread.start()
        with cluster.store(0) as store:
            store.init("w", np.zeros(5, "f4"))
            value = np.full(5, 10, "f4")
            with pytest.raises(KeyboardInterrupt):
                store.pushpull("w", value)
            value[:] = 0
            raised.set()
            assert (store.pull("w") == 10).all()
            for turn in range(1, 4):
                assert (in_step(store, "w", np.full(5, turn, "f4")) == 2 * turn).all()
            thread.join()
    assert lanes.tries[0][0] is False


# ---- threads, and everything at once ------------------------------------------------------------


@pytest.mark.parametrize("patience_s", [0.0002, 0.005], ids=["hasty", "usual"])
def test_two_threads_on_two_keys_of_one_store(lanes: Watched, patience_s: float) -> None:
    lanes.patient(patience_s)

    def work(store: KVStore) -> None:
        store.init(["a", "b"], [np.zeros(5, "f4"), np.zeros(7, "f8")])
        store.init("c", np.zeros(10_000, "f4"))

        def one(key: str, shape: int, dtype: str) -> None:
            for turn in range(40):
                got = store.pushpull(key, np.full(shape, turn + store.rank, dtype))
                assert (got == 2 * turn + 1).all(), (key, turn)

        together(*[partial(one, *key) for key in
                   (("a", 5, "f4"), ("b", 7, "f8"), ("c", 10_000, "f4"))])

    on_cluster(work, servers=1, transport="tcp")


@pytest.mark.parametrize("patience_s", [0.0002, 0.005], ids=["hasty", "usual"])
def test_two_threads_on_the_same_keys_of_one_store(lanes: Watched, patience_s: float) -> None:
    lanes.patient(patience_s)
    turns = 30

    def work(store: KVStore) -> None:
        store.init(["a", "b"], [np.zeros(5, "f4"), np.zeros(7, "f4")])
        store.set_optimizer("test")

        def one() -> None:
            last = 0.0
            for _ in range(turns):
                for key, size in (("a", 5), ("b", 7)):
                    got = store.pushpull(key, np.full(size, store.rank + 1, "f4"))
                    assert got.min() == got.max()
                    assert got[0] % 3 == 0
                assert got[0] > last
                last = got[0]

        together(one, one)
        for key in ("a", "b"):
            assert (store.pull(key) == 2 * turns * 3).all()

    on_cluster(work, servers=1, transport="tcp")


KEYS = {"a": 1, "b": 5, "c": 33, "chunk": 10_000, "large": 20_000}


def schedule(seed: int, steps: int) -> Iterator[list[str]]:
    """The keys of each step: all workers push them, each in its own way."""
    rng = random.Random(seed)
    for _ in range(steps):
        if rng.random() < 0.6:
            yield [rng.choice(list(KEYS))]
        elif rng.random() < 0.5:
            yield ["a", "b", "c"]
        else:
            yield rng.sample(list(KEYS), rng.randint(2, len(KEYS)))


@pytest.mark.parametrize("seed", range(8))
def test_lanes_and_handles_in_any_order_agree_with_numpy(lanes: Watched, seed: int) -> None:
    lanes.patient((0.0002, 0.005, LONG_S)[seed % 3])
    steps = 60

    def contribution(step: int, key: str, rank: int) -> Any:
        return np.full(KEYS[key], (step * 7 + rank * 3 + len(key)) % 11 - 5, "f4")

    def work(store: KVStore) -> None:
        store.init(list(KEYS), [np.zeros(size, "f4") for size in KEYS.values()])
        store.set_optimizer("test")
        rng = random.Random(1000 * seed + store.rank)
        model = {key: np.zeros(size, "f4") for key, size in KEYS.items()}
        coming: list[tuple[Any, list[Any]]] = []
        for step, keys in enumerate(schedule(seed, steps)):
            values = [contribution(step, key, store.rank) for key in keys]
            for key in keys:
                model[key] = model[key] + sum(contribution(step, key, r) for r in range(2))
            expected = [model[key] for key in keys]
            verb = rng.choice(["pushpull"] * 4 + ["push", "push and pull", "handle"])
            if verb == "pushpull":
                coming.append((store.pushpull(keys, values), expected))
            elif verb == "handle":
                coming.append((store.pushpull(keys, values, async_op=True), expected))
            else:
                store.push(keys, values)
                if verb == "push and pull":
                    coming.append((store.pull(keys, async_op=rng.random() < 0.5), expected))
            if rng.random() < 0.3:
                check(coming)
        check(coming)
        for key, got in zip(KEYS, store.pull(list(KEYS)), strict=True):
            assert (got == model[key]).all(), key

    on_cluster(work, servers=1 + seed % 2, transport="tcp")


def check(coming: list[tuple[Any, list[Any]]]) -> None:
    """Wait for what is under way, and compare."""
    for found, expected in coming:
        got = found if isinstance(found, list) else found.wait()
        for mine, right in zip(got, expected, strict=True):
            assert (mine == right).all()
    coming.clear()


# ---- the end ------------------------------------------------------------------------------------


def test_close_closes_the_lanes(lanes: Watched) -> None:
    lanes.patient()

    def work(store: KVStore) -> None:
        store.init("w", np.zeros(5, "f4"))
        in_step(store, "w", np.ones(5, "f4"))
        mine = lanes_of(store)
        (sock,) = mine.sockets()
        assert sock in store._core.worker.sockets()
        store.close()
        assert sock.fileno() == -1
        assert mine.sockets() == []
        with pytest.raises(ClosedError):
            store.pushpull("w", np.ones(5, "f4"))
        assert mine.sockets() == []

    on_cluster(work, servers=1, transport="tcp")


def test_lanes_of_an_embedded_cluster_never_look(
    lanes: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    lanes.patient()
    looks: list[int] = []
    monkeypatch.setattr(module, "look", lambda fd, place, look_s: looks.append(fd))

    def work(store: KVStore) -> None:
        store.init("w", np.zeros(5, "f4"))
        for _ in range(3):
            assert (in_step(store, "w", np.ones(5, "f4")) == 2).all()

    on_cluster(work, servers=1, transport="tcp", settings={"poll_us": 10_000})
    assert lanes.tries == {0: [True] * 3, 1: [True] * 3}
    assert looks == []


@pytest.fixture
def looking(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Lanes look for longer than any round lasts; set once one does."""
    event, look = threading.Event(), module.look

    def looks(fd: int, place: memoryview, look_s: float) -> int:
        event.set()
        return look(fd, place, look_s)

    monkeypatch.setattr(module, "look", looks)
    monkeypatch.setattr(module, "Bet", lambda limit_s: Bet(LONG_S))
    return event


def test_call_whose_lane_is_closed_while_it_looks_goes_on_over_the_loop_and_counts_once(
    lanes: Watched, looking: threading.Event
) -> None:
    lanes.patient()
    over = threading.Event()

    def work(store: KVStore) -> None:
        store.init("w", np.zeros(5, "f4"))
        store.set_optimizer("test")
        if store.rank == 0:
            (sock,) = opened(store)

            def close() -> None:
                assert looking.wait(10)
                store._runtime.call(lanes_of(store).close)  # as it does when the node fails
                settle(store)
                over.set()

            thread = threading.Thread(target=close)
            thread.start()
            got = in_step(store, "w", np.full(5, 10, "f4"))
            thread.join()
            assert sock.fileno() == -1
            assert lanes_of(store).sockets() == []
        else:
            assert over.wait(10)
            got = in_step(store, "w", np.ones(5, "f4"))
        assert (got == 11).all()
        for turn in range(3):
            assert (in_step(store, "w", np.ones(5, "f4")) == 13 + 2 * turn).all()

    on_cluster(work, servers=1, transport="tcp")
    assert lanes.tries == {0: [False], 1: [True] * 4}


def test_call_that_looks_when_its_worker_fails_raises_why(
    lanes: Watched, looking: threading.Event
) -> None:
    lanes.patient()
    over = threading.Event()
    failure = SchedulerLost("it is gone")

    def work(store: KVStore) -> None:
        store.init("w", np.zeros(5, "f4"))
        if store.rank == 1:
            assert over.wait(10)
            return
        (sock,) = opened(store)

        def fail() -> None:
            assert looking.wait(10)
            store._runtime.call(lambda: store._core.worker.node.fail(failure))

        thread = threading.Thread(target=fail)
        thread.start()
        try:
            with pytest.raises(SchedulerLost, match="it is gone"):
                store.pushpull("w", np.ones(5, "f4"))
            thread.join()
            assert sock.fileno() == -1
            with pytest.raises(SchedulerLost):
                store.pushpull("w", np.ones(5, "f4"))
        finally:
            over.set()

    on_cluster(work, servers=1, transport="tcp")
    assert lanes.tries == {0: [False]}


def opened(store: KVStore) -> list[socket.socket]:
    """The sockets of the lanes, after that to the only server was opened."""
    mine = lanes_of(store)
    settle(store)
    with mine.held():
        assert mine.ready(0)
    return mine.sockets()


@pytest.mark.slow
@pytest.mark.launch
def test_forked_child_holds_no_lane(processes: ProcessGroup) -> None:
    on_processes(processes, forks, workers=2, servers=1)


def forks(store: KVStore) -> None:
    """The child's copies are closed, the parent's lane is not."""
    store.init("w", np.zeros(5, "f4"))
    for _ in range(3):
        assert (in_step(store, "w", np.ones(5, "f4")) == 2).all()
    mine = lanes_of(store)
    if not mine.ready(0):
        raise AssertionError("no lane")
    (sock,) = mine.sockets()
    inode = os.fstat(sock.fileno()).st_ino
    child = os.fork()
    if child == 0:
        held = [os.stat(f"/proc/self/fd/{fd}").st_ino for fd in os.listdir("/proc/self/fd")
                if os.path.exists(f"/proc/self/fd/{fd}")]  # fmt: skip
        try:
            store.pushpull("w", np.ones(5, "f4"))
        except ClosedError:
            os._exit(5 if inode in held else 0)
        os._exit(6)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    for _ in range(3):
        assert (in_step(store, "w", np.ones(5, "f4")) == 2).all()
    assert mine.sockets() == [sock]
