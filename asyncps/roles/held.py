"""Pushes beyond the clock window, which step aside until it is open.

Two of them that name a common row go in their order; others pass each other. Else workers that push
the keys of one slab in different orders would wait in a circle: each for a push that the other one
holds behind one that waits.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from asyncps.errors import AsyncPSError, DeadlineExceeded
from asyncps.protocol.frames import PUSH, PUSHPULL
from asyncps.roles.coded import Payload
from asyncps.roles.landing import Place
from asyncps.roles.operation import Operation, resolve
from asyncps.state.requests import Rows, Step

# What the rows of an answer are written to: their dtype, their shapes, and the arrays.
Scatter = tuple[np.dtype[Any], tuple[tuple[int, ...], ...], Any]


@dataclass(slots=True, eq=False)
class Held:
    """A push beyond the clock window.

    Attributes:
        is_gone: It has been sent, or never will be.
        gone: Tells that to whoever waits, or that its caller was told that it cannot go.
        asking: The word that it waits for, if it waits for nobody before it.
        was_due: Its caller was told that it cannot go; it may go late.
    """

    op: Operation
    kind: int
    step: Step
    size: int
    value: memoryview | Payload | None
    out: Place
    scatter: Scatter | None
    priority: int
    is_gone: bool = False
    gone: asyncio.Future[None] | None = None
    asking: Operation | None = None
    was_due: bool = False

    def detach(self, error: AsyncPSError) -> None:
        """Let the caller and its memory go: the clock is given out, so the push itself stays."""
        op, self.op = self.op, Operation("push", lent=False)
        self.op.since = op.since
        if op.lent and isinstance(self.value, memoryview):
            self.value = memoryview(bytes(self.value))
        if self.kind == PUSHPULL:
            self.kind = PUSH
        self.out = self.scatter = None
        op.part_done(error)

    def let_go(self) -> None:
        """This one is held no longer; tell whoever waits."""
        self.is_gone = True
        if self.gone is not None:
            resolve(self.gone)

    def stay(self, error: AsyncPSError) -> None:
        """It was due and is held all the same: whoever waits now hears why."""
        self.was_due = True
        gone, self.gone = self.gone, None
        if gone is not None and not gone.done():
            gone.set_exception(error)
            gone.exception()  # it may be that nobody waits any more

    async def wait_gone(self, limit_s: float) -> None:
        """Wait on the loop until it is held no longer.

        Args:
            limit_s: How long at most if it was due before; else its own deadline ends the wait.

        Raises:
            DeadlineExceeded: It is held still.
        """
        if self.is_gone:
            return
        if self.gone is None:
            self.gone = asyncio.get_running_loop().create_future()
        gone = self.gone
        done, _ = await asyncio.wait({gone}, timeout=limit_s if self.was_due else None)
        if not done:
            raise DeadlineExceeded(
                f"a push waits for a round that was not complete within another {limit_s:g} s")
        gone.result()


class HeldPushes:
    """Those of one unit. Iterating gives them in their order."""

    __slots__ = ("_groups", "_turn")

    def __init__(self) -> None:
        # By the rows that they name, each in its order; most often there is one such group.
        self._groups: dict[tuple[int, ...] | None, deque[tuple[int, Held]]] = {}
        self._turn = 0

    def __bool__(self) -> bool:
        return bool(self._groups)

    def __iter__(self) -> Iterator[Held]:
        every = [item for group in self._groups.values() for item in group]
        return iter([held for _, held in sorted(every, key=lambda item: item[0])])

    def append(self, held: Held) -> None:
        """Hold one more."""
        self._turn += 1
        group = self._groups.setdefault(_named(held.step.rows), deque())
        group.append((self._turn, held))

    def remove(self, held: Held) -> None:
        """Hold one of the `heads` no longer."""
        named = _named(held.step.rows)
        group = self._groups[named]
        assert group[0][1] is held
        group.popleft()
        if not group:
            del self._groups[named]

    def clear(self) -> None:
        """Hold none."""
        self._groups.clear()

    def blocks(self, rows: Rows) -> bool:
        """Tell whether a new push of these rows must go behind one that is held."""
        # Nothing is held as a rule, which is asked before a generator is made.
        return bool(self._groups) and any(_meet(named, rows) for named in self._groups)

    def heads(self) -> list[Held]:
        """Return those that wait for none that is held before them, in their order."""
        first = sorted(
            ((group[0][0], named, group[0][1]) for named, group in self._groups.items()),
            key=lambda item: item[0],
        )
        return [
            held for place, (_, named, held) in enumerate(first)
            if not any(_meet(before, named) for _, before, _ in first[:place])
        ]

    def behind(self, held: Held) -> list[Held]:
        """Return one that is held and all that cannot go before it has gone, in their order."""
        found: list[Held] = []
        for other in self:
            if other is held or any(_meet(other.step.rows, one.step.rows) for one in found):
                found.append(other)
        return found

    def give_up(self, first: Held, error: AsyncPSError) -> None:
        """Tell the callers of held pushes that these cannot go.

        After a mere deadline the pushes stay, and go when the round that `first` waits for is
        complete after all; else the cluster is gone.
        """
        if isinstance(error, DeadlineExceeded):
            for held in self.behind(first):
                held.detach(error)
                held.stay(error)
            return
        self.drop(error)

    def drop(self, error: AsyncPSError) -> None:
        """Hold none, and tell the callers that the cluster is gone."""
        every = list(self)
        self.clear()
        for held in every:
            held.op.part_done(error)
            held.let_go()

    def grow(self, known: range) -> None:
        """Take note that there are more rows than these: held pushes of all speak of these."""
        group = self._groups.pop(None, None)
        if group is None:
            return
        for _, held in group:
            held.step = held.step._replace(rows=known)
        same = self._groups.get(tuple(known), ())
        self._groups[tuple(known)] = deque(sorted([*same, *group], key=lambda item: item[0]))


def _named(rows: Rows) -> tuple[int, ...] | None:
    return None if rows is None else tuple(rows)


def _meet(one: Rows, other: Rows) -> bool:
    return one is None or other is None or not set(one).isdisjoint(other)
