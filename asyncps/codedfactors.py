"""powersgd between ranks: the factors are summed, one after the other, as any array is.

What a call keeps for the next, the second factor, is what its sum came to. So the calls of one key
go one after the other, and all ranks begin each with the same factor.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from asyncps.codedframe import OK
from asyncps.codedsum import CodedSum, What, codes_of
from asyncps.errors import AsyncPSError
from asyncps.fusing import Kind
from asyncps.roles import seeding
from asyncps.roles.made import Op, Verb
from asyncps.tensor import summedfactors as factors
from asyncps.tensor.codecs import Floats
from asyncps.tensor.codecs.matrices import sides
from asyncps.tensor.codecs.powersgd import PowerSGD

log = logging.getLogger(__name__)

_SUM: Kind = (Verb.ALL_REDUCE, Op.SUM, "float32", 0, 1.0)
_WHOLE = 3  # beside OK, REFUSED and SKIPPED: this rank's matrix is not to be factored


class Factored(CodedSum):
    """One sum of matrices.

    Args:
        what: The sum.
        over: Called when the key's next call may begin.
    """

    def __init__(self, what: What, over: Callable[[], None]) -> None:
        super().__init__(what)
        assert isinstance(self.codec, PowerSGD)
        self._over = over
        self._m, self._n = sides(what.info.shape)
        self._whole: Floats | None = None  # this rank's matrix, and what of it was not sent
        self._took_s = 0.0

    def begin(self) -> None:
        """As `CodedSum.begin`; the key's call before has ended."""
        what, codec = self.what, self.codec
        assert isinstance(codec, PowerSGD)
        began = time.perf_counter()
        g = self.gradient()
        state, _ = self.look(g)
        sent = np.zeros(self._m * codec.rank + what.world, np.float32)
        if state == OK:
            whole, before, push = what.coder.begin_sum(
                codec, g, what.info.shape, feedback=what.rule.feedback)
            self._whole, self._before = whole, before.reshape(self._n, codec.rank)
            self.undo = self._undo
            if push <= codec.start or not factors.is_factored(whole, what.info.shape):
                state = _WHOLE
            else:
                _, (seed,) = seeding.of_chunks(codec, what.coder, what.job, what.info.key, [0])
                sent[: -what.world] = factors.first(whole, self._before, seed, push).reshape(-1)
        sent[what.rank - what.world] = 1 + state
        self._took_s += time.perf_counter() - began
        self.post(_SUM, sent, lambda _, error: self._first_came(sent, error))

    def begin_later(self) -> None:
        """Do so beside the loop: the call before has ended. Any thread."""
        self._aside(self._begin_and_go)

    def _begin_and_go(self) -> None:
        self.begin()
        self.what.fusing.flush_soon()

    def _undo(self) -> None:
        assert self._whole is not None
        self.what.coder.undo_sum(self._whole, self.gradient(), feedback=self.what.rule.feedback)

    def _first_came(self, sent: Floats, error: AsyncPSError | None) -> None:
        """The products are summed. On the loop."""
        self._codes = codes_of(sent[-self.what.world :])
        try:
            if error is not None:
                raise error
            if not self.check(self._codes, {}):
                return self.end(None, None)
        except AsyncPSError as failed:
            return self.end(None, failed)
        self._aside(lambda: self._second(sent[: -self.what.world].reshape(self._m, -1)))

    def _second(self, product: Floats) -> None:
        """Have the other factors summed, or the arrays."""
        assert self._whole is not None
        if _WHOLE in self._codes.values():
            whole = self._whole.copy()
            self.post(_SUM, whole, lambda _, error: self._whole_came(whole, error))
        else:
            began = time.perf_counter()
            self._p = factors.orthonormal(product)
            self._own = factors.second(self._whole, self._p)
            q = self._own.copy()
            self._took_s += time.perf_counter() - began
            self.post(_SUM, q, lambda _, error: self._second_came(q, error))
        self.what.fusing.flush_soon()

    def _whole_came(self, whole: Floats, error: AsyncPSError | None) -> None:
        if error is None:
            self._note(None, None, whole.nbytes)
        self.end(whole, error)

    def _second_came(self, q: Floats, error: AsyncPSError | None) -> None:
        if error is not None:
            return self.end(None, error)
        self._aside(lambda: self._third(q))

    def _third(self, q: Floats) -> None:
        """Keep what was not sent, and what the next call begins with."""
        assert self._whole is not None
        began = time.perf_counter()
        left = None
        if self.what.rule.feedback:
            left = self._whole
            factors.leave(left, self._p, self._own)
        # A column that is zero would teach nothing: the one before stays.
        after = np.where(q.any(axis=0), q, self._before).reshape(-1)
        self._took_s += time.perf_counter() - began
        self._note(left, after, self._p.nbytes + q.nbytes)
        self.end(q, None)

    def _note(self, left: Floats | None, after: Floats | None, sent: int) -> None:
        self.undo = None
        self.what.coder.end_sum(left, after, self.what.info.nbytes, sent, self._took_s)

    def _aside(self, work: Callable[[], None]) -> None:
        """Compute beside the loop; what fails there ends the call."""

        def guarded() -> None:
            try:
                work()
            except AsyncPSError as error:
                self.end(None, error)
            except Exception as error:
                log.exception("the sum %r failed", self.what.name)
                self.end(None, AsyncPSError(f"the sum {self.what.name!r} failed: {error!r}"))

        threading.Thread(target=guarded, name="asyncps factors", daemon=True).start()

    def end(self, came: Any, error: AsyncPSError | None) -> None:
        """As `CodedSum.end`."""
        super().end(came, error)
        self._over()

    def result(self, out: Floats, came: Floats | None) -> int:
        """As `CodedSum.result`."""
        if came is None:
            out[:] = 0
            return 0
        if came.ndim == 1:
            out[:] = came
        else:
            factors.product(out, self._p, came)
        return len(self._codes)
