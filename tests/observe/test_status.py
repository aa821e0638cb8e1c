"""The observer over real sockets: what it learns, what it cannot do, how it fails."""

from __future__ import annotations

import asyncio
import json
import os
import socket
from typing import Any

import pytest

from asyncps.config import Config
from asyncps.errors import (
    ConfigError,
    ConnectionLost,
    DeadlineExceeded,
    HandshakeError,
    TransportError,
)
from asyncps.observe import status as observing
from asyncps.observe.display import tables
from asyncps.observe.tables import plain
from asyncps.protocol import messages as m
from asyncps.roles.worker import Worker
from asyncps.transport.request import control_frame
from tests.faults.job import ReservedPort
from tests.roles.cluster import Bench, bench

both_loops = pytest.mark.asyncio(loop_factories=["uvloop", "asyncio"])


async def running(made: Bench, workers: int = 1, servers: int = 1) -> list[Worker]:
    """Start everybody."""
    for rank in range(servers):
        made.server(rank)
    found = []
    for rank in range(workers):
        config = made.config.replace(role="worker", rank=rank)
        found.append(Worker(config, made.network, made.scope.spawn))
        made.scope.roles.append(found[-1])
    await asyncio.gather(*(worker.start() for worker in found))
    return found


@both_loops
async def test_status_of_a_running_job_has_numbers_of_everybody() -> None:
    async with bench(num_workers=2) as made:
        workers = await running(made, workers=2)
        for worker in workers:
            await worker.open_store("mine", m.StoreConfig("dist_sync", "arrival", "sum"))
        told = await observing.look(made.config, 10.0)
        data = json.loads(json.dumps(observing.as_data(told)))
        assert data["phase"] == "running"
        assert data["missing"] == []
        assert [(n["role"], n["rank"], n["pid"], n["standing"]) for n in data["nodes"]] == [
            ("server", 0, os.getpid(), "alive"), ("worker", 0, os.getpid(), "alive"),
            ("worker", 1, os.getpid(), "alive"),
        ]
        assert all(node["report"]["sent_bytes"] >= 0 for node in data["nodes"])
        assert data["stores"] == [{"store": 1, "name": "mine", "type": "dist_sync", "keys": 0}]


@both_loops
async def test_status_while_the_job_waits_says_who_is_missing() -> None:
    async with bench(num_workers=2, num_servers=2) as made:
        made.server(1)
        told = await observing.look(made.config, 10.0)
        while not told.nodes:
            told = await observing.look(made.config, 10.0)
        assert observing.missing(told) == [("server", 0), ("worker", 0), ("worker", 1)]
        text = plain(*tables(told, made.config.scheduler))
        assert text.count("missing") == 3
        assert "joining" in text.splitlines()[0]


@both_loops
async def test_wrong_token_or_job_is_a_handshake_error() -> None:
    async with bench() as made:
        for changes in ({"token": "another"}, {"job": "another"}):
            with pytest.raises(HandshakeError):
                await observing.look(made.config.replace(**changes), 10.0)


async def test_job_without_a_token_is_observed_on_loopback() -> None:
    async with bench(token="") as made:
        assert (await observing.look(made.config, 10.0)).phase == "joining"


@both_loops
async def test_nobody_there_is_a_transport_error() -> None:
    with ReservedPort() as port:
        config = Config(scheduler=f"127.0.0.1:{port.number}")
        with pytest.raises(TransportError, match="cannot reach"):
            await observing.look(config, 10.0)


@both_loops
async def test_scheduler_that_says_nothing_is_a_deadline() -> None:
    with ReservedPort(listening=True) as port:
        config = Config(scheduler=f"127.0.0.1:{port.number}")
        with pytest.raises(DeadlineExceeded, match=r"did not answer within 0\.2 s"):
            await observing.look(config, 0.2)


