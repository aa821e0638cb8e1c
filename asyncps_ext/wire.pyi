from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

_Buffer: TypeAlias = bytes | bytearray | memoryview | NDArray[Any]
_Header: TypeAlias = tuple[int, int, int, int, int, int, int, int, int, int, int, int]

HEADER_SIZE: int

def pack_header(
    kind: int,
    flags: int,
    incarnation: int,
    store: int,
    request: int,
    unit: int,
    priority: int,
    clock: int,
    table_bytes: int,
    payload_bytes: int,
    acked: int,
    hyper: int,
) -> bytes: ...
def parse_header(buffer: _Buffer, offset: int = 0) -> _Header: ...
def crc32c(buffer: _Buffer, seed: int = 0) -> int: ...
def look(fd: int, buffer: _Buffer, look_s: float) -> int: ...
def wake_at(fd: int, count: int) -> None: ...
def gather_rows(
    values: Sequence[object],
    dtype: np.dtype[Any],
    shapes: Sequence[tuple[int, ...]],
    out: _Buffer,
    cast: bool = False,
) -> int: ...
def scatter_rows(
    buffer: _Buffer,
    dtype: np.dtype[Any],
    shapes: Sequence[tuple[int, ...]],
    outs: Sequence[object],
) -> int: ...
def check_rows(
    values: Sequence[object],
    dtype: np.dtype[Any],
    shapes: Sequence[tuple[int, ...]],
    writable: bool = False,
) -> int: ...
def distinct(values: Sequence[object]) -> bool: ...
def _variants() -> tuple[str, ...]: ...
def _set_variant(name: str) -> str: ...
