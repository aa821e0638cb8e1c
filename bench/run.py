"""All our own benchmarks, one after the other (`make bench`).

    python bench/run.py [--smallest] [--seconds 2] [--out FILE] [NAME ...]

--smallest is for CI: a few seconds in all, values are checked, times mean nothing.
"""

from __future__ import annotations

import argparse
import datetime
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
NAMES = ["kernels", "wire", "pushpull", "idle", "memory", "free", "flood", "compression",
         "collectives"]


def main(argv: list[str] | None = None) -> int:
    """1 when any of them failed; the rest runs all the same."""
    a = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    a.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(NAMES)}; default all")
    a.add_argument("--smallest", action="store_true", help="values only, a few seconds")
    a.add_argument("--seconds", type=float, help="of each measurement (default 2)")
    a.add_argument("--out", type=Path, help="JSON lines; default bench/out/DATE.jsonl")
    options = a.parse_args(argv)
    unknown = [n for n in options.names if n not in NAMES]
    if unknown:
        a.error(f"unknown benchmarks {unknown}; there are {', '.join(NAMES)}")
    stamp = datetime.datetime.now().strftime("%Y%m%d-%H%M%S")
    out = (options.out or HERE / "out" / f"{stamp}.jsonl").resolve()
    failed = []
    for name in options.names or NAMES:
        command = [sys.executable, str(HERE / f"{name}.py"), "--out", str(out)]
        command += ["--smallest"] if options.smallest else []
        command += ["--seconds", str(options.seconds)] if options.seconds else []
        if subprocess.run(command, check=False).returncode:
            failed.append(name)
    print(f"results: {out}")
    if failed:
        print(f"FAILED: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
