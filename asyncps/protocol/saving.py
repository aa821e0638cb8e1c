"""Messages of save and load: what workers agree on, and what servers keep for a leader to fetch.

The leader is the lowest rank that is there. No message for a server has a path in it.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from asyncps.initializer import Initializer
from asyncps.protocol.base import ErrorInfo, Message

MAX_PATH = 4096  # characters that a path may have


class Together(Message, tag=85):
    """A worker has come to save or load; all must say the same. Answered with Word: who leads, and
    `ranks`: who has come.

    `path` is only compared: nobody opens it but the leader, whose caller has given it.
    """

    store: int
    verb: Annotated[str, msgspec.Meta(max_length=MAX_PATH)]
    path: Annotated[str, msgspec.Meta(max_length=MAX_PATH)]


class Word(Message, tag=86):
    """Everybody but the leader waits for its word; the leader says it. All are answered with the
    leader's Word; or with an error, if somebody has one: the leader's first. A `course` above 0
    says that parcels are carried from here on, and names them."""

    store: int
    leader: int
    error: ErrorInfo | None = None
    optimizer: str | None = None
    hyper: dict[str, Any] = msgspec.field(default_factory=dict)
    ranks: list[int] = msgspec.field(default_factory=list)
    course: int = 0


class ListKeys(Message, tag=87):
    """Where do all keys live, from the `start`-th on? Answered with Placed, some at a time; with
    none at the end. Those that rank 0 has not made ready are `fresh`."""

    store: int
    start: int


class AskUnits(Message, tag=88):
    """What does a server keep for the units above `after`? Answered with Units, or with
    Disagreement while a round is open. With `after` -1 it begins."""

    store: int
    after: int


class PartState(msgspec.Struct, frozen=True, array_like=True):
    """What an optimizer keeps for some rows of a slab, or for a chunk (row 0): its count of
    updates, and the dtype of each state by name."""

    rows: list[int]
    updates: int
    state: dict[str, str]


class UnitState(msgspec.Struct, frozen=True, array_like=True):
    """One unit: the rows of a slab that stand alike are one part.

    Of a row-sparse key: how many rows there are, and what the others would be now.
    """

    unit: int
    parts: list[PartState]
    used: int = 0
    rows: Initializer | None = None


class Units(Message, tag=89):
    """Units by number, ascending, none at the end; and the newest hyper-parameters. While an
    optimizer of the user's own is at work there are no units to tell of yet: ask again."""

    optimizer: str | None
    hyper: dict[str, Any]
    units: list[UnitState]
    at_work: bool = False


class StateRange(Message, tag=95):
    """Bytes [begin, begin + size) of what a unit keeps: its value (`name` ""), or a state. Asked of
    a server it is answered with DATA; as the table of a RESTORE the payload is to be these bytes.
    """

    store: int
    unit: int
    name: str
    dtype: str
    begin: int
    size: int


class SetClocks(Message, tag=96):
    """These rows of a slab (a chunk: row 0) have had so many updates each. Answered with Done."""

    store: int
    unit: int
    rows: list[int]
    updates: list[int]


class TableRange(Message, tag=97):
    """Of the `count` rows of a table that were made first, those at [begin, begin + number) in the
    order of their ids: the ids (`part` "rows", i64), "values", or a "state.NAME". Answered with
    DATA.
    """

    store: int
    unit: int
    part: str
    count: int
    begin: int
    number: int


class TableRows(Message, tag=98):
    """The table of a RESTORE of rows: its payload names them, as a contribution does, and then has
    their "values", or a "state.NAME"."""

    store: int
    unit: int
    part: str


class ResetTable(Message, tag=99):
    """Forget all rows of a table; from now on they begin like this. Answered with Done."""

    store: int
    unit: int
    rows: Initializer
