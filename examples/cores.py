"""How many cores a worker computes on: its share of those of its machine.

NumPy's BLAS reads OMP_NUM_THREADS when it is imported, so nothing here imports it, and the examples
ask before they do.
"""

from __future__ import annotations

import os

# Who starts workers says by these how many are here (ours: how many there are at all).
WORKERS_HERE = (
    "ASYNCPS_NUM_WORKERS", "DMLC_NUM_WORKER", "OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS",
    "SLURM_STEP_TASKS_PER_NODE",
)  # fmt: skip


def threads(workers: int | None = None) -> str:
    """Return a value for OMP_NUM_THREADS.

    Args:
        workers: How many share this machine; None: what the environment says, else one.
    """
    if workers is None:
        said = next((os.environ[name] for name in WORKERS_HERE if os.environ.get(name)), "1")
        workers = int(said.partition("(")[0].partition(",")[0])  # Slurm's is such as 4(x2),1
    # mpirun and srun may have bound it to fewer cores already.
    share = min((os.cpu_count() or 1) // workers, len(os.sched_getaffinity(0)))
    return str(max(1, share))
