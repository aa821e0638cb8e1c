"""Writes the streams of `corpus/` anew: `python -m tests.fuzz.make_corpus`, after a wire change."""

from __future__ import annotations

from pathlib import Path

from asyncps.protocol import messages as m
from asyncps.protocol.frames import HEADER_SIZE, MAX_PAYLOAD_BYTES, MAX_TABLE_BYTES, Flag, Kind
from tests.protocol.streams import frame, raw_header

JOIN = m.encode(m.Join("worker", 1, 0, "", 0, "node7", 4711))
SPEC = m.encode(m.UnitSpec("f4", False, 0, ["w"], [16]))

STREAMS = {
    "good-join-and-heartbeat": [
        frame(Kind.CONTROL, JOIN), frame(Kind.HEARTBEAT, request=0),
    ],
    "good-init-push-pull": [
        frame(Kind.INIT, SPEC, bytes(16)), frame(Kind.PUSH, b"", bytes(range(16)), request=2),
        frame(Kind.PULL, request=3), frame(Kind.DATA, b"", bytes(16), request=4),
    ],
    "good-rows": [frame(Kind.PUSH, bytes(8), bytes(32), flags=Flag.ROWS)],
    "good-error": [frame(Kind.ERROR, m.encode(m.ErrorInfo(61, "no", key="w")))],
    "good-cut-in-a-payload": [frame(Kind.PUSH, b"", bytes(100)).data[:-50]],
    "bad-magic": [b"GET / HTTP/1.1\r\nHost: a\r\n\r\n" * 4],
    "bad-version": [raw_header(version=2)],
    "bad-crc": [frame(Kind.HEARTBEAT).data[: HEADER_SIZE - 1] + b"\0"],
    "bad-table-of-2-to-63": [raw_header(table_bytes=2**63)],
    "bad-payload-of-2-to-63": [raw_header(payload_bytes=2**63)],
    "bad-table-one-too-long": [raw_header(table_bytes=MAX_TABLE_BYTES + 1)],
    "bad-payload-one-too-long": [raw_header(payload_bytes=MAX_PAYLOAD_BYTES + 1)],
    "bad-message": [frame(Kind.CONTROL, b"\xc1")],
    "bad-deep-message": [frame(Kind.CONTROL, b"\x94\x1f\x01\xa1x\x81\xa1a" + b"\x91" * 5000)],
    "bad-list-of-2-to-32": [frame(Kind.CONTROL, b"\x92\x3d\xdd\xff\xff\xff\xff")],
    "bad-after-a-good-one": [frame(Kind.HEARTBEAT), bytes(HEADER_SIZE)],
}


def main() -> None:
    """Write one file for each stream."""
    folder = Path(__file__).parent / "corpus"
    for name, parts in STREAMS.items():
        data = b"".join(part if isinstance(part, bytes) else part.data for part in parts)
        (folder / f"{name}.bin").write_bytes(data)


if __name__ == "__main__":
    main()
