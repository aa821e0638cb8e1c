"""Jobs of real processes, started by hand as a user would without the launcher."""

from __future__ import annotations

import os
import socket
import time
from pathlib import Path
from typing import Self

from tests.support.processes import ManagedProcess, ProcessGroup

ROOT = Path(__file__).parents[2]
TOKEN = "a-secret-of-these-tests"

# How long processes may take to start on a machine that is busy with other things.
START_S = 25.0

PRELUDE = """
import os, signal, sys, time
import numpy as np
import asyncps
store = asyncps.create("dist_sync")
print("this is worker", store.rank, flush=True)
"""

# Both workers go on until something happens to them; every result is checked.
TRAIN_FOR_EVER = PRELUDE + """
names = ["small", "large"]
ones = [np.ones(7, "f4"), np.ones(30000, "f4")]
store.init(names, [np.zeros_like(one) for one in ones])
n = store.num_workers
for step in range(1 << 40):
    for got in store.pushpull(names, [one * (store.rank + 1) for one in ones]):
        assert (got == n * (n + 1) / 2).all(), got
    if step == 5:
        print("worker", store.rank, "is in training", flush=True)
"""

# A few rounds with a look at the result, and a normal end.
TRAIN_BRIEFLY = PRELUDE + """
store.init("w", np.zeros(1000, "f4"))
n = store.num_workers
for step in range(3):
    got = store.pushpull("w", np.full(1000, store.rank + 1, "f4"))
assert (got == n * (n + 1) / 2).all(), got
print("worker", store.rank, "has", got[0], flush=True)
store.close()
"""

# Trains until a file appears: outsiders may do their worst meanwhile.
TRAIN_UNTIL_FILE = PRELUDE + """
store.init("w", np.zeros(1000, "f4"))
n, step, more = store.num_workers, 0, np.ones(1, "f4")
store.init("more", more)
while more[0]:
    got = store.pushpull("w", np.full(1000, store.rank + 1, "f4"))
    assert (got == n * (n + 1) / 2).all(), got
    go_on = store.rank == 0 and not os.path.exists(sys.argv[1])
    store.pushpull("more", np.array([go_on], "f4"), out=more)
    step += 1
    if step == 5:
        print("worker", store.rank, "is in training", flush=True)
print("worker", store.rank, "has", got[0], flush=True)
"""


class ReservedPort:
    """A port that nobody else gets, and that a listener of ours may still take.

    It is bound with SO_REUSEADDR and does not listen: connecting to it is refused.
    """

    def __init__(self, host: str = "127.0.0.1", *, listening: bool = False) -> None:
        self._socket = socket.socket()
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._socket.bind((host, 0))
        if listening:
            self._socket.listen()
        self.number: int = self._socket.getsockname()[1]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._socket.close()


class Job:
    """One job whose roles are started one by one.

    Args:
        processes: Where they live.
        workers: How many.
        servers: How many.
        token: The secret; "" is none.
        env: More settings of all roles.
    """

    def __init__(
        self, processes: ProcessGroup, *, workers: int = 1, servers: int = 1, token: str = TOKEN,
        **env: str | float,
    ) -> None:
        self._processes = processes
        self.address = "127.0.0.1:0"
        self.env = {
            "ASYNCPS_NUM_WORKERS": str(workers), "ASYNCPS_NUM_SERVERS": str(servers),
            **{name: str(value) for name, value in env.items()},
        }
        if token:
            self.env["ASYNCPS_TOKEN"] = token
        self.workers = workers
        self.servers = servers

    @property
    def port(self) -> int:
        """The scheduler's port."""
        return int(self.address.rpartition(":")[2])

    def scheduler(self, **env: str | float) -> ManagedProcess:
        """Start the scheduler and learn where it listens."""
        process = self._role("scheduler", None, env)
        self._learn_address(process)
        return process

    def server(self, rank: int | None = None, **env: str | float) -> ManagedProcess:
        """Start a server."""
        return self._role("server", rank, env)

    def worker(
        self, code: str, rank: int | None = None, *arguments: str, **env: str | float
    ) -> ManagedProcess:
        """Start a worker that runs a Python program, without a parent of ours."""
        given = {**self._environment("worker", rank, env), "ASYNCPS_ROLE": "worker"}
        return self._processes.python("-c", code, *arguments, env=given, cwd=ROOT)

    def reaped_worker(self, rank: int | None, *command: str, **env: str | float) -> ManagedProcess:
        """Start a program by `asyncps worker`, which tells how it ends."""
        given = self._environment("worker", rank, env)
        return self._processes.asyncps("worker", "--", *command, env=given, cwd=ROOT)

    def start(
        self, code: str, *arguments: str, **env: str | float
    ) -> tuple[ManagedProcess, list[ManagedProcess], list[ManagedProcess]]:
        """Start everybody at once; the workers run the same program."""
        with ReservedPort() as port:
            self.address = f"127.0.0.1:{port.number}"
            scheduler = self._role("scheduler", None, env)
            servers = [self.server(rank, **env) for rank in range(self.servers)]
            workers = [self.worker(code, rank, *arguments, **env) for rank in range(self.workers)]
            self._learn_address(scheduler)
        return scheduler, servers, workers

    def _learn_address(self, scheduler: ManagedProcess) -> None:
        self.address = scheduler.wait_for_line(r"scheduler listening on (\S+)", START_S)[1]

    def _role(
        self, role: str, rank: int | None, env: dict[str, str | float]
    ) -> ManagedProcess:
        return self._processes.asyncps(role, env=self._environment(role, rank, env), cwd=ROOT)

    def _environment(
        self, role: str, rank: int | None, env: dict[str, str | float]
    ) -> dict[str, str]:
        given = {**self.env, "ASYNCPS_SCHEDULER": self.address}
        if rank is not None:
            given["ASYNCPS_RANK"] = str(rank)
        given.update({name: str(value) for name, value in env.items()})
        return {name: value for name, value in given.items() if value != ""}


class Stopwatch:
    """Seconds that are left of a limit which begins now."""

    def __init__(self, limit_s: float) -> None:
        self._end = time.monotonic() + limit_s

    @property
    def left_s(self) -> float:
        """What is left, never less than a look."""
        return max(0.01, self._end - time.monotonic())


def port_of(pid: int) -> int:
    """The TCP port on which a process listens, as the system tells it."""
    inodes = set()
    for entry in os.listdir(f"/proc/{pid}/fd"):
        try:
            target = os.readlink(f"/proc/{pid}/fd/{entry}")
        except FileNotFoundError:
            continue
        if target.startswith("socket:["):
            inodes.add(target[8:-1])
    for line in Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        if fields[3] == "0A" and fields[9] in inodes:
            return int(fields[1].split(":")[1], 16)
    raise AssertionError(f"process {pid} listens on no port")
