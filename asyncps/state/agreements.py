"""What workers must agree on: stores, their keys, barriers, optimizers; and telling the servers."""

from __future__ import annotations

from collections.abc import Callable
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
from asyncps.state.answers import Action as Action
from asyncps.state.answers import Answer as Answer
from asyncps.state.answers import Order as Order
from asyncps.state.answers import all_done, concluded, joined_error, placed
from asyncps.state.meetings import Call as Call
from asyncps.state.meetings import Meeting as Meeting
from asyncps.state.meetings import left_error
from asyncps.state.openings import MAX_STALENESS as MAX_STALENESS
from asyncps.state.openings import check_config, check_name, closed_error
from asyncps.state.routing import Routing
from asyncps.state.sayings import canonical, disagreement, spelled

MAX_STORES = 256  # open stores of a job: protects the scheduler's memory

StoreRequest = (
    m.OpenStore | m.CloseStore | m.Declare | m.Await | m.Lookup | m.Ready | m.Barrier | m.Together
    | m.SetOptimizer | m.SetCompression | m.Word | m.ListKeys | m.JoinStore | m.AskAbsent
)

Parted = tuple[list[list[Call]], list[Call]]  # generations that are complete, calls that break


@dataclass(slots=True)
class _Task:
    """One thing that all servers have to do."""

    store: _Store
    message: m.Install | m.Attendance
    waiters: list[tuple[int, int]]  # (rank, request)
    owing: dict[int, int]  # request number -> server
    error: m.ErrorInfo | None = None
    answer: m.Message = field(default_factory=m.Done)


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
    joined: dict[int, int] = field(default_factory=dict)  # request by rank, in their order


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
        self._no_owner: ClusterError | None = None  # why rank 0 initialises no more keys
        self._everybody = Meeting(self._workers)  # the job's own barrier, of no store: number 0

    def handle(self, rank: int, request: int, message: StoreRequest) -> list[Action]:
        """A live worker asks.

        Raises:
            AsyncPSError: What the request is to be answered with.
        """
        store = self._by_number.get(getattr(message, "store", 0))
        if store is not None and rank in store.closed and not isinstance(message, m.CloseStore):
            raise closed_error(rank, store.name)
        match message:
            case m.OpenStore():
                return self._open(rank, request, message)
            case m.CloseStore():
                return self._close(rank, request, self._store(message.store))
            case m.Barrier():
                number = message.store
                meeting = self._store(number).barrier if number else self._everybody
                return all_done(meeting.come(rank, request, None) or [])
            case m.SetOptimizer() | m.SetCompression():
                store = self._store(message.store)
                if store.joined:
                    raise joined_error(store.joined)
                if isinstance(message, m.SetOptimizer):
                    check_name("an optimizer", message.name)
                canonical(message)
                calls = store.optimizer.come(rank, request, message)
                return self._agree(store, calls) if calls else []
            case m.Together() | m.Word():
                store = self._store(message.store)
                if store.joined:
                    raise joined_error(store.joined)
                return concluded(store.together.come(rank, request, message) or [])
            case m.ListKeys():
                routing = self._store(message.store).routing
                return [placed(routing, rank, request, routing.page(message.start))]
            case m.Declare():
                return self._declare(rank, request, message)
            case m.Await():
                routing = self._store(message.store).routing
                found = routing.wait((rank, request), message.keys)
                return [] if found is None else [placed(routing, rank, request, found)]
            case m.Lookup():
                routing = self._store(message.store).routing
                return [placed(routing, rank, request, routing.lookup(message.keys))]
            case m.Ready():
                return self._ready(rank, request, message)
            case m.AskAbsent():
                waits = [ranks for (store, what, _), ranks, _ in self.missing()
                         if (store, what) == (message.store, message.what) and rank not in ranks]
                ranks = sorted({other for found in waits for other in found})
                return [Answer(rank, request, m.MissingRanks(ranks))]
            case m.JoinStore():
                return self._join(self._store(message.store), rank, request)

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

    def left(self, rank: int, lost: ClusterError | None = None) -> list[Action]:
        """A worker left for good, or is lost and the job goes on: nobody waits for it any more.

        Whoever waits for one that left hears an error; for one that is lost the others go on.
        """
        self._workers.discard(rank)
        why = lost or left_error(rank)
        if rank == 0:
            self._no_owner = why
        actions: list[Action] = []
        depart = Meeting.leave if lost is None else Meeting.lose
        complete, broken = depart(self._everybody, rank)
        for generation in complete:
            actions += all_done(generation)
        error = m.error_to_wire(why)
        actions += [Answer(call.rank, call.request, error) for call in broken]
        for store in self._by_number.values():
            actions += self._depart(store, rank, why, depart)
        return actions + self._drop_closed()

    def _depart(
        self, store: _Store, rank: int, why: ClusterError, depart: Callable[[Meeting, int], Parted]
    ) -> list[Action]:
        """Have nobody wait for a worker in a store."""
        actions: list[Action] = []
        complete, broken = depart(store.barrier, rank)
        for generation in complete:
            actions += all_done(generation)
        complete, more = depart(store.optimizer, rank)
        for generation in complete:
            actions += self._agree(store, generation)
        complete, cut = store.together.leave(rank, why)
        for generation in complete:
            actions += concluded(generation)
        error = m.error_to_wire(why)
        actions += [Answer(call.rank, call.request, error) for call in broken + more + cut]
        store.joined.pop(rank, None)
        actions += self._end_joining(store)
        store.routing.forget(rank)
        if rank == 0:
            actions += [Answer(*waiter, error) for waiter in store.routing.close(why)]
        return actions

    def _close(self, rank: int, request: int, store: _Store) -> list[Action]:
        """A worker has no more to do with a store: in it, it has left."""
        actions: list[Action] = [Answer(rank, request, m.Done())]
        if rank in store.closed:
            return actions
        store.closed.add(rank)
        if rank in store.joined:
            error = m.error_to_wire(closed_error(rank, store.name))
            actions.append(Answer(rank, store.joined[rank], error))
        if self._workers - store.closed:
            closed = m.Attendance(store.number, rank, closed=True)
            actions += self._command(store, closed, [])[1]
        actions += self._depart(store, rank, left_error(rank), Meeting.leave)
        return actions + self._drop_closed()

    def summaries(self) -> list[m.StoreStatus]:
        """Describe every store for observers."""
        return [m.StoreStatus(store.number, store.name, store.config.type, len(store.routing))
                for store in self._by_number.values()]

    def missing(self) -> list[tuple[tuple[int, str, int], list[int], int]]:
        """Return what some workers wait for others for: (store, what, generation), whom, how many.
        """
        found = [((0, "barrier", generation), ranks, count)
                 for generation, ranks, count in self._everybody.missing()]
        for store in self._by_number.values():
            for what, meeting in (("barrier", store.barrier), ("optimizer", store.optimizer),
                                  ("checkpoint", store.together)):
                for generation, ranks, count in meeting.missing():
                    found.append(((store.number, what, generation), ranks, count))
            if store.joined:
                still_in = sorted(self._workers - store.closed - store.joined.keys())
                found.append(((store.number, "join", 0), still_in, len(store.joined)))
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
        check_name("a store", message.name)
        check_config(message.config, self._config.num_servers)
        store = self._by_name.get(message.name)
        if store is None:
            return self._create(rank, request, message)
        if store.config != message.config:
            raise Disagreement(
                f"worker {rank} opens store {message.name!r} otherwise than worker "
                f"{store.opener} did", rank=rank, expected=spelled(store.config),
                got=spelled(message.config))
        if rank in store.closed:
            raise closed_error(rank, store.name)
        if store.opening is None:
            return [Answer(rank, request, m.StoreOpened(store.number))]
        store.opening.waiters.append((rank, request))
        return []

    def _create(self, rank: int, request: int, message: m.OpenStore) -> list[Action]:
        if len(self._by_name) >= MAX_STORES:
            raise ConfigError("too many stores", expected=f"at most {MAX_STORES}")
        c = self._config
        routing = Routing(c.num_servers, c.chunk_bytes, c.slab_bytes, c.small_key_bytes)
        if self._no_owner is not None:
            routing.close(self._no_owner)
        store = _Store(self._next_store, message.name, rank, message.config, routing,
                       Meeting(self._workers), Meeting(self._workers), Meeting(self._workers))
        self._next_store += 1
        self._by_name[store.name] = self._by_number[store.number] = store
        install = m.Install(store.number, store.config, None, {})
        store.opening, orders = self._command(store, install, [(rank, request)])
        return orders

    def _join(self, store: _Store, rank: int, request: int) -> list[Action]:
        """A worker has no more data: it is not waited for until all have joined."""
        if rank in store.joined:
            raise RemoteProtocolError("a worker that has joined joins again", rank=rank)
        store.joined[rank] = request
        error = m.error_to_wire(joined_error(store.joined))
        actions: list[Action] = [
            Answer(call.rank, call.request, error)
            for meeting in (store.optimizer, store.together) for call in meeting.break_open()
        ]
        store.optimizer.rest(rank)
        store.together.rest(rank)
        for generation in store.barrier.rest(rank):
            actions += all_done(generation)
        actions += self._command(store, m.Attendance(store.number, rank), [])[1]
        return actions + self._end_joining(store)

    def _end_joining(self, store: _Store) -> list[Action]:
        """Have everybody counted again, if all have joined."""
        if not store.joined or not store.joined.keys() >= self._workers - store.closed:
            return []
        joined, store.joined = store.joined, {}
        store.barrier.all_back(joined)
        store.optimizer.all_back(joined)
        store.together.all_back(joined)
        everybody = m.Attendance(store.number, None)
        task, orders = self._command(store, everybody, list(joined.items()))
        task.answer = m.AllJoined(list(joined)[-1])
        return orders

    def _command(
        self, store: _Store, install: m.Install | m.Attendance, waiters: list[tuple[int, int]]
    ) -> tuple[_Task, list[Action]]:
        owing = {self._next_request + server: server for server in range(self._config.num_servers)}
        self._next_request += len(owing)
        task = _Task(store, install, waiters, owing)
        self._tasks.update(dict.fromkeys(task.owing, task))
        return task, [Order(server, number, install) for number, server in task.owing.items()]

    def _finish(self, task: _Task) -> list[Action]:
        store = task.store
        message: m.Message = task.error or task.answer
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
        answer = placed(routing, rank, request, routing.declare(message.keys))
        refused = routing.mismatched(spec.key for spec in message.keys)
        return [answer, *(Answer(*waiter, m.error_to_wire(error)) for waiter, error in refused)]

    def _ready(self, rank: int, request: int, message: m.Ready) -> list[Action]:
        routing = self._store(message.store).routing
        if rank != 0:
            raise RemoteProtocolError("only rank 0 says that keys are ready", rank=rank)
        released = routing.ready(message.keys)
        return [Answer(rank, request, m.Done()),
                *(placed(routing, *waiter, placements) for waiter, placements in released)]

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
        if not isinstance(words, m.SetOptimizer):  # a compression, which servers need not know
            return all_done(calls)
        kind = optim.REGISTRY.get(words.name)
        if words.whole_keys or (kind is not None and kind.whole_keys):
            try:
                store.routing.keep_whole()
            except OptimizerError as refused:
                error = m.error_to_wire(refused)
                return [Answer(call.rank, call.request, error) for call in calls]
        install = m.Install(store.number, store.config, words.name, words.hyper, keep=words.keep)
        return self._command(store, install, [(call.rank, call.request) for call in calls])[1]
