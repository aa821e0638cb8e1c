"""Where keys live: the routing table of one store, kept by the scheduler.

Large keys are cut into chunks that are spread over the servers by bytes; small keys of one dtype
share slabs. A key never moves. How far the servers' bytes may lie apart: a chunk and a new slab
always go to the server with the least bytes, and only the open slab of each dtype grows where it
stands, so heaviest - lightest <= largest chunk + (dtypes among the small keys) * slab_bytes; with
chunks alone that is one chunk.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice

from asyncps.errors import (
    AsyncPSError,
    ClusterError,
    ConfigError,
    Disagreement,
    OptimizerError,
    TensorError,
    UnknownKey,
)
from asyncps.protocol.messages import Key, KeySpec, Piece, Placement
from asyncps.state import tables
from asyncps.state.keys import check_key, unknown_key
from asyncps.state.keyspecs import MAX_KEYS, check_same, check_specs, size_of

EDGE_ELEMENTS = 4096  # packed codes of 1 and 2 bits join to the bytes of the whole at these edges
SLAB_ROWS = 4096  # a table of rows must fit well into one frame
MAX_UNITS = 1 << 21  # chunks and slabs of a store: guards memory; 2 TiB in chunks of 1 MiB
MAX_WHOLE_BYTES = 1 << 30  # of a key that is not cut: it travels as one payload
OVERLAP = 4  # chunks of a key, so that sending, adding and receiving overlap, while each is at
#              least about half of chunk_bytes: below, the work for each frame costs more (measured)
PAGE_PIECES = 1 << 15  # keys and chunks that one answer lists
MAX_AWAITED = 8 * 10**6  # (waiter, key) pairs of a store: the same

Waiter = tuple[int, int]  # rank of the worker, number of its request


@dataclass(slots=True)
class _Slab:
    server: int
    unit: int
    size: int = 0
    rows: int = 0


@dataclass(slots=True)
class _Wait:
    specs: dict[Key, KeySpec]
    missing: set[Key]


class Routing:
    """The routing table of one store.

    Args:
        num_servers: Servers are numbered from 0.
        chunk_bytes: Size of the chunks of a large key; those of a smaller one are down to half of
            it. Rounded down to a multiple of 4096 elements (at least one).
        slab_bytes: The most that a slab holds.
        small_key_bytes: Keys up to this size live in slabs (if they fit into one).
    """

    def __init__(
        self, num_servers: int, chunk_bytes: int, slab_bytes: int, small_key_bytes: int
    ) -> None:
        self.version = 0
        self._chunk_bytes = chunk_bytes
        self._slab_bytes = slab_bytes
        self._small_bytes = min(small_key_bytes, slab_bytes)
        self._loads = [0] * num_servers
        # One entry a server, at most its load: loads only grow, so a stale entry sorts too early
        # and is corrected when it comes up.
        self._least = [(0, server) for server in range(num_servers)]
        self._next_unit = 0
        self._slabs: dict[str, _Slab] = {}
        self._table: dict[Key, Placement] = {}
        self._ready: set[Key] = set()
        self._waits: dict[Waiter, _Wait] = {}
        self._waiting_for: dict[Key, set[Waiter]] = {}
        self._awaited = 0
        self._closed: ClusterError | None = None  # why no key becomes ready any more
        self._whole = False

    @property
    def loads(self) -> tuple[int, ...]:
        """Bytes of each server."""
        return tuple(self._loads)

    @property
    def waiting(self) -> int:
        """How many calls wait until rank 0 has initialised their keys."""
        return len(self._waits)

    def __len__(self) -> int:
        """Return how many keys there are."""
        return len(self._table)

    def keep_whole(self) -> None:
        """From now on cut no key: the optimizer needs all of a key in one place.

        Raises:
            OptimizerError: A key has been cut already.
        """
        for key, placed in self._table.items():
            if placed.spec.rows is not None:
                raise tables.not_whole(key)
            if len(placed.pieces) > 1:
                raise OptimizerError(
                    "the optimizer needs whole keys, and this one was cut into chunks: set the "
                    "optimizer before the key is made, or chunk_bytes to its size", key=key,
                    expected="1 chunk",
                    got=f"{len(placed.pieces)} of up to {self._chunk_bytes} bytes")
        self._whole = True

    def declare(self, keys: list[KeySpec]) -> list[Placement]:
        """Place the keys that are new; all of them or, when one is refused, none.

        Returns:
            Where the keys live, in the order given; `fresh` until they are ready.

        Raises:
            TensorError: A spec that cannot be right, or differs from the existing key's.
            ConfigError: The table would grow too large.
        """
        check_specs(keys)
        new = []
        for spec in keys:
            placed = self._table.get(spec.key)
            if placed is None:
                new.append(spec)
            else:
                check_same(placed.spec, spec)
        self._check_room(new)
        for spec in new:
            self._table[spec.key] = Placement(spec, self._place(spec), False)
        if new:
            self.version += 1
        return [self._as_fresh(spec.key) for spec in keys]

    def mismatched(self, keys: Iterable[Key]) -> list[tuple[Waiter, AsyncPSError]]:
        """Take out the waiters that described one of these declared keys otherwise."""
        refused: list[tuple[Waiter, AsyncPSError]] = []
        for key in keys:
            for waiter in sorted(self._waiting_for.get(key, ())):
                try:
                    check_same(self._table[key].spec, self._waits[waiter].specs[key])
                except (TensorError, Disagreement) as error:
                    self._forget(waiter)
                    refused.append((waiter, error))
        return refused

    def wait(self, waiter: Waiter, keys: list[KeySpec]) -> list[Placement] | None:
        """Wait until all keys are ready; None: `ready` or `mismatched` will name the waiter.

        Raises:
            TensorError: A spec that cannot be right, or differs from a declared key's.
            ClusterError: Nobody is left who could make the keys ready: WorkerLost, if so.
        """
        check_specs(keys)
        for spec in keys:
            placed = self._table.get(spec.key)
            if placed is not None:
                check_same(placed.spec, spec)
        missing = {spec.key for spec in keys if spec.key not in self._ready}
        if not missing:
            return [self._table[spec.key] for spec in keys]
        if self._closed is not None:
            raise type(self._closed)(f"{self._closed.message}, before it initialised this key",
                                     rank=0, key=next(s.key for s in keys if s.key in missing))
        if self._awaited + len(missing) > MAX_AWAITED:
            raise ConfigError("too many keys are waited for", expected=f"at most {MAX_AWAITED}")
        self._waits[waiter] = _Wait({spec.key: spec for spec in keys}, missing)
        self._awaited += len(missing)
        for key in missing:
            self._waiting_for.setdefault(key, set()).add(waiter)
        return None

    def ready(self, keys: list[Key]) -> list[tuple[Waiter, list[Placement]]]:
        """The servers hold these keys: return the waiters that need wait no longer.

        Raises:
            UnknownKey: A key that was not declared; then none of them is marked.
        """
        for key in keys:
            if key not in self._table:
                check_key(key)
                raise UnknownKey("key was never declared", key=key)
        released = []
        for key in keys:
            self._ready.add(key)
            for waiter in sorted(self._waiting_for.pop(key, ())):
                wait = self._waits[waiter]
                wait.missing.discard(key)
                self._awaited -= 1
                if not wait.missing:
                    del self._waits[waiter]
                    released.append((waiter, [self._table[name] for name in wait.specs]))
        return released

    def lookup(self, keys: list[Key]) -> list[Placement]:
        """Return where keys live, in the order given.

        Raises:
            UnknownKey: A key that is not ready.
        """
        for key in keys:
            if key not in self._ready:
                check_key(key)
                raise unknown_key(key, self._ready)
        return [self._table[key] for key in keys]

    def page(self, start: int) -> list[Placement]:
        """Return where some keys live, from the `start`-th on; none at the end.

        Those that are not ready are `fresh`.
        """
        found: list[Placement] = []
        pieces = 0
        for key in islice(self._table, max(0, start), None):
            found.append(self._as_fresh(key))
            pieces += 1 + len(found[-1].pieces)
            if pieces > PAGE_PIECES:
                break
        return found

    def forget(self, rank: int) -> None:
        """Drop the waits of a worker."""
        for waiter in [waiter for waiter in self._waits if waiter[0] == rank]:
            self._forget(waiter)

    def close(self, why: ClusterError) -> list[Waiter]:
        """Rank 0 is gone: no key becomes ready any more. Returns whom that leaves waiting."""
        self._closed = why
        waiters = sorted(self._waits)
        for waiter in waiters:
            self._forget(waiter)
        return waiters

    def _forget(self, waiter: Waiter) -> None:
        wait = self._waits.pop(waiter)
        self._awaited -= len(wait.missing)
        for key in wait.missing:
            others = self._waiting_for[key]
            others.discard(waiter)
            if not others:
                del self._waiting_for[key]

    def _as_fresh(self, key: Key) -> Placement:
        placed = self._table[key]
        return placed if key in self._ready else Placement(placed.spec, placed.pieces, True)

    def _chunk_step(self, spec: KeySpec) -> int:
        """Return the size of a key's chunks, the last one aside."""
        if self._whole:
            return max(size_of(spec), 1)
        edge = EDGE_ELEMENTS * spec.itemsize
        largest = max(1, self._chunk_bytes // edge)  # in edges
        size, half = size_of(spec), max(1, largest // 2)
        count = max(1, min(OVERLAP, size // (half * edge)))
        return min(largest, -(-size // (count * edge))) * edge  # a last one is seldom a crumb

    def _check_room(self, new: list[KeySpec]) -> None:
        if len(self._table) + len(new) > MAX_KEYS:
            raise ConfigError("too many keys in this store", expected=f"at most {MAX_KEYS}",
                              got=len(self._table) + len(new))
        units = self._next_unit
        for spec in new:
            size = size_of(spec)
            if spec.rows is not None:
                if self._whole:
                    raise tables.not_whole(spec.key)
                units += len(self._loads)
                continue
            if self._whole and size > MAX_WHOLE_BYTES:
                raise ConfigError("this key is too large for an optimizer that needs whole keys",
                                  key=spec.key, expected=f"at most {MAX_WHOLE_BYTES} bytes",
                                  got=size)
            # A small key opens at most one slab.
            units += 1 if size <= self._small_bytes else -(-size // self._chunk_step(spec))
            if units > MAX_UNITS:
                raise ConfigError(
                    "too many chunks in this store: make chunk_bytes larger", key=spec.key,
                    expected=f"at most {MAX_UNITS}", got=units)

    def _place(self, spec: KeySpec) -> list[Piece]:
        if spec.rows is not None:
            first, self._next_unit = self._next_unit, self._next_unit + len(self._loads)
            return tables.place(spec, self._loads, first)
        size = size_of(spec)
        if size == 0:
            return []
        if size <= self._small_bytes:
            return [self._place_in_slab(spec.dtype, size)]
        step = self._chunk_step(spec)
        pieces = []
        for start in range(0, size, step):
            server, unit = self._open_unit()
            length = min(step, size - start)
            self._loads[server] += length
            pieces.append(Piece(server, unit, start, length, -1, 0))
        return pieces

    def _place_in_slab(self, dtype: str, size: int) -> Piece:
        slab = self._slabs.get(dtype)
        if slab is None or slab.rows == SLAB_ROWS or slab.size + size > self._slab_bytes:
            slab = self._slabs[dtype] = _Slab(*self._open_unit())
        piece = Piece(slab.server, slab.unit, 0, size, slab.rows, slab.size)
        slab.rows += 1
        slab.size += size
        self._loads[slab.server] += size
        return piece

    def _open_unit(self) -> tuple[int, int]:
        """Return the server with the least bytes (of those the lowest) and a new unit."""
        while True:
            load, server = self._least[0]
            if load == self._loads[server]:
                break
            heapq.heapreplace(self._least, (self._loads[server], server))
        unit = self._next_unit
        self._next_unit += 1
        return server, unit
