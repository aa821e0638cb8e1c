"""Which key is behind which name of a checkpoint, and `checkpoint.json`, which tells it."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from asyncps.errors import CheckpointError
from asyncps.tensor.safefile import RESERVED, Entry
from asyncps.tensor.savedtable import TableWords
from asyncps.tensor.words import MOST_UPDATES

Key = int | str

FORMAT, VERSION = "asyncps checkpoint", 1
META = "checkpoint.json"
WEIGHTS, STATE, TABLES = "weights.safetensors", "state.safetensors", "tables.safetensors"
RESIDUALS = "residuals.safetensors"
_EXTRA = ".extra"  # behind a rank
FILES = frozenset({META, WEIGHTS, STATE, TABLES, RESIDUALS})


def names_of(keys: set[Key]) -> dict[Key, str]:
    """Give each key a name of its own, whatever the order in which they come.

    Raises:
        CheckpointError: A key that no file can name.
    """
    names: dict[Key, str] = {key: key for key in keys if isinstance(key, str)}
    for name in names.values():
        if not name.isascii() and name != name.encode(errors="replace").decode():
            raise CheckpointError("a key that is no Unicode text", got=repr(name))
    taken = set(names.values())
    if RESERVED in names:
        names[RESERVED] = _free("str:" + RESERVED, taken)
    for key in sorted(key for key in keys if isinstance(key, int)):
        names[key] = _free(str(key), taken)
    return {key: names[key] for key in sorted(names, key=lambda k: (str(k), type(k).__name__))}


def _free(name: str, taken: set[str]) -> str:
    while name in taken:
        name = "int:" + name
    taken.add(name)
    return name


def key_of(keys: Mapping[str, Key], name: str, folder: Path) -> Key:
    """Return the key behind a name.

    Raises:
        CheckpointError: There is none.
    """
    if name not in keys:
        raise CheckpointError("files that do not belong together: a value of no known key",
                              expected=", ".join(keys), got=f"{name} in {folder}")
    return keys[name]


def kept_label(name: str, rank: int, *, is_extra: bool | int) -> str:
    """Return what a residual, or what a codec keeps beside it, is called in its file."""
    return f"{name}/{rank}{_EXTRA if is_extra else ''}"


def rank_of(label: str, entry: Entry, folder: Path) -> tuple[str, int, bool]:
    """Return name and rank of a residual, or of what a codec keeps beside it, and which it is.

    Raises:
        CheckpointError: It is neither.
    """
    name, _, rank = label.rpartition("/")
    is_extra = rank.endswith(_EXTRA)
    rank = rank.removesuffix(_EXTRA)
    digits = rank.isascii() and rank.isdecimal() and len(rank) < 10
    if not digits or entry.dtype != "float32" or len(entry.shape) != 1:
        raise CheckpointError("what was not sent has no rank, or is not float32 in a row",
                              got=f"{label}: {entry.dtype}{entry.shape} in {folder}")
    return name, int(rank), is_extra


def told(
    names: Mapping[Key, str], tables: Mapping[Key, TableWords], meta: Mapping[str, Any]
) -> bytes:
    """Return what `checkpoint.json` says.

    Raises:
        CheckpointError: The meta is no plain data.
    """
    said: dict[str, Any] = {
        "format": FORMAT, "version": VERSION, "keys": [[name, key] for key, name in names.items()],
        "meta": dict(meta),
    }
    if tables:
        said["tables"] = {names[key]: words.plain() for key, words in tables.items()}
    try:
        return json.dumps(said, allow_nan=False, indent=1).encode()
    except (TypeError, ValueError) as error:
        raise CheckpointError(f"a checkpoint's meta must be plain data: {error}") from error


def refuse_foreign(target: Path) -> None:
    """Refuse to replace what is no checkpoint: it may be somebody's work.

    Raises:
        CheckpointError: Something else stands there, or the folder above is missing.
    """
    try:
        if not target.parent.is_dir():
            raise CheckpointError("the folder of a checkpoint does not exist", got=target.parent)
        for above in target.absolute().parents:
            if (above / META).is_file():
                raise CheckpointError("inside of another checkpoint, which a later save replaces",
                                      expected="a folder beside it", got=target)
        while os.path.lexists(target):
            try:
                with _opened(target) as folder:
                    try:
                        return _refuse_foreign_files(folder, target)
                    except CheckpointError:
                        if _is_still(folder, target):
                            raise
            except FileNotFoundError:
                pass
            # Another writer has replaced it meanwhile, and removes what we looked at.
    except OSError as error:
        raise CheckpointError(f"a checkpoint could not be written: {error.strerror}",
                              got=target) from error


def _refuse_foreign_files(folder: int, target: Path) -> None:
    there = set(os.listdir(folder))
    if not there:
        return
    if META not in there:
        raise CheckpointError("something else stands where a checkpoint shall", got=target)
    read_meta((target / META).read_bytes, target / META)
    foreign = sorted(there - FILES)
    if foreign:
        raise CheckpointError("something else stands in the checkpoint to be replaced",
                              expected=", ".join(sorted(FILES)), got=target / foreign[0])


@contextlib.contextmanager
def _opened(folder: Path) -> Iterator[int]:
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except NotADirectoryError:  # a link too
        raise CheckpointError("something else stands where a checkpoint shall",
                              got=folder) from None
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _is_still(descriptor: int, path: Path) -> bool:
    """Tell whether a path still leads to an open folder, whose number nobody else has meanwhile."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.lstat(path))
    except FileNotFoundError:
        return False


