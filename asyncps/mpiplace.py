"""Which rank of which MPI job a process is, by what mpirun, mpiexec and srun put into its
environment.

    Open MPI        OMPI_COMM_WORLD_RANK, _SIZE, _LOCAL_RANK, _LOCAL_SIZE; PMIX_NAMESPACE
    MPICH, Intel    PMI_RANK, PMI_SIZE; MPI_LOCALRANKID, MPI_LOCALNRANKS (Hydra)
    Slurm           SLURM_PROCID, SLURM_STEP_NUM_TASKS or SLURM_NTASKS, SLURM_LOCALID;
                    SLURM_JOB_ID, SLURM_STEP_ID, SLURM_STEP_NUM_NODES or SLURM_NNODES
    PMIx alone      PMIX_RANK, and a size of one of the others or ASYNCPS_NUM_WORKERS

An mpirun inside of a Slurm job counts before Slurm: its ranks are the ones that were asked for.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from asyncps.errors import ConfigError

_RANKS = ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK")  # and Slurm's, in a step
_HYDRA = "hydra_pmi_proxy"  # one on each host, the parent of its ranks
_DEEP = 16  # generations between a rank and its launcher that are looked at


@dataclass(frozen=True, slots=True)
class Place:
    """One process of an MPI job.

    Attributes:
        launcher: What it was started by, for people.
        rank: Its number.
        size: How many there are.
        local_rank: Its number on its host; None: that is not said.
        one_host: Whether all are on this host; None: that is not said.
        job: What no other job of this host is called; "": nothing of the kind is said.
        directory: Of the job's own, removed by its launcher at the end; "": there is none.
    """

    launcher: str
    rank: int
    size: int
    local_rank: int | None
    one_host: bool | None
    job: str
    directory: str


def is_rank(environ: Mapping[str, str]) -> bool:
    """Tell whether an environment is that of a rank; a batch script of Slurm has none."""
    step = environ.get("SLURM_STEP_ID") or environ.get("SLURM_STEPID")
    by_slurm = bool(step and environ.get("SLURM_PROCID"))
    return by_slurm or any(environ.get(name) for name in _RANKS)


def place_in(environ: Mapping[str, str]) -> Place:
    """Read an environment.

    Raises:
        ConfigError: It is no MPI job's, or says what cannot be.
    """
    env = {name: value for name, value in environ.items() if value != ""}
    for read in (_open_mpi, _hydra, _slurm, _pmix):
        place = read(env)
        if place is not None:
            return _checked(place)
    if "SLURM_PROCID" in env:
        raise ConfigError("a batch script of Slurm is no rank", expected="srun python ...")
    raise ConfigError("this process was not started by MPI",
                      expected="mpirun, mpiexec or srun (OMPI_COMM_WORLD_RANK, PMI_RANK, "
                               "SLURM_PROCID or PMIX_RANK in the environment)")


def _checked(place: Place) -> Place:
    if not 0 <= place.rank < place.size:
        raise ConfigError(f"{place.launcher} says a rank that cannot be",
                          expected=f"0 to {place.size - 1}", got=place.rank)
    return place


def _open_mpi(env: Mapping[str, str]) -> Place | None:
    rank = _number(env, "OMPI_COMM_WORLD_RANK")
    if rank is None:
        return None
    size = _needed(env, "OMPI_COMM_WORLD_SIZE")
    local_size = _number(env, "OMPI_COMM_WORLD_LOCAL_SIZE")
    return Place(
        "Open MPI", rank, size, _number(env, "OMPI_COMM_WORLD_LOCAL_RANK"),
        None if local_size is None else local_size == size,
        _first(env, "PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid"),
        _first(env, "PMIX_SERVER_TMPDIR", "OMPI_MCA_orte_jobfam_session_dir"),
    )


def _hydra(env: Mapping[str, str]) -> Place | None:
    rank = _number(env, "PMI_RANK")
    if rank is None:
        return None
    size = _needed(env, "PMI_SIZE")
    local_size = _number(env, "MPI_LOCALNRANKS")
    slurm = _slurm_job(env)  # srun --mpi=pmi2 has no Hydra
    one_host = _slurm_one_host(env) if local_size is None and slurm else (
        None if local_size is None else local_size == size)
    local_rank = _number(env, "MPI_LOCALRANKID")
    if local_rank is None and slurm:
        local_rank = _number(env, "SLURM_LOCALID")
    job = slurm if slurm and local_size is None else _proxy_of_hydra(os.getpid())
    return Place("mpiexec", rank, size, local_rank, one_host, job, "")


def _slurm(env: Mapping[str, str]) -> Place | None:
    rank = _number(env, "SLURM_PROCID")
    if rank is None:
        return None
    if "SLURM_STEP_ID" not in env and "SLURM_STEPID" not in env:
        return None  # a batch script: the one process before any srun
    size = _number(env, "SLURM_STEP_NUM_TASKS")
    return Place(
        "srun", rank, _needed(env, "SLURM_NTASKS") if size is None else size,
        _number(env, "SLURM_LOCALID"), _slurm_one_host(env), _slurm_job(env), "",
    )


def _pmix(env: Mapping[str, str]) -> Place | None:
    rank = _number(env, "PMIX_RANK")
    if rank is None:
        return None
    for name in ("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS", "ASYNCPS_NUM_WORKERS"):
        if name in env:
            break
    else:
        raise ConfigError("PMIX_RANK is set, and nothing says how many ranks there are",
                          expected="ASYNCPS_NUM_WORKERS")
    return Place("PMIx", rank, _needed(env, name), None, None, _first(env, "PMIX_NAMESPACE"),
                 _first(env, "PMIX_SERVER_TMPDIR"))


def _slurm_job(env: Mapping[str, str]) -> str:
    job = _first(env, "SLURM_JOB_ID", "SLURM_JOBID")
    return f"{job}.{_first(env, 'SLURM_STEP_ID', 'SLURM_STEPID') or 'batch'}" if job else ""


def _slurm_one_host(env: Mapping[str, str]) -> bool | None:
    for name in ("SLURM_STEP_NUM_NODES", "SLURM_NNODES", "SLURM_JOB_NUM_NODES"):
        nodes = _number(env, name)
        if nodes is not None:
            return nodes == 1
    return None


def _proxy_of_hydra(pid: int) -> str:
    """Return what tells one mpiexec of Hydra from all others: its process on this host.

    Nothing in the environment does.
    """
    for _ in range(_DEEP):
        try:
            name, _, rest = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")
        except OSError:
            break
        fields = rest.split()
        if name.partition("(")[2] == _HYDRA[:15]:
            return f"hydra-{pid}-{fields[19]}"  # its start: a number comes again, not both
        pid = int(fields[1])
    return ""


def _first(env: Mapping[str, str], *names: str) -> str:
    return next((env[name] for name in names if name in env), "")


def _number(env: Mapping[str, str], name: str) -> int | None:
    text = env.get(name)
    if text is None:
        return None
    if not (text.isascii() and text.isdecimal() and len(text) < 10):
        raise ConfigError(f"{name} must be a whole number", got=repr(text[:100]))
    return int(text)


def _needed(env: Mapping[str, str], name: str) -> int:
    number = _number(env, name)
    if number is None:
        raise ConfigError(f"{name} is not set, though the rank is")
    return number
