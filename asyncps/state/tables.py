"""Where row-sparse keys live: contiguous rows at each server, one unit a server.

Nobody knows how many rows will be used, so a table weighs nothing when other keys are placed: it is
spread as evenly as it can be.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from asyncps.errors import OptimizerError, ShapeMismatch
from asyncps.protocol.messages import Key, KeySpec, Piece

# A row travels whole, so that one fits into a frame with all that belongs to it.
MAX_ROW_BYTES = 64 << 20


def check_spec(spec: KeySpec) -> None:
    """Check a row-sparse key as a peer describes it.

    Raises:
        ShapeMismatch: It has no rows, or rows that are empty or too large.
    """
    if not spec.shape or 0 in spec.shape[1:]:
        raise ShapeMismatch("not the shape of a row-sparse key", key=spec.key, got=spec.shape,
                            expected="a number of rows, and rows that are not empty")
    size = math.prod(spec.shape[1:]) * spec.itemsize
    if size > MAX_ROW_BYTES:
        raise ShapeMismatch("rows that are too large", key=spec.key, got=f"{size} bytes",
                            expected=f"at most {MAX_ROW_BYTES} bytes a row")


def place(spec: KeySpec, loads: Sequence[int], unit: int) -> list[Piece]:
    """Cut a table over the servers.

    Args:
        spec: The key.
        loads: Bytes of each server: of a table with fewer rows than servers the emptiest get one.
        unit: The number of its first unit; there is room for one a server.
    """
    count = spec.shape[0]
    servers = sorted(range(len(loads)), key=lambda server: (loads[server], server))
    chosen = sorted(servers[: min(count, len(loads))])
    pieces = []
    first = 0
    for index, server in enumerate(chosen):
        rows = count // len(chosen) + (index < count % len(chosen))
        pieces.append(Piece(server, unit + index, first, rows, -1, 0))
        first += rows
    return pieces


def words(spec: KeySpec) -> str:
    """Return what kind of key it is, for messages."""
    return "a dense key" if spec.rows is None else f"a row-sparse key of {spec.rows}"


def not_whole(key: Key) -> OptimizerError:
    """Return the error of an optimizer that needs whole keys where there is a table."""
    return OptimizerError(
        "the optimizer needs whole keys, and a row-sparse key is spread over the servers",
        key=key, expected="an optimizer that works element by element")
