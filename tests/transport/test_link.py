"""A link answers every request once, whatever becomes of its connections."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from asyncps.errors import (
    AsyncPSError,
    ClosedError,
    ConnectionLost,
    RemoteProtocolError,
    ShapeMismatch,
)
from asyncps.protocol import messages
from asyncps.protocol.frames import HEADER_SIZE, Header, Kind
from asyncps.transport.link import Link
from asyncps.transport.network import MemoryNetwork, TcpNetwork
from asyncps.transport.polling import SMALL_BYTES
from asyncps.transport.request import Request, control_frame
from tests.support.proxy import TcpProxy
from tests.transport.ends import Answers, End, dial, echo, link_to, open_door, post, send, spawning


async def test_every_request_is_answered_once_by_its_number() -> None:
    async with open_door(MemoryNetwork()) as door, spawning() as spawn:
        door.on_end = lambda end: setattr(end, "on_frame", echo)
        link, answers = link_to(door, spawn), Answers()
        await link.wait_connected()
        outs = [bytearray(3) for _ in range(5)]
        for number, out in enumerate(outs):
            post(link, answers, value=bytes([number] * 3), out=out)
        assert link.oldest == 1
        assert [number for number, _, _ in await answers.wait(5)] == [1, 2, 3, 4, 5]
        assert [bytes(out) for out in outs] == [bytes([n] * 3) for n in range(5)]
        assert not link.unanswered
        assert link.oldest == 6
        assert isinstance(await link.ask(messages.Barrier(1), 9), messages.Done)
        assert link.sent_bytes > 0
        assert link.received_bytes > 0
        link.close()


async def test_second_answer_of_a_request_finds_nobody() -> None:
    def twice(end: End, header: Header, payload: bytes) -> None:
        echo(end, header, payload)
        echo(end, header, payload)

    async with open_door(MemoryNetwork()) as door, spawning() as spawn:
        door.on_end = lambda end: setattr(end, "on_frame", twice)
        link, answers = link_to(door, spawn), Answers()
        await link.wait_connected()
        post(link, answers, out=bytearray(5))
        post(link, answers, Kind.PUSH)
        await answers.wait(2)
        await link.ask(messages.Barrier(1), 9)  # the doubles have come by now
        assert len(answers.all) == 2
        assert link.connection is not None
        link.close()


async def test_error_is_raised_as_the_class_that_the_peer_raised() -> None:
    def refuse(end: End, header: Header, payload: bytes) -> None:
        assert end.connection is not None
        error = ShapeMismatch("no", key="w", rank=1, expected=(3,), got=(4,))
        table = messages.encode(messages.error_to_wire(error, "node7"))
        send(end.connection, Kind.ERROR, request=header.request, table=table)

    async with open_door(MemoryNetwork()) as door, spawning() as spawn:
        door.on_end = lambda end: setattr(end, "on_frame", refuse)
        link, answers = link_to(door, spawn), Answers()
        await link.wait_connected()
        with pytest.raises(ShapeMismatch, match="from node7") as caught:
            await link.ask(messages.Barrier(1), 9)
        assert (caught.value.key, caught.value.rank) == ("w", 1)
        post(link, answers, out=bytearray(5))
        assert isinstance((await answers.wait(1))[0][2], ShapeMismatch)
        link.close()


@pytest.mark.parametrize("cuts", [1, 3])
async def test_what_was_sent_goes_again_in_its_old_order_after_a_cut(cuts: int) -> None:
    async with open_door(MemoryNetwork()) as door, spawning() as spawn:
        link, answers = link_to(door, spawn), Answers()
        await link.wait_connected()
        for priority in (0, 5, -2, 9):  # the clocks of one key: a cut must not mix them up
            post(link, answers, Kind.PUSH, priority=priority)
        for cut in range(cuts):
            end = await door.wait_ends(cut + 1)
            await end.wait_frames(4)
            assert end.connection is not None
            end.connection.abort(ConnectionLost("cut"))
        end = await door.wait_ends(cuts + 1)
        frames = await end.wait_frames(4)
        assert [header.request for header, _ in frames] == [1, 2, 3, 4]
        assert answers.all == []
        for header, payload in frames:
            echo(end, header, payload)
        assert [number for number, _, _ in await answers.wait(4)] == [1, 2, 3, 4]
        link.close()


async def test_what_was_never_sent_goes_by_priority_after_a_cut() -> None:
    async with open_door(MemoryNetwork()) as door, spawning() as spawn:
        link, answers = link_to(door, spawn), Answers()
        for priority in (0, 5, 9):
            post(link, answers, Kind.PUSH, priority=priority)
        await link.wait_connected()
        frames = await (await door.wait_ends(1)).wait_frames(3)
        assert [header.request for header, _ in frames] == [3, 2, 1]
        link.close()


async def test_answered_request_is_not_sent_again() -> None:
    async with open_door(MemoryNetwork()) as door, spawning() as spawn:
        link, answers = link_to(door, spawn), Answers()
        await link.wait_connected()
        post(link, answers, Kind.PUSH)
        post(link, answers, Kind.PUSH)
        end = await door.wait_ends(1)
        header, payload = (await end.wait_frames(2))[0]
        echo(end, header, payload)
        await answers.wait(1)
        assert end.connection is not None
        end.connection.abort()
        frames = await (await door.wait_ends(2)).wait_frames(1)
        assert [header.request for header, _ in frames] == [2]
        link.close()


@pytest.mark.parametrize("direction", ["up", "down"])
@pytest.mark.parametrize("after", [10, 300, 500, 150_000])
@pytest.mark.parametrize("reset", [False, True])
async def test_cut_at_any_byte_of_a_real_connection_loses_nothing(
    direction: Any, after: int, reset: bool
) -> None:
    values = [random.Random(n).randbytes(100_000) for n in range(4)]
    outs = [bytearray(100_000) for _ in values]
    async with (
        open_door(TcpNetwork()) as door,
        TcpProxy(("127.0.0.1", door.port)) as proxy,
        spawning() as spawn,
    ):
        door.on_end = lambda end: setattr(end, "on_frame", echo)
        proxy.cut_after(after, direction, reset=reset)
        link = Link(
            "server 0", lambda link: dial(door, link, port=proxy.port), lambda m, n: None, spawn
        )
        answers = Answers()
        await link.wait_connected()
        for value, out in zip(values, outs, strict=True):
            post(link, answers, value=value, out=out)
        found = await answers.wait(4)
        assert sorted(number for number, _, error in found if error is None) == [1, 2, 3, 4]
        assert [bytes(out) for out in outs] == values
        assert len(door.ends) >= 2 or proxy.connections >= 2
        link.close()


async def test_greeting_is_the_first_frame_of_every_connection() -> None:
    async with open_door(MemoryNetwork()) as door, spawning() as spawn:
        hello = control_frame(messages.Prepared(), 77, 9)
        link, answers = link_to(door, spawn, greet=lambda: hello), Answers()
        post(link, answers, Kind.PUSH)
        await link.wait_connected()
        for number in (1, 2):
            end = await door.wait_ends(number)
            frames = await end.wait_frames(2)
            assert [header.request for header, _ in frames] == [77, 1]
            assert end.connection is not None
            end.connection.abort()
        link.close()


async def test_messages_that_answer_nothing_go_to_the_owner() -> None:
    told: asyncio.Queue[tuple[Any, int]] = asyncio.Queue()
    async with open_door(MemoryNetwork()) as door, spawning() as spawn:
        link = link_to(door, spawn, on_message=lambda m, number: told.put_nowait((m, number)))
        await link.wait_connected()
        end = await door.wait_ends(1)
        await end.wait("ready")
        assert end.connection is not None
        lost = messages.Lost("worker", 1, "h", "r")
        install = messages.Install(1, messages.StoreConfig("a", "b", "c"), None, {})
        send(end.connection, Kind.HEARTBEAT, request=0)
        for message, number in ((lost, 0), (install, 5)):
            send(end.connection, Kind.CONTROL, request=number, table=messages.encode(message))
        assert await told.get() == (lost, 0)
        assert await told.get() == (install, 5)
        link.close()


@pytest.mark.parametrize(
    ("kind", "value", "what"),
    [
        (Kind.DATA, b"1234", "another size"), (Kind.DATA, b"", "another size"),
        (Kind.ACK, b"", "another size"), (Kind.PUSH, b"12345", "payload where none belongs"),
        (Kind.PUSH, b"", "no answer"), (99, b"", "no answer"),
    ],
)
async def test_answer_that_breaks_the_rules_closes_the_connection_and_is_asked_again(
    kind: int, value: bytes, what: str
) -> None:
    down: list[AsyncPSError] = []

    def answer(end: End, header: Header, payload: bytes) -> None:
        assert end.connection is not None
        if len(door.ends) == 1:
            send(end.connection, kind, value, request=header.request)
        else:
            echo(end, header, payload)

    async with open_door(MemoryNetwork()) as door, spawning() as spawn:
        door.on_end = lambda end: setattr(end, "on_frame", answer)
        link, answers, out = link_to(door, spawn, on_down=down.append), Answers(), bytearray(5)
        await link.wait_connected()
        post(link, answers, value=b"right", out=out)
        await answers.wait(1)
        assert out == b"right"
        assert isinstance(down[0], RemoteProtocolError)
        assert what in str(down[0])
        link.close()


async def test_answer_whose_place_was_taken_back_counts_and_lands_nowhere() -> None:
    async with open_door(MemoryNetwork()) as door, spawning() as spawn:
        link, answers, out = link_to(door, spawn), Answers(), bytearray(5)
        await link.wait_connected()
        request = post(link, answers, out=out)
        end = await door.wait_ends(1)
        header, payload = (await end.wait_frames(1))[0]
        request.place = None
        echo(end, header, payload)
        number, answered, error = (await answers.wait(1))[0]
        assert (number, error) == (1, None)
        assert answered is not None
        assert out == bytes(5)
        assert not link.unanswered
        link.close()


async def test_failed_link_answers_everything_and_serves_what_is_asked_then() -> None:
    async with open_door(MemoryNetwork()) as door, spawning() as spawn:
        link, answers = link_to(door, spawn), Answers()
        await link.wait_connected()
        later = Answers()

        def ask_again(*told: Any) -> None:
            answers(*told)
            post(link, later, Kind.PUSH)

        request = post(link, answers, Kind.PUSH)
        request.answered = ask_again
        post(link, answers, Kind.PUSH)
        link.fail(ClosedError("over"))
        assert [(n, type(e)) for n, _, e in answers.all] == [(1, ClosedError), (2, ClosedError)]
        assert list(link.unanswered) == [3]
        end = await door.wait_ends(1)
        header, payload = (await end.wait_frames(3))[2]
        echo(end, header, payload)
        assert (await later.wait(1))[0][0] == 3
        link.close()


async def test_telling_without_a_connection_is_lost_in_silence() -> None:
    async with open_door(MemoryNetwork()) as door, spawning() as spawn:
        link = link_to(door, spawn)
        link.tell(messages.Prepared(), 9)
        await link.wait_connected()
        link.tell(messages.Prepared(), 9, 4)
        frames = await (await door.wait_ends(1)).wait_frames(1)
        assert [header.request for header, _ in frames] == [4]
        link.close()


class Heard:
    """What a link tells of messages that may come soon."""

    def __init__(self) -> None:
        self.events: list[str] = []

    def expect(self) -> None:
        self.events.append("expect")

    def came(self) -> None:
        self.events.append("came")


async def test_answers_of_small_values_are_expected_soon_and_no_others() -> None:
    polling = Heard()
    async with open_door(MemoryNetwork()) as door, spawning() as spawn:
        door.on_end = lambda end: setattr(end, "on_frame", echo)
        link, answers = link_to(door, spawn, polling=polling), Answers()
        await link.wait_connected()
        sizes = (1, SMALL_BYTES - HEADER_SIZE, SMALL_BYTES - HEADER_SIZE + 1, 2 * SMALL_BYTES)
        for count, size in enumerate(sizes, 1):
            post(link, answers, value=bytes(size), out=bytearray(size), unit="of a store")
            await answers.wait(count)
        assert polling.events == ["expect", "came"] * 2
        post(link, answers, out=bytearray(5))  # speaks of no unit
        await answers.wait(5)
        await link.ask(messages.Barrier(1), 9)
        assert polling.events == ["expect", "came"] * 2
        link.close()


def test_pull_of_a_large_value_is_not_small() -> None:
    answers, header = Answers(), bytes(HEADER_SIZE)
    for size, small in ((5, True), (SMALL_BYTES, True), (SMALL_BYTES + 1, False)):
        place = memoryview(bytearray(size))
        request = Request(1, 0, [header], HEADER_SIZE, answers, place, "of a store")
        assert request.is_small is small, size
