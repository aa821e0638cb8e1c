"""init() at a worker: rank 0's values go to the servers, the others wait until the keys exist."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from asyncps.protocol import messages
from asyncps.protocol.frames import HEADER_SIZE, Kind
from asyncps.protocol.messages import KeySpec, Placed, UnitSpec
from asyncps.roles import tablework
from asyncps.roles.joining import learn
from asyncps.roles.operation import Operation, no_worker, why_failed
from asyncps.roles.plan import RemoteUnit
from asyncps.roles.remotetable import post
from asyncps_ext import wire

if TYPE_CHECKING:
    from asyncps.roles.client import Client
    from asyncps.roles.worker import Worker

pack_header: Callable[..., bytes] = wire.pack_header

_PRIORITY = 1 << 20  # before the values of rounds


async def initialise(
    worker: Worker, client: Client, specs: Sequence[KeySpec], values: Sequence[Any]
) -> None:
    """Initialise keys: rank 0's values count for everyone.

    Args:
        worker: This worker.
        client: The store.
        specs: The keys.
        values: Their values as bytes, lent until this returns; used by rank 0 only. Of a
            row-sparse key (ids, bytes of the rows), or None.

    Raises:
        AsyncPSError: A key exists with another dtype or shape, or the cluster failed.
    """
    if worker.node.rank:
        answer = await worker.questions.ask(
            messages.Await(client.number, list(specs)), "to initialise these keys"
        )
        assert isinstance(answer, Placed)
        await learn(client, answer.placements, worker.ask_server)
        return
    answer = await worker.node.ask(messages.Declare(client.number, list(specs)))
    assert isinstance(answer, Placed)
    await learn(client, answer.placements, worker.ask_server)
    op = Operation("init", lent=True)
    op.since = asyncio.get_running_loop().time()
    failed = None
    fresh: list[messages.Key] = []
    try:
        _send(client, op, answer.placements, values, fresh)
    except Exception as error:  # noqa: BLE001 - `why_failed` tells it
        failed = why_failed(op, error, no_worker)  # what went out before is waited for all the same
    op.part_done(failed)
    await worker.settle(op)
    if op.error is not None:
        raise op.error.again()
    await worker.node.ask(messages.Ready(client.number, fresh))


def _send(
    client: Client, op: Operation, placements: Sequence[messages.Placement],
    values: Sequence[Any], fresh: list[messages.Key],
) -> None:
    """Send the values of keys that are new, and note those keys."""
    slabs: dict[RemoteUnit, list[tuple[int, KeySpec, memoryview]]] = {}
    for placement, value in zip(placements, values, strict=True):
        if not placement.fresh:
            continue
        fresh.append(placement.spec.key)
        if placement.spec.rows is not None:
            tablework.init(client, op, client.keys[placement.spec.key], value)
            continue
        for unit, piece in client.keys[placement.spec.key].pieces:
            if unit.slab:
                slabs.setdefault(unit, []).append((piece.row, placement.spec, value))
                continue
            spec = UnitSpec(placement.spec.dtype, False, 0, [placement.spec.key], [piece.size])
            _send_unit(client, op, unit, spec, value[piece.start : piece.start + piece.size])
    for unit, rows in slabs.items():
        _send_rows(client, op, unit, rows)


def _send_unit(
    client: Client, op: Operation, unit: RemoteUnit, spec: UnitSpec, value: memoryview
) -> None:
    """Send the first value of a chunk, or of new rows of a slab."""
    number = unit.link.number()
    table = messages.encode(spec)
    header = pack_header(
        Kind.INIT, 0, client.incarnation, client.number, number, unit.number, _PRIORITY, 0,
        len(table), len(value), 0, 0,
    )
    size = HEADER_SIZE + len(table) + len(value)
    post(op, unit, number, _PRIORITY, [header, table, value], size)


def _send_rows(
    client: Client, op: Operation, unit: RemoteUnit, rows: list[tuple[int, KeySpec, memoryview]]
) -> None:
    """Send new rows of a slab, in order, as one frame for each run of neighbours."""
    rows.sort(key=lambda item: item[0])
    begin = 0
    while begin < len(rows):
        end = begin + 1
        while end < len(rows) and rows[end][0] == rows[end - 1][0] + 1:
            end += 1
        run = rows[begin:end]
        spec = UnitSpec(
            run[0][1].dtype, True, run[0][0], [item[1].key for item in run],
            [len(item[2]) for item in run],
        )
        _send_unit(client, op, unit, spec, memoryview(b"".join(item[2] for item in run)))
        begin = end
