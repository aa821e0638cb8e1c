"""A cluster on this test's loop whose workers reach everybody through proxies that cut."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, TypeVar

from asyncps.config import Config
from asyncps.core import Core
from asyncps.embedded import Scope, embed
from asyncps.errors import AsyncPSError
from asyncps.kvstore import AsyncKVStore
from asyncps.protocol.messages import StoreConfig
from asyncps.roles.node import Node
from asyncps.roles.scheduler import Scheduler
from asyncps.roles.worker import Worker
from asyncps.transport.connection import Connection
from asyncps.transport.network import TcpNetwork
from tests.support.proxy import TcpProxy

T = TypeVar("T")


class ProxiedNetwork(TcpNetwork):
    """Sockets, with a proxy before each port that is connected to.

    Attributes:
        proxies: By the port that they stand before.
    """

    def __init__(self) -> None:
        self.proxies: dict[int, TcpProxy] = {}
        self._lock = asyncio.Lock()
        self._stack = contextlib.AsyncExitStack()

    async def connect(
        self, factory: Callable[[], Connection], host: str, port: int,
        control_timeout_s: float | None = None,
    ) -> Connection:
        """Connect through the proxy."""
        async with self._lock:
            if port not in self.proxies:
                proxy = TcpProxy((host, port))
                self.proxies[port] = await self._stack.enter_async_context(proxy)
        return await super().connect(factory, *self.proxies[port].address, control_timeout_s)

    async def close(self) -> None:
        """End all proxies."""
        await self._stack.aclose()


class Member:
    """One worker of the cluster: its store, and the proxies before it."""

    def __init__(self, worker: Worker, network: ProxiedNetwork, store: AsyncKVStore) -> None:
        self.worker = worker
        self.store = store
        scheduler = worker.node._address.port
        self.control = network.proxies[scheduler]
        servers = [m.port for m in worker.node.members if m.role == "server"]
        self.data = [network.proxies[port] for port in servers if port in network.proxies]

    async def wait_cut_off(self) -> None:
        """Wait until it has seen that its connection to the scheduler is gone."""
        await wait_cut_off(self.worker.node)

    @property
    def rank(self) -> int:
        """Its rank."""
        return self.store.rank


class Proxied:
    """The cluster."""

    def __init__(self, members: list[Member], scheduler: Scheduler) -> None:
        self.members = members
        self.scheduler = scheduler

    async def all(self, work: Callable[[AsyncKVStore], Awaitable[T]]) -> list[T]:
        """Do the same at all workers at once; the results by rank."""
        async with asyncio.TaskGroup() as tasks:
            running = [
                tasks.create_task(_await(work(member.store)), name=f"worker {member.rank}")
                for member in self.members
            ]
        return [task.result() for task in running]


@contextlib.asynccontextmanager
async def proxied(
    *, workers: int = 2, servers: int = 1, order: str = "arrival", type: str = "dist_sync",
    staleness: int = 0, **settings: Any,
) -> AsyncIterator[Proxied]:
    """Run a cluster until the block ends; workers then leave through their proxies."""
    given = {"reconnect_s": 20.0, **settings}
    async with Scope() as scope:
        config, _ = await embed(Config.from_env({}, **given), scope, servers, workers, tcp=True)
        networks = [ProxiedNetwork() for _ in range(workers)]

        async def join(rank: int) -> Member:
            worker = Worker(config.replace(role="worker", rank=rank), networks[rank], scope.spawn)
            scope.roles.append(worker)
            await worker.start()
            words = StoreConfig(type, order, "sum", staleness)
            client = await worker.open_store("default", words)
            for link in worker.links:
                await link.wait_connected()
            return Member(worker, networks[rank], AsyncKVStore(Core(worker, client)))

        try:
            async with asyncio.TaskGroup() as tasks:
                joining = [tasks.create_task(join(rank)) for rank in range(workers)]
            scheduler = next(role for role in scope.roles if isinstance(role, Scheduler))
            yield Proxied([task.result() for task in joining], scheduler)
        finally:
            await scope.close()
            for network in networks:
                await network.close()


async def wait_cut_off(node: Node) -> None:
    """Wait until a node has seen that its connection to the scheduler is gone."""
    seen = asyncio.Event()
    link, told = node.link, node.link._on_down

    def on_down(error: AsyncPSError) -> None:
        told(error)
        seen.set()

    link._on_down = on_down
    if link.connection is not None:
        await asyncio.wait_for(seen.wait(), 5.0)
    link._on_down = told


async def _await(work: Awaitable[T]) -> T:
    return await work
