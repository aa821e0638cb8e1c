"""SINGA's verbs on single tensors: sums over all workers, in place, between two calls of `wait`."""

from __future__ import annotations

from typing import Any

import numpy as np

from asyncps.distopt.buckets import cut
from asyncps.distopt.core import DistCore, check_tensors
from asyncps.distopt.parameters import flat_host
from asyncps.distopt.sparse import Choice, gather, gathered, summed
from asyncps.distopt.sums import Packed, divided
from asyncps.errors import ShapeMismatch, TensorError
from asyncps.tensor import dtypes
from asyncps.tensor.arrays import from_host, host_memory
from asyncps.tensor.dtypes import Array
from asyncps_ext import select

__all__ = ["TensorVerbs"]


class Place:
    """An array of the user's, and its values on the host.

    Attributes:
        flat: Its values, in its own memory where that can be; written for `put`.
    """

    def __init__(self, tensor: Any) -> None:
        self._tensor = tensor
        own = host_memory(tensor)
        if own is not None:
            self._host: Array | None = None
            self.flat = flat_host(own)
            return
        self.flat = flat_host(tensor).copy()
        self._host = self.flat.reshape(np.shape(tensor))

    def wide(self) -> Array:
        """Return a copy of the values as floats that can be computed with."""
        return dtypes.by_name(dtypes.name_of(self.flat.dtype)).widened(self.flat)

    def put(self) -> None:
        """Bring what was written into `flat` to the user's array."""
        if self._host is not None:
            from_host(self._tensor, self._host)


class TensorVerbs(DistCore):
    """Verbs that begin at once; `wait` brings the result, and before it the array is lent."""

    def update(self, param: Any, grad: Any) -> None:
        """Take one step with a gradient that is the sum over all workers, as `all_reduce` leaves.

        Args:
            param: The parameter, see `backward_and_update`.
            grad: It is divided by world_size in a copy.
        """
        self._begin()
        parameter = self._parameters.of(param)
        mean = divided(parameter.wide(parameter.gradient(grad)), self.world_size)
        self._optimizer.step(parameter, mean)

    def all_reduce(self, tensor: Any) -> None:
        """Sum one tensor over all workers, in place.

        Args:
            tensor: Floats; of one shape on all workers.
        """
        self._sum([tensor], half=False)

    def fused_all_reduce(self, tensors: Any, send: bool = True) -> None:
        """Sum several tensors over all workers, in place, in one message.

        Args:
            tensors: A list of them.
            send: False checks them only. SINGA copies then, and needs it before it sends; here
                values are those of the moment of sending.
        """
        if send:
            self._sum(check_tensors(tensors), half=False)
        else:
            self._places(check_tensors(tensors))

    def all_reduce_half(self, tensor: Any) -> None:
        """Sum one tensor over all workers, in place, with f16 on the wire.

        The mean travels, so that the sum may be beyond f16; it is multiplied back here.
        """
        self._sum([tensor], half=True)

    def fused_all_reduce_half(self, tensors: Any, send: bool = True) -> None:
        """Sum several tensors as `all_reduce_half` does, in one message."""
        if send:
            self._sum(check_tensors(tensors), half=True)
        else:
            self._places(check_tensors(tensors))

    def sparsification(self, tensor: Any, accumulation: Any, spars: float, topK: bool) -> None:
        """Sum the largest elements of one tensor over all workers, in place; the others are 0.

        Args:
            tensor: Floats; f32 travels.
            accumulation: Array of f32 of as many elements: what was not sent before. It is added
                first, and holds what was not sent afterwards. None for no such thing.
            spars: With topK the part of the elements that is sent, else their least magnitude.
            topK: See spars.
        """
        self.fused_sparsification([tensor], accumulation, spars, topK)

    def fused_sparsification(
        self, tensors: Any, accumulation: Any, spars: float, topK: bool
    ) -> None:
        """Do as `sparsification` with several tensors side by side, as if they were one."""
        self._calls.begin()
        choice = Choice(spars, topK)
        places = self._places(check_tensors(tensors))
        x = np.concatenate([np.empty(0, np.float32), *(each.wide() for each in places)],
                           dtype=np.float32, casting="same_kind")
        kept = None if accumulation is None else Place(accumulation)
        if kept is not None and (kept.flat.size != x.size or kept.flat.dtype != np.float32):
            raise ShapeMismatch("an accumulation that does not fit", expected=f"{x.size} of f32",
                                got=f"{kept.flat.size} of {kept.flat.dtype}")
        if kept is not None:
            x += kept.flat
        pairs = choice.of(x)
        handles = gather(self._calls, pairs, x.size, self._most)

        def finish() -> None:
            found = gathered(handles, self.world_size)
            for rank, (_, values) in enumerate(found):
                if not np.isfinite(values).all():
                    raise TensorError("a tensor that is not finite", rank=rank)
            if kept is not None:
                select.take(x, *pairs)
                kept.flat[...] = x
                kept.put()
            summed(x, found)
            begin = 0
            for place in places:
                place.flat[...] = x[begin : begin + place.flat.size]
                begin += place.flat.size
                place.put()

        self._pending.append(finish)

    def broadcast_parameters(self, params: Any, root: int = 0) -> None:
        """Give all workers one worker's weights; call it before the first step.

        Args:
            params: A list, or a dict, of parameters in one order on all workers.
            root: Whose weights count.
        """
        self._begin()
        for source in params.values() if hasattr(params, "values") else params:
            parameter = self._parameters.of(source)
            for piece in cut(parameter.read(), self._most):
                self._calls.broadcast(piece, root)
            parameter.write_back()
        self._is_apart = False

    # ---- inside ----

    def _places(self, tensors: list[Any]) -> list[Place]:
        return [Place(tensor) for tensor in check_tensors(tensors)]

    def _sum(self, tensors: list[Any], *, half: bool) -> None:
        self._calls.begin()
        places = self._places(tensors)
        packed = Packed(self._calls, self._most, "sum", [each.flat for each in places], half)

        def finish() -> None:
            packed.finish()
            for place in places:
                place.put()

        self._pending.append(finish)
