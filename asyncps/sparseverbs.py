"""Sums of few elements of each rank, and SINGA's names for them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from typing import Any

import numpy as np

from asyncps.choosing import Choice
from asyncps.collectivecall import OWN
from asyncps.errors import ConfigError, DtypeMismatch, ShapeMismatch, TensorError
from asyncps.groupedverbs import GroupedVerbs, host_of
from asyncps.sparsecall import SparseCall, rows_of
from asyncps.tensor import dtypes
from asyncps.tensor.dtypes import Array
from asyncps_ext import select


class SparseVerbs(GroupedVerbs):
    """Verbs whose arrays are few rows of larger ones."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._joins = 0
        self._unnamed = count()  # sparse calls without a name since then, alike at all ranks

    def sparse_all_reduce(
        self, indices: Any, values: Any, size: int, op: str = "sum", name: str | None = None,
        async_op: bool = False,
    ) -> Any:
        """Sum rows over all ranks by their numbers; those that nobody has are 0.

        Rows travel with their numbers, or in full where that is fewer bytes; the result is the
        same to the bit (but for the sign of a zero).

        Args:
            indices: Numbers of rows, integers below `size`, in any order; rows of one number are
                added. How many there are may differ between ranks.
            values: As many rows: shape (n, ...), of a dtype of `all_reduce`; only read.
            size: Rows of the result, the same at all ranks; at most 2**32.
            op: "sum", or "mean" over the ranks that take part (not of integers).
            name, async_op: As in `all_reduce`. Calls without a name are paired by their order
                among sparse ones.

        Returns:
            A new array of shape (size, ...) and the dtype of values; or a handle.

        Raises:
            CollectiveMismatch: The ranks have called differently; all of them hear it, and go on.
            TensorError: Indices that are none or lie outside.
        """
        if op not in ("sum", "mean", "average"):
            raise ConfigError("unknown reduction of sparse arrays", expected="sum, mean",
                              got=repr(op))
        rows = host_of(values)
        kind = dtypes.by_name(dtypes.name_of(rows.dtype))
        if op != "sum" and not kind.is_float:
            raise DtypeMismatch("there is no mean of integers", expected="floats", got=kind.name)
        if isinstance(size, bool) or not isinstance(size, (int, np.integer)):
            raise TensorError("no number of rows", expected="an integer", got=repr(size))
        numbers, once = rows_of(host_of(indices), rows, int(size))
        call = self._sparse(numbers, once, int(size), name, mean=op != "sum",
                            finish=lambda out: out)
        return call.handle if async_op else call.handle.wait()

    def sparsification(self, x: Any, accumulation: Any, spars: float, topK: bool) -> None:
        """Begin the sum of the largest elements of an array, in place; `wait` brings it.

        Args:
            x: Floats; float32 travels. What nobody has sent is 0 afterwards.
            accumulation: Array of float32 of as many elements, what was not sent before: it is
                added first, and holds what was not sent afterwards. None drops that.
            spars: With topK the part of the elements that is sent, at least one; else the least
                magnitude of those that are sent.
            topK: See spars.

        Raises:
            ConfigError: spars is out of range.
            TensorError: By `wait`, at all ranks: the sum has a NaN or an infinity; nothing has
                changed.
        """
        self.fusedSparsification([x], accumulation, spars, topK)

    def fusedSparsification(
        self, xs: Sequence[Any], accumulation: Any, spars: float, topK: bool
    ) -> None:
        """Do as `sparsification` with several arrays side by side, as if they were one."""
        choice = Choice(spars, topK)
        places = self._places(xs)
        for place in places:
            name = dtypes.name_of(place.array.dtype)
            if not dtypes.by_name(name).is_float:
                raise DtypeMismatch("no sparsification of integers", expected="floats", got=name)
        x = np.concatenate([place.array.reshape(-1).astype(np.float32) for place in places])
        kept = None if accumulation is None else self._in_place(accumulation, None)
        if kept is not None:
            if kept.array.size != x.size or kept.array.dtype != np.float32:
                raise ShapeMismatch("an accumulation that does not fit",
                                    expected=f"{x.size} of float32",
                                    got=f"{kept.array.size} of {kept.array.dtype}")
            x += kept.array.reshape(-1)
        indices, values = choice.of(x)

        def finish(out: Array) -> None:
            if not np.isfinite(out).all():
                raise TensorError("the sum of sparse arrays is not finite: nothing has changed")
            if kept is not None:
                select.take(x, indices, values)
                kept.array[...] = x.reshape(kept.array.shape)
                kept.put()
            begin = 0
            for place in places:
                part = out[begin : begin + place.array.size]
                begin += part.size
                place.array[...] = part.reshape(place.array.shape)
                place.put()

        call = self._sparse(indices.astype(np.int64), values, x.size, None, mean=False,
                            finish=finish)
        self._begun.append(call.handle)

    def _sparse(
        self, indices: Array, values: Array, size: int, name: str | None, *, mean: bool,
        finish: Any,
    ) -> SparseCall:
        # What follows a call is made when that has ended, in an order that differs between ranks:
        # it is paired by a name.
        told = self._name(name) or f"{OWN}sparse/{self._joins}/{next(self._unnamed)}"
        call = SparseCall(self._fusing, told, self._fusing.rank, self.world_size, indices, values,
                          size, mean=mean, finish=finish)
        return call

    def _before_join(self) -> None:
        """Nothing follows a call behind a join; who joins earlier has made fewer calls."""
        self._fusing.wait_for_several(agreed=False)
        self._joins += 1
        self._unnamed = count()
