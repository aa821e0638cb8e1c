"""Compare two runs of benchmarks; fail when the new one is slower by more than 5%.

    $ python bench/compare.py OLD NEW [--threshold 0.05] [--all]

OLD and NEW are JSON lines files or folders of them. Where a benchmark was run more than once
(passes, ranks), medians of the medians are compared. A benchmark that NEW lacks fails, too.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

Key = tuple[str, ...]


def records(path: Path) -> list[dict[str, Any]]:
    """All records of a file, or of the *.jsonl files of a folder."""
    files = sorted(path.glob("*.jsonl")) if path.is_dir() else [path]
    if not files:
        raise SystemExit(f"no JSON lines in {path}")
    return [json.loads(line) for file in files for line in file.read_text().splitlines() if line]


def key(rec: dict[str, Any]) -> Key:
    """What makes two records the same benchmark."""
    topology = f"{rec['servers']}x{rec['workers']}" if "workers" in rec else ""
    name = rec.get("bench") or rec.get("system") or rec["peer"]
    return (str(name), rec["op"], topology, " ".join(filter(None, [rec["case"], rec.get("link")])))


def medians(path: Path) -> dict[Key, float]:
    """Seconds by benchmark."""
    out: dict[Key, list[float]] = defaultdict(list)
    for rec in records(path):
        if rec.get("median_s"):
            out[key(rec)].append(rec["median_s"])
    return {k: statistics.median(v) for k, v in out.items()}


def main(argv: list[str] | None = None) -> int:
    """1 when anything is slower than allowed, or missing."""
    a = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    a.add_argument("old", type=Path)
    a.add_argument("new", type=Path)
    a.add_argument("--threshold", type=float, default=0.05, help="allowed slow-down (0.05)")
    a.add_argument("--all", action="store_true", help="show what did not change, too")
    options = a.parse_args(argv)
    old, new = medians(options.old), medians(options.new)
    slower = missing = 0
    for k in sorted(old):
        name = " ".join(filter(None, k))
        if k not in new:
            missing += 1
            print(f"MISSING  {name}")
            continue
        change = new[k] / old[k] - 1
        bad = change > options.threshold
        slower += bad
        if bad or options.all or change < -options.threshold:
            word = "SLOWER" if bad else "faster" if change < -options.threshold else "same"
            times = f"{old[k] * 1e6:.2f} -> {new[k] * 1e6:.2f} us"
            print(f"{word:8} {name}: {times} ({change:+.1%})")
    print(f"{len(old)} benchmarks: {slower} slower by over {options.threshold:.0%}", end="")
    print(f", {missing} missing, {len(set(new) - set(old))} new")
    return 1 if slower or missing else 0


if __name__ == "__main__":
    sys.exit(main())
