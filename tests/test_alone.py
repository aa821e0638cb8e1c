"""A program whose environment names no cluster trains alone, and says so."""

from __future__ import annotations

import asyncio
import logging

import numpy as np
import pytest

import asyncps
from asyncps import embedded
from asyncps.errors import UnknownKey
from tests.support.processes import ProcessGroup

WORDS = "no cluster in the environment (ASYNCPS_SCHEDULER): this process trains alone"
PROGRAM = """
import asyncio, asyncps
for attempt in range(2):
    asyncps.create("dist_sync").close()
async def main():
    async with asyncps.connect("dist_sync"):
        pass
asyncio.run(main())
"""


@pytest.mark.parametrize(("env", "times"), [({}, 1), ({"ASYNCPS_LOG_LEVEL": "error"}, 0)])
def test_it_is_said_once_and_can_be_switched_off(
    processes: ProcessGroup, env: dict[str, str], times: int
) -> None:
    process = processes.python("-c", PROGRAM, env=env)
    assert process.wait() == 0
    assert process.output.count(WORDS) == times


def test_cluster_in_a_process_is_said_by_nobody_and_names_no_address(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def work(store: asyncps.KVStore) -> str:
        store.init("weight", np.zeros(3, "f4"))
        with pytest.raises(UnknownKey) as caught:
            store.pull("wieght")
        return str(caught.value)

    monkeypatch.setattr(embedded, "_said_alone", [])
    with caplog.at_level(logging.INFO), asyncps.LocalCluster(workers=1) as cluster:
        (text,) = cluster.run(work)
    assert text == ("no such key: initialise it on every worker first; there is 'weight' "
                    "(key 'wieght')")
    assert WORDS not in caplog.text
    assert "127.0.0.1" not in caplog.text


def test_await_face_says_it_too(caplog: pytest.LogCaptureFixture,
                                monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with asyncps.connect("dist_sync"):
            pass

    monkeypatch.setattr(embedded, "_said_alone", [])
    asyncio.run(main())
    assert caplog.messages == [WORDS]
