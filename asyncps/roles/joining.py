"""join() at a worker: out of data, not waited for until all are, and then counted again.

While some have joined, the others' clocks go on. When all have, the servers let everybody stand at
the furthest clock of each unit, and this worker takes its clocks from them, before it pushes again.
Keys that it learns later have gone on likewise, so their clocks are asked for first.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from asyncps.errors import (
    AsyncPSError,
    ClusterError,
    DeadlineExceeded,
    RemoteProtocolError,
)
from asyncps.protocol import messages
from asyncps.protocol.attending import MAX_CLOCK_UNITS
from asyncps.protocol.messages import AnyMessage, Placement
from asyncps.transport.link import Link

if TYPE_CHECKING:
    from asyncps.roles.client import Client
    from asyncps.roles.operation import Operation
    from asyncps.roles.worker import Worker

log = logging.getLogger(__name__)

Ask = Callable[[Link, messages.Message], Awaitable[AnyMessage]]


async def join(worker: Worker, client: Client, ask: Ask) -> int:
    """Flush, and wait until all workers have joined; return the last of them.

    Whoever is cancelled here has joined all the same; who asks again waits for the same end.

    Args:
        worker: This worker.
        client: The store.
        ask: Asks a server a question.

    Raises:
        AsyncPSError: A push failed, and this worker has not joined; or the cluster failed.
    """
    joining, client.given_up = client.given_up or client.joining, None
    if joining is None:
        joining = client.joining = asyncio.get_running_loop().create_future()
        worker.node.spawn(_carry(worker, client, joining, ask),
                          f"the join of worker {worker.node.rank}")
    try:
        return await asyncio.shield(joining)
    except asyncio.CancelledError:
        client.given_up = joining
        raise


def joined_error(verb: str) -> ClusterError:
    """Return what a worker hears that pushes or assigns while it is not counted."""
    return ClusterError(f"{verb} of a worker that has joined: it counts again when all have")


def stands_still(client: Client, op: Operation) -> bool:
    """Tell whether a store is saved or loaded, and does not wait for this call to begin."""
    still = client.still
    return bool(still) and not op.whole and (op.verb != "pull" or still.startswith("load"))


def takes(client: Client, op: Operation) -> bool:
    """Tell whether `Client.send` would take a call now, for whoever has rows to send before it."""
    if client.closed or stands_still(client, op):
        return False
    return op.verb == "pull" or client.joining is None


async def learn(client: Client, placements: Sequence[Placement], ask: Ask) -> None:
    """Learn where keys live.

    Args:
        client: The store.
        placements: What the scheduler says.
        ask: Asks a server a question.
    """
    units = [(piece.server, piece.unit) for placement in placements for piece in placement.pieces]
    clocks: dict[int, list[int]] = {}
    joins = -1
    while joins != client.joins and (client.joins or client.joining is not None):
        joins = client.joins
        clocks = await _clocks(client, units, ask)
    client.add_placements(placements)
    _catch_up(client, clocks)


async def _carry(
    worker: Worker, client: Client, joining: asyncio.Future[int], ask: Ask
) -> None:
    try:
        await worker.accepted(client)
        answer = await worker.questions.ask(
            messages.JoinStore(client.number), "to join", limit_s=math.inf
        )
        if not isinstance(answer, messages.AllJoined):
            raise RemoteProtocolError("no answer to a join", got=type(answer).__name__)
        ask = _insisting(ask)
        known: set[int] = set()
        clocks: dict[int, list[int]] = {}
        while not client.units.keys() <= known:  # another thread may learn of keys meanwhile
            known = set(client.units)
            places = [(unit.server, unit.number) for unit in client.units.values()]
            clocks = await _clocks(client, places, ask)
        _catch_up(client, clocks)
        client.joins += 1
    except AsyncPSError as error:
        client.joining = None
        joining.set_exception(error)
        joining.exception()  # it may be that nobody waits any more
    except BaseException:
        client.joining = None
        joining.cancel()
        raise
    else:
        client.joining = None
        joining.set_result(answer.last)


def _insisting(ask: Ask) -> Ask:
    """Ask until the answer comes or the cluster fails.

    The servers count this worker already: with the clocks of before, what it pushes would be taken
    for replays.
    """
    async def insist(link: Link, message: messages.Message) -> AnyMessage:
        while True:
            try:
                return await ask(link, message)
            except DeadlineExceeded as error:
                log.warning("after a join: %s; asking again", error)

    return insist


async def _clocks(
    client: Client, places: Iterable[tuple[int, int]], ask: Ask
) -> dict[int, list[int]]:
    """Ask the servers for this worker's clocks of units: (server, unit)."""
    by_server: dict[int, set[int]] = {}
    for server, unit in places:
        by_server.setdefault(server, set()).add(unit)
    found: dict[int, list[int]] = {}
    for server, units in by_server.items():
        listed = sorted(units)
        for begin in range(0, len(listed), MAX_CLOCK_UNITS):
            part = listed[begin : begin + MAX_CLOCK_UNITS]
            answer = await ask(client.links[server], messages.Clocks(client.number, part, []))
            if not isinstance(answer, messages.Clocks) or len(answer.clocks) != len(part):
                raise RemoteProtocolError("no answer to a question for clocks")
            found.update(zip(part, answer.clocks, strict=True))
    return found


def _catch_up(client: Client, clocks: dict[int, list[int]]) -> None:
    for unit, theirs in clocks.items():
        client.units[unit].track.catch_up(theirs)
