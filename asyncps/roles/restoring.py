"""A checkpoint, from disk to the servers of a store: the work of the worker that leads.

First everything is looked at and compared, and nothing changes (`Loading.open`); then the servers
take it, piece by piece (`Loading.carry_out`). Where keys live is of no concern to a checkpoint, so
it fits any number of servers.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Any, Self

import numpy as np

from asyncps import optim
from asyncps.errors import (
    CheckpointError,
    ClusterError,
    DtypeMismatch,
    OptimizerError,
    ShapeMismatch,
)
from asyncps.protocol import messages
from asyncps.protocol.messages import Key, KeySpec, Placement
from asyncps.roles import restoringrows
from asyncps.roles.client import Client
from asyncps.roles.coders import Kept
from asyncps.roles.fetching import Disk, Window, answered, restore
from asyncps.roles.regiving import Regiving
from asyncps.roles.storing import Path, ask_units, check_names, list_keys, states_of
from asyncps.roles.stretches import Place, Range, Stretch, places_of, ranges_of
from asyncps.roles.worker import Worker
from asyncps.state.keyspecs import size_of
from asyncps.tensor import dtypes
from asyncps.tensor.checkpoint import Reader
from asyncps.tensor.checkpointmeta import clocks_of
from asyncps.tensor.safefile import Entry
from asyncps.tensor.steps import states_ever
from asyncps.tensor.words import MASTER, MAX_STATE_NAME

# Keys that are made by one call: each is a few hundred bytes on its way.
_MADE_AT_ONCE = 1000


@dataclass(frozen=True, slots=True)
class Words:
    """What a checkpoint says beside arrays.

    Attributes:
        optimizer: The one that the store will have: the checkpoint's, or its own; or None.
        hyper: Its hyper-parameters.
        clocks: Updates by key.
    """

    optimizer: str | None
    hyper: dict[str, Any]
    clocks: dict[Key, int]


class Loading:
    """One checkpoint on its way into a store; `async with` it.

    Args:
        worker: The one that leads.
        client: The store.
        path: Where the checkpoint stands.
        weights: False for what the optimizer keeps alone.

    Attributes:
        regiving: What compressed keys had not sent, if anything is to be given back.
    """

    def __init__(self, worker: Worker, client: Client, path: Path, *, weights: bool) -> None:
        self._worker = worker
        self._client = client
        self._path = os.fspath(path)
        self._weights = weights
        self._disk = Disk()
        self._reader: Reader | None = None
        self._words = Words(None, {}, {})
        self._fresh: list[KeySpec] = []
        self.regiving: Regiving | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._disk.last(self._end)
        await self._disk.__aexit__(kind, error, trace)

    async def open(self) -> Words:
        """Read what the checkpoint says, and compare it with the store; nothing changes.

        Raises:
            CheckpointError: It cannot be read, or lacks a key of the store.
            ShapeMismatch, DtypeMismatch: A key exists and is different there.
            OptimizerError: Its optimizer is not known here, or it has none and nothing else was
                asked for.
            Disagreement: A round is open.
        """
        reader = await self._disk.run(self._begin)
        words = _words_of(reader, self._path)
        if words.optimizer is None and not self._weights:
            raise OptimizerError("a checkpoint without an optimizer", got=self._path)
        there = {each.spec.key: each for each in await list_keys(self._worker, self._client)}
        self._compare(reader, words, there)
        await self._disk.run(restoringrows.check_ids, reader)
        if self.regiving is not None:
            await self._disk.run(self.regiving.check_finite)
        kept = await ask_units(self._worker, self._client)
        if words.optimizer is None:
            words = Words(kept.optimizer, kept.hyper, words.clocks)
        self._words = words
        return words

    def _begin(self) -> Reader:
        self._reader = Reader(self._path)
        return self._reader

    def _end(self) -> None:
        if self._reader is not None:
            self._reader.__exit__(None, None, None)

    async def carry_out(self) -> None:
        """Let the servers keep what the checkpoint holds; the optimizer has been set by then.

        Raises:
            AsyncPSError: Something failed on the way: the store then holds a part of it.
        """
        reader = self._reader
        assert reader is not None
        for begin in range(0, len(self._fresh), _MADE_AT_ONCE):
            await self._make(self._fresh[begin : begin + _MADE_AT_ONCE])
        placements = await list_keys(self._worker, self._client)
        places = places_of([each for each in placements if each.spec.rows is None])
        state = {key: {name: slot.entry for name, slot in slots.items()}
                 for key, slots in reader.state.items()}
        window = Window(self._worker.config.answer_s)
        for place in places:
            known = [each for each in place.stretches if each.key in self._words.clocks]
            if not known:
                continue
            if self._weights:
                await self._restore(window, place, known, None, "", place.itemsize)
            for name, dtype, stretches in states_of(place, state):
                await self._restore(window, place, stretches, name, dtype,
                                    Entry(dtype, ()).itemsize)
            clocks = messages.SetClocks(
                self._client.number, place.unit, [each.row for each in known],
                [self._words.clocks[each.key] for each in known])
            link = self._worker.links[place.server]
            asking = link.question(clocks, self._client.incarnation, 0)
            await answered(link, asking, self._worker.config.answer_s)
        await window.finish()
        await restoringrows.carry_out(
            self._worker, self._client, reader, placements, self._words.clocks, self._disk,
            weights=self._weights)

    async def give_back(self, ranks: Sequence[int], course: int) -> dict[Key, Kept]:
        """Send all ranks what they had not sent; return what this worker had not."""
        if self.regiving is None:
            return {}
        return await self.regiving.carry_out(self._worker, self._client, self._disk, ranks, course)

    async def _make(self, specs: Sequence[KeySpec]) -> None:
        """Initialise keys with zeros, which cost no memory; their values come like all others'."""
        sizes = [size_of(spec) if spec.rows is None else 0 for spec in specs]
        zeros = np.zeros(max(sizes), np.uint8).data
        await self._worker.init(self._client, specs, [
            zeros[:size] if spec.rows is None else None
            for spec, size in zip(specs, sizes, strict=True)])

    async def _restore(
        self, window: Window, place: Place, stretches: Sequence[Stretch], name: str | None,
        dtype: str, itemsize: int,
    ) -> None:
        client, link = self._client, self._worker.links[place.server]
        for wanted in ranges_of(stretches, itemsize):
            buffer = client.pool.take(wanted.size)
            await self._disk.run(self._read, name, wanted, buffer.data)
            message = messages.StateRange(client.number, place.unit, name or "", dtype,
                                          wanted.begin, wanted.size)

            async def use(buffer: Any) -> None:
                client.pool.give(buffer)

            asking = restore(link, message, client.incarnation, buffer.data)
            await window.add(link, asking, wanted.size, partial(use, buffer))

    def _read(self, name: str | None, wanted: Range, view: memoryview) -> None:
        assert self._reader is not None
        for part in wanted.parts:
            self._reader.read(part.key, name, part.start, view[part.at : part.at + part.size])

    def _compare(self, reader: Reader, words: Words, there: Mapping[Key, Placement]) -> None:
        specs = {key: each.spec for key, each in there.items()}
        ready = [key for key, each in there.items() if not each.fresh]
        for key in ready:
            held: Any = reader.weights if self._weights else words.clocks
            if specs[key].rows is not None:
                held = reader.tables
            if key not in held or key not in words.clocks:
                raise CheckpointError("a checkpoint that lacks a key of this store", key=key,
                                      got=self._path)
        if self._weights:
            for key, slot in reader.weights.items():
                fresh = KeySpec(key, *slot.entry, slot.entry.itemsize)
                spec = specs.setdefault(key, fresh)
                dtypes.by_name(slot.entry.dtype)
                if spec.rows is not None:
                    raise CheckpointError("a row-sparse key, of which the checkpoint has a dense "
                                          "value", key=key, got=self._path)
                if spec.dtype != slot.entry.dtype:
                    raise DtypeMismatch("a checkpoint with another dtype of this key", key=key,
                                        expected=spec.dtype, got=slot.entry.dtype)
                if tuple(spec.shape) != slot.entry.shape:
                    raise ShapeMismatch("a checkpoint with another shape of this key", key=key,
                                        expected=tuple(spec.shape), got=slot.entry.shape)
                if key not in words.clocks:
                    raise CheckpointError("a checkpoint that no store has written: no clock of a "
                                          "key", key=key, got=self._path)
                if key not in ready:
                    self._fresh.append(fresh)
        tables = restoringrows.compare(
            reader, specs, words.clocks, optimizer=words.optimizer is not None,
            weights=self._weights)
        if self._weights:
            self._fresh += [spec for spec in tables if spec.key not in ready]
            self._check_fresh()
            if reader.residuals or reader.extras:
                self.regiving = Regiving(reader)
                self.regiving.compare({**{spec.key: spec for spec in tables}, **specs},
                                      self._path)
        for key, slots in reader.state.items():
            if key not in specs or key not in words.clocks or specs[key].rows is not None:
                raise CheckpointError("what an optimizer keeps for a key that is not there",
                                      key=key, got=self._path)
            check_names(key, slots)
            for name, slot in slots.items():
                _check_state(specs[key], name, slot.entry, words.optimizer)

    def _check_fresh(self) -> None:
        if not self._fresh:
            return
        if self._worker.node.rank:
            raise ClusterError("rank 0 has left, so nobody can make the keys of a checkpoint",
                               key=self._fresh[0].key, rank=0)
        for spec in self._fresh:
            if self._client.config.reduce == "mean" and not dtypes.by_name(spec.dtype).is_float:
                raise DtypeMismatch("the mean of integers", key=spec.key, expected="a float dtype",
                                    got=spec.dtype)


