"""What joins by itself joins the group that its starter made: a launcher's, mpirun's, srun's."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import asyncps
from asyncps import starting
from asyncps.errors import ConfigError
from tests.support.processes import ManagedProcess, ProcessGroup
from tests.test_mpi import mpirun, open_mpi

ROOT = Path(__file__).parents[1]
HEAD = """
import sys
import numpy as np
import asyncps

class Parameter:
    name, grad_req = "w", "write"
    data, grad = np.zeros(2, "f4"), np.ones(2, "f4")

def say(rank, size):
    sys.stdout.write(f"rank {rank} of {size}\\n")  # at once: mpirun mixes what ranks say

"""
WAYS = {
    "DistOpt": "with asyncps.DistOpt(asyncps.optim.SGD(lr=0.1)) as opt:\n"
               "    say(opt.global_rank, opt.world_size)",
    "Communicator": "with asyncps.Communicator.from_launch() as comm:\n"
                    "    say(comm.rank, comm.world_size)\n"
                    "    comm.barrier()",
    "allreduce": "with asyncps.create('allreduce', reduce='mean', round_s=60.0) as store:\n"
                 "    say(store.rank, store.num_workers)\n"
                 "    assert asyncps.create('allreduce', name='b', round_s=60).num_workers == 2\n"
                 "    store.broadcast('w', np.zeros(3, 'f4'), out=np.zeros(3, 'f4'))\n"
                 "    assert store.pushpull('w', np.full(3, 2.0, 'f4'))[0] == 2",
    "horovod": "store = asyncps.create('horovod')  # left open\n"
               "say(store.rank, store.num_workers)",
    "Trainer": "with asyncps.Trainer([Parameter()], 'sgd', kvstore='horovod') as trainer:\n"
               "    say(trainer.kvstore.rank, trainer.kvstore.num_workers)\n"
               "    trainer.step(1)",
}  # fmt: skip
ways = pytest.mark.parametrize("way", WAYS)


def slurm(rank: int, size: int, **changes: str) -> dict[str, str]:
    """What srun tells one rank of a step."""
    return {
        "SLURM_PROCID": str(rank), "SLURM_NTASKS": "8", "SLURM_LOCALID": str(rank),
        "SLURM_JOB_ID": str(os.getpid()), "SLURM_STEP_ID": "3", "SLURM_STEP_NUM_NODES": "1",
        "SLURM_STEP_NUM_TASKS": str(size), **changes,
    }  # fmt: skip


def batch(size: int) -> dict[str, str]:
    """What sbatch tells a script, before any srun."""
    env = slurm(0, size)
    return {name: env[name] for name in env if "STEP" not in name}


def start(processes: ProcessGroup, way: str, env: dict[str, str]) -> ManagedProcess:
    return processes.python("-c", HEAD + WAYS[way], cwd=ROOT, env=env)


@pytest.mark.slow
@ways
def test_ranks_of_srun_join_each_other(processes: ProcessGroup, tmp_path: Path, way: str) -> None:
    started = [start(processes, way, {**slurm(rank, 2), "TMPDIR": str(tmp_path)})
               for rank in range(2)]
    for rank, process in enumerate(started):
        assert process.wait(60.0) == 0, process.output
        assert process.output == f"rank {rank} of 2\n"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
@pytest.mark.launch
@ways
def test_ranks_of_a_real_mpirun_join_each_other(processes: ProcessGroup, way: str) -> None:
    job = mpirun(processes, 2, "-c", HEAD + WAYS[way])
    assert job.wait(60.0) == 0, job.output
    assert sorted(job.output.splitlines()) == ["rank 0 of 2", "rank 1 of 2"]


@pytest.mark.slow
@pytest.mark.parametrize("way", ["DistOpt", "horovod"])
def test_a_batch_script_and_a_plain_process_stay_alone(
    processes: ProcessGroup, way: str
) -> None:
    for env in (batch(8), {}):
        process = start(processes, way, env)
        assert process.wait(60.0) == 0, process.output
        assert process.output.endswith("rank 0 of 1\n")


@pytest.mark.slow
def test_a_scheduler_that_is_named_is_where_ranks_of_mpi_meet(processes: ProcessGroup) -> None:
    job = {"ASYNCPS_TOKEN": "t", "ASYNCPS_NUM_WORKERS": "2", "ASYNCPS_NUM_SERVERS": "0"}
    scheduler = processes.asyncps("scheduler", "--scheduler", "127.0.0.1:0", env=job, cwd=ROOT)
    where = scheduler.wait_for_line(r"(127\.0\.0\.1:\d+)", 20.0).group(1)
    told = {"ASYNCPS_SCHEDULER": where, "ASYNCPS_TOKEN": "t"}  # as docs/groups.md has it
    started = [start(processes, "Communicator", {**slurm(rank, 2), **told}) for rank in (1, 0)]
    for rank, process in zip((1, 0), started, strict=True):  # the order of joining is not theirs
        assert process.wait(60.0) == 0, process.output
        assert process.output == f"rank {rank} of 2\n"
    assert scheduler.wait(30.0) == 0


# ---- who has started a process ------------------------------------------------------------------


@pytest.mark.parametrize(("env", "is_mpi"), [
    ({}, False), (batch(4), False), (slurm(1, 4), True), ({"PMI_RANK": "0", "PMI_SIZE": "1"}, True),
    (slurm(1, 4, SLURM_PROCID=""), False), (slurm(1, 4, SLURM_STEP_ID=""), False),
    ({"PMIX_RANK": "1", "ASYNCPS_NUM_WORKERS": "2"}, True),
    # asyncps launch in a step, or by hand a job of another size
    ({**slurm(0, 4), "ASYNCPS_ROLE": "worker", "ASYNCPS_NUM_WORKERS": "4"}, False),
    ({**slurm(0, 4), "DMLC_ROLE": "worker", "DMLC_NUM_WORKER": "4"}, False),
    ({**slurm(0, 4), "ASYNCPS_NUM_WORKERS": "3", "ASYNCPS_SCHEDULER": "h:1"}, False),
    ({**slurm(0, 4), "ASYNCPS_NUM_WORKERS": "4", "ASYNCPS_SCHEDULER": "h:1"}, True),
])  # fmt: skip
def test_who_is_a_rank_of_mpi(env: dict[str, str], is_mpi: bool) -> None:
    assert starting.joins_by_mpi(env) is is_mpi


def test_a_program_that_says_how_many_there_are_is_believed(
    monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in slurm(1, 4).items():
        monkeypatch.setenv(name, value)
    settings, clustered = starting.settings_of_start(num_workers=2, scheduler="h:1")
    assert (settings.num_workers, settings.scheduler, settings.rank, clustered) == (
        2, "h:1", None, True)
    settings, clustered = starting.settings_of_start(scheduler="h:1")
    assert (settings.num_workers, settings.scheduler, settings.rank, clustered) == (
        4, "h:1", 1, True)


# ---- stores with servers ------------------------------------------------------------------------


@pytest.mark.parametrize("how", [asyncps.create, asyncps.connect])
@pytest.mark.parametrize("kind", ["dist_sync", "dist_async"])
def test_mpirun_has_no_servers_for_a_store_that_needs_them(
    kind: str, how: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in open_mpi(1, 4, tmp_path).items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match=rf"a {kind} store keeps its values on servers, and Open "
                       r"MPI has started 4 workers and none") as caught:
        how(kind)
    for way in ("asyncps launch -n 4 -s 1", "ASYNCPS_SCHEDULER", "allreduce"):
        assert way in str(caught.value)


def test_one_rank_of_mpi_has_its_store_with_servers_as_a_plain_process_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in open_mpi(0, 1, tmp_path).items():
        monkeypatch.setenv(name, value)
    with asyncps.create("dist_sync") as store:
        assert store.num_workers == 1


@pytest.mark.parametrize("env", [
    {"PMI_RANK": "0", "PMI_SIZE": "1"}, {"PMI_RANK": "0"}, {"PMI_RANK": "x", "PMI_SIZE": "1"},
    {"PMIX_RANK": "0"},
])  # fmt: skip
def test_a_rank_that_is_not_told_how_many_there_are_has_its_store_with_servers(
    env: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    assert not starting.has_servers("dist_sync", ())


def test_one_rank_of_mpi_sums_alone_though_its_launcher_names_no_place_to_meet(
    monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PMI_RANK", "0")
    monkeypatch.setenv("PMI_SIZE", "1")
    with asyncps.create("allreduce") as store:
        assert store.num_workers == 1
        store.broadcast("w", np.zeros(3, "f4"))
        assert store.pushpull("w", np.ones(3, "f4")).tolist() == [1, 1, 1]
