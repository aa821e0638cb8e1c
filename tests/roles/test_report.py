"""The launcher's word to the scheduler: this process is dead."""

from __future__ import annotations

import asyncio
import socket

from asyncps.protocol import messages as m
from asyncps.roles.report import report_death
from asyncps.transport.request import control_frame
from tests.faults.job import ReservedPort
from tests.roles.cluster import TOKEN, bench


async def test_reported_worker_is_lost_at_once() -> None:
    async with bench(num_workers=2, reconnect_s=60) as made:
        survivor, doomed = await made.peer("worker", 0), await made.peer("worker", 1)
        for rank, peer in enumerate((survivor, doomed)):
            peer.say(control_frame(m.Join("worker", rank, 0, "", 0, "host", 1), 1, 0, 1))
            await peer.hear(m.Joined)
        doomed.close()
        assert await asyncio.to_thread(
            report_death, made.config.scheduler, TOKEN, "default", "worker", 1,
            "was killed by signal 9", 5.0,
        )
        lost = await survivor.hear(m.Lost)
        assert (lost.role, lost.rank, lost.reason) == ("worker", 1, "was killed by signal 9")
        survivor.close()


async def test_report_of_a_process_that_never_joined_ends_the_rendezvous() -> None:
    async with bench(num_workers=2, rendezvous_s=60) as made:
        first = await made.peer("worker", 0)
        first.say(control_frame(m.Join("worker", 0, 0, "", 0, "host", 1), 1, 0, 1))
        await first.hear(m.Joined)
        assert await asyncio.to_thread(
            report_death, made.config.scheduler, TOKEN, "default", "worker", 1, "exited with code 3"
        )
        end = await first.hear(m.Shutdown)
        assert "worker 1 ended before it joined: exited with code 3" in end.error.message


async def test_wrong_token_or_job_reports_nothing() -> None:
    async with bench(num_workers=2) as made:
        where = made.config.scheduler
        for token, job in (("another", "default"), (TOKEN, "another")):
            assert not await asyncio.to_thread(
                report_death, where, token, job, "worker", 1, "died", 5.0
            )


def test_nobody_there_is_no_error() -> None:
    with ReservedPort() as port:
        where = f"127.0.0.1:{port.number}"
        assert not report_death(where, TOKEN, "default", "worker", 1, "died", 0.5)


def test_silent_stranger_takes_no_longer_than_a_step() -> None:
    with socket.create_server(("127.0.0.1", 0)) as stranger:
        where = f"127.0.0.1:{stranger.getsockname()[1]}"
        assert not report_death(where, TOKEN, "default", "worker", 1, "died", 0.1)
