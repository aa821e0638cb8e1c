"""Frame headers, CRC-32C and the packing of rows, in plain Python and NumPy."""

from __future__ import annotations

import errno
import operator
import os
import select
import socket
import stat
import struct
import time
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from asyncps_ext.reference.checks import set_variant as _set_variant
from asyncps_ext.reference.checks import variants as _variants

__all__ = [
    "HEADER_SIZE",
    "_set_variant",
    "_variants",
    "check_rows",
    "crc32c",
    "gather_rows",
    "look",
    "pack_header",
    "parse_header",
    "scatter_rows",
    "wake_at",
]

Buffer: TypeAlias = bytes | bytearray | memoryview | NDArray[Any]
Header: TypeAlias = tuple[int, int, int, int, int, int, int, int, int, int, int, int]

HEADER_SIZE = 72
_CRC_AT = 68
_MAGIC = 0x31535041  # "APS1", little-endian
_VERSION = 1
_FIELDS = struct.Struct("<IBBHIIQIiQQQQI")


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
) -> bytes:
    """The 72 bytes of a frame header, little-endian, checksum included.

    Offsets and types: 0 u32 magic "APS1", 4 u8 version, 5 u8 kind, 6 u16 flags, 8 u32 incarnation,
    12 u32 store, 16 u64 request, 24 u32 unit, 28 i32 priority, 32 u64 clock, 40 u64 table_bytes,
    48 u64 payload_bytes, 56 u64 acked, 64 u32 hyper, 68 u32 CRC-32C of the bytes before it.

    Raises:
        OverflowError: A value does not fit its field.
        TypeError: A value is not an integer.
    """
    addressed = (kind, flags, incarnation, store, request, unit, priority, clock)
    values = (*addressed, table_bytes, payload_bytes, acked, hyper)
    numbers = [operator.index(value) for value in values]
    try:
        packed = _FIELDS.pack(_MAGIC, _VERSION, *numbers)
    except struct.error as error:
        raise OverflowError(f"a value does not fit the header: {error}") from error
    return packed + struct.pack("<I", crc32c(packed))


def parse_header(buffer: Buffer, offset: int = 0) -> Header:
    """The twelve values of the header at an offset, in the order of `pack_header`.

    Raises:
        ValueError: The text begins with "short", "magic", "version" or "crc".
    """
    view = _flat(buffer)
    if offset < 0 or len(view) - offset < HEADER_SIZE:
        raise ValueError(
            f"short header: {HEADER_SIZE} bytes wanted at {offset}, {len(view)} in all"
        )
    header = view[offset : offset + HEADER_SIZE]
    magic, version, *values = _FIELDS.unpack_from(header)
    if magic != _MAGIC:
        raise ValueError(f"magic of a frame expected, not 0x{magic:08x}")
    if version != _VERSION:
        raise ValueError(f"version {_VERSION} expected, not {version}")
    if crc32c(header[:_CRC_AT]) != int.from_bytes(header[_CRC_AT:], "little"):
        raise ValueError("crc of the header is wrong")
    (kind, flags, incarnation, store, request, unit, priority, clock) = values[:8]
    (table_bytes, payload_bytes, acked, hyper) = values[8:]
    addressed = (kind, flags, incarnation, store, request, unit, priority, clock)
    return (*addressed, table_bytes, payload_bytes, acked, hyper)


def _crc_table() -> list[int]:
    table = []
    for byte in range(256):
        crc = byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0x82F63B78 if crc & 1 else 0)
        table.append(crc)
    return table


_CRC_TABLE = _crc_table()


def crc32c(buffer: Buffer, seed: int = 0) -> int:
    """CRC-32C (Castagnoli) of a buffer; seed is the CRC of the bytes that came before it."""
    if not 0 <= operator.index(seed) <= 0xFFFFFFFF:
        raise OverflowError(f"a seed has 32 bits, {seed} does not fit")
    crc = seed ^ 0xFFFFFFFF
    for byte in _flat(buffer):
        crc = (crc >> 8) ^ _CRC_TABLE[(crc ^ byte) & 0xFF]
    return crc ^ 0xFFFFFFFF


def look(fd: int, buffer: Buffer, look_s: float) -> int:
    """Receive what comes to a socket within a moment, without sleeping.

    Looks at least once, and gives the processor to others between two looks.

    Args:
        fd: The socket's number; it must stay open meanwhile.
        buffer: Writable; takes what comes.
        look_s: Seconds.

    Returns:
        How many bytes came, 0 when the other side has closed, -1 when nothing came.

    Raises:
        OSError: The socket failed.
    """
    view = _flat(buffer, written=True)
    if not stat.S_ISSOCK(os.fstat(fd).st_mode):
        raise OSError(errno.ENOTSOCK, os.strerror(errno.ENOTSOCK))
    until = time.monotonic() + look_s
    ready = select.poll()
    ready.register(fd, select.POLLIN)
    while not ready.poll(0):
        if time.monotonic() >= until:
            return -1
        os.sched_yield()
    return os.readv(fd, [view])


def wake_at(fd: int, count: int) -> None:
    """Let a loop wake for a socket only when so many bytes lie there, or no more can.

    Args:
        fd: The socket's number.
        count: Bytes; 1 is how a socket begins.

    Raises:
        OSError: The socket failed.
    """
    copy = os.dup(fd)
    try:
        sock = socket.socket(fileno=copy)
    except OSError:
        os.close(copy)
        raise
    with sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, count)


