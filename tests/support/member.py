"""A worker of a group without servers, by its role alone: it joins, meets the others, and leaves.

`python -m tests.support.member env|mpi ACTION` is one as a process: it meets the others twice and
says so; with the action "die" rank 1 kills itself between the two, with "stay" all wait for ever at
the second, and "store" opens a store.
"""

from __future__ import annotations

import os
import signal
import sys
from types import TracebackType
from typing import Self

import asyncps
from asyncps.config import Config
from asyncps.errors import AsyncPSError
from asyncps.mpi import settings_from_mpi
from asyncps.roles.machine import place_on_machine
from asyncps.roles.runtime import Runtime, loop_factory
from asyncps.roles.worker import Worker
from asyncps.transport.network import TcpNetwork


class Member:
    """One worker, on a loop in a thread of its own.

    Args:
        settings: As what is tested has made them.
    """

    def __init__(self, settings: Config) -> None:
        self.settings = settings
        self._runtime = Runtime(loop_factory(settings))
        self.worker: Worker | None = None

    def __enter__(self) -> Self:
        async def join() -> Worker:
            worker = Worker(self.settings, TcpNetwork(), self._runtime.spawn)
            try:
                await worker.start()
            except BaseException:
                worker.abandon()
                raise
            return worker

        try:
            self.worker = self._runtime.run(join)
        except BaseException:
            self._runtime.close()
            raise
        self._runtime.sockets.append(self.worker.sockets)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        worker = self.worker
        assert worker is not None

        async def leave() -> None:
            if kind is None:
                await worker.close()
            else:
                worker.abandon()

        self._runtime.run(leave)
        self._runtime.close()

    def meet(self) -> None:
        """Wait for all."""
        assert self.worker is not None
        self._runtime.run(self.worker.meet)

    def place(self) -> tuple[int, int, int, int]:
        """Rank, how many there are, number on this machine, how many are there."""
        assert self.worker is not None
        node = self.worker.node
        return (node.rank, node.num_workers, *place_on_machine(node.members, node.rank))


def main() -> None:
    """One worker as a process."""
    how, action = sys.argv[1:]
    settings = settings_from_mpi() if how == "mpi" else Config.from_env()
    if action == "store":
        asyncps.create("dist_sync")
    with Member(settings) as member:
        rank, size, local, there = member.place()
        member.meet()
        print(f"rank {rank} of {size}, {local} of {there} here", flush=True)
        if action == "die" and rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        try:
            if action == "stay" and rank == 0:
                signal.pause()
            member.meet()
        except AsyncPSError as error:
            print(f"rank {rank} saw {type(error).__name__}: {error}", flush=True)
            raise
    print(f"rank {rank} has left", flush=True)


if __name__ == "__main__":
    main()
