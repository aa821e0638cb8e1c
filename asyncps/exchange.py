"""One step's exchange of a trainer: gradients out, weights or sums back, first layers first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from asyncps.parameters import Parameter
from asyncps.values import Key

# Values up to this size travel together, as the store keeps them together (`small_key_bytes`).
_SMALL_BYTES = 32 * 1024


@dataclass(frozen=True, slots=True)
class Travel:
    """How one parameter travels.

    Attributes:
        parameter: Its gradient goes out.
        key: Under this key.
        priority: Higher goes first.
        weights: What comes back is written into its weights, else into its gradient.
    """

    parameter: Parameter
    key: Key
    priority: int
    weights: bool

    def places(self) -> list[Any]:
        """Return one array a device for what comes back."""
        return self.parameter.weights() if self.weights else self.parameter.gradient_places()

    def put(self) -> None:
        """Bring what came back to the parameter's own arrays."""
        if self.weights:
            self.parameter.put_weights()
        else:
            self.parameter.put_gradients()


def exchange(store: Any, travels: Sequence[Travel]) -> None:
    """Push all gradients and pull what comes of them; returns when all is in its place.

    Raises:
        AsyncPSError: The first failure, when all have ended: until then arrays are being written.
    """
    sparse = [each for each in travels if each.parameter.sparse]
    dense = [each for each in travels if not each.parameter.sparse]
    small = [each for each in dense if each.parameter.nbytes <= _SMALL_BYTES]
    groups = [[each] for each in dense if each.parameter.nbytes > _SMALL_BYTES]
    groups += [small] if small else []
    groups.sort(key=lambda group: -group[0].priority)
    handles = [
        store.pushpull(
            [each.key for each in group], [each.parameter.gradients() for each in group],
            out=[each.places() for each in group], priority=group[0].priority,
            async_op=len(groups) + len(sparse) > 1,  # a lone call is quicker when it blocks
        )
        for group in groups
    ]
    handles += [each.parameter.exchange_rows(store, each.priority) for each in sparse]
    if len(handles) > 1 or sparse:
        _wait_for_all(handles)
    for each in travels:
        each.put()


def _wait_for_all(handles: list[Any]) -> None:
    """Wait for all, though one fails: until then arrays are being written."""
    failed: Exception | None = None
    for handle in handles:
        try:
            handle.wait()
        except Exception as error:  # noqa: BLE001 - it is raised when all have ended
            failed = failed or error
    if failed is not None:
        raise failed
