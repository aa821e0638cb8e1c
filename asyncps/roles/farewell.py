"""How a rank takes its leave of the others: what was sent arrives; if it has failed, its reason.

Who has failed sends a last frame, FAILED, and waits for that of the other side, which then fails
too. Where it cannot be sent, since a frame is half written from memory that is given back, or where
the connection was cut, a new connection brings it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping

from msgspec.structs import replace

from asyncps.errors import AsyncPSError, DeadlineExceeded, RemoteProtocolError, WorkerLost
from asyncps.protocol import messages
from asyncps.protocol.frames import FAILED
from asyncps.roles.peer import Peer
from asyncps.transport.connection import Connection
from asyncps_ext import wire

_MOST_TEXT = 4096  # characters of a reason that travel
_MOST_BYTES = 256 << 10


class Farewell:
    """What one rank still has to say, and to whom. Runs on the loop.

    Args:
        me: This rank.
        peers: All others.

    Attributes:
        on_failure: Called when this rank has failed.
    """

    def __init__(self, me: int, peers: Mapping[int, Peer]) -> None:
        self._me = me
        self._peers = peers
        self._changed: asyncio.Event | None = None
        self._word = b""  # once this rank has failed
        self.on_failure: Callable[[], None] = lambda: None

    def note(self) -> None:
        """Something has ended, or arrived: whoever waits looks again."""
        if self._changed is not None:
            self._changed.set()

    async def until(self, is_so: Callable[[], bool], limit_s: float) -> None:
        """Wait until something is so, or it is too late."""
        changed = self._changed = asyncio.Event()
        for peer in self._peers.values():
            peer.on_arrived = changed.set
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(limit_s):
                while not is_so():
                    await changed.wait()
                    changed.clear()

    async def all_arrived(self, limit_s: float) -> None:
        """Wait until all that was sent has arrived, or it is too late."""
        await self.until(lambda: all(peer.is_quiet for peer in self._peers.values()), limit_s)

    # ---- of one that has failed ----

    def tell(self, error: AsyncPSError, by: bytes) -> None:
        """Say to all why this rank takes part no more.

        Args:
            error: Why.
            by: The table to say it by, if it is not that: such as that of a rank that has failed
                before this one.
        """
        table = by or last_table(self._me, error)
        self._word = wire.pack_header(FAILED, 0, 0, 0, 0, 0, 0, 0, len(table), 0, 0, 0) + table
        for peer in self._peers.values():
            if isinstance(error, WorkerLost) and peer.rank == error.rank:
                peer.knows = True  # nobody is there
                if peer.connection is not None:
                    peer.connection.abort()
            else:
                peer.end(self._word)
        self.on_failure()

    def tell_again(self, peer: Peer, connection: Connection) -> None:
        """Say it over a new connection to one who was cut off, and so has not heard it."""
        before, peer.connection = peer.connection, connection
        if before is not None:
            before.abort()
        peer.end(self._word)

    async def all_told(self, limit_s: float) -> None:
        """Wait until all know it and have ended their connections, or it is too late."""
        await self.until(
            lambda: all(peer.parted or (peer.is_told and peer.connection is None)
                        for peer in self._peers.values()), limit_s)

    def cut(self) -> None:
        """End the connections to those who do not listen."""
        for peer in self._peers.values():
            if peer.connection is not None:
                peer.connection.abort()


def last_table(me: int, error: AsyncPSError) -> bytes:
    """Return the table of a rank's last frame."""
    info = messages.error_to_wire(error)
    text = f"rank {me} has given up: {info.message}"
    return messages.encode(messages.ErrorInfo(
        info.code, text[:_MOST_TEXT], info.key, info.rank, info.host,
        *(None if each is None else each[:_MOST_TEXT] for each in (info.expected, info.got))))


def heard(rank: int, table: bytes, here: str) -> AsyncPSError:
    """Return what a rank has failed of.

    Args:
        rank: Its.
        table: Of its last frame.
        here: Whom this rank waits for: of a deadline each sees the half.

    Raises:
        RemoteProtocolError: The frame does not say it.
    """
    info = messages.decode(table) if len(table) <= _MOST_BYTES else None
    if not isinstance(info, messages.ErrorInfo):
        raise RemoteProtocolError("a last word that says no reason", rank=rank)
    error = messages.error_from_wire(info)
    if isinstance(error, DeadlineExceeded):
        error = messages.error_from_wire(replace(info, message=info.message + here))
    return error
