"""One connection's receiving side: bytes in, frames out, payloads straight into their place.

The caller asks `get_buffer()` where the next bytes belong, lets the kernel write there and calls
`buffer_updated(n)`. Headers and tables pass through a small scratch buffer; as soon as a header
and its table are known, the sink names the memory of the payload, and the rest of it lands there
without a copy.
"""

from __future__ import annotations

from typing import Protocol

from asyncps.errors import RemoteProtocolError
from asyncps.protocol.frames import HEADER_SIZE, MAX_PAYLOAD_BYTES, MAX_TABLE_BYTES, Header
from asyncps_ext import wire

# Large enough for the frames of small values, and many short ones, in one read; what begins here of
# a larger payload is copied once more.
SCRATCH_BYTES = 16 * 1024


class Sink(Protocol):
    """Whoever takes the frames of one connection."""

    def begin(self, header: Header, table: memoryview) -> memoryview | None:
        """Name the memory (flat, writable, exactly payload_bytes) for a payload; None drops it.

        `table` is valid during the call only. Called for frames with a payload only.
        """

    def finish(self, header: Header, table: memoryview) -> None:
        """Take a frame whose payload, if it has one, has arrived where `begin` said.

        `table` is valid during the call only, and empty for a frame with a payload.
        """


_EMPTY = memoryview(b"")


class FrameReader:
    """Parses the frames of one connection and never holds more than one table and one scratch."""

    __slots__ = (
        "_end", "_filled", "_header", "_scratch", "_sink", "_skip", "_start", "_table", "_target",
        "_view",
    )

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._scratch = bytearray(SCRATCH_BYTES)
        self._view = memoryview(self._scratch)
        self._start = self._end = 0
        self._header: Header | None = None
        self._table: memoryview | None = None  # a table too large for the scratch, being filled
        self._target: memoryview | None = None  # the payload's place, being filled
        self._filled = 0
        self._skip = 0  # payload bytes still to be dropped

    def get_buffer(self) -> memoryview:
        """Return where the next bytes belong; never empty."""
        place = self._target if self._target is not None else self._table
        if place is not None:
            return place[self._filled :]
        if self._start == self._end:
            self._start = self._end = 0
        elif SCRATCH_BYTES - self._end < HEADER_SIZE or self._start > SCRATCH_BYTES // 2:
            self._compact()
        return self._view[self._end :]

    def buffer_updated(self, count: int) -> None:
        """Take note that `count` bytes were written into the last buffer.

        Raises:
            RemoteProtocolError: The peer broke the rules; close the connection.
        """
        if self._target is not None:
            self._filled += count
            if self._filled < len(self._target):
                return
            self._payload_complete()
        elif self._table is not None:
            self._filled += count
            if self._filled < len(self._table):
                return
            table, self._table = self._table, None
            self._table_complete(table)
        else:
            self._end += count
        self._parse()

    def abandon_payload(self) -> bool:
        """Re-aim the rest of a payload at nothing, for whoever takes its memory back.

        Returns:
            True when a payload was under way.
        """
        if self._target is None:
            return False
        self._skip = len(self._target) - self._filled
        self._target = self._header = None
        return True

    @property
    def missing(self) -> int:
        """Bytes of the payload under way that are still to come."""
        return 0 if self._target is None else len(self._target) - self._filled

    @property
    def current(self) -> Header | None:
        """The frame whose payload is under way, if one is."""
        return self._header if self._target is not None else None

    def _compact(self) -> None:
        kept = self._end - self._start
        self._scratch[:kept] = bytes(self._view[self._start : self._end])
        self._start, self._end = 0, kept

    def _parse(self) -> None:
        while self._target is None and self._table is None:
            available = self._end - self._start
            if self._skip:
                dropped = min(self._skip, available)
                self._skip -= dropped
                self._start += dropped
                if self._skip:
                    return
                continue
            if available < HEADER_SIZE:
                return
            if self._header is None:
                self._header = self._parse_header()
            header = self._header
            table_bytes = header.table_bytes
            if table_bytes > SCRATCH_BYTES - HEADER_SIZE:
                self._start += HEADER_SIZE
                self._begin_large_table(table_bytes)
                continue
            if available < HEADER_SIZE + table_bytes:
                if self._start + HEADER_SIZE + table_bytes > SCRATCH_BYTES:
                    self._compact()
                return
            begin = self._start + HEADER_SIZE
            self._start = begin + table_bytes
            self._table_complete(self._view[begin : self._start])

    def _parse_header(self) -> Header:
        try:
            header = Header._make(wire.parse_header(self._view, self._start))
        except ValueError as error:
            raise RemoteProtocolError(f"not a frame: {error}") from None
        if header.table_bytes > MAX_TABLE_BYTES:
            raise RemoteProtocolError("table too long", expected=f"at most {MAX_TABLE_BYTES}",
                                      got=header.table_bytes)
        if header.payload_bytes > MAX_PAYLOAD_BYTES:
            raise RemoteProtocolError("payload too long", expected=f"at most {MAX_PAYLOAD_BYTES}",
                                      got=header.payload_bytes)
        return header

    def _begin_large_table(self, table_bytes: int) -> None:
        table = memoryview(bytearray(table_bytes))
        have = min(self._end - self._start, table_bytes)
        table[:have] = self._view[self._start : self._start + have]
        self._start += have
        if have == table_bytes:
            self._table_complete(table)
        else:
            self._table, self._filled = table, have

    def _table_complete(self, table: memoryview) -> None:
        header = self._header
        assert header is not None
        size = header.payload_bytes
        if not size:
            self._header = None
            self._sink.finish(header, table)
            return
        target = self._sink.begin(header, table)
        if target is None:
            self._header = None
            self._skip = size
            return
        if len(target) != size:
            raise AssertionError("a sink gave memory of another size than the payload")
        have = min(self._end - self._start, size)
        target[:have] = self._view[self._start : self._start + have]
        self._start += have
        self._target, self._filled = target, have
        if have == size:
            self._payload_complete()

    def _payload_complete(self) -> None:
        header = self._header
        assert header is not None
        self._target = self._header = None
        self._sink.finish(header, _EMPTY)
