"""Ends in the middle of things: half pushes, held pushes, failed rounds, two stores."""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from asyncps.errors import AsyncPSError, WorkerLost
from asyncps.kvstore import KVStore
from asyncps.tensor import updates
from tests.support.cluster import on_cluster
from tests.support.processes import ProcessGroup, clean_environment

LARGE = 8_000_000


@pytest.mark.parametrize("transport", ["memory", "tcp"])
def test_worker_that_ends_by_an_exception_in_mid_push_is_lost_and_counts_nowhere(
    transport: str,
) -> None:
    """A goodbye would complete rounds in which some of its chunks count and others do not."""

    def work(store: KVStore) -> None:
        store.init("w", np.zeros(LARGE, "f4"))
        store.barrier()
        if store.rank == 0:
            store.push("w", np.ones(LARGE, "f4"), copy=False)
            raise KeyError("a mistake of the user's")
        with pytest.raises(WorkerLost) as caught:
            store.pushpull("w", np.ones(LARGE, "f4"))
        heard.append(caught.value.rank)

    heard: list[int | None] = []
    with pytest.raises(KeyError, match="a mistake of the user's"):
        on_cluster(work, transport=transport)
    assert heard == [0]


@pytest.mark.parametrize("transport", ["memory", "tcp"])
@pytest.mark.parametrize("size", [3, 300_000])
def test_held_pushpull_that_was_given_up_counts_as_it_was_and_writes_nothing(
    size: int, transport: str
) -> None:
    def work(store: KVStore) -> Any:
        store.init("w", np.zeros(size, "f4"))
        store.set_optimizer("test")
        if store.rank == 0:
            value, out = np.full(size, 100, "f4"), np.full((2, size), -7, "f4")[::-1][0:1][0]
            first = [
                store.pushpull("w", np.full(size, 10**i, "f4"), async_op=True) for i in range(2)
            ]
            held = store.pushpull("w", value, out=out, async_op=True)
            store._runtime.run(lambda: store._core.let_go(held._call))
            value[:] = 9999  # ours again
            given_up.set()
            for handle in first:
                handle.wait(10)
            result = store.pull("w")
            np.testing.assert_array_equal(out, -7)
            return result
        assert given_up.wait(10)
        for _ in range(3):
            store.push("w", np.ones(size, "f4"))
        return store.pull("w")

    given_up = threading.Event()
    for result in on_cluster(work, transport=transport):
        np.testing.assert_array_equal(result, 111 + 3)


