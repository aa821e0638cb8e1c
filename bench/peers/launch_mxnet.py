"""Start scheduler, servers and workers of MXNet's dist KVStore on loopback. Python 3.8+.

$ python launch_mxnet.py -s 1 -w 2 --op push_pull --cases 4K,16M
"""

from __future__ import annotations

import os
import sys

import common
import procs

OPS = ["push_pull", "pushpull", "sgd", "2bit", "async_sgd"]


def main():
    """Run one cluster; the exit code is the first bad one of its processes."""
    a = procs.parser(__doc__.splitlines()[0])
    a.add_argument("--python", default=procs.peer_python("mx"))
    a.add_argument("--op", default="push_pull", choices=OPS)
    a.add_argument("--cases", type=common.parse_cases, default=["4K"])
    a = a.parse_args()
    procs.end_on_sigterm()
    env = dict(
        os.environ,
        DMLC_PS_ROOT_URI="127.0.0.1",
        DMLC_PS_ROOT_PORT=str(procs.free_port()),
        DMLC_NUM_SERVER=str(a.servers),
        DMLC_NUM_WORKER=str(a.workers),
        DMLC_NODE_HOST="127.0.0.1",
        DMLC_INTERFACE="lo",
        PEERS_OP=a.op,
        PEERS_CASES=",".join(a.cases),
    )
    env.update(procs.extra_env(a))
    serve = [a.python, "-c", "import mxnet"]  # a server or scheduler runs inside the import
    work = [a.python, os.path.join(procs.HERE, "mxnet_worker.py")]
    with procs.Cluster() as cluster:
        cluster.start("scheduler", 1, serve, dict(env, DMLC_ROLE="scheduler"), quiet=True)
        cluster.start("server", a.servers, serve, dict(env, DMLC_ROLE="server"), quiet=True)
        cluster.start("worker", a.workers, work, dict(env, DMLC_ROLE="worker"))
        cluster.write_pids()
        return cluster.wait(a.timeout)


if __name__ == "__main__":
    sys.exit(main())
