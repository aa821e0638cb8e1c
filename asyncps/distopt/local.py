"""Updates with a worker's own gradient, and parameters that are averaged now and then."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from asyncps.allended import run_all
from asyncps.distopt.buckets import Groups, checked_count, weight
from asyncps.distopt.core import DistCore, Loss
from asyncps.distopt.outer import Outer
from asyncps.distopt.parameters import DistParameter
from asyncps.distopt.sums import Packed
from asyncps.tensor.dtypes import Array

__all__ = ["THRESHOLD", "LocalVerbs"]

THRESHOLD = 2097152  # elements, as in SINGA


class LocalVerbs(DistCore):
    """Partial updates, local SGD and DiLoCo."""

    def __init__(self, *args: Any, **words: Any) -> None:
        super().__init__(*args, **words)
        self._partial = 0  # calls of partial updates
        self._partitions = 0  # as the last of them has counted them
        self._local = 0  # calls of local updates
        self._outer: Outer | None = None

    def backward_and_partial_update(
        self, loss: Loss, threshold: float = THRESHOLD, average_momentum: bool = False
    ) -> None:
        """Take a full local step, and average one part of the parameters over all workers.

        Args:
            loss: See `backward_and_update`. A pair comes when its parameter is needed no more:
                it is changed at once.
            threshold: Parameters are grouped by the rule of `backward_and_update`, into K parts;
                call number c averages part c mod K.
            average_momentum: Average what the optimizer keeps for them as well.
        """
        self._begin()
        mine = self._partial % self._partitions if self._partitions else 0
        self._partitions = self._local_pass(
            loss, threshold, lambda part: part == mine, average_momentum)
        self._partial += 1
        self._done(apart=True)

    def backward_and_local_update(
        self, loss: Loss, period: int, warmup: int = 0, threshold: float = THRESHOLD,
        average_momentum: bool = False,
    ) -> bool:
        """Local SGD: local steps, and every `period` calls all parameters are averaged.

        Args:
            loss: See `backward_and_partial_update`.
            period: Calls from one average to the next.
            warmup: Calls before that are synchronous, averaged after each (post-local SGD).
            threshold: Of the rule by which parameters travel together.
            average_momentum: Average what the optimizer keeps as well.

        Returns:
            Whether all workers have the same parameters now.
        """
        self._begin()
        every = checked_count("period", period)
        first = checked_count("warmup", warmup, 0)
        call = self._local
        averaged = call < first or (call - first + 1) % every == 0
        self._local_pass(loss, threshold, lambda _: averaged, average_momentum)
        self._local += 1
        self._done(apart=not averaged)
        return averaged

    def backward_and_diloco_update(
        self, loss: Loss, period: int = 500, outer_lr: float = 0.7, outer_momentum: float = 0.9,
        threshold: float = THRESHOLD,
    ) -> bool:
        """DiLoCo: local steps, and every `period` calls an outer step with the mean of their sum.

        How far a worker has come since the last outer step counts as its gradient, negated; the
        outer optimizer is SGD with Nesterov's momentum. Reference: Douillard and others,
        https://arxiv.org/abs/2311.08105.

        Args:
            loss: See `backward_and_partial_update`.
            period: Calls from one outer step to the next.
            outer_lr, outer_momentum: Of the outer optimizer, the same in all calls.
            threshold: Of the rule by which parameters travel together.

        Returns:
            Whether this call has taken an outer step: all workers have the same parameters then.
        """
        self._begin()
        every = checked_count("period", period)
        if self._outer is None:
            self._outer = Outer()
        self._outer.use(outer_lr, outer_momentum)
        outer = (self._local + 1) % every == 0
        self._local_pass(loss, threshold, lambda _: outer, False, self._outer)
        self._local += 1
        self._done(apart=not outer)
        return outer

    # ---- inside ----

    def _local_pass(
        self, loss: Loss, threshold: float, wanted: Callable[[int], bool], momentum: bool,
        outer: Outer | None = None,
    ) -> int:
        """Take local steps as gradients come, and average the groups that are wanted.

        Returns:
            How many groups there are.
        """
        limit, by_bytes = self._rule(threshold)
        groups: Groups[DistParameter] = Groups(limit)
        count, flying = 0, []

        def close(group: list[DistParameter]) -> None:
            nonlocal count
            if group and wanted(count):
                arrays = [outer.way(each) if outer else each.read() for each in group]
                if momentum:
                    arrays += [each.state[name] for each in group for name in sorted(each.state)]
                flying.append((group, arrays, Packed(self._calls, self._most, "mean", arrays)))
            count += bool(group)

        for parameter, gradient in self._pairs(loss):
            if outer:
                outer.begin(parameter)
            self._optimizer.step(parameter, parameter.wide(gradient))
            close(groups.add(parameter, weight(parameter, by_bytes)))
        close(groups.rest())
        self._end_pass(flying, outer)
        return count

    def _end_pass(
        self, flying: list[tuple[list[DistParameter], list[Array], Packed]], outer: Outer | None
    ) -> None:
        run_all([packed.wait for _, _, packed in flying])
        for group, arrays, packed in flying:
            packed.finish()
            for parameter, array in zip(group, arrays, strict=False):  # states may follow
                if outer:
                    outer.step(parameter, array)
                else:
                    parameter.write_back()
