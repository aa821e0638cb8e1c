"""The kernels against memcpy and against their NumPy twins, every result checked.

Rates count the bytes that an operation must read and write, memcpy's too; `of_memcpy` is the
share of memcpy's rate at the same size of array. Quantizers tell the rate of float32 input beside
(`input_GBps`); of select's kernels the bytes of the dense input count. At two sizes the other
variants (instruction sets) and their NumPy twins are timed too.

    python bench/kernels.py --cases 64M --judged     what must hold, and whether it does
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Mapping
from types import ModuleType

import harness
import numpy as np
import report
import verdicts
from kernels_dense import optim_ops, reduce_ops, unique, zeros
from kernels_quantize import quantize_ops
from kernels_select import select_ops
from kernels_sparse import BODIES, sparse_ops

from asyncps_ext import COMPILED, INSTRUCTION_SET, optim, quantize, reduce, reference, select

Ops = Mapping[str, tuple[Callable[[], object], Callable[[], None], int]]
TWINS_OF_ROWS_AT = "1M"  # what they do is Python, id by id


def options(a: argparse.ArgumentParser) -> None:
    """What this benchmark has beside the options of all."""
    a.add_argument("--cases", help=f"of {','.join(harness.SIZES)}; default all")
    a.add_argument("--judged", action="store_true",
                   help="only what has a floor, each beside a memcpy of its own")


class Size:
    """Everything at one size of array."""

    def __init__(self, bench: harness.Bench, case: str, size: int) -> None:
        self.bench, self.case, self.size, self.n = bench, case, size, size // 4
        self.source, self.target = unique(self.n), zeros(self.n)
        self.judged = {floor.op for floor in verdicts.FLOORS} if bench.options.judged else set()
        self.floor = self.memcpy(shown=True)

    def memcpy(self, *, shown: bool = False) -> float:
        """Its rate in GB/s, reading and writing."""
        times = harness.measure(lambda: np.copyto(self.target, self.source), self.bench.seconds)
        harness.require(np.array_equal(self.source, self.target), "memcpy")
        if shown:
            self.bench.emit("memcpy", self.case, times, 2 * self.size)
        return 2 * self.size / times.median_s / 1e9

    def bodies(self, kernels: ModuleType, twins: ModuleType) -> Iterator[tuple[str, ModuleType]]:
        """As `harness.bodies`; what is judged is the variant that was chosen."""
        for suffix, body in harness.bodies(kernels, twins, self.case):
            if not (suffix and self.judged):
                yield suffix, body

    def measure(self, ops: Ops, suffix: str, *, has_input: bool = False) -> None:
        """Each operation of one body."""
        for name, (fn, check, moved) in ops.items():
            if self.judged and name not in self.judged:
                continue
            check()
            floor = self.memcpy() if self.judged else self.floor
            times = harness.measure(fn, self.bench.seconds / (4 if suffix else 1))
            check()
            rates = {"of_memcpy": moved / times.median_s / 1e9 / floor}
            if has_input:
                rates["input_GBps"] = self.size / times.median_s / 1e9
            build = {"compiled": COMPILED, "instruction_set": suffix[1:] or INSTRUCTION_SET}
            self.bench.emit(name + suffix, self.case, times, moved, **rates, **build)

    def all_kernels(self) -> None:
        """Of every module."""
        for suffix, body in self.bodies(reduce, reference.reduce):
            self.measure(reduce_ops(body, self.n), suffix)
        for suffix, body in self.bodies(optim, reference.optim):
            self.measure(optim_ops(body, self.n), suffix)
        for suffix, modules in BODIES.items():
            if not self.judged and (not suffix or self.case == TWINS_OF_ROWS_AT):
                self.measure(sparse_ops(self.n, *modules), suffix)
        for suffix, body in self.bodies(quantize, reference.quantize):
            self.measure(quantize_ops(body, self.n), suffix, has_input=True)
        for suffix, body in self.bodies(select, reference.select):
            self.measure(select_ops(body, self.n), suffix)


def main(argv: list[str] | None = None) -> int:
    """All kernels at all sizes; what is missed is said, and is no failure."""
    bench = harness.Bench("kernels", __doc__.splitlines()[0], argv, options)
    sizes = bench.sizes()
    if bench.options.cases:
        names = bench.options.cases.split(",")
        unknown = [name for name in names if name not in harness.SIZES]
        if unknown:
            raise SystemExit(f"unknown cases {unknown}; there are {list(harness.SIZES)}")
        sizes = {name: harness.SIZES[name] for name in names}
    for case, size in sizes.items():
        Size(bench, case, size).all_kernels()
    rows = verdicts.kernel_rows(bench.kept)
    if rows:
        print(report.table(verdicts.HEAD, rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
