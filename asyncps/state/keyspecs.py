"""What a key may be: the checks of how a peer describes it."""

from __future__ import annotations

import math

from asyncps.errors import (
    ConfigError,
    Disagreement,
    DtypeMismatch,
    KeyExists,
    ShapeMismatch,
    TensorError,
)
from asyncps.protocol.messages import Key, KeySpec
from asyncps.state import tables
from asyncps.state.keys import check_key

ITEMSIZES = {
    "float32": 4, "float64": 8, "float16": 2, "bfloat16": 2,
    "int8": 1, "uint8": 1, "int32": 4, "int64": 8,
}
MAX_KEYS = 10**6  # keys of a store: protects the scheduler's memory
MAX_DIMENSIONS = 64  # NumPy's own limit


def size_of(spec: KeySpec) -> int:
    """Return the bytes of a key's value."""
    return math.prod(spec.shape) * spec.itemsize


def check_spec(spec: KeySpec) -> None:
    """Check a key as a peer describes it.

    Raises:
        TensorError: The key's name, dtype, item size or shape cannot be right.
    """
    key = spec.key
    check_key(key)
    itemsize = ITEMSIZES.get(spec.dtype)
    if itemsize is None:
        raise DtypeMismatch("unknown dtype", key=key, expected=", ".join(ITEMSIZES),
                            got=spec.dtype[:100])
    if spec.itemsize != itemsize:
        raise DtypeMismatch(f"wrong item size of {spec.dtype}", key=key, expected=itemsize,
                            got=spec.itemsize)
    if len(spec.shape) > MAX_DIMENSIONS:
        raise TensorError("too many dimensions", key=key, expected=f"at most {MAX_DIMENSIONS}",
                          got=len(spec.shape))
    if any(size < 0 or size >= 1 << 63 for size in spec.shape) or size_of(spec) >= 1 << 63:
        raise TensorError("impossible shape", key=key,
                          expected="sizes of at least 0, less than 2**63 bytes in all",
                          got=spec.shape)
    if spec.rows is not None:
        tables.check_spec(spec)


def check_same(expected: KeySpec, got: KeySpec) -> None:
    """Check a key that exists against how somebody describes it.

    Raises:
        DtypeMismatch, ShapeMismatch, Disagreement: They differ.
    """
    if expected.dtype != got.dtype:
        raise DtypeMismatch("key exists with another dtype", key=got.key,
                            expected=expected.dtype, got=got.dtype)
    if expected.shape != got.shape:
        raise ShapeMismatch("key exists with another shape", key=got.key,
                            expected=expected.shape, got=got.shape)
    if expected.rows != got.rows:
        raise Disagreement("key exists as another kind of key", key=got.key,
                           expected=tables.words(expected), got=tables.words(got))


def check_specs(specs: list[KeySpec]) -> None:
    """Check the keys of one call.

    Raises:
        ConfigError, KeyExists: Too many of them, or one twice.
        TensorError: As `check_spec`.
    """
    if len(specs) > MAX_KEYS:
        raise ConfigError("too many keys in one call", expected=f"at most {MAX_KEYS}",
                          got=len(specs))
    seen: set[Key] = set()
    for spec in specs:
        check_spec(spec)
        if spec.key in seen:
            raise KeyExists("key twice in one call", key=spec.key)
        seen.add(spec.key)
