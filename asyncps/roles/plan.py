"""Where the keys of a call live: remote units, keys, and the plan of one set of keys."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from asyncps.initializer import Initializer
from asyncps.protocol.messages import Key, KeySpec, Piece, StoreConfig
from asyncps.roles.held import HeldPushes
from asyncps.state.requests import UnitTrack
from asyncps.state.rounds import CLOCK_WINDOW
from asyncps.tensor import dtypes
from asyncps.transport.link import Link
from asyncps.transport.request import Request

if TYPE_CHECKING:
    from asyncps.roles.changes import Copy
    from asyncps.roles.compressing import Compression
    from asyncps.roles.rules import Rule

__all__ = ["KeyInfo", "Plan", "RemoteUnit", "SlabPlan", "StoreConfig", "agreement", "bound_of",
           "describe", "describe_rows"]


def describe(key: Key, dtype: str, shape: tuple[int, ...], itemsize: int) -> KeySpec:
    """Return a key as it is declared."""
    return KeySpec(key, dtype, shape, itemsize)


def describe_rows(
    key: Key, dtype: str, shape: tuple[int, ...], itemsize: int, rows: Initializer
) -> KeySpec:
    """Return a row-sparse key as it is declared; `rows` is what they are at first."""
    return KeySpec(key, dtype, shape, itemsize, rows)


def agreement(
    type: str, order: str, reduce: str, staleness: int = 0, multi_precision: bool = False
) -> StoreConfig:
    """Return what all workers must say alike when they open a store."""
    return StoreConfig(type, order, reduce, staleness, multi_precision)


def bound_of(config: StoreConfig) -> int | None:
    """Return how far ahead of the slowest a worker may be: 0 in step, None for any number."""
    return None if config.type == "dist_async" else config.staleness


class RemoteUnit:
    """A unit of a server as a worker sees it."""

    __slots__ = (
        "copy", "held", "late", "link", "number", "row_keys", "server", "sizes", "slab", "tail",
        "track",
    )

    def __init__(
        self, link: Link, server: int, number: int, slab: bool,
        window: int | None = CLOCK_WINDOW, late: frozenset[int] = frozenset(),
    ) -> None:
        self.link = link
        self.server = server
        self.number = number
        self.slab = slab
        self.sizes: list[int] = []
        self.row_keys: list[Key] = []
        self.track = UnitTrack(0 if slab else 1, window)
        # Pushes beyond the clock window step aside here and block no other unit.
        self.held = HeldPushes()
        self.tail: Request | None = None
        self.copy: Copy | None = None  # of its value, where only changes of it are pulled
        self.late = late  # kinds whose answer may wait for an update, as that of a pull does

    def grow(self, rows: int) -> None:
        """Take note that the slab has more rows; held pushes of all speak of the old ones."""
        if self.held and rows > self.track.rows:
            self.held.grow(range(self.track.rows))
        self.track.grow(rows)

    def size_of(self, rows: Sequence[int] | None) -> int:
        """Return the bytes of some rows, of all of them for None."""
        return sum(self.sizes) if rows is None else sum(self.sizes[row] for row in rows)

    def priority(self, wanted: int) -> int:
        """Never overtake a request of the same unit that still waits in the queue."""
        tail = self.tail
        if tail is not None and not tail.sent and tail.priority < wanted:
            return tail.priority
        return wanted


class KeyInfo:
    """A key as this worker knows it.

    Attributes:
        told: The key that its user knows it by: rules, reports and errors of compression speak of
            that one. Another than `key` for a gradient that a trainer has made a key of.
        dense_bytes: Of it that were pushed as they are, while something was compressed.
    """

    __slots__ = (
        "dense_bytes", "dtype", "is_table", "key", "nbytes", "pieces", "shape", "spec", "told",
    )

    def __init__(self, spec: KeySpec, pieces: list[tuple[RemoteUnit, Piece]]) -> None:
        self.spec = spec
        self.key = self.told = spec.key
        self.dense_bytes = 0
        self.shape = tuple(spec.shape)
        self.dtype = dtypes.numpy_dtype(spec.dtype)
        self.nbytes = int(np.prod(self.shape, dtype=np.int64)) * spec.itemsize
        self.is_table = spec.rows is not None
        self.pieces = pieces

    @property
    def clock(self) -> int:
        """The last round of it that this worker has begun; the loop may be behind its callers."""
        unit, piece = self.pieces[0]
        return unit.track.clock_of(max(piece.row, 0))

    @property
    def cuts(self) -> list[tuple[int, int]]:
        """Where it is cut, in elements."""
        size = self.dtype.itemsize
        return [(piece.start // size, (piece.start + piece.size) // size)
                for _, piece in self.pieces]


class SlabPlan:
    """The keys of one call that live in one slab and are encoded alike, in the slab's order."""

    __slots__ = ("dtype", "every", "indices", "rows", "rule", "shapes", "size", "unit")

    def __init__(
        self, unit: RemoteUnit, members: list[tuple[int, int, KeyInfo]], count: int,
        rule: Rule | None = None,
    ) -> None:
        self.rule = rule
        members.sort(key=lambda member: member[0])
        self.unit = unit
        self.rows = [row for row, _, _ in members]
        self.indices = [index for _, index, _ in members]
        self.every = self.indices == list(range(count))  # the call's keys, in the call's order
        self.shapes = tuple([info.shape for _, _, info in members])
        self.dtype = members[0][2].dtype
        self.size = sum(info.nbytes for _, _, info in members)

    @property
    def spoken_of(self) -> list[int] | None:
        """The rows as a frame names them: None for all that this worker knows."""
        return None if len(self.rows) == self.unit.track.rows else self.rows

    def pick(self, items: Sequence[Any]) -> Sequence[Any]:
        """Return the items of this slab's keys, in its order, of a list of one item a key."""
        return items if self.every else [items[index] for index in self.indices]


