"""Small collective calls that travel together, and the ends of all.

Calls that are made one after the other, alike but for their names and shapes, go as one group: when
somebody waits, when they fill a frame, when another kind of call comes, or when no more come.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from asyncps.collectivecall import CollectiveHandle, Ends
from asyncps.errors import AsyncPSError, ClosedError, ConfigError
from asyncps.roles.collecting import Collecting
from asyncps.roles.made import Group, Made, Op, Verb
from asyncps.roles.runtime import Runtime
from asyncps.tensor.dtypes import Array
from asyncps.tensor.pool import Bytes
from asyncps_ext.wire import gather_rows, scatter_rows

# What travels with the word that it is called, to all others together: below it a second trip costs
# more than the bytes that a share would save. Larger arrays travel in shares.
AT_ONCE_BYTES = 2 << 20

# Small calls wait so long for more of them to travel with, unless somebody waits for one.
_FUSION_S = 0.005

# Of calls that others have not made, the arrays that were sent all the same. Beyond it arrays
# travel when all have called.
_MOST_AHEAD_BYTES = 24 << 20

_OPS = {"sum": Op.SUM, "mean": Op.MEAN, "average": Op.MEAN, "min": Op.MIN, "max": Op.MAX,
        "product": Op.PRODUCT}

Kind = tuple[int, int, str, int, float]  # verb, op, dtype, root, factor


class Ahead:
    """What travelled at once, of calls of all sets of ranks that have not ended. Any thread."""

    def __init__(self) -> None:
        self.bytes = 0
        self._lock = threading.Lock()

    def add(self, size: int) -> None:
        """So much more, or less."""
        with self._lock:
            self.bytes += size


class Fusing:
    """The calls of one rank that have not ended. Any thread.

    Args:
        collecting: Makes them, on the loop.
        runtime: The loop.
        rank: This one, of all.
        world: How many ranks take part.
        number: Of the set of ranks.
        ahead: Of all sets.
    """

    def __init__(
        self, collecting: Collecting, runtime: Runtime, rank: int, world: int, number: int = 0,
        ahead: Ahead | None = None,
    ) -> None:
        self.number = number
        self.ahead = ahead or Ahead()
        self._collecting = collecting
        self._runtime = runtime
        self.rank = rank
        self._ends = Ends()
        # Of one thread twice: where the loop is over, a call ends while it is made.
        self._lock = threading.RLock()
        self._kind: Kind = (0, 0, "", 0, 1.0)
        self._pending: list[CollectiveHandle] = []  # small calls, not made yet
        self._pending_bytes = 0
        self._names: set[str] = set()  # under way
        # Calls that are made of several, and whether all ranks have made them.
        self._several: dict[CollectiveHandle, bool] = {}
        self._most_ahead_bytes = _MOST_AHEAD_BYTES
        self._at_once_bytes = AT_ONCE_BYTES // max(1, world - 1)
        self.closed = False
        self._is_closing = False

    def post(
        self, kind: Kind, handle: CollectiveHandle, splits: list[int],
        parts: Sequence[tuple[int, ...]] = (),
    ) -> None:
        """Make a call, or let it wait for others to travel with.

        Args:
            kind, handle, splits: The call.
            parts: The shapes of what lies in its array, if it is several; it travels alone then.
        """
        size = handle.array.nbytes
        with self._lock:
            self.check_open()
            if handle.name and handle.takes_name:
                self._take_name(handle.name)
            fits = size <= self._at_once_bytes and not splits
            if self._pending and (
                (kind is not self._kind and kind != self._kind) or not fits
                or parts or self._pending_bytes + size > self._at_once_bytes
            ):
                self._flush()
            if not fits or parts:
                self._make(kind, [handle], size, splits, parts, fits=fits)
                return
            self._kind = kind
            self._pending.append(handle)  # before the loop looks for it, which it may do at once
            self._pending_bytes += size
            if len(self._pending) == 1:
                try:
                    self._runtime.call(self._flush_later)
                except BaseException:
                    self._pending, self._pending_bytes = [], 0
                    raise

    def flush(self) -> None:
        """Make all small calls that wait for more of them."""
        if self._pending:
            with self._lock:
                self._flush()

    def flush_soon(self) -> None:
        """Do so when what goes on now on the loop is over."""
        self._runtime.call(self.flush)

    def _flush_later(self, seen: int = 0) -> None:
        """Make the small calls that wait, once no more of them come. On the loop."""
        count = len(self._pending)
        if count and count == seen:
            self.flush()
        elif count:
            asyncio.get_running_loop().call_later(_FUSION_S, self._flush_later, count)

    def _flush(self) -> None:
        handles, self._pending = self._pending, []
        size, self._pending_bytes = self._pending_bytes, 0
        if handles:
            self._make(self._kind, handles, size)

    def _make(
        self, kind: Kind, handles: list[CollectiveHandle], nbytes: int,
        splits: Sequence[int] = (), parts: Sequence[tuple[int, ...]] = (), *, fits: bool = True,
    ) -> None:
        """Make calls; their arrays, of `nbytes`, travel at once if they fit and may."""
        verb, op, dtype, root, factor = kind
        arrays = [handle.array for handle in handles]
        shapes = [array.shape for array in arrays]
        group = Group(int(verb), int(op), dtype, root, factor, [each.name for each in handles],
                      shapes, list(splits), list(parts))
        small = fits and self.ahead.bytes + nbytes <= self._most_ahead_bytes
        payload = None
        if small and (verb != Verb.BROADCAST or root == self.rank):
            payload = _gathered(arrays, shapes, self._collecting.room)
        elif small:
            payload = np.empty(0, np.uint8)
        size = 0 if payload is None else payload.nbytes
        self.ahead.add(size)
        left = len(handles)

        def ended(at: int, result: Any, error: AsyncPSError | None) -> None:
            nonlocal left
            left -= 1
            if not left and size:
                self.ahead.add(-size)
            self._end([handles[at]], result, error)

        def together(results: Any) -> None:
            self.ahead.add(-size)
            _scatter(results, arrays, shapes)
            self._end(handles, None, None)

        made = Made(group, arrays, payload, ended, together)
        self._runtime.call(lambda: self._collecting.call(self.number, made))

    def _end(
        self, handles: Sequence[CollectiveHandle], result: Any, error: AsyncPSError | None
    ) -> None:
        for handle in handles:
            if handle.name and handle.takes_name:
                self._names.discard(handle.name)
            handle.end(result, error)
        self._ends.told()

    # ---- calls that are made of several, one after the other ----

    def begin_several(self, handle: CollectiveHandle) -> None:
        """Begin a call that several `Step`s are made for, under its name; `ended` ends it."""
        with self._lock:
            self.check_open()
            if handle.name:
                self._take_name(handle.name)
            self._several[handle] = False

    def agreed(self, handle: CollectiveHandle) -> None:
        """All ranks have made such a call."""
        with self._lock:
            if handle in self._several:
                self._several[handle] = True

    def ended(self, handle: CollectiveHandle, result: Any, error: AsyncPSError | None) -> None:
        """Such a call has ended. Any thread."""
        with self._lock:
            self._several.pop(handle, None)
            self._names.discard(handle.name)
        handle.end(result, error)
        self._ends.told()

    def forget(self, handle: CollectiveHandle) -> None:
        """Such a call was not made after all."""
        with self._lock:
            self._several.pop(handle, None)
            self._names.discard(handle.name)

    def wait_for_several(self, *, agreed: bool) -> None:
        """Wait for the ends of such calls.

        Args:
            agreed: Only of those that all ranks have made.
        """
        with self._lock:
            handles = [handle for handle, is_agreed in self._several.items()
                       if is_agreed or not agreed]
        for handle in handles:
            self.wait(handle, None)

    def is_first_to_close(self) -> bool:
        """Tell whether nobody has asked this before. Any thread."""
        with self._lock:
            first, self._is_closing = not self._is_closing and not self.closed, True
            return first

    def close(self) -> None:
        """Send what waits, let the calls end that all ranks are at, and make no more."""
        self.flush()
        with contextlib.suppress(AsyncPSError):
            self.wait_for_several(agreed=True)
        self.closed = True

    def _take_name(self, name: str) -> None:
        if name in self._names:
            raise ConfigError("this name is under way", expected="another name, or a wait",
                              got=repr(name))
        self._names.add(name)

    def check_open(self) -> None:
        """Refuse what comes after the end."""
        if self.closed:
            raise ClosedError("the communicator is closed")

    def wait(self, handle: CollectiveHandle, timeout: float | None) -> None:
        """Wait for the end of a call; as `CollectiveHandle.wait`."""
        self._runtime.check_thread()
        self.flush()
        self._ends.wait(handle, timeout, self._whom)

    def _whom(self) -> str:
        async def ask() -> str:
            return self._collecting.whom()

        try:
            return self._runtime.run(ask)
        except AsyncPSError as error:
            return str(error)


def _gathered(
    arrays: Sequence[Array], shapes: Sequence[tuple[int, ...]], room: Callable[[int], Bytes]
) -> Bytes:
    out = room(sum(array.nbytes for array in arrays))
    if len(arrays) == 1:
        out[:] = arrays[0].reshape(-1).view(np.uint8)
    elif gather_rows(arrays, arrays[0].dtype, shapes, out) >= 0:
        np.concatenate([array.reshape(-1).view(np.uint8) for array in arrays], out=out)
    return out


def _scatter(results: Bytes, arrays: Sequence[Array], shapes: Sequence[tuple[int, ...]]) -> None:
    """Copy results into arrays; these are of one kind, but one may be bits where another is not."""
    if scatter_rows(results, arrays[0].dtype, shapes, arrays) < 0:
        return
    begin = 0
    for array in arrays:
        end = begin + array.nbytes
        array.reshape(-1).view(np.uint8)[:] = results[begin:end]
        begin = end


def op_of(op: object) -> Op:
    found = _OPS.get(op) if isinstance(op, str) else None
    if found is None:
        raise ConfigError("unknown reduction", expected=", ".join(_OPS), got=repr(op))
    return found


def factor_of(op: Op, prescale: object, postscale: object) -> float:
    """Return what a result is multiplied by.

    Raises:
        ConfigError: One is no number; or the first is not the same behind the reduction as before
            it: a product's counts once a rank, and a negative one makes a maximum of a minimum.
    """
    before, after = _number(prescale), _number(postscale)
    if (op == Op.PRODUCT and before != 1) or (op in (Op.MIN, Op.MAX) and not before >= 0):
        raise ConfigError(
            f"prescale of op {op.name.lower()}", got=before,
            expected="1, and a postscale" if op == Op.PRODUCT else "0 or more, or a postscale")
    return before * after


def _number(value: object) -> float:
    try:
        return float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        raise ConfigError("no factor", expected="a number", got=f"{value!r:.50}") from None
