"""KVStore (blocking) and AsyncKVStore (await): two faces of one core.

A store keeps values by key on servers. Workers push gradients and pull values; in dist_sync a
round of a key is complete when every worker has pushed it once, and then the sum (or what the
optimizer makes of it) is the new value. The words mean what they mean in Apache MXNet's KVStore.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Self

import numpy as np

from asyncps import optim
from asyncps.call import Call, Handle
from asyncps.checkpointverbs import AsyncCheckpointVerbs, CheckpointVerbs
from asyncps.compressionverbs import AsyncCompressionVerbs, CompressionVerbs
from asyncps.core import Core
from asyncps.errors import AsyncPSError, ClosedError
from asyncps.later import LaterVerbs
from asyncps.roles.runtime import Runtime, without_internals
from asyncps.rowverbs import AsyncRowVerbs, RowVerbs
from asyncps.storefacts import StoreFacts
from asyncps.values import as_keys
from asyncps.wholecalls import WholeCalls


class KVStore(StoreFacts, CheckpointVerbs, CompressionVerbs, RowVerbs, WholeCalls, LaterVerbs):
    """A store for programs without an event loop of their own; every verb blocks.

    Made by `asyncps.create` or `LocalCluster.run`. May be used from several threads.
    """

    def __init__(self, core: Core, runtime: Runtime, on_close: Callable[[bool], None]) -> None:
        self._core = core
        self._runtime = runtime
        self._on_close = on_close

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.type}: worker {self.rank} of {self.num_workers}>"

    # ---- values ----

    def init(
        self, key: Any, value: Any, *, shape: Any = None, dtype: Any = np.float32
    ) -> None:
        """Initialise keys: rank 0's value counts for everyone.

        Args:
            key: A str or 64-bit int, or a list of them; 5 and "5" are two keys.
            value: An array (dtype f16 bf16 f32 f64 i8 u8 i32 i64, any shape), or a list of them;
                lent until this returns. Other ranks' values only say dtype and shape.
                A RowSparse, or something of `asyncps.initializer`, makes a row-sparse key.
            shape, dtype: Of a key that is made by an initializer: (rows, ...).

        Rank 0 returns when the servers hold the values, others when the keys exist. A key that
        exists is checked and not changed.

        Raises:
            ShapeMismatch, DtypeMismatch: The key exists and is different.
            Disagreement: It is row-sparse there and not here, or made by other words.
        """
        with self._core.lanes_closed():
            self._runtime.run(lambda: self._core.init(key, value, shape, dtype))

    def assign(self, key: Any, value: Any) -> None:
        """Overwrite values; returns when the servers hold them.

        Args:
            key: A key or a list of keys that exist.
            value: As in `init`; lent until this returns.
        """
        call = self._call(key, lambda plan: self._core.assign(plan, key, value))
        self._finish(call, self._core.begin)

    def push(self, key: Any, value: Any, priority: int = 0, copy: bool = True) -> Handle:
        """Contribute to the next round of keys.

        Args:
            key: A key or a list of keys.
            value: An array of the key's dtype and shape, or a list (one a key). A list of arrays
                for one key is the values of several local devices, summed first.
            priority: Higher goes first.
            copy: Copy the value; False lends it until the Handle resolves.

        Returns:
            A Handle that resolves when every server has accepted the push: it counts exactly once.
            The call waits while more than the worker's send budget is not accepted yet.
        """
        call = self._call(key, lambda plan: self._core.push(plan, key, value, priority, copy))
        try:
            self._core.budget.wait(call.op, call.copied_bytes, self._core.deadline_s)
            self._core.begin(call, self._runtime.call)
        except BaseException:
            self._let_go(call)
            raise
        return self._handle(call)

    def pull(
        self, key: Any, out: Any = None, priority: int = 0, async_op: bool = False
    ) -> Any:
        """Fetch values; sees this worker's own last push of each key.

        Args:
            key: A key or a list of keys.
            out: An array of the key's dtype and shape (or several: all are filled), or a list of
                such, one a key; None makes new arrays. Written until this returns, or until the
                Handle resolves.
            priority: Higher goes first.
            async_op: Return a Handle instead of waiting.

        Returns:
            The array (or list of arrays), or a Handle whose `wait()` returns that.

        Raises:
            UnknownKey: A key that nobody initialised.
        """
        call = self._call(key, lambda plan: self._core.pull(plan, key, out, priority))
        return self._start(call, async_op)

    def pushpull(
        self, key: Any, value: Any, out: Any = None, priority: int = 0, async_op: bool = False
    ) -> Any:
        """Push and pull the same round in one trip.

        Args:
            key: A key or a list of keys.
            value: As in `push`; lent until this returns or the Handle resolves.
            out: As in `pull`; None writes into the value.
            priority: Higher goes first.
            async_op: Return a Handle instead of waiting.

        Returns:
            As `pull`.
        """
        call = self._call(key, lambda plan: self._core.pushpull(plan, key, value, out, priority))
        if async_op:
            return self._start(call, async_op)
        return self._finish(call, self._core.pushpull_at_once)

    def broadcast(self, key: Any, value: Any, out: Any = None, priority: int = 0) -> Any:
        """`init`, then `pull` into `out`."""
        self.init(key, value)
        return self.pull(key, out, priority)

    # ---- the job ----

    def set_optimizer(
        self, optimizer: str | optim.Optimizer, optimizer_params: Mapping[str, Any] | None = None,
        **hyper: Any,
    ) -> None:
        """Move the update to the servers; every worker calls this with the same words.

        Args:
            optimizer: A name or an Optimizer.
            optimizer_params: Hyper-parameters of a name, as a dict (as `Trainer` takes them).
            hyper: The same by keyword.

        Returns when all servers have it. State of an earlier optimizer is dropped.

        Raises:
            OptimizerError: An unknown optimizer or hyper-parameter; the known ones are listed.
            Disagreement: Another worker said something else.
        """
        words = optim.words_of(optimizer_params, hyper)
        self._runtime.run(lambda: self._core.set_optimizer(optimizer, words))
        self._tell_followers()

    def _take_optimizer(self, optimizer: optim.Optimizer) -> None:
        """As `set_optimizer`; but what the servers keep for one of that name stays."""
        self._runtime.run(lambda: self._core.set_optimizer(optimizer, {}, keep=True))
        self._tell_followers()

    def set_hyperparameters(self, **hyper: Any) -> None:
        """Change some hyper-parameters and keep the optimizer's state.

        A round uses the newest that any of its contributors had set.
        """
        self._runtime.run(lambda: self._core.set_hyperparameters(hyper))
        self._tell_followers()

    def barrier(self) -> None:
        """Wait for all workers, after this worker's pushes are accepted."""
        self._runtime.run(self._core.barrier)

    _barrier = barrier

    def join(self) -> int:
        """Say that this worker has no more data, and wait until all workers have said so.

        Its pushes are accepted first. From then on rounds do not wait for it, nor do barriers. When
        all have joined everybody counts again, and their clocks agree: the next epoch may begin.
        There is no deadline; a worker that leaves is not waited for.

        Returns:
            The rank of the worker that joined last.

        Trainers of this store have the weights of the last round afterwards.

        Raises:
            ConfigError: A trainer of this store updates at the workers.
            WorkerLost: A worker was lost, unless the job goes on without it.
            AsyncPSError: An earlier push failed; this worker has not joined.
        """
        self._followers.check_join()
        with self._core.lanes_closed():
            last = self._runtime.run(self._core.join)
        self._tell_followers(weights=True)
        return last

    def close(self) -> None:
        """Wait until pushes are accepted, then leave for good."""
        self._on_close(True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        """Close; after an exception go without a goodbye, so that the others hear of a loss."""
        self._on_close(kind is None)

    def statistics(self) -> dict[str, Any]:
        """Return plain data: bytes, rounds, waiting time by rank, queue depth."""
        return self._runtime.run(self._core.statistics)

    # ---- inside ----

    def _call(self, key: Any, build: Callable[[Any], Call]) -> Call:
        self._runtime.check_thread()
        plan = self._core.known(key)
        if plan is None:
            keys, _ = as_keys(key)
            plan = self._core.plan(keys)
            if plan is None:
                with self._core.lanes_closed():
                    self._runtime.run(lambda: self._core.look_up(keys))
                plan = self._core.plan(keys)
        try:
            return build(plan)
        except AsyncPSError as error:  # the arguments': the text says all
            raise without_internals(error) from None

    def _handle(self, call: Call) -> Handle:
        return Handle(call, self._runtime.call, self._runtime.thread_ident)

    def _start(self, call: Call, async_op: bool) -> Any:
        if not async_op:
            return self._finish(call, self._core.begin)
        try:
            self._core.begin(call, self._runtime.call)
        except BaseException:
            self._let_go(call)
            raise
        return self._handle(call)

    def _finish(
        self, call: Call, begin: Callable[[Call, Callable[[Callable[[], None]], None]], None]
    ) -> Any:
        call.op.observed = True  # we hear of its end: no flush need tell of it
        try:
            begin(call, self._runtime.call)
            call.op.wait()
        except BaseException:
            self._let_go(call)
            raise
        return call.result()

    def _let_go(self, call: Call) -> None:
        """Ctrl-C, or what another signal handler raised: first the loop gives the memory back."""
        with contextlib.suppress(ClosedError):
            self._runtime.run(lambda: self._core.let_go(call))


class AsyncKVStore(
    StoreFacts, AsyncCheckpointVerbs, AsyncCompressionVerbs, AsyncRowVerbs, LaterVerbs
):
    """The same store for programs with an event loop; every verb is a coroutine.

    Made by `async with asyncps.connect(...)`. See `KVStore` for what the verbs mean.
    """

    def __init__(self, core: Core) -> None:
        self._core = core

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.type}: worker {self.rank} of {self.num_workers}>"

    async def init(
        self, key: Any, value: Any, *, shape: Any = None, dtype: Any = np.float32
    ) -> None:
        """As `KVStore.init`."""
        await self._core.init(key, value, shape, dtype)

    async def assign(self, key: Any, value: Any) -> None:
        """As `KVStore.assign`."""
        plan = self._core.known(key) or await self._look_up(key)
        await self._finish(self._core.assign(plan, key, value))

    async def push(self, key: Any, value: Any, priority: int = 0, copy: bool = True) -> Handle:
        """As `KVStore.push`; the Handle may be awaited."""
        plan = self._core.known(key) or await self._look_up(key)
        call = self._core.push(plan, key, value, priority, copy)
        try:
            await self._core.budget.acquire(call.op, call.copied_bytes, self._core.deadline_s)
            call.start()
        except BaseException:
            await self._core.let_go(call)
            raise
        return self._handle(call)

    async def pull(
        self, key: Any, out: Any = None, priority: int = 0, async_op: bool = False
    ) -> Any:
        """As `KVStore.pull`."""
        plan = self._core.known(key) or await self._look_up(key)
        call = self._core.pull(plan, key, out, priority)
        return await self._start(call, async_op)

    async def pushpull(
        self, key: Any, value: Any, out: Any = None, priority: int = 0, async_op: bool = False
    ) -> Any:
        """As `KVStore.pushpull`."""
        plan = self._core.known(key) or await self._look_up(key)
        call = self._core.pushpull(plan, key, value, out, priority)
        return await self._start(call, async_op)

    async def broadcast(self, key: Any, value: Any, out: Any = None, priority: int = 0) -> Any:
        """As `KVStore.broadcast`."""
        await self.init(key, value)
        return await self.pull(key, out, priority)

    async def set_optimizer(
        self, optimizer: str | optim.Optimizer, optimizer_params: Mapping[str, Any] | None = None,
        **hyper: Any,
    ) -> None:
        """As `KVStore.set_optimizer`."""
        await self._core.set_optimizer(optimizer, optim.words_of(optimizer_params, hyper))

    async def set_hyperparameters(self, **hyper: Any) -> None:
        """As `KVStore.set_hyperparameters`."""
        await self._core.set_hyperparameters(hyper)

    async def barrier(self) -> None:
        """As `KVStore.barrier`."""
        await self._core.barrier()

    _barrier = barrier

    async def join(self) -> int:
        """As `KVStore.join`."""
        return await self._core.join()

    async def close(self) -> None:
        """As `KVStore.close`."""
        await self._core.close()

    async def statistics(self) -> dict[str, Any]:
        """As `KVStore.statistics`."""
        return await self._core.statistics()

    async def _look_up(self, key: Any) -> Any:
        keys, _ = as_keys(key)
        if self._core.plan(keys) is None:
            await self._core.look_up(keys)
        return self._core.plan(keys)

    def _handle(self, call: Call) -> Handle:
        return Handle(call, lambda work: work(), threading.get_ident())

    async def _start(self, call: Call, async_op: bool) -> Any:
        if async_op:
            call.start()
            return self._handle(call)
        return await self._finish(call)

    def _finish(self, call: Call) -> Awaitable[Any]:
        call.op.observed = True  # as in `KVStore._finish`
        call.start()
        return self._core.finish(call)

