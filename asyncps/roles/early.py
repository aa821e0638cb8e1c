"""Chunks of calls that all ranks have made, as their sender knows and we do not yet.

The last rank's word is on its way to us over another connection. One chunk of each sender waits
here meanwhile, and what comes behind it in the kernel.
"""

from __future__ import annotations

from asyncps.protocol.frames import Header
from asyncps.roles.peer import Peer
from asyncps.tensor.pool import Bytes, aligned_bytes


class Early:
    """What waits, by the number of its call."""

    def __init__(self) -> None:
        self._rooms: dict[int, Bytes] = {}  # by rank: of the chunk that is under way
        self._waiting: dict[int, list[tuple[Peer, Header, Bytes]]] = {}

    def room(self, rank: int, header: Header) -> memoryview:
        """Name the place of a chunk."""
        self._rooms[rank] = aligned_bytes(header.payload_bytes)
        return self._rooms[rank].data

    def done(self, rank: int) -> Bytes | None:
        """A chunk of a sender is there; return it if it is one that has its place here."""
        return self._rooms.pop(rank, None)

    def keep(self, peer: Peer, header: Header, buffer: Bytes) -> None:
        """Its call has not begun: nothing more of its sender is read until then."""
        self._waiting.setdefault(header.request, []).append((peer, header, buffer))
        peer.pause()

    def cut(self, rank: int) -> None:
        """What a sender had begun will come again."""
        self._rooms.pop(rank, None)

    def take(self, number: int) -> list[tuple[Peer, Header, Bytes]]:
        """A call begins: return what waited for it, and read on."""
        found = self._waiting.pop(number, [])
        for peer, _, _ in found:
            peer.resume()
        return found
