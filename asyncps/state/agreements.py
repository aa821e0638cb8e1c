"""What workers must agree on: stores, their keys, barriers, optimizers; and telling the servers."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from asyncps import optim
from asyncps.config import Config
from asyncps.errors import (
    ClusterError,
    ConfigError,
    Disagreement,
    OptimizerError,
    RemoteProtocolError,
)
from asyncps.protocol import messages as m
from asyncps.state.routing import Routing
from asyncps.state.sayings import canonical, disagreement, spelled
from asyncps.state.together import conclude

STORE_TYPES = ("dist_sync", "dist_async", "dist_ssp")
MAX_STALENESS = 1 << 20
ORDERS = ("arrival", "rank")
REDUCTIONS = ("sum", "mean")
MAX_STORES = 256  # open stores of a job: protects the scheduler's memory
MAX_NAME = 1024  # characters of the name of a store or an optimizer: the same

StoreRequest = (
    m.OpenStore | m.CloseStore | m.Declare | m.Await | m.Lookup | m.Ready | m.Barrier
    | m.SetOptimizer | m.Together | m.Word | m.ListKeys
)
Words = m.SetOptimizer | m.Together | m.Word | None


@dataclass(frozen=True, slots=True)
class Answer:
    """Answer a worker's request."""

    rank: int
    request: int
    message: m.Message


@dataclass(frozen=True, slots=True)
class Order:
    """Tell a server something that it has to answer; `request` is the scheduler's own number."""

    server: int
    request: int
    message: m.Install


Action = Answer | Order


@dataclass(frozen=True, slots=True)
class Call:
    """One worker's call of something that all workers must call."""

    rank: int
    request: int
    words: Words


class Meeting:
    """Something that all workers call: the nth call of each worker belongs to generation n."""

    def __init__(self, members: Iterable[int]) -> None:
        self._members = set(members)
        self._came = dict.fromkeys(self._members, 0)
        self._open: dict[int, list[Call]] = {}
        self._broken: list[tuple[range, int]] = []  # generations that wait for who left, and who

    def come(self, rank: int, request: int, words: Words) -> list[Call] | None:
        """A worker calls; returns the calls of its generation, by rank, if it was the last.

        Raises:
            ClusterError: A worker that left without coming was already waited for.
        """
        generation = self._came[rank]
        self._came[rank] = generation + 1
        for generations, leaver in self._broken:
            if generation in generations:
                raise _left_error(leaver)
        self._open.setdefault(generation, []).append(Call(rank, request, words))
        return self._take_if_complete(generation)

    def leave(self, rank: int) -> tuple[list[list[Call]], list[Call]]:
        """A worker leaves: returns the generations this completes, and the calls it breaks."""
        self._members.discard(rank)
        came = self._came.pop(rank)
        complete, broken = [], []
        for generation in sorted(self._open):
            if generation >= came:
                broken += self._open.pop(generation)
                continue
            calls = [call for call in self._open.pop(generation) if call.rank != rank]
            if calls:
                self._open[generation] = calls
                finished = self._take_if_complete(generation)
                if finished is not None:
                    complete.append(finished)
        furthest = max(self._came.values(), default=0)
        if furthest > came:
            self._broken.append((range(came, furthest), rank))
        return complete, broken

    def missing(self) -> list[tuple[int, list[int], int]]:
        """Return each open generation, who has not come to it, and how many have."""
        return [(generation, sorted(self._members - {call.rank for call in calls}), len(calls))
                for generation, calls in self._open.items()]

    def _take_if_complete(self, generation: int) -> list[Call] | None:
        calls = self._open[generation]
        if len(calls) < len(self._members):
            return None
        del self._open[generation]
        return sorted(calls, key=lambda call: call.rank)


def _left_error(rank: int) -> ClusterError:
    return ClusterError(f"worker {rank} left while others waited for it", rank=rank)


@dataclass(slots=True)
class _Task:
    """One thing that all servers have to do."""

    store: _Store
    message: m.Install
    waiters: list[tuple[int, int]]  # (rank, request)
    owing: dict[int, int]  # request number -> server
    error: m.ErrorInfo | None = None


@dataclass(slots=True)
class _Store:
    number: int
    name: str
    opener: int
    config: m.StoreConfig
    routing: Routing
    barrier: Meeting
    optimizer: Meeting
    together: Meeting  # save and load
    opening: _Task | None = field(default=None, repr=False)
    closed: set[int] = field(default_factory=set)  # ranks that have no more to do with it


