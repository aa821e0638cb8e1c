"""A node's way to the scheduler, and its life beside it."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
from collections.abc import Callable

import pytest

from asyncps.config import Config
from asyncps.embedded import Scope
from asyncps.errors import (
    AsyncPSError,
    ConfigError,
    HandshakeError,
    RankTaken,
    RendezvousTimeout,
    SchedulerLost,
)
from asyncps.protocol import messages as m
from asyncps.roles.node import Node
from asyncps.transport.network import TcpNetwork
from asyncps.transport.request import control_frame
from tests.faults.job import ReservedPort
from tests.faults.proxied import wait_cut_off
from tests.roles.cluster import Bench, bench, settings
from tests.support.proxy import TcpProxy


@contextlib.asynccontextmanager
async def node_of(config: Config, rank: int | None = 0):  # type: ignore[no-untyped-def]
    """A worker's node, not joined yet; it leaves at the end."""
    async with Scope() as scope:
        node = Node(config.replace(role="worker", rank=rank), "worker", TcpNetwork(), scope.spawn)
        try:
            yield node
        finally:
            await node.leave()


async def complete(made: Bench, node: Node) -> None:
    """Join with a node, as the only worker beside one server."""
    await node.reach_scheduler()
    joining = asyncio.create_task(node.join(), name="joining")
    server = await made.peer("server", 0)
    server.say(control_frame(m.Join("server", 0, 0, "127.0.0.1", 1, "host", 1), 1, 0, 1))
    await server.hear(m.Members)
    server.say(control_frame(m.Prepared(), 0, 0))
    await joining
    made.scope.spawn(_until_gone(server.down, server.close), "the server's end")


async def _until_gone(down: asyncio.Event, close: Callable[[], None]) -> None:
    try:
        await down.wait()
    finally:
        close()


async def test_node_knows_its_place_and_everybody_once_joined() -> None:
    async with bench() as made, node_of(made.config) as node:
        await complete(made, node)
        assert (node.rank, node.num_workers, node.num_servers) == (0, 1, 1)
        assert node.incarnation > 0
        assert [(member.role, member.rank) for member in node.members] == [
            ("server", 0), ("worker", 0)]


async def test_nobody_there_is_a_rendezvous_timeout_with_the_reason() -> None:
    with ReservedPort() as port:
        config = settings(scheduler=f"127.0.0.1:{port.number}", rendezvous_s=0.3)
        async with node_of(config) as node:
            with pytest.raises(RendezvousTimeout, match=r"127\.0\.0\.1:\d+.*0\.3 s: .*refused"):
                await node.reach_scheduler()


@pytest.mark.parametrize("change", [{"token": "another"}, {"job": "another"}])
async def test_scheduler_of_another_job_or_token_is_no_use(change: dict[str, str]) -> None:
    async with bench() as made, node_of(made.config.replace(**change)) as node:
        with pytest.raises(HandshakeError, match=next(iter(change))):
            await node.reach_scheduler()


async def test_place_that_is_held_is_refused() -> None:
    async with bench(num_workers=2) as made, node_of(made.config) as node:
        holder = await made.peer("worker", 0)
        holder.say(control_frame(m.Join("worker", 0, 0, "", 0, "host", 1), 1, 0, 1))
        await holder.hear(m.Joined)
        await node.reach_scheduler()
        with pytest.raises(RankTaken, match=r"worker 0 @host \(incarnation 1\) is there already"):
            await node.join()
        holder.close()


