"""Answers that are changes only, at a server: what of a chunk all workers hold, and what they lack.

The base is the value as workers have it. When a round's value is asked for the first time, the
difference to the base is encoded (its largest values, or all of them in few bits), and what arrives
of that is added to the base: a link, which has a number. Whoever holds the base before it is sent
the link alone, so all who have pulled the same round hold the same bits. What was left out is in
the next difference: this is the error feedback. Whoever holds no base, or too old a one, is sent
the whole of it; so is everybody where the difference is not finite, and no link is made.
"""

from __future__ import annotations

import struct
from collections import deque
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from asyncps.errors import ConfigError, RemoteProtocolError
from asyncps.protocol.frames import PULL, PUSHPULL, Flag, Header
from asyncps.roles import thinned
from asyncps.roles.unit import Unit, Waiter
from asyncps.tensor.codecs import (
    BY_NUMBER,
    HEAD_BYTES,
    Codec,
    Floats,
    made_of_change,
    parse_head,
)
from asyncps.tensor.pool import Bytes
from asyncps_ext.seeds import seed_of

if TYPE_CHECKING:
    from asyncps.roles.holdings import Holdings, Target

# A request's table ends with the head of a codec, its ratio or threshold, and the number held.
_AMOUNT = struct.Struct("<d")
_NUMBER = struct.Struct("<Q")
TAIL_BYTES = HEAD_BYTES + _AMOUNT.size + _NUMBER.size
# An answer begins with the number that it leads to, whether it is the whole, and how many links.
ANSWER = struct.Struct("<QII")
SIZE = struct.Struct("<Q")  # of each link, behind that
# Links that are kept for workers whose last pull was that many rounds ago, or is still on its way.
MAX_LINKS = 8
# Answers of one worker that are kept until it says that they have arrived. They differ by clock and
# by what it holds, which are a few of each; this is for who breaks the rules.
_MAX_GIVEN = 64


def tail_of(codec: Codec, elements: int, amount: float, number: int) -> bytes:
    """Return what the table of a request ends with; `number` is 0 without a base."""
    return codec.head(elements, 0) + _AMOUNT.pack(amount) + _NUMBER.pack(number)


def cut(header: Header, table: memoryview) -> tuple[memoryview, memoryview | None]:
    """Return the table of a frame without that tail, and the tail of one with the flag DELTA.

    Raises:
        RemoteProtocolError: It is too short.
    """
    if not header.flags & Flag.DELTA:
        return table, None
    begin = len(table) - TAIL_BYTES
    if begin < 0:
        raise RemoteProtocolError("a wish for changes without its words", got=len(table),
                                  expected=f"at least {TAIL_BYTES} bytes")
    return table[:begin], table[begin:]


