"""A whole cluster in this process: LocalCluster, for tests and notebooks."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Self, TypeVar

from asyncps.allreducecalls import Calling
from asyncps.allreducestore import AllReduceStore
from asyncps.cluster import ALLREDUCE_TYPES, DIST_TYPES, LOCAL_TYPES, abandon, checked
from asyncps.communicator import Communicator
from asyncps.config import Config, refuse_unknown
from asyncps.core import Core
from asyncps.embedded import Scope, embed, embedded_config
from asyncps.errors import ConfigError
from asyncps.kvstore import KVStore
from asyncps.roles.plan import StoreConfig, agreement
from asyncps.roles.runtime import Runtime, loop_factory
from asyncps.roles.worker import Worker
from asyncps.transport.network import Network
from asyncps.values import check_name

T = TypeVar("T")


class LocalCluster:
    """Scheduler, servers and workers in this process, for tests and notebooks.

    Args:
        servers: How many.
        workers: How many.
        transport: "memory", or "tcp" for real sockets on loopback.
        settings: Of `asyncps.config.Config`, by name.

    Example:
        >>> with asyncps.LocalCluster(servers=2, workers=2) as cluster:
        ...     results = cluster.run(train)  # train(store) in one thread a worker
    """

    def __init__(
        self, servers: int = 1, workers: int = 1, transport: str = "memory", **settings: Any
    ) -> None:
        if transport not in ("memory", "tcp"):
            raise ConfigError("unknown transport", expected="memory or tcp", got=repr(transport))
        refuse_unknown(settings, ())
        self._config = embedded_config(Config.from_env({}, **settings), servers, workers)
        self._transport = transport
        self._runtime: Runtime | None = None
        self._scope: Scope | None = None
        self._network: Network | None = None
        self._ran = False

    def __enter__(self) -> Self:
        self._runtime = Runtime(loop_factory(self._config))
        scope = self._scope = Scope(self._runtime.spawn)
        try:
            self._config, self._network = self._runtime.run(lambda: embed(
                self._config, scope, self._config.num_servers, self._config.num_workers,
                tcp=self._transport == "tcp",
            ))
        except BaseException:
            self._close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._close()

    def run(
        self, work: Callable[[Any], T], type: str = "dist_sync", *, name: str = "default",
        **options: Any,
    ) -> list[T]:
        """Run `work(store)` in one thread a worker; may be called once.

        Returns:
            The results in rank order.

        Raises:
            What the first worker to fail raised; the others may have failed for its loss.
        """
        if self._ran:
            raise ConfigError("run may be called once: its workers have left the cluster",
                              expected="a new LocalCluster")
        kind, store, settings = checked(type, name, options, self._config)
        if kind in LOCAL_TYPES:
            raise ConfigError("a cluster has no local stores", got=kind,
                              expected=", ".join((*DIST_TYPES, *ALLREDUCE_TYPES)))
        self._ran = True
        results: list[Any] = [None] * self._config.num_workers
        errors: list[BaseException] = []  # as they came, so the cause before what follows from it

        def one(rank: int) -> None:
            try:
                with self.store(rank, name, store, settings) as opened:
                    try:
                        results[rank] = work(opened)
                    except BaseException as error:  # before its store leaves, which others see
                        errors.append(error)
                        raise
            except BaseException as error:  # noqa: BLE001 - it is raised in the caller's thread
                errors.append(error)

        threads = [
            threading.Thread(target=one, args=(rank,), name=f"asyncps worker {rank}")
            for rank in range(self._config.num_workers)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        failed = errors[:1]
        errors.clear()
        if failed:
            raise failed.pop()  # its traceback leads here, and nothing here leads to it
        return results

    def store(
        self, rank: int, name: str = "default", store: StoreConfig | None = None,
        settings: Config | None = None,
    ) -> KVStore | AllReduceStore:
        """Join as one worker and return its store; all workers must, each in its own thread."""
        runtime, scope, network = self._runtime, self._scope, self._network
        if runtime is None or scope is None or network is None:
            raise ConfigError("the cluster is not running", expected="with LocalCluster(...)")
        check_name(name)
        config = (settings or self._config).replace(role="worker", rank=rank)
        wanted = store or agreement("dist_sync", "arrival", "sum")

        async def meet() -> Worker:
            worker = Worker(config, network, runtime.spawn, meets=wanted.type in ALLREDUCE_TYPES)
            scope.roles.append(worker)
            await worker.start()
            return worker

        async def open_core() -> Core:
            client = await worker.open_store(name, wanted)
            return Core(worker, client, worker.shortcut(client))

        worker = runtime.run(meet)
        if wanted.type in ALLREDUCE_TYPES:
            calling = Calling(Communicator(worker, runtime, lambda: None), worker)
            reducing = AllReduceStore(
                calling, name, wanted.reduce,
                lambda well: _part(reducing, worker, runtime, well))
            return reducing
        core = runtime.run(open_core)
        return KVStore(core, runtime, lambda well: _leave(core, runtime, well))

    def _close(self) -> None:
        assert self._runtime is not None
        if self._scope is not None:
            self._runtime.run(self._scope.close)
        self._runtime.close()


def _leave(core: Core, runtime: Runtime, well: bool) -> None:
    runtime.run(lambda: core.close() if well else abandon(core.worker))


def _part(store: AllReduceStore, worker: Worker, runtime: Runtime, well: bool) -> None:
    try:
        if well:
            store._finish()
        else:
            store._abandon()
    finally:
        runtime.run(worker.close if well else lambda: abandon(worker))
