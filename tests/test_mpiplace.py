"""Ranks and jobs out of the environments of mpirun, mpiexec and srun."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from asyncps.errors import ConfigError
from asyncps.mpiplace import Place, place_in
from tests.support.processes import ProcessGroup

ROOT = Path(__file__).parents[1]
# As Open MPI 4.1.4 sets them.
OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_LOCAL_RANK": "2",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "4", "OMPI_COMM_WORLD_NODE_RANK": "2",
    "OMPI_MCA_ess_base_jobid": "316080129", "PMIX_NAMESPACE": "316080129", "PMIX_RANK": "2",
    "OMPI_MCA_orte_jobfam_session_dir": "/s/ompi", "PMIX_SERVER_TMPDIR": "/s/pmix",
}  # fmt: skip
SLURM = {
    "SLURM_PROCID": "1", "SLURM_NTASKS": "4", "SLURM_LOCALID": "1", "SLURM_JOB_ID": "7",
    "SLURM_STEP_ID": "3", "SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_NUM_NODES": "1",
    "SLURM_NNODES": "2",
}  # fmt: skip
NOTHING = {"SLURM_JOB_ID": "", "PMI_RANK": ""}


def changed(env: dict[str, str], **changes: str | None) -> dict[str, str]:
    mixed = {**env, **changes}
    return {name: value for name, value in mixed.items() if value is not None}


@pytest.mark.parametrize(("env", "place"), [
    (OPEN_MPI, Place("Open MPI", 2, 4, 2, True, "316080129", "/s/pmix")),
    (changed(OPEN_MPI, PMIX_NAMESPACE=None, PMIX_SERVER_TMPDIR=None),
     Place("Open MPI", 2, 4, 2, True, "316080129", "/s/ompi")),
    (changed(OPEN_MPI, OMPI_COMM_WORLD_LOCAL_SIZE="2", OMPI_COMM_WORLD_LOCAL_RANK="0"),
     Place("Open MPI", 2, 4, 0, False, "316080129", "/s/pmix")),
    (changed(OPEN_MPI, OMPI_COMM_WORLD_LOCAL_SIZE=None, OMPI_COMM_WORLD_LOCAL_RANK=None),
     Place("Open MPI", 2, 4, None, None, "316080129", "/s/pmix")),
    ({**SLURM, **OPEN_MPI}, Place("Open MPI", 2, 4, 2, True, "316080129", "/s/pmix")),
    (SLURM, Place("srun", 1, 2, 1, True, "7.3", "")),
    (changed(SLURM, SLURM_STEP_NUM_TASKS=None, SLURM_STEP_NUM_NODES=None),
     Place("srun", 1, 4, 1, False, "7.3", "")),
    ({**SLURM, "PMI_RANK": "1", "PMI_SIZE": "2"}, Place("mpiexec", 1, 2, 1, True, "7.3", "")),
    ({"PMI_RANK": "0", "PMI_SIZE": "3", "MPI_LOCALRANKID": "0", "MPI_LOCALNRANKS": "2"},
     Place("mpiexec", 0, 3, 0, False, "", "")),
    ({"PMI_RANK": "0", "PMI_SIZE": "3"}, Place("mpiexec", 0, 3, None, None, "", "")),
    ({"PMIX_RANK": "1", "ASYNCPS_NUM_WORKERS": "2", "PMIX_NAMESPACE": "n"},
     Place("PMIx", 1, 2, None, None, "n", "")),
])  # fmt: skip
def test_place_of_each_launcher(env: dict[str, str], place: Place) -> None:
    assert place_in({**NOTHING, **env}) == place


@pytest.mark.parametrize(("env", "words"), [
    ({}, "not started by MPI"),
    (changed(SLURM, SLURM_STEP_ID=None), "a batch script of Slurm is no rank"),
    ({"OMPI_COMM_WORLD_RANK": "4", "OMPI_COMM_WORLD_SIZE": "4"}, "Open MPI says a rank"),
    ({"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "0"}, "Open MPI says a rank"),
    ({"OMPI_COMM_WORLD_RANK": "0"}, "OMPI_COMM_WORLD_SIZE is not set"),
    ({"PMI_RANK": "one", "PMI_SIZE": "2"}, "PMI_RANK must be a whole number"),
    ({"PMI_RANK": "-1", "PMI_SIZE": "2"}, "PMI_RANK must be a whole number"),
    ({"PMI_RANK": "²", "PMI_SIZE": "2"}, "PMI_RANK must be a whole number"),
    ({"PMI_RANK": "1" * 5000, "PMI_SIZE": "2"}, "PMI_RANK must be a whole number"),
    ({"PMIX_RANK": "0"}, "nothing says how many ranks"),
])  # fmt: skip
def test_what_cannot_be_is_refused(env: dict[str, str], words: str) -> None:
    with pytest.raises(ConfigError, match=words) as error:
        place_in(env)
    assert len(str(error.value)) < 500


LOOK = "from asyncps.mpiplace import place_in; import os; print('job', place_in(os.environ).job)"


def test_a_job_of_hydra_is_known_by_its_proxy(processes: ProcessGroup, tmp_path: Path) -> None:
    script = tmp_path / "hydra_pmi_proxy"
    look = tmp_path / "look.py"
    look.write_text(LOOK)
    command = f"{sys.executable} {look}"
    script.write_text(f"#!/bin/sh\n{command}\nsh -c '{command}; exit'\nexit 0\n")
    script.chmod(0o700)
    env = {"PMI_RANK": "0", "PMI_SIZE": "1", "PYTHONPATH": str(ROOT)}
    jobs = []
    for _ in range(2):
        proxy = processes.start(str(script), env=env)
        assert proxy.wait(30.0) == 0, proxy.output
        first, second = re.findall(r"^job .*", proxy.output, re.MULTILINE)
        assert first == second  # a shell between the two changes nothing
        assert first.startswith(f"job hydra-{proxy.pid}-")
        jobs.append(first)
    assert jobs[0] != jobs[1]