def clocks_of(meta: Mapping[str, Any]) -> dict[Key, int]:
    """Return how many updates each key has had.

    Raises:
        CheckpointError: No store has written that.
    """
    told = meta.get("clocks")
    if not isinstance(told, list):
        raise CheckpointError("a checkpoint that no store has written: no clocks")
    clocks: dict[Key, int] = {}
    for pair in told:
        if not (isinstance(pair, list) and len(pair) == 2 and isinstance(pair[0], (str, int))
                and type(pair[1]) is int and 0 <= pair[1] < MOST_UPDATES):
            raise CheckpointError("a checkpoint that no store has written: a clock",
                                  expected=f"a key, and 0 to {MOST_UPDATES - 1}",
                                  got=repr(pair)[:100])
        clocks[pair[0]] = pair[1]
    return clocks


def read_meta(
    read: Callable[[], bytes], path: Path
) -> tuple[dict[str, Key], dict[str, Any], dict[str, TableWords]]:
    """Return keys by name, the writer's meta, and what tables are like, by name.

    Args:
        read: Returns what the file says.
        path: For messages.

    Raises:
        CheckpointError: The file is missing, foreign, or cut off.
    """
    try:
        told = json.loads(read())
    except OSError as error:
        raise CheckpointError(f"no checkpoint: {error.strerror}", got=path) from error
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"a checkpoint that cannot be read: {error}", got=path) from error
    if not isinstance(told, dict) or told.get("format") != FORMAT:
        raise CheckpointError("not a checkpoint", expected=FORMAT, got=path)
    if told.get("version") != VERSION:
        raise CheckpointError(f"{path} is of another version", expected=VERSION,
                              got=told.get("version"))
    keys, meta, tables = told.get("keys"), told.get("meta"), told.get("tables", {})
    if (not isinstance(meta, dict) or not isinstance(keys, list) or not all(map(_is_pair, keys))
            or not isinstance(tables, dict)):
        raise CheckpointError("a checkpoint that cannot be read", got=path)
    return ({name: key for name, key in keys}, meta,
            {name: TableWords.of(words, path) for name, words in tables.items()})


def _is_pair(pair: object) -> bool:
    return (
        isinstance(pair, list) and len(pair) == 2 and isinstance(pair[0], str)
        and isinstance(pair[1], (str, int)) and not isinstance(pair[1], bool)
    )
