"""Output as bytes becomes lines, and lines become what a terminal or a file shows."""

from __future__ import annotations

from asyncps.launch.members import Member

# Longer lines are broken: a rank that never writes a newline must not fill the launcher's memory.
LINE_LIMIT = 1 << 20
_ERASE_LINE = "\x1b[K"
# Colours that can be read on dark and on light; the bright ones follow for higher ranks.
_WORKER_COLOURS = (36, 32, 33, 34, 96, 92, 93, 94)
_SERVER_COLOURS = (35, 95)
_SCHEDULER_COLOUR = 31


class LineSplitter:
    """Cuts a stream into lines at newlines; a carriage return is a part of its line.

    Args:
        limit: Longest line in bytes; what is longer comes in pieces of this size.
    """

    def __init__(self, limit: int = LINE_LIMIT) -> None:
        self._limit = limit
        self._rest = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """Return the lines, without their newlines, that `data` completes."""
        first, *others = data.split(b"\n")
        self._rest += first
        lines: list[bytes] = []
        for piece in others:
            self._break(lines)
            lines.append(bytes(self._rest))
            self._rest = bytearray(piece)
        self._break(lines)
        return lines

    def finish(self) -> list[bytes]:
        """Return the last line, which had no newline, if there is one."""
        lines = [bytes(self._rest)] if self._rest else []
        self._rest.clear()
        return lines

    def _break(self, lines: list[bytes]) -> None:
        while len(self._rest) > self._limit:
            cut = self._limit
            while cut > self._limit - 3 and self._rest[cut] & 0xC0 == 0x80:
                cut -= 1  # not inside a character of UTF-8
            lines.append(bytes(self._rest[:cut]))
            del self._rest[:cut]


def show(member: Member, line: bytes, *, terminal: bool, colour: bool) -> bytes:
    """Return one line as it is shown: prefixed, and never a byte that is not UTF-8.

    On a terminal a redrawn line (carriage returns) keeps its prefix at each redraw.
    """
    prefix = f"[{member}] "
    if colour:
        prefix = f"\x1b[{_colour_of(member)}m[{member}]\x1b[0m "
    text = line.decode("utf-8", errors="replace")
    if terminal:
        text = text.rstrip("\r").replace("\r", f"\r{_ERASE_LINE}{prefix}")
    return f"{prefix}{text}\n".encode()


def _colour_of(member: Member) -> int:
    if member.role == "worker":
        return _WORKER_COLOURS[member.rank % len(_WORKER_COLOURS)]
    if member.role == "server":
        return _SERVER_COLOURS[member.rank % len(_SERVER_COLOURS)]
    return _SCHEDULER_COLOUR
