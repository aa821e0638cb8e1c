"""What initializers do on a server: write the first values of rows."""

from __future__ import annotations

import hashlib

import numpy as np

from asyncps.errors import ConfigError
from asyncps.initializer import Constant, Initializer, Normal, One, Uniform, Zero
from asyncps.tensor.dtypes import Array, Dtype, numpy_dtype
from asyncps_ext import sparse_fill

_SIGMAS = 6.4  # a random number of the normal distribution is never farther from 0


def stream_of(seed: int, key: str | int) -> int:
    """Return the 64-bit number that stands for seed and key in every row's value.

    BLAKE2b over the seed as 8 bytes, then `i` and the decimal digits of an int key, or `s` and the
    UTF-8 of a str key; the first 8 bytes, little-endian.
    """
    kind, text = ("i", str(key)) if isinstance(key, int) else ("s", key)
    words = seed.to_bytes(8, "little") + (kind + text).encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.blake2b(words, digest_size=8).digest(), "little")


def check_usable(initializer: Initializer, dtype: Dtype) -> None:
    """Refuse an initializer that cannot make values of a dtype.

    Raises:
        ConfigError: Random numbers, or a number that is not exact, for integers; numbers that a
            float dtype makes infinite.
    """
    if isinstance(initializer, (Zero, One)):
        return
    if dtype.is_float:
        with np.errstate(over="ignore"):
            if np.isfinite(np.array(_largest(initializer)).astype(numpy_dtype(dtype.name))):
                return
        raise ConfigError(f"{initializer} is beyond {dtype.name}", got=initializer,
                          expected=f"numbers that {dtype.name} holds")
    if isinstance(initializer, Constant) and initializer.value == int(initializer.value):
        info = np.iinfo(dtype.bits)
        if info.min <= int(initializer.value) <= info.max:
            return
    raise ConfigError(f"{initializer} cannot make {dtype.name} rows",
                      expected="Zero, One, or a Constant that the dtype holds", got=initializer)


def _largest(initializer: Constant | Uniform | Normal) -> float:
    """Return the largest absolute value that there can be."""
    if isinstance(initializer, Constant):
        return abs(float(initializer.value))
    if isinstance(initializer, Uniform):
        return float(initializer.scale)
    return initializer.sigma * _SIGMAS


def write_rows(
    initializer: Initializer, key: str | int, dtype: Dtype, width: int, ids: Array, out: Array
) -> None:
    """Write the first values of some rows.

    Args:
        initializer: What they are.
        key: The table's key.
        dtype: Of the table.
        width: Elements of a row.
        ids: int64[n], which rows.
        out: n rows of stored values, `dtype.bits`. Random numbers are rounded to f32 (f64 for f64
            tables), and from there to f16 or bf16.
    """
    if isinstance(initializer, (Uniform, Normal)):
        real = out if dtype.narrow is None else np.empty(out.size, dtype.sum)
        stream = stream_of(initializer.seed, key)
        if isinstance(initializer, Uniform):
            sparse_fill.fill_uniform(real, ids, width, stream, initializer.scale)
        else:
            sparse_fill.fill_normal(real, ids, width, stream, initializer.sigma)
        if dtype.narrow is not None:
            dtype.narrow(out, real)
        return
    number: float = 0 if isinstance(initializer, Zero) else 1
    if isinstance(initializer, Constant):
        number = initializer.value if dtype.is_float else int(initializer.value)
    with np.errstate(over="ignore"):
        out[:] = np.array(number).astype(numpy_dtype(dtype.name)).view(dtype.bits)
