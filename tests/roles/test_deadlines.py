"""Waits that end: frozen servers and missing workers are named, and memory goes back."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest

import asyncps
from asyncps.config import Config, in_cluster
from asyncps.errors import AsyncPSError, ClosedError, DeadlineExceeded
from asyncps.kvstore import KVStore
from asyncps.protocol import messages
from asyncps.protocol.frames import Kind
from asyncps.roles import deadlines as module
from asyncps.roles import lane
from asyncps.roles.deadlines import Deadlines, expire, header_of, take_back
from asyncps.roles.lane import Lanes
from asyncps.roles.operation import Operation
from asyncps.transport.request import Request
from asyncps_ext import wire
from tests.faults.proxied import ProxiedNetwork
from tests.support.cluster import DEADLINES

SMALL, LARGE = 5, 300_000


class Frozen:
    """A cluster over TCP whose first worker reaches the only server through a proxy."""

    def __init__(self, cluster: asyncps.LocalCluster, network: ProxiedNetwork) -> None:
        self.cluster = cluster
        self.network = network

    @contextlib.contextmanager
    def store(self, rank: int) -> Iterator[KVStore]:
        """A worker's store; both its ways to the server go through the proxy."""
        with self.cluster.store(rank) as store:
            worker, runtime = store._core.worker, store._runtime

            async def connected() -> None:
                for link in worker.links:
                    await link.wait_connected()

            runtime.run(connected)
            (server,) = [m for m in worker.node.members if m.role == "server"]
            self.proxy = self.network.proxies[server.port]
            host, port = self.proxy.address
            worker.node.members = [
                msgspec.structs.replace(m, host=host, port=port) if m is server else m
                for m in worker.node.members
            ]
            self.port = server.port
            yield store

    def freeze(self) -> None:
        """The server says and hears nothing more."""
        self._call(self.proxy.freeze)

    def thaw(self) -> None:
        """It does again."""
        self._call(self.proxy.thaw)

    def _call(self, action: Any) -> None:
        async def act() -> None:
            action()

        assert self.cluster._runtime is not None
        self.cluster._runtime.run(act)


@contextlib.contextmanager
def frozen(workers: int = 1, **settings: float) -> Iterator[Frozen]:
    """A cluster whose server can be frozen."""
    given: Any = {**DEADLINES, "frozen_server_s": 30.0, **settings}
    with asyncps.LocalCluster(workers=workers, transport="tcp", **given) as cluster:
        network = cluster._network = ProxiedNetwork()
        try:
            yield Frozen(cluster, network)
        finally:
            assert cluster._runtime is not None
            cluster._runtime.run(network.close)


# ---- a server that is frozen --------------------------------------------------------------------


@pytest.mark.parametrize("size", [SMALL, LARGE], ids=["lane", "loop"])
def test_pushpull_of_a_frozen_server_ends_and_what_was_pushed_counts_as_it_was(size: int) -> None:
    with frozen(answer_s=0.3) as job, job.store(0) as store:
        store.init("w", np.zeros(size, "f4"))
        store.set_optimizer("test")
        value = np.ones(size, "f4")
        out = np.full(size, -1, "f4")
        assert (store.pushpull("w", value, out=out) == 1).all()
        job.freeze()
        with pytest.raises(DeadlineExceeded, match=r"server 0 at .* did not answer .*key 'w'"):
            store.pushpull("w", value, out=out)
        value[:] = 1000  # it is the caller's again, sent or not
        out[:] = -1
        job.thaw()
        assert (store.pull("w") == 2).all()
        assert (out == -1).all()
        value[:] = 1
        for turn in range(3, 6):
            assert (store.pushpull("w", value, out=out) == turn).all()


@pytest.mark.parametrize("size", [SMALL, LARGE], ids=["slab", "chunks"])
def test_pull_of_a_frozen_server_ends_and_writes_nothing_more(size: int) -> None:
    with frozen(answer_s=0.3) as job, job.store(0) as store:
        store.init("w", np.zeros(size, "f4"))
        job.freeze()
        out = np.full(size, -1, "f4")
        with pytest.raises(DeadlineExceeded, match=r"server 0 at .* did not answer"):
            store.pull("w", out=out)
        job.thaw()
        assert (store.pull("w") == 0).all()
        assert (out == -1).all()


