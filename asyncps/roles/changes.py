"""A worker's copy of a chunk that is kept up by changes: see `bases` for the other side.

The copy is brought on when an answer has come, and then copied to where the caller wants it. It
says its number with each request, so an answer that was lost with its connection, or whose caller
gave up, harms nothing: the next one brings what is lacking, or the whole.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from asyncps.errors import AsyncPSError, RemoteProtocolError
from asyncps.protocol.frames import Flag, Header
from asyncps.roles.bases import ANSWER, MAX_LINKS, SIZE, tail_of
from asyncps.tensor.codecs import Codec, Floats
from asyncps.tensor.pool import Bytes
from asyncps_ext.seeds import seed_of

if TYPE_CHECKING:
    from asyncps.roles.plan import RemoteUnit

_NOTHING = memoryview(bytearray())


class Copy:
    """What this worker holds of a chunk.

    Attributes:
        values: float32; None before the first answer.
        number: Which base that is; 0 for none.
        asking: Requests that are unanswered.
        priority: Of the last of them: answers must come in the order of their requests.
    """

    __slots__ = ("asking", "number", "priority", "values")

    def __init__(self) -> None:
        self.values: Floats | None = None
        self.number = 0
        self.asking = 0
        self.priority = 0

    def bring_on(self, codec: Codec, unit: int, elements: int, answer: Bytes) -> None:
        """Take what an answer brings.

        Args:
            codec: Of its links.
            unit: The number of the chunk.
            elements: Of the chunk.
            answer: Its payload.

        Raises:
            RemoteProtocolError: It cannot be right; the copy is what it was.
        """
        number, whole, count = ANSWER.unpack_from(answer.data)
        begin = ANSWER.size
        if whole:
            if answer.nbytes != begin + 4 * elements or whole != 1 or count:
                raise _wrong(answer)
            if self.values is None:
                self.values = np.empty(elements, np.float32)
            self.values.view(np.uint8)[:] = answer[begin:]
            self.number = number
            return
        if count > MAX_LINKS or answer.nbytes < begin + SIZE.size * count:
            raise _wrong(answer)
        sizes = [SIZE.unpack_from(answer.data, begin + SIZE.size * i)[0] for i in range(count)]
        begin += SIZE.size * count
        if begin + sum(sizes) != answer.nbytes:
            raise _wrong(answer)
        values = self.values
        if values is None or not number - count <= self.number:
            raise RemoteProtocolError("changes of what is not here", expected=self.number,
                                      got=(number, count))
        links = []
        for link, size in enumerate(sizes, number - count + 1):
            payload, begin = answer[begin : begin + size], begin + size
            seed = seed_of(unit, link)
            codec.check(elements, payload, seed)
            links.append((link, payload, seed))
        for link, payload, seed in links:
            if link > self.number:
                codec.add(values, payload, seed)
                self.number = link


def _wrong(answer: Bytes) -> RemoteProtocolError:
    return RemoteProtocolError("changes that cannot be", got=answer.nbytes)


class DeltaPlace:
    """The place of a chunk's value that is asked for by its changes.

    Args:
        codec: How these are encoded.
        amount: Its ratio, or threshold.
        out: The place.
    """

    __slots__ = ("_amount", "_codec", "_out")
    flag = int(Flag.DELTA)

    def __init__(self, codec: Codec, amount: float, out: memoryview) -> None:
        self._codec = codec
        self._amount = amount
        self._out = out

    def ask(self, unit: RemoteUnit, priority: int) -> tuple[bytes, int]:
        """Return what the request's table ends with, and the priority that it may have."""
        if unit.copy is None:
            unit.copy = Copy()
        copy = unit.copy
        if copy.asking:
            priority = min(priority, copy.priority)
        copy.asking += 1
        copy.priority = priority
        elements = len(self._out) // 4
        return tail_of(self._codec, elements, self._amount, copy.number), priority

    def landing(self, unit: RemoteUnit) -> DeltaLanding:
        """Return where the answer lands."""
        assert unit.copy is not None
        return DeltaLanding(unit.copy, self._codec, unit.number, self._out)


class DeltaLanding:
    """Memory for one answer, once its size is known.

    Attributes:
        view: Nothing, until `room` is called.
    """

    __slots__ = ("_buffer", "_codec", "_copy", "_out", "_unit", "view")

    def __init__(self, copy: Copy, codec: Codec, unit: int, out: memoryview) -> None:
        self._copy = copy
        self._codec = codec
        self._unit = unit
        self._out = out
        self._buffer: Bytes | None = None
        self.view = _NOTHING

    def room(self, size: int) -> memoryview:
        """Return memory for a payload of this size.

        Raises:
            RemoteProtocolError: No answer has that size.
        """
        most = ANSWER.size + SIZE.size * MAX_LINKS + len(self._out)
        if not ANSWER.size <= size <= most:
            raise RemoteProtocolError("an answer of another size", got=size,
                                      expected=f"{ANSWER.size} to {most}")
        self._buffer = np.empty(size, np.uint8)
        return self._buffer.data

    def settle(self, header: Header) -> AsyncPSError | None:
        """Put an answer that has come where it belongs; return what is wrong with it."""
        elements = len(self._out) // 4
        if self._buffer is None or not header.flags & Flag.DELTA:
            return RemoteProtocolError("an answer in another form", got=header.flags,
                                       expected=int(Flag.DELTA))
        try:
            self._copy.bring_on(self._codec, self._unit, elements, self._buffer)
        except RemoteProtocolError as wrong:
            return wrong
        assert self._copy.values is not None
        self._out[:] = self._copy.values.view(np.uint8).data
        return None

    def over(self) -> None:
        """The request is answered, well or not."""
        self._copy.asking -= 1
