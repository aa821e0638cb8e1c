"""Operations that fail while they are sent: for want of memory, at any unit of any verb.

Before its first clock a call fails alone, and nothing has happened. Behind it a push counts, so it
is sent or its worker ends: a clock that is lost would be waited for by all.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import asyncps
from asyncps.errors import AsyncPSError, WorkerLost
from asyncps.kvstore import KVStore
from asyncps.protocol import messages
from asyncps.protocol.frames import PUSH, PUSHPULL
from asyncps.roles import client as client_module
from asyncps.roles import initialising, remotetable, tablework
from asyncps.roles.client import Client
from asyncps.roles.operation import Operation
from asyncps.roles.worker import Worker
from asyncps.state.requests import UnitTrack
from tests.roles.test_client import Bench, answer
from tests.support.cluster import DEADLINES, on_cluster

CHUNKS = {"chunk_bytes": 4096}
FEW = 2000  # a slab's
MANY = 9000  # elements: chunks at both servers


class Scarce:
    """Stands for a function that needs memory; fails at one of its calls."""

    def __init__(self, real: Callable[..., Any], at: int) -> None:
        self.real, self.left = real, at

    def __call__(self, *args: Any, **more: Any) -> Any:
        self.left -= 1
        if self.left == -1:
            raise MemoryError("no memory")
        return self.real(*args, **more)


@pytest.mark.parametrize("verb", ["pull", "push", "pushpull", "assign"])
def test_one_that_fails_before_its_first_frame_ends_and_nothing_has_happened(
    verb: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def work(store: KVStore) -> None:
        store.set_optimizer("test")
        store.init("w", np.zeros(3, "f4"))
        one = np.ones(3, "f4")
        with monkeypatch.context() as patch:
            patch.setattr(client_module, "data_frame", Scarce(client_module.data_frame, 0))
            begin = {
                "pull": lambda: store.pull("w", async_op=True).wait(5),
                "push": lambda: store.push("w", one).wait(5),
                "pushpull": lambda: store.pushpull("w", one, async_op=True).wait(5),
                "assign": lambda: store.assign("w", one),
            }[verb]
            with pytest.raises(AsyncPSError, match="MemoryError"):
                begin()
        for turn in range(3):
            assert (store.pushpull("w", one, out=np.empty(3, "f4")) == turn + 1).all()

    on_cluster(work, workers=1)


@pytest.mark.parametrize("at", [1, 2])
def test_push_that_fails_half_way_ends_its_worker_loudly(
    at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its first chunks are on their way and count."""
    def work(store: KVStore) -> str:
        store.init("w", np.zeros(MANY, "f4"))
        store.barrier()
        if store.rank == 1:
            try:
                while True:
                    store.pushpull("w", np.ones(MANY, "f4"), out=np.empty(MANY, "f4"))
            except WorkerLost as error:
                return str(error)
        # The other worker's frames do not count: it waits for this one.
        with monkeypatch.context() as patch:
            client = store._core.client
            patch.setattr(client, "_post", Scarce(client._post, at))
            handle = store.push("w", np.ones(MANY, "f4"))
            with pytest.raises(WorkerLost, match=r"gave up.*MemoryError"):
                handle.wait(5)
        for verb in (lambda: store.pull("w"), store.barrier,
                     lambda: store.pushpull("w", np.ones(MANY, "f4"))):
            with pytest.raises(WorkerLost, match="gave up"):
                verb()
        return "gave up"

    told, heard = on_cluster(work, settings={**CHUNKS, "reconnect_s": 0.2})
    assert told == "gave up"
    assert "worker 0" in heard


def test_held_push_that_cannot_be_sent_ends_its_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    def work(store: KVStore) -> None:
        store.init("w", np.zeros(3, "f4"))
        one = np.ones(3, "f4")
        if store.rank == 1:
            store.barrier()  # the other's third push is held
            with pytest.raises(WorkerLost):
                for_ever(lambda: store.pushpull("w", one, out=np.empty(3, "f4")))
        handles = [store.push("w", one) for _ in range(2)]
        for handle in handles:
            handle.wait()
        third, fourth = store.push("w", one), store.push("w", one)
        client = store._core.client
        monkeypatch.setattr(client, "_post_held", Scarce(client._post_held, 0))
        store._runtime.run(lambda: store._core.worker.barrier(client))
        for held in (third, fourth):
            with pytest.raises(WorkerLost, match="gave up"):
                held.wait(10)

    with pytest.raises(WorkerLost):
        on_cluster(raising(work), settings={"reconnect_s": 0.2})


