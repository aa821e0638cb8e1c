"""The state of one store, from the servers to a checkpoint: the work of the worker that leads."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from asyncps import optim
from asyncps.errors import CheckpointError, DeadlineExceeded, OptimizerError
from asyncps.protocol import messages
from asyncps.protocol.messages import Key, PartState, Placement, UnitState
from asyncps.roles import keptrows, storingrows
from asyncps.roles.client import Client
from asyncps.roles.fetching import Disk, Window, fetch
from asyncps.roles.keeping import Keeping
from asyncps.roles.stretches import Place, Range, Stretch, places_of, ranges_of
from asyncps.roles.worker import Worker
from asyncps.state.keyspecs import size_of
from asyncps.tensor.checkpoint import Contents, Writer
from asyncps.tensor.safefile import Entry
from asyncps.tensor.words import MASTER, MAX_STATE_NAME, MAX_STATES
from asyncps.transport.link import Link

Path = str | os.PathLike[str]

# Between two questions to a server that applies a round.
_AGAIN_S = 0.02


@dataclass(frozen=True, slots=True)
class Kept:
    """What all servers keep for a store, without the values.

    Attributes:
        optimizer: Its name, or None.
        hyper: Its newest hyper-parameters.
        units: For each unit the part that each of its rows belongs to.
        tables: What is said of the units of row-sparse keys.
    """

    optimizer: str | None
    hyper: dict[str, Any]
    units: dict[int, dict[int, PartState]]
    tables: dict[int, UnitState] = field(default_factory=dict)


async def list_keys(worker: Worker, client: Client) -> list[Placement]:
    """Return where all keys of a store live, in the order in which they were made."""
    found: list[Placement] = []
    while True:
        answer = await worker.node.ask(messages.ListKeys(client.number, len(found)))
        assert isinstance(answer, messages.Placed)
        if not answer.placements:
            return found
        found += answer.placements


async def ask_units(worker: Worker, client: Client) -> Kept:
    """Ask all servers what they keep.

    Raises:
        Disagreement: A round is open: workers have not pushed a key equally often.
    """
    kept = Kept(None, {}, {})
    for link in worker.links:
        after = -1
        while True:
            question = messages.AskUnits(client.number, after)
            answer = await _when_applied(worker, link, question)
            if after < 0:
                kept = Kept(answer.optimizer, answer.hyper, kept.units, kept.tables)
            if not answer.units:
                break
            after = answer.units[-1].unit
            for unit in answer.units:
                kept.units[unit.unit] = {row: part for part in unit.parts for row in part.rows}
                if unit.rows is not None:
                    kept.tables[unit.unit] = unit
    return kept


async def _when_applied(
    worker: Worker, link: Link, question: messages.AskUnits
) -> messages.Units:
    """Ask until no optimizer of the user's own is at work on a round that is complete.

    Raises:
        DeadlineExceeded: It takes longer than a round may.
    """
    loop = asyncio.get_running_loop()
    until = loop.time() + worker.config.round_s
    while True:
        answer = await worker.ask_server(link, question)
        assert isinstance(answer, messages.Units)
        if not answer.at_work:
            return answer
        if loop.time() > until:
            raise DeadlineExceeded(f"the optimizer {answer.optimizer!r} at {link.name} did not end "
                                   f"within {worker.config.round_s:g} s")
        await asyncio.sleep(_AGAIN_S)


async def save(
    worker: Worker, client: Client, path: Path, *, weights: bool, keeping: Keeping | None = None
) -> None:
    """Fetch the state of all servers and write it.

    Args:
        worker: The one that leads.
        client: The store.
        path: Where the checkpoint will stand.
        weights: False for what the optimizer keeps alone.
        keeping: What compressed keys have not sent, if there may be any.

    Raises:
        OptimizerError: There is no optimizer, and nothing else was asked for.
        CheckpointError: It could not be written; what stood there still does.
        AsyncPSError: The cluster failed.
    """
    listed = [each for each in await list_keys(worker, client) if not each.fresh]
    kept = await ask_units(worker, client)
    if kept.optimizer is None and not weights:
        raise OptimizerError("no optimizer is set", expected="set_optimizer first")
    tables = storingrows.tables_of(listed, kept.tables, weights=weights)
    dense = [each for each in listed if each.spec.rows is None]
    places = places_of(dense)
    clocks, state = _what_is_kept(kept, places)
    clocks.update((table.key, table.updates) for table in tables)
    if keeping is not None:
        await keeping.begin({each.spec.key: size_of(each.spec) // each.spec.itemsize
                             for each in dense},
                            {each.spec.key: keptrows.width_of(each.spec)
                             for each in listed if each.spec.rows is not None})
    contents = Contents(
        {each.spec.key: Entry(each.spec.dtype, each.spec.shape) for each in dense}
        if weights else {},
        state,
        {table.key: (table.words, table.entries) for table in tables},
        {} if keeping is None else keeping.entries,
        {} if keeping is None else keeping.extras,
    )
    meta = {
        **({} if keeping is None else keeping.meta),
        "store": client.config.type,
        "optimizer": None if kept.optimizer is None else {
            "name": kept.optimizer, "hyper": kept.hyper},
        "clocks": [[each.spec.key, clocks.get(each.spec.key, 0)] for each in listed],
    }
    async with Disk() as disk:
        writer = await disk.run(Writer, path, contents, meta)
        try:
            await disk.run(writer.__enter__)
            await _stream(worker, client, places, contents, disk, writer)
            await storingrows.stream(worker, client, tables, disk, writer)
            if keeping is not None:
                await keeping.write(disk, writer)
            await disk.run(writer.finish)
        finally:
            disk.last(writer.__exit__, None, None, None)


def _what_is_kept(
    kept: Kept, places: Sequence[Place]
) -> tuple[dict[Key, int], dict[Key, dict[str, Entry]]]:
    """Return the count of updates of each key, and its states, of what its units say."""
    clocks: dict[Key, int] = {}
    found: dict[Key, list[Mapping[str, str]]] = {}
    elements: dict[Key, int] = {}
    for place in places:
        rows = kept.units.get(place.unit, {})
        for stretch in place.stretches:
            part = rows.get(stretch.row)
            if part is None:
                raise CheckpointError("a server lacks a part of this key", key=stretch.key)
            clocks[stretch.key] = max(part.updates, clocks.get(stretch.key, 0))
            found.setdefault(stretch.key, []).append(part.state)
            elements[stretch.key] = elements.get(stretch.key, 0) + stretch.length
    kind = optim.REGISTRY.get(kept.optimizer or "")
    begin_at_zero = kind is not None and kind.builtin
    state: dict[Key, dict[str, Entry]] = {}
    for key, parts in found.items():
        for name in sorted({name for part in parts for name in part}):
            types = {part.get(name) for part in parts}
            if None in types and not (begin_at_zero or name == MASTER):
                raise CheckpointError(f"a part of this key has no state {name!r}", key=key)
            types.discard(None)
            if len(types) != 1:
                raise CheckpointError(f"state {name!r} of this key is of several dtypes", key=key,
                                      got=types)
            entry = Entry(str(types.pop()), (elements[key],))
            state.setdefault(key, {})[name] = entry
    for key, arrays in state.items():
        check_names(key, arrays)
    return clocks, state


def check_names(key: Key, arrays: Iterable[str]) -> None:
    """Refuse more states of a key, or longer names, than a server takes back.

    Raises:
        CheckpointError: It says how many and which.
    """
    names = [name for name in arrays if name != MASTER]
    if len(names) > MAX_STATES or any(len(name) > MAX_STATE_NAME for name in names):
        raise CheckpointError(
            "what an optimizer keeps for this key is too much for a checkpoint", key=key,
            expected=f"at most {MAX_STATES} arrays, names of at most {MAX_STATE_NAME} characters",
            got=f"{len(names)}: {', '.join(name[:MAX_STATE_NAME] for name in names[:4])}")


async def _stream(
    worker: Worker, client: Client, places: Sequence[Place], contents: Contents, disk: Disk,
    writer: Writer,
) -> None:
    """Fetch all arrays, unit by unit, and write each range when it is there."""
    window = Window(worker.config.answer_s)
    for place in places:
        if contents.weights:
            await _fetch(worker, client, window, place, place.stretches, None, "", place.itemsize,
                         disk, writer)
        for name, dtype, stretches in states_of(place, contents.state):
            await _fetch(worker, client, window, place, stretches, name, dtype,
                         Entry(dtype, ()).itemsize, disk, writer)
    await window.finish()


def states_of(
    place: Place, state: Mapping[Key, Mapping[str, Entry]]
) -> list[tuple[str, str, list[Stretch]]]:
    """Return the states of a unit: name, dtype, and the stretches that have it."""
    found: dict[tuple[str, str], list[Stretch]] = {}
    for stretch in place.stretches:
        for name, entry in state.get(stretch.key, {}).items():
            found.setdefault((name, entry.dtype), []).append(stretch)
    return [(name, dtype, stretches) for (name, dtype), stretches in sorted(found.items())]


async def _fetch(
    worker: Worker, client: Client, window: Window, place: Place, stretches: Sequence[Stretch],
    name: str | None, dtype: str, itemsize: int, disk: Disk, writer: Writer,
) -> None:
    link = worker.links[place.server]
    for wanted in ranges_of(stretches, itemsize):
        buffer = client.pool.take(wanted.size)
        question = messages.StateRange(client.number, place.unit, name or "", dtype, wanted.begin,
                                       wanted.size)

        async def use(buffer: Any, wanted: Range) -> None:
            await disk.run(_write, writer, name, wanted, buffer.data)
            client.pool.give(buffer)

        asking = fetch(link, question, client.incarnation, buffer.data)
        await window.add(link, asking, wanted.size, partial(use, buffer, wanted))


def _write(writer: Writer, name: str | None, wanted: Range, view: memoryview) -> None:
    for part in wanted.parts:
        writer.write(part.key, name, part.start, view[part.at : part.at + part.size])
