"""What the worker that saves or loads asks of the servers, and of its disk: a little at a time.

A bounded number of bytes is under way; what has come is used in the order in which it was asked
for, while the next is on its way. Files are read and written in a thread of their own, since the
loop has heartbeats to send.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Any, Self, TypeVar

from asyncps.errors import AsyncPSError, DeadlineExceeded
from asyncps.protocol import messages
from asyncps.protocol.frames import Header, Kind
from asyncps.protocol.messages import AnyMessage
from asyncps.transport.link import Link
from asyncps.transport.request import Request
from asyncps_ext import wire

T = TypeVar("T")

pack_header: Callable[..., bytes] = wire.pack_header

# Bytes of values under way at once, beside what the sockets hold.
WINDOW_BYTES = 16 << 20


class Disk:
    """A thread for files; `async with` it. Leaving waits for what it is doing, and the loop goes
    on meanwhile, also if the task is cancelled."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, "asyncps checkpoint")
        self._used = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            if self._used:
                await asyncio.wait({asyncio.wrap_future(self._thread.submit(int))})
        finally:
            self._thread.shutdown(wait=False)

    async def run(self, work: Callable[..., T], *arguments: Any) -> T:
        """Run something there and wait for its result."""
        self._used = True
        return await asyncio.wrap_future(self._thread.submit(work, *arguments))

    def last(self, work: Callable[..., object], *arguments: Any) -> None:
        """Run something there behind all else, if anything was run; leaving waits for it."""
        if not self._used:
            return
        self._thread.submit(work, *arguments)


class Window:
    """Requests under way, oldest first.

    Args:
        answer_s: How long a server may be silent.
    """

    def __init__(self, answer_s: float) -> None:
        self._answer_s = answer_s
        self._under_way: deque[
            tuple[Link, asyncio.Future[None], int, Callable[[], Awaitable[None]]]
        ] = deque()
        self._bytes = 0

    async def add(
        self, link: Link, asking: asyncio.Future[None], size: int,
        then: Callable[[], Awaitable[None]],
    ) -> None:
        """Take note of a request; `then` comes when it is answered and all before it are done."""
        self._under_way.append((link, asking, size, then))
        self._bytes += size
        while self._bytes > WINDOW_BYTES:
            await self._finish_one()

    async def finish(self) -> None:
        """Wait for all."""
        while self._under_way:
            await self._finish_one()

    async def _finish_one(self) -> None:
        link, asking, size, then = self._under_way.popleft()
        self._bytes -= size
        await answered(link, asking, self._answer_s)
        await then()


async def answered(link: Link, asking: asyncio.Future[T], answer_s: float) -> T:
    """Wait for a server; while bytes of its link move it is alive and may take its time.

    Raises:
        DeadlineExceeded: It was silent for `answer_s`.
        AsyncPSError: Its error.
    """
    while True:
        moved = link.moved_bytes
        done, _ = await asyncio.wait({asking}, timeout=answer_s)
        if done:
            return asking.result()
        if link.moved_bytes == moved:
            raise DeadlineExceeded(f"{link.name} did not answer within {answer_s:g} s")


def fetch(
    link: Link, message: messages.StateRange | messages.TableRange, incarnation: int,
    place: memoryview,
) -> asyncio.Future[None]:
    """Ask for bytes, or rows, of a unit; they are written into `place`, whatever becomes of the
    future."""
    return ask(link, Kind.CONTROL, 0, 0, message, incarnation, None, place)[1]


def restore(
    link: Link, message: messages.StateRange | messages.TableRows, incarnation: int,
    payload: memoryview,
) -> asyncio.Future[None]:
    """Let bytes, or rows, of a unit be these; lent until the answer."""
    return ask(link, Kind.RESTORE, message.store, message.unit, message, incarnation, payload,
               None)[1]


def ask(
    link: Link, kind: int, store: int, unit: int, message: messages.Message, incarnation: int,
    payload: memoryview | None, place: memoryview | None,
) -> tuple[int, asyncio.Future[None]]:
    """Send a message with a payload, or one whose answer brings one.

    Args:
        link: To whom.
        kind: Of the frame.
        store, unit: That its header names, or 0.
        message: Its table.
        incarnation: This node's.
        payload: Lent until the answer.
        place: Where the answer's payload goes, whatever becomes of the future.

    Returns:
        The number of the request, and a future that is done with the answer.
    """
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def came(
        _request: Request, _header: Header | None, _message: AnyMessage | None,
        error: AsyncPSError | None,
    ) -> None:
        if future.done():
            return
        if error is None:
            future.set_result(None)
        else:
            future.set_exception(error)
            future.exception()  # it may be that nobody waits any more

    table = messages.encode(message)
    number = link.number()
    size = 0 if payload is None else len(payload)
    acked = min(link.oldest, number) if kind == Kind.CONTROL else 0
    header = pack_header(
        kind, 0, incarnation, store, number, unit, 0, 0, len(table), size, acked, 0
    )
    parts: list[bytes | memoryview] = [header, table]
    if payload is not None:
        parts.append(payload)
    link.request(Request(number, 0, parts, len(header) + len(table) + size, came, place))
    return number, future
