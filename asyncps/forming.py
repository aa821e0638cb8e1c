"""The ways by which a communicator joins its group: the environment, a ticket, MPI."""

from __future__ import annotations

import atexit
import multiprocessing
import sys
from collections.abc import Callable
from functools import partial
from multiprocessing.util import Finalize
from typing import TYPE_CHECKING, Any, Self

from asyncps.config import Config, in_cluster
from asyncps.embedded import Scope, embed, real_network
from asyncps.roles.report import ending_of, ends_by_exception
from asyncps.roles.runtime import Runtime, loop_factory
from asyncps.roles.worker import Worker
from asyncps.starting import names_cluster, settings_of_start
from asyncps.ticket import JobTicket, settings_of


class Forming:
    """What a communicator is made of once it has joined.

    Args:
        worker: This process in its job, connected with all others.
        runtime: The loop that it lives on.
        release: Leaves, and ends the loop.
    """

    if TYPE_CHECKING:  # the communicator's
        def close(self) -> None: ...

    def __init__(self, worker: Worker, runtime: Runtime, release: Callable[[], None]) -> None:
        self._worker = worker
        self._runtime = runtime
        self._release = release

    @classmethod
    def from_env(cls, **settings: Any) -> Self:
        """Join the job that the environment names; alone without one.

        Args:
            settings: Of `asyncps.config.Config`, by name.

        Raises:
            RendezvousTimeout: Not everybody came.
            ConfigError: A setting that cannot be.
        """
        return cls._open(Config.from_env(**settings), in_cluster() or names_cluster(settings))

    @classmethod
    def from_ticket(cls, ticket: JobTicket, rank: int, world_size: int, **settings: Any) -> Self:
        """Join the group of a ticket.

        Args:
            ticket: As the program that made it has handed it to this process.
            rank: This process, 0 to world_size - 1.
            world_size: How many they are; all must say the same.
            settings: Of `asyncps.config.Config`, by name.

        Raises:
            Disagreement: Another process says another world_size.
            RankTaken: The rank is there already.
            RendezvousTimeout: Not everybody came.
            ConfigError: A number or a setting that cannot be.
        """
        return cls._open(settings_of(ticket, rank, world_size, **settings))

    @classmethod
    def from_mpi(cls, **settings: Any) -> Self:
        """Join the other ranks of the MPI job that started this process; all call it equally often.

        Args:
            settings: Of `asyncps.config.Config`, by name.

        Raises:
            ConfigError: This is no rank of an MPI job, or the ranks are on several hosts and have
                no way to find each other.
            RendezvousTimeout: Not everybody came.
            ClusterError: The ranks could not tell each other where they meet.
        """
        from asyncps.mpi import settings_from_mpi  # only who needs it

        return cls._open(settings_from_mpi(**settings))

    @classmethod
    def from_launch(cls, **settings: Any) -> Self:
        """Join the group in which this process was started: a launcher's of ours, else that of
        mpirun or srun; alone without one.

        Args:
            settings: Of `asyncps.config.Config`, by name.

        Raises:
            As `from_env` and `from_mpi`.
        """
        return cls._open(*settings_of_start(**settings))

    @classmethod
    def _open(cls, settings: Config, clustered: bool = True) -> Self:
        runtime = Runtime(loop_factory(settings))
        scope = Scope(runtime.spawn)

        async def join() -> Worker:
            config, network = settings, real_network()
            if not clustered:
                config, network = await embed(
                    settings.replace(num_workers=1, num_servers=0), scope, 0, 1, tcp=False)
            worker = Worker(config, network, runtime.spawn, meets=True)
            scope.roles.append(worker)
            await worker.start()
            return worker

        def release() -> None:
            forget()
            try:
                runtime.run(scope.close)
            finally:
                runtime.close()

        def at_exit() -> None:
            """A normal exit leaves for good; after an uncaught exception others hear of a loss."""
            if runtime.forked:
                return
            if ends_by_exception() or sys.exc_info()[0] is not None:
                forget()
                runtime.close()
            else:
                worker.node.ending = ending
                opened.close()

        ending = ending_of(settings) if clustered else None
        forget = _nothing
        try:
            worker = runtime.run(join)
            runtime.sockets.append(worker.sockets)  # a forked child lets go of them
            opened = cls(worker, runtime, release)
        except BaseException:
            release()
            raise
        forget = _when_the_process_ends(at_exit)
        return opened


def _nothing() -> None:
    """There is nothing to forget yet."""


def _when_the_process_ends(work: Callable[[], None]) -> Callable[[], None]:
    """Have something done then; returns what makes it be forgotten."""
    if multiprocessing.parent_process() is None:
        atexit.register(work)
        return partial(atexit.unregister, work)
    # A child of multiprocessing ends without atexit.
    later = Finalize(None, work, exitpriority=10)
    return later.cancel
