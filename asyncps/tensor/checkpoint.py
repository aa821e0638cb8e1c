"""The form of a checkpoint on disk: one directory that is there whole, or not at all.

    weights.safetensors   values by key, readable by safetensors alone
    state.safetensors     what optimizers keep, as "key/name of the state"
    checkpoint.json       which key is behind which name, and what the caller says of itself

A string key is its own name. A number is its digits; where a string has that name already, or the
format has it reserved, a prefix is put before it: 5 and "5" stay two keys.

Files are written here, since safetensors' NumPy face copies each array before it writes it and
cannot read bfloat16; its library checks every header that is read.
"""

from __future__ import annotations

import ctypes
import errno
import json
import math
import os
import secrets
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open

from asyncps.errors import AsyncPSError, CheckpointError
from asyncps.tensor import dtypes
from asyncps.tensor.dtypes import Array

Key = int | str
State = Mapping[Key, Mapping[str, Array]]

FORMAT, VERSION = "asyncps checkpoint", 1
WEIGHTS, STATE, META = "weights.safetensors", "state.safetensors", "checkpoint.json"
_RESERVED = "__metadata__"  # safetensors' own entry of a header
_CODES = {
    "float32": "F32", "float64": "F64", "float16": "F16", "bfloat16": "BF16", "int8": "I8",
    "uint8": "U8", "int32": "I32", "int64": "I64",
}
_NAMES = {code: name for name, code in _CODES.items()}
_EXCHANGE, _AT_CWD = 2, -100  # of renameat2


@dataclass(frozen=True)
class Entry:
    """One array of a checkpoint: of a key, or of what an optimizer keeps for a key."""

    key: Key
    state: str | None
    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Checkpoint:
    """What was read.

    Attributes:
        weights: Values by key.
        state: Arrays by key and name; keys without any are left out.
        meta: What the writer said, as plain data.
    """

    weights: dict[Key, Array]
    state: dict[Key, dict[str, Array]]
    meta: dict[str, Any]


def write(
    directory: str | os.PathLike[str], weights: Mapping[Key, Array], state: State,
    meta: Mapping[str, Any],
) -> None:
    """Write a checkpoint; one that stands there already is replaced in one step.

    Args:
        directory: Its path; the folder above must exist.
        weights: C-contiguous arrays of the dtypes of values, by key; only read.
        state: Arrays of the same kind by key and name; a name holds no "/".
        meta: Plain data: what JSON can say, without NaN.

    Raises:
        CheckpointError: The disk is full, something else stands at the path, or a value cannot be
            written. What stood there before still does.
    """
    target = Path(os.path.abspath(directory))
    _refuse_foreign(target)
    names = _names(weights.keys() | state.keys())
    kept = {
        f"{names[key]}/{name}": array for key, arrays in state.items()
        for name, array in arrays.items()
    }
    if any("/" in name for arrays in state.values() for name in arrays):
        raise CheckpointError("a name of optimizer state with a slash", got=sorted(kept))
    told = {
        "format": FORMAT, "version": VERSION, "keys": [[name, key] for key, name in names.items()],
        "meta": dict(meta),
    }
    fresh = target.with_name(f".{target.name}.{secrets.token_hex(4)}.tmp")
    try:
        text = json.dumps(told, allow_nan=False, indent=1).encode()
        fresh.mkdir()
        try:
            _write_file(fresh / WEIGHTS, _tensors({names[k]: a for k, a in weights.items()}))
            _write_file(fresh / STATE, _tensors(kept))
            _write_file(fresh / META, [text])
            _sync(fresh)
            _put(fresh, target)
        finally:
            shutil.rmtree(fresh, ignore_errors=True)
        _sync(target.parent)
    except OSError as error:
        raise CheckpointError(f"a checkpoint could not be written: {error.strerror or error}",
                              got=target) from error
    except (TypeError, ValueError) as error:
        if isinstance(error, AsyncPSError):
            raise
        raise CheckpointError(f"a checkpoint's meta must be plain data: {error}") from error


