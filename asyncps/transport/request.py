"""A request that waits for its answer, and whole frames of control."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from asyncps.errors import AsyncPSError
from asyncps.protocol import messages
from asyncps.protocol.frames import Header, Kind
from asyncps.protocol.messages import AnyMessage, Message
from asyncps.transport.outbox import Outgoing
from asyncps.transport.polling import SMALL_BYTES
from asyncps_ext import wire

pack_header: Callable[..., bytes] = wire.pack_header


class Request(Outgoing):
    """A request that waits for its answer.

    Attributes:
        number: Its number, unique and increasing on its link.
        place: Where the payload of the answer goes; None drops it.
        room: Gives the place, by the payload's size, where that is known only then; `place` is
            empty before, and None drops it all the same.
        answered: Called once with (header, message, error) of the answer.
        since: When it was made, loop time.
        unit: What it speaks of, None for a question.
        owner: The operation that it is part of.
        expired: Its caller was told that it took too long; only the clocks still care.
    """

    __slots__ = ("answered", "expired", "number", "owner", "place", "room", "since", "unit")

    def __init__(
        self,
        number: int,
        priority: int,
        parts: list[bytes | memoryview],
        size: int,
        answered: Callable[[Request, Header | None, AnyMessage | None, AsyncPSError | None], None],
        place: memoryview | None = None,
        unit: Any = None,
        owner: Any = None,
    ) -> None:
        super().__init__(priority, parts, size)
        self.number = number
        self.place = place
        self.answered = answered
        self.room: Callable[[int], memoryview] | None = None
        self.since = 0.0
        self.unit = unit
        self.owner = owner
        self.expired = False

    @property
    def is_small(self) -> bool:
        """Whether it speaks of a small value, whose answer may be worth looking for."""
        if self.unit is None or self.size > SMALL_BYTES:
            return False
        return self.place is None or len(self.place) <= SMALL_BYTES


def control_frame(message: Message, request: int, incarnation: int, acked: int = 0) -> bytes:
    """Return a whole control frame."""
    table = messages.encode(message)
    return pack_header(
        Kind.CONTROL, 0, incarnation, 0, request, 0, 0, 0, len(table), 0, acked, 0
    ) + table


def heartbeat_frame(incarnation: int) -> bytes:
    """Return a frame that says no more than: I live."""
    return pack_header(Kind.HEARTBEAT, 0, incarnation, 0, 0, 0, 0, 0, 0, 0, 0, 0)
