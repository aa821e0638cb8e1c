"""Several pushes of a store as one: none of them begins while another could still be refused.

A trainer's step is one. Were it refused in the middle, with some gradients pushed and others not,
rounds of this worker and of the others would never be of the same step again.

Another thread may save or load the store. It waits until all calls have begun, of whatever is not
encoded too; or it came before, and all are refused.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

from asyncps.call import Call, Handle
from asyncps.codedcall import checked, encode, forget
from asyncps.core import Core
from asyncps.errors import AsyncPSError, ClusterError
from asyncps.roles.encodings import Encoding
from asyncps.roles.runtime import Runtime


class Send(NamedTuple):
    """A push, or a pushpull where there is an `out`; otherwise as the verbs have them."""

    key: Any
    value: Any
    out: Any
    priority: int


class Pull(NamedTuple):
    """A pull of rows, as the verb has it."""

    key: Any
    row_ids: Any
    out: Any
    priority: int


class Whole:
    """Calls of which all that their caller could do wrong is known: it is right.

    Args:
        calls: They.
        begin: Begins one.
        over: Called when no more will begin.
    """

    def __init__(
        self, calls: Sequence[Call], begin: Callable[[Call], Handle], over: Callable[[], None]
    ) -> None:
        self._calls = list(reversed(calls))
        self._begin = begin
        self._over = over

    def begin(self) -> Handle:
        """Encode and begin the next."""
        return self._begin(self._calls.pop())

    def drop(self) -> None:
        """Begin none of the others; to be called in any case."""
        while self._calls:
            forget(self._calls.pop())
        self._over()


class WholeCalls:
    """What a blocking store has for it."""

    _core: Core
    _runtime: Runtime
    _call: Any
    _handle: Any
    _let_go: Any

    def _whole(self, sends: Sequence[Send | Pull]) -> Whole:
        """Return calls to be begun in their order; copies or lends nothing else than the verbs.

        Raises:
            AsyncPSError: One of them was refused: nothing of any is encoded or sent.
        """
        client = self._core.client
        encoding = client.encodings.begin()  # of all of them
        calls: list[Call] = []
        try:
            still = client.still  # in this order: see `Encodings`
            if still:
                raise ClusterError(f"a step while {still} is under way")
            for each in sends:
                calls.append(self._call(each.key, partial(self._build, each)))
                refused = calls[-1].refused
                if refused is not None:
                    raise refused
        except BaseException:
            Whole(calls, self._begin_one, encoding.end).drop()
            raise
        return Whole(calls, self._begin_one, partial(self._over, encoding))

    def _over(self, encoding: Encoding) -> None:
        """Let whoever saves or loads go on, behind what was begun on the loop."""
        try:
            self._runtime.call(encoding.end)
        except AsyncPSError:  # it is closed
            encoding.end()

    def _build(self, send: Send | Pull, plan: Any) -> Call:
        call = self._built(send, plan)
        call.op.whole = True
        return call

    def _built(self, send: Send | Pull, plan: Any) -> Call:
        if isinstance(send, Pull):
            return self._core.row_sparse_pull(plan, *send)
        key, value, out, priority = send
        if out is None:
            return self._core.push(plan, key, value, priority, True, checked)
        return self._core.pushpull(plan, key, value, out, priority, checked)

    def _begin_one(self, call: Call) -> Handle:
        try:
            encode(call)
            if call.op.verb == "push":
                self._core.budget.wait(call.op, call.copied_bytes, self._core.deadline_s)
            self._core.begin(call, self._runtime.call)
        except BaseException:
            self._let_go(call)
            raise
        handle: Handle = self._handle(call)
        return handle