def read(directory: str | os.PathLike[str]) -> Checkpoint:
    """Read a checkpoint whole.

    Returns:
        Its arrays are new memory, the caller's.

    Raises:
        CheckpointError: There is none, or its files are cut off, foreign, or do not belong
            together.
        ConfigError: It holds bfloat16, and ml_dtypes is not installed.
    """
    folder = Path(directory)
    keys, meta = _read_meta(folder)
    weights: dict[Key, Array] = {}
    state: dict[Key, dict[str, Array]] = {}
    for name, array in _read_file(folder / WEIGHTS).items():
        weights[_key_of(keys, name, folder)] = array
    for label, array in _read_file(folder / STATE).items():
        name, _, part = label.rpartition("/")
        state.setdefault(_key_of(keys, name, folder), {})[part] = array
    return Checkpoint(weights, state, meta)


def show(directory: str | os.PathLike[str]) -> tuple[list[Entry], dict[str, Any]]:
    """Tell what a checkpoint holds, without reading the arrays: entries, and the writer's meta.

    Raises:
        CheckpointError: As `read`.
    """
    folder = Path(directory)
    keys, meta = _read_meta(folder)
    entries = []
    for name, (dtype, shape, _) in _read_header(folder / WEIGHTS)[0].items():
        entries.append(Entry(_key_of(keys, name, folder), None, dtype, shape))
    for label, (dtype, shape, _) in _read_header(folder / STATE)[0].items():
        name, _, part = label.rpartition("/")
        entries.append(Entry(_key_of(keys, name, folder), part, dtype, shape))
    return sorted(entries, key=lambda e: (str(e.key), type(e.key).__name__, e.state or "")), meta


# ---- names ----


def _names(keys: set[Key]) -> dict[Key, str]:
    """Give each key a name of its own, whatever the order in which they come."""
    names: dict[Key, str] = {key: key for key in keys if isinstance(key, str)}
    for name in names.values():
        if not name.isascii() and name != name.encode(errors="replace").decode():
            raise CheckpointError("a key that is no Unicode text", got=repr(name))
    taken = set(names.values())
    if _RESERVED in names:
        names[_RESERVED] = _free("str:" + _RESERVED, taken)
    for key in sorted(key for key in keys if isinstance(key, int)):
        names[key] = _free(str(key), taken)
    return {key: names[key] for key in sorted(names, key=lambda k: (str(k), type(k).__name__))}


def _free(name: str, taken: set[str]) -> str:
    while name in taken:
        name = "int:" + name
    taken.add(name)
    return name


def _key_of(keys: Mapping[str, Key], name: str, folder: Path) -> Key:
    if name not in keys:
        raise CheckpointError("files that do not belong together: a value of no known key",
                              expected=", ".join(keys), got=f"{name} in {folder}")
    return keys[name]


# ---- writing ----


def _tensors(arrays: Mapping[str, Array]) -> list[Any]:
    """Return the pieces of a safetensors file: its header, then the arrays' own memory."""
    header: dict[str, Any] = {}
    pieces: list[Any] = [b""]
    end = 0
    # The widest first, so that each array begins at a multiple of its item's size.
    for name, array in sorted(arrays.items(), key=lambda item: (-item[1].itemsize, item[0])):
        if not array.flags.c_contiguous:
            raise CheckpointError("an array that is not contiguous", got=name)
        begin, end = end, end + array.nbytes
        header[name] = {"dtype": _CODES[dtypes.name_of(array.dtype)], "shape": list(array.shape),
                        "data_offsets": [begin, end]}
        if array.nbytes:
            pieces.append(array.reshape(-1).view(np.uint8).data)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    pieces[0] = len(text).to_bytes(8, "little") + text
    return pieces


def _write_file(path: Path, pieces: list[Any]) -> None:
    with open(path, "wb") as file:
        for piece in pieces:
            file.write(piece)
        file.flush()
        os.fsync(file.fileno())


def _sync(folder: Path) -> None:
    """Make the names in a folder last, as fsync makes the content of a file."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _refuse_foreign(target: Path) -> None:
    """Refuse to replace what is no checkpoint: it may be somebody's work."""
    if not target.parent.is_dir():
        raise CheckpointError("the folder of a checkpoint does not exist", got=target.parent)
    if not os.path.lexists(target):
        return
    if target.is_symlink() or not target.is_dir():
        raise CheckpointError("something else stands where a checkpoint shall", got=target)
    if any(target.iterdir()):
        _read_meta(target)


