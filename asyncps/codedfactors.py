"""powersgd between ranks: the factors are summed, one after the other, as any array is.

What a call keeps for the next, the second factor, is what its sum came to: the calls of one key go
one after the other.
"""

from __future__ import annotations

import time

import numpy as np

from asyncps.codedframe import State
from asyncps.codedsum import CodedSum, What, log
from asyncps.fusing import Kind
from asyncps.roles import seeding
from asyncps.roles.made import Op, Verb
from asyncps.tensor import summedfactors as factors
from asyncps.tensor.codecs import Floats
from asyncps.tensor.codecs.matrices import sides
from asyncps.tensor.codecs.powersgd import PowerSGD
from asyncps.tensor.feedback import SumPush

_SUM: Kind = (Verb.ALL_REDUCE, Op.SUM, "float32", 0, 1.0)


class Factored(CodedSum):
    """One sum of matrices. Behind each array travels a number: how many ranks have failed."""

    codec: PowerSGD

    def __init__(self, what: What) -> None:
        super().__init__(what)
        self._m, self._n = sides(what.info.shape)
        self._push: SumPush | None = None  # until what is kept of it is known
        self._took_s = 0.0

    def look(self, g: Floats) -> tuple[State, str]:
        """As `CodedSum.look`; the key's call before has ended."""
        state, text = super().look(g)
        coder = self.what.coder
        if state == State.THERE and (
            coder.pushes_of(self.codec) < self.codec.start
            or not factors.are_factored([g, coder.residual], self.what.info.shape)
        ):
            state = State.WHOLE
        return state, text

    def move(self) -> None:
        """As `CodedSum.move`."""
        if self.is_whole:
            whole = self.tried(self._whole, lambda: self._failed(self.size))
            self.post(_SUM, whole, lambda _: self._whole_came(whole))
        else:
            rank = self.codec.rank
            product = self.tried(self._first, lambda: self._failed(self._m * rank))
            self.post(_SUM, product, lambda _: self._first_came(product))

    def _begin(self) -> SumPush:
        what = self.what
        what.rule.follow(what.coder, what.rate)
        self._push = what.coder.begin_sum(self.codec, self.gradient(), what.info.shape,
                                          feedback=what.rule.feedback)
        return self._push

    def _whole(self) -> Floats:
        return np.append(self._begin().whole, np.float32(0))

    def _first(self) -> Floats:
        what, began = self.what, time.perf_counter()
        push = self._begin()
        _, (seed,) = seeding.of_chunks(self.codec, 0, what.job, what.info.key, [0])
        self._before = push.extra.reshape(self._n, self.codec.rank)
        product = factors.first(push.whole, self._before, seed, push.number)
        self._took_s += time.perf_counter() - began
        return np.append(product, np.float32(0))

    @staticmethod
    def _failed(size: int) -> Floats:
        return np.append(np.zeros(size, np.float32), np.float32(1))

    def _whole_came(self, whole: Floats) -> None:
        self.check_all(whole[-1] != 0)
        self._keep(None, None, whole.nbytes)
        self.end(whole[:-1], None)

    def _first_came(self, product: Floats) -> None:
        self.check_all(product[-1] != 0)
        self.aside(lambda: self._go_on(product[:-1].reshape(self._m, -1)))

    def _go_on(self, product: Floats) -> None:
        """Have the other factors summed."""
        q = self.tried(lambda: self._second(product),
                       lambda: self._failed(self._n * product.shape[1]))
        self.post(_SUM, q, lambda _: self._second_came(q))

    def _second(self, product: Floats) -> Floats:
        began = time.perf_counter()
        assert self._push is not None
        self._p = factors.orthonormal(product)
        self._own = factors.second(self._push.whole, self._p)
        self._took_s += time.perf_counter() - began
        return np.append(self._own, np.float32(0))

    def _second_came(self, q: Floats) -> None:
        self.check_all(q[-1] != 0)
        self.aside(lambda: self._end_well(q[:-1].reshape(self._n, -1)))

    def _end_well(self, q: Floats) -> None:
        """Keep what was not sent, and what the next call begins with: the sum counts for all."""
        assert self._push is not None
        began = time.perf_counter()
        left, after = self._push.whole if self.what.rule.feedback else None, None
        try:
            if left is not None:
                factors.leave(left, self._p, self._own)
            # A column that is zero would teach nothing: the one before stays.
            after = np.where(q.any(axis=0), q, self._before).reshape(-1)
        except Exception:  # noqa: BLE001 - it is logged, and the sum is well
            log.exception("what the sum %r has not sent is lost", self.handle.name)
            left = None
        self._took_s += time.perf_counter() - began
        self._keep(left, after, self._p.nbytes + q.nbytes)
        self.end(q, None)

    def _keep(self, left: Floats | None, after: Floats | None, sent: int) -> None:
        self._push = None
        self.what.coder.end_sum(self.codec, left, after, self.what.info.nbytes, sent, self._took_s)

    def put_back(self) -> None:
        """Let what was kept before be kept again."""
        push, self._push = self._push, None
        if push is not None:
            self.what.coder.undo_sum(self.codec, push)

    def result(self, out: Floats, came: Floats) -> None:
        """As `CodedSum.result`."""
        if came.ndim == 1:
            out[:] = came
        else:
            factors.product(out, self._p, came)
