"""What the benchmarks of this folder share: timing, records, our own clusters.

A script makes a `Bench`, times its operations with `measure`, checks the result itself and hands
both to `Bench.emit`. Records are JSON lines; the first line of a run says what it ran on.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

HERE = Path(__file__).resolve().parent
PEERS = HERE / "peers"
if importlib.util.find_spec("asyncps_ext") is None:  # not installed: the one of this clone
    sys.path.insert(0, str(HERE.parent))

SIZES = {"64K": 1 << 16, "1M": 1 << 20, "16M": 1 << 24, "64M": 1 << 26, "100M": 100 << 20}
OTHERS_AT = ("1M", "16M")  # of those sizes other bodies are timed: twins take seconds for more
MIN_SAMPLE_S = 20e-6  # shorter operations are timed several at once: the clock itself costs 50 ns
MIN_SAMPLES = 10


class ClusterFailedError(Exception):
    """A role of a benchmark's cluster failed or saw a wrong value; it has said which."""


class WrongValueError(Exception):
    """A benchmark computed a wrong value; its figures are worth nothing."""


def require(good: object, what: str) -> None:
    """Raise WrongValueError(what) unless `good`."""
    if not good:
        raise WrongValueError(what)


def bodies(kernels: ModuleType, twins: ModuleType, case: str) -> Iterator[tuple[str, ModuleType]]:
    """What has the functions of `kernels`, each with the suffix of its records.

    The variant that was chosen first; then, at some sizes, the others, each in use while it is at
    hand, and the NumPy twins.
    """
    yield "", kernels
    if case not in OTHERS_AT:
        return
    for name in kernels._variants()[1:]:
        before = kernels._set_variant(name)
        try:
            yield f"@{name}", kernels
        finally:
            kernels._set_variant(before)
    if twins is not kernels:
        yield "@numpy", twins


@dataclass(frozen=True, slots=True)
class Times:
    """Seconds of one operation."""

    median_s: float
    p99_s: float
    min_s: float
    samples: int


def measure(fn: Callable[[], object], seconds: float) -> Times:
    """Time `fn` for at least `seconds`, after a warm-up of a tenth of it.

    Args:
      fn: one operation; its result is ignored.
      seconds: of measured time; at least `MIN_SAMPLES` samples are taken in any case.
    """
    clock = time.perf_counter
    start = clock()
    runs = 0
    while runs < 2 or clock() - start < seconds / 10:
        fn()
        runs += 1
    inner = max(1, int(MIN_SAMPLE_S / max((clock() - start) / runs, 1e-9)))
    samples: list[float] = []
    end = clock() + seconds
    while len(samples) < MIN_SAMPLES or clock() < end:
        t = clock()
        for _ in range(inner):
            fn()
        samples.append((clock() - t) / inner)
    samples.sort()
    last = len(samples) - 1
    return Times(float(np.median(samples)), samples[int(0.99 * last)], samples[0], len(samples))


def own_environment() -> dict[str, str]:
    """The environment of a process that is to find asyncps in this clone if it is not installed."""
    path = filter(None, [str(HERE.parent), os.environ.get("PYTHONPATH")])
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path)}


