"""What both faces of a store do: build calls, keep the send budget, end things well."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Generator
from typing import Any

from asyncps import optim
from asyncps.errors import (
    AsyncPSError,
    ClosedError,
    ConfigError,
    DeadlineExceeded,
    DtypeMismatch,
    NodeLost,
    OptimizerError,
)
from asyncps.roles.client import Client
from asyncps.roles.operation import Operation, resolve
from asyncps.roles.plan import Plan
from asyncps.roles.worker import Worker
from asyncps.tensor import dtypes
from asyncps.values import (
    Array,
    Incoming,
    Key,
    Outgoing,
    as_bytes,
    as_keys,
    as_values,
    host_array,
    key_spec,
)

CAPABILITIES = ("optimizer",)


class Call:
    """One verb, checked and ready; `start` runs on the loop."""

    __slots__ = ("_arrays", "_listed", "_work", "_worker", "copied_bytes", "op")

    def __init__(
        self, worker: Worker, op: Operation, work: Callable[[], None], arrays: Any, listed: bool,
        copied_bytes: int = 0,
    ) -> None:
        self._worker = worker
        self.op = op
        self._work = work
        self._arrays = arrays
        self._listed = listed
        self.copied_bytes = copied_bytes

    def start(self) -> None:
        """Begin; errors are kept by the operation."""
        self._worker.submit(self.op, self._work)

    def result(self) -> Any:
        """Return what the verb returns, or raise why it failed; once ended."""
        if self.op.error is not None:
            raise self.op.error
        if self._arrays is None or self._listed:
            return self._arrays
        return self._arrays[0]


class Handle:
    """A verb under way: `wait()` it, or await it on a loop."""

    def __init__(self, call: Call, on_loop: Callable[[Callable[[], None]], None]) -> None:
        self._call = call
        self._on_loop = on_loop

    def wait(self, timeout: float | None = None) -> Any:
        """Wait for the end and return the result (None for a push).

        Args:
            timeout: Seconds; None waits as long as the store's own deadlines.

        Raises:
            DeadlineExceeded: It has not ended in time; it goes on, and may be waited for again.
            AsyncPSError: Why it failed.
        """
        if not self._call.op.wait(timeout):
            raise DeadlineExceeded(f"{self._call.op.verb} has not ended within {timeout:g} s")
        return self._call.result()

    def done(self) -> bool:
        """Tell whether it has ended, well or not."""
        return self._call.op.ended

    def exception(self) -> AsyncPSError | None:
        """Return why it failed, None when it did not or has not ended."""
        return self._call.op.error if self._call.op.ended else None

    def __await__(self) -> Generator[Any, None, Any]:
        loop = asyncio.get_running_loop()
        ended = loop.create_future()

        def tell(_: Operation) -> None:
            loop.call_soon_threadsafe(resolve, ended)

        self._on_loop(lambda: self._call.op.on_end(tell))
        yield from ended.__await__()
        return self._call.result()


class Budget:
    """Bytes of copies that may wait to be accepted; a push beyond it waits.

    Args:
        limit: The budget in bytes; one push larger than all of it goes alone.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._used = 0
        self._condition = threading.Condition()
        self._waiting: list[asyncio.Future[None]] = []

    @property
    def used(self) -> int:
        """Bytes in use."""
        return self._used

    def wait(self, op: Operation, size: int, deadline_s: float) -> None:
        """Block this thread until there is room, and take it until the operation ends."""
        with self._condition:
            if not self._condition.wait_for(lambda: self._fits(size), deadline_s):
                raise self._exceeded(size, deadline_s)
            self._used += size
        op.finally_(lambda: self._give(size))

    async def acquire(self, op: Operation, size: int, deadline_s: float) -> None:
        """The same on the loop."""
        try:
            async with asyncio.timeout(deadline_s):
                while not self._fits(size):
                    room = asyncio.get_running_loop().create_future()
                    self._waiting.append(room)
                    await room
        except TimeoutError:
            raise self._exceeded(size, deadline_s) from None
        self._used += size
        op.finally_(lambda: self._give(size))

    def _fits(self, size: int) -> bool:
        return self._used == 0 or self._used + size <= self._limit

    def _give(self, size: int) -> None:
        with self._condition:
            self._used -= size
            self._condition.notify_all()
        waiting, self._waiting = self._waiting, []
        for room in waiting:
            if not room.done():
                room.set_result(None)

    def _exceeded(self, size: int, deadline_s: float) -> DeadlineExceeded:
        return DeadlineExceeded(
            f"the servers did not accept earlier pushes within {deadline_s:g} s",
            expected=f"room for {size} bytes in a send budget of {self._limit}",
            got=f"{self._used} bytes not accepted yet",
        )


