"""One large key encoded by 1, 2, ... threads in turn, to the same bytes.

A pass is one encoding by each; the record of a number of threads has the median of its times and,
`of_one`, the median over passes of how many times faster than one thread it was.

    python bench/threads.py --threads 1,2 --cases 64M
"""

from __future__ import annotations

import argparse
import sys
import time
from typing import Any

import harness
import numpy as np

from asyncps.tensor import codecs
from asyncps.tensor.codecs import Elementwise
from asyncps.tensor.feedback import KeyCoder

PIECE = 1 << 18  # elements of a chunk of 1 MiB
PASSES = 25


def options(a: argparse.ArgumentParser) -> None:
    """What this benchmark has beside the options of all."""
    a.add_argument("--cases", default="64M", help=f"of {','.join(harness.SIZES)}")
    a.add_argument("--threads", default="1,2", help="how many in turn; 1 must be one of them")


class Encoders:
    """One key with a coder for each number of threads, which all see the same gradients."""

    def __init__(self, codec: Elementwise, n: int, counts: list[int]) -> None:
        self.codec = codec
        self.g = np.random.default_rng(n).standard_normal(n, dtype=np.float32)
        self.pieces = [(at, min(at + PIECE, n)) for at in range(0, n, PIECE)]
        self.coders = {count: KeyCoder(n, count) for count in counts}
        size = sum(codec.nbytes(stop - begin) or 0 for begin, stop in self.pieces)
        self.rooms = {count: np.zeros(size, np.uint8) for count in counts}

    def time_s(self, count: int) -> float:
        """Seconds of one encoding by so many threads."""
        began = time.perf_counter()
        self.coders[count].encode(self.codec, self.g, self.g.nbytes, self.pieces,
                                  lambda size: self.rooms[count], [0] * len(self.pieces))
        return time.perf_counter() - began

    def check(self) -> None:
        """All have sent, and kept, the same bytes."""
        first = self.coders[1].residual
        for count, coder in self.coders.items():
            harness.require(np.array_equal(self.rooms[count], self.rooms[1]), f"{count}: sent")
            harness.require(np.array_equal(coder.residual, first), f"{count}: kept")


def main(argv: list[str] | None = None) -> int:
    """Measure every element-wise codec with error feedback."""
    bench = harness.Bench("threads", __doc__.splitlines()[0], argv, options)
    counts = [int(count) for count in bench.options.threads.split(",")]
    harness.require(1 in counts, "one thread is what the others are compared with")
    for case in ["64M"] if bench.smallest else bench.options.cases.split(","):
        for name, kind in codecs.KINDS.items():
            if issubclass(kind, Elementwise):
                measure(bench, case, codecs.made(codecs.checked({"type": name})), counts)
    return 0


def measure(bench: harness.Bench, case: str, codec: Any, counts: list[int]) -> None:
    """One codec at one size."""
    size = harness.SIZES[case]
    encoders = Encoders(codec, size // 4, counts)
    for count in counts:
        encoders.time_s(count)
    times: dict[int, list[float]] = {count: [] for count in counts}
    for _ in range(2 if bench.smallest else PASSES):
        for count in counts:
            times[count].append(encoders.time_s(count))
    encoders.check()
    for count in counts:
        own = sorted(times[count])
        found = harness.Times(float(np.median(own)), own[-1], own[0], len(own))
        pairs = [one / many for one, many in zip(times[1], times[count], strict=True)]
        bench.emit(f"encode_{codec.name}x{count}", case, found, threads=count,
                   input_GBps=size / found.median_s / 1e9, of_one=float(np.median(pairs)))


if __name__ == "__main__":
    sys.exit(main())
