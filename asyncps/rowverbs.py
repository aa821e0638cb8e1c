"""The verbs of row-sparse keys, of both faces of a store.

`init`, `push`, `pushpull` and `assign` are those of dense keys; only fetching differs.
"""

from __future__ import annotations

from typing import Any

from asyncps.core import Core


class RowVerbs:
    """Of a store whose verbs block."""

    _core: Core
    _call: Any
    _start: Any

    def row_sparse_pull(
        self, key: Any, row_ids: Any, out: Any = None, priority: int = 0, async_op: bool = False
    ) -> Any:
        """Fetch rows of row-sparse keys; sees this worker's own last push of each key.

        Args:
            key: A row-sparse key, or a list of them.
            row_ids: Integers in any order, repeated or not; a list of such for a list of keys.
            out: An array [k, ...] of the key's dtype for the k different rows, contiguous, or one
                a key; None makes new ones. Written until this returns or the Handle resolves.
            priority: Higher goes first.
            async_op: Return a Handle instead of waiting.

        Returns:
            A RowSparse of these rows, ascending, its values in `out` (or a list of them), or a
            Handle whose `wait()` returns that.

        Raises:
            DtypeMismatch: Ids that are no integers.
            TensorError: An id that is out of range; a key that is not row-sparse.
        """
        call = self._call(
            key, lambda plan: self._core.row_sparse_pull(plan, key, row_ids, out, priority)
        )
        return self._start(call, async_op)


class AsyncRowVerbs:
    """Of a store whose verbs are coroutines."""

    _core: Core
    _look_up: Any
    _start: Any

    async def row_sparse_pull(
        self, key: Any, row_ids: Any, out: Any = None, priority: int = 0, async_op: bool = False
    ) -> Any:
        """As `KVStore.row_sparse_pull`."""
        plan = self._core.known(key) or await self._look_up(key)
        call = self._core.row_sparse_pull(plan, key, row_ids, out, priority)
        return await self._start(call, async_op)
