"""Step time beside a flooder at a server's port, against the same flooder at a bare socket.

    python bench/flood.py [--seconds 60] [--smallest]

One worker, one server, rounds of 64 KiB and of 4 MiB. Windows of one second change places: the
flooder at the server, the flooder at a bare socket that reads and drops. The ratio is taken within
each pair of neighbours; every round's sum is checked. Limits: the median ratio is at most 1.2, and
the server's memory does not grow by more than 32 MiB.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import harness
import numpy as np

import asyncps

FLOODER = Path(__file__).with_name("flooder.py")
KINDS = ["garbage", "half", "hello", "maximal"]
LIMIT, MOST_BYTES = 1.2, 32 << 20
WINDOW_S = 1.0
ENV = {
    "ASYNCPS_NUM_WORKERS": "1", "ASYNCPS_NUM_SERVERS": "1", "ASYNCPS_JOB": "bench",
    "ASYNCPS_TOKEN": secrets.token_hex(32), "ASYNCPS_LOG_LEVEL": "ERROR",
}  # fmt: skip


@contextlib.contextmanager
def process(*command: str, **env: str) -> Iterator[subprocess.Popen[str]]:
    """Run a program of this interpreter until the block ends."""
    given = {**harness.own_environment(), **env}
    with subprocess.Popen([sys.executable, *command], env=given, text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as running:
        try:
            yield running
        finally:
            running.kill()


def listening_port(pid: int) -> int:
    """The TCP port on which a process listens; waits for it."""
    while True:
        inodes = set()
        for entry in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(FileNotFoundError):
                inodes.add(os.readlink(entry).removeprefix("socket:[").rstrip("]"))
        for line in Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and fields[9] in inodes:
                return int(fields[1].split(":")[1], 16)
        time.sleep(0.05)


def resident_bytes(pid: int) -> int:
    """What a process holds now."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


class Steps:
    """The rounds of one key, each with another value."""

    def __init__(self, store: Any, name: str, size: int) -> None:
        self._store, self._name = store, name
        self._value, self._out = np.zeros(size // 4, "f4"), np.zeros(size // 4, "f4")
        self._round = 0
        store.init(name, self._value)

    def window(self, seconds: float) -> float:
        """Do rounds for a while; return the median step in seconds."""
        times = []
        end = time.perf_counter() + seconds
        while time.perf_counter() < end or len(times) < 3:
            self._round = self._round % 1000 + 1
            self._value[:] = self._round
            begin = time.perf_counter()
            self._store.pushpull(self._name, self._value, out=self._out)
            times.append(time.perf_counter() - begin)
            harness.require((self._out == self._round).all(), f"round {self._round} is wrong")
        return float(np.median(times))


def measure(bench: harness.Bench, kind: str, steps: Steps, case: str, server: int, port: int,
            bare: int) -> bool:
    """Measure one kind of flood; True when it stays within the limits."""
    window_s = min(WINDOW_S, bench.seconds / 2)
    pairs, before = [], resident_bytes(server)
    end = time.perf_counter() + bench.seconds
    while time.perf_counter() < end or len(pairs) < 2:
        found = {}
        for name, target in (("ours", port), ("bare", bare))[:: 1 if len(pairs) % 2 else -1]:
            with process(str(FLOODER), kind, str(target)):
                steps.window(window_s / 2)  # until the flooder is up
                found[name] = steps.window(window_s)
        pairs.append(found)
    quiet = steps.window(window_s)
    grown = resident_bytes(server) - before
    ratios = [pair["ours"] / pair["bare"] for pair in pairs]
    ours, bare_s = (float(np.median([pair[name] for pair in pairs])) for name in ("ours", "bare"))
    ratio = float(np.median(ratios))
    bench.keep({
        "op": f"flood_{kind}", "case": case, "ratio": ratio, "least": min(ratios),
        "most": max(ratios), "pairs": len(pairs), "ours_s": ours, "bare_s": bare_s,
        "quiet_s": quiet, "grown_bytes": grown, "verified": True,
    })  # fmt: skip
    print(f"flood    {kind:8} {case:4} step {ours * 1e6:9.1f} us, beside a bare socket "
          f"{bare_s * 1e6:9.1f} us, quiet {quiet * 1e6:9.1f} us; ratio {ratio:.2f} "
          f"({min(ratios):.2f} to {max(ratios):.2f}, {len(pairs)} pairs), server "
          f"{grown / 2**20:+.1f} MiB", flush=True)
    return ratio <= LIMIT and grown <= MOST_BYTES


def main(argv: list[str] | None = None) -> int:
    """1 when a flood costs more than the limit (not in the smallest form: too short)."""
    bench = harness.Bench("flood", __doc__.splitlines()[0], argv)
    good = True
    with contextlib.ExitStack() as stack:
        scheduler = stack.enter_context(
            process("-m", "asyncps", "scheduler", ASYNCPS_SCHEDULER="127.0.0.1:0", **ENV))
        address = f"127.0.0.1:{listening_port(scheduler.pid)}"
        server = stack.enter_context(
            process("-m", "asyncps", "server", ASYNCPS_SCHEDULER=address, **ENV))
        dropper = stack.enter_context(process(str(FLOODER), "drop"))
        assert dropper.stdout is not None
        bare = int(dropper.stdout.readline())
        os.environ.update(ENV, ASYNCPS_SCHEDULER=address, ASYNCPS_ROLE="worker")
        with asyncps.create("dist_sync") as store:
            port = listening_port(server.pid)
            for case, size in (("64K", 64 << 10), ("4M", 4 << 20))[: 1 if bench.smallest else 2]:
                steps = Steps(store, case, size)
                for kind in KINDS:
                    good = measure(bench, kind, steps, case, server.pid, port, bare) and good
    return 0 if good or bench.smallest else 1


if __name__ == "__main__":
    sys.exit(main())