def _words_of(reader: Reader, path: str) -> Words:
    told = reader.meta.get("optimizer")
    name, hyper = None, {}
    try:
        if told is not None:
            kind = optim.by_name(told["name"])
            name, hyper = kind.name, kind(**told["hyper"]).hyper
    except OptimizerError:
        raise
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"a checkpoint that no store has written: {error!r}",
                              got=path) from None
    return Words(name, hyper, clocks_of(reader.meta))


def _check_state(spec: KeySpec, name: str, entry: Entry, optimizer: str | None) -> None:
    """Refuse state that does not fit its key, or that nobody would use."""
    kind = optim.REGISTRY.get(optimizer or "")
    if kind is None and name != MASTER:
        raise CheckpointError("what an optimizer keeps, without an optimizer", key=spec.key)
    if kind is not None and kind.builtin and name not in (MASTER, *states_ever(kind.name)):
        raise CheckpointError(f"{kind.name} keeps no {name[:MAX_STATE_NAME]!r}", key=spec.key)
    dtype = entry.dtype
    if name == MASTER or (kind is not None and kind.builtin):
        dtype = dtypes.by_name(spec.dtype).sum.name
    expected = Entry(dtype, (size_of(spec) // spec.itemsize,))
    if entry != expected:
        raise CheckpointError(f"{name} does not fit its key", key=spec.key,
                              expected=tuple(expected), got=tuple(entry))
