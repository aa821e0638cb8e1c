"""Recycled memory: buffers of one size are kept and used again.

A fresh large allocation costs a page fault every 4 KB, which is a third of a round on the machines
this was measured on. The last buffer given back is the first to go out, since it is still cached.
"""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]

# Smaller buffers of a worker are quicker made anew than found in a pool that threads share.
POOLED_BYTES = 64 << 10

# A cache line: vector loads never straddle two, and no two buffers share one.
ALIGNMENT = 64


def aligned_bytes(size: int) -> Bytes:
    """Return new memory of `size` bytes that begins at a cache line."""
    raw: npt.NDArray[Any] = np.empty(size + ALIGNMENT, np.uint8)
    start = -raw.ctypes.data % ALIGNMENT
    return raw[start : start + size]


class Pool:
    """Free buffers by size.

    Args:
        keep_bytes: What may lie unused; buffers beyond it go back to the allocator.
    """

    def __init__(self, keep_bytes: int) -> None:
        self.keep_bytes = keep_bytes
        self._free: dict[int, list[Bytes]] = {}
        self.free_bytes = 0

    def take(self, size: int) -> Bytes:
        """Return a buffer of exactly `size` bytes with any content; it is the caller's."""
        free = self._free.get(size)
        if free:
            self.free_bytes -= size
            return free.pop()
        return aligned_bytes(size)

    def give(self, buffer: Bytes) -> None:
        """Give a buffer back; nobody may look at it any more."""
        size = buffer.nbytes
        if self.free_bytes + size > self.keep_bytes:
            self._evict(size)
        if self.free_bytes + size <= self.keep_bytes:
            self._free.setdefault(size, []).append(buffer)
            self.free_bytes += size

    def keep_less(self, size: int) -> None:
        """Let `size` bytes less lie unused, for what needed them is gone."""
        self.keep_bytes -= size
        self._evict(0)

    def _evict(self, size: int) -> None:
        """Make room by dropping buffers of other sizes, oldest first."""
        for other in [s for s in self._free if s != size]:
            free = self._free[other]
            while free and self.free_bytes + size > self.keep_bytes:
                free.pop(0)
                self.free_bytes -= other
            if not free:
                del self._free[other]


class SharedPool(Pool):
    """A pool that several threads use."""

    def __init__(self, keep_bytes: int) -> None:
        super().__init__(keep_bytes)
        self._lock = threading.Lock()

    def take(self, size: int) -> Bytes:
        """As `Pool.take`."""
        with self._lock:
            return super().take(size)

    def give(self, buffer: Bytes) -> None:
        """As `Pool.give`."""
        with self._lock:
            super().give(buffer)
