"""Our own push-pull over TCP: 1x1, 1x2, 2x2 (servers x workers), blocking and await face."""

from __future__ import annotations

import itertools
import sys
from typing import Any

import harness

GROUPS = [["4K", "64K", "1M", "many1000"], ["16M"], ["resnet18"], ["100M"]]
TOPOLOGIES = [(1, 1), (1, 2), (2, 2)]
FACES = ["pushpull", "pushpull_await"]


def show(rec: dict[str, Any]) -> None:
    """A line for people."""
    median, p99 = rec["median_s"] * 1e6, rec["p99_s"] * 1e6
    print(
        f"pushpull {rec['op']:18} {rec['servers']}x{rec['workers']} {rec['case']:9} "
        f"median {median:11.2f} us  p99 {p99:11.2f} us {rec['goodput_GBps']:8.3f} GB/s a worker",
        flush=True,
    )


def main(argv: list[str] | None = None) -> int:
    """Each face, topology and group of cases in a cluster of its own; 1 when any failed."""
    bench = harness.Bench("pushpull", __doc__.splitlines()[0], argv)
    groups, topologies, scale, seconds = GROUPS, TOPOLOGIES, 1.0, bench.seconds
    if bench.smallest:
        groups, topologies, scale, seconds = [["4K", "1M", "many1000"]], [(1, 1), (2, 2)], 0.01, 0
    failed = 0
    for (servers, workers), op, cases in itertools.product(topologies, FACES, groups):
        try:
            recs = harness.cluster(servers, workers, op, cases, seconds=seconds, scale=scale)
        except harness.ClusterFailedError as error:
            print(f"FAILED {error}", file=sys.stderr)
            failed += 1
            continue
        for rec in recs:
            bench.keep(rec)
            if rec["rank"] == 0:
                show(rec)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
