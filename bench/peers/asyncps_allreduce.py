"""asyncps's all-reduce between ranks, without servers; started by `asyncps launch -s 0`.

ops: allreduce_async  one async all_reduce a key, then wait for all
     allreduce_flat   one all_reduce of the concatenation
"""

from __future__ import annotations

import os
import sys

import common
import numpy as np
import values

from asyncps.communicator import Communicator


def run_case(comm: Communicator, case: str, meter: common.Meter | None) -> None:
    """All ops over one case, each verified before and after its timed rounds."""
    sizes, rank, workers = common.CASES[case], comm.rank, comm.world_size
    base = common.grads(case, rank, workers)
    grads = [each.copy() for each in base]
    flat_source = np.concatenate(base)
    flat = flat_source.copy()

    def refill() -> None:
        for grad, source in zip(grads, base, strict=True):
            np.copyto(grad, source)
        np.copyto(flat, flat_source)

    def per_key() -> None:
        for handle in [comm.all_reduce(grad, async_op=True) for grad in grads]:
            handle.wait()

    def one_flat() -> None:
        comm.all_reduce(flat)

    def verify(op: str, one) -> None:
        refill()
        comm.barrier()
        one()
        outs, shape = (grads, sizes) if op == "allreduce_async" else ([flat], [sum(sizes)])
        values.check(outs, shape, workers, who=f"asyncps {op} rank {rank} {case}")

    todo = {"allreduce_async": per_key}
    if len(grads) > 1:
        todo["allreduce_flat"] = one_flat
    for op, one in todo.items():
        verify(op, one)
        times, use = common.measure(one, case, comm.barrier, meter, workers, refill)
        verify(op, one)
        common.emit("asyncps", op, case, workers, 0, times, use, rank=rank)


def main() -> None:
    """All cases of argv."""
    with Communicator.from_env() as comm:
        pids = comm.all_gather_object(os.getpid())
        meter = common.Meter({"server": [], "worker": pids}) if comm.rank == 0 else None
        for case in common.parse_cases(sys.argv[1]):
            run_case(comm, case, meter)


main()