def gather_rows(
    values: Sequence[object],
    dtype: np.dtype[Any],
    shapes: Sequence[tuple[int, ...]],
    out: Buffer,
    cast: bool = False,
) -> int:
    """Copy arrays one behind the other into a buffer.

    Args:
        values: One array for each shape: exactly ndarray (no subclass), of that shape and dtype,
            C-contiguous. Anything else is not acceptable.
        dtype: Native byte order, without Python objects.
        shapes: Tuples of ints.
        out: Writable buffer of exactly the bytes that the shapes ask for.
        cast: Accept also other layouts, and dtypes that NumPy casts under its rule "same_kind".

    Returns:
        -1, or the index of the first value that is not acceptable; out is then undefined.

    Raises:
        ValueError: The size of out is wrong, it is read-only, or there are not as many values as
            shapes.
        TypeError: The dtype cannot be copied as bytes, or a shape is not a tuple.
    """
    view = _flat(out, written=True)
    start = 0
    for i, (value, shape, size) in enumerate(_rows(values, dtype, shapes, len(view))):
        if not _is_row(value, dtype, shape, cast=cast):
            return i
        place = np.frombuffer(view[start : start + size], np.uint8) if size else np.empty(0, "u1")
        np.copyto(place.view(dtype).reshape(shape), value, casting="same_kind")
        start += size
    return -1


def scatter_rows(
    buffer: Buffer,
    dtype: np.dtype[Any],
    shapes: Sequence[tuple[int, ...]],
    outs: Sequence[object],
) -> int:
    """Copy a buffer into arrays, one behind the other: the inverse of `gather_rows`.

    Returns:
        -1, or the index of the first array that is not acceptable (as in gather_rows, and it must
        be writable); no array has been touched then.
    """
    view = _flat(buffer)
    rows = _rows(outs, dtype, shapes, len(view))
    for i, (value, shape, _) in enumerate(rows):
        if not _is_row(value, dtype, shape, written=True):
            return i
    start = 0
    for value, shape, size in rows:
        source = np.frombuffer(view[start : start + size], np.uint8) if size else np.empty(0, "u1")
        np.copyto(value, source.view(dtype).reshape(shape))
        start += size
    return -1


def check_rows(
    values: Sequence[object],
    dtype: np.dtype[Any],
    shapes: Sequence[tuple[int, ...]],
    writable: bool = False,
) -> int:
    """Tell whether arrays could be gathered, or scattered to.

    Returns:
        -1, or the index of the first array that is not acceptable (as in gather_rows).

    Raises:
        ValueError: not as many arrays as shapes, or no shape of an array.
    """
    if len(values) != len(shapes):
        raise ValueError(f"{len(values)} arrays for {len(shapes)} shapes")
    for i, (value, shape) in enumerate(zip(values, shapes, strict=True)):
        _row_size(shape, 1)
        if not _is_row(value, dtype, shape, written=writable):
            return i
    return -1


def distinct(values: Sequence[object]) -> bool:
    """Tell whether all of some values are NumPy arrays (no subclass), none of them twice."""
    return len({id(value) for value in values}) == len(values) and all(
        type(value) is np.ndarray for value in values)


def _flat(buffer: Buffer, *, written: bool = False) -> memoryview:
    exporter: Any = buffer  # NumPy tells typecheckers of its buffers from Python 3.12 on only
    view = memoryview(exporter)
    if not view.c_contiguous:
        raise ValueError("the buffer is not contiguous")
    if written and view.readonly:
        raise ValueError("the buffer is read-only")
    return view.cast("B") if view.nbytes else memoryview(b"" if view.readonly else bytearray())


def _rows(
    values: Sequence[object], dtype: np.dtype[Any], shapes: Sequence[tuple[int, ...]], total: int
) -> list[tuple[Any, tuple[int, ...], int]]:
    if not isinstance(dtype, np.dtype):
        raise TypeError(f"dtype must be a numpy.dtype, not {type(dtype).__name__}")
    if dtype.hasobject or not dtype.isnative or dtype.itemsize == 0:
        raise TypeError(f"rows of {dtype!r} cannot be copied as bytes")
    values, shapes = tuple(values), tuple(shapes)
    if len(values) != len(shapes):
        raise ValueError(f"{len(values)} arrays for {len(shapes)} shapes")
    rows = [
        (value, shape, _row_size(shape, dtype.itemsize))
        for value, shape in zip(values, shapes, strict=True)
    ]
    if sum(size for _, _, size in rows) != total:
        raise ValueError(f"the buffer has {total} bytes, which is not the size of the rows")
    return rows


def _row_size(shape: tuple[int, ...], itemsize: int) -> int:
    if type(shape) is not tuple:
        raise TypeError(f"a shape must be a tuple, not {type(shape).__name__}")
    size = itemsize
    for dim in shape:
        size *= operator.index(dim)
        if not 0 <= size < 2**63:
            raise ValueError(f"{shape} is not the shape of an array")
    return size


def _is_row(
    value: Any,
    dtype: np.dtype[Any],
    shape: tuple[int, ...],
    *,
    written: bool = False,
    cast: bool = False,
) -> bool:
    if type(value) is not np.ndarray or value.shape != shape:
        return False
    if cast:
        return np.can_cast(value.dtype, dtype, "same_kind")
    if written and not value.flags.writeable:
        return False
    return value.dtype == dtype and value.flags.c_contiguous
