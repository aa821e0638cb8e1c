"""The same work on asyncps, on other systems and on bare sockets, in one run.

    python bench/peers/run.py --quick            a few minutes
    python bench/peers/run.py --full --out DIR   every peer, about 40 minutes a pass

For each pass, topology and group of cases, ours and theirs run one right after the other; the
report takes ratios within a pass only. A cell that fails is counted, the rest goes on, and the
exit code is 1. DIR gets results.jsonl (facts first, then one record a rank) and log.txt.
"""

from __future__ import annotations

import argparse
import datetime
import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

import common
import facts
import procs

HERE = Path(procs.HERE)
TOPOLOGIES = ["1x1", "1x2", "2x2"]
CELL_TIMEOUT_S = 300
# glibc then keeps large buffers instead of mapping new ones: MXNet's better setting
TUNED = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": "17179869184"}
MPIRUN = "mpirun --allow-run-as-root --oversubscribe --bind-to none".split()
MPI_MCA = {
    # yielding only matters once ranks outnumber the cores (the ps runs)
    "tcp": "mpi_yield_when_idle 1 btl tcp,self btl_tcp_if_include lo pml ob1".split(),
    "shm": "mpi_yield_when_idle 1 btl vader,self pml ob1".split(),
}
QUICK_SYSTEMS = ["asyncps", "raw", "mxnet"]
FULL_SYSTEMS = [*QUICK_SYSTEMS, "mxnet-default", "torch-gloo", "torch-rpc", "mpi", "ray"]


@dataclass
class Cell:
    """One cluster to start: its command and what it adds to the environment."""

    system: str
    op: str
    topology: str
    cases: list[str]
    command: list[str]
    env: dict[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.system} {self.op} {self.topology} {','.join(self.cases)}"


def _asyncps(s: int, w: int, cases: list[str], full: bool) -> Iterator[tuple]:
    ops = ["pushpull", "pushpull_await", "sgd", "adam"]
    for op in [*ops, "push_pull"] if full else ops:
        launch = [sys.executable, str(HERE / "launch_asyncps.py"), "--op", op]
        yield op, [*launch, "-s", str(s), "-w", str(w), "--cases", ",".join(cases)], {}


def _raw(s: int, w: int, cases: list[str], full: bool) -> Iterator[tuple]:
    script = [sys.executable, str(HERE / "raw_limits.py"), "-s", str(s), "-w", str(w)]
    options = ["--cases", ",".join(cases)]
    if s == w == 1:
        options += ["--memory"] if full else ["--ops", "tcp_pingpong,tcp_duplex"]
    yield "limits", script + options, {}


def _mxnet(s: int, w: int, cases: list[str], full: bool, tuned: bool = True) -> Iterator[tuple]:
    env = {"PEERS_LABEL": "+malloc", **TUNED} if tuned else {}
    # 2bit and async_sgd are no rows of the targets' table: once, with the defaults, is enough
    more = ["2bit", "async_sgd"] if full and not tuned else []
    for op in ["push_pull", "pushpull", "sgd", *more]:
        launch = [sys.executable, str(HERE / "launch_mxnet.py"), "--op", op]
        yield op, [*launch, "-s", str(s), "-w", str(w), "--cases", ",".join(cases)], env


def _mxnet_default(s: int, w: int, cases: list[str], full: bool) -> Iterator[tuple]:
    return _mxnet(s, w, cases, full, tuned=False)


def _torch_gloo(s: int, w: int, cases: list[str], full: bool) -> Iterator[tuple]:
    if w == 2 and s == 1:  # all-reduce has no servers: once for two workers
        launch = [sys.executable, str(HERE / "launch.py"), "-s", "0", "-w", "2"]
        yield "allreduce", [*launch, "torch_gloo.py", ",".join(cases)], {}


def _torch_rpc(s: int, w: int, cases: list[str], full: bool) -> Iterator[tuple]:
    for transport in ["uv", "shm"] if full else ["uv"]:
        launch = [sys.executable, str(HERE / "launch.py"), "-s", str(s), "-w", str(w)]
        command = [*launch, "torch_rpc.py", ",".join(cases)]
        yield "rpc-" + transport, command, {"TP_TRANSPORT": transport}


def mpirun(kind: str, ranks: int) -> list[str]:
    """Return what starts so many ranks of Open MPI, which meet over "tcp" or "shm"."""
    pairs = MPI_MCA[kind]
    mca = [x for i in range(0, len(pairs), 2) for x in ("--mca", *pairs[i : i + 2])]
    return [*MPIRUN, *mca, "-np", str(ranks)]