def test_lent_push_of_a_frozen_server_is_sent_as_it_was() -> None:
    with frozen(answer_s=0.3) as job, job.store(0) as store:
        store.init("w", np.zeros(LARGE, "f4"))
        job.freeze()
        value = np.ones(LARGE, "f4")
        handle = store.push("w", value, copy=False)
        with pytest.raises(DeadlineExceeded, match=r"did not answer within 0\.3 s \(clock 1\)"):
            handle.wait()
        value[:] = 1000
        job.thaw()
        assert (store.pull("w") == 1).all()


def test_lane_to_a_server_that_freezes_is_no_longer_waited_for(
    monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the lane is stuck: rounds go over the loop, for as long as that lasts."""
    misses: list[bool] = []
    exchange = Lanes.exchange

    def watched(*arguments: Any) -> Any:
        got = exchange(*arguments)
        misses.append(got is None)
        return got

    monkeypatch.setattr(Lanes, "exchange", watched)
    monkeypatch.setattr(lane, "PATIENCE_S", 5.0)
    with frozen() as job, job.store(0) as store:
        store.init("w", np.zeros(16384, "f4"))
        assert store._core.shortcut is not None
        lanes = store._core.shortcut._lanes
        value = np.ones(16384, "f4")
        assert (store.pushpull("w", value, out=np.empty_like(value)) == 1).all()
        assert misses == [False]
        job.freeze()
        lane.wait_at_most(lanes._open[0].sock, 0.001, 0.01)
        worker = store._core.worker

        async def around() -> None:  # the loop's own connection takes another way
            job.network.proxies.pop(job.port)
            worker.links[0].abort(ClosedError("cut by the test"))

        stuck = job.proxy
        store._runtime.run(around)
        for _ in range(100):
            out = np.empty_like(value)
            assert (store.pushpull("w", value, out=out) == 1).all()
        assert misses[1]
        store._runtime.run(lambda: closed(stuck))


async def closed(proxy: Any) -> None:
    proxy.thaw()
    await asyncio.sleep(0)


# ---- a worker that stays away -------------------------------------------------------------------


@pytest.mark.parametrize("size", [SMALL, LARGE], ids=["lane", "loop"])
def test_round_that_stays_incomplete_names_the_ranks_and_stays_counted(
    size: int, caplog: pytest.LogCaptureFixture
) -> None:
    gave_up = threading.Event()

    def work(store: KVStore) -> None:
        store.init("w", np.zeros(size, "f4"))
        value = np.full(size, store.rank + 1, "f4")
        if store.rank == 0:
            assert (store.pushpull("w", value, out=np.empty_like(value)) == 6).all()
            with pytest.raises(DeadlineExceeded, match=r"round 2 .*ranks \[2\].*counted.*'w'"):
                store.pushpull("w", value)
            value[:] = 1000
            gave_up.set()
            assert (store.pull("w") == 6).all()
            value[:] = 1
        else:
            store.pushpull("w", value, out=np.empty_like(value))
            if store.rank == 1:
                store.push("w", value).wait()
            assert gave_up.wait(10)
            if store.rank == 2:
                store.push("w", value)
            assert (store.pull("w") == 6).all()
        for turn in range(3):
            out = np.empty_like(value)
            assert (store.pushpull("w", value, out=out) == 6).all(), turn

    given: Any = {**DEADLINES, "round_s": 0.6, "round_warning_s": 0.2}
    with (
        caplog.at_level(logging.WARNING),
        asyncps.LocalCluster(workers=3, transport="tcp", **given) as cluster,
    ):
        cluster.run(work)
    assert "waits for ranks [2]: key 'w', clock 2" in caplog.text


# ---- the watch alone ----------------------------------------------------------------------------


class FakeLink:
    """A server that is asked nothing."""

    def __init__(self) -> None:
        self.name = "server 3 at far"
        self.unanswered: dict[int, Request] = {}
        self.connection: Any = None
        self.aborted: list[AsyncPSError] = []
        self.moved_bytes = 0

    def abort(self, error: AsyncPSError) -> None:
        """The connection is cut."""
        self.aborted.append(error)


class Watch:
    """Deadlines over one fake link on this test's loop."""

    def __init__(self, **settings: float) -> None:
        self.link: Any = FakeLink()
        self.answer: Any = messages.MissingRanks([1, 4])
        self.asked: list[Any] = []
        self.over = False
        given: Any = {"answer_s": 0.08, "round_s": 0.3, "round_warning_s": 0.2, **settings}
        self.deadlines = Deadlines(Config(**given), self.link, self.ask, lambda: self.over)

    async def ask(self, link: Any, message: Any) -> Any:
        """What a server says."""
        assert link is self.link
        self.asked.append(message)
        if isinstance(self.answer, AsyncPSError):
            raise self.answer
        return self.answer

    def request(self, kind: Kind, since: float, clock: int = 7, lent: bool = False) -> Operation:
        """A request that is unanswered since then."""
        op = Operation("pull", lent=lent)
        number = len(self.link.unanswered) + 1
        header = wire.pack_header(kind, 0, 1, 2, number, 9, 0, clock, 0, 8, 0, 0)
        unit = SimpleNamespace(row_keys=["w"], late=frozenset())
        request = Request(number, 0, [header, memoryview(bytearray(b"a value!"))], 80,
                          lambda *_: None, None, unit, op)
        request.since = since
        self.link.unanswered[number] = request
        return op

    async def judge(self, now: float) -> None:
        """One look."""
        overdue = self.deadlines._overdue(now)
        if overdue:
            await self.deadlines._judge(overdue, now)


@pytest.mark.parametrize("kind", [Kind.PUSH, Kind.INIT, Kind.ASSIGN])
async def test_what_a_server_owes_alone_is_due_after_answer_s(kind: Kind) -> None:
    watch = Watch()
    op = watch.request(kind, since=100.0)
    await watch.judge(100.07)
    assert not op.ended
    await watch.judge(100.09)
    assert isinstance(op.error, DeadlineExceeded)
    assert "server 3 at far did not answer within 0.08 s (clock 7)" in str(op.error)
    assert op.error.key == "w"
    assert watch.asked == []
    assert len(watch.link.unanswered) == 1  # its clock has moved on: it stays
    await watch.judge(200.0)


@pytest.mark.parametrize("kind", [Kind.PULL, Kind.PUSHPULL, Kind.WAIT])
async def test_what_waits_for_others_is_due_after_round_s(kind: Kind) -> None:
    watch = Watch()
    op = watch.request(kind, since=100.0)
    await watch.judge(100.1)
    assert watch.asked == [messages.Missing(2, 9, [], 7)]
    await watch.judge(100.11)  # was asked just now
    assert len(watch.asked) == 1
    await watch.judge(100.29)
    assert not op.ended
    await watch.judge(100.4)
    assert isinstance(op.error, DeadlineExceeded)
    assert "waits for ranks [1, 4]" in str(op.error)


async def test_push_on_its_way_is_not_due_while_bytes_move() -> None:
    watch = Watch()
    op = watch.request(Kind.PUSH, since=100.0)
    watch.deadlines._moved_at = 109.95
    await watch.judge(110.0)
    assert not op.ended
    await watch.judge(110.04)
    assert op.ended


async def test_bytes_that_move_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    watch = Watch()
    watch.request(Kind.PUSH, since=0.0)

    def done() -> bool:
        watch.link.moved_bytes += 1
        return watch.link.moved_bytes > 8  # looks, for longer than `answer_s`

    watch.deadlines._done = done
    await watch.deadlines.watch()
    assert not watch.link.unanswered[1].owner.ended


async def test_server_that_does_not_say_whom_it_waits_for_is_silent() -> None:
    watch = Watch()
    old, young = watch.request(Kind.PULL, since=100.0), watch.request(Kind.PULL, since=100.1)
    watch.answer = DeadlineExceeded("no word")
    await watch.judge(100.15)
    assert "did not answer within 0.08 s" in str(old.error)
    assert not young.ended


async def test_cluster_that_fails_meanwhile_is_told_by_others() -> None:
    watch = Watch()
    op = watch.request(Kind.PULL, since=100.0)
    watch.answer = ClosedError("over")
    await watch.judge(200.0)
    assert not op.ended


async def test_questions_have_deadlines_of_their_own() -> None:
    watch = Watch()
    watch.request(Kind.PULL, since=100.0)
    watch.link.unanswered[1].unit = None
    await watch.judge(200.0)
    assert watch.asked == []


async def test_loop_that_was_away_judges_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    watch = Watch()
    monkeypatch.setattr(module, "LATE_S", -1e9)  # every look is late
    op = watch.request(Kind.PUSH, since=0.0)
    looks = iter(range(5))

    def done() -> bool:
        return next(looks, None) is None

    watch.deadlines._done = done
    await watch.deadlines.watch()
    assert not op.ended
    monkeypatch.undo()
    looks = iter(range(8))  # longer than `answer_s`
    await watch.deadlines.watch()
    assert op.ended


async def test_memory_goes_back_once_and_is_sent_from_a_copy() -> None:
    watch = Watch()
    op = watch.request(Kind.PUSH, since=0.0, lent=True)
    (request,) = watch.link.unanswered.values()
    lent = request.parts[1]
    error = DeadlineExceeded("too long")
    expire(watch.link, request, error)
    assert op.error is error
    lent[:] = b"xxxxxxxx"
    assert bytes(request.parts[1]) == b"a value!"
    assert header_of(request).clock == 7
    expire(watch.link, request, DeadlineExceeded("again"))
    assert op.error is error
    assert watch.link.aborted == []  # nothing of it was under way


async def test_connection_that_still_holds_the_memory_is_cut() -> None:
    watch = Watch()
    watch.request(Kind.PUSH, since=0.0, lent=True)
    (request,) = watch.link.unanswered.values()
    request.sent = True
    watch.link.connection = SimpleNamespace(reader=None, pending_bytes=10)
    expire(watch.link, request, DeadlineExceeded("too long"))
    assert len(watch.link.aborted) == 1


async def test_answer_that_is_arriving_is_dropped_and_counts_as_come() -> None:
    watch = Watch()
    watch.request(Kind.PULL, since=0.0)
    (request,) = watch.link.unanswered.values()
    answered = []
    request.answered = lambda *arguments: answered.append(arguments)
    request.place = memoryview(bytearray(8))
    arriving = header_of(request)
    abandoned = []
    reader = SimpleNamespace(current=arriving, abandon_payload=lambda: abandoned.append(1))
    watch.link.connection = SimpleNamespace(reader=reader, pending_bytes=0)
    assert take_back(watch.link, request, lent=False) is False
    assert abandoned == [1]
    assert answered == [(request, arriving, None, None)]
    assert request.place is None
    assert watch.link.unanswered == {}
    assert take_back(watch.link, request, lent=True) is False  # it is answered: nothing to do
    assert len(answered) == 1


# ---- whether there is a cluster -----------------------------------------------------------------


@pytest.mark.parametrize(("env", "expected"), [
    ({}, False), ({"ASYNCPS_SCHEDULER": "a:1"}, True), ({"DMLC_PS_ROOT_URI": "a"}, True),
    ({"ASYNCPS_ROLE": "worker"}, True), ({"DMLC_ROLE": "worker"}, True),
    ({"ASYNCPS_NUM_WORKERS": "2"}, True), ({"DMLC_NUM_WORKER": "1"}, True),
    ({"ASYNCPS_NUM_WORKERS": ""}, False), ({"ASYNCPS_NUM_SERVERS": "2"}, False),
    ({"ASYNCPS_TOKEN": "x", "ASYNCPS_RANK": "0", "ASYNCPS_ROUND_S": "5"}, False),
    ({"DMLC_PS_ROOT_PORT": "9", "DMLC_NUM_SERVER": "1"}, False),
])  # fmt: skip
def test_environment_that_speaks_of_a_cluster(env: dict[str, str], expected: bool) -> None:
    assert in_cluster(env) is expected


@pytest.mark.parametrize("name", ["ASYNCPS_NUM_WORKERS", "DMLC_NUM_WORKER"])
def test_script_that_was_told_of_others_never_trains_alone(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, "2")
    with pytest.raises(asyncps.errors.RendezvousTimeout, match="could not be reached"):
        asyncps.create("dist_sync", rendezvous_s=0.2, scheduler="127.0.0.1:1")
    monkeypatch.delenv(name)
    with pytest.raises(asyncps.errors.RendezvousTimeout, match="could not be reached"):
        asyncps.create("dist_sync", rendezvous_s=0.2, scheduler="127.0.0.1:1", num_workers=2)
