"""How a program gets its store: create and connect, in a cluster or with an embedded one."""

from __future__ import annotations

import atexit
import contextlib
import logging
import operator
import threading
from types import TracebackType
from typing import Any

from asyncps import optim
from asyncps.allreducecalls import Calling
from asyncps.allreducestore import AllReduceStore
from asyncps.communicator import Communicator
from asyncps.config import Config, refuse_unknown
from asyncps.core import Core
from asyncps.embedded import Scope, embed_alone
from asyncps.errors import ConfigError, Disagreement, NotYetError
from asyncps.kvstore import AsyncKVStore, KVStore
from asyncps.localstore import LocalStore
from asyncps.roles.plan import StoreConfig, agreement
from asyncps.roles.report import Ending, ending_of, ends_by_exception
from asyncps.roles.runtime import Runtime, loop_factory
from asyncps.roles.worker import Worker
from asyncps.starting import has_servers, settings_of_start
from asyncps.state.openings import MAX_STALENESS, no_servers
from asyncps.transport.network import Network, TcpNetwork
from asyncps.values import check_name

log = logging.getLogger(__name__)

LOCAL_TYPES = ("local", "device")
# What users may say, and what it means. MXNet's device types say where values of several local
# devices are summed; ours are summed on the host.
_MEANS = {
    "dist": "dist_sync", "dist_sync": "dist_sync", "dist_async": "dist_async",
    "dist_ssp": "dist_ssp", "dist_sync_device": "dist_sync", "dist_device_sync": "dist_sync",
    "dist_async_device": "dist_async",
}
DIST_TYPES = tuple(_MEANS)
ALLREDUCE_TYPES = ("allreduce", "horovod")  # without servers; both mean the first
LATER_TYPES = ("p3",)
_WORDS = ("order", "reduce", "staleness", "multi_precision")  # of a store; the rest is settings


def create(
    type: str = "local", *, name: str = "default", **options: Any
) -> KVStore | LocalStore | AllReduceStore:
    """Return a store.

    Args:
        type: "local" or "device" (this process only); "dist_sync" or "dist" (rounds in step),
            "dist_async" (each push is applied when it comes) or "dist_ssp" (so too, but no worker
            is more than `staleness` clocks ahead of the slowest; 0 is dist_sync), with MXNet's
            spellings of them: a cluster, the one that the environment names, or without one an
            embedded scheduler and server in this process, so that the same script runs alone.
            "allreduce" or "horovod": the workers sum among themselves, without servers; they may
            be the ranks of mpirun or srun.
        name: Stores of one name are one store for all workers.
        options: order="arrival" (add as contributions come) or "rank" (bit-identical from run to
            run), in dist_sync; reduce="sum" or "mean"; staleness=0, in dist_ssp;
            multi_precision=True keeps f32 weights of f16 and bf16 values on the servers; settings
            of `asyncps.config.Config` by name.

    Raises:
        ConfigError: An unknown store type or option; the known ones are listed.
        NotYetError: A documented one that this version does not have.
        RendezvousTimeout: Not everybody came.
        ClusterError: The ranks of MPI could not tell each other where they meet.
    """
    kind, store, settings = checked(type, name, options)
    if kind in LOCAL_TYPES:
        return LocalStore(kind, reduce=store.reduce, multi_precision=store.multi_precision)
    with _process_lock:
        home = _process[0] if _process else None
        if home is None or home.closed or home.forked:
            told = {word: value for word, value in options.items() if word not in _WORDS}
            if kind in ALLREDUCE_TYPES:
                joined, clustered = settings_of_start(**told)
                home = _join(joined, clustered, settings, meets=True)
            else:
                home = _join(settings, has_servers(type, told), settings)
            _process[:] = [home]
        elif settings != home.settings:
            log.warning("this process has joined already: other settings of create are not used")
        return home.open(name, store)


