"""Several pushes of a store as one: none of them begins while another could still be refused.

A trainer's step is one. Were it refused in the middle, with some gradients pushed and others not,
rounds of this worker and of the others would never be of the same step again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

from asyncps.call import Call, Handle
from asyncps.codedcall import checked, encode, forget
from asyncps.core import Core
from asyncps.roles.runtime import Runtime


class Send(NamedTuple):
    """A push, or a pushpull where there is an `out`; otherwise as the verbs have them."""

    key: Any
    value: Any
    out: Any
    priority: int


class Whole:
    """Calls of which all that their caller could do wrong is known: it is right.

    Args:
        calls: They.
        begin: Begins one.
    """

    def __init__(self, calls: Sequence[Call], begin: Callable[[Call], Handle]) -> None:
        self._calls = list(reversed(calls))
        self._begin = begin

    def begin(self) -> Handle:
        """Encode and begin the next."""
        return self._begin(self._calls.pop())

    def drop(self) -> None:
        """Begin none of the others."""
        while self._calls:
            forget(self._calls.pop())


class WholeCalls:
    """What a blocking store has for it."""

    _core: Core
    _runtime: Runtime
    _call: Any
    _handle: Any
    _let_go: Any

    def _whole(self, sends: Sequence[Send]) -> Whole:
        """Return calls to be begun in their order; copies or lends nothing else than the verbs.

        Raises:
            AsyncPSError: One of them was refused: nothing of any is encoded or sent.
        """
        calls: list[Call] = []
        try:
            for each in sends:
                calls.append(self._call(each.key, partial(self._build, each)))
                refused = calls[-1].refused
                if refused is not None:
                    raise refused
        except BaseException:
            Whole(calls, self._begin_one).drop()
            raise
        return Whole(calls, self._begin_one)

    def _build(self, send: Send, plan: Any) -> Call:
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
