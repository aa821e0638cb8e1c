"""Frame headers, checksums and the tables of small keys, every result checked."""

from __future__ import annotations

import sys

import harness
import numpy as np

from asyncps_ext import COMPILED, INSTRUCTION_SET, wire

HEADER = (3, 5, 77, 2, 2**40 + 1, 9, -7, 2**33, 1000, 2**31 + 5, 2**35, 4)
ROWS, ROW_FLOATS = 1000, 256


def main(argv: list[str] | None = None) -> int:
    """Every function of asyncps_ext.wire."""
    bench = harness.Bench("wire", __doc__.splitlines()[0], argv)
    build = {"compiled": COMPILED, "instruction_set": INSTRUCTION_SET}

    frame = wire.pack_header(*HEADER)
    harness.require(len(frame) == wire.HEADER_SIZE, "the size of a header")
    harness.require(tuple(wire.parse_header(frame)) == HEADER, "a header's round trip")
    harness.require(wire.crc32c(b"123456789") == 0xE3069283, "crc32c's check value")
    harness.require(
        wire.crc32c(frame[:68]) == int.from_bytes(frame[68:], "little"), "the header's crc"
    )
    ops = {
        "pack_header": lambda: wire.pack_header(*HEADER),
        "parse_header": lambda: wire.parse_header(frame),
    }
    for name, fn in ops.items():
        bench.emit(name, "1 frame", harness.measure(fn, bench.seconds), **build)

    block = np.random.default_rng(1).integers(0, 256, 1 << 20, dtype=np.uint8)
    half = wire.crc32c(block[: 1 << 19])
    harness.require(
        wire.crc32c(block[1 << 19 :], half) == wire.crc32c(block), "crc32c of two halves"
    )
    times = harness.measure(lambda: wire.crc32c(block), bench.seconds)
    bench.emit("crc32c", "1M", times, block.nbytes, **build)

    count = 100 if bench.smallest else ROWS
    values = np.arange(count * ROW_FLOATS, dtype="f4").reshape(count, ROW_FLOATS)
    rows = [values[i].copy() for i in range(count)]
    outs = [np.zeros(ROW_FLOATS, "f4") for _ in rows]
    shapes, dtype = [(ROW_FLOATS,)] * count, np.dtype("f4")
    flat = np.zeros(values.nbytes, np.uint8)
    harness.require(wire.gather_rows(rows, dtype, shapes, flat) == -1, "gather accepts all rows")
    harness.require(flat.tobytes() == values.tobytes(), "gathered bytes")
    harness.require(wire.scatter_rows(flat, dtype, shapes, outs) == -1, "scatter accepts all rows")
    harness.require(np.array_equal(np.stack(outs), values), "scattered rows")
    refused = [*rows[:7], rows[7].astype("f8"), *rows[8:]]
    harness.require(wire.gather_rows(refused, dtype, shapes, flat) == 7, "gather names the row")
    case, moved = f"{count}x1K", 2 * values.nbytes
    tables = {
        "gather_rows": lambda: wire.gather_rows(rows, dtype, shapes, flat),
        "scatter_rows": lambda: wire.scatter_rows(flat, dtype, shapes, outs),
    }
    for name, fn in tables.items():
        times = harness.measure(fn, bench.seconds)
        bench.emit(name, case, times, moved, ns_a_row=times.median_s * 1e9 / count, **build)
    return 0


if __name__ == "__main__":
    sys.exit(main())
