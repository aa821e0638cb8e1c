"""Runs a scenario on a cluster: in process over memory or TCP, or on real processes.

A scenario is a function of a store, told by its module and name, so that `python -m
tests.support.cluster module:name` can run it in a worker that the launcher started.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import asyncps
from asyncps.kvstore import KVStore
from tests.support.processes import ProcessGroup, clean_environment

T = TypeVar("T")

ROOT = Path(__file__).parents[2]

# A defect that makes somebody wait for ever shall fail its own test, with a typed error.
DEADLINES = {"answer_s": 10.0, "round_s": 15.0}

DONE = "the scenario holds at rank"


def asked_loop() -> dict[str, str]:
    """Return the setting by which ASYNCPS_LOOP chooses the loop of a test run, if it does."""
    chosen = os.environ.get("ASYNCPS_LOOP")
    return {"loop": chosen} if chosen else {}


def on_cluster(
    work: Callable[[KVStore], T],
    *,
    workers: int = 2,
    servers: int = 2,
    transport: str = "memory",
    settings: dict[str, Any] | None = None,
    **options: Any,
) -> list[T]:
    """Runs `work(store)` in one thread a worker; returns the results in rank order.

    Args:
        work: the scenario.
        workers: how many.
        servers: how many.
        transport: "memory", or "tcp" for real sockets.
        settings: of `asyncps.config.Config`, for the whole cluster.
        options: of the store, such as `order="rank"`.
    """
    told = {**asked_loop(), **DEADLINES, **(settings or {})}
    with asyncps.LocalCluster(
        servers=servers, workers=workers, transport=transport, **told
    ) as cluster:
        return cluster.run(work, **options)


def on_processes(
    processes: ProcessGroup,
    work: Callable[..., object],
    *,
    workers: int = 2,
    servers: int = 2,
    within_s: float = 60.0,
    **options: Any,
) -> None:
    """Runs `work(store)` in real worker processes; fails unless it holds at every rank."""
    launch = processes.asyncps(
        "launch", "-n", str(workers), "-s", str(servers), "--",
        sys.executable, "-m", "tests.support.cluster",
        f"{work.__module__}:{work.__name__}", json.dumps(options),
        env=clean_environment({"ASYNCPS_ROUND_S": "15", "ASYNCPS_ANSWER_S": "10"}), cwd=ROOT,
    )  # fmt: skip
    code = launch.wait(within_s)
    assert code == 0, launch.output
    for rank in range(workers):
        assert f"{DONE} {rank}" in launch.output, launch.output


def main() -> None:
    """One worker of `on_processes`."""
    module, _, name = sys.argv[1].partition(":")
    work = getattr(importlib.import_module(module), name)
    options = json.loads(sys.argv[2])
    with asyncps.create(options.pop("type", "dist_sync"), **options) as store:
        work(store)
        rank = store.rank
    print(DONE, rank, flush=True)


if __name__ == "__main__":
    main()
