"""What a local store keeps for a key, and its way to a checkpoint and back."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from typing import Any, TypeVar, cast

import numpy as np

from asyncps import optim
from asyncps.errors import (
    CheckpointError,
    DtypeMismatch,
    OptimizerError,
    ShapeMismatch,
    TensorError,
)
from asyncps.tensor import dtypes, updates
from asyncps.tensor.checkpoint import Checkpoint
from asyncps.tensor.checkpointmeta import clocks_of
from asyncps.values import Array, Key, check_apart, device_values, key_spec

Verb = TypeVar("Verb", bound=Callable[..., Any])
Kind = type[optim.Optimizer]
Hyper = Mapping[str, Any]


def alone(verb: Verb) -> Verb:
    """Let one thread at a time be in the verbs of a store."""

    @wraps(verb)
    def locked(self: Any, *args: Any, **kwargs: Any) -> Any:
        with self._lock:
            return verb(self, *args, **kwargs)

    return cast(Verb, locked)


class Value:
    """One key: its value and what the optimizer keeps for it.

    Attributes:
        key: Its key.
        array: The value, C-contiguous.
        dtype: How it is stored and summed.
        state: What the optimizer keeps, by name: flat arrays of `dtype.sum`.
        updates: How many updates it has had: the key's clock.
    """

    __slots__ = ("array", "dtype", "key", "state", "updates")

    def __init__(self, key: Key, array: Array) -> None:
        self.key = key
        self.array = array
        self.dtype = dtypes.by_name(key_spec(key, array).dtype)
        self.state: dict[str, Array] = {}
        self.updates = 0

    def forget(self) -> None:
        """Drop what an earlier optimizer has kept; the f32 weights stay."""
        self.state = {name: kept for name, kept in self.state.items() if name == updates.MASTER}
        self.updates = 0


def check_same(key: Key, stored: Array, given: Array) -> None:
    """Refuse a value that is not of its key's dtype and shape.

    Raises:
        DtypeMismatch, ShapeMismatch: It is not.
    """
    if stored.dtype != given.dtype:
        raise DtypeMismatch("a value of another dtype than its key", key=key,
                            expected=stored.dtype, got=given.dtype)
    if stored.shape != given.shape:
        raise ShapeMismatch("a value of another shape than its key", key=key,
                            expected=stored.shape, got=given.shape)


def describe(
    type: str, optimizer: Kind | None, hyper: Hyper, values: Mapping[Key, Value]
) -> dict[str, Any]:
    """Return the meta of a checkpoint: optimizer, hyper-parameters and clocks as plain data."""
    return {
        "store": type,
        "optimizer": None if optimizer is None else {"name": optimizer.name, "hyper": hyper},
        "clocks": [[key, value.updates] for key, value in values.items()],
    }


def restore(found: Checkpoint, values: Mapping[Key, Value]) -> tuple[Kind | None, Hyper]:
    """Give fresh values their states and clocks; return the checkpoint's optimizer, if it has one.

    Raises:
        OptimizerError: Its optimizer or a hyper-parameter is not known here.
        CheckpointError: The states are not those of these values.
    """
    told = found.meta.get("optimizer")
    try:
        kind, hyper = None, updates.prepared({})
        if told is not None:
            kind = optim.by_name(told["name"])
            hyper = updates.prepared(kind(**told["hyper"]).hyper)
    except OptimizerError:
        raise
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"a checkpoint that no store has written: {error!r}") from None
    clocks = clocks_of(found.meta)
    lacking = [key for key in values if key not in clocks]
    if lacking:
        raise CheckpointError("a checkpoint that lacks a key of this store", key=lacking[0])
    for key, arrays in found.state.items():
        value = values.get(key)
        if kind is None or value is None:
            raise CheckpointError("what an optimizer keeps for a key that is not there", key=key)
        for name, array in arrays.items():
            expected = value.dtype.sum, (value.array.size,)
            if (array.dtype, array.shape) != expected:
                raise CheckpointError(f"{name} does not fit its key", key=key, expected=expected,
                                      got=(array.dtype, array.shape))
        value.state = arrays
    for key, value in values.items():
        value.updates = clocks[key]
    return kind, hyper


def check_outs(keys: Sequence[Key], stored: Sequence[Array], outs: Sequence[Any]) -> None:
    """Refuse arrays that cannot take the values of keys.

    Args:
        keys: Their names.
        stored: Their values.
        outs: An array, or a list of device arrays, for each.

    Raises:
        TensorError, ShapeMismatch, DtypeMismatch: One cannot, or is the place of two keys.
    """
    check_apart(keys, outs)
    for name, array, given in zip(keys, stored, outs, strict=True):
        for target in device_values(given, name):
            if not isinstance(target, np.ndarray) or not target.flags.writeable:
                raise TensorError("out must be a writable NumPy array", key=name,
                                  got=type(target).__name__)
            check_same(name, array, target)
