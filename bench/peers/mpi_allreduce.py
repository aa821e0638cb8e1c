"""mpi4py over Open MPI; started by mpirun. argv: label cases [ps]

ops: iallreduce        two ranks, one Iallreduce a key, then Waitall
     allreduce_flat    two ranks, one Allreduce of the concatenation
     ps_pushpull_flat  ("ps") rank 0 serves: it receives, sums and returns the flat tensor of
                       ranks 1 and up; the least that a push-pull costs over MPI
"""

from __future__ import annotations

import os
import sys
import traceback

import common
import numpy as np
import values
from mpi4py import MPI

COMM = MPI.COMM_WORLD
VERSION = MPI.Get_library_version().split("v", 1)[1].split(",")[0]


def allreduce(peer: str, cases: list[str], pids: list[int]) -> None:
    """The all-reduces of all ranks."""
    rank, size = COMM.rank, COMM.size
    meter = common.Meter({"server": [], "worker": pids}) if rank == 0 else None
    for case in cases:
        sizes = common.CASES[case]
        grads = common.grads(case, rank, size)
        outs = [np.empty_like(x) for x in grads]
        flat = np.concatenate(grads)
        flat_out = np.empty_like(flat)

        def per_key(grads: list = grads, outs: list = outs) -> None:
            pairs = zip(grads, outs, strict=True)
            MPI.Request.Waitall([COMM.Iallreduce(a, b) for a, b in pairs])

        def one_flat(flat: np.ndarray = flat, out: np.ndarray = flat_out) -> None:
            COMM.Allreduce(flat, out)

        todo = [
            ("iallreduce", per_key, outs, sizes),
            ("allreduce_flat", one_flat, [flat_out], [sum(sizes)]),
        ]
        for op, one, got, shape in todo:
            who = f"mpi {op} rank {rank} {case}"
            one()
            values.check(got, shape, size, who=who)
            times, use = common.measure(one, case, COMM.Barrier, meter, size)
            for out in got:
                out.fill(np.nan)
            one()
            values.check(got, shape, size, who=who)
            common.emit(peer, op, case, size, 0, times, use, rank=rank)


def ps(peer: str, cases: list[str], pids: list[int]) -> None:
    """Rank 0 serves the others."""
    rank, workers = COMM.rank, COMM.size - 1
    roles = {"server": pids[:1], "worker": pids[1:]}
    meter = common.Meter(roles) if rank == 1 else None
    for case in cases:
        n = sum(common.CASES[case])
        grad = out = np.empty(0, np.float32)
        if rank == 0:
            bufs = [np.zeros(n, np.float32) for _ in range(workers)]

            def one(bufs: list = bufs) -> None:
                MPI.Request.Waitall([COMM.Irecv(b, source=w + 1) for w, b in enumerate(bufs)])
                for b in bufs[1:]:
                    np.add(bufs[0], b, out=bufs[0])
                MPI.Request.Waitall([COMM.Isend(bufs[0], dest=w + 1) for w in range(workers)])
        else:
            grad = values.gradients([n], rank - 1, workers)[0]
            out = np.empty_like(grad)

            def one(grad: np.ndarray = grad, out: np.ndarray = out) -> None:
                COMM.Send(grad, dest=0)
                COMM.Recv(out, source=0)

        def verify(one=one, out: np.ndarray = out, n: int = n, case: str = case) -> None:
            out.fill(np.nan)
            one()
            if rank:
                values.check([out], [n], workers, who=f"mpi ps rank {rank - 1} {case}")

        verify()
        times, use = common.measure(one, case, COMM.Barrier, meter, workers)
        verify()
        if rank:
            rest = {"rank": rank - 1}
            common.emit(peer, "ps_pushpull_flat", case, workers, 1, times, use, **rest)


def main() -> None:
    """One of both; a wrong value ends the whole job, or mpirun would wait for ever."""
    peer = f"openmpi-{VERSION}-{sys.argv[1]}"
    cases = common.parse_cases(sys.argv[2])
    pids = COMM.allgather(os.getpid())
    (ps if sys.argv[3:] == ["ps"] else allreduce)(peer, cases, pids)


try:
    main()
except Exception:  # noqa: BLE001 (told here, and ends all ranks)
    traceback.print_exc()
    COMM.Abort(1)
