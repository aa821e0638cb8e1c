"""Another rank of a group: one connection, frames both ways, and what has not arrived yet.

Each side counts the frames that have come and says so in every frame of its own. What has not
arrived is kept, and sent again over a new connection when one was cut: the receiver says first how
much it has.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from asyncps.errors import RemoteProtocolError
from asyncps.protocol.frames import (
    COLLECT,
    COUNT,
    FAILED,
    HEADER_SIZE,
    HEARTBEAT,
    JOINED,
    PART,
    PARTED,
    Header,
)
from asyncps.tensor.pool import Bytes
from asyncps.transport.connection import Connection
from asyncps.transport.outbox import Outbox, Outgoing
from asyncps_ext import wire

if TYPE_CHECKING:
    from asyncps.roles.collecting import Collecting

pack_header: Callable[..., bytes] = wire.pack_header

_MOST_WORDS = 3  # who has ended so many connections without an answer is told no more
_UNTOLD = 8  # frames that came and that the peer was not told of, at most

# What a peer may have sent of calls that this rank has not made: senders stay below half of it.
MAX_AHEAD_BYTES = 64 << 20

CALL_BYTES = 1024  # what a group of calls takes beside its table and its arrays, about

# Of what a rank of the same machine has not read, where ranks wait for processors: what the kernel
# copies out is then still in the caches (0.85 of the time, four ranks on two). Where each has its
# own, a rank would wait instead (1.15 with two).
CROWDED_BYTES = 256 << 10

Arrived = Callable[[], None]


class Peer:
    """One other rank.

    Args:
        rank: Its.
        owner: Takes what comes.

    Attributes:
        connection: The present one.
        ahead_bytes: What it has sent of calls that are not matched.
        near: It is on this machine.
        parted: It has said that it leaves.
        knows: It has failed too, or is gone: why this rank has failed needs not be said to it.
        words: How often that was said.
        cuts: How often its connection was gone.
        on_arrived: Called when all that was sent has arrived or cannot, if somebody waits for it.
    """

    def __init__(self, rank: int, owner: Collecting) -> None:
        self.rank = rank
        self.connection: Connection | None = None
        self.ahead_bytes = 0
        self.near = False
        self.parted = False
        self.knows = False
        self.words = 0
        self.cuts = 0
        self.on_arrived: Arrived | None = None
        self._owner = owner
        self._outbox = Outbox()
        self._kept: deque[tuple[Outgoing, Arrived | None]] = deque()
        self._arrived = 0  # how many of ours have, in all
        self._received = 0
        self._told = 0
        self._is_live = False  # the other side has said what it has
        self._is_crowded = False
        self._table = b""
        self._buffer: Bytes | None = None

    # ---- out ----

    def send(
        self, kind: int, group: int, request: int, unit: int = 0, flags: int = 0,
        table: bytes = b"", payload: memoryview | None = None, then: Arrived | None = None,
    ) -> None:
        """Send a frame, once it is its turn; `payload` stays as it is until `then` is called.

        Args:
            kind, group, request, unit, flags, table, payload: The frame.
            then: Called when it has arrived.
        """
        size = 0 if payload is None else len(payload)
        header = pack_header(
            kind, flags, 0, group, request, unit, 0, 0, len(table), size, self._received, 0)
        parts: list[bytes | memoryview] = [header]
        if table:
            parts.append(table)
        if payload is not None and size:
            parts.append(payload)
        frame = Outgoing(0, parts, HEADER_SIZE + len(table) + size)
        self._kept.append((frame, then))
        if self._is_live:
            self._told = self._received
            self._outbox.post(frame)

    def tell(self) -> None:
        """Say what has come, if that was not said."""
        if self._is_live and self._told < self._received and self.connection is not None:
            self._told = self._received
            self._say_count()

    def _say_count(self) -> None:
        frame = pack_header(COUNT, 0, 0, 0, 0, 0, 0, 0, 0, 0, self._received, 0)
        self._outbox.post(Outgoing(0, [frame], len(frame)))

    def forget(self) -> None:
        """It has left for good: what was sent to it has arrived, or is needed no more."""
        while self._kept:
            self._arrived += 1
            then = self._kept.popleft()[1]
            if then is not None:
                then()

    @property
    def has_all(self) -> bool:
        """Whether all that was sent has arrived."""
        return not self._kept

    @property
    def is_quiet(self) -> bool:
        """Whether nothing is on its way."""
        return self.has_all or self.connection is None

    # ---- the connection ----

    def attach(self, connection: Connection) -> None:
        """Use a connection from now on: say what has come, and wait for the same."""
        before, self.connection = self.connection, connection
        if self._is_crowded:
            connection.bound_unread(CROWDED_BYTES)
        if before is not None:
            before.abort()
        self._is_live = False
        self._outbox.detach()
        self._outbox.attach(connection)
        self._told = self._received
        self._say_count()

    def crowd(self) -> None:
        """It is on this machine, which has more ranks than processors."""
        self._is_crowded = True
        if self.connection is not None:
            self.connection.bound_unread(CROWDED_BYTES)

    def detach(self) -> None:
        """The connection is gone."""
        self.connection = None
        self.cuts += 1
        self._is_live = False
        self._outbox.detach()
        if self._buffer is not None:  # it will come again
            self.ahead_bytes -= self._buffer.nbytes
            self._buffer = None
        self._owner.cut(self.rank)
        if self.on_arrived is not None:
            self.on_arrived()

    def end(self, word: bytes) -> None:
        """This rank has failed: say a last word, if nothing is half written, and nothing else."""
        if self.connection is not None:
            self._is_live = False
            self._outbox.detach()
            self.words += self.connection.last_word(word)

    @property
    def is_told(self) -> bool:
        """Whether it knows that this rank has failed, or does not want to."""
        return self.knows or self.words >= _MOST_WORDS

    def _resume(self) -> None:
        self._is_live = True
        for frame, _ in self._kept:
            self._outbox.post(frame)

    def pause(self) -> None:
        """Let it wait."""
        if self.connection is not None:
            self.connection.pause_reading()

    def resume(self) -> None:
        """Read on."""
        if self.connection is not None:
            self.connection.resume_reading()

    # ---- in ----

    def begin(self, header: Header, table: memoryview) -> memoryview | None:
        """Name the place of a payload."""
        if self._owner.failure is not None:  # all memory is given back
            return None
        self._heard(header)
        if header.kind == COLLECT:
            self._is_ahead(header.payload_bytes)
            self._table = bytes(table)
            self._buffer = self._owner.room(header.payload_bytes)
            return self._buffer.data
        if header.kind != PART:
            raise RemoteProtocolError("a payload where none belongs", got=header.kind)
        place = self._owner.place(self.rank, header)
        if place is None:  # of a call that has failed here
            self._came()
        return place

    def finish(self, header: Header, table: memoryview) -> None:
        """Take a frame."""
        kind = header.kind
        if self._owner.failure is not None:
            if kind == FAILED:
                self.knows = True
                if self.connection is not None:
                    self.connection.abort()
            return
        if kind == HEARTBEAT:
            return
        if not header.payload_bytes:
            self._heard(header)
        if kind == COUNT:
            if not self._is_live:
                self._resume()
            return
        if kind == FAILED:
            self._owner.failed(self.rank, bytes(table))
            self.knows = True
            return
        self._came()
        if kind == PART:
            if not header.payload_bytes:
                raise RemoteProtocolError("a chunk without bytes")
            self._owner.part(self.rank, header)
        elif kind == COLLECT:
            buffer, self._buffer = self._buffer, None
            named = self._table if header.payload_bytes else bytes(table)
            self._is_ahead(len(named) + CALL_BYTES)
            self._owner.called(self.rank, header, named, buffer)
        elif kind == JOINED:
            self._owner.joined(self.rank, header)
        elif kind == PARTED:
            if header.store:
                self._owner.left(self.rank, header)
                return
            self.parted = True
            self._owner.parted(self.rank)
        else:
            raise RemoteProtocolError("a frame that a rank does not take", got=kind)

    def _is_ahead(self, size: int) -> None:
        """It takes so much of our memory until we have called the same."""
        self.ahead_bytes += size
        if self.ahead_bytes > MAX_AHEAD_BYTES:
            raise RemoteProtocolError(
                f"rank {self.rank} is further ahead than it may be",
                expected=f"at most {MAX_AHEAD_BYTES} bytes", got=self.ahead_bytes)

    def _came(self) -> None:
        self._received += 1
        if self._received - self._told >= _UNTOLD:
            self.tell()

    def _heard(self, header: Header) -> None:
        """Let go of what the other side has."""
        count = header.acked
        if count < self._arrived:
            return  # said before the last one, and sent again
        if count - self._arrived > len(self._kept):
            raise RemoteProtocolError("more frames have come than were sent", got=count,
                                      expected=f"at most {self._arrived + len(self._kept)}")
        while self._arrived < count:
            self._arrived += 1
            then = self._kept.popleft()[1]
            if then is not None:
                then()
        if not self._kept and self.on_arrived is not None:
            self.on_arrived()