def facts() -> dict[str, Any]:
    """Machine, versions, commit, date (bench/peers/facts.py)."""
    command = [sys.executable, str(PEERS / "facts.py")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    got: dict[str, Any] = json.loads(done.stdout)
    return got


class Bench:
    """The command line of one benchmark and the file its records go to."""

    def __init__(
        self, name: str, description: str, argv: list[str] | None = None,
        add: Callable[[argparse.ArgumentParser], None] | None = None,
    ) -> None:
        """`add` gives the command line more options, which `options` then has."""
        self.name = name
        self.kept: list[dict[str, Any]] = []
        a = argparse.ArgumentParser(description=description)
        a.add_argument("--smallest", action="store_true", help="values only, as short as can be")
        a.add_argument("--seconds", type=float, help="of each measurement (default 2)")
        a.add_argument("--out", type=Path, help="append JSON lines to this file")
        if add:
            add(a)
        options = self.options = a.parse_args(argv)
        self.smallest: bool = options.smallest
        self.seconds: float = options.seconds or (0.01 if self.smallest else 2.0)
        self.out: Path | None = options.out.resolve() if options.out else None
        if self.out and not (self.out.exists() and self.out.stat().st_size):
            self.out.parent.mkdir(parents=True, exist_ok=True)
            self._append(facts())

    def sizes(self) -> dict[str, int]:
        """Sizes in bytes by name; two of them in the smallest form."""
        names = ["64K", "1M"] if self.smallest else list(SIZES)
        return {name: SIZES[name] for name in names}

    def emit(self, op: str, case: str, times: Times, n_bytes: int = 0, **extra: object) -> None:
        """Write one record of a verified measurement, and a line for people.

        Args:
          op: what was done.
          case: to how much.
          n_bytes: what one operation moves through memory (read and written); 0: no rate.
          extra: more fields.
        """
        rec: dict[str, Any] = {
            "bench": self.name,
            "op": op,
            "case": case,
            "repeats": times.samples,
            "median_s": times.median_s,
            "p99_s": times.p99_s,
            "min_s": times.min_s,
            "verified": True,
        }
        rate = ""
        if n_bytes:
            rec["bytes"] = n_bytes
            rec["GBps"] = n_bytes / times.median_s / 1e9
            rate = f"{rec['GBps']:8.2f} GB/s"
        rec.update(extra)
        notes = "".join(
            f"  {k} {v:.2f}" if isinstance(v, float) else f"  {k} {v}" for k, v in extra.items()
        )
        median, p99 = f"{times.median_s * 1e6:11.2f}", f"{times.p99_s * 1e6:11.2f}"
        print(f"{self.name:8} {op:18} {case:9} median {median} us  p99 {p99} us {rate}{notes}")
        sys.stdout.flush()
        self._append(rec)

    def keep(self, rec: dict[str, Any]) -> None:
        """Write a record that was made elsewhere (by a worker of `cluster`)."""
        self._append({"bench": self.name, **rec})

    def _append(self, rec: dict[str, Any]) -> None:
        self.kept.append(rec)
        if self.out:
            rec = {k: round(v, 10) if isinstance(v, float) else v for k, v in rec.items()}
            with self.out.open("a") as f:
                f.write(json.dumps(rec) + "\n")


def cluster(
    servers: int,
    workers: int,
    op: str,
    cases: list[str],
    *,
    seconds: float = 0,
    scale: float = 1,
    timeout_s: float = 300,
) -> list[dict[str, Any]]:
    """Run one asyncps cluster on loopback; returns the records of its workers.

    Args:
      op: one of bench/peers/asyncps_worker.py's.
      seconds: of timed rounds a case; 0: the fixed number of rounds of bench/peers.
      scale: of the numbers of rounds.

    Raises:
      ClusterFailedError: a role failed or a value was wrong; the roles have said what.
    """
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "records.jsonl"
        env = dict(os.environ, PEERS_OUT=str(out), PEERS_SYSTEM="asyncps")
        env.update(PEERS_SECONDS=str(seconds), PEERS_SCALE=str(scale), OMP_NUM_THREADS="1")
        command = [sys.executable, str(PEERS / "launch_asyncps.py"), "--op", op]
        command += ["-s", str(servers), "-w", str(workers), "--cases", ",".join(cases)]
        command += ["--timeout", str(timeout_s)]
        done = subprocess.run(command, env=env, stdout=subprocess.DEVNULL, check=False)
        if done.returncode:
            text = f"{op} {servers}x{workers} {','.join(cases)} failed with {done.returncode}"
            raise ClusterFailedError(text)
        return [json.loads(line) for line in out.read_text().splitlines()]