async def test_stranger_that_says_something_else_is_an_error() -> None:
    async def stranger(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n" * 9)
        writer.close()

    async with await asyncio.start_server(stranger, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        with pytest.raises((HandshakeError, ConnectionLost)):
            await observing.look(Config(scheduler=f"127.0.0.1:{port}"), 10.0)


@both_loops
async def test_observers_that_flood_and_do_not_read_are_cut_and_the_job_goes_on() -> None:
    async with bench(num_workers=1) as made:
        (worker,) = await running(made)
        flooder = await made.peer("observer", -1)
        assert flooder.connection is not None
        flooder.connection.pause_reading()
        frame = control_frame(m.AskStatus(), 1, 0, 1) * 1000
        while flooder.connection.pending_bytes < 1 << 20 and not flooder.down.is_set():
            flooder.say(frame)
            sinks = made.scheduler._sinks.values()
            assert all(sink.connection.pending_bytes < 4 << 20 for sink in sinks)  # it is bounded
            await asyncio.sleep(0)
        flooder.connection.resume_reading()
        await flooder.wait_gone()
        assert worker.node.failure is None
        assert (await observing.look(made.config, 10.0)).phase == "running"


@both_loops
async def test_observers_that_vanish_or_send_garbage_mean_nothing() -> None:
    async with bench(num_workers=1) as made:
        (worker,) = await running(made)
        garbage: list[tuple[bytes, ...]] = [
            (), (bytes(72),), (control_frame(m.Leave(), 1, 0, 1),),
            (control_frame(m.AskStatus(), 1, 0, 1)[:50],),
            (control_frame(m.Died("worker", 0, "murder"), 1, 0, 1),),
        ]
        for parts in garbage * 4:
            peer = await made.peer("observer", -1)
            if parts:
                peer.say(*parts)
            await asyncio.sleep(0)
            peer.close()
        told = await observing.look(made.config, 10.0)
        assert (told.phase, [node.standing for node in told.nodes]) == ("running", ["alive"] * 2)
        assert worker.node.failure is None


async def test_node_whose_report_fails_works_on(caplog: pytest.LogCaptureFixture) -> None:
    async with bench(num_workers=1) as made:
        (worker,) = await running(made)
        worker.node.report = lambda: m.Report(*[1 // 0] * 10)
        told = await observing.look(made.config, 1.0)
        assert [node.report is None for node in told.nodes] == [False, True]
        assert [node.standing for node in told.nodes] == ["alive"] * 2
        assert "no report of worker 0" in caplog.text
        await worker.open_store("s", m.StoreConfig("dist_sync", "arrival", "sum"))


async def test_server_lets_no_observer_in() -> None:
    async with bench(num_workers=1) as made:
        (worker,) = await running(made)
        port = next(member.port for member in worker.node.members if member.role == "server")
        await (await made.peer("observer", -1, port=port)).wait_gone()


async def test_scheduler_that_ends_meanwhile_is_a_lost_connection() -> None:
    ready = asyncio.Event()

    async with bench() as made:
        async def cut() -> None:
            await ready.wait()
            await made.scheduler.close()

        made.scope.spawn(cut(), "cut")
        made.scheduler._state.received = lambda *_: ready.set() or []  # type: ignore
        with pytest.raises(ConnectionLost):
            await observing.look(made.config, 10.0)


def test_environment_of_a_process_in_no_job_is_an_error() -> None:
    with pytest.raises(ConfigError, match="in no job"):
        observing.environment_of(os.getpid())


def test_what_peers_say_cannot_reach_the_terminal() -> None:
    member = m.Member("worker", 0, 1, "", 0, "evil\x1b[2Jhost\n", 1)
    wait = m.Wait("round", 1, "\x1b]0;key\x07", 0, 61.0, 1)
    told = m.JobStatus("running", 3700.0, 1, 1, [m.NodeStatus(member, "alive", 0.0, None, 0.0)],
                       [], [wait], None)
    text = plain(*tables(told, "127.0.0.1:1"))
    assert "\x1b" not in text
    assert "\x07" not in text
    assert "evil?[2Jhost?" in text
    assert "1 min 01 s" in text
    assert "1 h 01 min" in text
    assert text.splitlines()[0] == (
        "job at 127.0.0.1:1: running for 1 h 01 min, 1 worker, 1 server")


def test_socket_of_the_observer_is_closed_after_a_failure() -> None:
    async def one() -> Any:
        with ReservedPort(listening=True) as port:
            with pytest.raises(DeadlineExceeded):
                await observing.look(Config(scheduler=f"127.0.0.1:{port.number}"), 0.1)
            port._socket.settimeout(5.0)
            taken, _ = port._socket.accept()
            with taken:
                taken.settimeout(5.0)
                while taken.recv(4096):
                    pass
        return socket.AF_INET

    assert asyncio.run(one()) == socket.AF_INET
