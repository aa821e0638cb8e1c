"""How the arrays of one collective call travel: its schedule, and the memory of its result."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from asyncps.errors import RemoteProtocolError
from asyncps.protocol.collective import Group, Verb
from asyncps.roles.reducing import reduce_into
from asyncps.state import schedules
from asyncps.state.matching import One
from asyncps.state.schedules import Schedule
from asyncps.tensor import dtypes
from asyncps.tensor.pool import Bytes

# A large chunk costs the interpreter half as much a byte; a small one lets sending and adding
# overlap where there are few of them.
CHUNK_BYTES, LARGE_CHUNK_BYTES = 1 << 20, 2 << 20


class Planned(NamedTuple):
    """What a call needs.

    Attributes:
        schedule: Who sends what.
        result: Where the result belongs: the array itself, or new memory.
        shift: Of a result that is a share of the array: where that begins.
        counts: Of an all-to-all: how many rows come from each rank.
    """

    schedule: Schedule
    result: Bytes
    shift: int = 0
    counts: list[int] | None = None


def plan(
    group: Group, at: int, array: Bytes, ones: Sequence[One], order: Sequence[int], me: int,
    near: Collection[int],
) -> Planned:
    """Return the plan of a call.

    Args:
        group, at: What this rank has called.
        array: The bytes of its array.
        ones: The calls of all that take part, in the order of ranks.
        order: These ranks.
        me: The place of this one among them.
        near: The places of those on this machine.
    """
    parts, verb = len(order), group.verb
    if verb == Verb.ALL_REDUCE:
        bounds = schedules.shares(array.nbytes, group.itemsize, parts)
        chunk = _chunk_of(bounds)
        return Planned(schedules.Reduction(me, bounds, chunk, comes_back=True, near=near), array)
    if verb == Verb.REDUCE_SCATTER:
        bounds = row_bounds(group, at, parts)
        return Planned(schedules.Reduction(me, bounds, _chunk_of(bounds), comes_back=False),
                       np.empty(bounds[me + 1] - bounds[me], np.uint8), bounds[me])
    if verb == Verb.BROADCAST:
        flows = schedules.broadcast_flows(order.index(group.root), parts, array.nbytes)
        return Planned(schedules.Transfer(me, flows, CHUNK_BYTES), array)
    if verb == Verb.ALL_GATHER:
        sizes = [one.calls.group.sizes[one.at] for one in ones]
        result = np.empty(sum(sizes), np.uint8)
        begin = sum(sizes[:me])
        result[begin : begin + array.nbytes] = array
        flows = schedules.gather_flows(sizes)
    elif verb == Verb.ALL_TO_ALL:
        splits = [_split_bytes(one, parts) for one in ones]
        received = [split[me] for split in splits]
        result = np.empty(sum(received), np.uint8)
        begin, own = sum(received[:me]), sum(splits[me][:me])
        result[begin : begin + received[me]] = array[own : own + received[me]]
        schedule = schedules.Transfer(me, schedules.exchange_flows(splits), CHUNK_BYTES)
        return Planned(schedule, result, counts=[one.calls.group.splits[me] for one in ones])
    else:
        raise RemoteProtocolError("a barrier with arrays", got=verb)
    return Planned(schedules.Transfer(me, flows, CHUNK_BYTES), result)


def _chunk_of(bounds: Sequence[int]) -> int:
    share = max(stop - start for start, stop in pairwise(bounds))
    return LARGE_CHUNK_BYTES if share >= 2 * LARGE_CHUNK_BYTES else CHUNK_BYTES


def at_once(
    group: Group, at: int, array: Bytes, ones: Sequence[One], order: Sequence[int], me: int
) -> Bytes | None:
    """Carry out a call whose arrays have come with its word.

    Args:
        group, at, array, ones, order: As `plan` has them.
        me: This rank.

    Returns:
        The bytes of a new array; None where the result lies in `array`.
    """
    if group.verb == Verb.BROADCAST:
        if group.root != me:
            array[:] = array_of(ones[order.index(group.root)], array.nbytes)
        return None
    if group.verb == Verb.ALL_GATHER:
        return np.concatenate([array_of(one) for one in ones])
    if group.verb not in (Verb.ALL_REDUCE, Verb.REDUCE_SCATTER):
        return None
    parts = [array_of(one, array.nbytes) for one in ones]
    result: Bytes | None = None
    if group.verb == Verb.REDUCE_SCATTER:
        bounds = row_bounds(group, at, len(ones))
        place = order.index(me)
        parts = [part[bounds[place] : bounds[place + 1]] for part in parts]
        result = np.empty(bounds[place + 1] - bounds[place], np.uint8)
    out = array if result is None else result
    if out.nbytes:
        reduce_into(dtypes.by_name(group.dtype), group.op, parts, out, group.factor)
    return result


def array_of(one: One, expected: int | None = None) -> Bytes:
    """Return the array of one call of a group that came with all its arrays."""
    begins = one.calls.begins
    payload: Bytes = one.calls.payload.payload
    begin, end = begins[one.at], begins[one.at + 1]
    if payload.nbytes != begins[-1] or expected not in (None, end - begin):
        raise RemoteProtocolError("arrays of another size than their calls say",
                                  expected=begins[-1], got=payload.nbytes)
    return payload[begin:end]


def row_bounds(group: Group, at: int, parts: int) -> list[int]:
    """Return where the rows of each rank begin, in bytes, and the end of all."""
    rows = group.shapes[at][0]
    each = group.sizes[at] // rows if rows else 0
    firsts = [rows // parts * part + min(part, rows % parts) for part in range(parts + 1)]
    return [first * each for first in firsts]


def _split_bytes(one: One, parts: int) -> list[int]:
    """Return how many bytes each rank gets of one rank's array."""
    group = one.calls.group
    shape = group.shapes[one.at]
    splits = group.splits
    if len(splits) != parts or sum(splits) != shape[0]:
        raise RemoteProtocolError("splits that are not those of the rows", got=splits,
                                  expected=f"{parts} that sum to {shape[0]}")
    each = math.prod(shape[1:]) * group.itemsize
    return [split * each for split in splits]