def wished(
    keeper: Holdings, header: Header, target: Target, tail: memoryview | None,
    connection: object = None,
) -> thinned.Half | Delta | None:
    """Return how the answer of a frame is to be; None: as the values are.

    Args:
        keeper: The store.
        header, target: The frame, and what it speaks of.
        tail: As `cut` returns it.
        connection: Over which it came.

    Raises:
        RemoteProtocolError: That cannot be.
    """
    if tail is None:
        return thinned.wished(keeper, header, target)
    if header.kind not in (PULL, PUSHPULL) or header.flags & thinned.HALVES:
        raise RemoteProtocolError("a wish for changes where none belongs",
                                  got=(header.kind, header.flags))
    unit = keeper.units[header.unit]
    if type(unit) is not Unit or unit.dtype.name != "float32":
        raise RemoteProtocolError("changes of what is no chunk of float32 in a store with rounds",
                                  got=unit.dtype.name)
    words = bytes(tail[:-_NUMBER.size])
    (number,) = _NUMBER.unpack_from(tail, len(words))
    codec = _codec_of(words, unit.size // 4)
    keeper.keep_beside(header.unit, unit.size)
    return Delta(codec, words, number, connection)


@lru_cache(maxsize=256)
def _codec_of(words: bytes, expected: int) -> Codec:
    """Return the codec that a worker names, of so many elements."""
    told, elements, _ = parse_head(words[:HEAD_BYTES], BY_NUMBER)
    if elements != expected:
        raise RemoteProtocolError("changes of another size", got=elements, expected=expected)
    (amount,) = _AMOUNT.unpack_from(words, HEAD_BYTES)
    try:
        return made_of_change(told, amount)
    except ConfigError as wrong:
        raise RemoteProtocolError(str(wrong)) from None


class Delta:
    """The wish for what has changed.

    Args:
        codec: How it is encoded.
        words: The same as it travels.
        known: The number of the base that the worker holds; 0 for none.
        connection: Over which it was said.
    """

    __slots__ = ("_connection", "codec", "known", "words")
    flag = int(Flag.DELTA)

    def __init__(self, codec: Codec, words: bytes, known: int, connection: object) -> None:
        self._connection = connection
        self.codec = codec
        self.words = words
        self.known = known

    def may_go(self, connection: object) -> bool:
        """Tell whether its answer may go over a connection: the one that it came over.

        Over another, earlier requests come again first, and would be answered behind this one.
        """
        return connection is self._connection

    def give(self, unit: Unit, _version: object, waiter: Waiter, _position: int) -> None:
        """Let an answer be what its worker lacks."""
        base = unit.base
        if base is None:
            base = unit.base = Base()
        waiter.parts = base.answer(unit, waiter, self)


class Given(NamedTuple):
    """An answer that may be asked for again.

    Attributes:
        request: The last that was answered so, when its clock was the newest.
        parts: What the answer is made of.
    """

    request: int
    parts: list[memoryview]


class Link(NamedTuple):
    """What leads from one base to the next.

    Attributes:
        words: How it is encoded, as that travels.
        payload: The changes.
    """

    words: bytes
    payload: Bytes


class Base:
    """What the workers hold of one chunk.

    Attributes:
        values: float32; None: the next who asks is sent the value itself.
        number: Of the last link, or of the last beginning; never the same twice.
        clock: Of the value that it was brought near to.
    """

    __slots__ = ("_given", "_is_lent", "_links", "clock", "number", "values")

    def __init__(self) -> None:
        self.values: Floats | None = None
        self.number = 0
        self.clock = 0
        self._is_lent = False  # an answer was made of this memory
        self._links: deque[Link] = deque(maxlen=MAX_LINKS)  # the last leads to `number`
        # By rank; and by clock, by what the worker holds, and by how it is encoded.
        self._given: dict[int, dict[tuple[int, int, bytes], Given]] = {}

    def answer(self, unit: Unit, waiter: Waiter, wish: Delta) -> list[memoryview]:
        """Return the parts of an answer; one that is asked for again is the same."""
        clock, is_newest = waiter.clock, waiter.clock == unit.current.clock
        given = self._given.setdefault(waiter.rank, {})
        asked = clock, wish.known, wish.words
        kept = given.get(asked)
        if kept is not None and (is_newest or waiter.request <= kept.request):
            given[asked] = kept._replace(request=max(kept.request, waiter.request))
            return kept.parts
        if self.values is None or self.clock != unit.current.clock:
            self._go_on(unit, waiter.unit, wish)
        parts = self._parts(wish)
        if is_newest:
            given[asked] = Given(waiter.request, parts)
            if len(given) > _MAX_GIVEN:
                del given[next(iter(given))]
        return parts

    def arrived(self, rank: int, acked: int) -> None:
        """Take note that `rank` has every answer below clock `acked`."""
        given = self._given.get(rank)
        if given:
            self._given[rank] = {
                asked: kept for asked, kept in given.items() if asked[0] >= acked
            }

    def forget(self) -> None:
        """Begin anew with the next who asks."""
        self.values = None
        self._links.clear()
        self._given.clear()

    def _go_on(self, unit: Unit, number: int, wish: Delta) -> None:
        value, payload = unit.current.buffer.view(np.float32), None
        seed = seed_of(number, self.number + 1)
        if self.values is not None:
            payload = wish.codec.encode_difference(value, self.values, unit.pool, seed)
        if self.values is None or payload is None:  # the first, or one that no link leads to
            self._links.clear()
            self.values = value.copy()
        else:
            if self._is_lent:
                self.values = self.values.copy()
            wish.codec.add(self.values, payload, seed)
            self._links.append(Link(wish.words, payload))
            self._drop_long_links()
        self._is_lent = False
        self.number += 1
        self.clock = unit.current.clock

    def _drop_long_links(self) -> None:
        """Keep those that somebody may be sent: together they take no more than the whole."""
        assert self.values is not None
        size = sum(link.payload.nbytes for link in self._links)
        while size > self.values.nbytes:
            size -= self._links.popleft().payload.nbytes

    def _parts(self, wish: Delta) -> list[memoryview]:
        assert self.values is not None
        count = self.number - wish.known
        if wish.known and 0 <= count <= len(self._links):
            links = list(self._links)[len(self._links) - count :]
            sizes = [link.payload.nbytes for link in links]
            if all(link.words == wish.words for link in links):
                head = ANSWER.pack(self.number, 0, count) + b"".join(map(SIZE.pack, sizes))
                return [memoryview(head), *[link.payload.data for link in links]]
        self._is_lent = True
        head = ANSWER.pack(self.number, 1, 0)
        return [memoryview(head), self.values.view(np.uint8).data]
