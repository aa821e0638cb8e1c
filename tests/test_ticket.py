"""JobTicket: what it says and keeps to itself, who joins by it, and how its groups end."""

from __future__ import annotations

import copy
import gc
import logging
import pickle
import threading
from pathlib import Path
from typing import Any

import pytest

import asyncps
from asyncps.errors import (
    AsyncPSError,
    ClosedError,
    ConfigError,
    Disagreement,
    HandshakeError,
    RankTaken,
    RendezvousTimeout,
    SchedulerLost,
    WorkerLost,
)
from asyncps.ticket import JobTicket, settings_of
from tests.support.member import Member
from tests.support.processes import ProcessGroup

ROOT = Path(__file__).parents[1]
QUICK: dict[str, Any] = {"reconnect_s": 0.2, "rendezvous_s": 10.0}


def together(ticket: JobTicket, sizes: list[int], **options: Any) -> list[Any]:
    """One thread for each size: joins by rank, meets, leaves; returns places or errors."""
    found: list[Any] = [None] * len(sizes)

    def one(rank: int) -> None:
        try:
            with Member(settings_of(ticket, rank, sizes[rank], **options)) as member:
                member.meet()
                found[rank] = member.place()
        except AsyncPSError as error:
            found[rank] = error

    threads = [threading.Thread(target=one, args=(rank,)) for rank in range(len(sizes))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


# ---- what it is ---------------------------------------------------------------------------------


def test_it_is_public() -> None:
    assert asyncps.JobTicket is JobTicket
    assert "JobTicket" in asyncps.__all__


def test_the_secret_is_its_own_and_nobody_shows_it(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setenv("ASYNCPS_TOKEN", "the-environments")
    caplog.set_level(logging.DEBUG)
    with JobTicket() as ticket, JobTicket() as other:
        settings = settings_of(ticket, 0, 1)
        assert settings.token not in ("", "the-environments", settings_of(other, 0, 1).token)
        assert len(settings.token) == 64
        together(ticket, [1])
        shown = [repr(ticket), str(ticket), repr(settings), caplog.text]
        assert all(settings.token not in text for text in shown)
        assert ticket.address in repr(ticket)
        assert ticket.address.startswith("127.0.0.1:")


def test_it_is_plain_data_that_hosts_nothing() -> None:
    with JobTicket() as ticket:
        for handed in (pickle.loads(pickle.dumps(ticket)), copy.copy(ticket)):
            assert settings_of(handed, 1, 2) == settings_of(ticket, 1, 2)
            handed.close()
            del handed
            gc.collect()
        assert not ticket.closed
        assert together(ticket, [2, 2]) == [(0, 2, 0, 2), (1, 2, 1, 2)]
    assert ticket.closed
    ticket.close()


def test_settings_say_who_and_where_whatever_the_environment_says() -> None:
    env = {
        "ASYNCPS_ROLE": "server", "ASYNCPS_RANK": "7", "ASYNCPS_LOCAL_RANK": "3",
        "ASYNCPS_NUM_WORKERS": "8", "ASYNCPS_NUM_SERVERS": "8", "ASYNCPS_SCHEDULER": "h:1",
        "ASYNCPS_TOKEN": "t", "ASYNCPS_JOB": "j", "ASYNCPS_PARENT": "1", "ASYNCPS_BIND": "0.0.0.0",
        "ASYNCPS_ADVERTISE": "10.0.0.1", "ASYNCPS_INTERFACE": "eth9", "DMLC_ROLE": "server",
        "DMLC_PS_ROOT_URI": "h", "DMLC_TASK_ID": "9", "ASYNCPS_ROUND_S": "7",
        "ASYNCPS_ON_WORKER_LOST": "continue", "ASYNCPS_METRICS_PORT": "9100",
    }  # fmt: skip
    with JobTicket() as ticket:
        got = settings_of(ticket, 1, 4, environ=env, answer_s=3.0)
    assert (got.role, got.rank, got.num_workers, got.num_servers) == ("worker", 1, 4, 0)
    assert (got.scheduler, got.local_rank, got.parent) == (ticket.address, None, None)
    assert (got.bind, got.advertise, got.interface) == (None, None, None)
    assert (got.round_s, got.answer_s, got.on_worker_lost) == (7.0, 3.0, "continue")
    assert got.metrics_port == 9101  # all are on one machine
    # The scheduler lives beside a program that may hold the interpreter's lock.
    assert got.frozen_server_s == got.frozen_worker_s == 60.0


@pytest.mark.parametrize(("rank", "size"), [
    (2, 2), (-1, 2), (0, 0), (0, -1), (0, 4097), (0.0, 1), ("0", 1), (None, 2),
])  # fmt: skip
def test_numbers_that_cannot_be_are_refused(rank: Any, size: Any) -> None:
    with JobTicket() as ticket, pytest.raises(ConfigError):
        settings_of(ticket, rank, size)


def test_what_it_decides_itself_cannot_be_said() -> None:
    with pytest.raises(ConfigError, match="decided by the group: bind, token"):
        JobTicket(token="mine", bind="0.0.0.0")
    with pytest.raises(ConfigError, match="unknown option: rendezvous"):
        JobTicket(rendezvous=3)
    with JobTicket() as ticket:
        with pytest.raises(ConfigError, match="decided by the group: job"):
            settings_of(ticket, 0, 1, job="mine")
    with pytest.raises(ConfigError, match="no ticket"):
        settings_of("127.0.0.1:1", 0, 1)  # type: ignore[arg-type]


def test_it_can_be_made_by_a_process_that_is_a_worker_of_another_job(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in {"ROLE": "worker", "RANK": "3", "NUM_WORKERS": "4", "BIND": "9.9.9.9",
                        "SCHEDULER": "nowhere:1", "METRICS_PORT": "1"}.items():
        monkeypatch.setenv(f"ASYNCPS_{name}", value)
    with JobTicket() as ticket:
        got = settings_of(ticket, 0, 1, environ={})
        assert got.scheduler == ticket.address
        with Member(got) as member:
            assert member.place() == (0, 1, 0, 1)


# ---- groups -------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("how", ["spawn", "fork", "forkserver"])
def test_processes_that_hold_it_are_a_group(how: str, processes: ProcessGroup) -> None:
    maker = processes.python("-m", "tests.support.tickets", how, "groups", cwd=ROOT)
    assert maker.wait(60.0) == 0, maker.output
    for size in (3, 2):  # and another one, when the first has ended
        for rank in range(size):
            assert f"{(rank, size, rank, size)} has met" in maker.output
        assert f"codes {[0] * size}" in maker.output


def test_all_must_say_the_same_number() -> None:
    with JobTicket(**QUICK) as ticket:
        found = together(ticket, [3, 2])
        assert [type(error) for error in found] == [Disagreement, Disagreement]
        for error in found:
            assert "worker 0 @" in str(error)
            assert "says 3, and" in str(error) or "says 2, and" in str(error)
        assert together(ticket, [2, 2]) == [(0, 2, 0, 2), (1, 2, 1, 2)]


def test_a_rank_that_is_there_cannot_be_taken() -> None:
    with JobTicket() as ticket, Member(settings_of(ticket, 0, 1)):
        with pytest.raises(RankTaken), Member(settings_of(ticket, 0, 1)):
            pass
        with pytest.raises(Disagreement, match="says 1, and worker 1"):
            with Member(settings_of(ticket, 1, 2)):
                pass


def test_nobody_joins_without_the_secret() -> None:
    with JobTicket() as ticket:
        settings = settings_of(ticket, 0, 1)
        for wrong in (settings.replace(token="0" * 64), settings.replace(token=""),
                      settings.replace(job="default"), settings.replace(job="default", token="")):
            with pytest.raises(HandshakeError), Member(wrong):
                pass
        assert together(ticket, [1]) == [(0, 1, 0, 1)]


def test_who_is_missing_is_told() -> None:
    with JobTicket(rendezvous_s=0.5) as ticket:
        with pytest.raises(RendezvousTimeout, match="missing: worker 0"):
            with Member(settings_of(ticket, 1, 2)):
                pass


def test_a_member_that_goes_without_a_word_is_lost_and_the_next_group_comes() -> None:
    with JobTicket(**QUICK) as ticket:
        with pytest.raises(WorkerLost, match="worker 1"):
            with _Pair(ticket) as member:
                member.meet()
        assert together(ticket, [1]) == [(0, 1, 0, 1)]


class _Pair:
    """Rank 0 of two, whose rank 1 joins and is gone."""

    def __init__(self, ticket: JobTicket) -> None:
        self._first = Member(settings_of(ticket, 0, 2))
        self._second = Member(settings_of(ticket, 1, 2))

    def __enter__(self) -> Member:
        def second() -> None:
            try:
                with self._second:
                    raise KeyError
            except KeyError:
                pass

        thread = threading.Thread(target=second)
        thread.start()
        self._first.__enter__()
        thread.join()
        return self._first

    def __exit__(self, *error: Any) -> None:
        self._first.__exit__(*error)


# ---- its end ------------------------------------------------------------------------------------


def test_closing_it_ends_the_group() -> None:
    with JobTicket() as ticket:
        def meet_for_ever() -> None:
            with Member(settings_of(ticket, 0, 1, reconnect_s=0.2)) as member:
                ticket.close()
                while True:
                    member.meet()

        with pytest.raises(SchedulerLost):
            meet_for_ever()
        with pytest.raises(ClosedError, match="this ticket is closed"):
            settings_of(ticket, 0, 1)


@pytest.mark.slow
@pytest.mark.parametrize("how", ["spawn", "fork"])
def test_the_death_of_its_maker_ends_the_group(how: str, processes: ProcessGroup) -> None:
    maker = processes.python("-m", "tests.support.tickets", how, "stay", cwd=ROOT)
    for rank in range(2):
        maker.wait_for_line(rf"\({rank}, 2, {rank}, 2\) has met", 60.0)
    maker.kill()
    for rank in range(2):
        maker.wait_for_line(f"rank {rank} saw SchedulerLost", 20.0)


@pytest.mark.slow
@pytest.mark.parametrize("how", ["spawn", "fork"])
def test_a_script_that_only_starts_its_processes_serves_them_to_the_end(
    how: str, processes: ProcessGroup
) -> None:
    maker = processes.python("-m", "tests.support.tickets", how, "exit", cwd=ROOT)
    assert maker.wait(60.0) == 0, maker.output
    for rank in range(2):
        assert f"({rank}, 2, {rank}, 2) has met" in maker.output
    assert "Traceback" not in maker.output
