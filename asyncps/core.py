"""What both faces of a store do: build calls, keep the send budget, end things well."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Generator
from typing import Any

from asyncps import optim
from asyncps.budget import Budget
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
from asyncps.roles.shortcut import Attempt, Shortcut, Step
from asyncps.roles.worker import Worker
from asyncps.tensor import dtypes
from asyncps.values import (
    Array,
    Incoming,
    Key,
    Outgoing,
    as_bytes,
    as_keys,
    as_priority,
    as_values,
    check_text,
    host_array,
    key_spec,
    scatter_rows,
)

CAPABILITIES = ("optimizer",)


class Call:
    """One verb, checked and ready; `start` runs on the loop.

    Attributes:
        op: Ends when all is answered.
        plan: Where the keys live.
        outgoing: What is sent, if anything.
        incoming: Where answers go, if there are any.
    """

    __slots__ = ("_core", "_listed", "_priority", "_step", "incoming", "op", "outgoing", "plan")

    def __init__(
        self, core: Core, op: Operation, plan: Plan, outgoing: Outgoing | None,
        incoming: Incoming | None, priority: int, listed: bool,
    ) -> None:
        self._core = core
        self._priority = priority if priority == 0 else as_priority(priority)
        self._listed = listed
        self._step: Step | None = None
        self.op = op
        self.plan = plan
        self.outgoing = outgoing
        self.incoming = incoming
        if incoming is not None and incoming.finishing:
            op.finishing.extend(incoming.finishing)
        if outgoing is not None and outgoing.pooled:
            op.on_success(outgoing.release)

    @property
    def copied_bytes(self) -> int:
        """Bytes of values that were copied for this call."""
        return 0 if self.outgoing is None else self.outgoing.copied_bytes

    def start(self) -> None:
        """Begin; errors are kept by the operation."""
        self._core.worker.submit(self.op, self._send if self._step is None else self._go_on)

    def go_on_with(self, step: Step) -> None:
        """Let `start` send the round that was begun on a lane."""
        self._step = step

    @property
    def lone_value(self) -> memoryview:
        """The bytes of the only unit that travels."""
        assert self.outgoing is not None
        return self.outgoing.slabs[0].data if self.plan.slabs else self.outgoing.large[0]

    def take(self, value: memoryview) -> None:
        """Put the answer of the only unit where it belongs, and end."""
        assert self.incoming is not None
        if self.plan.slabs:
            slab = self.plan.slabs[0]
            scatter_rows(value, slab.dtype, slab.shapes, self.incoming.slabs[0])
        else:
            self.incoming.large[0][:] = value
        self.op.part_done()

    def result(self) -> Any:
        """Return what the verb returns, or raise why it failed; once ended."""
        if self.op.error is not None:
            raise self.op.error
        if self.incoming is None:
            return None
        return self.incoming.arrays if self._listed else self.incoming.arrays[0]

    def _send(self) -> None:
        outgoing, incoming = self.outgoing, self.incoming
        self._core.client.send(
            self.op, self.plan,
            None if outgoing is None else outgoing.large,
            None if outgoing is None else outgoing.slabs,
            None if incoming is None else incoming.large,
            None if incoming is None else incoming.slabs,
            self._priority,
        )

    def _go_on(self) -> None:
        incoming, step = self.incoming, self._step
        assert incoming is not None
        assert step is not None
        self._core.client.go_on(
            self.op, self.plan, step, self.lone_value,
            incoming.large[0] if incoming.large else None,
            incoming.slabs[0] if incoming.slabs else None, self._priority,
        )


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


class Core:
    """One store of one worker."""

    def __init__(self, worker: Worker, client: Client, shortcut: Shortcut | None = None) -> None:
        self.worker = worker
        self.client = client
        self.shortcut = shortcut
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
        check_text(unknown)
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

    # ---- the caller's thread ----

    def lanes_closed(self) -> contextlib.AbstractContextManager[None]:
        """Keep the lanes closed while the loop changes what the store knows of its keys."""
        return contextlib.nullcontext() if self.shortcut is None else self.shortcut.closed()

    def begin(self, call: Call, on_loop: Callable[[Callable[[], None]], None]) -> None:
        """Begin a call on the loop."""
        if self.shortcut is None:
            on_loop(call.start)
            return
        with self.shortcut.lock:
            self.shortcut.note(call.op)
            on_loop(call.start)

    def pushpull_at_once(
        self, call: Call, on_loop: Callable[[Callable[[], None]], None]
    ) -> None:
        """Take the lane if that may be; the call has ended, or goes on over the loop."""
        shortcut = self.shortcut
        if shortcut is None or call.plan.lone is None:
            self.begin(call, on_loop)
            return
        attempt = Attempt()
        with shortcut.lock:
            try:
                shortcut.pushpull(call.plan, call.lone_value, attempt)
            except AsyncPSError as error:
                call.op.part_done(error)
                return
            finally:
                if attempt.value is None and not call.op.ended:
                    if attempt.step is not None:
                        call.go_on_with(attempt.step)
                    shortcut.note(call.op)
                    on_loop(call.start)
            if attempt.value is not None:
                call.take(attempt.value)

    # ---- coroutines, on the loop ----

    async def init(self, keys: Any, values: Any) -> None:
        """Initialise keys."""
        self._check_open()
        names, listed = as_keys(keys)
        check_text(names)
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
        listed = isinstance(keys, (list, tuple))
        return Call(self, op, plan, outgoing, incoming, priority, listed)


def is_capable(capability: str) -> bool:
    """Tell whether stores can do something.

    Raises:
        ConfigError: Nobody knows what that is; the known ones are listed.
    """
    if str(capability).lower() not in CAPABILITIES:
        raise ConfigError("unknown capability", expected=", ".join(CAPABILITIES), got=capability)
    return True
