"""All-reduce by size and number of ranks beside gloo and Open MPI, in one run.

    python bench/collectives.py                       2 and 4 ranks, one pass
    python bench/collectives.py --passes 3 --out F    as for docs/BENCHMARKS.md

Within a pass and a number of ranks the systems take turns case by case; ratios are of one pass.
Every sum is verified before and after its timed rounds. "bus" is what nccl-tests call bus
bandwidth: bytes * 2*(ranks - 1)/ranks / time, what each rank's link has to carry at least.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

import harness
import verdicts
from compare import records

sys.path.insert(0, str(harness.PEERS))
import procs
from run import machine_lock, mpirun

WORLDS = (2, 4)
TIMEOUT_S = 600
OURS = "asyncps"
SECONDS = 2.0  # what a scale of 1 stands for in bench/run.py


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
    env = {**harness.own_environment(), "PEERS_OUT": str(out), "PEERS_PASS": str(number),
           "PEERS_SYSTEM": system, "OMP_NUM_THREADS": "1", **more}
    with machine_lock():
        done = subprocess.run(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              text=True, timeout=TIMEOUT_S, check=False)
    if done.returncode:
        print(f"FAILED {system} {world} ranks {case}: {done.stdout[-1500:]}", file=sys.stderr)
    return done.returncode == 0


def table(out: Path) -> None:
    """Print medians over passes, ratios within passes, and what was to hold."""
    found = records(out)
    head, rows = verdicts.collective_table(found)
    print("\n" + verdicts.table(head, rows))
    judged = verdicts.collective_rows(found)
    if judged:
        print(verdicts.table(verdicts.HEAD, judged))


def options(a: argparse.ArgumentParser) -> None:
    """What this benchmark has beside the options of all."""
    a.add_argument("--passes", type=int, default=1)
    a.add_argument("--worlds", default=",".join(map(str, WORLDS)), help="numbers of ranks")
    a.add_argument("--cases", default=",".join(verdicts.CASES))
    a.add_argument("--systems", default=f"{OURS},gloo,mpi-tcp,{verdicts.ORIENTATION}")


def main(argv: list[str] | None = None) -> int:
    """Run all; 1 when a system failed."""
    told = harness.Bench("collectives", __doc__.splitlines()[0], argv, options).options
    if told.seconds:
        os.environ["PEERS_SCALE"] = str(told.seconds / SECONDS)
    if told.smallest:
        os.environ["PEERS_SCALE"] = "0.01"
        told.worlds, told.cases, told.systems = "2", "4K,many1000", OURS
    out = told.out.resolve() if told.out else harness.HERE / "out" / "collectives.jsonl"
    if told.out is None:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.unlink(missing_ok=True)
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
