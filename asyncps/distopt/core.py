"""What all verbs of DistOpt share: its group, its parameters, the walk over a backward pass."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, Self

import numpy as np

from asyncps import optim
from asyncps.allended import run_all
from asyncps.communicator import Communicator
from asyncps.distopt.accumulated import Accumulated, Rest
from asyncps.distopt.buckets import Bucket, Packer, Shelf, checked_count
from asyncps.distopt.calls import Calls
from asyncps.distopt.optimizer import LocalOptimizer
from asyncps.distopt.parameters import DistParameter, Parameters
from asyncps.distopt.replicas import check_replicas
from asyncps.distopt.sums import Means
from asyncps.errors import ClosedError, ConfigError, TensorError, shown
from asyncps.tensor.dtypes import Array

__all__ = ["DistCore", "Loss"]

# Pairs of a parameter and its gradient, in the order of the backward pass.
Loss = Iterable[tuple[Any, Any]]


class DistCore:
    """A local optimizer over a group of workers; see `DistOpt`."""

    def __init__(
        self, opt: str | optim.Optimizer, buff_size: int, bucket_bytes: int | None,
        check_every: int,
    ) -> None:
        self._optimizer = LocalOptimizer(opt)
        self._most = checked_count("buffSize", buff_size)
        self._bucket_bytes = (
            None if bucket_bytes is None else checked_count("bucket_bytes", bucket_bytes, 0)
        )
        self._check_every = checked_count("check_every", check_every, 0)
        self._parameters = Parameters()
        self._accumulated = Accumulated()
        self._shelf = Shelf()
        self._pending: list[Callable[[], None]] = []
        self._updates = 0  # synchronous ones, since the last look at the replicas
        self._is_apart = False  # by local steps, that have not been averaged since
        self._owns_comm = False
        self._closed = False

    def __repr__(self) -> str:
        return (f"<DistOpt {self._optimizer.words} at rank {self.global_rank} of"
                f" {self.world_size}>")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: Any) -> None:
        self.close()

    def close(self) -> None:
        """Train no more. Closes the communicator if it was made here; one handed in stays open."""
        if not self._closed:
            self._closed = True
            if self._owns_comm:
                self._comm.close()

    @property
    def communicator(self) -> Communicator:
        """The group of workers."""
        return self._comm

    @property
    def opt(self) -> optim.Optimizer:
        """The optimizer with the hyper-parameters of now; changing it changes nothing."""
        return self._optimizer.words

    @property
    def world_size(self) -> int:
        """How many workers there are."""
        return self._comm.world_size

    @property
    def global_rank(self) -> int:
        """The place of this worker, from 0."""
        return self._comm.rank

    @property
    def local_rank(self) -> int:
        """Its place among those on this machine, from 0."""
        return self._comm.local_rank

    @property
    def learning_rate(self) -> Any:
        """The learning rate, or its schedule.

        Raises:
            OptimizerError: The optimizer has none.
        """
        return self._optimizer.learning_rate

    def set_learning_rate(self, lr: Any) -> None:
        """Change the learning rate; what the optimizer keeps stays. All workers do it alike."""
        self._optimizer.change({"learning_rate": lr})

    def set_hyperparameters(self, **hyper: Any) -> None:
        """Change hyper-parameters; what the optimizer keeps stays. All workers do it alike.

        Raises:
            OptimizerError: There is no such one, or its value cannot be right.
        """
        self._optimizer.change(hyper)

    def wait(self) -> None:
        """Wait for all tensors under way: what they became is in its place then.

        Raises:
            AsyncPSError: The first failure, when all have ended.
        """
        pending, self._pending = self._pending, []
        run_all(pending)

    def check_replicas(self) -> None:
        """Compare the weights of all workers; all call it.

        Raises:
            Disagreement: Some worker has drifted. All raise it; it names the ranks that differ from
                most, or from rank 0 where there is no majority, and the parameters.
        """
        self._begin()
        check_replicas(self._calls, self._parameters)

    # ---- inside ----

    def _use(self, comm: Communicator) -> None:
        """Work on this communicator; once, when all arguments have been found right."""
        self._comm = comm
        self._calls = Calls(comm)

    def _begin(self) -> None:
        if self._closed:
            raise ClosedError("the DistOpt is closed")
        self._calls.begin()
        self.wait()

    def _pairs(self, loss: Any) -> Iterator[tuple[DistParameter, Array]]:
        """Yield parameters and flat gradients, with what was accumulated before."""
        seen: set[int] = set()
        for parameter, gradient in self._given(loss):
            seen.add(parameter.number)
            yield parameter, self._accumulated.mean_with(parameter, gradient)
        yield from self._accumulated.rest(seen, last=isinstance(loss, Rest))

    def _given(self, loss: Any) -> Iterator[tuple[DistParameter, Array]]:
        """Yield parameters and flat gradients as they are handed in."""
        try:
            given = iter(loss)
        except TypeError:
            raise ConfigError("a loss yields pairs of a parameter and its gradient, in the order "
                              "of the backward pass", got=shown(loss)) from None
        for pair in given:
            try:
                source, given_gradient = pair
            except (TypeError, ValueError):
                raise ConfigError("a loss yields pairs of a parameter and its gradient",
                                  got=shown(pair)) from None
            parameter = self._parameters.of(source)
            yield parameter, parameter.gradient(given_gradient)

    def _update(self, loss: Any, threshold: float, means: Means) -> None:
        """Send gradients while they come; when all are there, take a step with their mean."""
        packer = Packer(*self._rule(threshold), self._shelf, means.dtype_of)
        flying: list[Bucket] = []
        try:
            for parameter, gradient in self._pairs(loss):
                for bucket in packer.add(parameter, gradient):
                    means.start(bucket)
                    flying.append(bucket)
            for bucket in packer.rest():
                means.start(bucket)
                flying.append(bucket)
            run_all([partial(means.finish, bucket) for bucket in flying])
            for bucket in flying:
                mean = means.mean(bucket)
                for parameter, begin, end in bucket.parts:
                    self._optimizer.step(parameter, as_wide(mean[begin:end], parameter))
        except BaseException:
            self._shelf = Shelf()  # what is under way keeps its memory
            raise
        self._shelf.restore()
        self._done()

    def _done(self, *, apart: bool | None = None) -> None:
        """An update is over.

        Args:
            apart: Workers have gone ways of their own; False: they have met again; None: all have
                taken the same step, from where they were.
        """
        self._accumulated.clear()
        self._is_apart = self._is_apart if apart is None else apart
        self._updates += not apart
        if not self._is_apart and 0 < self._check_every <= self._updates:
            self._updates = 0
            check_replicas(self._calls, self._parameters)

    def _rule(self, threshold: Any) -> tuple[float, bool]:
        """Return the threshold that counts, and whether it is one of bytes."""
        if self._bucket_bytes is not None:
            return self._bucket_bytes, True
        try:
            number = float(threshold)
        except (TypeError, ValueError):
            number = math.nan
        if not number >= 0:
            raise ConfigError("threshold is a number of elements", expected="at least 0",
                              got=shown(threshold))
        return number, False


def as_wide(values: Array, parameter: DistParameter) -> Array:
    """Return values in the dtype that a step of this parameter takes."""
    if values.dtype != parameter.dtype.sum:
        return values.astype(parameter.dtype.sum)
    return values


def check_tensors(tensors: Any) -> list[Any]:
    """Return a list of tensors, as the fused verbs take them.

    Raises:
        TensorError: It is no list.
    """
    if not isinstance(tensors, (list, tuple)):
        raise TensorError("fused verbs take a list of tensors", got=shown(tensors))
    for tensor in tensors:
        if isinstance(tensor, np.ndarray) and not tensor.flags.writeable:
            raise TensorError("a tensor that is read-only")
    return list(tensors)
