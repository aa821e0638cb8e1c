"""A remote node that we reach: requests, their answers, and a connection that may be cut.

Every request stays here until it is answered. When the connection breaks it is opened again, and
whatever is unanswered is sent again in the old order; the other side recognises what it knows.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from typing import Any

from asyncps.errors import (
    AsyncPSError,
    ClosedError,
    ConnectionLost,
    HandshakeError,
    RemoteProtocolError,
)
from asyncps.protocol import messages
from asyncps.protocol.frames import Header, Kind
from asyncps.protocol.messages import AnyMessage, Message
from asyncps.transport.connection import Connection
from asyncps.transport.outbox import Outbox
from asyncps.transport.polling import Polling
from asyncps.transport.request import Request, control_frame
from asyncps_ext import wire

log = logging.getLogger(__name__)

# Tries to come back start at once and slow down to this, each with full jitter.
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.01, 0.3

pack_header: Callable[..., bytes] = wire.pack_header


class Link:
    """One remote node.

    Args:
        name: How people call it, such as "server 1".
        connect: Opens a connection whose owner is this link.
        on_message: Takes control messages that answer nothing, and their own number if any.
        spawn: Starts a task in the node's task group.
        greet: Returns the frame that must be first on every connection (the join), if any.
        on_down: Told each time the connection is gone, with the reason; it decides nothing here.
        on_refused: The other side does not want us: it is of no use to try again.
        handshake_s: How long one try may take until the other side has proven itself.

    Attributes:
        connection: The present connection, once ready.
        unanswered: Requests by number, oldest first.
        heard: Bytes came since this was last set False.
    """

    def __init__(
        self,
        name: str,
        connect: Callable[[Link], Awaitable[Connection]],
        on_message: Callable[[AnyMessage, int], None],
        spawn: Callable[[Any, str], None],
        *,
        greet: Callable[[], bytes | None] = lambda: None,
        on_down: Callable[[AsyncPSError], None] = lambda error: None,
        on_refused: Callable[[AsyncPSError], None] = lambda error: None,
        handshake_s: float = 5.0,
        polling: Polling | None = None,
    ) -> None:
        self.name = name
        self.polling = polling
        self._connect = connect
        self._on_message = on_message
        self._spawn = spawn
        self._greet = greet
        self._on_down = on_down
        self._on_refused = on_refused
        self._handshake_s = handshake_s
        self._pause = _FIRST_PAUSE_S
        self._ready_at = 0.0
        self._refused: AsyncPSError | None = None
        self.connection: Connection | None = None
        self.outbox = Outbox()
        self.unanswered: dict[int, Request] = {}
        self._next = 1
        self._sent_before = self._received_before = 0
        self._closing = False
        self._killed: AsyncPSError | None = None
        self._trying = False
        self._attempt: asyncio.Future[None] | None = None
        self._up: asyncio.Future[None] | None = None

    # ---- requests ----

    def number(self) -> int:
        """Return the number of the next request."""
        number = self._next
        self._next += 1
        return number

    @property
    def oldest(self) -> int:
        """The lowest number that is unanswered, or the next one."""
        return next(iter(self.unanswered), self._next)

    def request(self, request: Request) -> None:
        """Send a request; it is answered once, or the link fails it. This raises nothing."""
        if self._killed is not None:
            request.answered(request, None, None, self._killed)
            return
        self.unanswered[request.number] = request
        try:
            self.outbox.post(request)
        except Exception as error:
            # Such as no memory. Nobody knows how much of it is on its way: send all again.
            log.exception("a request to %s could not be handed over", self.name)
            self.abort(ConnectionLost(f"a frame could not be handed over: {error!r}"))
        if self.polling is not None and request.is_small:
            self.polling.expect()

    async def ask(self, message: Message, incarnation: int) -> AnyMessage:
        """Send a control message and wait for the answer.

        Raises:
            AsyncPSError: The other side answered with an error, or is gone.
        """
        return await self.question(message, incarnation)

    def question(
        self, message: Message, incarnation: int, priority: int = 1 << 30
    ) -> asyncio.Future[AnyMessage]:
        """Send a control message; the future is its answer, or the error that came.

        Args:
            message: The question.
            incarnation: Of this node.
            priority: Before all else unless told otherwise.
        """
        future: asyncio.Future[AnyMessage] = asyncio.get_running_loop().create_future()

        def answered(
            _request: Request, _header: Header | None, answer: AnyMessage | None,
            error: AsyncPSError | None,
        ) -> None:
            if future.done():
                return
            if error is not None:
                future.set_exception(error)
                future.exception()  # it may be that nobody waits any more
            elif answer is not None:
                future.set_result(answer)
            else:
                wrong = RemoteProtocolError(f"{self.name} gave no answer to a question")
                future.set_exception(wrong)
                future.exception()

        table = messages.encode(message)
        number = self.number()
        oldest = min(self.oldest, number)
        header = pack_header(
            Kind.CONTROL, 0, incarnation, 0, number, 0, 0, 0, len(table), 0, oldest, 0
        )
        size = len(header) + len(table)
        self.request(Request(number, priority, [header, table], size, answered))
        return future

    def tell(self, message: Message, incarnation: int, request: int = 0) -> None:
        """Send a control message that has no answer and may be lost with the connection."""
        if self.connection is not None and self.connection.ready:
            frame = control_frame(message, request, incarnation)
            self.connection.send([frame], len(frame))

    def fail(self, error: AsyncPSError) -> None:
        """Answer every request with an error, for nobody else will."""
        failed = list(self.unanswered.values())
        self.unanswered.clear()
        self.outbox.detach()
        if self.connection is not None and self.connection.ready:
            self.outbox.attach(self.connection)
        for request in failed:
            request.answered(request, None, None, error)

    # ---- the connection ----

    @property
    def sent_bytes(self) -> int:
        """Bytes handed over on all connections so far."""
        return self._sent_before + (self.connection.sent if self.connection else 0)

    @property
    def moved_bytes(self) -> int:
        """Bytes that came, and that the kernel took, on all connections so far."""
        connection = self.connection
        there = 0 if connection is None else connection.lying_bytes - connection.pending_bytes
        return self.sent_bytes + self.received_bytes + there

    @property
    def received_bytes(self) -> int:
        """Bytes that came on all connections so far."""
        return self._received_before + (self.connection.received if self.connection else 0)

    async def wait_connected(self) -> Connection:
        """Start, and wait for the first connection.

        Raises:
            HandshakeError: The other side does not want us.
            ClosedError: The link was closed.
        """
        self.start()
        while self.connection is None:
            if self._closing:
                raise self._refused or ClosedError(f"the link to {self.name} is closed")
            self._up = asyncio.get_running_loop().create_future()
            await self._up
        return self.connection

    def start(self) -> None:
        """Connect, and stay connected until closed."""
        if not self._trying and not self._closing:
            self._trying = True
            self._spawn(self._come_back(), f"connect to {self.name}")

    def expect_close(self) -> None:
        """The other side is about to close, and that is the end."""
        self._closing = True

    def close(self) -> None:
        """Close for good once everything handed over is written."""
        self._closing = True
        if self.connection is not None:
            self.connection.close()

    def kill(self, error: AsyncPSError) -> None:
        """Close for good at once and answer every request with an error.

        Nothing is read into or written from anybody's memory after this.
        """
        self._closing = True
        self._killed = error
        if self.connection is not None:
            self.connection.abort(error)
        self.fail(error)
        for waiting in (self._attempt, self._up):
            _resolve(waiting)

    def abort(self, error: AsyncPSError) -> None:
        """Cut the connection; it comes back by itself."""
        if self.connection is not None:
            self.connection.abort(error)

    async def _come_back(self) -> None:
        try:
            if self._pause > _FIRST_PAUSE_S:
                await self._rest()
            while not self._closing:
                loop = asyncio.get_running_loop()
                self._attempt = loop.create_future()
                connection: Connection | None = None
                try:
                    async with asyncio.timeout(self._handshake_s):
                        connection = await self._connect(self)
                        await self._attempt
                    if self.connection is not None or self._closing:
                        return  # else it is gone again already
                except HandshakeError as error:
                    self._closing = True
                    self._refused = error
                    self._on_refused(error)
                    return
                except AsyncPSError as error:
                    self._on_down(error)
                except TimeoutError:
                    self._on_down(ConnectionLost(
                        f"{self.name} did not answer within {self._handshake_s:g} s"
                    ))
                finally:
                    if connection is not None and connection is not self.connection:
                        connection.abort()
                await self._rest()
        finally:
            self._trying = False
            self._attempt = None
            if self._closing:
                _resolve(self._up)

    async def _rest(self) -> None:
        pause = min(self._pause, _LONGEST_PAUSE_S)
        self._pause = pause * 2
        await asyncio.sleep(random.uniform(0, pause))  # noqa: S311 - jitter, no secret

    def connection_ready(self, connection: Connection) -> Link:
        """Send the greeting, then everything that is unanswered: what was sent, in its old order.

        Raises:
            ClosedError: The link was closed meanwhile.
        """
        if self._closing:
            raise ClosedError(f"the link to {self.name} is closed")
        self.connection = connection
        self._ready_at = asyncio.get_running_loop().time()
        if greeting := self._greet():
            connection.send([greeting], len(greeting))
        self.outbox.detach()
        for request in self.unanswered.values():
            if request.sent:
                self.outbox.post_again(request)
            else:
                self.outbox.post(request)
        self.outbox.attach(connection)
        for waiting in (self._attempt, self._up):
            _resolve(waiting)
        return self

    def connection_closed(self, connection: Connection, error: AsyncPSError) -> None:
        """Come back, unless this is the end."""
        self._sent_before += connection.sent
        self._received_before += connection.received
        if connection is self.connection:
            self.connection = None
            self.outbox.detach()
            if not self._closing:
                # One that ended as soon as it was there is no success: go on slowing down.
                lived_s = asyncio.get_running_loop().time() - self._ready_at
                self._pause = _FIRST_PAUSE_S if lived_s > _LONGEST_PAUSE_S else self._pause * 2
                self._on_down(error)
                self.start()
        elif self._attempt is not None and not self._attempt.done():
            self._attempt.set_exception(
                error if isinstance(error, HandshakeError) else ConnectionLost(str(error))
            )
            self._attempt.exception()  # seen, should nobody wait for it any more

    # ---- answers ----

    def begin(self, header: Header, table: memoryview) -> memoryview | None:
        """Name the place of an answer's payload."""
        if header.kind != Kind.DATA:
            raise RemoteProtocolError("a payload where none belongs", got=header.kind)
        request = self.unanswered.get(header.request)
        if request is None:
            return None
        if request.place is None:
            # Its memory was taken back; that the answer came counts all the same.
            del self.unanswered[header.request]
            request.answered(request, header, None, None)
            return None
        if request.room is not None:
            request.place = request.room(header.payload_bytes)
        if len(request.place) != header.payload_bytes:
            raise RemoteProtocolError("an answer of another size", expected=len(request.place),
                                      got=header.payload_bytes)
        return request.place

    def finish(self, header: Header, table: memoryview) -> None:
        """Take an answer or a message."""
        kind = header.kind
        if kind == Kind.HEARTBEAT:
            return
        message: AnyMessage | None = None
        error: AsyncPSError | None = None
        if kind == Kind.CONTROL or kind == Kind.ERROR:
            message = messages.decode(table)
            if isinstance(message, messages.ErrorInfo):
                error = messages.error_from_wire(message)
        elif kind != Kind.DATA and kind != Kind.ACK:
            raise RemoteProtocolError("no answer", expected="ACK, DATA, ERROR or CONTROL", got=kind)
        if header.request == 0 or isinstance(message, messages.Install | messages.Attendance):
            if message is not None:
                self._on_message(message, header.request)
            return
        request = self.unanswered.get(header.request)
        if request is None:
            if isinstance(message, messages.ErrorInfo):
                self._on_message(message, header.request)  # it may be about the greeting
            return
        place = request.place
        if place is not None and error is None and len(place) != header.payload_bytes:
            raise RemoteProtocolError("an answer of another size", expected=len(place),
                                      got=header.payload_bytes)
        del self.unanswered[header.request]
        if self.polling is not None and request.is_small:
            self.polling.came()
        request.answered(request, header, message, error)


def _resolve(waiting: asyncio.Future[None] | None) -> None:
    if waiting is not None and not waiting.done():
        waiting.set_result(None)
