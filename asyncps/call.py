"""One call of a verb, built in the caller's thread; and the Handle that users wait for."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections.abc import Callable, Generator
from typing import Any

from asyncps.errors import AsyncPSError, ClosedError, ConfigError, DeadlineExceeded
from asyncps.roles.client import Client
from asyncps.roles.compressing import Checked
from asyncps.roles.encodings import Encoding
from asyncps.roles.framing import spread
from asyncps.roles.operation import Operation, resolve
from asyncps.roles.plan import Plan
from asyncps.roles.shortcut import Attempt, Step
from asyncps.roles.worker import Worker
from asyncps.values import Incoming, Outgoing, as_priority


class Call:
    """One verb, checked and ready; `start` runs on the loop.

    Attributes:
        op: Ends when all is answered.
        plan: Where the keys live.
        outgoing: What is sent, if anything.
        incoming: Where answers go, if there are any.
        attempt: The try on a lane, if there was one.
        checked: What is to be encoded of its values, until it is.
        encoding: What tells that its values are encoded and it has not begun, if they are.
        refused: Why it is not to begin, if something is known before.
    """

    __slots__ = (
        "_client", "_listed", "_priority", "_started", "_worker", "attempt", "checked", "encoding",
        "incoming", "op", "outgoing", "plan", "refused",
    )

    def __init__(
        self, worker: Worker, client: Client, op: Operation, plan: Plan, outgoing: Outgoing | None,
        incoming: Incoming | None, priority: int, listed: bool,
    ) -> None:
        self._worker = worker
        self._client = client
        self._priority = priority if priority == 0 else as_priority(priority)
        self._listed = listed
        self._started = False
        self.attempt: Attempt | None = None
        self.checked: Checked | None = None
        self.encoding: Encoding | None = None
        self.refused: AsyncPSError | None = None
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
        """Begin, once; errors are kept by the operation."""
        if self._started:
            return
        self._started = True
        if self.refused is not None:
            self.op.part_done(self.refused)
            return
        self._worker.submit(self.op, self._send if self._begun is None else self._go_on)
        if self.encoding is not None:
            self.encoding.end()

    def withdraw(self) -> None:
        """Do not begin any more; but a round that was begun on a lane is brought to its end."""
        if self._started or self.op.ended:
            return
        if self._begun is not None:
            self.start()
        else:
            self._started = True
            self.op.part_done(ClosedError("its caller gave up waiting"))

    @property
    def _begun(self) -> Step | None:
        return None if self.attempt is None else self.attempt.unanswered

    @property
    def lone_value(self) -> memoryview:
        """The bytes of the only unit that travels."""
        assert self.outgoing is not None
        value = self.outgoing.slabs[0].data if self.plan.slabs else self.outgoing.large[0]
        assert isinstance(value, memoryview)
        return value

    def take(self, value: memoryview) -> None:
        """Put the answer of the only unit where it belongs, and end."""
        assert self.incoming is not None
        error = None
        if self.plan.slabs:
            slab = self.plan.slabs[0]
            error = spread(value, (slab.dtype, slab.shapes, self.incoming.slabs[0]))
        else:
            self.incoming.large[0][:] = value
        self.op.part_done(error)

    def result(self) -> Any:
        """Return what the verb returns, or raise why it failed; once ended."""
        self.op.observed = True
        if self.op.error is not None:
            raise self.op.error.again()
        if self.incoming is None:
            return None
        return self.incoming.arrays if self._listed else self.incoming.arrays[0]

    def _send(self) -> None:
        outgoing, incoming = self.outgoing, self.incoming
        self._client.send(
            self.op, self.plan,
            None if outgoing is None else outgoing.large,
            None if outgoing is None else outgoing.slabs,
            None if incoming is None else incoming.large,
            None if incoming is None else incoming.slabs,
            self._priority,
        )

    def _go_on(self) -> None:
        incoming, step = self.incoming, self._begun
        assert incoming is not None
        assert step is not None
        self._client.go_on(
            self.op, self.plan, step, self.lone_value,
            incoming.large[0] if incoming.large else None,
            incoming.slabs[0] if incoming.slabs else None, self._priority,
        )


# One entry for each fork that leads to this process: threads, and so ends of calls, stay behind.
_forks: list[None] = []
os.register_at_fork(after_in_child=lambda: _forks.append(None))


class Handle:
    """A verb under way: `wait()` it, or await it on a loop.

    Args:
        call: It.
        on_loop: Has the loop call something.
        loop_thread: The ident of the thread that the loop runs in.
    """

    def __init__(
        self, call: Call, on_loop: Callable[[Callable[[], None]], None], loop_thread: int | None
    ) -> None:
        self._call = call
        self._on_loop = on_loop
        self._loop_thread = loop_thread
        self._forks = len(_forks)

    def __repr__(self) -> str:
        op = self._call.op
        state = "under way" if not op.ended else "done" if op.error is None else f"{op.error!r}"
        return f"<Handle of a {op.verb}: {state}>"

    def wait(self, timeout: float | None = None) -> Any:
        """Wait for the end and return the result (None for a push).

        Args:
            timeout: Seconds; None waits as long as the store's own deadlines.

        Raises:
            DeadlineExceeded: It has not ended in time; it goes on, and may be waited for again.
            ConfigError: It has not ended, and this is the thread that has to end it.
            ClosedError: It had not ended when this process was forked: here nobody will end it.
            AsyncPSError: Why it failed.
        """
        if self._forks != len(_forks) and not self._call.op.ended:
            raise ClosedError("a forked child has no store: its parent's verbs do not end here")
        if threading.get_ident() == self._loop_thread and not self._call.op.ended:
            raise ConfigError("a blocking wait inside the event loop, which has to end what it "
                              "waits for", expected="await the handle there")
        if timeout is not None:
            timeout = min(timeout, threading.TIMEOUT_MAX)
        if not self._call.op.wait(timeout):
            raise DeadlineExceeded(f"{self._call.op.verb} has not ended within {timeout:g} s")
        return self._call.result()

    def done(self) -> bool:
        """Tell whether it has ended, well or not."""
        return self._call.op.ended

    def exception(self) -> AsyncPSError | None:
        """Return why it failed, None when it did not or has not ended."""
        op = self._call.op
        op.observed = op.observed or op.ended
        return op.error if op.ended else None

    def __await__(self) -> Generator[Any, None, Any]:
        loop = asyncio.get_running_loop()
        ended = loop.create_future()

        def tell(_: Operation) -> None:
            with contextlib.suppress(RuntimeError):  # that loop was closed: nobody waits there
                loop.call_soon_threadsafe(resolve, ended)

        self._on_loop(lambda: self._call.op.on_end(tell))
        yield from ended.__await__()
        return self._call.result()
