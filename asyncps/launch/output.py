"""Merges the output of all ranks: one thread reads every pipe and is the only one that writes."""

from __future__ import annotations

import contextlib
import os
import select
import selectors
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, Self

from asyncps.errors import ConfigError
from asyncps.launch.lines import LineSplitter, show
from asyncps.launch.members import Member

TAIL_LINES = 20
TRACEBACK_LINES = 100  # of a traceback that the last lines begin with
_TRACEBACK = b"Traceback (most recent call last)"
_TAIL_LINE_BYTES = 4096
_READ_BYTES = 65536
# What a pipe that polls as writable takes without blocking (PIPE_BUF), so that a reader who
# stopped reading can never hold the thread.
_WRITE_BYTES = 4096


class _Writer:
    """A descriptor that may be slow, closed or gone; then what is written is dropped."""

    def __init__(self, fd: int, abandoned: threading.Event) -> None:
        self._fd = fd
        self._abandoned = abandoned
        self._poll = select.poll()
        self._poll.register(fd, select.POLLOUT)
        self.terminal = os.isatty(fd)
        self.gone = False

    def write(self, data: bytes) -> None:
        view = memoryview(data)
        while view and not self.gone:
            if not self._poll.poll(100):
                self.gone = self._abandoned.is_set()
                continue
            try:
                view = view[os.write(self._fd, view[:_WRITE_BYTES]) :]
            except BlockingIOError:
                continue
            except OSError:  # its reader left, or the terminal is gone: the job goes on
                self.gone = True


@dataclass(slots=True)
class _Record:
    """What is kept of one member's output."""

    tail: deque[bytes] = field(default_factory=lambda: deque(maxlen=TRACEBACK_LINES))
    log: BinaryIO | None = None


@dataclass(slots=True)
class _Stream:
    member: Member
    fd: int
    writer: _Writer
    splitter: LineSplitter = field(default_factory=LineSplitter)
    on_line: Callable[[str], bool] | None = None


