"""A flood of garbage against a real scheduler: refused with a line, and the job goes on."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import struct
import tracemalloc
from collections.abc import AsyncIterator

import pytest

from asyncps.config import Config
from asyncps.errors import HandshakeError
from asyncps.protocol import messages as m
from asyncps.protocol.frames import Kind
from asyncps.protocol.handshake import Hello
from asyncps.roles.scheduler import Scheduler
from asyncps.transport import connection as connection_module
from asyncps.transport.connection import Connection
from asyncps.transport.link import Link
from asyncps.transport.network import TcpNetwork
from asyncps.transport.tcp import MAX_UNPROVEN
from tests.protocol.streams import frame, raw_header
from tests.transport.ends import End, spawning

pytestmark = pytest.mark.asyncio(loop_factories=["uvloop", "asyncio"])

TOKEN = "a token that no log may show"


@pytest.fixture
async def scheduler() -> AsyncIterator[Scheduler]:
    config = Config(
        role="scheduler", scheduler="127.0.0.1:0", token=TOKEN, num_workers=1, num_servers=1
    )
    async with spawning() as spawn:
        role = Scheduler(config, TcpNetwork(), spawn)
        await role.start()
        yield role
        await role.close()


def from_worker(owner: object, token: str = TOKEN, role: str = "worker") -> Connection:
    return Connection(owner, Hello(role, -1, 0, "default", b""), token, connector=True)  # type: ignore[arg-type]


async def proven(scheduler: Scheduler) -> tuple[Connection, End]:
    """A connection of somebody who knows the token."""
    end = End()
    connection = await TcpNetwork().connect(lambda: from_worker(end), "127.0.0.1", scheduler.port)
    await end.wait("ready")
    return connection, end


async def say(scheduler: Scheduler, data: bytes) -> bytes:
    """Say something to the door; return what it answers before it closes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", scheduler.port)
    heard = b""
    with contextlib.suppress(ConnectionResetError):
        writer.write(data)
        heard = await reader.read()
    writer.close()
    with contextlib.suppress(ConnectionResetError, BrokenPipeError):
        await writer.wait_closed()
    return heard


async def check_join(scheduler: Scheduler) -> None:
    """The role serves a real worker."""
    async with spawning() as spawn:

        async def dial(link: Link) -> Connection:
            return await TcpNetwork().connect(
                lambda: from_worker(link), "127.0.0.1", scheduler.port
            )

        link = Link("the scheduler", dial, lambda message, number: None, spawn)
        await link.wait_connected()
        joined = await link.ask(m.Join("worker", 0, 0, "", 0, "here", os.getpid()), 0)
        assert isinstance(joined, m.Joined)
        assert joined.rank == 0
        assert isinstance(await link.ask(m.Leave(), joined.incarnation), m.Done)
        link.close()


def future_hello() -> bytes:
    hello = bytearray(Hello("worker", 0, 0, "default", os.urandom(32)).pack())
    struct.pack_into("<H", hello, 8, 999)
    return bytes(hello)


@pytest.mark.parametrize(
    ("data", "line"),
    [
        (b"\xde\xad\xbe\xef" * 1000, "this is no asyncps peer"),
        (b"GET / HTTP/1.1\r\nHost: scheduler\r\n\r\n", "this is no asyncps peer"),
        (future_hello(), "another protocol version (expected 1, got 999)"),
        (Hello("worker", 0, 0, "default", bytes(32)).pack() + bytes(32), "wrong token"),
        (Hello("worker", 0, 0, "other", bytes(32)).pack(), "another job"),
    ],
    ids=["garbage", "HTTP", "a future version", "no proof", "another job"],
)
async def test_stranger_is_refused_with_a_line_and_the_job_goes_on(
    scheduler: Scheduler, data: bytes, line: str, caplog: pytest.LogCaptureFixture
) -> None:
    await say(scheduler, data)
    assert line in caplog.text
    assert TOKEN not in caplog.text
    await check_join(scheduler)


async def test_stranger_who_was_refused_is_held_and_a_crowd_of_them_keeps_nobody_out(
    scheduler: Scheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection_module, "REFUSED_S", 60.0)
    strangers = []
    for _ in range(MAX_UNPROVEN):
        strangers.append(await asyncio.open_connection("127.0.0.1", scheduler.port))
        strangers[-1][1].write(b"GET / HTTP/1.1\r\n\r\n")
    await check_join(scheduler)  # all are there by now, and one has gone for it
    gone = [reader for reader, _ in strangers if reader.at_eof() or reader.exception()]
    assert len(gone) <= 1
    again = [
        await asyncio.open_connection("127.0.0.1", scheduler.port) for _ in range(MAX_UNPROVEN)
    ]
    for reader, writer in strangers:  # who came first goes first
        with contextlib.suppress(ConnectionResetError):
            assert await asyncio.wait_for(reader.read(), 10.0) == b""
        writer.close()
    for _, writer in again:
        writer.close()


