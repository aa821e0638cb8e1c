"""What a store of a cluster tells of itself without asking anybody, on both faces."""

from __future__ import annotations

import copy
from typing import Any

from asyncps import optim
from asyncps.core import Core


class StoreFacts:
    """Of a store with a `Core`."""

    _core: Core

    @property
    def type(self) -> str:
        """The store type, such as "dist_sync"."""
        return self._core.type

    @property
    def rank(self) -> int:
        """This worker's number, from 0."""
        return self._core.rank

    @property
    def num_workers(self) -> int:
        """How many workers there are."""
        return self._core.num_workers

    @property
    def local_rank(self) -> int:
        """This worker's number on its host, from 0."""
        return self._core.local_rank

    @property
    def optimizer(self) -> str | None:
        """The name of the optimizer that the servers run, or None: this worker has set none."""
        return self._core.client.optimizer

    @property
    def hyperparameters(self) -> dict[str, Any]:
        """The optimizer's hyper-parameters as this worker knows them; a copy, empty without one."""
        return copy.deepcopy(optim.as_given(self._core.client.hyper))

    def is_capable(self, capability: str) -> bool:
        """Tell whether the store can do something; "optimizer" is what MXNet asks."""
        return self._core.is_capable(capability)

    def num_dead_node(self) -> int:
        """Return how many nodes the scheduler has declared lost."""
        return self._core.num_dead_node()
