"""All-reduce by size and number of ranks beside gloo and Open MPI, in one run.

    python bench/collectives.py                       2 and 4 ranks, one pass
    python bench/collectives.py --passes 3 --out F    as for docs/BENCHMARKS.md

Within a pass and a number of ranks the systems take turns case by case; ratios are of one pass.
Every sum is verified before and after its timed rounds. "bus" is what nccl-tests call bus
bandwidth: bytes * 2*(ranks - 1)/ranks / time, what each rank's link has to carry at least.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import harness
from compare import records

sys.path.insert(0, str(harness.PEERS))
import procs
from run import machine_lock, mpirun

GROUPS = ["4K", "64K", "1M", "many1000", "16M", "resnet18", "100M"]
WORLDS = (2, 4)
TIMEOUT_S = 600
OURS = "asyncps"
# (case, other system, its op, how many times as fast we must be)
TARGETS = [
    *((case, "gloo", "allreduce_async", 1.0)
      for case in ("4K", "64K", "1M", "16M", "100M", "resnet18")),
    ("many1000", "gloo", "allreduce_async", 100.0),
    ("1M", "mpi-tcp", "iallreduce", 0.5), ("16M", "mpi-tcp", "iallreduce", 0.85),
    ("100M", "mpi-tcp", "iallreduce", 0.85), ("many1000", "mpi-tcp", "iallreduce", 1.0),
]  # fmt: skip


def commands(system: str, world: int, case: str) -> tuple[list[str], dict[str, str]]:
    """How a system is started, and what it adds to the environment."""
    peers = harness.PEERS
    if system == OURS:
        return [sys.executable, "-m", "asyncps", "launch", "-n", str(world), "-s", "0", "--",
                sys.executable, str(peers / "asyncps_allreduce.py"), case], {}
    if system == "gloo":
        return [sys.executable, str(peers / "launch.py"), "-s", "0", "-w", str(world),
                "torch_gloo.py", case], {}
    kind = system.removeprefix("mpi-")
    script = str(peers / "mpi_allreduce.py")
    return [*mpirun(kind, world), procs.peer_python("mpi"), script, kind, case], {}


def why_not(system: str) -> str:
    """Return why a system cannot be run here; "" if it can."""
    if system == OURS:
        return ""
    python = procs.peer_python("torch" if system == "gloo" else "mpi")
    return "" if Path(python).exists() else f"{python} is not there: bench/peers/setup.sh makes it"


def run(system: str, world: int, case: str, number: int, out: Path) -> bool:
    """Run one system over one case; its records go to `out`."""
    command, more = commands(system, world, case)
    path = os.pathsep.join(filter(None, [str(harness.HERE.parent), os.environ.get("PYTHONPATH")]))
    env = {**os.environ, "PEERS_OUT": str(out), "PEERS_PASS": str(number), "PEERS_SYSTEM": system,
           "OMP_NUM_THREADS": "1", "PYTHONPATH": path, **more}
    with machine_lock():
        done = subprocess.run(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              text=True, timeout=TIMEOUT_S, check=False)
    if done.returncode:
        print(f"FAILED {system} {world} ranks {case}: {done.stdout[-1500:]}", file=sys.stderr)
    return done.returncode == 0


def table(out: Path) -> None:
    """Print medians over passes, ratios within passes, and what was to hold."""
    found: dict[tuple[str, str, int, str], dict[int, float]] = defaultdict(dict)
    sizes: dict[str, int] = {}
    for rec in records(out):
        if "op" in rec and rec.get("rank") == 0:
            found[rec["system"], rec["op"], rec["workers"], rec["case"]][rec["pass"]] = (
                rec["median_s"])
            sizes[rec["case"]] = rec["bytes"]
    print("\n| ranks | case | system | op | ms | bus GB/s | ours is times as fast |")
    print("|---|---|---|---|---|---|---|")
    for world in sorted({key[2] for key in found}):
        for case in GROUPS:
            for (system, op, ranks, name), times in sorted(found.items()):
                if ranks != world or name != case:
                    continue
                median = statistics.median(times.values())
                bus = sizes[case] * 2 * (world - 1) / world / median / 1e9
                print(f"| {world} | {case} | {system} | {op} | {median * 1e3:.3f} | {bus:.2f} | "
                      f"{shown(ratios(found, system, op, world, case))} |")
    print("\n| ranks | case | ours against | target | measured | |\n|---|---|---|---|---|---|")
    for world in sorted({key[2] for key in found}):
        for case, system, op, target in TARGETS:
            each = ratios(found, system, op, world, case)
            if each:
                holds = "holds" if statistics.median(each) >= target else "MISSED"
                print(f"| {world} | {case} | {system} {op} | {target:g} | {shown(each)} | "
                      f"{holds} |")


def ratios(
    found: dict[tuple[str, str, int, str], dict[int, float]], system: str, op: str, world: int,
    case: str,
) -> list[float]:
    """How many times as fast ours is, of each pass."""
    ours_op = "allreduce_flat" if op.endswith("flat") else "allreduce_async"
    ours = found.get((OURS, ours_op, world, case), {})
    theirs = found.get((system, op, world, case), {})
    return [theirs[number] / ours[number] for number in sorted(theirs.keys() & ours.keys())]


def shown(each: list[float]) -> str:
    """A median, with the least and the most of several passes."""
    if not each:
        return ""
    text = f"{statistics.median(each):.2f}"
    return text if len(each) == 1 else f"{text} ({min(each):.2f} to {max(each):.2f})"


def main() -> int:
    """Run all; 1 when a system failed."""
    a = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    a.add_argument("--passes", type=int, default=1)
    a.add_argument("--worlds", default=",".join(map(str, WORLDS)), help="numbers of ranks")
    a.add_argument("--cases", default=",".join(GROUPS))
    a.add_argument("--systems", default=f"{OURS},gloo,mpi-tcp", help="also mpi-shm")
    a.add_argument("--out", type=Path, help="append JSON lines to this file")
    a.add_argument("--smallest", action="store_true", help="values only, as short as can be")
    told = a.parse_args()
    if told.smallest:
        os.environ["PEERS_SCALE"] = "0.01"
        told.worlds, told.cases, told.systems = "2", "4K,many1000", OURS
    out = told.out or harness.HERE / "out" / "collectives.jsonl"
    out.parent.mkdir(parents=True, exist_ok=True)
    if told.out is None:
        with contextlib.suppress(FileNotFoundError):
            out.unlink()
    failed = 0
    systems = told.systems.split(",")
    for system in list(systems):
        if reason := why_not(system):
            print(f"{system} left out: {reason}")
            systems.remove(system)
    for number in range(told.passes):
        for world in map(int, told.worlds.split(",")):
            for case in told.cases.split(","):
                for system in systems:
                    failed += not run(system, world, case, number, out)
    table(out)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
