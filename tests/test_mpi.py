"""Ranks of an MPI job become a group: under a real mpirun, and with made-up environments."""

from __future__ import annotations

import importlib.util
import os
import shutil
import socket
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

import pytest

from asyncps import mpi
from asyncps.config import Config
from asyncps.errors import ClusterError, ConfigError, RendezvousTimeout
from asyncps.hosting import reachable_address
from asyncps.mpi import settings_from_mpi
from tests.support.member import Member
from tests.support.processes import ManagedProcess, ProcessGroup

ROOT = Path(__file__).parents[1]
FAKE = ROOT / "tests" / "support" / "fakempi"
MEMBER = ("-m", "tests.support.member", "mpi")


def open_mpi(rank: int, size: int, base: Path, here: int | None = None) -> dict[str, str]:
    """What Open MPI tells one rank."""
    return {
        "OMPI_COMM_WORLD_RANK": str(rank), "OMPI_COMM_WORLD_SIZE": str(size),
        "OMPI_COMM_WORLD_LOCAL_RANK": str(rank), "PMIX_NAMESPACE": f"test-{os.getpid()}",
        "OMPI_COMM_WORLD_LOCAL_SIZE": str(size if here is None else here),
        "PMIX_SERVER_TMPDIR": str(base),
    }  # fmt: skip


def ranks(
    processes: ProcessGroup, size: int, base: Path, action: str = "meet", **extra: str
) -> list[ManagedProcess]:
    """Starts processes that believe in an mpirun."""
    here = int(extra.pop("here", size))
    return [
        processes.python(*MEMBER, action, cwd=ROOT,
                         env={**open_mpi(rank, size, base, here), **extra})
        for rank in reversed(range(size))
    ][::-1]  # fmt: skip


