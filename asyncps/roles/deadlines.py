"""How long a worker waits: for a server, and for the contributions of others.

An answer that a server owes by itself (of a push, an init, an assign) is due after `answer_s`. A
round may take until `round_s`, since others may compile or evaluate; but the server must say that
it still lives when asked whom it waits for.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from asyncps.config import Config
from asyncps.errors import AsyncPSError, DeadlineExceeded, LocalProtocolError
from asyncps.protocol import messages
from asyncps.protocol.frames import ASSIGN, INIT, PUSH, Header
from asyncps.roles.node import LATE_S
from asyncps.transport.link import Link
from asyncps.transport.request import Request
from asyncps_ext import wire

log = logging.getLogger(__name__)

_OWED = frozenset({PUSH, INIT, ASSIGN})


class Deadlines:
    """Watches everything that is unanswered on the link to one server.

    Args:
        config: The deadlines.
        link: The server.
        ask: Asks it a question, within `answer_s`.
        done: Tells whether there is nothing to watch any more.
    """

    def __init__(
        self, config: Config, link: Link,
        ask: Callable[[Link, messages.Message], Awaitable[messages.AnyMessage]],
        done: Callable[[], bool],
    ) -> None:
        self._config = config
        self._link = link
        self._ask = ask
        self._done = done
        self._soonest_s = min(config.answer_s, config.round_s, config.round_warning_s)
        self._asked = -1e9
        self._moved = -1  # bytes of the link, as seen last
        self._moved_at = 0.0

    async def watch(self) -> None:
        """Look a few times a second at most, until done."""
        loop = asyncio.get_running_loop()
        period = min(1.0, self._soonest_s / 4)
        last = self._moved_at = loop.time()
        while not self._done():
            await asyncio.sleep(period)
            now = loop.time()
            late, last = now - last > period + LATE_S, now
            moved = self._link.moved_bytes
            if moved != self._moved:
                self._moved, self._moved_at = moved, now
            if late:
                continue  # we were away ourselves: read the sockets before judging others
            overdue = self._overdue(now)
            if overdue:
                await self._judge(overdue, now)

    def _overdue(self, now: float) -> list[Request]:
        return [
            request for request in self._link.unanswered.values()
            if request.unit is not None and not request.expired
            and now - request.since >= self._soonest_s
        ]

    async def _judge(self, overdue: list[Request], now: float) -> None:
        link, answer_s, round_s = self._link, self._config.answer_s, self._config.round_s
        # While bytes move, what waits in the queue is on its way: a large push takes its time.
        silent = now - self._moved_at >= answer_s
        waiting = []
        for request in overdue:
            kind = header_of(request).kind
            if kind not in _OWED or kind in request.unit.late:
                waiting.append(request)
            elif silent and now - request.since >= answer_s:
                expire(link, request, self._silent(link, request))
        if not waiting or now - self._asked < self._soonest_s:
            return
        self._asked = now
        first = waiting[0]
        header = header_of(first)
        question = messages.Missing(header.store, header.unit, [], header.clock)
        try:
            answer = await self._ask(link, question)
        except DeadlineExceeded:
            for request in waiting:
                if now - request.since >= answer_s:
                    expire(link, request, self._silent(link, request))
            return
        except AsyncPSError:
            return  # the cluster failed, and everybody hears of that
        whom = _whom(answer)
        age = now - first.since
        if age >= self._config.round_warning_s:
            log.warning("%s waits for %s: key %r, clock %d, for %.0f s", link.name, whom,
                        first.unit.row_keys[0], header.clock, age)
        for request in waiting:
            if now - request.since >= round_s:
                expire(link, request, DeadlineExceeded(
                    f"round {header_of(request).clock} was not complete within {round_s:g} s; "
                    f"{link.name} waits for {whom}; what was pushed stays counted",
                    key=request.unit.row_keys[0],
                ))

    def _silent(self, link: Link, request: Request) -> DeadlineExceeded:
        return DeadlineExceeded(
            f"{link.name} did not answer within {self._config.answer_s:g} s "
            f"(clock {header_of(request).clock})", key=request.unit.row_keys[0],
        )


def _whom(answer: messages.AnyMessage) -> str:
    """Say what a round waits for."""
    if not isinstance(answer, messages.MissingRanks):
        return "ranks []"
    found = [f"ranks {answer.ranks}"] if answer.ranks or not answer.at_work else []
    if answer.at_work:
        found.append(f"its optimizer {answer.at_work}, which is at work")
    return " and for ".join(found)


def expire(link: Link, request: Request, error: AsyncPSError) -> None:
    """Tell the caller that it took too long. The clocks have moved on: the request stays."""
    if request.expired or request.number not in link.unanswered:
        return
    request.expired = True
    if take_back(link, request, request.owner.lent):
        cut(link)
    request.owner.part_done(error)


def take_back(link: Link, request: Request, lent: bool) -> bool:
    """Let go of the caller's memory in one request; tell whether the connection must be cut."""
    if request.number not in link.unanswered:
        return False
    connection = link.connection
    reader = connection.reader if connection is not None else None
    arriving = reader.current if reader is not None else None
    if reader is not None and arriving is not None and arriving.request == request.number:
        reader.abandon_payload()
        request.place = None
        del link.unanswered[request.number]
        request.answered(request, arriving, None, None)
        return False
    request.place = None
    if not lent:
        return False
    request.parts = [bytes(part) for part in request.parts]
    return bool(request.sent and connection is not None and connection.pending_bytes)


def cut(link: Link) -> None:
    """The loop may still hold views of memory that went back: send again from the copies."""
    link.abort(LocalProtocolError("a caller took its memory back"))


def header_of(request: Request) -> Header:
    """Return the header that a request was sent with."""
    return Header._make(wire.parse_header(request.parts[0]))
