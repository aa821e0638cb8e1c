"""How the ranks of one host meet: the first writes where it listens into a file that only this user
can read, and the others wait for it.

The file lies in a directory of mode 0700, named after the job, and is there at once and whole
(written aside, then renamed). Its writer holds a lock on it for as long as it lives: a file whose
lock is free was left behind by a process that was killed, and counts for nothing.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
import secrets
import stat
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import msgspec

from asyncps.errors import ClusterError, ConfigError, RendezvousTimeout

_LOOK_S = 0.01  # how often the others look, at first
_LOOK_MOST_S = 0.2
_MOST_BYTES = 4096

# Directories of this process are made and removed by one thread at a time.
_lock = threading.Lock()


class Meeting(msgspec.Struct, frozen=True):
    """What the first rank tells the others."""

    address: str
    token: str
    job: str
    size: int

    def __repr__(self) -> str:
        return f"<Meeting of {self.size} at {self.address}>"


def directory_of(job: str, base: str = "") -> Path:
    """Return where the ranks of a job meet on this host.

    Args:
        job: What no other job is called.
        base: The job's own directory; "" or one that is not there: the one for temporary files.
    """
    plain = re.sub(r"[^A-Za-z0-9._-]", "_", job)[:40]
    told = hashlib.sha256(job.encode("utf-8", "surrogateescape")).hexdigest()[:16]
    root = Path(base) if base and os.access(base, os.W_OK | os.X_OK) else Path(
        tempfile.gettempdir())
    return root / f"asyncps-{os.geteuid()}-{plain}-{told}"


class Written:
    """A meeting that others may read until it is removed.

    Args:
        directory: Of `directory_of`; it is made if need be.
        name: Of the file.
        meeting: What is told.

    Raises:
        ClusterError: Another process that lives tells something there, or the directory is not
            this user's alone.
    """

    def __init__(self, directory: Path, name: str, meeting: Meeting) -> None:
        self._path = directory / name
        try:
            self._fd = self._write(directory, name, meeting)
        except OSError as error:
            raise ClusterError(f"cannot write {self._path}: {error.strerror}") from None

    def _write(self, directory: Path, name: str, meeting: Meeting) -> int:
        with _lock:
            with contextlib.suppress(FileExistsError):
                directory.mkdir(mode=0o700)
            _check(directory, directory.lstat(), stat.S_ISDIR)
            if _read(self._path) is not None:
                raise ClusterError(
                    f"another process that lives has written {self._path}: two jobs of the same "
                    "name, or two first ranks")
            aside = directory / f".{name}-{secrets.token_hex(8)}"
            fd = os.open(aside, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                os.write(fd, msgspec.json.encode(meeting))
                os.rename(aside, self._path)
            except BaseException:
                os.close(fd)
                aside.unlink(missing_ok=True)
                raise
            return fd

    def fileno(self) -> int:
        """Return what holds the lock, for a forked child to close."""
        return self._fd

    def remove(self) -> None:
        """Take it away, once; and the directory, if nothing else lies there."""
        with _lock:
            fd, self._fd = self._fd, -1
            if fd < 0:
                return
            try:
                with contextlib.suppress(OSError):
                    if os.path.samestat(os.fstat(fd), self._path.lstat()):
                        self._path.unlink()
                        self._path.parent.rmdir()
            finally:
                os.close(fd)


def wait_for(
    directory: Path, name: str, within_s: float, whom: str, expected: str | None = None
) -> Meeting:
    """Wait until somebody tells something, and return it.

    Args:
        directory: Of `directory_of`.
        name: Of the file.
        within_s: For how long, seconds.
        whom: Who should tell, for the text of an error.
        expected: What would have been right, if nobody does.

    Raises:
        RendezvousTimeout: Nobody did; the text says where it was looked for.
        ClusterError: What lies there is not this user's alone, or is no meeting.
    """
    began, pause_s = time.monotonic(), _LOOK_S
    while (found := _read(directory / name)) is None:
        left_s = began + within_s - time.monotonic()
        if left_s <= 0:
            old = " (what lies there was left behind by a process that has ended)"
            raise RendezvousTimeout(
                f"{whom} did not tell within {within_s:g} s where it listens, in "
                f"{directory / name}" + (old if (directory / name).exists() else ""),
                expected=expected)
        time.sleep(min(pause_s, left_s))
        pause_s = min(pause_s * 1.5, _LOOK_MOST_S)
    return found


def _read(path: Path) -> Meeting | None:
    """Return what a process that lives tells there, None if nobody does."""
    try:
        _check(path.parent, path.parent.lstat(), stat.S_ISDIR)
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ClusterError(f"cannot read {path}: {error.strerror}") from None
    try:
        _check(path, os.fstat(fd), stat.S_ISREG)
        try:
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            pass  # its writer lives
        except OSError as error:
            raise ClusterError(f"cannot lock {path}: {error.strerror}") from None
        else:
            return None
        return msgspec.json.decode(os.read(fd, _MOST_BYTES), type=Meeting)
    except msgspec.MsgspecError as error:
        raise ClusterError(f"{path} tells nothing that can be read: {error}") from None
    finally:
        os.close(fd)


def _check(path: Path, found: os.stat_result, kind: Any) -> None:
    """Refuse what is not of this kind, or not this user's alone."""
    ours = found.st_uid == os.geteuid() and not found.st_mode & 0o077
    if not (kind(found.st_mode) and ours):
        raise ConfigError(f"{path} is not this user's alone: nobody else must be able to write or "
                          "read there", expected=f"owner {os.geteuid()}, mode 0700 or 0600",
                          got=f"owner {found.st_uid}, mode {stat.S_IMODE(found.st_mode):04o}")
