"""A scheduler in a background thread of a process that does something else.

So a group of workers needs no process of its own for it: who makes a ticket hosts it, or the first
rank of an MPI job.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
from collections.abc import Callable, Mapping
from typing import Any

from asyncps.config import MEMBERSHIP, Config, environment, refuse_unknown
from asyncps.errors import AsyncPSError, ClosedError, ClusterError, ConfigError
from asyncps.roles.runtime import Runtime, loop_factory
from asyncps.roles.scheduler import Scheduler
from asyncps.state.groups import Groups
from asyncps.state.scheduling import SchedulerState
from asyncps.transport.network import TcpNetwork
from asyncps.transport.tcp import Address, interface_address

log = logging.getLogger(__name__)


class Host:
    """A running scheduler.

    Args:
        config: Its settings; `scheduler` is the host that workers are told, with port 0 for any.
        groups: It serves one group after another, whose sizes it is not told, until it is closed.
        on_end: Called once when it has ended, by itself or closed; it must not wait.

    Attributes:
        address: Where workers find it.

    Raises:
        TransportError: The address cannot be used.
        ConfigError: It is open to other machines and there is no secret.
    """

    def __init__(
        self, config: Config, *, groups: bool = False,
        on_end: Callable[[], None] = lambda: None,
    ) -> None:
        self._config = config
        self._on_end = on_end
        self._decides: type[SchedulerState] | type[Groups] = Groups if groups else SchedulerState
        self._scheduler: Scheduler | None = None
        self._closing = threading.Lock()
        self._runtime = Runtime(loop_factory(config))
        try:
            self.address = self._runtime.run(self._start)
        except BaseException:
            self._runtime.close()
            raise
        self._runtime.sockets.append(self._sockets)

    @property
    def forked(self) -> bool:
        """Whether this is a copy in a forked child, which hosts nothing."""
        return self._runtime.forked

    def has_member(self, rank: int) -> bool:
        """Return whether a worker has joined, also if it has left since."""
        async def look() -> bool:
            status = self._scheduler.status() if self._scheduler is not None else None
            return status is not None and any(node.member.rank == rank for node in status.nodes)

        try:
            return self._runtime.run(look)
        except ClosedError:
            return False  # it has ended

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until it has ended by itself; return whether it has."""
        return self._runtime.wait(timeout_s)

    def close(self) -> None:
        """End it: whoever is still a member hears that the scheduler is gone."""
        with self._closing:
            scheduler = self._scheduler
            if scheduler is None or self.forked:
                return
            self._scheduler = None
            with contextlib.suppress(ClosedError):  # it has ended by itself
                self._runtime.run(scheduler.close)
            self._runtime.close()
            self._tell_end()

    def also_closes_in_child(self, file: Any) -> None:
        """Have a forked child close something with a fileno(), too."""
        self._runtime.sockets.append(lambda: [file] if file.fileno() >= 0 else [])

    def _sockets(self) -> list[Any]:
        return [] if self._scheduler is None else self._scheduler.sockets()

    async def _start(self) -> str:
        scheduler = Scheduler(self._config, TcpNetwork(), self._runtime.spawn, self._decides)
        await scheduler.start()
        self._scheduler = scheduler
        self._runtime.spawn(self._serve(scheduler), "the hosted scheduler")
        host = self._config.scheduler.rpartition(":")[0].strip("[]")
        return str(Address(host, scheduler.port, scheduler.port))

    async def _serve(self, scheduler: Scheduler) -> None:
        try:
            await scheduler.run()
        except AsyncPSError as error:
            log.debug("the job of a hosted scheduler ended: %s", error)  # its workers say it
        await scheduler.close()
        self._tell_end()
        self._runtime.stop()

    def _tell_end(self) -> None:
        on_end, self._on_end = self._on_end, lambda: None
        on_end()


def outside(environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return an environment, by default this process's, without the cluster that it speaks of."""
    env = environment() if environ is None else environ
    return {name: value for name, value in env.items()
            if name not in MEMBERSHIP or name == "ASYNCPS_ON_WORKER_LOST"}


# What a group decides by itself.
DECIDED = frozenset({"role", "rank", "parent", "num_workers", "num_servers", "scheduler", "token",
                     "job"})


def check_options(options: Mapping[str, Any], decided: frozenset[str] = DECIDED) -> None:
    """Refuse keyword arguments that are no setting, or one that is decided otherwise.

    Raises:
        ConfigError: There is one.
    """
    refuse_unknown(options, ())
    told = sorted(options.keys() & decided)
    if told:
        raise ConfigError("these settings are decided by the group: " + ", ".join(told))


def settings_of_member(
    rank: int, num_workers: int, *, scheduler: str, token: str, job: str,
    environ: Mapping[str, str] | None = None, **options: Any,
) -> Config:
    """Return the settings of a worker of a group whose scheduler lives in a program of the user's.

    What the environment says of another cluster does not count; its deadlines and the like do. The
    program may hold the interpreter's lock for as long as a worker's may, so its silence is given
    the same time.

    Args:
        rank: The worker.
        num_workers: How many there are.
        scheduler: Where the scheduler is.
        token: The group's secret.
        job: The group's name.
        environ: Instead of the environment of this process.
        options: Other settings, by name; they win.
    """
    config = Config.from_env(outside(environ), role="worker", rank=rank, num_workers=num_workers,
                             num_servers=0, scheduler=scheduler, token=token, job=job, **options)
    patience_s = max(config.frozen_server_s, config.frozen_worker_s)
    port = config.metrics_port and config.metrics_port + rank
    return config.replace(frozen_server_s=patience_s, metrics_port=port)


def reachable_address(config: Config, others: list[str]) -> str:
    """Return the address of this host that others can reach.

    Args:
        config: Its `advertise` and `interface` win.
        others: Names of other hosts; none: all are here.

    Raises:
        ClusterError: No way leads to them.
        ConfigError: There is no such interface.
    """
    if config.advertise:
        return config.advertise
    if config.interface:
        return interface_address(config.interface)
    if not others:
        return "127.0.0.1"
    try:
        family, _, _, _, where = socket.getaddrinfo(others[0], 9, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, socket.SOCK_DGRAM) as probe:  # nothing is sent
            probe.connect(where)
            return str(probe.getsockname()[0])
    except OSError as error:
        raise ClusterError(
            f"this host knows no way to {others[0]}: {error.strerror}",
            expected="ASYNCPS_ADVERTISE or ASYNCPS_INTERFACE, in every rank's environment"
        ) from None
