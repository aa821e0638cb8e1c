"""Start scheduler, servers and workers of asyncps on loopback.

    python launch_asyncps.py -s 1 -w 2 --op pushpull --cases 4K,16M

The roles run under this interpreter. An installed asyncps is used, else the one of this clone.
"""

from __future__ import annotations

import importlib.util
import os
import secrets
import sys
from pathlib import Path

import common
import procs

OPS = ["pushpull", "push_pull", "pushpull_await", "sgd", "adam", "idle"]
ROOT = Path(__file__).resolve().parents[2]


def environment(servers: int, workers: int) -> dict[str, str]:
    """The ASYNCPS_* environment that all roles of one new cluster share."""
    env = {k: v for k, v in os.environ.items() if not k.startswith("DMLC_")}
    if importlib.util.find_spec("asyncps") is None:
        env["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), env.get("PYTHONPATH")]))
    env.update(
        ASYNCPS_SCHEDULER=f"127.0.0.1:{procs.free_port()}",
        ASYNCPS_NUM_SERVERS=str(servers),
        ASYNCPS_NUM_WORKERS=str(workers),
        ASYNCPS_TOKEN=secrets.token_hex(32),
        ASYNCPS_JOB="bench",
    )
    return env


def start(cluster: procs.Cluster, servers: int, workers: int, env: dict[str, str]) -> None:
    """Start every role; each gets its role and its number in the environment."""

    def numbered(role: str) -> object:
        return lambda i: {"ASYNCPS_ROLE": role, "ASYNCPS_RANK": str(i)}

    for role, count in (("scheduler", 1), ("server", servers)):
        command = [sys.executable, "-m", "asyncps", role]
        cluster.start(role, count, command, env, per_rank=numbered(role), quiet=True)
    command = [sys.executable, os.path.join(procs.HERE, "asyncps_worker.py")]
    cluster.start("worker", workers, command, env, per_rank=numbered("worker"))
    cluster.write_pids()


def main() -> int:
    """Run one cluster; the exit code is the first bad one of its processes."""
    a = procs.parser(__doc__.splitlines()[0])
    a.add_argument("--op", default="pushpull", choices=OPS)
    a.add_argument("--cases", type=common.parse_cases, default=["4K"])
    a = a.parse_args()
    procs.end_on_sigterm()
    env = environment(a.servers, a.workers)
    env.update(PEERS_OP=a.op, PEERS_CASES=",".join(a.cases), **procs.extra_env(a))
    with procs.Cluster() as cluster:
        start(cluster, a.servers, a.workers, env)
        return cluster.wait(a.timeout)


if __name__ == "__main__":
    sys.exit(main())
