"""Plain objects between ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from asyncps.plainobjects import check_size, packed, unpacked


class ObjectVerbs:
    """Verbs over objects, made of those over arrays."""

    if TYPE_CHECKING:  # the communicator's
        rank: int

        def broadcast(self, x: Any, root: int = 0, name: str | None = None) -> Any: ...
        def all_gather(self, x: Any, name: str | None = None) -> Any: ...
        def _check_rank(self, root: object) -> None: ...

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)

    def broadcast_object(self, value: Any = None, root: int = 0, name: str | None = None) -> Any:
        """Return the root's object at all ranks: None, bool, int, float, str, bytes, and lists,
        tuples and dicts of these (msgspec; never pickle). Tuples arrive as lists.

        Raises:
            TensorError: It is something else, or larger than 1 GiB.
        """
        raw = packed(value) if root == self.rank else b""
        self._check_rank(root)
        size = np.array([len(raw)], np.int64)
        self.broadcast(size, root, name and f"{name}/size")
        data = np.frombuffer(raw, np.uint8) if root == self.rank else np.empty(
            check_size(int(size[0])), np.uint8)
        self.broadcast(data, root, name)
        return unpacked(data)

    def all_gather_object(self, value: Any, name: str | None = None) -> list[Any]:
        """Return the objects of all ranks, in their order; as `broadcast_object`."""
        raw = np.frombuffer(packed(value), np.uint8)
        sizes = self.all_gather(np.array([raw.size], np.int64), name and f"{name}/size")
        data = self.all_gather(raw, name)
        ends = np.cumsum(sizes)
        return [unpacked(data[end - size : end])
                for end, size in zip(ends.tolist(), sizes.tolist(), strict=True)]