def _mpi(s: int, w: int, cases: list[str], full: bool) -> Iterator[tuple]:
    if s != 1:
        return
    python = procs.peer_python("mpi")
    script = [python, str(HERE / "mpi_allreduce.py")]
    for kind in ["tcp", "shm"] if full else ["tcp"]:
        if w == 2:
            yield "allreduce-" + kind, [*mpirun(kind, 2), *script, kind, ",".join(cases)], {}
        yield "ps-" + kind, [*mpirun(kind, w + 1), *script, kind, ",".join(cases), "ps"], {}


def _ray(s: int, w: int, cases: list[str], full: bool) -> Iterator[tuple]:
    env = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "disabled"}
    python = procs.peer_python("ray")
    yield "ps", [python, str(HERE / "ray_ps.py"), str(s), str(w), ",".join(cases)], env


SYSTEMS = {
    "asyncps": (_asyncps, None),
    "raw": (_raw, None),
    "mxnet": (_mxnet, "mx"),
    "mxnet-default": (_mxnet_default, "mx"),
    "torch-gloo": (_torch_gloo, "torch"),
    "torch-rpc": (_torch_rpc, "torch"),
    "mpi": (_mpi, "mpi"),
    "ray": (_ray, "ray"),
}


def cells(
    systems: list[str], topologies: list[str], groups: list[list[str]], full: bool
) -> list[Cell]:
    """One pass: the systems take turns within each topology and group of cases."""
    out = []
    for topology in topologies:
        s, w = (int(x) for x in topology.split("x"))
        for cases in groups:
            for system in systems:
                for op, command, env in SYSTEMS[system][0](s, w, cases, full):
                    out.append(Cell(system, op, topology, cases, command, env))
    return out


@contextmanager
def machine_lock() -> Iterator[None]:
    """One timed cluster at a time on this machine, whoever starts it."""
    path = os.environ.get("PEERS_LOCK", "/tmp/bench.lock")
    with open(path, "a") as f:
        fcntl.flock(f, fcntl.LOCK_EX)
        yield


def run_cell(cell: Cell, results: Path, log: IO[str], number: int) -> bool:
    """Run one cluster in a process group of its own; its records go to `results`."""
    env = dict(os.environ, PEERS_OUT=str(results), PEERS_PASS=str(number))
    env.update(PEERS_SYSTEM=cell.system, OMP_NUM_THREADS="1", **cell.env)
    if cell.system.startswith("mxnet"):
        env.pop("OMP_NUM_THREADS")
    log.write(f"\n=== pass {number}: {cell}\n")
    log.flush()
    with machine_lock():
        p = subprocess.Popen(
            cell.command,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            # a launcher that gets SIGTERM ends its cluster; so does one whose run.py was killed
            preexec_fn=lambda: procs.die_with_parent(signal.SIGTERM),
        )
        try:
            code = p.wait(CELL_TIMEOUT_S + 30)
        except subprocess.TimeoutExpired:
            code = procs.TIMED_OUT
        finally:
            if p.poll() is None:
                os.killpg(p.pid, signal.SIGTERM)
                try:
                    p.wait(5)
                except subprocess.TimeoutExpired:
                    os.killpg(p.pid, signal.SIGKILL)
                    p.wait()
    if code:
        log.write(f"FAILED with {code}: {cell}\n")
    return code == 0


def peer_versions(systems: list[str]) -> dict[str, str]:
    """What is installed in the peers' environments; "" where one cannot be asked."""
    names = {"mx": ["mxnet", "numpy"], "torch": ["torch"], "mpi": ["mpi4py"], "ray": ["ray"]}
    out = {}
    for env in sorted({SYSTEMS[s][1] for s in systems} - {None}):
        code = "import json, platform, sys; from importlib import metadata as m; "
        code += "print(json.dumps([platform.python_version(), *map(m.version, sys.argv[1:])]))"
        command = [procs.peer_python(env), "-c", code, *names[env]]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        got = json.loads(done.stdout) if done.returncode == 0 else []
        out[env] = ", ".join(f"{n} {v}" for n, v in zip(["python", *names[env]], got, strict=False))
    return out


def missing(systems: list[str]) -> list[str]:
    """Systems whose environment is not there."""
    envs = {s: SYSTEMS[s][1] for s in systems}
    return [s for s, env in envs.items() if env and not os.access(procs.peer_python(env), os.X_OK)]


def _listed(known: list[str], what: str):
    def parse(text: str) -> list[str]:
        names = [x for x in text.split(",") if x]
        unknown = [x for x in names if x not in known]
        if unknown or not names:
            raise argparse.ArgumentTypeError(f"unknown {what} {unknown}; there are {known}")
        return names

    return parse


