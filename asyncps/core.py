"""What both faces of a store do: build calls, keep the send budget, end things well."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import numpy as np

from asyncps import optim
from asyncps.budget import Budget
from asyncps.call import Call
from asyncps.codedcall import coded
from asyncps.errors import (
    ClosedError,
    ConfigError,
    DtypeMismatch,
    NodeLost,
    OptimizerError,
)
from asyncps.following import Followers
from asyncps.roles.client import Client
from asyncps.roles.gains import gains
from asyncps.roles.operation import Operation
from asyncps.roles.plan import Plan, bound_of
from asyncps.roles.shortcut import Attempt, Shortcut
from asyncps.roles.worker import Worker
from asyncps.tablecall import RowCalls
from asyncps.tablevalues import declared
from asyncps.tensor import codecs, dtypes
from asyncps.values import (
    PLAIN_KEYS,
    Incoming,
    Key,
    Outgoing,
    as_keys,
    as_values,
    check_text,
    named_keys,
)

CAPABILITIES = ("optimizer",)

Coder = Callable[[Client, Call], Call]  # what is done to a call whose values are compressed


class Core(RowCalls):
    """One store of one worker."""

    def __init__(self, worker: Worker, client: Client, shortcut: Shortcut | None = None) -> None:
        super().__init__(worker, client)
        self.shortcut = shortcut
        self.budget = Budget(worker.config.send_budget_bytes, worker.whom_we_wait_for)
        self.deadline_s = worker.config.round_s
        self.followers = Followers()

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
        """This worker's number on its machine: as the launcher says, else by rank there."""
        return self.worker.node.local_rank

    def check_open(self) -> None:
        """Refuse to work on a closed store.

        Raises:
            ClosedError: It is closed.
        """
        self._check_open()

    def is_capable(self, capability: str) -> bool:
        """Whether the store can do something."""
        return is_capable(capability)

    def num_dead_node(self) -> int:
        """How many nodes are lost."""
        node = self.worker.node
        return len(node.gone) + (1 if isinstance(node.failure, NodeLost) else 0)

    # ---- calls, built in the caller's thread ----

    def known(self, key: Any) -> Plan | None:
        """Where a key or a list of keys lives, if just these were used before.

        They were checked then; only their types are looked at again (True is equal to 1).
        """
        keys = tuple(key) if isinstance(key, (list, tuple)) else (key,)
        return self.client.plan_of(keys) if set(map(type, keys)) <= PLAIN_KEYS else None

    def plan(self, keys: tuple[Key, ...]) -> Plan | None:
        """Where keys live, if that is known here."""
        return self.client.plan(keys)

    async def look_up(self, keys: tuple[Key, ...]) -> None:
        """Learn where keys live."""
        self._check_open()
        unknown = [key for key in keys if key not in self.client.keys]
        check_text(unknown)
        await self.worker.look_up(self.client, unknown)

    def push(
        self, plan: Plan, keys: Any, values: Any, priority: int, copy: bool, coded: Coder = coded
    ) -> Call:
        """Build a push."""
        self._check_push(plan)
        if plan.tables:
            return coded(
                self.client, self.rows_call("push", plan, keys, values, priority, copy=copy))
        outgoing = self._outgoing(plan, keys, values, copy=copy)
        op = Operation("push", lent=not copy)
        call = self._build(op, plan, outgoing, None, keys, priority)
        return coded(self.client, call)

    def pull(self, plan: Plan, keys: Any, out: Any, priority: int) -> Call:
        """Build a pull."""
        self.check_dense(plan, "pull", "row_sparse_pull(key, row_ids)")
        return self._build(
            Operation("pull", lent=False), plan, None, self._incoming(plan, keys, out), keys,
            priority,
        )

    def pushpull(
        self, plan: Plan, keys: Any, values: Any, out: Any, priority: int, coded: Coder = coded
    ) -> Call:
        """Build a pushpull; of row-sparse keys it returns the rows that it has pushed."""
        self._check_push(plan)
        if plan.tables and len(plan.tables) == len(plan.infos):
            return coded(self.client, self.rows_call(
                "pushpull", plan, keys, values, priority, out=out, pull=True))
        self.check_dense(plan, "pushpull beside dense keys", "a call of their own")
        outgoing = self._outgoing(plan, keys, values, copy=False)
        incoming = self._incoming(plan, keys, values if out is None else out)
        call = self._build(
            Operation("pushpull", lent=True), plan, outgoing, incoming, keys, priority
        )
        return coded(self.client, call)

    def assign(self, plan: Plan, keys: Any, values: Any) -> Call:
        """Build an assign."""
        if plan.tables:
            return self.rows_call("assign", plan, keys, values, 0)
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
        with self.shortcut.held():
            self.shortcut.settle(on_loop)
            self.shortcut.note(call.op)
            on_loop(call.start)

    def pushpull_at_once(
        self, call: Call, on_loop: Callable[[Callable[[], None]], None]
    ) -> None:
        """Take the lane if that may be; the call has ended, or goes on over the loop."""
        shortcut = self.shortcut
        if shortcut is None or call.plan.lone is None or call.encoding is not None:
            self.begin(call, on_loop)
            return
        with shortcut.held():
            shortcut.settle(on_loop)
            attempt = call.attempt = Attempt(call.op, call.start)
            try:
                shortcut.pushpull(call.plan, call.lone_value, attempt)
            finally:
                shortcut.settle(on_loop)
            if attempt.step is None:
                shortcut.note(call.op)
                on_loop(call.start)
            elif attempt.value is not None:
                call.take(attempt.value)
            elif attempt.error is not None:
                call.op.part_done(attempt.error)

    # ---- coroutines, on the loop ----

    async def finish(self, call: Call) -> Any:
        """Wait for the end of a call that was begun; give its memory back whatever happens.

        Raises:
            AsyncPSError: Why it failed.
        """
        await self.worker.settle(call.op)
        return call.result()

    async def init(
        self, keys: Any, values: Any, shape: Any = None, dtype: Any = np.float32
    ) -> None:
        """Initialise keys."""
        self._check_open()
        names, listed = as_keys(keys)
        check_text(names)
        given = as_values(len(names), values, listed)
        specs, firsts = declared(names, given, shape, dtype)
        if self.client.config.reduce == "mean":
            for spec in specs:
                if not dtypes.by_name(spec.dtype).is_float:
                    raise DtypeMismatch("the mean of integers", key=spec.key,
                                        expected="a float dtype", got=spec.dtype)
        await self.worker.init(self.client, specs, firsts)

    async def set_optimizer(
        self, optimizer: str | optim.Optimizer, hyper: dict[str, Any], *, keep: bool = False
    ) -> None:
        """Move the update to the servers; `keep` what they keep for the optimizer of that name."""
        self._check_open()
        chosen = optim.resolve(optimizer, hyper)
        self.client.check_rate(chosen.hyper)
        self.client.check_momentum(chosen.hyper)
        await self.flush()
        await self.worker.set_optimizer(self.client, chosen.name, chosen.hyper, keep=keep)

    async def set_compression(self, spec: Any, keys: Any, *, default: bool = False) -> None:
        """Encode pushes of some keys from now on; by `default` those that no rule names."""
        self._check_open()
        words = codecs.checked(spec)
        self.client.check_rate(self.client.hyper, words)
        self.client.check_momentum(self.client.hyper, words)
        named = named_keys(keys)
        if default and self.client.compression is not None:
            self.client.compression.check_default(words)
        await self.flush()
        await self.worker.set_compression(self.client, named, words, default=default)

    def compression_report(self) -> dict[Key, dict[str, Any]]:
        """Say of each key how it is sent, and what that came to."""
        self._check_open()
        client = self.client
        if client.compression is None:
            return {}
        infos = list(client.keys.values())
        return gains(client.compression, infos, self.worker.paces.link_bytes_s)

    async def set_hyperparameters(self, hyper: dict[str, Any]) -> None:
        """Change hyper-parameters."""
        self._check_open()
        name = self.client.optimizer
        if name is None:
            raise OptimizerError("no optimizer is set", expected="set_optimizer first")
        checked = optim.checked(optim.by_name(name), hyper)
        self.client.check_rate(checked)
        self.client.check_momentum({**self.client.hyper, **checked})
        await self.worker.set_hyper(self.client, checked)

    async def flush(self) -> None:
        """Wait until this worker's pushes are accepted; not for rounds that others must finish."""
        await self.worker.accepted(self.client)

    async def barrier(self) -> None:
        """Wait for all workers."""
        self._check_open()
        await self.flush()
        await self.worker.barrier(self.client)

    async def join(self) -> int:
        """Flush, and be waited for no longer until all workers have joined."""
        self._check_open()
        return await self.worker.join(self.client)

    async def close(self) -> None:
        """Flush, then leave; also when an earlier push failed, which is raised all the same."""
        try:
            if self.worker.node.failure is None:
                await self.flush()
        finally:
            await self.worker.close()

    async def release(self) -> None:
        """Flush, and have no more to do with this store, as `close` does; the worker stays."""
        try:
            await self.flush()
        finally:
            await self.worker.close_store(self.client)

    async def let_go(self, call: Call) -> None:
        """Take the caller's memory back; what was not begun is not begun any more."""
        call.withdraw()
        self.worker.let_go(call.op)

    async def statistics(self) -> dict[str, Any]:
        """Plain numbers of this worker and of all servers."""
        self._check_open()
        servers = await self.worker.statistics(self.client)
        mine = self.worker.report()
        waited: dict[int, float] = {}
        waiting: dict[int, float] = {}
        for server in servers:
            for wait in server.waits:
                waiting[wait.rank] = max(wait.seconds, waiting.get(wait.rank, 0.0))
            for rank, seconds in server.waited_s.items():
                waited[rank] = waited.get(rank, 0.0) + seconds
        return {
            "type": self.type,
            "rank": self.rank,
            "keys": len(self.client.keys),
            "sent_bytes": mine.sent_bytes,
            "received_bytes": mine.received_bytes,
            "queued_bytes": mine.queued_bytes,
            "queued_frames": mine.queued_frames,
            "unanswered": mine.requests,
            "budget_used_bytes": self.budget.used,
            "rounds": sum(server.rounds for server in servers),
            "waited_s": waited,
            "waiting_s": waiting,
            "servers": [
                {"rank": rank, **{name: getattr(server, name) for name in SERVER_NUMBERS}}
                for rank, server in enumerate(servers)
            ],
        }

    # ---- inside ----

    def _check_open(self) -> None:
        if self.client.closed:
            raise ClosedError("the store is closed")

    def _check_push(self, plan: Plan) -> None:
        """Refuse a push that could not be applied, before it is given a clock."""
        client = self.client
        if plan.tables and client.compression is not None:
            client.compression.check_tables(plan.infos)
        if client.optimizer is None and bound_of(client.config) != 0:
            raise OptimizerError(f"a {self.type} store applies each push when it comes",
                                 expected="set_optimizer before the first push")

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
        return Call(self.worker, self.client, op, plan, outgoing, incoming, priority, listed)


# What `statistics` tells of each server; whom it waits for is summed up in `waiting_s`.
SERVER_NUMBERS = (
    "received_bytes", "sent_bytes", "queued_bytes", "queued_frames", "rounds", "units",
    "value_bytes", "parked", "waited_s",
)


def is_capable(capability: str) -> bool:
    """Tell whether stores can do something.

    Raises:
        ConfigError: Nobody knows what that is; the known ones are listed.
    """
    if str(capability).lower() not in CAPABILITIES:
        raise ConfigError("unknown capability", expected=", ".join(CAPABILITIES), got=capability)
    return True