class connect:
    """Open a store on the running loop: `async with asyncps.connect("dist_sync") as store`.

    Args:
        type: As in `create`, but not a local one.
        name: As in `create`.
        options: As in `create`.

    Raises:
        As `create`.
    """

    def __init__(self, type: str = "dist_sync", *, name: str = "default", **options: Any) -> None:
        kind, self._store, self._settings = checked(type, name, options)
        if kind in LOCAL_TYPES:
            raise ConfigError("a local store has nothing to await", expected="asyncps.create")
        if kind in ALLREDUCE_TYPES:
            raise NotYetError("connect of an allreduce store is not there yet",
                              expected="asyncps.create, outside the event loop")
        self._name = name
        self._clustered = has_servers(type, options)
        self._scope = Scope()
        self._stack = contextlib.AsyncExitStack()

    async def __aenter__(self) -> AsyncKVStore:
        await self._stack.__aenter__()
        try:
            await self._stack.enter_async_context(self._scope)
            settings, network = self._settings, None
            if not self._clustered:
                settings, network = await embed_alone(settings, self._scope)
            worker = Worker(settings, network or TcpNetwork(), self._scope.spawn, polls=True)
            self._scope.roles.append(worker)
            await worker.start()
            client = await worker.open_store(self._name, self._store)
        except BaseException as error:
            await self._stack.__aexit__(type(error), error, error.__traceback__)
            raise
        self._core = Core(worker, client)
        return AsyncKVStore(self._core)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            if error is None:
                await self._core.close()
            else:
                self._scope.go_down()
                self._core.worker.abandon()
        finally:
            await self._stack.__aexit__(kind, error, trace)


class _Home:
    """This process as one worker: its runtime, and its stores by name."""

    def __init__(
        self, runtime: Runtime, scope: Scope, worker: Worker, settings: Config,
        ending: Ending | None,
    ) -> None:
        self.settings = settings
        self._ending = ending
        self._runtime = runtime
        self._scope = scope
        self._worker = worker
        self._cores: dict[str, Core] = {}
        self._calling: Calling | None = None
        self._reducing: dict[str, AllReduceStore] = {}
        self.closed = False
        runtime.sockets.append(worker.sockets)
        atexit.register(self._at_exit)

    def open(self, name: str, config: StoreConfig) -> KVStore | AllReduceStore:
        if config.type in ALLREDUCE_TYPES:
            return self._open_reducing(name, config)
        if name in self._reducing:
            raise _other_type(name, "allreduce", config.type)
        client = self._runtime.run(lambda: self._worker.open_store(name, config))
        core = self._cores.get(name)
        if core is None:
            core = self._cores[name] = Core(self._worker, client, self._worker.shortcut(client))
        return KVStore(core, self._runtime, lambda well: self._release(name, well))

    def _open_reducing(self, name: str, config: StoreConfig) -> AllReduceStore:
        if name in self._cores:
            raise _other_type(name, self._cores[name].type, config.type)
        if self._calling is None:
            self._calling = Calling(
                Communicator(self._worker, self._runtime, lambda: None), self._worker)
        store = self._reducing.get(name)
        if store is None:
            store = self._reducing[name] = AllReduceStore(
                self._calling, name, config.reduce,
                lambda well: self._release_reducing(name, well))
        elif store._reduce != config.reduce:
            raise Disagreement(f"store {name!r} was opened by other words",
                               expected=f"reduce={store._reduce!r}", got=config.reduce)
        return store

    def _release_reducing(self, name: str, well: bool) -> None:
        """As `_release`, of a store without servers."""
        store = self._reducing.pop(name, None)
        if store is None or self.forked:
            return
        if not well:
            self._go(store)
            return
        try:
            store._finish()
        finally:
            if not self._cores and not self._reducing:
                self.close()

    def _go(self, *stores: AllReduceStore) -> None:
        """Go without a goodbye."""
        for store in (*stores, *self._reducing.values()):
            store._abandon()
        self._reducing.clear()
        self._scope.go_down()
        self._runtime.run(lambda: abandon(self._worker))
        self.close()

    def _release(self, name: str, well: bool) -> None:
        """Flush one store; the last one that closes leaves the cluster.

        After an exception the process goes as a whole: its rounds may be half pushed.
        """
        core = self._cores.pop(name, None)
        if core is None or self.forked:
            return
        if not well:
            self._go()
        elif self._cores or self._reducing:
            self._runtime.run(core.release)
        else:
            try:
                self._runtime.run(core.close)
            finally:
                self.close()

    @property
    def forked(self) -> bool:
        """Whether this is a copy in a forked child."""
        return self._runtime.forked

    def _at_exit(self) -> None:
        """A normal exit leaves for good; after an uncaught exception the others hear of a loss.

        Python does not tell us the exit code, but whoever reaps this process may tell the others.
        """
        if ends_by_exception() and not self.closed:
            self.closed = True
            self._runtime.close()
        self._worker.node.ending = self._ending
        self.close()

    def close(self) -> None:
        if self.closed or self.forked:
            return
        self.closed = True
        atexit.unregister(self._at_exit)
        try:
            try:
                for core in self._cores.values():
                    self._runtime.run(core.flush)
                for store in self._reducing.values():
                    store._finish()
            finally:  # what failed is raised, and this process has left all the same
                self._runtime.run(self._scope.close)
        finally:
            self._runtime.close()


