"""A cluster inside this process: its scheduler and servers on one loop, over memory or TCP."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any, Self

from asyncps.config import Config
from asyncps.errors import AsyncPSError
from asyncps.roles.scheduler import Scheduler
from asyncps.roles.server import Server
from asyncps.roles.worker import Worker
from asyncps.transport.network import MemoryNetwork, Network, TcpNetwork

log = logging.getLogger(__name__)

_said_alone: list[bool] = []

Spawn = Callable[[Coroutine[Any, Any, Any], str], None]


class Scope:
    """The tasks and roles of one embedded cluster or one connection."""

    def __init__(self, spawn: Spawn | None = None) -> None:
        self.roles: list[Scheduler | Server | Worker] = []
        self._spawn = spawn
        self._tasks: asyncio.TaskGroup | None = None
        self._mine: list[asyncio.Task[Any]] = []

    def spawn(self, work: Coroutine[Any, Any, Any], name: str) -> None:
        """Start a named task that ends with this scope."""
        if self._spawn is not None:
            self._spawn(work, name)
            return
        assert self._tasks is not None
        self._mine.append(self._tasks.create_task(work, name=name))

    def go_down(self) -> None:
        """What fails from now on fails because its only worker has: no news to its user."""
        for role in self.roles:
            if isinstance(role, Scheduler):
                role.quiet = True

    async def close(self) -> None:
        """Close the roles, workers first."""
        for role in sorted(self.roles, key=lambda r: isinstance(r, Scheduler)):
            if isinstance(role, Worker):
                await role.close()
        for role in sorted(self.roles, key=lambda r: isinstance(r, Scheduler)):
            if not isinstance(role, Worker):
                await role.close()
        self.roles.clear()

    async def __aenter__(self) -> Self:
        self._tasks = asyncio.TaskGroup()
        await self._tasks.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._tasks is not None
        await self.close()
        for task in self._mine:
            task.cancel()
        await self._tasks.__aexit__(None, None, None)


def real_network() -> Network:
    """Return the network of sockets."""
    return TcpNetwork()


def embedded_config(settings: Config, servers: int, workers: int) -> Config:
    return settings.replace(
        role=None, rank=None, num_servers=servers, num_workers=workers,
        scheduler="127.0.0.1:0", token=secrets.token_hex(16), job="embedded", bind=None,
        advertise=None, interface=None,
        metrics_port=None,  # many roles in one process, and whoever runs it has statistics()
        poll_us=0,  # its loop shares the interpreter with the user's threads
    )


async def embed_alone(settings: Config, scope: Scope) -> tuple[Config, Network]:
    """Start a scheduler and a server for a program whose environment names no cluster.

    It may be meant so, or a variable was forgotten: it is said, once a process.
    """
    if settings.log_level.upper() not in ("ERROR", "CRITICAL") and not _said_alone:
        _said_alone.append(True)
        log.warning("no cluster in the environment (ASYNCPS_SCHEDULER): this process trains alone")
    return await embed(settings, scope, 1, 1)


async def embed(
    settings: Config, scope: Scope, servers: int, workers: int, *, tcp: bool = False
) -> tuple[Config, Network]:
    """Start a scheduler and servers on this loop; return how workers reach them."""
    config = embedded_config(settings, servers, workers)
    network: Network = TcpNetwork() if tcp else MemoryNetwork()
    scheduler = Scheduler(config.replace(role="scheduler"), network, scope.spawn)
    scope.roles.append(scheduler)
    await scheduler.start()
    config = config.replace(scheduler=f"127.0.0.1:{scheduler.port}")

    async def serve(rank: int) -> None:
        server = Server(config.replace(role="server", rank=rank), network, scope.spawn)
        scope.roles.append(server)
        try:
            await server.start()
        except AsyncPSError as error:
            log.error("server %d did not start: %s", rank, error)
            for role in scope.roles:
                if isinstance(role, Worker):
                    role.node.fail(error)  # it need not wait for the deadline

    for rank in range(servers):
        scope.spawn(serve(rank), f"start server {rank}")
    return config, network