async def test_stranger_who_was_refused_is_shown_the_door_by_and_by(
    scheduler: Scheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection_module, "REFUSED_S", 0.02)
    assert await say(scheduler, b"GET / HTTP/1.1\r\n\r\n") == b""
    await check_join(scheduler)


async def test_wrong_token_is_told_to_its_owner_and_the_job_goes_on(
    scheduler: Scheduler, caplog: pytest.LogCaptureFixture
) -> None:
    end = End()
    await TcpNetwork().connect(lambda: from_worker(end, "wrong"), "127.0.0.1", scheduler.port)
    await end.wait("lost")
    assert isinstance(end.error, HandshakeError)
    await check_join(scheduler)
    assert caplog.text.count("wrong token") == 2  # both sides noticed
    assert TOKEN not in caplog.text


@pytest.mark.parametrize(
    ("data", "line"),
    [
        (raw_header(kind=1, table_bytes=2**63), "table too long"),
        (raw_header(kind=1, payload_bytes=2**63), "payload too long"),
        (b"\xde\xad\xbe\xef" * 1000, "not a frame: magic"),
        (raw_header(version=2), "not a frame: version"),
        (frame(Kind.CONTROL, b"\xc1").data, "not a control message"),
        (frame(Kind.CONTROL, b"\x91" * 60_000).data, "not a control message"),
        (frame(Kind.PUSH, b"", b"payload").data, "a payload for the scheduler"),
        (frame(Kind.CONTROL, m.encode(m.Done()), b"payload").data, "a payload for the scheduler"),
        (frame(Kind.PULL).data, "a frame that a scheduler does not take"),
        (frame(250).data, "a frame that a scheduler does not take"),
    ],
    ids=["table of 2**63", "payload of 2**63", "garbage", "version", "no message", "deep message",
         "a push", "control with payload", "a pull", "unknown kind"],
)
async def test_proven_peer_that_breaks_the_rules_is_closed_and_the_job_goes_on(
    scheduler: Scheduler, data: bytes, line: str, caplog: pytest.LogCaptureFixture
) -> None:
    connection, end = await proven(scheduler)
    connection.send([data], len(data))
    await end.wait("lost")
    assert "broke the protocol" in caplog.text
    assert line in caplog.text
    await check_join(scheduler)


async def test_message_out_of_place_is_answered_with_an_error_and_closed(
    scheduler: Scheduler, caplog: pytest.LogCaptureFixture
) -> None:
    connection, end = await proven(scheduler)
    data = frame(Kind.CONTROL, m.encode(m.Barrier(1))).data
    connection.send([data], len(data))
    await end.wait("lost")
    answer = m.decode(end.frames[0][1])
    assert isinstance(answer, m.ErrorInfo)
    assert "out of place" in answer.message
    assert "is refused" in caplog.text
    await check_join(scheduler)


@pytest.mark.slow
async def test_flood_leaves_no_memory_behind(
    scheduler: Scheduler, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL, "asyncps")  # caplog itself keeps every line
    deep = frame(Kind.CONTROL, b"\x91" * 60_000).data

    async def wave(count: int) -> None:
        async with asyncio.TaskGroup() as group:
            for number in range(count):
                data = [b"\xff" * 5000, b"GET / HTTP/1.1\r\n\r\n", future_hello()][number % 3]
                group.create_task(say(scheduler, data))
        for data in (raw_header(table_bytes=2**63), raw_header(payload_bytes=2**63), deep):
            connection, end = await proven(scheduler)
            connection.send([data], len(data))
            await end.wait("lost")

    await wave(30)
    gc.collect()
    tracemalloc.start()
    try:
        await wave(30)
        gc.collect()
        tracemalloc.reset_peak()
        before = tracemalloc.get_traced_memory()[0]
        for _ in range(5):
            await wave(60)
        gc.collect()
        after, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert after - before < 200_000
    assert peak - before < 60 * 200_000  # of the strangers that are there at once
    assert not scheduler._sinks
    await check_join(scheduler)
