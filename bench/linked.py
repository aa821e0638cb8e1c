"""A cluster of ours with its workers at the far end of a link, or all over loopback."""

from __future__ import annotations

import os
import sys

import harness
import links

sys.path.insert(0, str(harness.PEERS))
import launch_asyncps
import procs

PORT = 9091  # of a namespace that nobody else has
TIMEOUT_S = 300


def run_roles(
    work: list[str], servers: int, workers: int, ends: links.Ends | None,
    timeout_s: float = TIMEOUT_S, settings: dict[str, str] | None = None,
) -> None:
    """Run scheduler and servers, and `work` as each worker, until all have ended.

    Args:
      work: a worker's command.
      ends: of the link that lies between servers and workers; None: loopback.
      settings: of all roles, as their environment has them.

    Raises:
      ClusterFailedError: A process failed; it has said why.
    """
    env = launch_asyncps.environment(servers, workers)
    path = [str(harness.HERE.parent), env.get("PYTHONPATH")]
    env.update(PYTHONPATH=os.pathsep.join(filter(None, path)), OMP_NUM_THREADS="1")
    env.update(settings or {})
    if ends:
        env["ASYNCPS_SCHEDULER"] = f"{links.SERVER_ADDRESS}:{PORT}"
    asyncps = [sys.executable, "-m", "asyncps"]
    with procs.Cluster() as cluster:
        for role, count, command in (
            ("scheduler", 1, [*asyncps, "scheduler"]),
            ("server", servers, [*asyncps, "server"]),
            ("worker", workers, work),
        ):
            more = {"ASYNCPS_ROLE": role}
            if ends:  # a role tells the others the address of its end
                is_worker = role == "worker"
                command = [*(ends.worker if is_worker else ends.server), *command]
                more["ASYNCPS_ADVERTISE"] = (
                    links.WORKER_ADDRESS if is_worker else links.SERVER_ADDRESS
                )
            cluster.start(
                role, count, command, {**env, **more}, quiet=role != "worker",
                per_rank=lambda i: {"ASYNCPS_RANK": str(i)},
            )
        cluster.write_pids()
        code = cluster.wait(timeout_s)
    if code:
        raise harness.ClusterFailedError(f"a cluster {servers}x{workers} failed with {code}")