class Core:
    """One store of one worker."""

    def __init__(self, worker: Worker, client: Client) -> None:
        self.worker = worker
        self.client = client
        self.budget = Budget(worker.config.send_budget_bytes)
        self.deadline_s = worker.config.round_s

    # ---- facts ----

    @property
    def type(self) -> str:
        """The store type."""
        return self.client.config.type

    @property
    def rank(self) -> int:
        """This worker's number."""
        return self.worker.node.rank

    @property
    def num_workers(self) -> int:
        """How many workers there are."""
        return self.worker.node.num_workers

    @property
    def local_rank(self) -> int:
        """This worker's number on its host: as the launcher says, else by rank on that host."""
        if self.worker.config.local_rank is not None:
            return self.worker.config.local_rank
        mine = next(
            m for m in self.worker.node.members if m.role == "worker" and m.rank == self.rank
        )
        return sum(
            1 for m in self.worker.node.members
            if m.role == "worker" and m.hostname == mine.hostname and m.rank < mine.rank
        )

    def is_capable(self, capability: str) -> bool:
        """Whether the store can do something."""
        return is_capable(capability)

    def num_dead_node(self) -> int:
        """How many nodes are lost."""
        return 1 if isinstance(self.worker.node.failure, NodeLost) else 0

    # ---- calls, built in the caller's thread ----

    def plan(self, keys: tuple[Key, ...]) -> Plan | None:
        """Where keys live, if that is known here."""
        return self.client.plan(keys)

    async def look_up(self, keys: tuple[Key, ...]) -> None:
        """Learn where keys live."""
        self._check_open()
        unknown = [key for key in keys if key not in self.client.keys]
        await self.worker.look_up(self.client, unknown)

    def push(self, plan: Plan, keys: Any, values: Any, priority: int, copy: bool) -> Call:
        """Build a push."""
        outgoing = self._outgoing(plan, keys, values, copy=copy)
        op = Operation("push", lent=not copy)
        return self._build(op, plan, outgoing, None, keys, priority)

    def pull(self, plan: Plan, keys: Any, out: Any, priority: int) -> Call:
        """Build a pull."""
        return self._build(
            Operation("pull", lent=False), plan, None, self._incoming(plan, keys, out), keys,
            priority,
        )

    def pushpull(self, plan: Plan, keys: Any, values: Any, out: Any, priority: int) -> Call:
        """Build a pushpull."""
        outgoing = self._outgoing(plan, keys, values, copy=False)
        incoming = self._incoming(plan, keys, values if out is None else out)
        return self._build(
            Operation("pushpull", lent=True), plan, outgoing, incoming, keys, priority
        )

    def assign(self, plan: Plan, keys: Any, values: Any) -> Call:
        """Build an assign."""
        outgoing = self._outgoing(plan, keys, values, copy=False)
        return self._build(Operation("assign", lent=True), plan, outgoing, None, keys, 0)

    # ---- coroutines, on the loop ----

    async def init(self, keys: Any, values: Any) -> None:
        """Initialise keys."""
        self._check_open()
        names, listed = as_keys(keys)
        given = as_values(len(names), values, listed)
        arrays: list[Array] = []
        for name, value in zip(names, given, strict=True):
            first = value[0] if isinstance(value, (list, tuple)) and value else value
            arrays.append(host_array(first, name))
        specs = [key_spec(name, array) for name, array in zip(names, arrays, strict=True)]
        if self.client.config.reduce == "mean":
            for spec in specs:
                if not dtypes.by_name(spec.dtype).is_float:
                    raise DtypeMismatch("the mean of integers", key=spec.key,
                                        expected="a float dtype", got=spec.dtype)
        await self.worker.init(self.client, specs, [as_bytes(array) for array in arrays])

    async def set_optimizer(self, optimizer: str | optim.Optimizer, hyper: dict[str, Any]) -> None:
        """Move the update to the servers."""
        self._check_open()
        chosen = optim.resolve(optimizer, hyper)
        await self.flush()
        await self.worker.set_optimizer(self.client, chosen.name, chosen.hyper)

    async def set_hyperparameters(self, hyper: dict[str, Any]) -> None:
        """Change hyper-parameters."""
        self._check_open()
        name = self.client.optimizer
        if name is None:
            raise OptimizerError("no optimizer is set", expected="set_optimizer first")
        await self.worker.set_hyper(self.client, optim.checked(optim.by_name(name), hyper))

    async def flush(self) -> None:
        """Wait until this worker's pushes are accepted."""
        for op in list(self.client.pushes):
            await op.wait_end()

    async def barrier(self) -> None:
        """Wait for all workers."""
        self._check_open()
        await self.flush()
        await self.worker.barrier(self.client)

    async def close(self) -> None:
        """Flush, then leave."""
        if self.worker.node.failure is None:
            await self.flush()
        await self.worker.close()

    async def let_go(self, call: Call) -> None:
        """Take the caller's memory back."""
        self.worker.let_go(call.op)

    async def statistics(self) -> dict[str, Any]:
        """Plain numbers of this worker and of all servers."""
        self._check_open()
        servers = await self.worker.statistics(self.client)
        links = self.worker.links
        waited: dict[int, float] = {}
        for server in servers:
            for rank, seconds in server.waited_s.items():
                waited[rank] = waited.get(rank, 0.0) + seconds
        return {
            "type": self.type,
            "rank": self.rank,
            "keys": len(self.client.keys),
            "sent_bytes": sum(link.sent_bytes for link in links),
            "received_bytes": sum(link.received_bytes for link in links),
            "queued_bytes": sum(link.outbox.queued_bytes for link in links),
            "unanswered": sum(len(link.unanswered) for link in links),
            "budget_used_bytes": self.budget.used,
            "rounds": sum(server.rounds for server in servers),
            "waited_s": waited,
            "servers": [
                {name: getattr(server, name) for name in server.__struct_fields__}
                for server in servers
            ],
        }

    # ---- inside ----

    def _check_open(self) -> None:
        if self.client.closed:
            raise ClosedError("the store is closed")

    def _outgoing(self, plan: Plan, keys: Any, values: Any, *, copy: bool) -> Outgoing:
        given = as_values(len(plan.infos), values, isinstance(keys, (list, tuple)))
        return Outgoing(plan, given, copy=copy, pool=self.client.pool)

    @staticmethod
    def _incoming(plan: Plan, keys: Any, out: Any) -> Incoming:
        if out is None:
            return Incoming(plan, None)
        return Incoming(plan, as_values(len(plan.infos), out, isinstance(keys, (list, tuple))))

    def _build(
        self, op: Operation, plan: Plan, outgoing: Outgoing | None, incoming: Incoming | None,
        keys: Any, priority: int,
    ) -> Call:
        if incoming is not None and incoming.finishing:
            op.finishing.extend(incoming.finishing)
        if outgoing is not None and outgoing.pooled:
            op.on_success(outgoing.release)

        def work() -> None:
            self.client.send(
                op, plan,
                None if outgoing is None else outgoing.large,
                None if outgoing is None else outgoing.slabs,
                None if incoming is None else incoming.large,
                None if incoming is None else incoming.slabs,
                priority,
            )

        return Call(
            self.worker, op, work, None if incoming is None else incoming.arrays,
            isinstance(keys, (list, tuple)), 0 if outgoing is None else outgoing.copied_bytes,
        )


def is_capable(capability: str) -> bool:
    """Tell whether stores can do something.

    Raises:
        ConfigError: Nobody knows what that is; the known ones are listed.
    """
    if str(capability).lower() not in CAPABILITIES:
        raise ConfigError("unknown capability", expected=", ".join(CAPABILITIES), got=capability)
    return True
