"""Control messages: one struct each, packed with msgspec; they travel in the table of a frame.

Requests are numbered by the frame's request id; the answer carries the same number.
"""

from __future__ import annotations

from typing import Any

import msgspec

from asyncps.errors import AsyncPSError, RemoteProtocolError, class_of_code
from asyncps.initializer import Initializer
from asyncps.protocol.attending import Absent as Absent
from asyncps.protocol.attending import AllJoined as AllJoined
from asyncps.protocol.attending import AskAbsent as AskAbsent
from asyncps.protocol.attending import Attendance as Attendance
from asyncps.protocol.attending import Clocks as Clocks
from asyncps.protocol.attending import Ended as Ended
from asyncps.protocol.attending import Ending as Ending
from asyncps.protocol.attending import Gone as Gone
from asyncps.protocol.attending import JoinStore as JoinStore
from asyncps.protocol.base import ErrorInfo as ErrorInfo
from asyncps.protocol.base import Key as Key
from asyncps.protocol.base import Member as Member
from asyncps.protocol.base import Message as Message
from asyncps.protocol.observing import AskReport as AskReport
from asyncps.protocol.observing import AskStatus as AskStatus
from asyncps.protocol.observing import JobStatus as JobStatus
from asyncps.protocol.observing import NodeStatus as NodeStatus
from asyncps.protocol.observing import Report as Report
from asyncps.protocol.observing import StoreStatus as StoreStatus
from asyncps.protocol.observing import Wait as Wait
from asyncps.protocol.parcels import Collect as Collect
from asyncps.protocol.parcels import Parcel as Parcel
from asyncps.protocol.saving import AskUnits as AskUnits
from asyncps.protocol.saving import ListKeys as ListKeys
from asyncps.protocol.saving import PartState as PartState
from asyncps.protocol.saving import ResetTable as ResetTable
from asyncps.protocol.saving import SetClocks as SetClocks
from asyncps.protocol.saving import StateRange as StateRange
from asyncps.protocol.saving import TableRange as TableRange
from asyncps.protocol.saving import TableRows as TableRows
from asyncps.protocol.saving import Together as Together
from asyncps.protocol.saving import Units as Units
from asyncps.protocol.saving import UnitState as UnitState
from asyncps.protocol.saving import Word as Word

# ---- membership -----------------------------------------------------------------------------


class Join(Message, tag=1):
    """A node asks the scheduler to be a member. `rank` None: by order of joining.

    `incarnation` is 0 for a process that joins for the first time, and its own number when it
    comes back over a new connection. `host` and `port` are where it listens (servers), else "".
    `machine` tells which machine it is on, whatever its host is called ("": it does not say), and
    `num_workers` how many workers it was told of (0: it does not say).
    """

    role: str
    rank: int | None
    incarnation: int
    host: str
    port: int
    hostname: str
    pid: int
    machine: str = ""
    num_workers: int = 0


class Joined(Message, tag=2):
    """The answer to Join: who you are."""

    rank: int
    incarnation: int
    num_workers: int
    num_servers: int


class Members(Message, tag=3):
    """The scheduler tells the member table once everybody is there; servers hear it first."""

    members: list[Member]


class Prepared(Message, tag=4):
    """A server knows the member table: workers may come."""


class Leave(Message, tag=5):
    """A node leaves for good, with nothing left to do. Answered with Done."""


class Died(Message, tag=6):
    """The launcher reaped a child: it need not be waited for. Answered with Done."""

    role: str
    rank: int
    reason: str


class Lost(Message, tag=7):
    """The scheduler declares a node lost."""

    role: str
    rank: int
    host: str
    reason: str


class Shutdown(Message, tag=8):
    """The scheduler ends the job; `error` tells why when it did not end well."""

    error: ErrorInfo | None


class Left(Message, tag=9):
    """The scheduler tells servers that a worker has left: rounds no longer wait for it."""

    rank: int


# ---- stores and keys --------------------------------------------------------------------------


class StoreConfig(msgspec.Struct, frozen=True, array_like=True):
    """What all workers must say alike when they open a store."""

    type: str
    order: str
    reduce: str
    staleness: int = 0  # dist_ssp: how many clocks a worker may be ahead of the slowest
    multi_precision: bool = False


class OpenStore(Message, tag=20):
    """A worker opens a store by name; answered with StoreOpened."""

    name: str
    config: StoreConfig


class CloseStore(Message, tag=27):
    """A worker has no more to do with a store: it has left it. Answered with Done."""

    store: int


class StoreOpened(Message, tag=21):
    """The number of a store."""

    store: int


class KeySpec(msgspec.Struct, frozen=True, array_like=True):
    """A key as its owner describes it."""

    key: Key
    dtype: str
    shape: tuple[int, ...]
    itemsize: int
    rows: Initializer | None = None  # of a row-sparse key: what its rows are at first


class Piece(msgspec.Struct, frozen=True, array_like=True):
    """Bytes [start, start + size) of a key, kept by `server` in `unit`; `row` is -1 for a chunk,
    else the row of the slab, which begins at byte `offset` of the slab. Of a row-sparse key it is
    the rows [start, start + size)."""

    server: int
    unit: int
    start: int
    size: int
    row: int
    offset: int


class Placement(msgspec.Struct, frozen=True, array_like=True):
    """Where one key lives; `fresh` tells rank 0 that its value is to be written."""

    spec: KeySpec
    pieces: list[Piece]
    fresh: bool


class Declare(Message, tag=22):
    """Rank 0 initialises keys: the scheduler places those that are new. Answered with Placed."""

    store: int
    keys: list[KeySpec]


