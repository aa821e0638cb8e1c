"""A directory of files that appears whole, or not at all, piece by piece as its content comes.

Everything is written beside the place where it shall stand, under a name with a dot, made durable
and renamed. What a killed process leaves there is removed by the next writer of the same place:
its lock is gone with it. Nothing reads such a directory.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import secrets
import shutil
from pathlib import Path
from types import TracebackType
from typing import Self

from asyncps.errors import CheckpointError

_EXCHANGE, _AT_CWD = 2, -100  # of renameat2


class FreshDirectory:
    """A directory under way; `with` it, and call `finish` at the end.

    Args:
        target: Where it shall stand. The folder above must exist.

    Raises:
        CheckpointError: From every method: the disk is full, and the like. What stood at the target
            still does; only if `finish` fails at its last step, to make the new name last, the new
            one stands there, whole.
    """

    def __init__(self, target: Path) -> None:
        self.target = target
        self._path = self._name()
        self._files: dict[str, int] = {}
        self._lock = -1

    def __enter__(self) -> Self:
        try:
            self._remove_left_over()
            while not self._make():
                self._path = self._name()
        except OSError as error:
            self._discard()
            raise _failed(self.target, error) from error
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._discard()

    def add(self, name: str, head: bytes, size: int) -> None:
        """Begin a file of `size` bytes; `head` is its first ones."""
        try:
            self._files[name] = os.open(self._path / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL,
                                        0o666)
            self.write(name, 0, memoryview(head))
            if size > len(head):
                os.truncate(self._files[name], size)
        except OSError as error:
            raise _failed(self.target, error) from error

    def write(self, name: str, begin: int, view: memoryview) -> None:
        """Write bytes of a file, from its byte `begin` on; any thread, one at a time."""
        try:
            while len(view):
                count = os.pwrite(self._files[name], view, begin)
                view, begin = view[count:], begin + count
        except OSError as error:
            raise _failed(self.target, error) from error

    def finish(self) -> None:
        """Make all of it durable, and let it stand at the target."""
        try:
            for descriptor in self._files.values():
                os.fsync(descriptor)
            _sync(self._path)
            _put(self._path, self.target)
            shutil.rmtree(self._path, ignore_errors=True)  # the old one, if there was one
            _sync(self.target.parent)
        except OSError as error:
            raise _failed(self.target, error) from error

    def _name(self) -> Path:
        return self.target.with_name(f".{self.target.name}.{secrets.token_hex(4)}.tmp")

    def _make(self) -> bool:
        """Make the directory and lock it; False if another writer took it for a left-over."""
        self._path.mkdir()
        try:
            self._lock = os.open(self._path, os.O_RDONLY | os.O_DIRECTORY)
            with contextlib.suppress(OSError):  # a file system without locks: nobody removes it
                try:
                    fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    self._discard()
                    return False
            os.stat(self._path)
        except FileNotFoundError:
            self._discard()
            return False
        return True

    def _discard(self) -> None:
        for descriptor in (*self._files.values(), self._lock):
            if descriptor >= 0:
                with contextlib.suppress(OSError):
                    os.close(descriptor)
        self._files.clear()
        self._lock = -1
        shutil.rmtree(self._path, ignore_errors=True)

    def _remove_left_over(self) -> None:
        """Remove what killed writers of the same place have left: nobody holds its lock."""
        begin, end = f".{self.target.name}.", ".tmp"
        for path in self.target.parent.iterdir():
            middle = path.name[len(begin) : -len(end)]
            if not (path.name.startswith(begin) and path.name.endswith(end) and len(middle) == 8):
                continue
            with contextlib.suppress(OSError):
                descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(path, ignore_errors=True)
                finally:
                    os.close(descriptor)


def _failed(target: Path, error: OSError) -> CheckpointError:
    return CheckpointError(f"a checkpoint could not be written: {error.strerror or error}",
                           got=target)


def _sync(folder: Path) -> None:
    """Make the names in a folder last, as fsync makes the content of a file."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


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