@pytest.fixture(autouse=True)
def _nothing_is_hosted_afterwards(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(mpi, "_groups", {})
    monkeypatch.setattr(mpi, "_registered", [None])  # the test calls finish itself
    yield
    mpi.finish()


# ---- real ones ----------------------------------------------------------------------------------


def mpirun(processes: ProcessGroup, size: int, *command: str, **env: str) -> ManagedProcess:
    if shutil.which("mpirun") is None:
        pytest.skip("there is no mpirun here")
    look = processes.start("mpirun", "--version")
    look.wait(30.0)
    if "Open MPI" not in look.output:
        pytest.skip("this mpirun is not Open MPI's")
    return processes.start("mpirun", "--allow-run-as-root", "--oversubscribe", "-n", str(size),
                           sys.executable, *command, cwd=ROOT, env=env)


@pytest.mark.slow
@pytest.mark.launch
def test_ranks_of_a_real_mpirun_meet(processes: ProcessGroup) -> None:
    job = mpirun(processes, 3, *MEMBER, "meet")
    assert job.wait(60.0) == 0, job.output
    for rank in range(3):
        assert f"rank {rank} of 3, {rank} of 3 here" in job.output
        assert f"rank {rank} has left" in job.output


@pytest.mark.slow
@pytest.mark.launch
def test_a_killed_rank_ends_a_real_mpirun(processes: ProcessGroup) -> None:
    job = mpirun(processes, 3, *MEMBER, "die")
    assert job.wait(60.0) != 0, job.output
    assert "has left" not in job.output


@pytest.mark.slow
@pytest.mark.launch
def test_ranks_of_a_real_mpirun_meet_by_a_real_mpi4py(processes: ProcessGroup) -> None:
    if importlib.util.find_spec("mpi4py") is None:
        pytest.skip("there is no mpi4py here")
    # To the ranks it looks as if each were on a host of its own.
    script = ("import os; os.environ['OMPI_COMM_WORLD_LOCAL_SIZE'] = '1'; import sys;"
              "sys.argv[1:] = ['mpi', 'meet']; from tests.support import member; member.main()")
    job = mpirun(processes, 2, "-c", script, PYTHONPATH=os.pathsep.join(sys.path))
    assert job.wait(60.0) == 0, job.output
    for rank in range(2):
        assert f"rank {rank} has left" in job.output


# ---- one host -----------------------------------------------------------------------------------


@pytest.mark.slow
def test_ranks_of_one_host_meet_by_a_file_and_leave_nothing(
    processes: ProcessGroup, tmp_path: Path
) -> None:
    for _ in range(2):  # a job of the same name, later
        for rank, process in enumerate(ranks(processes, 3, tmp_path)):
            assert process.wait(60.0) == 0, process.output
            assert f"rank {rank} of 3, {rank} of 3 here" in process.output
        assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_a_rank_that_is_killed_is_lost_for_the_others(
    processes: ProcessGroup, tmp_path: Path
) -> None:
    started = ranks(processes, 3, tmp_path, "die")
    assert started[1].wait(60.0) == -9
    for rank in (0, 2):
        assert started[rank].wait(60.0) == 1
        assert f"rank {rank} saw WorkerLost: worker 1" in started[rank].output
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_a_first_rank_that_is_killed_ends_the_group_and_the_next_job_comes(
    processes: ProcessGroup, tmp_path: Path
) -> None:
    first, second = ranks(processes, 2, tmp_path, "stay")
    for process in (first, second):
        process.wait_for_line("of 2 here", 60.0)
    first.kill()
    second.wait_for_line("rank 1 saw SchedulerLost", 30.0)
    assert second.wait(30.0) == 1
    assert list(tmp_path.iterdir()) != []  # nobody could take it away
    for process in ranks(processes, 2, tmp_path):
        assert process.wait(60.0) == 0, process.output
    assert list(tmp_path.iterdir()) == []


def test_the_first_rank_hosts_until_all_have_left(tmp_path: Path) -> None:
    settings = settings_from_mpi(open_mpi(0, 1, tmp_path))
    assert (settings.role, settings.rank, settings.num_workers) == ("worker", 0, 1)
    assert (settings.num_servers, settings.local_rank) == (0, 0)
    assert len(settings.token) == 64
    assert settings.frozen_server_s == 60.0
    order: list[str] = []
    with Member(settings) as member:
        assert member.place() == (0, 1, 0, 1)
        (directory,) = tmp_path.iterdir()
        assert [path.name for path in directory.iterdir()] == ["group-1.json"]

        def finish() -> None:
            mpi.finish()
            order.append("ended")

        thread = threading.Thread(target=finish)
        thread.start()
        member.meet()
        order.append("leaves")
    thread.join()
    assert order == ["leaves", "ended"]
    assert list(tmp_path.iterdir()) == []


def test_each_call_is_a_group_of_its_own(tmp_path: Path) -> None:
    first = settings_from_mpi(open_mpi(0, 1, tmp_path))
    second = settings_from_mpi(open_mpi(0, 1, tmp_path))
    assert first.scheduler != second.scheduler
    assert first.token != second.token
    with Member(first) as one, Member(second) as two:
        one.meet()
        two.meet()


def test_a_first_rank_that_does_not_come_is_named(tmp_path: Path) -> None:
    with pytest.raises(RendezvousTimeout, match=r"rank 0 of 2 did not tell within 0\.1 s"):
        settings_from_mpi(open_mpi(1, 2, tmp_path), rendezvous_s=0.1)


@pytest.mark.parametrize("env", [
    {"PMIX_RANK": "1", "PMIX_NAMESPACE": "n", "ASYNCPS_NUM_WORKERS": "2"},
    {"PMI_RANK": "1", "PMI_SIZE": "2", "SLURM_JOB_ID": "7", "SLURM_STEP_ID": "3"},
])  # fmt: skip
def test_ranks_that_may_be_on_other_hosts_hear_which_ways_lead_there(
    env: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mpi.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with pytest.raises(RendezvousTimeout, match=r"rank 0 of 2 did not tell") as error:
        settings_from_mpi(env, rendezvous_s=0.1)
    for way in (str(tmp_path), "if it is on another", "mpi4py", "ASYNCPS_SCHEDULER"):
        assert way in str(error.value)


def test_ranks_that_are_on_one_host_hear_of_no_others(tmp_path: Path) -> None:
    with pytest.raises(RendezvousTimeout) as error:
        settings_from_mpi(open_mpi(1, 2, tmp_path), rendezvous_s=0.1)
    assert "mpi4py" not in str(error.value)


def test_ranks_must_be_told_the_same_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings_from_mpi(open_mpi(0, 3, tmp_path), rendezvous_s=1.0)
    monkeypatch.setattr(mpi, "_groups", {})  # as if in another process
    with pytest.raises(ConfigError, match="there are 3 ranks, and Open MPI says 2"):
        settings_from_mpi(open_mpi(1, 2, tmp_path))


def test_a_job_without_a_name_says_so(tmp_path: Path) -> None:
    env = {"PMI_RANK": "0", "PMI_SIZE": "2", "MPI_LOCALNRANKS": "2"}
    with pytest.raises(ConfigError, match="mpiexec says nothing that tells this job from others"):
        settings_from_mpi(env)


def test_settings_and_their_limits(tmp_path: Path) -> None:
    env = {**open_mpi(0, 1, tmp_path), "ASYNCPS_TOKEN": "mine", "ASYNCPS_RANK": "5",
           "ASYNCPS_ROUND_S": "7", "ASYNCPS_METRICS_PORT": "0"}
    settings = settings_from_mpi(env, answer_s=3.0)
    assert (settings.rank, settings.round_s, settings.answer_s) == (0, 7.0, 3.0)
    assert settings.token != "mine"
    assert settings.metrics_port == 0
    with pytest.raises(ConfigError, match="unknown option: rounds"):
        settings_from_mpi(env, rounds=3)
    with pytest.raises(ConfigError, match="decided by the group: num_workers, token"):
        settings_from_mpi(env, token="mine", num_workers=4)
    with pytest.raises(ConfigError, match="not started by MPI"):
        settings_from_mpi({})


# ---- a scheduler that runs ----------------------------------------------------------------------


def test_a_scheduler_that_is_named_is_used(tmp_path: Path) -> None:
    env = {**open_mpi(1, 2, tmp_path, here=1), "ASYNCPS_SCHEDULER": "h:1", "ASYNCPS_TOKEN": "t"}
    got = settings_from_mpi(env)
    assert got == Config(role="worker", rank=1, num_workers=2, num_servers=0, local_rank=1,
                         scheduler="h:1", token="t")
    assert settings_from_mpi({**env, "ASYNCPS_NUM_SERVERS": "3"}).num_servers == 3
    env = {**open_mpi(1, 2, tmp_path, here=1), "DMLC_PS_ROOT_URI": "h"}
    assert settings_from_mpi(env).scheduler == "h:9091"
    env = open_mpi(1, 2, tmp_path, here=1)
    assert settings_from_mpi(env, scheduler="g:2", token="u").scheduler == "g:2"
    assert list(tmp_path.iterdir()) == []


# ---- several hosts ------------------------------------------------------------------------------


def test_several_hosts_without_mpi4py_hear_which_ways_there_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mpi.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"the 4 ranks of this job .* on several hosts") as error:
        settings_from_mpi(open_mpi(0, 4, tmp_path, here=2))
    for way in ("mpi4py", "python -m asyncps scheduler", "ASYNCPS_SCHEDULER", "ASYNCPS_TOKEN"):
        assert way in str(error.value)


@pytest.mark.slow
def test_several_hosts_meet_by_mpi4py(processes: ProcessGroup, tmp_path: Path) -> None:
    path = os.pathsep.join([str(FAKE), str(ROOT)])
    started = ranks(processes, 3, tmp_path, here="1", PYTHONPATH=path, FAKE_MPI=str(tmp_path))
    for rank, process in enumerate(started):
        assert process.wait(60.0) == 0, process.output
        assert f"rank {rank} of 3, {rank} of 3 here" in process.output


@pytest.mark.slow
def test_a_first_rank_that_cannot_listen_is_heard_of_by_all(
    processes: ProcessGroup, tmp_path: Path
) -> None:
    path = os.pathsep.join([str(FAKE), str(ROOT)])
    started = ranks(processes, 2, tmp_path, here="1", PYTHONPATH=path, FAKE_MPI=str(tmp_path),
                    ASYNCPS_ADVERTISE="192.0.2.1")
    for process in started:
        assert process.wait(60.0) == 1
    assert "TransportError: cannot listen on 192.0.2.1:0" in started[0].output
    assert ("ClusterError: rank 0 could not host the group: cannot listen on 192.0.2.1:0"
            in started[1].output)


@pytest.mark.slow
def test_an_mpi4py_of_another_mpi_says_so(processes: ProcessGroup, tmp_path: Path) -> None:
    path = os.pathsep.join([str(FAKE), str(ROOT)])
    (process, *_) = ranks(processes, 2, tmp_path, here="1", PYTHONPATH=path,
                          FAKE_MPI=str(tmp_path), FAKE_MPI_SIZE="1")
    assert process.wait(60.0) == 1
    assert "mpi4py was built for another MPI than Open MPI (expected rank 0 of 2" in process.output


@pytest.mark.parametrize(("settings", "others", "address"), [
    ({"advertise": "a"}, ["b"], "a"), ({"interface": "lo"}, ["b"], "127.0.0.1"),
    ({}, [], "127.0.0.1"), ({}, ["127.0.0.9"], "127.0.0.1"),
])  # fmt: skip
def test_where_the_others_find_the_first_rank(
    settings: dict[str, Any], others: list[str], address: str
) -> None:
    assert reachable_address(Config(**settings), others) == address


def test_a_host_that_nobody_knows_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*_: Any, **__: Any) -> Any:
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    with pytest.raises(ClusterError, match=r"no way to far: Name or .*ASYNCPS_INTERFACE"):
        reachable_address(Config(), ["far"])
