"""Cases, the measured loop and the record of every peer benchmark. Python 3.8 to 3.13.

A *round* is every key of the case pushed and pulled (or all-reduced) and complete, seen from
one worker. README.md beside bench/ has the definitions.
"""

from __future__ import annotations

import json
import os
import sys
import time

import numpy as np
import values
from meters import Meter, wait_pids  # noqa: F401 (for the workers)

KIB = 1024


def _resnet18():
    """Element counts of the 62 parameter tensors of ResNet-18 (11,689,512 in all)."""
    p = [9408, 64, 64]
    for cin, cout, down in ((64, 64, 0), (64, 128, 1), (128, 256, 1), (256, 512, 1)):
        for blk in range(2):
            first = cin if blk == 0 else cout
            p += [first * cout * 9, cout, cout, cout * cout * 9, cout, cout]
            if blk == 0 and down:
                p += [cin * cout, cout, cout]
    return [*p, 512 * 1000, 1000]


# case -> float32 element counts, one a key; sizes are binary (16M is 16 MiB)
CASES = {
    "4K": [1 * KIB],
    "64K": [16 * KIB],
    "1M": [256 * KIB],
    "16M": [4 * KIB * KIB],
    "100M": [25 * KIB * KIB],
    "resnet18": _resnet18(),
    "many1000": [256] * 1000,
}

# case -> (warm-up rounds, timed rounds)
ROUNDS = {
    "4K": (50, 400),
    "64K": (40, 300),
    "1M": (20, 100),
    "16M": (5, 30),
    "100M": (3, 12),
    "resnet18": (4, 20),
    "many1000": (4, 20),
}
# cases that share one cluster; the big ones get their own so that memory figures are clean
GROUPS = [["4K", "64K", "1M", "many1000"], ["16M"], ["resnet18"], ["100M"]]


def case_bytes(case):
    """Bytes of the case's tensors."""
    return 4 * sum(CASES[case])


def parse_cases(text):
    """A comma-separated list of case names, checked."""
    names = [c for c in text.split(",") if c]
    unknown = [c for c in names if c not in CASES]
    if unknown or not names:
        raise SystemExit(f"unknown cases {unknown}; there are {list(CASES)}")
    return names


def rounds(case):
    """(warm-up, timed) rounds, scaled by PEERS_SCALE but never under 2 and 10."""
    warm, reps = ROUNDS[case]
    scale = float(os.environ.get("PEERS_SCALE", "1"))
    return max(2, int(warm * scale)), max(10, int(reps * scale))


def grads(case, rank=0, workers=1):
    """This rank's gradients, unique by rank, key and element (see values.py)."""
    return values.gradients(CASES[case], rank, workers)


def agree_rounds(case, rank, barrier, mean_s):
    """Timed rounds for at least PEERS_SECONDS, the same on all ranks; none given: by `rounds`.

    Rank 0 decides and leaves the number beside the pid file, between two barriers.
    """
    seconds = float(os.environ.get("PEERS_SECONDS", "0"))
    reps = rounds(case)[1]
    if not seconds:
        return reps
    path = os.environ["PEERS_PIDS"] + ".rounds." + case
    if rank == 0:
        with open(path, "w") as f:
            f.write(str(max(10, min(20000, int(seconds / mean_s) + 1))))
    barrier()
    with open(path) as f:
        return int(f.read())


def measure(
    round_fn,
    case,
    barrier,
    meter=None,
    workers=1,
    refill=None,
    refill_every=40,
    moved=None,
    n=None,
    before=None,
    after=None,
):
    """Time `round_fn`; every worker calls this with the same case. Returns (times, use).

    Args:
      refill: called before the first timed round and every `refill_every` later ones.
      moved: bytes a worker moves in a round, when not twice the case.
      n: (warm-up, timed) rounds, when not those of `rounds`.
      before, after: called around each timed round, outside the time.
    """
    warm, reps = rounds(case) if n is None else n
    moved = 2 * case_bytes(case) if moved is None else moved
    if meter:
        meter.reset()
    for _ in range(warm):
        round_fn()
    if refill:
        refill()
    barrier()
    if meter:
        meter.start()
    times = []
    for i in range(reps):
        if refill and i and i % refill_every == 0:
            refill()
        if before:
            before()
        t = time.perf_counter()
        round_fn()
        times.append(time.perf_counter() - t)
        if after:
            after()
    barrier()
    return times, meter.stop(moved * reps * workers / 1e9) if meter else {}


def emit(peer, op, case, workers, servers, times, use=None, moved=None, rank=0, **extra):
    """Append one record to PEERS_OUT, and print rank 0's."""
    times = sorted(times)
    moved = 2 * case_bytes(case) if moved is None else moved
    last = len(times) - 1
    median = float(np.median(times))
    rec = {
        "peer": peer,
        "system": os.environ.get("PEERS_SYSTEM", peer),
        "op": op,
        "case": case,
        "pass": int(os.environ.get("PEERS_PASS", "0")),
        "bytes": case_bytes(case),
        "keys": len(CASES[case]),
        "workers": workers,
        "servers": servers,
        "rank": rank,
        "repeats": len(times),
        "median_s": median,
        "min_s": times[0],
        "p90_s": times[min(last, int(0.9 * len(times)))],
        "p99_s": times[min(last, int(0.99 * len(times)))],
        "goodput_GBps": moved / median / 1e9,
        "verified": True,
    }
    rec.update(use or {})
    rec.update(extra)
    write(rec, show=rank == 0)


def write(rec, show=True):
    """Append a record to the file that PEERS_OUT names, in one write, and print it."""
    rec = {k: (round(v, 9) if isinstance(v, float) else v) for k, v in rec.items()}
    line = json.dumps(rec) + "\n"
    out = os.environ.get("PEERS_OUT")
    if out:
        with open(out, "a") as f:
            f.write(line)
    if show:
        sys.stdout.write(line)
        sys.stdout.flush()
