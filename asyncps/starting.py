"""Who has started this process, and by which settings it joins the others: one rule for all that
join by themselves.

    asyncps launch, asyncps worker      say the role: a job of ours
    mpirun, mpiexec, srun               say a rank: a group of its ranks (asyncps.mpi)
    nobody, or sbatch a script          it is alone, unless environment or program name a cluster
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from typing import Any

from asyncps.config import Config, environment, in_cluster
from asyncps.errors import ConfigError
from asyncps.mpiplace import is_rank, place_in


def names_cluster(options: Iterable[str]) -> bool:
    """Tell whether keyword arguments speak of a cluster, as `in_cluster` of the environment."""
    return not {"scheduler", "role", "num_workers"}.isdisjoint(options)


def joins_by_mpi(environ: Mapping[str, str], options: Iterable[str] = ()) -> bool:
    """Tell whether a process is one of a group of ranks that mpirun, mpiexec or srun has started.

    It is none where a launcher of ours runs inside of theirs, or where somebody says the role or
    another number of workers: that is a job of another shape.

    Args:
        environ: Its environment.
        options: Names of what the program says by itself; it wins.

    Raises:
        ConfigError: As `asyncps.mpiplace.place_in`.
    """
    said = environ.get("ASYNCPS_NUM_WORKERS") or environ.get("DMLC_NUM_WORKER")
    if not is_rank(environ) or environ.get("ASYNCPS_ROLE") or environ.get("DMLC_ROLE"):
        return False
    if not {"role", "num_workers"}.isdisjoint(options):
        return False
    return not said or said == str(place_in(environ).size)


def settings_of_start(**options: Any) -> tuple[Config, bool]:
    """Return the settings by which this process joins, and whether there is anybody to join.

    Ranks of MPI meet here, as `asyncps.mpi.settings_from_mpi` has it.

    Args:
        options: Of `asyncps.config.Config`, by name.

    Raises:
        As `Config.from_env` and `settings_from_mpi`.
    """
    env = environment()
    clustered = in_cluster(env) or names_cluster(options)
    # One rank alone needs no place to meet, which its launcher may not name.
    if joins_by_mpi(env, options) and (clustered or place_in(env).size > 1):
        from asyncps.mpi import settings_from_mpi  # only who needs it

        return settings_from_mpi(env, **options), True
    return Config.from_env(env, **options), clustered


def has_servers(kind: str, options: Iterable[str]) -> bool:
    """Tell whether a store with servers finds them in a cluster; False: this process has its own.

    Args:
        kind: The store's type.
        options: Names of what the program says by itself.

    Raises:
        ConfigError: This is one of several ranks of MPI, and no cluster is named: each of them
            would train alone.
    """
    env = environment()
    if in_cluster(env) or names_cluster(options):
        return True
    place = None
    with contextlib.suppress(ConfigError):  # it does not say how many there are
        place = place_in(env) if is_rank(env) else None
    if place is not None and place.size > 1:
        raise ConfigError(
            f"a {kind} store keeps its values on servers, and {place.launcher} has started "
            f"{place.size} workers and none",
            expected=f"asyncps launch -n {place.size} -s 1 or more; ASYNCPS_SCHEDULER of a job "
                     "with servers in every rank's environment; or a store of type allreduce")
    return False
