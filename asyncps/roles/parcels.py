"""Parcels that one worker has for another, at the server where they meet.

Whoever comes first waits for the other. A parcel stays until its receiver says that it has it, so a
cut connection loses none; few may wait for each pair. A save or load that was given up leaves its
parcels behind: they go when the pair meets in later ones, or when one of the two is gone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from asyncps.errors import AsyncPSError, ClusterError, RemoteProtocolError
from asyncps.protocol.messages import Collect, Parcel
from asyncps.protocol.parcels import MAX_PARCEL_BYTES, MAX_WAITING
from asyncps.tensor.pool import Bytes

_COURSES = 2  # that are known of a pair: the one of now, and one whose frames may still come
_ALL = 1 << 62

Send = Callable[[memoryview], None]
Call = Callable[[], None]
Refuse = Callable[[AsyncPSError], None]


@dataclass(slots=True)
class Box:
    """What one worker has for another in one course.

    Attributes:
        offers: Parcels by number, each with what tells its sender that it has arrived, or why
            it will not.
        asks: What sends a parcel that is not there yet, or says why none will come, by number.
        done: The receiver has all below.
    """

    offers: dict[int, tuple[Bytes, Call, Refuse]] = field(default_factory=dict)
    asks: dict[int, tuple[Send, Refuse]] = field(default_factory=dict)
    done: int = 0


class Parcels:
    """Those of one store on one server."""

    def __init__(self) -> None:
        self._boxes: dict[tuple[int, int], dict[int, Box]] = {}

    def check(self, of: int, told: Parcel, size: int, members: int) -> None:
        """Refuse a parcel before memory is taken for it.

        Args:
            of: Who sends it.
            told: What it is.
            size: Its bytes.
            members: One bit for each rank that may receive one.

        Raises:
            RemoteProtocolError: It is too large, or one too many.
            ClusterError: Who it is for is gone.
        """
        if not 0 < size <= MAX_PARCEL_BYTES or not 0 <= told.number < _ALL:
            raise RemoteProtocolError("no parcel of ours", got=(told.number, size),
                                      expected=f"at most {MAX_PARCEL_BYTES} bytes")
        _check_there(told.to, members)
        box = self._boxes.get((of, told.to), {}).get(told.course)
        offers = {} if box is None else box.offers
        if told.number not in offers and len(offers) >= MAX_WAITING:
            raise RemoteProtocolError("too many parcels wait", expected=f"at most {MAX_WAITING}")

    def put(
        self, of: int, told: Parcel, buffer: Bytes, arrived: Call, refuse: Refuse
    ) -> None:
        """Keep a parcel, and send it if it is waited for.

        Args:
            of: Who sends it.
            told: What it is.
            buffer: Its bytes; ours from now on, and an answer may be made of it to the end.
            arrived: Tells the sender that its receiver has it.
            refuse: Tells it why it never will.
        """
        box = self._box(of, told.to, told.course)
        if told.number < box.done:  # it comes again, after a cut
            arrived()
            return
        box.offers[told.number] = buffer, arrived, refuse
        asked = box.asks.pop(told.number, None)
        if asked is not None:
            asked[0](buffer.data)

    def collect(
        self, to: int, asked: Collect, members: int, send: Send, refuse: Refuse
    ) -> bool:
        """Send a parcel, now or when it comes.

        Args:
            to: Who asks.
            asked: For what.
            members: One bit for each rank that may have one.
            send: Sends it.
            refuse: Says why none will come.

        Returns:
            False if this was only the word that all have arrived.

        Raises:
            RemoteProtocolError: It asks for more than anybody could need.
            ClusterError: Whose parcel it is, is gone.
        """
        if asked.number >= 0:
            _check_there(asked.of, members)
        box = self._box(asked.of, to, asked.course)
        box.done = max(box.done, _ALL if asked.number < 0 else asked.done)
        for number in [number for number in box.offers if number < box.done]:
            box.offers.pop(number)[1]()
        for number in [number for number in box.asks if number < box.done]:
            del box.asks[number]
        if asked.number < 0:
            return False
        offer = box.offers.get(asked.number)
        if offer is not None:
            send(offer[0].data)
            return True
        if asked.number < box.done or (
            asked.number not in box.asks and len(box.asks) >= MAX_WAITING
        ):
            raise RemoteProtocolError("no parcel that could come", got=asked.number,
                                      expected=f"{MAX_WAITING} at once, from {box.done} on")
        box.asks[asked.number] = send, refuse
        return True

    def forget(self, rank: int) -> None:
        """A worker is gone: who waits for it, or has something for it, hears that."""
        error = _gone(rank)
        for pair in [pair for pair in self._boxes if rank in pair]:
            for box in self._boxes.pop(pair).values():
                for _, _, refuse in box.offers.values() if pair[1] == rank else ():
                    refuse(error)
                for _, refuse in box.asks.values() if pair[0] == rank else ():
                    refuse(error)

    @property
    def waiting_bytes(self) -> int:
        """Bytes of all that wait."""
        return sum(buffer.nbytes for boxes in self._boxes.values() for box in boxes.values()
                   for buffer, _, _ in box.offers.values())

    def _box(self, of: int, to: int, course: int) -> Box:
        boxes = self._boxes.setdefault((of, to), {})
        found = boxes.get(course)
        if found is None:
            while len(boxes) >= _COURSES:
                del boxes[next(iter(boxes))]
            found = boxes[course] = Box()
        return found


def _check_there(rank: int, members: int) -> None:
    if not 0 <= rank < members.bit_length() or not members >> rank & 1:
        raise _gone(rank)


def _gone(rank: int) -> ClusterError:
    return ClusterError("a worker left while what it had not sent was carried", rank=rank)
