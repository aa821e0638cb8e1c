"""What a waiting cluster uses of a core: one worker sleeps, the others stand at a barrier."""

from __future__ import annotations

import sys

import harness

LIMIT = 0.01  # of a core, all processes together
SECONDS = 10.0


def main(argv: list[str] | None = None) -> int:
    """1 when a cluster uses more than the limit (not in the smallest form: too short)."""
    bench = harness.Bench("idle", __doc__.splitlines()[0], argv)
    seconds = 0.5 if bench.smallest else max(SECONDS, bench.seconds)
    over = False
    for servers, workers in [(1, 1)] if bench.smallest else [(1, 1), (2, 2)]:
        for rec in harness.cluster(servers, workers, "idle", ["1M"], seconds=seconds):
            bench.keep(rec)
            share = rec["share_of_core"]
            for role in ("scheduler", "server", "worker"):
                harness.require(rec[f"peak_rss_MB_{role}"], f"the {role} was not there")
            parts = ", ".join(
                f"{k.removeprefix('cpu_s_')} {v / rec['window_s']:.3%}"
                for k, v in rec.items()
                if k.startswith("cpu_s_")
            )
            print(f"idle     {servers}x{workers}  {share:.3%} of a core ({parts})", flush=True)
            over = over or share >= LIMIT
    return 1 if over and not bench.smallest else 0


if __name__ == "__main__":
    sys.exit(main())