def for_ever(verb: Callable[[], object]) -> None:
    while True:
        verb()


def raising(work: Callable[[KVStore], None]) -> Callable[[KVStore], None]:
    """The work, and then what its store raises at its end."""
    def also(store: KVStore) -> None:
        work(store)
        store.barrier()

    return also


@pytest.mark.parametrize("at", [0, 1])
def test_rows_that_cannot_be_sent(at: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A table lies at two servers: the push fails alone, or half way."""
    def work(store: KVStore) -> None:
        store.init("t", asyncps.initializer.Zero(), shape=(100, 4), dtype="f4")
        rows = asyncps.RowSparse(np.array([1, 99]), np.ones((2, 4), "f4"), (100, 4))
        with monkeypatch.context() as patch:
            patch.setattr(remotetable, "pack_header", Scarce(remotetable.pack_header, at))
            with pytest.raises(WorkerLost if at else AsyncPSError, match="MemoryError"):
                store.push("t", rows).wait(5)
        if at:
            with pytest.raises(WorkerLost):
                store.barrier()
            return
        store.push("t", rows).wait(5)
        assert (store.row_sparse_pull("t", [1, 2, 99]).values[:, 0] == [1, 0, 1]).all()

    on_cluster(work, workers=1, servers=2)


@pytest.mark.parametrize("at", [0, 1])
def test_pull_of_rows_that_cannot_be_asked_for_ends(
    at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def work(store: KVStore) -> None:
        store.init("t", asyncps.initializer.One(), shape=(100, 4), dtype="f4")
        with monkeypatch.context() as patch:
            patch.setattr(tablework, "PULL_BYTES", 16)
            patch.setattr(tablework, "PULLS_UNDER_WAY", 1)
            patch.setattr(tablework, "pack_header", Scarce(tablework.pack_header, at))
            with pytest.raises(AsyncPSError, match="MemoryError"):
                store.row_sparse_pull("t", [1, 2, 3, 99])
        assert (store.row_sparse_pull("t", [1, 2, 99]).values == 1).all()

    on_cluster(work, workers=1, servers=2)


def test_init_that_fails_ends_when_what_it_sent_is_answered(
    monkeypatch: pytest.MonkeyPatch
) -> None:
    def work(store: KVStore) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(initialising, "pack_header", Scarce(initialising.pack_header, 2))
            with pytest.raises(AsyncPSError, match="MemoryError"):
                store.init("w", np.zeros(MANY, "f4"))
        assert not store._core.worker.links[0].unanswered

    on_cluster(work, workers=1, settings=CHUNKS)


def test_staged_push_that_fails_half_way_ends_its_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is encoded chunk by chunk as it is sent: what was encoded is kept nowhere else."""
    def work(store: KVStore) -> None:
        store.set_optimizer("test")
        store.init(["w", "v"], [np.zeros(MANY, "f4")] * 2)
        store.set_gradient_compression({"type": "2bit", "threshold": 1.0})
        client = store._core.client
        monkeypatch.setattr(client, "_post", Scarce(client._post, 2))
        outs = np.empty((2, MANY), "f4")
        handles = [
            store.pushpull(key, np.ones(MANY, "f4"), out=out, async_op=True)
            for key, out in zip("wv", outs, strict=True)
        ]
        for handle in handles:
            with pytest.raises(WorkerLost, match="gave up"):
                handle.wait(5)

    on_cluster(work, workers=1, settings=CHUNKS)


async def test_staged_push_ends_when_its_links_do() -> None:
    async with asyncps.connect("dist_sync", **DEADLINES, **CHUNKS) as store:
        await store.set_optimizer("test")
        await store.init("w", np.zeros(MANY, "f4"))
        await store.set_gradient_compression({"type": "2bit", "threshold": 1.0})
        worker, client = store._core.worker, store._core.client
        client.staging._go_on = lambda: None  # a loop that never comes to it
        handle = await store.pushpull("w", np.ones(MANY, "f4"), async_op=True)
        assert not handle.done()
        worker.node.fail(WorkerLost("another one"))
        assert handle.done()
        assert isinstance(handle.exception(), WorkerLost)
        del client.staging._go_on


def test_request_of_a_link_that_was_killed_is_answered_at_once() -> None:
    def work(store: KVStore) -> None:
        async def ask() -> None:
            worker: Worker = store._core.worker
            link = worker.links[0]
            link.kill(WorkerLost("gone"))
            with pytest.raises(WorkerLost, match="gone"):
                async with asyncio.timeout(5):
                    await worker.ask_server(link, messages.AskStatistics(1))

        store._runtime.run(ask)

    on_cluster(work, workers=1)


def test_frame_that_cannot_be_handed_over_is_sent_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The connection comes back, and the push counts once."""
    def work(store: KVStore) -> None:
        store.set_optimizer("test")
        store.init("w", np.zeros(3, "f4"))

        async def spoil() -> None:
            connection = store._core.worker.links[0].connection
            connection.send = Scarce(connection.send, 0)

        store._runtime.run(spoil)
        store.push("w", np.ones(3, "f4")).wait()
        assert (store.pull("w") == 1).all()

    on_cluster(work, workers=1, servers=1)


@settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_each_clock_is_sent_or_was_never_given_out_unless_the_worker_ends(data: Any) -> None:
    """Verbs over random keys, each of which may run out of memory at any frame."""
    keys = {"a": 3, "b": 1, "c": 2, "w": 4096 * 3}
    bench = Bench(keys)
    ends: list[Exception] = []

    def give_up(failed: Exception) -> AsyncPSError:
        ends.append(failed)
        bench.client.fail(WorkerLost("gave up"))
        return WorkerLost("gave up")

    bench.client = Client(7, bench.client.config, 3, bench.links, lambda: 0.0, give_up)  # type: ignore[arg-type]
    bench.client.add_placements(bench.placements)
    real = client_module.data_frame
    ops: list[Operation] = []
    clocks: dict[tuple[int, int], int] = {}  # the last that was sent of each row
    for _ in range(data.draw(st.integers(1, 6), "verbs")):
        verb = data.draw(st.sampled_from(["push", "pushpull", "pull", "assign"]))
        chosen = data.draw(st.lists(st.sampled_from(sorted(keys)), min_size=1, unique=True))
        at = data.draw(st.integers(-1, 5), "the frame that cannot be made")
        client_module.data_frame = Scarce(real, at)
        op, failed = Operation(verb, lent=False), None
        try:
            bench.send(verb, chosen, op=op)
        except MemoryError as error:
            failed = error
            op.part_done(give_up(error) if op.counted else AsyncPSError("failed"))
        finally:
            client_module.data_frame = real
        ops.append(op)
        pushed = False
        while links := [link for link in bench.links if link.sent]:
            header, rows, _, request = links[0].take()
            if header.kind in (PUSH, PUSHPULL):
                pushed = True
                unit = bench.client.units[header.unit]
                for row in range(unit.track.rows) if rows is None else rows:
                    last = clocks.get((header.unit, row), 0)
                    assert header.clock == last + 1
                    clocks[header.unit, row] = header.clock
            answer(request, bytes(len(request.place or b"")))
        if ends:
            assert op.counted
            assert verb.startswith("push")
            break
        assert not (failed and pushed)
        for number, unit in bench.client.units.items():
            for step in unit.track.pull(list(range(unit.track.rows))):
                for row in step.rows or ():
                    assert clocks.get((number, row), 0) == step.clock
    assert all(op.ended for op in ops)


@settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_coming_steps_change_nothing_until_they_are_begun(data: Any) -> None:
    tracks = [UnitTrack(4) for _ in range(2)]
    for _ in range(data.draw(st.integers(1, 8))):
        rows = sorted(data.draw(st.sets(st.integers(0, 3)))) or None
        looked = tracks[0].coming(rows)
        assert tracks[0].coming(rows) == looked
        assert tracks[0].pull([0, 1, 2, 3]) == tracks[1].pull([0, 1, 2, 3])
        for step in looked:
            tracks[0].begin(step)
        assert tracks[1].push(rows) == looked