def _put(fresh: Path, target: Path) -> None:
    """Let the fresh directory be the target; an old one is then where the fresh one was.

    Plain rename replaces no directory with something in it. Where the file system cannot exchange
    two names, there is a moment in which the old one has another name and nothing stands here.
    """
    try:
        fresh.rename(target)
        return
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
    libc = ctypes.CDLL(None, use_errno=True)
    exchange = getattr(libc, "renameat2", None)
    if exchange is not None and not exchange(
        _AT_CWD, os.fsencode(fresh), _AT_CWD, os.fsencode(target), ctypes.c_uint(_EXCHANGE)
    ):
        return
    old = fresh.with_suffix(".old")
    target.rename(old)
    try:
        fresh.rename(target)
    except OSError:
        old.rename(target)
        raise
    shutil.rmtree(old, ignore_errors=True)


# ---- reading ----


def _read_meta(folder: Path) -> tuple[dict[str, Key], dict[str, Any]]:
    """Return keys by name, and the writer's meta."""
    path = folder / META
    try:
        told = json.loads(path.read_bytes())
    except OSError as error:
        raise CheckpointError(f"no checkpoint: {error.strerror}", got=path) from error
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"a checkpoint that cannot be read: {error}", got=path) from error
    if not isinstance(told, dict) or told.get("format") != FORMAT:
        raise CheckpointError("not a checkpoint", expected=FORMAT, got=path)
    if told.get("version") != VERSION:
        raise CheckpointError(f"{path} is of another version", expected=VERSION,
                              got=told.get("version"))
    keys, meta = told.get("keys"), told.get("meta")
    if not isinstance(meta, dict) or not isinstance(keys, list) or not all(map(_is_pair, keys)):
        raise CheckpointError("a checkpoint that cannot be read", got=path)
    return {name: key for name, key in keys}, meta


def _is_pair(pair: object) -> bool:
    return (
        isinstance(pair, list) and len(pair) == 2 and isinstance(pair[0], str)
        and isinstance(pair[1], (str, int)) and not isinstance(pair[1], bool)
    )


Header = dict[str, tuple[str, tuple[int, ...], int]]


def _read_header(path: Path) -> tuple[Header, int]:
    """Return dtype, shape and offset by name, and where the data begins.

    safetensors has checked the header by then: that offsets are those of dtypes and shapes, in
    one piece, and end where the file does.
    """
    try:
        with safe_open(path, framework="np"):
            pass
        with open(path, "rb") as file:
            size = int.from_bytes(file.read(8), "little")
            header = json.loads(file.read(size))
    except OSError as error:
        raise CheckpointError(f"a checkpoint without one of its files: {error.strerror or error}",
                              got=path) from error
    except (SafetensorError, ValueError) as error:
        raise CheckpointError(f"a file that cannot be read: {error}", got=path) from error
    found: Header = {}
    for name, entry in header.items():
        if name == _RESERVED:
            continue
        if entry["dtype"] not in _NAMES:
            raise CheckpointError(f"a value of another dtype in {path}",
                                  expected=", ".join(_CODES), got=entry["dtype"])
        found[name] = _NAMES[entry["dtype"]], tuple(entry["shape"]), entry["data_offsets"][0]
    return found, 8 + size


def _read_file(path: Path) -> dict[str, Array]:
    header, begin = _read_header(path)
    found: dict[str, Array] = {}
    with open(path, "rb", buffering=0) as file:
        for name, (dtype, shape, offset) in header.items():
            flat = np.empty(math.prod(shape), dtypes.numpy_dtype(dtype))
            file.seek(begin + offset)
            _fill(file, flat.view(np.uint8).data, path)
            found[name] = flat.reshape(shape)
    return found


def _fill(file: FileIO, view: memoryview, path: Path) -> None:
    while len(view):
        count = file.readinto(view)
        if not count:
            raise CheckpointError("a file that became shorter while it was read", got=path)
        view = view[count:]
