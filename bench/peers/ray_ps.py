"""The parameter-server pattern on Ray: actors hold the vector, worker actors push and pull.

A synchronous sum; an asyncio actor holds each push until every worker's is in, so that a round
means what it means elsewhere. argv: servers workers cases

ops: push_pull       a key: ray.get of all push calls, then of all pull calls
     push_pull_flat  the concatenation as one vector (cut evenly across servers)
"""

from __future__ import annotations

import asyncio
import os
import sys

import common
import numpy as np
import ray
import values

PEER = "ray-" + ray.__version__
HERE = os.path.dirname(os.path.abspath(__file__))


@ray.remote(num_cpus=0, max_concurrency=2000)
class Server:
    """One share of the keys."""

    def __init__(self, workers):
        self.workers, self.store, self.pending = workers, {}, {}

    def pid(self):
        """For the meter."""
        return os.getpid()

    async def push(self, key, value):
        """Returns once all workers' values are in."""
        entry = self.pending.get(key)
        if entry is None:
            entry = self.pending[key] = [0, None, asyncio.Event()]
        if self.workers == 1:
            entry[1] = value.copy()  # arguments are read-only views of the object store
        else:
            entry[1] = value if entry[0] == 0 else np.add(entry[1], value)
        entry[0] += 1
        if entry[0] == self.workers:
            self.store[key] = entry[1]
            del self.pending[key]
            entry[2].set()
        else:
            await entry[2].wait()

    async def pull(self, key):
        """The last sum."""
        return self.store[key]

    async def barrier(self):
        """Returns once all workers have called."""
        await self.push("__barrier__", np.zeros(1))


@ray.remote(num_cpus=0)
class Worker:
    """One worker; the driver tells it what to do."""

    def __init__(self, rank, workers, servers):
        self.rank, self.workers, self.servers = rank, workers, servers

    def pid(self):
        """For the meter."""
        return os.getpid()

    def barrier(self):
        """Wait for all workers."""
        ray.get(self.servers[0].barrier.remote())

    def shard(self, grads, tag):
        """[(server, key, array)], in the order of the keys and their parts."""
        out, count = [], len(self.servers)
        for k, grad in enumerate(grads):
            if grad.size > 1000000 and count > 1:
                parts = enumerate(np.array_split(grad, count))
                out.extend((self.servers[s], (tag, k, s), p) for s, p in parts)
            else:
                out.append((self.servers[k % count], (tag, k, 0), grad))
        return out

    def go(self, case, roles):
        """All ops over one case, each verified before and after: [(op, times, use)]."""
        results = []
        meter = common.Meter(roles) if self.rank == 0 else None
        grads = common.grads(case, self.rank, self.workers)
        sizes = common.CASES[case]
        todo = [("push_pull", self.shard(grads, case), sizes)]
        if len(grads) > 1:
            flat = self.shard([np.concatenate(grads)], case + "/flat")
            todo.append(("push_pull_flat", flat, [sum(sizes)]))
        for op, parts, shape in todo:
            got = []

            def one(parts=parts, got=got):
                ray.get([s.push.remote(k, g) for s, k, g in parts])
                got[:] = ray.get([s.pull.remote(k) for s, k, _ in parts])

            def verify(op=op, parts=parts, got=got, shape=shape):
                whole = {}
                for (_, (_, k, _), _), out in zip(parts, got, strict=True):
                    whole.setdefault(k, []).append(out)
                sums = [np.concatenate(whole[k]) for k in sorted(whole)]
                who = f"ray {op} rank {self.rank} {case}"
                values.check(sums, shape, self.workers, who=who)
                got.clear()

            one()
            verify()
            n = None
            if len(parts) > 500:
                n = (2, 10)
            elif case in ("4K", "64K"):
                warm, reps = common.rounds(case)
                n = (max(2, warm // 2), max(10, reps // 2))
            times, use = common.measure(one, case, self.barrier, meter, self.workers, n=n)
            verify()
            results.append((op, times, use))
        return results


def main() -> None:
    """Start a cluster of actors on this machine, run the cases."""
    servers_n, workers_n = int(sys.argv[1]), int(sys.argv[2])
    cases = common.parse_cases(sys.argv[3])
    env = {"PYTHONPATH": HERE, "OMP_NUM_THREADS": "1"}
    ray.init(
        num_cpus=2,
        object_store_memory=3 << 30,
        include_dashboard=False,
        log_to_driver=False,
        _node_ip_address="127.0.0.1",
        runtime_env={"env_vars": env},
    )
    servers = [Server.remote(workers_n) for _ in range(servers_n)]
    workers = [Worker.remote(r, workers_n, servers) for r in range(workers_n)]
    roles = {
        "server": ray.get([s.pid.remote() for s in servers]),
        "worker": ray.get([w.pid.remote() for w in workers]),
    }
    import psutil

    # raylet and gcs_server belong to the cost as well; those of this cluster descend from us
    family = psutil.Process().children(recursive=True)
    names = ("raylet/raylet", "gcs_server")
    roles["runtime"] = [
        p.pid for p in family if any(x in " ".join(p.cmdline())[:300] for x in names)
    ]
    for case in cases:
        answers = ray.get([w.go.remote(case, roles) for w in workers])
        for rank, results in enumerate(answers):
            for op, times, use in results:
                common.emit(PEER, op, case, workers_n, servers_n, times, use, rank=rank)
    ray.shutdown()


main()
