"""One file of the safetensors format: where each array of it lies.

Files are laid out here, since safetensors' NumPy face copies each array before it writes it, wants
all of them at once, and cannot read bfloat16; its library checks every header that is read.
"""

from __future__ import annotations

import contextlib
import errno
import json
import math
import os
import stat
from collections.abc import Mapping, Sequence
from functools import partial
from io import FileIO
from pathlib import Path
from typing import NamedTuple

import numpy as np
from safetensors import SafetensorError, safe_open

from asyncps.errors import CheckpointError, DtypeMismatch
from asyncps.tensor import dtypes
from asyncps.tensor.dtypes import Array

RESERVED = "__metadata__"  # safetensors' own entry of a header

# The dtypes of values, and the others that the state of a user's own optimizer may have.
_CODES = {
    "float32": "F32", "float64": "F64", "float16": "F16", "bfloat16": "BF16", "int8": "I8",
    "uint8": "U8", "int32": "I32", "int64": "I64",
    "int16": "I16", "uint16": "U16", "uint32": "U32", "uint64": "U64",
}
DTYPES = frozenset(_CODES)
_NAMES = {code: name for name, code in _CODES.items()}


class Entry(NamedTuple):
    """What an array is: the name of its dtype, and its shape."""

    dtype: str
    shape: tuple[int, ...]

    @property
    def itemsize(self) -> int:
        """Bytes of one element."""
        return 2 if self.dtype == "bfloat16" else np.dtype(self.dtype).itemsize

    @property
    def nbytes(self) -> int:
        """Bytes of all elements."""
        return math.prod(self.shape) * self.itemsize


class Slot(NamedTuple):
    """An array of a file, and the byte of the file at which it begins."""

    entry: Entry
    begin: int


def entry_of(array: Array) -> Entry:
    """Return what an array is.

    Raises:
        DtypeMismatch: No file can hold its dtype.
    """
    name = array.dtype.name
    if not array.dtype.isnative or name not in _CODES:
        raise DtypeMismatch("values of this dtype cannot be stored",
                            expected=", ".join(_CODES), got=array.dtype)
    return Entry(name, array.shape)


def layout(entries: Mapping[str, Entry]) -> tuple[bytes, dict[str, Slot]]:
    """Return the first bytes of a file, and where its arrays will lie behind them."""
    header: dict[str, object] = {}
    begins: dict[str, int] = {}
    end = 0
    # The widest first, so that each array begins at a multiple of its item's size.
    for name, entry in sorted(entries.items(), key=lambda item: (-item[1].itemsize, item[0])):
        begins[name], end = end, end + entry.nbytes
        header[name] = {"dtype": _CODES[entry.dtype], "shape": list(entry.shape),
                        "data_offsets": [begins[name], end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    head = len(text).to_bytes(8, "little") + text
    return head, {name: Slot(entries[name], len(head) + at) for name, at in begins.items()}


def open_files(folder: Path, first: str, others: Sequence[str]) -> dict[str, FileIO]:
    """Open files of one directory, whichever stands there meanwhile; `others` may be missing.

    Raises:
        CheckpointError: There is no such directory, or nothing named `first` in it.
    """
    found: dict[str, FileIO] = {}
    try:
        while True:
            place = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
            try:
                for name in (first, *others):
                    with contextlib.suppress(FileNotFoundError):
                        found[name] = FileIO(folder / name, opener=partial(_open_in, place))
                # A newer one has taken its place: this one may have lost files before we came.
                if os.path.samestat(os.fstat(place), os.stat(folder)):
                    if first in found:
                        return found
                    raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
                if len(found) == 1 + len(others):
                    return found
            finally:
                os.close(place)
            _close(found)
    except OSError as error:
        _close(found)
        raise CheckpointError(f"no checkpoint: {error.strerror}", got=folder / first) from error


def _open_in(place: int, path: str, flags: int) -> int:
    name = os.path.basename(path)
    descriptor = os.open(name, flags | os.O_NONBLOCK, dir_fd=place)  # a FIFO must hold nobody
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, f"{name} is no file")
    return descriptor


def _close(files: dict[str, FileIO]) -> None:
    for file in files.values():
        file.close()
    files.clear()


def read_header(file: FileIO, path: Path) -> dict[str, Slot]:
    """Return the arrays of an open file by name; `path` is for messages.

    safetensors has checked the header by then: that offsets are those of dtypes and shapes, in
    one piece, and end where the file does.

    Raises:
        CheckpointError: There is no such file, or it is none of the format, or cut off.
    """
    try:
        # By its descriptor: another file may have this name by now.
        with safe_open(f"/dev/fd/{file.fileno()}", framework="np"):
            pass
        file.seek(0)
        size = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(size))
    except OSError as error:
        raise CheckpointError(f"a file that cannot be read: {error.strerror or error}",
                              got=path) from error
    except (SafetensorError, ValueError) as error:
        raise CheckpointError(f"a file that cannot be read: {error}", got=path) from error
    found: dict[str, Slot] = {}
    for name, told in header.items():
        if name == RESERVED:
            continue
        if told["dtype"] not in _NAMES:
            raise CheckpointError(f"a value of another dtype in {path}",
                                  expected=", ".join(_CODES), got=told["dtype"])
        entry = Entry(_NAMES[told["dtype"]], tuple(told["shape"]))
        found[name] = Slot(entry, 8 + size + told["data_offsets"][0])
    return found


def read_array(file: FileIO, slot: Slot) -> Array:
    """Read one array whole: new memory, the caller's.

    Raises:
        CheckpointError: The file became shorter.
    """
    entry = slot.entry
    flat = np.empty(math.prod(entry.shape), dtypes.numpy_dtype(entry.dtype))
    read_into(file, slot.begin, flat.view(np.uint8).data)
    return flat.reshape(entry.shape)


def read_into(file: FileIO, begin: int, view: memoryview) -> None:
    """Fill a view with the bytes of a file from `begin` on.

    Raises:
        CheckpointError: The file became shorter, or cannot be read.
    """
    try:
        file.seek(begin)
        while len(view):
            count = file.readinto(view)
            if not count:
                raise CheckpointError("a file that became shorter while it was read",
                                      got=file.name)
            view = view[count:]
    except OSError as error:
        raise CheckpointError(f"a file that cannot be read: {error.strerror or error}",
                              got=file.name) from error
