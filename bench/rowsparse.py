"""Row-sparse: 10,000 random rows of 64 f32 of a million, beside MXNet; a table pushed whole.

    python bench/rowsparse.py [--mxnet] [--passes 3]

Records are printed as JSON lines. A wrong value makes the exit code non-zero.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import harness
import numpy as np

sys.path.insert(0, str(harness.PEERS))
import launch_asyncps
import procs

TOPOLOGIES = [(1, 1), (2, 2)]
WHOLE = 2_400_000


def peers(system: str, servers: int, workers: int) -> int:
    """Run one cluster; its workers print their records. Returns the exit code."""
    script = os.path.join(procs.HERE, "rowsparse.py")
    with procs.Cluster() as cluster:
        if system == "asyncps":
            env = launch_asyncps.environment(servers, workers)
            for role, count in (("scheduler", 1), ("server", servers)):
                cluster.start(
                    role, count, [sys.executable, "-m", "asyncps", role], env, quiet=True,
                    per_rank=lambda i, role=role: {"ASYNCPS_ROLE": role, "ASYNCPS_RANK": str(i)},
                )
            cluster.start(
                "worker", workers, [sys.executable, script, system], env,
                per_rank=lambda i: {"ASYNCPS_ROLE": "worker", "ASYNCPS_RANK": str(i)},
            )
        else:
            python = procs.peer_python("mx")
            env = dict(
                os.environ, DMLC_PS_ROOT_URI="127.0.0.1", DMLC_NODE_HOST="127.0.0.1",
                DMLC_PS_ROOT_PORT=str(procs.free_port()), DMLC_INTERFACE="lo",
                DMLC_NUM_SERVER=str(servers), DMLC_NUM_WORKER=str(workers),
            )
            env.pop("PYTHONPATH", None)
            serve = [python, "-c", "import mxnet"]
            cluster.start("scheduler", 1, serve, dict(env, DMLC_ROLE="scheduler"), quiet=True)
            cluster.start("server", servers, serve, dict(env, DMLC_ROLE="server"), quiet=True)
            cluster.start("worker", workers, [python, script, system],
                          dict(env, DMLC_ROLE="worker"))
        cluster.write_pids()
        return cluster.wait(240)


def whole(repeats: int = 30) -> dict[str, Any]:
    """Push a table of 2.4 M rows x 1 whole as sparse, and the same values as a dense key."""
    import asyncps

    with asyncps.create("dist_sync") as store:
        dense = np.arange(WHOLE, dtype="f4").reshape(WHOLE, 1)
        rows = asyncps.RowSparse(np.arange(WHOLE), dense.copy(), dense.shape)
        store.init("d", np.zeros_like(dense))
        store.init("t", asyncps.initializer.Zero(), shape=dense.shape)
        store.set_optimizer("sgd", learning_rate=-1.0)
        taken: dict[str, list[float]] = {"d": [], "t": []}
        for _ in range(repeats):
            for key, value in (("d", dense), ("t", rows)):
                start = time.perf_counter()
                store.push(key, value, copy=False).wait()
                taken[key].append(time.perf_counter() - start)
        found = store.row_sparse_pull("t", np.arange(WHOLE)).values
        harness.require(np.array_equal(found, store.pull("d")), "sparse and dense differ")
        harness.require(found[5, 0] == 5 * repeats, "a push was lost or counted twice")
    dense_ms, sparse_ms = (float(np.median(taken[key])) * 1e3 for key in "dt")
    return {"op": "whole", "dense_ms": round(dense_ms, 3), "sparse_ms": round(sparse_ms, 3),
            "ratio": round(sparse_ms / dense_ms, 2), "processes": "as started"}


def main() -> int:
    """1 when a cluster failed or saw a wrong value."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    options.add_argument("--mxnet", action="store_true", help="the same on MXNet, in turns")
    options.add_argument("--passes", type=int, default=1)
    options.add_argument("--whole", action="store_true", help=argparse.SUPPRESS)
    told = options.parse_args()
    if told.whole:
        print(json.dumps(whole()), flush=True)
        return 0
    failed = 0
    for _ in range(told.passes):
        for servers, workers in TOPOLOGIES:
            print(f"# {servers} servers, {workers} workers", flush=True)
            for system in ("asyncps", "mxnet") if told.mxnet else ("asyncps",):
                failed += peers(system, servers, workers) != 0
        command = [sys.executable, "-m", "asyncps", "launch", "-n", "1", "-s", "1", "--",
                   sys.executable, str(Path(__file__).resolve()), "--whole"]
        path = os.pathsep.join([str(harness.HERE.parent), str(harness.HERE)])
        failed += subprocess.run(command, env={**os.environ, "PYTHONPATH": path}).returncode != 0
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
