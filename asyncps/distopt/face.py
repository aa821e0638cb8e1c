"""DistOpt, as its users see it."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, ClassVar

from asyncps import optim
from asyncps.communicator import Communicator
from asyncps.distopt.accumulated import Rest
from asyncps.distopt.core import Loss
from asyncps.distopt.local import THRESHOLD
from asyncps.distopt.sparse import Choice, Sparse
from asyncps.distopt.states import StateVerbs
from asyncps.distopt.sums import Halves, Sums
from asyncps.distopt.verbs import TensorVerbs
from asyncps.errors import ConfigError, shown

__all__ = ["DistOpt"]


class DistOpt(TensorVerbs, StateVerbs):
    """An optimizer at every worker of a group that exchanges gradients, or parameters; no servers.

    All workers make it, with the same words, and begin with the same weights (the same seed, or
    `broadcast_parameters`). They call the same verbs in the same order.

    Args:
        opt: An optimizer of `asyncps.optim`, or its name; it is copied. Steps have the meaning of
            torch.optim: `m = momentum*m + g; w -= lr*m`, Adam's and AdamW's bias corrected,
            epsilon beside the root. `lr_mult` and `wd_mult` are by the numbers of parameters.
        nccl_id, ticket: A `JobTicket`, in SINGA's word or in ours: this process joins the others
            that have it.
        local_rank, world_size: Its rank and their number, with a ticket.
        buffSize: Elements of one message; what is larger travels in pieces. Of a sparse update it
            is the elements that are chosen from: a message has an index and a value of each.
        communicator: The group, where there is one already. With neither a communicator nor a
            ticket the environment says who belongs to it.
        bucket_bytes: Counts in the place of `threshold` in all verbs: bytes, not elements.
        check_every: Compare the weights of all workers after so many synchronous updates and raise
            Disagreement where one has drifted; 0 never.

    Raises:
        ConfigError, OptimizerError: An argument that cannot be right.

    A parameter is an array of NumPy or CuPy, a torch tensor, or something with such an array as
    `data`; a gradient is an array of its shape and dtype. Arrays that are not in host memory are
    copied there and back.
    """

    def __init__(
        self, opt: str | optim.Optimizer, nccl_id: Any = None, local_rank: int | None = None,
        world_size: int | None = None, buffSize: int = 4194304, communicator: Any = None, *,
        ticket: Any = None, bucket_bytes: int | None = None, check_every: int = 0,
    ) -> None:
        if communicator is not None and not (
            nccl_id is None and ticket is None and local_rank is None and world_size is None
        ):
            raise ConfigError("a communicator and a way to make one", expected="one of the two")
        super().__init__(opt, buffSize, bucket_bytes, check_every)
        self._owns_comm = communicator is None
        self._use(_join(nccl_id, ticket, local_rank, world_size) if self._owns_comm
                  else communicator)

    # What `backward` takes, in both spellings.
    OPTIONS: ClassVar = (
        "plain", "half", "partialUpdate", "sparseTopK", "sparseThreshold", "fp32", "fp16",
    )

    def __call__(self, loss: Loss) -> None:
        """Do as `backward_and_update` with its defaults."""
        self.backward_and_update(loss)

    def backward(self, loss: Loss, dist_option: str = "plain", spars: float | None = None) -> None:
        """Update by the name of a way, as scripts take it from their command line.

        Args:
            loss: See `backward_and_update`.
            dist_option: "plain" (fp32), "half" (fp16), "partialUpdate", "sparseTopK" or
                "sparseThreshold".
            spars: Of the sparse ones; None is .05.

        Raises:
            ConfigError: There is no such way.
        """
        if dist_option in ("plain", "fp32"):
            self.backward_and_update(loss)
        elif dist_option in ("half", "fp16"):
            self.backward_and_update_half(loss)
        elif dist_option == "partialUpdate":
            self.backward_and_partial_update(loss)
        elif dist_option in ("sparseTopK", "sparseThreshold"):
            self.backward_and_sparse_update(
                loss, spars=0.05 if spars is None else spars, topK=dist_option == "sparseTopK")
        else:
            raise ConfigError("unknown dist_option", expected=", ".join(self.OPTIONS),
                              got=shown(dist_option))

    def backward_and_update(self, loss: Loss, threshold: float = THRESHOLD) -> None:
        """Sum gradients over all workers while they come; then step with their mean.

        Args:
            loss: Pairs of a parameter and its gradient, in the order of the backward pass: it is
                iterated over once, and communication goes on meanwhile. Gradients are copied and
                not changed. Weights change when all is there.
            threshold: Elements. A gradient that is larger travels alone, smaller ones fill a
                bucket that is sent when it is larger; what is left at the end.

        Raises:
            ShapeMismatch, DtypeMismatch: A gradient that does not fit its parameter.
            AsyncPSError: The exchange failed; no weight has changed.
        """
        self._begin()
        self._update(loss, threshold, Sums(self._calls, self._most))

    def backward_and_update_half(
        self, loss: Loss, threshold: float = THRESHOLD, clipping: bool = False,
        clip_value: float | None = None, clip_Value: float | None = None,
    ) -> None:
        """Do as `backward_and_update` with f16 on the wire, summed in f32: the mean travels.

        Args:
            loss, threshold: See `backward_and_update`.
            clipping: Bound each element of the local gradient first.
            clip_value, clip_Value: The bound, in our spelling or in SINGA's; 100 if neither is
                given. A number beyond 65504 is an infinity in f16.
        """
        self._begin()
        if clip_value is not None and clip_Value is not None:
            raise ConfigError("clip_value in both spellings", got=f"{clip_value}, {clip_Value}")
        given = clip_value if clip_value is not None else clip_Value
        bound = _bound(100.0 if given is None else given)
        self._update(loss, threshold, Halves(
            self._calls, self._most, self._shelf, bound if clipping else None))

    def backward_and_sparse_update(
        self, loss: Loss, threshold: float = THRESHOLD, spars: float = 0.05, topK: bool = False,
        corr: bool = True,
    ) -> None:
        """Do as `backward_and_update` with few elements of each bucket on the wire.

        Args:
            loss, threshold: See `backward_and_update`.
            spars: With topK the part of each bucket that is sent, its largest elements, at least
                one; else the least magnitude of elements that are sent.
            topK: See spars.
            corr: Keep what was not sent and add it to the next gradient; else it is dropped.

        Raises:
            ConfigError: spars is out of range.
            TensorError: A gradient with a NaN or an infinity: raised on all workers, no weight and
                nothing that was kept has changed.
        """
        self._begin()
        self._update(loss, threshold, Sparse(
            self._calls, self._most, Choice(spars, topK), self._residuals if corr else None))

    def accumulate(self, loss: Loss) -> None:
        """Add up gradients without an exchange: the next update is of the mean of all batches.

        Args:
            loss: See `backward_and_update`.
        """
        self._begin()
        self._accumulated.add(
            [(parameter, parameter.wide(gradient)) for parameter, gradient in self._given(loss)])

    def flush(self, update: Callable[..., Any] | None = None, **options: Any) -> None:
        """Update with what was accumulated, if the last batch has no update of its own.

        Args:
            update: One of the verbs with a loss; None is `backward_and_update`.
            options: Of that verb.
        """
        self._begin()
        if self._accumulated.batches:
            (update or self.backward_and_update)(Rest(), **options)


def _join(nccl_id: Any, ticket: Any, local_rank: Any, world_size: Any) -> Communicator:
    """Make the communicator that the arguments of DistOpt ask for."""
    if nccl_id is not None and ticket is not None:
        raise ConfigError("a ticket in both spellings", expected="nccl_id or ticket")
    held = nccl_id if ticket is None else ticket
    if held is not None:
        return Communicator.from_ticket(held, local_rank, world_size)
    if local_rank is not None or world_size is not None:
        raise ConfigError("a rank or a number of workers without a ticket", got=f"local_rank"
                          f" {local_rank}, world_size {world_size}",
                          expected="a ticket; without one the environment says both")
    return Communicator.from_launch()


def _bound(value: Any) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not number > 0:
        raise ConfigError("clip_value is a number above 0", got=shown(value))
    return number