@pytest.mark.parametrize(("soon_s", "words"), [(1e9, 0), (0.0, 1)])
async def test_wait_for_a_scheduler_is_told_once_and_not_at_once(
    soon_s: float, words: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("asyncps.roles.node._SOON_S", soon_s, raising=False)
    with ReservedPort() as port:
        config = settings(scheduler=f"127.0.0.1:{port.number}", rendezvous_s=0.4)
        async with node_of(config) as node:
            with pytest.raises(RendezvousTimeout):
                await node.reach_scheduler()
    assert caplog.text.count("trying for 0.4 s") == words


async def test_those_who_wait_are_told_who_is_missing() -> None:
    async with bench(num_workers=2, rendezvous_s=0.5) as made, node_of(made.config) as node:
        await node.reach_scheduler()
        with pytest.raises(RendezvousTimeout,
                           match=r"joined: worker 0 @.*; missing: server 0, worker 1"):
            await node.join()


async def test_scheduler_that_goes_away_is_lost_after_the_time_to_come_back() -> None:
    async with bench(heartbeat_s=0.05, reconnect_s=0.2) as made:
        async with TcpProxy(("127.0.0.1", made.scheduler.port)) as proxy:
            config = made.config.replace(scheduler=f"127.0.0.1:{proxy.port}")
            async with node_of(config) as node:
                await complete(made, node)
                failures: list[AsyncPSError] = []
                node.on_failure.append(failures.append)
                proxy.refuse()
                proxy.cut()
                await asyncio.wait_for(node.shutdown.wait(), 5.0)
                assert [type(error) for error in failures] == [SchedulerLost]
                with pytest.raises(SchedulerLost, match="is gone"):
                    await node.ask(m.Barrier(1))


async def test_scheduler_that_comes_back_in_time_keeps_the_node() -> None:
    async with bench(heartbeat_s=0.05, reconnect_s=5) as made:
        async with TcpProxy(("127.0.0.1", made.scheduler.port)) as proxy:
            config = made.config.replace(scheduler=f"127.0.0.1:{proxy.port}")
            async with node_of(config) as node:
                await complete(made, node)
                incarnation, before = node.incarnation, proxy.connections
                proxy.cut()
                await asyncio.wait_for(proxy.wait_connections(before + 1), 5.0)
                await asyncio.wait_for(node.link.wait_connected(), 5.0)
                assert (node.failure, node.incarnation) == (None, incarnation)


async def test_silent_scheduler_is_lost() -> None:
    async with bench(heartbeat_s=0.05) as made:
        async with TcpProxy(("127.0.0.1", made.scheduler.port)) as proxy:
            config = made.config.replace(
                scheduler=f"127.0.0.1:{proxy.port}", frozen_server_s=0.3)
            async with node_of(config) as node:
                await complete(made, node)
                proxy.freeze()
                await asyncio.wait_for(node.shutdown.wait(), 5.0)
                assert isinstance(node.failure, SchedulerLost)
                assert "said nothing for 0.3 s" in str(node.failure)


async def test_node_that_was_late_itself_judges_nobody() -> None:
    async with bench(heartbeat_s=0.05, reconnect_s=30) as made:
        async with TcpProxy(("127.0.0.1", made.scheduler.port)) as proxy:
            config = made.config.replace(
                scheduler=f"127.0.0.1:{proxy.port}", frozen_server_s=1.0, reconnect_s=1.0)
            async with node_of(config) as node:
                await complete(made, node)
                before = proxy.connections
                proxy.cut()
                await wait_cut_off(node)
                ctypes.PyDLL(None).usleep(1_300_000)  # the whole loop stands still
                await asyncio.wait_for(proxy.wait_connections(before + 1), 5.0)
                await asyncio.wait_for(node.link.wait_connected(), 5.0)
                assert node.failure is None


async def test_second_failure_is_not_told() -> None:
    async with node_of(settings()) as node:
        told: list[AsyncPSError] = []
        node.on_failure.append(told.append)
        node.fail(SchedulerLost("first"))
        node.fail(SchedulerLost("second"))
        assert [error.message for error in told] == ["first"]


async def test_advertised_address_is_the_setting_then_the_interface_then_the_sockets() -> None:
    for config, wanted in (
        (settings(advertise="10.1.2.3", interface="lo"), "10.1.2.3"),
        (settings(interface="lo"), "127.0.0.1"),
        (settings(), "192.168.7.7"),
    ):
        async with node_of(config) as node:
            assert node.advertised("192.168.7.7") == wanted
    async with node_of(settings(interface="no-such-one")) as node:
        with pytest.raises(ConfigError, match="no-such-one"):
            node.advertised("192.168.7.7")