class Stores:
    """All stores of a job; `config` tells how many members, and the sizes of chunks and slabs."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._workers = set(range(config.num_workers))
        self._by_name: dict[str, _Store] = {}
        self._by_number: dict[int, _Store] = {}
        self._next_store = 1
        self._next_request = 1
        self._tasks: dict[int, _Task] = {}  # by each request number that is not answered

    def handle(self, rank: int, request: int, message: StoreRequest) -> list[Action]:
        """A live worker asks.

        Raises:
            AsyncPSError: What the request is to be answered with.
        """
        match message:
            case m.OpenStore():
                return self._open(rank, request, message)
            case m.CloseStore():
                self._store(message.store).closed.add(rank)
                return [Answer(rank, request, m.Done()), *self._drop_closed()]
            case m.Barrier():
                meeting = self._store(message.store).barrier
                return _all_done(meeting.come(rank, request, None) or [])
            case m.SetOptimizer():
                store = self._store(message.store)
                _check_name("an optimizer", message.name)
                canonical(message)
                calls = store.optimizer.come(rank, request, message)
                return self._agree(store, calls) if calls else []
            case m.Together() | m.Word():
                meeting = self._store(message.store).together
                return _concluded(meeting.come(rank, request, message) or [])
            case m.ListKeys():
                routing = self._store(message.store).routing
                return [_placed(routing, rank, request, routing.page(message.start))]
            case m.Declare():
                return self._declare(rank, request, message)
            case m.Await():
                routing = self._store(message.store).routing
                found = routing.wait((rank, request), message.keys)
                return [] if found is None else [_placed(routing, rank, request, found)]
            case m.Lookup():
                routing = self._store(message.store).routing
                return [_placed(routing, rank, request, routing.lookup(message.keys))]
            case m.Ready():
                return self._ready(rank, request, message)

    def answered(self, server: int, request: int, message: m.Done | m.ErrorInfo) -> list[Action]:
        """A server answered an order; an answer that came before is ignored.

        Raises:
            RemoteProtocolError: The order was another server's.
        """
        task = self._tasks.get(request)
        if task is None:
            return []
        if task.owing[request] != server:
            raise RemoteProtocolError("a server answered for another one")
        del self._tasks[request], task.owing[request]
        if isinstance(message, m.ErrorInfo):
            task.error = task.error or message
        return [] if task.owing else self._finish(task)

    def owed(self, server: int) -> list[Order]:
        """Return the orders that a server has not answered, in their order."""
        return [Order(server, request, task.message)
                for request, task in sorted(self._tasks.items(), key=lambda item: item[0])
                if task.owing[request] == server]

    def left(self, rank: int) -> list[Action]:
        """A worker left for good: nobody waits for it any more."""
        self._workers.discard(rank)
        actions: list[Action] = []
        error = m.error_to_wire(_left_error(rank))
        for store in self._by_number.values():
            complete, broken = store.barrier.leave(rank)
            for generation in complete:
                actions += _all_done(generation)
            complete, more = store.optimizer.leave(rank)
            for generation in complete:
                actions += self._agree(store, generation)
            complete, cut = store.together.leave(rank)
            for generation in complete:
                actions += _concluded(generation)
            more += cut
            actions += [Answer(call.rank, call.request, error) for call in broken + more]
            store.routing.forget(rank)
            if rank == 0:
                actions += [Answer(*waiter, error) for waiter in store.routing.close()]
        return actions + self._drop_closed()

    def summaries(self) -> list[m.StoreStatus]:
        """Describe every store for observers."""
        return [m.StoreStatus(store.number, store.name, store.config.type, len(store.routing))
                for store in self._by_number.values()]

    def missing(self) -> list[tuple[tuple[int, str, int], list[int], int]]:
        """Return what some workers wait for others for: (store, what, generation), whom, how many.
        """
        found = []
        for store in self._by_number.values():
            for what, meeting in (("barrier", store.barrier), ("optimizer", store.optimizer),
                                  ("checkpoint", store.together)):
                for generation, ranks, count in meeting.missing():
                    found.append(((store.number, what, generation), ranks, count))
            if store.routing.waiting:
                found.append(((store.number, "init", 0), [0], store.routing.waiting))
        return found

    def _drop_closed(self) -> list[Action]:
        """Forget the stores that every live worker has closed, here and on the servers."""
        actions: list[Action] = []
        for store in list(self._by_number.values()):
            if self._workers and self._workers <= store.closed and store.opening is None:
                del self._by_name[store.name], self._by_number[store.number]
                drop = m.Install(store.number, store.config, None, {}, dropped=True)
                actions += self._command(store, drop, [])[1]
        return actions

    def _store(self, number: int) -> _Store:
        store = self._by_number.get(number)
        if store is None or store.opening is not None:
            raise ConfigError("no such store", got=number)
        return store

    def _open(self, rank: int, request: int, message: m.OpenStore) -> list[Action]:
        _check_name("a store", message.name)
        _check_config(message.config)
        store = self._by_name.get(message.name)
        if store is None:
            return self._create(rank, request, message)
        if store.config != message.config:
            raise Disagreement(
                f"worker {rank} opens store {message.name!r} otherwise than worker "
                f"{store.opener} did", rank=rank, expected=spelled(store.config),
                got=spelled(message.config))
        store.closed.discard(rank)
        if store.opening is None:
            return [Answer(rank, request, m.StoreOpened(store.number))]
        store.opening.waiters.append((rank, request))
        return []

    def _create(self, rank: int, request: int, message: m.OpenStore) -> list[Action]:
        if len(self._by_name) >= MAX_STORES:
            raise ConfigError("too many stores", expected=f"at most {MAX_STORES}")
        c = self._config
        routing = Routing(c.num_servers, c.chunk_bytes, c.slab_bytes, c.small_key_bytes)
        if 0 not in self._workers:
            routing.close()
        store = _Store(self._next_store, message.name, rank, message.config, routing,
                       Meeting(self._workers), Meeting(self._workers),
                       Meeting(self._workers))
        self._next_store += 1
        self._by_name[store.name] = self._by_number[store.number] = store
        install = m.Install(store.number, store.config, None, {})
        store.opening, orders = self._command(store, install, [(rank, request)])
        return orders

    def _command(
        self, store: _Store, install: m.Install, waiters: list[tuple[int, int]]
    ) -> tuple[_Task, list[Action]]:
        owing = {self._next_request + server: server for server in range(self._config.num_servers)}
        self._next_request += len(owing)
        task = _Task(store, install, waiters, owing)
        self._tasks.update(dict.fromkeys(task.owing, task))
        return task, [Order(server, number, install) for number, server in task.owing.items()]

    def _finish(self, task: _Task) -> list[Action]:
        store = task.store
        message: m.Message = task.error or m.Done()
        if task is store.opening:
            store.opening = None
            if task.error is None:
                message = m.StoreOpened(store.number)
            else:  # whoever opens it next tries anew
                del self._by_name[store.name], self._by_number[store.number]
        return [Answer(rank, request, message) for rank, request in task.waiters]

    def _declare(self, rank: int, request: int, message: m.Declare) -> list[Action]:
        routing = self._store(message.store).routing
        if rank != 0:
            raise RemoteProtocolError("only rank 0 declares keys", rank=rank)
        answer = _placed(routing, rank, request, routing.declare(message.keys))
        refused = routing.mismatched(spec.key for spec in message.keys)
        return [answer, *(Answer(*waiter, m.error_to_wire(error)) for waiter, error in refused)]

    def _ready(self, rank: int, request: int, message: m.Ready) -> list[Action]:
        routing = self._store(message.store).routing
        if rank != 0:
            raise RemoteProtocolError("only rank 0 says that keys are ready", rank=rank)
        released = routing.ready(message.keys)
        return [Answer(rank, request, m.Done()),
                *(_placed(routing, *waiter, placements) for waiter, placements in released)]

    def _agree(self, store: _Store, calls: list[Call]) -> list[Action]:
        sayings: dict[bytes, list[Call]] = {}
        for call in calls:
            sayings.setdefault(canonical(call.words), []).append(call)
        if len(sayings) > 1:
            error = m.error_to_wire(disagreement([
                ([call.rank for call in said], said[0].words) for said in sayings.values()
            ]))
            return [Answer(call.rank, call.request, error) for call in calls]
        words = calls[0].words
        assert isinstance(words, m.SetOptimizer)  # as every call of this meeting has
        kind = optim.REGISTRY.get(words.name)
        if words.whole_keys or (kind is not None and kind.whole_keys):
            try:
                store.routing.keep_whole()
            except OptimizerError as refused:
                error = m.error_to_wire(refused)
                return [Answer(call.rank, call.request, error) for call in calls]
        install = m.Install(store.number, store.config, words.name, words.hyper)
        return self._command(store, install, [(call.rank, call.request) for call in calls])[1]


def _placed(routing: Routing, rank: int, request: int, placements: list[m.Placement]) -> Answer:
    return Answer(rank, request, m.Placed(routing.version, placements))


def _all_done(calls: list[Call]) -> list[Action]:
    return [Answer(call.rank, call.request, m.Done()) for call in calls]


def _concluded(calls: list[Call]) -> list[Action]:
    answers = conclude([(call.rank, call.words) for call in calls])
    return [Answer(call.rank, call.request, answer)
            for call, answer in zip(calls, answers, strict=True)]


def _check_name(what: str, name: str) -> None:
    if not 1 <= len(name) <= MAX_NAME:
        raise ConfigError(f"the name of {what} has the wrong length",
                          expected=f"1 to {MAX_NAME} characters", got=len(name))


def _check_config(config: m.StoreConfig) -> None:
    for name, allowed in (("type", STORE_TYPES), ("order", ORDERS), ("reduce", REDUCTIONS)):
        if getattr(config, name) not in allowed:
            raise ConfigError(f"unknown {name} of a store", expected=", ".join(allowed),
                              got=repr(getattr(config, name)[:100]))
    most = MAX_STALENESS if config.type == "dist_ssp" else 0
    if not 0 <= config.staleness <= most:
        raise ConfigError(f"staleness of a {config.type} store is out of range",
                          expected=f"0 to {most}", got=config.staleness)
