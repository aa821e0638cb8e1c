"""Memory between two pages that nobody may touch: an access beyond it ends the process.

Guard bytes tell of what was written outside, and only afterwards; a fence tells of reads too, of
machine code that no sanitizer has seen, and at the instruction. But it lies at one end of an array
at a time: arrays end at the page behind (`back`) or begin at the page before (`front`).
"""

from __future__ import annotations

import ctypes
import mmap
from typing import Any

import numpy as np
import numpy.typing as npt

_PROT_NONE = 0


class Fence:
    """Room for one array.

    Args:
        size: Bytes of the largest.
    """

    def __init__(self, size: int) -> None:
        page = mmap.PAGESIZE
        self._room = -(-size // page) * page
        self._map = mmap.mmap(-1, self._room + 2 * page)
        raw = np.frombuffer(self._map, np.uint8)
        libc = ctypes.CDLL(None, use_errno=True)
        for begin in (0, page + self._room):
            address = ctypes.c_void_p(raw.ctypes.data + begin)
            if libc.mprotect(address, ctypes.c_size_t(page), _PROT_NONE):
                raise OSError(ctypes.get_errno(), "mprotect")
        self._inner = raw[page : page + self._room]

    def back(self, content: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return a copy whose last byte is the last before a page that nobody may touch."""
        return self._placed(content, self._room - content.nbytes)

    def front(self, content: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return a copy whose first byte is the first behind such a page."""
        return self._placed(content, 0)

    def _placed(self, content: npt.NDArray[Any], begin: int) -> npt.NDArray[Any]:
        self._inner[:] = 0xA5
        place = self._inner[begin : begin + content.nbytes].view(content.dtype)
        place[:] = content
        return place

    def holds(self, array: npt.NDArray[Any]) -> bool:
        """Tell whether an array lies here."""
        return 0 <= array.ctypes.data - self._inner.ctypes.data < self._room

    def is_whole(self, array: npt.NDArray[Any]) -> bool:
        """Tell whether nothing beside the array, which lies here, was written."""
        begin = array.ctypes.data - self._inner.ctypes.data
        outside = np.concatenate([self._inner[:begin], self._inner[begin + array.nbytes :]])
        return bool((outside == 0xA5).all())
