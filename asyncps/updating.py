"""Where a trainer's updates happen: on its store, or at each worker."""

from __future__ import annotations

from asyncps.errors import ConfigError

LOCAL = frozenset({"local", "device"})
_SYNC = frozenset({"dist", "dist_sync", "dist_sync_device", "dist_device_sync"})
# Each push is applied as it comes, so there is no sum that could be handed back.
_ASYNC = frozenset({"dist_async", "dist_async_device", "dist_ssp"})
_WITHOUT_OPTIMIZER = frozenset({"p3", "allreduce", "horovod"})
_ALL = LOCAL | _SYNC | _ASYNC | _WITHOUT_OPTIMIZER


def update_on_store(
    kind: str | None, wanted: bool | None = None, *, sparse_gradient: bool = False
) -> bool:
    """Decide where updates happen: on the store, or at each worker with the summed gradient.

    Args:
        kind: The store's type, or None without a store.
        wanted: What the user asked for; None leaves it to the type.
        sparse_gradient: Some gradient is row-sparse.

    Returns:
        True for the store.

    Raises:
        ConfigError: The type cannot do what was asked for, or is none.
    """
    if kind is not None and kind not in _ALL:
        raise ConfigError("unknown store type", got=repr(kind), expected=", ".join(sorted(_ALL)))
    able = kind is not None and kind not in _WITHOUT_OPTIMIZER
    if wanted and not able:
        raise ConfigError(f"update_on_kvstore with {kind or 'no store'}: nobody there can update",
                          expected=False, got=True)
    if wanted is False and kind in _ASYNC:
        raise ConfigError(f"update_on_kvstore with {kind}: there is no sum to update with",
                          expected=True, got=False)
    if wanted is False and sparse_gradient:
        raise ConfigError("update_on_kvstore with sparse gradients", expected=True, got=False)
    return able if wanted is None else wanted
