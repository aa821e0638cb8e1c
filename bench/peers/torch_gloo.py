"""torch.distributed gloo all-reduce on CPU tensors (no servers); started by launch.py.

ops: allreduce_async  one async all_reduce a key, then wait for all
     allreduce_flat   one flat bucket (the gradients already live in it: no copies)
     allreduce_ddp    as DDP: copy into buckets of 1 MiB first, then 25 MiB, async, copy back
"""

from __future__ import annotations

import os
import sys

import common
import numpy as np
import torch
import torch.distributed as dist
import values

PEER = "torch-{}-gloo".format(torch.__version__.split("+")[0])


def buckets(sizes: list[int], first: int = 1 << 20, cap: int = 25 << 20) -> list[list[int]]:
    """Key numbers by bucket, the last keys first."""
    out, cur, used, limit = [], [], 0, first
    for i in reversed(range(len(sizes))):
        cur.append(i)
        used += 4 * sizes[i]
        if used >= limit:
            out.append(cur)
            cur, used, limit = [], 0, cap
    return [*out, cur] if cur else out


def run_case(case: str, rank: int, workers: int, meter: common.Meter | None) -> None:
    """All ops over one case, each verified before and after its timed rounds."""
    sizes = common.CASES[case]
    base = common.grads(case, rank, workers)
    grads = [torch.from_numpy(b.copy()) for b in base]
    flat = torch.from_numpy(np.concatenate(base))
    flat_source = flat.clone()
    groups = [(ix, torch.empty(sum(sizes[i] for i in ix))) for ix in buckets(sizes)]

    def refill() -> None:
        for grad, source in zip(grads, base, strict=True):
            grad.copy_(torch.from_numpy(source))
        flat.copy_(flat_source)

    def per_key() -> None:
        for handle in [dist.all_reduce(grad, async_op=True) for grad in grads]:
            handle.wait()

    def one_flat() -> None:
        dist.all_reduce(flat)

    def ddp() -> None:
        handles = []
        for ix, buf in groups:
            torch.cat([grads[i] for i in ix], out=buf)
            handles.append(dist.all_reduce(buf, async_op=True))
        for (ix, buf), handle in zip(groups, handles, strict=True):
            handle.wait()
            start = 0
            for i in ix:
                grads[i].copy_(buf[start : start + sizes[i]])
                start += sizes[i]

    def verify(op: str, one) -> None:
        refill()
        dist.barrier()
        one()
        outs, shape = [g.numpy() for g in grads], sizes
        if op == "allreduce_flat":
            outs, shape = [flat.numpy()], [sum(sizes)]
        values.check(outs, shape, workers, who=f"gloo {op} rank {rank} {case}")

    todo = {"allreduce_async": per_key}
    if len(grads) > 1:
        todo.update(allreduce_flat=one_flat, allreduce_ddp=ddp)
    for op, one in todo.items():
        verify(op, one)
        times, use = common.measure(one, case, dist.barrier, meter, workers, refill)
        verify(op, one)
        common.emit(PEER, op, case, workers, 0, times, use, rank=rank)


def main() -> None:
    """All cases of argv."""
    rank, workers = int(os.environ["PEERS_RANK"]), int(os.environ["PEERS_NW"])
    torch.set_num_threads(1)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    where = "tcp://127.0.0.1:" + os.environ["PEERS_PORT"]
    dist.init_process_group("gloo", init_method=where, rank=rank, world_size=workers)
    meter = common.Meter(common.wait_pids()) if rank == 0 else None
    for case in common.parse_cases(sys.argv[1]):
        run_case(case, rank, workers, meter)
    dist.destroy_process_group()


main()
