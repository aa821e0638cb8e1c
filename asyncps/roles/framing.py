"""The data frames of a worker and their answers, alike on the loop's way and on a lane."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np

from asyncps.errors import TensorError
from asyncps.protocol.frames import HEADER_SIZE, Flag
from asyncps.roles.coded import Payload
from asyncps.roles.held import Scatter
from asyncps.roles.plan import RemoteUnit
from asyncps.state.requests import Step
from asyncps.tensor.pool import Bytes
from asyncps_ext import wire

pack_header: Callable[..., bytes] = wire.pack_header
scatter_rows: Callable[..., int] = wire.scatter_rows


class Sender(Protocol):
    """What a frame says of the store that sends it.

    Attributes:
        number: The store's.
        incarnation: This worker's.
        hyper_version: Of the hyper-parameters that it holds.
    """

    number: int
    incarnation: int
    hyper_version: int


def data_frame(
    sender: Sender, kind: int, unit: RemoteUnit, step: Step, number: int, priority: int, size: int,
    value: memoryview | Payload | None, flags: int = 0,
    tail: bytes = b"",
) -> tuple[list[bytes | memoryview], int]:
    """Return the parts of a data frame, and the bytes of all parts.

    Args:
        sender: The store.
        kind: Such as PUSHPULL.
        unit: What it speaks of.
        step: The round and the rows.
        number: Of the request.
        priority: Of its answer.
        size: Bytes of the value that it brings or asks for.
        value: What it brings, if anything; the frame keeps this view, or that of a payload.
        flags: How the answer is to travel.
        tail: More of that, behind all else of the table.
    """
    table = b""
    if step.rows is not None and unit.slab:
        flags |= Flag.ROWS
        table = np.asarray(step.rows, "<u4").tobytes()
    if isinstance(value, Payload):
        flags |= Flag.CODEC
        table += value.tail
        value = value.data
        size = len(value)
    table += tail
    payload = 0 if value is None else size
    header = pack_header(
        kind, flags, sender.incarnation, sender.number, number, unit.number, priority, step.clock,
        len(table), payload, unit.track.floor(step),
        sender.hyper_version if value is not None else size,
    )
    parts: list[bytes | memoryview] = [header]
    if table:
        parts.append(table)
    if value is not None and payload:  # of a sparse codec there may be none
        parts.append(value)
    return parts, HEADER_SIZE + len(table) + payload


def spread(value: Bytes | memoryview, scatter: Scatter) -> TensorError | None:
    """Write the rows of an answer to the caller's arrays.

    Args:
        value: The rows, one behind the other.
        scatter: Where they go.

    Returns:
        What the caller hears if one of them, which could be written when the call began, no longer
        can; the rows before it were written.
    """
    if scatter_rows(value, *scatter) >= 0:
        return TensorError("out can no longer be written")
    return None
