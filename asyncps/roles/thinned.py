"""Versions of a value, and the same in half their bytes: float32 that travels as f16 or bf16.

Who asks says so in the flags of its frame; a server knows no rules. A version is encoded when it is
first asked for so, once for all who ask, and keeps that as long as it is kept itself.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import numpy as np

from asyncps.errors import AsyncPSError, RemoteProtocolError
from asyncps.protocol.frames import PULL, PUSHPULL, Flag, Header
from asyncps.tensor.codecs import KINDS, Elementwise
from asyncps.tensor.pool import Bytes, Pool

if TYPE_CHECKING:
    from asyncps.roles.holdings import Holdings, Target
    from asyncps.roles.unit import Unit, Waiter

log = logging.getLogger(__name__)

HALVES = Flag.F16 | Flag.BF16


def half_codec(flag: int) -> Elementwise:
    """Return what one of the two flags stands for."""
    made = KINDS["f16" if flag == Flag.F16 else "bf16"].made({})
    assert isinstance(made, Elementwise)
    return made


class Version:
    """A value that was, or is, current."""

    __slots__ = ("buffer", "clock", "owed", "thin", "view")

    def __init__(self, buffer: Bytes, clock: int) -> None:
        self.buffer = buffer
        self.view = buffer.data
        self.clock = clock
        self.owed = 0  # ranks that may ask for it again, one bit each
        self.thin: dict[int, Bytes] | None = None  # itself in half its bytes, by the flag


class Half:
    """The wish for an answer of half the bytes.

    Attributes:
        flag: Of the request and of its answer.
    """

    __slots__ = ("_codec", "flag")

    def __init__(self, flag: int) -> None:
        self.flag = flag
        self._codec = half_codec(flag)

    def may_go(self, _connection: object) -> bool:
        """Tell whether its answer may go over a connection: any."""
        return True

    def give(self, unit: Unit, version: Version, waiter: Waiter, position: int) -> None:
        """Let an answer's part be a version in half its bytes."""
        found = version.thin
        if found is None:
            found = version.thin = {}
        payload = found.get(self.flag)
        if payload is None:
            values = version.buffer.view(np.float32)
            payload = unit.pool.take(2 * values.size)
            # To the nearest; what would be infinite is the largest that is not.
            self._codec.write(payload, None, values)
            found[self.flag] = payload
        version.owed |= 1 << waiter.rank
        waiter.parts[position] = payload.data


_HALVES = {int(flag): Half(flag) for flag in (Flag.F16, Flag.BF16)}


def wished(keeper: Holdings, header: Header, target: Target) -> Half | None:
    """Return how the answer of a frame is to be; None: as the values are.

    Raises:
        RemoteProtocolError: That cannot be.
    """
    flag = header.flags & HALVES
    if not flag:
        return None
    unit = target[0]
    if header.kind not in (PULL, PUSHPULL) or flag not in _HALVES:
        raise RemoteProtocolError("an answer in fewer bytes where none belongs",
                                  got=(header.kind, header.flags))
    if not unit.is_dense or unit.dtype.name != "float32":
        raise RemoteProtocolError("an answer in half the bytes of other values",
                                  expected="a dense unit of float32", got=unit.dtype.name)
    keeper.keep_beside(header.unit, unit.size // 2)
    return _HALVES[flag]


def forget(version: Version, pool: Pool) -> None:
    """Give back what a version was encoded as: its last answer has arrived, or it changes."""
    found, version.thin = version.thin, None
    for payload in (found or {}).values():
        pool.give(payload)


def forget_base(unit: Unit) -> None:
    """A value came from elsewhere: who is sent changes only is sent the whole of it next."""
    if unit.base is not None:
        unit.base.forget()


def grant(unit: Unit, version: Version, waiter: Waiter, position: int) -> None:
    """Give a waiter its part in the form that it wishes."""
    try:
        waiter.wish.give(unit, version, waiter, position)
    except Exception as failed:  # noqa: BLE001 - such as no memory: who asked must hear of it
        waiter.error = internal(failed)


def internal(error: BaseException) -> AsyncPSError:
    """Log what should not have happened, and return what its callers are told."""
    log.error("a round failed", exc_info=error)
    return AsyncPSError(f"the server failed in this round: {error!r}")
