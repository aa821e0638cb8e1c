"""The scheduler's sockets: what it takes, what it sends, whom it closes."""

from __future__ import annotations

import asyncio

import pytest

from asyncps.errors import ConfigError, TransportError, WorkerLost
from asyncps.protocol import messages as m
from asyncps.protocol.frames import Kind
from asyncps.roles.scheduler import Scheduler
from asyncps.transport.network import TcpNetwork
from asyncps.transport.request import control_frame
from asyncps_ext import wire
from tests.roles.cluster import Bench, Peer, bench, settings


async def join(made: Bench, role: str, rank: int | None) -> Peer:
    peer = await made.peer(role, -1 if rank is None else rank)
    peer.say(control_frame(m.Join(role, rank, 0, "127.0.0.1", 1, "host", 1), 1, 0, 1))
    await peer.hear(m.Joined)
    return peer


async def test_member_table_comes_when_everybody_is_there_and_servers_hear_it_first() -> None:
    async with bench(num_workers=1, num_servers=1) as made:
        worker = await join(made, "worker", 0)
        server = await join(made, "server", 0)
        table = await server.hear(m.Members)
        assert [(member.role, member.rank) for member in table.members] == [
            ("server", 0), ("worker", 0)]
        assert all(not isinstance(message, m.Members) for _, message in worker.frames._queue)
        server.say(control_frame(m.Prepared(), 0, 0))
        assert await worker.hear(m.Members) == table
        worker.close()
        server.close()


async def test_silent_member_hears_heartbeats() -> None:
    async with bench(heartbeat_s=0.05) as made:
        worker = await join(made, "worker", 0)
        for _ in range(3):
            assert (await worker.hear()).kind == Kind.HEARTBEAT
        worker.close()


async def test_link_that_joins_nothing_is_closed() -> None:
    async with bench(handshake_s=0.3) as made:
        worker = await made.peer("worker", 0)
        await worker.wait_gone()


async def test_another_scheduler_is_not_spoken_to() -> None:
    async with bench() as made:
        await (await made.peer("scheduler", 0)).wait_gone()


@pytest.mark.parametrize("frame", [
    wire.pack_header(Kind.PUSH, 0, 1, 1, 1, 1, 0, 1, 0, 8, 0, 0) + bytes(8),
    wire.pack_header(Kind.PULL, 0, 1, 1, 1, 1, 0, 1, 0, 0, 0, 8),
    wire.pack_header(Kind.CONTROL, 0, 1, 0, 1, 0, 0, 0, 3, 0, 1, 0) + b"\xff\xff\xff",
    bytes(72),
], ids=["payload", "data frame", "no message", "no frame"])
async def test_frames_that_no_scheduler_takes_close_the_connection(
    frame: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    async with bench() as made:
        worker = await made.peer("worker", 0)
        worker.say(frame)
        await worker.wait_gone()
        assert "broke the protocol" in caplog.text
        worker = await join(made, "worker", 0)  # it goes on
        worker.close()


async def test_loss_before_the_job_begins_ends_it_with_the_reason() -> None:
    async with bench(num_workers=2, reconnect_s=0.2) as made:
        first, second = await join(made, "worker", 0), await join(made, "worker", 1)
        second.close()
        lost = await first.hear(m.Lost)
        assert (lost.role, lost.rank) == ("worker", 1)
        assert "did not come back within 0.2 s" in lost.reason
        first.close()
        with pytest.raises(WorkerLost):
            await asyncio.wait_for(made.scheduler.run(), 10.0)


async def test_errors_name_the_port_that_was_found() -> None:
    async with bench() as made:
        worker = await made.peer("worker", 0)
        worker.say(control_frame(m.Join("worker", 5, 0, "", 0, "host", 1), 1, 0, 1))
        refusal = await worker.hear(m.ErrorInfo)
        assert refusal.host == f"scheduler 127.0.0.1:{made.scheduler.port}"
        await worker.wait_gone()


async def test_open_door_is_refused() -> None:
    config = settings(role="scheduler", token="", bind="0.0.0.0:0")
    scheduler = Scheduler(config, TcpNetwork(), lambda work, name: None)
    with pytest.raises(ConfigError, match=r"listening on 0\.0\.0\.0 without a token"):
        await scheduler.start()


async def test_busy_port_is_named() -> None:
    async with bench() as made:
        config = made.config.replace(role="scheduler")
        second = Scheduler(config, TcpNetwork(), lambda work, name: None)
        with pytest.raises(TransportError, match=f"cannot listen on {config.scheduler}: .*in use"):
            await second.start()
