"""How a link finds its peer, when it tries again, and when it gives up."""

from __future__ import annotations

import asyncio
import random

import pytest

from asyncps.errors import AsyncPSError, ClosedError, HandshakeError, TransportError
from asyncps.transport.connection import Connection
from asyncps.transport.link import Link
from asyncps.transport.network import MemoryNetwork, TcpNetwork
from tests.transport.ends import End, dial, link_to, open_door, spawning


async def test_refused_handshake_is_told_once_and_ends_the_trying() -> None:
    tries: list[Link] = []
    refused: list[AsyncPSError] = []

    async with open_door(MemoryNetwork()) as door, spawning() as spawn:

        async def connect(link: Link) -> Connection:
            tries.append(link)
            return await dial(door, link, token="another")

        link = Link("server 0", connect, lambda m, n: None, spawn, on_refused=refused.append)
        for _ in range(2):  # whoever asks later is told as well
            with pytest.raises(HandshakeError, match="wrong token"):
                await link.wait_connected()
        assert len(tries) == len(refused) == 1
        await door.ends[0].wait("lost")


async def test_unreachable_peer_is_tried_until_it_is_there() -> None:
    network = MemoryNetwork()
    down: list[AsyncPSError] = []
    tries = 0
    async with spawning() as spawn, open_door(network) as door:

        async def connect(link: Link) -> Connection:
            nonlocal tries
            tries += 1
            return await dial(door, link, port=0 if tries > 3 else 999)

        link = Link("server 0", connect, lambda m, n: None, spawn, on_down=down.append)
        assert (await link.wait_connected()).ready
        assert tries == 4
        assert [type(error) for error in down] == [TransportError] * 3
        link.close()


async def test_peer_that_accepts_and_never_answers_the_handshake_is_left() -> None:
    silent: list[asyncio.Transport] = []

    class Silent(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            silent.append(transport)  # type: ignore[arg-type]

    down: list[AsyncPSError] = []
    server = await asyncio.get_running_loop().create_server(Silent, "127.0.0.1", 0)
    silent_port = server.sockets[0].getsockname()[1]
    async with open_door(TcpNetwork()) as door, spawning() as spawn:
        link = Link(
            "server 0",
            lambda link: dial(door, link, port=0 if down else silent_port),
            lambda m, n: None, spawn, on_down=down.append, handshake_s=0.05,
        )
        assert (await link.wait_connected()).ready
        assert "did not answer within 0.05 s" in str(down[0])
        link.close()
    for transport in silent:
        transport.abort()
    server.close()


async def test_peer_that_closes_at_once_is_not_hammered(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []

    def uniform(low: float, high: float) -> float:
        pauses.append(high)
        return 0.0

    monkeypatch.setattr(random, "uniform", uniform)
    async with open_door(MemoryNetwork()) as door, spawning() as spawn:

        def close_at_once(end: End) -> None:
            if len(door.ends) < 12:
                asyncio.get_running_loop().call_soon(end.connection.abort)  # type: ignore[union-attr]

        door.on_end = lambda end: setattr(end, "on_ready", close_at_once)
        link = link_to(door, spawn)
        link.start()
        await (await door.wait_ends(12)).wait("ready")
        assert pauses[0] < 0.1
        assert pauses[-1] == 0.3
        assert pauses == sorted(pauses)
        link.close()


async def test_link_closed_while_it_connects_leaves_no_connection() -> None:
    async with open_door(TcpNetwork()) as door, spawning() as spawn:
        link = link_to(door, spawn)
        link.start()
        waiting = asyncio.ensure_future(link.wait_connected())
        await door.wait_ends(1)  # it is being greeted
        link.close()
        with pytest.raises(ClosedError):
            await waiting
        await door.ends[0].wait("lost")
        assert link.connection is None
        with pytest.raises(ClosedError):
            await link.wait_connected()


async def test_closed_link_does_not_come_back() -> None:
    async with open_door(MemoryNetwork()) as door, spawning() as spawn:
        link = link_to(door, spawn)
        await link.wait_connected()
        link.close()
        await door.ends[0].wait("lost")
        link.start()
        assert link.connection is None
        assert len(door.ends) == 1
