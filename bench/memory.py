"""Peak memory of one server for a 100 MiB key, against the budget of dist_sync.

Budget: twice the weights (the version that is read and the one that is made), one accumulator
for the open clock, a version for each reader that has not acknowledged yet, the optimizer's
state, 64 MiB. `tight` leaves the readers' versions out: workers in step share the version read.
"""

from __future__ import annotations

import sys

import harness

FIXED_MIB = 64
STATE = {"pushpull": 0, "sgd": 1, "adam": 2}  # arrays as large as the weights


def main(argv: list[str] | None = None) -> int:
    """1 when a server takes more than its budget."""
    bench = harness.Bench("memory", __doc__.splitlines()[0], argv)
    case = "1M" if bench.smallest else "100M"
    jobs = [("pushpull", 1)] if bench.smallest else [("pushpull", 1), ("pushpull", 2), ("sgd", 2)]
    over = False
    for op, workers in jobs:
        rec = harness.cluster(1, workers, op, [case], scale=0.01)
        rec = next(r for r in rec if r["rank"] == 0)
        weights = rec["bytes"] / 2**20
        tight = weights * (2 + 1 + STATE[op]) + FIXED_MIB
        budget = tight + weights * workers
        peak = rec["peak_rss_MB_server"]
        harness.require(peak, "the server's memory could not be read")
        rec.update(budget_MiB=budget, tight_MiB=tight, peak_MiB=peak, measured_op=op)
        bench.keep({**rec, "op": f"memory_{op}"})
        print(
            f"memory   {op:9} 1x{workers} {case}: server's peak {peak:.0f} MiB, "
            f"budget {budget:.0f} MiB (tight {tight:.0f})",
            flush=True,
        )
        over = over or peak > budget
    return 1 if over else 0


if __name__ == "__main__":
    sys.exit(main())