def _topologies(text: str) -> list[str]:
    names = text.split(",")
    for name in names:
        parts = name.split("x")
        if len(parts) != 2 or not all(p.isdigit() and int(p) > 0 for p in parts):
            raise argparse.ArgumentTypeError(f"{name}: a topology is servers x workers, as 1x2")
    return names


def options(argv: list[str] | None) -> argparse.Namespace:
    """The command line, with the defaults of --quick or --full filled in."""
    a = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    how = a.add_mutually_exclusive_group()
    how.add_argument("--quick", action="store_true", help="(default) ours, raw, MXNet; minutes")
    how.add_argument("--full", action="store_true", help="all systems, ops and rounds")
    a.add_argument("--systems", type=_listed(list(SYSTEMS), "systems"))
    a.add_argument("--cases", type=_listed(list(common.CASES), "cases"))
    a.add_argument("--topologies", type=_topologies, default=TOPOLOGIES)
    a.add_argument("--passes", type=int, help="default 3 (--quick: 2)")
    a.add_argument("--scale", type=float, help="of the rounds; default 1 (--quick: 0.3)")
    a.add_argument("--out", type=Path, help="a new or existing directory")
    a.add_argument("--no-setup", action="store_true", help="do not make missing environments")
    o = a.parse_args(argv)
    o.systems = o.systems or (FULL_SYSTEMS if o.full else QUICK_SYSTEMS)
    o.passes = o.passes or (3 if o.full else 2)
    o.scale = o.scale or (1.0 if o.full else 0.3)
    cases = o.cases or list(common.CASES)
    # quick: all cases share a cluster, so its memory figures are of the largest before them
    o.groups = [[c for c in g if c in cases] for g in common.GROUPS] if o.full else [cases]
    o.groups = [g for g in o.groups if g]
    stamp = datetime.datetime.now().strftime("%Y%m%d-%H%M%S")
    o.out = (o.out or HERE.parent / "out" / stamp).resolve()
    return o


def _command(o: argparse.Namespace) -> str:
    """How to run this again; without --out, which names a place on one machine."""
    words = ["bench/peers/run.py", "--full" if o.full else "--quick"]
    words += ["--systems", ",".join(o.systems), "--topologies", ",".join(o.topologies)]
    words += ["--cases", ",".join(c for g in o.groups for c in g)]
    return " ".join([*words, "--passes", str(o.passes), "--scale", f"{o.scale:g}"])


def main(argv: list[str] | None = None) -> int:
    """Run everything; 1 when any cell failed."""
    o = options(argv)
    procs.end_on_sigterm()
    os.environ["PEERS_SCALE"] = str(o.scale)
    if missing(o.systems) and not o.no_setup:
        envs = sorted({SYSTEMS[s][1] for s in missing(o.systems)})
        subprocess.run([str(HERE / "setup.sh"), *envs], check=False)
    failed = [f"{s}: no environment (bench/peers/setup.sh)" for s in missing(o.systems)]
    systems = [s for s in o.systems if s not in missing(o.systems)]
    o.out.mkdir(parents=True, exist_ok=True)
    results = o.out / "results.jsonl"
    head = facts.facts()
    head.update(
        command=_command(o),
        passes=o.passes,
        scale=o.scale,
        peers=peer_versions(systems),
    )
    with results.open("a") as f:
        f.write(json.dumps(head) + "\n")
    todo = cells(systems, o.topologies, o.groups, o.full)
    started = time.monotonic()
    with (o.out / "log.txt").open("a") as log:
        for number in range(1, o.passes + 1):
            for i, cell in enumerate(todo, 1):
                t = time.monotonic()
                good = run_cell(cell, results, log, number)
                took = time.monotonic() - t
                word = "ok" if good else "FAILED"
                print(f"pass {number} {i}/{len(todo)} {cell}: {word}, {took:.1f} s", flush=True)
                if not good:
                    failed.append(f"pass {number} {cell}")
    print(f"{time.monotonic() - started:.0f} s; results: {results}")
    sys.stdout.flush()
    report = subprocess.run(
        [sys.executable, str(HERE.parent / "report.py"), str(o.out)], check=False
    )
    for text in failed:
        print(f"FAILED {text}", file=sys.stderr)
    if failed:
        print(f"{len(failed)} failures; see {o.out / 'log.txt'}", file=sys.stderr)
    return 1 if failed or report.returncode else 0


if __name__ == "__main__":
    sys.exit(main())