# A process is one worker: two stores of one process share its rank and its connections.
_process: list[_Home] = []
_process_lock = threading.Lock()


def checked(
    type: str, name: str, options: dict[str, Any], base: Config | None = None
) -> tuple[str, StoreConfig, Config]:
    """Check what a store is asked for by; return type, what workers must agree on, settings."""
    known = (*LOCAL_TYPES, *DIST_TYPES, *ALLREDUCE_TYPES)
    there, later = ", ".join(known), ", ".join(LATER_TYPES)
    if type in LATER_TYPES:
        raise NotYetError(f"store type {type!r} is not there yet", expected=there, got=type)
    if type not in known:
        raise ConfigError("unknown store type", expected=f"{there} (not there yet: {later})",
                          got=repr(type))
    check_name(name)
    options = dict(options)
    order = options.pop("order", "arrival")
    reduce = options.pop("reduce", "sum")
    if order not in ("arrival", "rank"):
        raise ConfigError("unknown order", expected="arrival or rank", got=repr(order))
    if reduce not in ("sum", "mean"):
        raise ConfigError("unknown reduce", expected="sum or mean", got=repr(reduce))
    kind = "allreduce" if type in ALLREDUCE_TYPES else _MEANS.get(type, type)
    staleness = options.pop("staleness", 0)
    staleness = operator.index(staleness) if hasattr(staleness, "__index__") else staleness
    if not isinstance(staleness, int) or not 0 <= staleness <= MAX_STALENESS:
        raise ConfigError("staleness is a number of clocks", expected=f"0 to {MAX_STALENESS}",
                          got=repr(staleness))
    if staleness and kind != "dist_ssp":
        raise ConfigError(f"a {type} store has no staleness", expected="dist_ssp", got=staleness)
    multi_precision = options.pop("multi_precision", False)
    if not isinstance(multi_precision, bool):
        raise ConfigError("multi_precision must be true or false", got=repr(multi_precision))
    if multi_precision and kind in ALLREDUCE_TYPES:
        raise ConfigError(f"multi_precision of a {type} store: it keeps no weights", got=True,
                          expected="False")
    refuse_unknown(options, _WORDS)
    settings = base.replace(**options) if base else Config.from_env(**options)
    if settings.imports:
        optim.import_modules(settings.imports)
    if kind not in LOCAL_TYPES and settings.role not in (None, "worker"):
        raise ConfigError(f"this process is a {settings.role}; start that role by "
                          f"python -m asyncps {settings.role}", expected="a worker",
                          got=settings.role)
    if kind in _MEANS and not settings.num_servers:
        raise no_servers(type)
    return kind, agreement(kind, order, reduce, staleness, multi_precision), settings


def _other_type(name: str, there: str, wanted: str) -> Disagreement:
    return Disagreement(f"store {name!r} was opened with another type", expected=there, got=wanted)


def _join(settings: Config, clustered: bool, asked: Config, *, meets: bool = False) -> _Home:
    """Join by these settings, which were found for those that `create` was asked with."""
    runtime = Runtime(loop_factory(settings))
    scope = Scope(runtime.spawn)

    async def join() -> Worker:
        network: Network = TcpNetwork()
        config = settings
        if not clustered:
            config, network = await embed_alone(settings, scope)
        worker = Worker(config, network, runtime.spawn, meets=meets)
        scope.roles.append(worker)
        await worker.start()
        return worker

    try:
        ending = ending_of(settings) if clustered else None
        return _Home(runtime, scope, runtime.run(join), asked, ending)
    except BaseException:
        runtime.run(scope.close)
        runtime.close()
        raise


async def abandon(worker: Worker) -> None:
    worker.abandon()
