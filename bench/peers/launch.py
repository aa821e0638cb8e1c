"""Start servers and workers of one Python script on loopback, for the torch peers.

    python launch.py --python PY -s 1 -w 2 torch_rpc.py 4K,64K

Each process gets PEERS_ROLE, PEERS_RANK (within its role), PEERS_NS, PEERS_NW, PEERS_PORT and
PEERS_PIDS; rank 0 of the workers meters everyone by pid.
"""

from __future__ import annotations

import argparse
import os
import sys

import procs


def main():
    """Run one cluster; the exit code is the first bad one of its processes."""
    a = procs.parser(__doc__.splitlines()[0])
    a.add_argument("--python", default=procs.peer_python("torch"))
    a.add_argument("argv", nargs=argparse.REMAINDER, metavar="SCRIPT ARGS")
    a = a.parse_args()
    procs.end_on_sigterm()
    env = dict(os.environ, PEERS_NS=str(a.servers), PEERS_NW=str(a.workers), OMP_NUM_THREADS="1")
    env["PEERS_PORT"] = str(procs.free_port())
    env.update(procs.extra_env(a))
    command = [a.python, os.path.join(procs.HERE, a.argv[0]), *a.argv[1:]]
    with procs.Cluster() as cluster:
        for role, count in (("server", a.servers), ("worker", a.workers)):
            cluster.start(
                role,
                count,
                command,
                env,
                per_rank=lambda i, role=role: {"PEERS_ROLE": role, "PEERS_RANK": str(i)},
            )
        cluster.write_pids()
        return cluster.wait(a.timeout)


if __name__ == "__main__":
    sys.exit(main())
