"""The end of a key's compression: what it had not sent goes with its next push, which is as stored.

After that push the key keeps nothing any more, and travels as if it had never been compressed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from asyncps.roles.coding import Coding
from asyncps.tensor import dtypes
from asyncps.tensor.codecs import Take
from asyncps.tensor.feedback import KeyCoder
from asyncps.tensor.pool import Bytes
from asyncps.tensor.rowfeedback import AS_STORED

if TYPE_CHECKING:
    from asyncps.roles.plan import KeyInfo, Plan


class Last:
    """The push of a dense key that takes along what was kept of it.

    Args:
        info: The key.
        coder: What it has kept.
    """

    def __init__(self, info: KeyInfo, coder: KeyCoder) -> None:
        self.nbytes = info.nbytes
        self._dtype = dtypes.by_name(info.spec.dtype)
        self._coder = coder

    def write(self, room: Bytes, value: Bytes, coding: Coding) -> None:
        """Write what is sent: the value, and what was kept, rounded as the key stores it.

        Args:
            room: Takes it; may be the value's own memory.
            value: Bytes of the value; only read.
            coding: Takes note how what was kept is given back.
        """
        self._coder.settle()
        kept = self._coder.take_out()
        if kept is None:  # another thread has sent it
            np.copyto(room, value)
            return
        coding.undo.append(partial(self._coder.put_in, kept))
        g = value.view(np.float32) if self._dtype.widen is None else np.empty(
            self._coder.size, np.float32)
        if self._dtype.widen is not None:
            self._dtype.widen(g, value.view(np.uint16))
        AS_STORED[self._dtype.name].write(room, kept.copy(), g)


class Place(NamedTuple):
    """Where in a call such a key is.

    Attributes:
        is_slab: Among its slabs; else among its large keys.
        place: Which of these.
        begin: The first byte in the slab.
        last: It.
    """

    is_slab: bool
    place: int
    begin: int
    last: Last


def lasts_of(plan: Plan, last_of: Callable[[KeyInfo], Last | None]) -> list[Place]:
    """Return where in a call there are such keys."""
    found: list[Place] = []
    for place, ((_, info), rule) in enumerate(zip(plan.large, plan.rules, strict=True)):
        if rule is None and (last := last_of(info)) is not None:
            found.append(Place(False, place, 0, last))
    for place, slab in enumerate(plan.slabs):
        begin = 0
        for index in slab.indices if slab.rule is None else ():
            info = plan.infos[index]
            if (last := last_of(info)) is not None:
                found.append(Place(True, place, begin, last))
            begin += info.nbytes
    return found


def send_lasts(
    lasts: Sequence[Place], large: list[Any], slabs: Sequence[Any], take: Take, coding: Coding
) -> None:
    """Let them be sent with what was kept of them.

    Args:
        lasts: They.
        large: Byte views of the large keys' values, the caller's: others take their place.
        slabs: Gathered rows, which are ours.
        take: Gives memory that stays until the call has ended.
        coding: Takes note how what was kept is given back.
    """
    for is_slab, place, begin, last in lasts:
        if is_slab:
            row = slabs[place][begin : begin + last.nbytes]
            last.write(row, row, coding)
            continue
        room = take(last.nbytes)
        last.write(room, np.frombuffer(large[place], np.uint8), coding)
        large[place] = room.data
        coding.sent_bytes += last.nbytes
