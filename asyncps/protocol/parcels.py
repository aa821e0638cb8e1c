"""Messages that carry bytes from one worker to another, through a server that keeps few of them.

Workers have no connections to each other. While they save, what each has not sent of its compressed
keys goes to the one that writes; while they load it comes from the one that reads.
"""

from __future__ import annotations

from typing import Any

import msgspec

from asyncps.errors import RemoteProtocolError
from asyncps.protocol.base import Key, Message

MAX_PARCEL_BYTES = 1 << 20
# Of one worker for another: so many may wait at a server. Who collects asks for no more ahead.
MAX_WAITING = 4
MOST_NAME = 64  # characters of the name of a codec


class Parcel(Message, tag=104):
    """The table of a RESTORE whose payload is for another worker. Answered when that has it."""

    store: int
    to: int
    course: int
    number: int


class Collect(Message, tag=105):
    """A worker wants a parcel of another one: answered with DATA when it is there. It has all below
    `done`. With `number` -1 it has all that there are: answered with Done."""

    store: int
    of: int
    course: int
    number: int
    done: int


class KeptKey(msgspec.Struct, frozen=True, array_like=True):
    """What a worker has kept of a key: how many float32 that were not sent, how often it was
    encoded, and how many float32 its codec keeps beside them. A row-sparse key has a width, the
    elements of a row: of each row there are so many, and three beside them that say which it is.
    Last the name of the codec whose these are, if that is known."""

    key: Key
    elements: int
    pushes: int
    extra: int = 0
    width: int = 0
    codec: str = ""


def encode_list(keys: list[KeptKey]) -> bytes:
    """Return a list as it travels: packed as messages are."""
    return msgspec.msgpack.encode(keys)


def decode_list(data: Any) -> list[KeptKey]:
    """Return a list that came.

    Raises:
        RemoteProtocolError: It is none.
    """
    try:
        found = msgspec.msgpack.decode(data, type=list[KeptKey])
    except msgspec.MsgspecError as error:
        raise RemoteProtocolError(f"not a list of what is kept: {error}") from None
    if any(not 0 <= each.elements <= 1 << 32 or not 0 <= each.extra <= 1 << 32
           or not 0 <= each.pushes < 1 << 62 or each.width < 0 or len(each.codec) > MOST_NAME
           or (each.width and 3 * each.elements != each.extra * each.width) for each in found):
        raise RemoteProtocolError("a list of what cannot be kept")
    return found