class Output:
    """The merged output of a launch.

    Args:
        stdout_fd: Where the ranks' output goes; it stays the caller's.
        stderr_fd: Where their error output and the launcher's own words go.
        colour: Colour the prefixes on terminals.
        log_dir: Keeps a file a rank there, both streams by line as the rank wrote them.

    A destination that blocks makes the ranks wait; nothing is queued here but one line a stream.
    """

    def __init__(
        self, *, stdout_fd: int = 1, stderr_fd: int = 2, colour: bool = True,
        log_dir: Path | None = None,
    ) -> None:
        self._abandoned = threading.Event()
        self._stdout = _Writer(stdout_fd, self._abandoned)
        self._stderr = _Writer(stderr_fd, self._abandoned)
        self._colour = colour
        self._log_dir = log_dir
        self._records: dict[Member, _Record] = {}
        self._selector = selectors.DefaultSelector()
        self._inbox: deque[_Stream | bytes] = deque()
        self._drain_until: float | None = None
        if log_dir is not None:
            try:
                log_dir.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise ConfigError(f"cannot make the log directory: {error}") from None
        self._woken, self._waker = os.pipe()
        for end in (self._woken, self._waker):
            os.set_blocking(end, False)
        self._selector.register(self._woken, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._run, name="asyncps-launch-output")
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.drain(0.0)
        for record in self._records.values():
            if record.log is not None:
                with contextlib.suppress(OSError):
                    record.log.close()
        self._selector.close()
        os.close(self._woken)
        os.close(self._waker)

    def open(
        self, member: Member, on_line: Callable[[str], bool] | None = None
    ) -> tuple[int, int]:
        """Make the pipes of a member.

        Args:
            member: Whose.
            on_line: Called on the output thread with each line of its stdout; when it returns
                True that line is not shown.

        Returns:
            The write ends for its stdout and stderr; the caller closes them once it is started.
        """
        record = self._records[member] = _Record()
        if self._log_dir is not None:
            try:
                record.log = (self._log_dir / member.file_name).open("wb", buffering=0)
            except OSError as error:
                raise ConfigError(f"cannot open the log file: {error}") from None
        ends = []
        for writer, callback in ((self._stdout, on_line), (self._stderr, None)):
            read_end, write_end = os.pipe()
            os.set_blocking(read_end, False)
            self._inbox.append(_Stream(member, read_end, writer, on_line=callback))
            ends.append(write_end)
        self._wake()
        return ends[0], ends[1]

    def say(self, text: str) -> None:
        """Write the launcher's own words to stderr, in turn with the ranks' lines."""
        data = b"".join(b"asyncps: " + line.encode(errors="replace") + b"\n"
                        for line in text.splitlines())
        if self._thread.is_alive():
            self._inbox.append(data)
            self._wake()
        else:
            self._stderr.write(data)

    def drain(self, within_s: float) -> None:
        """Read what is still in the pipes, show unfinished lines, and end the thread.

        Somebody outside of the job may hold a pipe open: nobody waits for him.
        """
        if self._thread.is_alive():
            self._drain_until = time.monotonic() + within_s
            self._wake()
            self._thread.join(within_s + 0.2)
            self._abandoned.set()  # whoever does not read now has had his time
            self._thread.join()

    def tail(self, member: Member) -> list[bytes]:
        """Return the last lines of a member, from the last traceback on; only after `drain`."""
        record = self._records.get(member)
        lines = list(record.tail) if record is not None else []
        begins = [place for place, line in enumerate(lines) if _TRACEBACK in line]
        return lines[begins[-1] if begins else -TAIL_LINES :]

    def show_tail(self, member: Member) -> None:
        """Write them again, to stderr."""
        for line in self.tail(member):
            self._stderr.write(self._format(member, line, self._stderr))

    def _run(self) -> None:
        while True:
            timeout = None
            if self._drain_until is not None:
                timeout = self._drain_until - time.monotonic()
                if timeout <= 0 or (
                    len(self._selector.get_map()) == 1 and not self._inbox
                ):
                    break
            for key, _ in self._selector.select(timeout):
                if key.data is None:
                    with contextlib.suppress(BlockingIOError):
                        os.read(self._woken, 4096)
                else:
                    self._read(key.data)
            self._take_inbox()
        self._take_inbox()
        for key in list(self._selector.get_map().values()):
            if key.data is not None:
                self._close(key.data)

    def _take_inbox(self) -> None:
        while self._inbox:
            item = self._inbox.popleft()
            if isinstance(item, bytes):
                self._stderr.write(item)
            else:
                self._selector.register(item.fd, selectors.EVENT_READ, item)

    def _read(self, stream: _Stream) -> None:
        try:
            data = os.read(stream.fd, _READ_BYTES)
        except BlockingIOError:
            return
        if data:
            self._emit(stream, stream.splitter.feed(data))
        else:
            self._close(stream)

    def _close(self, stream: _Stream) -> None:
        self._emit(stream, stream.splitter.finish())
        self._selector.unregister(stream.fd)
        os.close(stream.fd)

    def _emit(self, stream: _Stream, lines: list[bytes]) -> None:
        record = self._records[stream.member]
        shown = bytearray()
        for line in lines:
            self._log(record, line)
            if stream.on_line is not None and stream.on_line(line.decode(errors="replace")):
                continue
            record.tail.append(line[-_TAIL_LINE_BYTES:])
            shown += self._format(stream.member, line, stream.writer)
        stream.writer.write(bytes(shown))

    def _log(self, record: _Record, line: bytes) -> None:
        if record.log is None:
            return
        try:
            record.log.write(line + b"\n")
        except OSError as error:
            record.log.close()
            record.log = None
            self._stderr.write(f"asyncps: a log file ends here: {error}\n".encode())

    def _format(self, member: Member, line: bytes, writer: _Writer) -> bytes:
        colour = self._colour and writer.terminal
        return show(member, line, terminal=writer.terminal, colour=colour)

    def _wake(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.write(self._waker, b".")
