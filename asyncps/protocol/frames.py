"""The layout of a frame, its kinds and its limits.

A frame is a fixed header (`asyncps_ext.wire`, 72 bytes, little-endian, its own crc32c), then a
table, then the payload. The table is a msgpack control message, or the u32 rows of a slab that the
payload holds; a frame without the ROWS flag speaks of a whole unit. Lengths are 64-bit and are
checked against the limits below before anything is allocated.
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

from asyncps_ext import wire

HEADER_SIZE: int = wire.HEADER_SIZE


class Kind(IntEnum):
    """What a frame is."""

    CONTROL = 1  # table: a control message
    HEARTBEAT = 2  # nothing; says that the sender lives
    INIT = 10  # table: UnitSpec, payload: the first value of those keys
    ASSIGN = 11  # payload: a value that replaces the stored one
    PUSH = 12  # payload: this worker's contribution to round `clock`
    PULL = 13  # answered with DATA when round `clock` is applied
    PUSHPULL = 14  # PUSH, answered like PULL of the same clock
    WAIT = 15  # PULL without the data: answered with ACK
    REFUSE = 16  # table: ErrorInfo; this worker has no contribution to round `clock`
    RESTORE = 17  # table: StateRange, payload: these bytes of what a unit keeps; or a Parcel
    ACK = 20  # the request was accepted
    DATA = 21  # payload: the value
    ERROR = 22  # table: ErrorInfo
    COLLECT = 30  # table: a Group of collective calls; payload: their arrays, if they are small
    PART = 31  # payload: a chunk of a collective call
    COUNT = 32  # how many frames of a peer have come
    JOINED = 33  # this rank takes part in no collective call until all have joined
    PARTED = 34  # this rank leaves for good
    FAILED = 35  # table: ErrorInfo; this rank can go on no more, and why: its last frame


# Plain numbers for hot paths: looking up a member of an enum takes longer than comparing it.
(
    CONTROL, HEARTBEAT, INIT, ASSIGN, PUSH, PULL, PUSHPULL, WAIT, REFUSE, RESTORE, ACK, DATA,
    ERROR, COLLECT, PART, COUNT, JOINED, PARTED, FAILED,
) = map(int, Kind)


class Flag(IntEnum):
    """Bits of the header's flags."""

    ROWS = 1  # the table lists rows of a slab
    IDS = 2  # the table names rows of a table: see `rows`
    CODEC = 4  # the payload is encoded, and the table ends with how
    F16 = 8  # the answer's float32 values travel as float16
    BF16 = 16  # as bfloat16
    RESULT = 64  # a PART is reduced, or at its place; else it is a contribution
    DELTA = 32  # the answer may be what has changed, and the table ends with how: see `bases`


class Header(NamedTuple):
    """The fields of a frame's header, in the order of `wire.parse_header`."""

    kind: int
    flags: int
    incarnation: int
    store: int
    request: int
    unit: int
    priority: int
    clock: int
    table_bytes: int
    payload_bytes: int
    acked: int  # data: pulls of this unit below this clock have arrived; control: requests
    hyper: int  # push: version of the hyper-parameters held; PULL, WAIT: size of the value asked


# A table is a control message or the rows of one slab (at most 4096 rows of 4 bytes). The largest
# control message is the placement of the keys of one init call.
MAX_TABLE_BYTES = 64 << 20

# A payload is one chunk or one slab; the chunk size is a setting of at most 1 GiB.
MAX_PAYLOAD_BYTES = 1 << 30

# Decoded values, in float32, of the rows of a table that one frame may stand for where the bytes of
# its codec say nothing of how many values there are: else a few bytes could name a GiB of rows.
MAX_DECODED_BYTES = 64 << 20

MAX_ROWS = 4096