class Plan:
    """Where the keys of one call live: chunks by key, slabs, and row-sparse keys.

    Attributes:
        coded: Some of them are encoded when they are pushed.
        rules: By which each of the large keys is; empty when none is.
        table_rules: By which each of the row-sparse ones is.
        dense: Those that are pushed as they are, or may be, where something is compressed.
        looked: Those of them whose gradients are looked at, by their place in the call, and the
            rule that says so.
    """

    __slots__ = (
        "coded", "dense", "empty", "infos", "large", "lone", "looked", "rules", "slabs",
        "table_rules", "tables",
    )

    def __init__(
        self, infos: Sequence[KeyInfo], compression: Compression | None = None
    ) -> None:
        self.infos = infos
        self.tables = [(index, info) for index, info in enumerate(infos) if info.is_table]
        self.empty = [
            (index, info) for index, info in enumerate(infos)
            if not info.pieces and not info.is_table
        ]
        self.large: list[tuple[int, KeyInfo]] = []
        self.rules: list[Rule | None] = []
        slabs: dict[tuple[RemoteUnit, Rule | None], list[tuple[int, int, KeyInfo]]] = {}
        self.table_rules: list[Rule | None] = []
        self.dense: list[KeyInfo] = []
        self.looked: dict[int, Rule] = {}
        for index, info in enumerate(infos):
            rule = None if compression is None else compression.rule_of(info)[0]
            if compression is not None and (rule is None or rule.ends):
                self.dense.append(info)
                if (looks := compression.looks_at(info)) is not None:
                    self.looked[index] = looks
            if info.is_table:
                self.table_rules.append(rule)
            elif info.pieces and info.pieces[0][0].slab:
                unit, piece = info.pieces[0]
                slabs.setdefault((unit, rule), []).append((piece.row, index, info))
            elif info.pieces:
                self.large.append((index, info))
                self.rules.append(rule)
        self.slabs = [
            SlabPlan(unit, members, len(infos), rule) for (unit, rule), members in slabs.items()
        ]
        self.coded = any(self.rules) or any(self.table_rules) or any(
            slab.rule is not None for slab in self.slabs)
        units = [unit for _, info in self.large for unit, _ in info.pieces]
        units += [slab.unit for slab in self.slabs]
        # The only unit, if it is one and its values travel as they are.
        is_lone = len(units) == 1 and not self.tables and not self.coded
        self.lone = units[0] if is_lone else None
