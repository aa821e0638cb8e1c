"""An encoded contribution to a table at a server: the names of its rows, then their values.

As of dense keys nothing is taken into memory before its sizes can be right, and nothing is counted
before its ids and indices are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from asyncps.errors import RemoteProtocolError
from asyncps.protocol import rows
from asyncps.protocol.frames import (
    MAX_DECODED_BYTES,
    MAX_PAYLOAD_BYTES,
    PUSH,
    Flag,
    Header,
)
from asyncps.roles import encoded
from asyncps.roles.encoded import Described, Encoded
from asyncps.roles.tableunit import TableParts
from asyncps.tensor.codecs import Stateful
from asyncps.tensor.pool import Bytes
from asyncps_ext.seeds import seed_of

if TYPE_CHECKING:
    from asyncps.roles.holdings import Holdings, Target

_MOST_OF_ONE = 8  # bytes of a value in a payload whose size depends on the values


def find(keeper: Holdings, header: Header, told: Described) -> Target:
    """Return what an encoded frame speaks of, checked but for its payload.

    Raises:
        UnknownKey, RemoteProtocolError: As `encoded.find` and `encoded.layout`.
    """
    unit = keeper.units.get(header.unit)
    if isinstance(unit, TableParts):
        _check_sizes(unit, header, told)
        return unit, None
    target = encoded.find(keeper, header, told)
    encoded.layout(target, header, told)
    return target


def received(target: Target, header: Header, told: Described, buffer: Bytes) -> Encoded:
    """Return a contribution whose payload has come.

    Raises:
        RemoteProtocolError: Its payload cannot be right.
        TensorError: Rows that are not here.
    """
    unit = target[0]
    if not isinstance(unit, TableParts):
        return encoded.received(target, header, told, buffer)
    named = rows.parse(buffer.data)
    if named.number * unit.table.width != told.elements:
        raise RemoteProtocolError("not the elements of the rows",
                                  expected=named.number * unit.table.width, got=told.elements)
    unit.check_named(named)
    found = Encoded(told.codec, buffer, (told.elements,), (named.size, buffer.nbytes),
                    (seed_of(told.seed, 0) if told.codec.is_seeded else 0,))
    found.check()
    return found


def _check_sizes(unit: TableParts, header: Header, told: Described) -> None:
    """Refuse a frame that cannot be right by its header and table, before its payload is taken.

    Raises:
        RemoteProtocolError: It says what was expected and what came.
    """
    codec, table = told.codec, unit.table
    if header.kind != PUSH or header.flags != Flag.CODEC or told.sizes is not None:
        raise RemoteProtocolError("an encoded frame that a row-sparse key does not take",
                                  expected="a PUSH with the flag CODEC", got=header.kind)
    if unit.dtype.sum != np.float32 or isinstance(codec, Stateful):
        raise RemoteProtocolError(f"codec {codec.name} for rows that are not encoded so",
                                  expected="rows of f32, f16 or bf16", got=unit.dtype.name)
    number, rest = divmod(told.elements, table.width)
    if rest or number > table.stop - table.first or number * unit.row_bytes > MAX_PAYLOAD_BYTES:
        raise RemoteProtocolError(
            "not the elements of rows that are here", got=told.elements,
            expected=f"{table.width} for each of at most {table.stop - table.first} rows")
    fixed = codec.nbytes(told.elements)
    if fixed is None and told.elements * 4 > MAX_DECODED_BYTES:
        raise RemoteProtocolError(f"more rows than codec {codec.name} may stand for in one frame",
                                  expected=f"at most {MAX_DECODED_BYTES} bytes of float32",
                                  got=told.elements * 4)
    least = rows.HEAD_BYTES + (fixed or 0)
    most = least + (number + 1) * 8
    if fixed is None:
        most += told.elements * _MOST_OF_ONE
    if not least <= header.payload_bytes <= most:
        raise RemoteProtocolError(f"not the bytes of codec {codec.name}",
                                  expected=f"{least} to {most}", got=header.payload_bytes)

