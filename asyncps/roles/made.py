"""Groups of collective calls: those that this rank makes, and those that come, of some ranks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from asyncps.errors import AsyncPSError, ClusterError
from asyncps.protocol.collective import MAX_NAME as MAX_NAME
from asyncps.protocol.collective import Group as Group
from asyncps.protocol.collective import Op as Op
from asyncps.protocol.collective import Verb as Verb
from asyncps.protocol.collective import encode
from asyncps.roles.peer import CALL_BYTES, Peer
from asyncps.state.matching import Matching
from asyncps.tensor.dtypes import Array
from asyncps.tensor.pool import POOLED_BYTES, Bytes, Pool


class Made:
    """A group of calls that this rank makes.

    Args:
        group: What is called.
        arrays: Of each call, contiguous; read, and in the verbs that work in place written, until
            the call has ended.
        payload: All of them behind each other if they are to travel at once; it is this object's.
        ended: Called with (index, result, error) at the end of each call, once; the result is the
            bytes of a new array (of an all-to-all with the rows of each rank), or None where the
            array is it.
        together: Called instead with the bytes of all results of a fused group.
    """

    __slots__ = (
        "_holds", "arrays", "ended", "group", "number", "open", "payload", "since", "table",
        "together",
    )

    def __init__(
        self, group: Group, arrays: Sequence[Array], payload: Bytes | None,
        ended: Callable[[int, Any, AsyncPSError | None], None],
        together: Callable[[Bytes], None] | None = None,
    ) -> None:
        self.group = group
        self.table = encode(group)
        self.arrays = arrays
        self.payload = payload
        self.ended = ended
        self.together = together
        self.number = 0  # of the set of ranks
        self.open = set(range(len(group.names)))
        self.since = 0.0
        self._holds = 1  # who still looks at the payload: this rank, and what is on its way

    def sent(self, count: int) -> None:
        """So many frames of it are on their way."""
        self._holds += count

    def let_go(self, pool: Pool) -> None:
        """One of those who look at the payload does so no more."""
        self._holds -= 1
        if not self._holds and self.payload is not None:
            payload, self.payload = self.payload, None
            give_back(payload, pool)

    def array(self, at: int) -> Bytes:
        """Return the bytes of an array."""
        found: Bytes = self.arrays[at].reshape(-1).view(np.uint8)
        return found


class Came:
    """A group of calls of another rank; `payload` is None if its arrays did not come with it."""

    __slots__ = ("left", "payload", "peer", "size")

    def __init__(self, peer: Peer, payload: Bytes | None, table_bytes: int) -> None:
        self.peer = peer
        self.payload = payload
        self.size = table_bytes + CALL_BYTES + (0 if payload is None else payload.nbytes)
        self.left = -1

    def let_go(self, count: int, of: int, pool: Pool) -> None:
        """So many of its calls have been taken in."""
        self.left = (of if self.left < 0 else self.left) - count
        if self.left:
            return
        self.peer.ahead_bytes -= self.size
        if self.payload is not None:
            payload, self.payload = self.payload, None
            give_back(payload, pool)


class Ranks:
    """Some ranks that make calls together.

    Args:
        number: Of this set of ranks, the same at all.
        ranks: Who.
        me: This rank.
    """

    def __init__(self, number: int, ranks: Sequence[int], me: int) -> None:
        self.number = number
        self.matching = Matching(ranks, me)
        self.steps = 0  # calls that this rank has made
        self.joining: asyncio.Future[int] | None = None
        self.left: set[int] = set()  # who has left it, or the job

    def leaver(self, peers: Mapping[int, Peer]) -> ClusterError | None:
        """Return what those hear who call although one of these ranks has left, if one has."""
        for rank in self.matching.ranks:
            if rank in self.left or (rank in peers and peers[rank].parted):
                return parted(rank)
        return None


def parted(rank: int) -> ClusterError:
    """Return what those hear who call a rank that has left."""
    return ClusterError(f"rank {rank} has left while others call", rank=rank)


def without(group: Group, ranks: Sequence[int], called: Container[int]) -> ClusterError | None:
    """Return why calls cannot be made by those who have not joined; None if they can.

    Args:
        group: The calls.
        ranks: All that take part.
        called: Those that have called: all others have joined.
    """
    gone = [rank for rank in ranks if rank not in called]
    if group.verb == Verb.BROADCAST and group.root in gone:
        return ClusterError(f"rank {group.root}, whose array is broadcast, has joined",
                            rank=group.root)
    if group.verb == Verb.ALL_TO_ALL and gone:
        return ClusterError(f"rank {gone[0]}, which is to get rows, has joined", rank=gone[0])
    return None


def whom(sets: Iterable[Ranks], running: Iterable[list[int]]) -> str:
    """Name the calls that wait, and for whom; of those that all have made, for whose chunks
    or word that ours have come.
    """
    texts = []
    for ranks in sets:
        for name, lacking in list(ranks.matching.missing().items())[:4]:
            if lacking:
                texts.append(f"{name or 'a call without a name'} lacks ranks {lacking}")
    texts += [f"a call that all have made lacks ranks {lacking}" for lacking in running if lacking]
    return "; ".join(texts[:8]) or "all ranks have called, and chunks do not come"


def give_back(buffer: Bytes, pool: Pool) -> None:
    """Keep memory that is worth keeping."""
    if buffer.nbytes >= POOLED_BYTES:
        pool.give(buffer)


def taken(size: int, pool: Pool) -> Bytes:
    """Return memory for `give_back`."""
    return pool.take(size) if size >= POOLED_BYTES else np.empty(size, np.uint8)
