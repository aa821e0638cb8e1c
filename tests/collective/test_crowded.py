"""Ranks of one machine that has fewer processors leave less in each other's sockets."""

from __future__ import annotations

import socket

import numpy as np
import pytest

from asyncps.communicator import Communicator
from asyncps.roles import mesh
from tests.support.group import group


def unread(comm: Communicator) -> list[int]:
    """What the kernel takes for each other rank."""
    connections = [peer.connection for peer in comm._collecting.peers.values()]
    assert all(connections)
    return [each.socket().getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) for each in connections]


@pytest.mark.parametrize(("processors", "crowded"), [(2, True), (3, False), (8, False)])
def test_sockets_hold_less_where_ranks_are_more_than_processors(
    processors: int, crowded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mesh, "processors", lambda: processors)
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 256 << 10)
        bounded = probe.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF)
    with group(3) as three:
        def work(comm: Communicator) -> tuple[float, list[int]]:
            return float(comm.all_reduce(np.ones(3_000_000, np.float32))[-1]), unread(comm)

        for total, sizes in three.run(work):
            assert total == 3.0
            assert all((size == bounded) is crowded for size in sizes), (sizes, bounded)


def test_a_connection_that_is_made_anew_is_bounded_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mesh, "processors", lambda: 1)
    with group(2) as both:
        before = [unread(comm) for comm in both.ranks]
        connection = both.ranks[0]._collecting.peers[1].connection
        assert connection is not None

        async def cut() -> None:
            connection.abort()

        both.ranks[0]._runtime.run(cut)
        both.run(lambda comm: comm.all_reduce(np.ones(3_000_000, np.float32)))
        assert both.ranks[0]._collecting.peers[1].connection is not connection
        assert [unread(comm) for comm in both.ranks] == before