class Await(Message, tag=23):
    """Another rank initialises keys: answered with Placed when the servers hold them all."""

    store: int
    keys: list[KeySpec]


class Lookup(Message, tag=24):
    """Where do these keys live? Answered with Placed, or with UnknownKey."""

    store: int
    keys: list[Key]


class Placed(Message, tag=25):
    """Where keys live, in the order asked."""

    version: int
    placements: list[Placement]


class Ready(Message, tag=26):
    """Rank 0: the servers hold the values of these keys. Answered with Done."""

    store: int
    keys: list[Key]


# ---- agreement --------------------------------------------------------------------------------


class Barrier(Message, tag=30):
    """A worker has come to the barrier of this store. Answered with Done when all have."""

    store: int


class SetOptimizer(Message, tag=31):
    """A worker asks for this optimizer on all servers. Answered with Done when all have it.

    `whole_keys` is said of one of the user's own, which the scheduler does not know; `keep`: what
    servers keep for the one of that name stays, if it is the one that they have.
    """

    store: int
    name: str
    hyper: dict[str, Any]
    whole_keys: bool = False
    keep: bool = False


class SetCompression(Message, tag=34):
    """A worker compresses its pushes of these keys. Answered with Done when all have said so.

    `keys` is a pattern of str keys, a list of keys, or None for all; `options` are complete. Of a
    `default`, a trainer's, all rules by key go before it. Servers hear nothing: frames say all.
    """

    store: int
    keys: list[Key] | str | None
    options: dict[str, Any]
    default: bool = False


class Install(Message, tag=32):
    """The scheduler tells a server what all workers agreed on. Answered with Done."""

    store: int
    config: StoreConfig
    optimizer: str | None
    hyper: dict[str, Any]
    dropped: bool = False  # all have closed it: forget it
    keep: bool = False  # what is kept for an optimizer of that name stays


class SetHyper(Message, tag=33):
    """A worker tells a server (on the data connection) hyper-parameters by version."""

    store: int
    version: int
    values: dict[str, Any]


class Done(Message, tag=40):
    """Yes, and nothing else to say."""


# ---- a unit, as INIT describes it to its server -------------------------------------------------


class UnitSpec(Message, tag=50):
    """The table of an INIT frame: rows of (key, size in bytes); a chunk has one row."""

    dtype: str
    slab: bool
    first_row: int
    keys: list[Key]
    sizes: list[int]


class TableSpec(Message, tag=80):
    """The table of an INIT frame of a row-sparse key: it has no payload, rows come by ASSIGN."""

    key: Key
    dtype: str
    shape: tuple[int, ...]
    rows: Initializer
    first: int  # rows of this server: first..stop-1
    stop: int


# ---- questions to a server ------------------------------------------------------------------


class Missing(Message, tag=60):
    """Whom does this round wait for? Answered with MissingRanks."""

    store: int
    unit: int
    rows: list[int]
    clock: int


class MissingRanks(Message, tag=61):
    """Ranks that have not contributed, ascending; empty when the round is applied.

    `at_work` is the optimizer of the user's own that has to end before, or empty.
    """

    ranks: list[int]
    at_work: str = ""


class AskStatistics(Message, tag=62):
    """What has this server done for a store? Answered with ServerStatistics."""

    store: int


class ServerStatistics(Message, tag=63):
    """Plain numbers of one server and store."""

    received_bytes: int
    sent_bytes: int
    queued_bytes: int
    rounds: int
    units: int
    value_bytes: int
    parked: int
    waited_s: dict[int, float]
    queued_frames: int
    waits: list[Wait]


AnyMessage = (
    Join | Joined | Members | Prepared | Leave | Died | Lost | Shutdown | Left
    | OpenStore | CloseStore | StoreOpened
    | Declare | Await | Lookup | Placed | Ready | Barrier | SetOptimizer | Install | SetHyper
    | SetCompression | Done | ErrorInfo | UnitSpec | Missing | MissingRanks | AskStatistics
    | ServerStatistics | AskReport | Report | AskStatus | JobStatus | TableSpec
    | Together | Word | ListKeys | AskUnits | Units | StateRange | SetClocks
    | TableRange | TableRows | ResetTable | Parcel | Collect
    | Gone | JoinStore | AllJoined | Attendance | Clocks | Ending | Ended | Absent | AskAbsent
)

_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[AnyMessage] = msgspec.msgpack.Decoder(AnyMessage)


def encode(message: Message) -> bytes:
    """Pack a control message."""
    return _encoder.encode(message)


def decode(data: bytes | bytearray | memoryview) -> AnyMessage:
    """Unpack a control message.

    Raises:
        RemoteProtocolError: The bytes are no message of ours.
    """
    try:
        return _decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise RemoteProtocolError(f"not a control message: {error}") from None


def error_to_wire(error: AsyncPSError, host: str | None = None) -> ErrorInfo:
    """Pack an error for the peer that caused it, or that has to hear of it."""
    return ErrorInfo(
        code=type(error).code, message=_text(error.message), key=error.key, rank=error.rank,
        host=error.host or host,
        expected=None if error.expected is None else _text(error.expected),
        got=None if error.got is None else _text(error.got),
    )


def _text(said: object) -> str:
    """Return what users' code may have put into an error as text that can travel."""
    return str(said).encode("utf-8", "backslashreplace").decode()


def error_from_wire(info: ErrorInfo) -> AsyncPSError:
    """Make the error that the peer raised: same class, same text, with its host."""
    return class_of_code(info.code)(
        info.message, key=info.key, rank=info.rank, host=info.host,
        expected=info.expected, got=info.got,
    )