def test_round_that_a_server_cannot_finish_fails_for_all_and_the_next_one_works(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def run(*arguments: Any) -> None:
        if failures:
            raise failures.pop()
        real(*arguments)

    def work(store: KVStore) -> Any:
        store.init("w", np.zeros(5, "f4"))
        store.set_optimizer("test")
        with pytest.raises(AsyncPSError, match="MemoryError"):
            store.pushpull("w", np.ones(5, "f4"))
        return store.pushpull("w", np.ones(5, "f4"))

    real, failures = updates.run, [MemoryError("no room")]
    monkeypatch.setattr(updates, "run", run)
    for result in on_cluster(work, servers=1):
        np.testing.assert_array_equal(result, 2)


@pytest.mark.launch
def test_normal_exit_with_two_stores_loses_no_push(
    processes: ProcessGroup, tmp_path: Path
) -> None:
    script = tmp_path / "two.py"
    script.write_text(
        "import numpy as np, asyncps\n"
        "one = asyncps.create('dist_sync', name='one')\n"
        "two = asyncps.create('dist_sync', name='two')\n"
        f"ones = np.ones({LARGE}, 'f4')\n"
        "one.init('a', ones); two.init('b', ones)\n"
        "two.push('b', ones, copy=False)\n"
        "if two.rank == 1:\n"
        "    total = two.pull('b')\n"
        "    assert (total == 2).all(), np.unique(total, return_counts=True)\n"
        "    print('all of it')\n"
    )
    launch = processes.asyncps(
        "launch", "-n", "2", "-s", "2", "--", sys.executable, str(script),
        env=clean_environment({"ASYNCPS_ROUND_S": "15"}),
    )  # fmt: skip
    assert launch.wait(60) == 0, launch.output
    assert "all of it" in launch.output


def test_many_pulls_that_wait_for_one_round_are_all_answered() -> None:
    """What waits for a clock is found by its number: the server stays quick."""

    def work(store: KVStore) -> None:
        store.init("w", np.zeros(4, "f4"))
        if store.rank == 0:
            store.push("w", np.ones(4, "f4"))
            handles = [store.pull("w", async_op=True) for _ in range(10_000)]
            asked.set()
            for handle in handles:
                np.testing.assert_array_equal(handle.wait(15), 2)
        else:
            assert asked.wait(15)
            store.push("w", np.ones(4, "f4"))

    asked = threading.Event()
    on_cluster(work, servers=1)


@pytest.mark.launch
def test_ctrl_c_again_and_again_leaves_the_store_whole(
    processes: ProcessGroup, tmp_path: Path
) -> None:
    """Interrupts at random moments of blocking verbs, on the lane and off it."""
    script = tmp_path / "interrupted.py"
    script.write_text(
        "import random, signal\n"
        "import numpy as np, asyncps\n"
        "random.seed(7)\n"
        "store = asyncps.create('dist_sync')\n"
        "ones = {'w': np.ones(4, 'f4'), 'v': np.ones(50_000, 'f4')}\n"
        "for key, one in ones.items(): store.init(key, one)\n"
        "signal.signal(signal.SIGALRM, signal.default_int_handler)\n"
        "interrupts = 0\n"
        "while interrupts < 500:\n"
        "    try:\n"
        "        signal.setitimer(signal.ITIMER_REAL, random.uniform(1e-5, 1e-3))\n"
        "        for key, one in ones.items(): store.pushpull(key, one); store.pull(key)\n"
        "        signal.setitimer(signal.ITIMER_REAL, 0)\n"
        "    except KeyboardInterrupt:\n"
        "        interrupts += 1\n"
        "signal.signal(signal.SIGALRM, signal.SIG_IGN)\n"
        "for key, one in ones.items():\n"
        "    one[:] = 5\n"
        "    assert (store.pushpull(key, one) == 5).all()\n"
        "store.close()\n"
        "print('whole after', interrupts)\n"
    )
    launch = processes.asyncps(
        "launch", "-n", "1", "-s", "1", "--", sys.executable, str(script),
        env=clean_environment({"ASYNCPS_ANSWER_S": "10", "ASYNCPS_ROUND_S": "10"}),
    )  # fmt: skip
    assert launch.wait(28) == 0, launch.output
    assert "whole after 500" in launch.output


@pytest.mark.launch
def test_verb_in_a_signal_handler_amid_another_verb_is_refused_and_nothing_hangs(
    processes: ProcessGroup, tmp_path: Path
) -> None:
    script = tmp_path / "handler.py"
    script.write_text(
        "import signal\n"
        "import numpy as np, asyncps\n"
        "store = asyncps.create('dist_sync')\n"
        "store.init('a', np.zeros(4, 'f4'))\n"
        "signal.signal(signal.SIGALRM, lambda *_: store.pull('a'))\n"
        "signal.setitimer(signal.ITIMER_REAL, 0.002, 0.002)\n"
        "try:\n"
        "    while True: store.pushpull('a', np.ones(4, 'f4'))\n"
        "except asyncps.errors.ConfigError as error:\n"
        "    signal.setitimer(signal.ITIMER_REAL, 0)\n"
        "    print('refused:', error)\n"
        "assert (store.pushpull('a', np.full(4, 3, 'f4')) == 3).all()\n"
        "store.close()\n"
    )
    launch = processes.asyncps("launch", "-n", "1", "-s", "1", "--", sys.executable, str(script))
    assert launch.wait(28) == 0, launch.output
    assert "refused: a verb was called in the middle of another one" in launch.output
