"""Bytes from one worker to another, through a server, some parcels at a time.

Parcel 0 has 8 bytes: how long the list of what follows is. Then comes the list, then the arrays
that it names, one behind the other; each begins a parcel, and all but their last are of full size.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from itertools import accumulate
from types import TracebackType
from typing import Any, NamedTuple, Self

import numpy as np

from asyncps.errors import CheckpointError, DeadlineExceeded
from asyncps.protocol import messages
from asyncps.protocol.frames import Kind
from asyncps.protocol.parcels import (
    MAX_PARCEL_BYTES,
    MAX_WAITING,
    KeptKey,
    decode_list,
    encode_list,
)
from asyncps.roles.client import Client
from asyncps.roles.fetching import answered, ask
from asyncps.roles.worker import Worker
from asyncps.tensor.pool import Bytes

ITEM = 4  # bytes of what is carried: float32
MAX_LIST_BYTES = 64 << 20

Fill = Callable[[int, memoryview], Awaitable[None]]  # let a view have the bytes from here on
Use = Callable[[int, memoryview], Awaitable[None]]  # these are the bytes from here on


class Part(NamedTuple):
    """Some bytes of one array: of which key, from where in it, how many, and where in what is
    carried; and whether it is the key's extra."""

    place: int
    begin: int
    size: int
    at: int
    is_extra: bool = False


class Stream:
    """Arrays one behind the other: of each key what was not sent, then its extra.

    Args:
        keys: What they are.
    """

    def __init__(self, keys: Sequence[KeptKey]) -> None:
        self._edges = [0, *accumulate(
            count * ITEM for each in keys for count in (each.elements, each.extra))]
        self.total = self._edges[-1]

    def parts(self, begin: int, size: int) -> Iterator[Part]:
        """Yield what of which array bytes [begin, begin + size) are."""
        for array in range(bisect_right(self._edges, begin) - 1, len(self._edges) - 1):
            low, high = self._edges[array], self._edges[array + 1]
            first, last = max(begin, low), min(begin + size, high)
            if first < last:
                yield Part(array // 2, first - low, last - first, first - begin, array % 2 == 1)
            if high >= begin + size:
                return


def parcels_of(total: int) -> Iterator[tuple[int, int]]:
    """Yield begin and size of each parcel that so many bytes are cut into."""
    for begin in range(0, total, MAX_PARCEL_BYTES):
        yield begin, min(MAX_PARCEL_BYTES, total - begin)


class Carrier:
    """This worker's side of one pair; `with` it: what is unanswered at the end is forgotten.

    Args:
        worker, client: Whose.
        other: The rank on the other side.
        course: The save or load that this is part of.
        leads: This worker works, and must not wait for ever; the other ends with its call.
    """

    def __init__(
        self, worker: Worker, client: Client, other: int, course: int, *, leads: bool
    ) -> None:
        self._client = client
        self._other = other
        self._course = course
        # Alike on both sides: it goes by who does not lead.
        rank = other if leads else worker.node.rank
        self._link = worker.links[rank % len(worker.links)]
        self._answer_s = worker.config.answer_s if leads else None
        self._next = 0  # number of a parcel
        self._arrived = 0  # all below have
        self._asked: list[int] = []  # numbers of requests, some of which may be unanswered

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for number in self._asked:
            self._link.unanswered.pop(number, None)

    async def give(self, keys: Sequence[KeptKey], fill: Fill) -> None:
        """Send a list, and the arrays that it names; return when the other side has them.

        Raises:
            AsyncPSError: It does not take them, or a server is gone.
        """
        told = encode_list(list(keys))
        if len(told) > MAX_LIST_BYTES:
            raise CheckpointError("too many keys with something that was not sent",
                                  expected=f"a list of {MAX_LIST_BYTES} bytes", got=len(told))
        waiting: deque[asyncio.Future[None]] = deque()

        async def offer(buffer: Bytes) -> None:
            while len(waiting) >= MAX_WAITING:
                await self._wait(waiting.popleft())
            waiting.append(self._offer(buffer))

        await offer(np.frombuffer(len(told).to_bytes(8, "little"), np.uint8))
        for begin, size in parcels_of(len(told)):
            await offer(np.frombuffer(told, np.uint8)[begin : begin + size])
        for begin, size in parcels_of(Stream(keys).total):
            buffer = np.empty(size, np.uint8)
            await fill(begin, buffer.data)
            await offer(buffer)
        while waiting:
            await self._wait(waiting.popleft())

    async def begin(self) -> list[KeptKey]:
        """Return the list that the other side sends.

        Raises:
            RemoteProtocolError: It is none.
            AsyncPSError: It does not come, or a server is gone.
        """
        head = bytearray(8)
        await self._collect([memoryview(head)])
        size = min(int.from_bytes(head, "little"), MAX_LIST_BYTES)
        told = memoryview(bytearray(size))
        await self._collect([told[begin : begin + part] for begin, part in parcels_of(size)])
        return decode_list(told)

    async def rest(self, keys: Sequence[KeptKey], use: Use) -> None:
        """Take the arrays, and say that all have arrived.

        Raises:
            AsyncPSError: They do not come, or a server is gone.
        """
        under_way: deque[tuple[asyncio.Future[None], int, Bytes]] = deque()

        async def finish_one() -> None:
            future, begin, buffer = under_way.popleft()
            await self._wait(future)
            self._arrived += 1
            await use(begin, buffer.data)

        for begin, size in parcels_of(Stream(keys).total):
            while len(under_way) >= MAX_WAITING:
                await finish_one()
            buffer = np.empty(size, np.uint8)
            under_way.append((self._ask_for(buffer.data), begin, buffer))
        while under_way:
            await finish_one()
        await self._wait(self._request(Kind.CONTROL, self._wanted(-1), None, None))

    async def _collect(self, places: Sequence[memoryview]) -> None:
        for place in places:
            await self._wait(self._ask_for(place))
            self._arrived += 1

    def _offer(self, payload: Bytes) -> asyncio.Future[None]:
        told = messages.Parcel(self._client.number, self._other, self._course, self._number())
        return self._request(Kind.RESTORE, told, payload.data, None)

    def _ask_for(self, place: memoryview) -> asyncio.Future[None]:
        return self._request(Kind.CONTROL, self._wanted(self._number()), None, place)

    def _wanted(self, number: int) -> messages.Collect:
        return messages.Collect(self._client.number, self._other, self._course, number,
                                self._arrived)

    def _number(self) -> int:
        self._next += 1
        return self._next - 1

    async def _wait(self, asking: asyncio.Future[Any]) -> None:
        if self._answer_s is None:
            await asyncio.wait({asking})
            asking.result()
            return
        try:
            await answered(self._link, asking, self._answer_s)
        except DeadlineExceeded:
            raise DeadlineExceeded(
                f"a worker did not hand over, or take, what was not sent within "
                f"{self._answer_s:g} s", rank=self._other) from None

    def _request(
        self, kind: int, message: messages.Parcel | messages.Collect, payload: memoryview | None,
        place: memoryview | None,
    ) -> asyncio.Future[None]:
        store = self._client.number if kind == Kind.RESTORE else 0
        number, future = ask(
            self._link, kind, store, 0, message, self._client.incarnation, payload, place
        )
        self._asked.append(number)
        return future
