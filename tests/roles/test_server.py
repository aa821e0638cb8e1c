"""The server's door: who comes in, and what becomes of frames that make no sense."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import numpy as np
import pytest

from asyncps.errors import RemoteProtocolError, UnknownKey
from asyncps.protocol import messages as m
from asyncps.protocol.frames import Header, Kind
from asyncps.roles.server import Server
from asyncps.transport.request import control_frame
from asyncps_ext import wire
from tests.roles.cluster import Bench, Peer, bench

INCARNATION = 1  # of the worker: it joins first
STORE = m.StoreConfig("dist_sync", "arrival", "sum")


class Data:
    """One server with a worker of the test's at its data port."""

    def __init__(self, made: Bench, server: Server, control: Peer) -> None:
        self.made = made
        self.server = server
        self.control = control
        assert server._listening is not None
        self.port = server._listening.port

    async def connect(self, rank: int = 0, incarnation: int = INCARNATION, role: str = "worker",
                      **how: Any) -> Peer:
        return await self.made.peer(role, rank, incarnation, port=self.port, **how)


async def run(made: Bench) -> Data:
    """Start the server with one worker, which opens store 1."""
    control = await made.peer("worker", 0)
    control.say(control_frame(m.Join("worker", 0, 0, "", 0, "host", 1), 1, 0, 1))
    await control.hear(m.Joined)
    server = made.server()
    await control.hear(m.Members)
    control.say(control_frame(m.OpenStore("s", STORE), 2, INCARNATION, 2))
    assert (await control.hear(m.StoreOpened)).store == 1
    return Data(made, server, control)


def frame(kind: Kind, request: int, payload: bytes = b"", *, table: bytes = b"", unit: int = 1,
          store: int = 1, clock: int = 1, hyper: int = 0) -> bytes:
    header = wire.pack_header(kind, 0, INCARNATION, store, request, unit, 0, clock, len(table),
                              len(payload), 0, hyper)
    return header + table + payload


def init_frame(request: int, size: int = 40) -> bytes:
    spec = m.UnitSpec("float32", False, 0, ["w"], [size])
    return frame(Kind.INIT, request, bytes(size), table=m.encode(spec), clock=0)


async def answer(peer: Peer, request: int) -> tuple[Header, Any]:
    while True:
        header, message = await asyncio.wait_for(peer.frames.get(), 5.0)
        if header.request == request:
            return header, message


async def test_worker_that_the_scheduler_knows_is_served() -> None:
    async with bench() as made:
        data = await run(made)
        worker = await data.connect()
        worker.say(init_frame(1))
        assert (await answer(worker, 1))[0].kind == Kind.ACK
        worker.say(frame(Kind.PUSH, 2, np.ones(10, "f4").tobytes()))
        assert (await answer(worker, 2))[0].kind == Kind.ACK
        worker.close()
        data.control.close()


@pytest.mark.parametrize("who", [
    {"incarnation": 77}, {"rank": 5}, {"role": "server", "rank": 0}, {"role": "launcher"},
], ids=["stale", "no such rank", "server", "launcher"])
async def test_whoever_is_no_live_worker_is_shown_the_door(
    who: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    async with bench() as made:
        data = await run(made)
        stranger = await data.connect(**who)
        await stranger.wait_gone()
        assert "is not wanted" in caplog.text
        data.control.close()


async def test_new_connection_of_the_same_worker_takes_the_place_of_the_old() -> None:
    async with bench() as made:
        data = await run(made)
        old = await data.connect()
        old.say(init_frame(1))
        await answer(old, 1)
        old.say(frame(Kind.PUSH, 2, bytes(40))[:80])  # it never comes to the end of this
        new = await data.connect()
        await old.wait_gone()
        new.say(frame(Kind.PUSH, 2, np.ones(10, "f4").tobytes()))
        assert (await answer(new, 2))[0].kind == Kind.ACK
        new.say(frame(Kind.PUSH, 2, np.ones(10, "f4").tobytes()))  # the answer was lost
        assert (await answer(new, 2))[0].kind == Kind.ACK
        assert data.server.keepers[1].rules.rounds == 1
        new.close()
        data.control.close()


@pytest.mark.parametrize(("wrong", "error", "words"), [
    (frame(Kind.PUSH, 9, bytes(8)), RemoteProtocolError, "not the size of the chunk"),
    (frame(Kind.PUSH, 9), RemoteProtocolError, "size|without a payload"),
    (frame(Kind.PUSH, 9, bytes(40), clock=5), RemoteProtocolError, "skips a clock"),
    (frame(Kind.PUSH, 9, bytes(40), unit=4), UnknownKey, "no such unit"),
    (frame(Kind.PUSH, 9, bytes(40), store=8), UnknownKey, "no such store"),
    (frame(Kind.PULL, 9, hyper=13), RemoteProtocolError, "not the size of the chunk"),
    (frame(Kind.HEARTBEAT, 9, bytes(40)), RemoteProtocolError, "a payload where none belongs"),
    (frame(Kind.ACK, 9), RemoteProtocolError, "a frame that a server does not take"),
    (frame(Kind.INIT, 9, bytes(40)), RemoteProtocolError, "."),
    (control_frame(m.Leave(), 9, INCARNATION), RemoteProtocolError, "does not take"),
    (control_frame(m.AskStatistics(8), 9, INCARNATION), UnknownKey, "no such store"),
], ids=["size", "empty", "clock", "unit", "store", "pull size", "heartbeat with a payload",
        "answer", "init without a table", "message", "question"])
async def test_bad_request_is_answered_by_a_typed_error_and_ends_nothing(
    wrong: bytes, error: type[Exception], words: str
) -> None:
    async with bench() as made:
        data = await run(made)
        worker = await data.connect()
        worker.say(init_frame(1))
        await answer(worker, 1)
        worker.say(wrong)
        info = (await answer(worker, 9))[1]
        assert isinstance(info, m.ErrorInfo)
        found = m.error_from_wire(info)
        assert isinstance(found, error)
        assert re.search(words, str(found)), found
        assert found.host == data.server.host
        worker.say(frame(Kind.PUSH, 10, np.ones(10, "f4").tobytes()))
        assert (await answer(worker, 10))[0].kind == Kind.ACK
        worker.close()
        data.control.close()


async def test_garbage_after_the_handshake_cuts_and_the_server_goes_on() -> None:
    async with bench() as made:
        data = await run(made)
        for garbage in (bytes(200), init_frame(1)[:72] + b"\xff" * 100):
            worker = await data.connect()
            worker.say(garbage)
            worker.say(bytes(4096))
            await worker.wait_gone()
        worker = await data.connect()
        worker.say(init_frame(1))
        assert (await answer(worker, 1))[0].kind == Kind.ACK
        worker.close()
        data.control.close()
