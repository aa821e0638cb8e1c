"""The checks that every array kernel makes at its door, and the choice of a variant (of one)."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Array: TypeAlias = NDArray[Any]
FLOATS = ("float32", "float64")
SUMS = (*FLOATS, "int8", "uint8", "int32", "int64")


def variants() -> tuple[str, ...]:
    """Names of the variants that can be chosen."""
    return ("numpy",)


def set_variant(name: str) -> str:
    """Choose a variant; returns the name of the one in use before."""
    if name not in variants():
        raise ValueError(f"no variant {name!r} here, only {variants()}")
    return "numpy"


def check_array(array: Array, name: str, *, written: bool = False) -> None:
    if not isinstance(array, np.ndarray):
        raise TypeError(f"{name} must be a NumPy array, not {type(array).__name__}")
    if array.ndim != 1 or not array.flags.c_contiguous:
        raise ValueError(f"{name} must be 1-d and C-contiguous")
    if not array.dtype.isnative:
        raise TypeError(f"{name} must be in native byte order, not {array.dtype!r}")
    if written and not array.flags.writeable:
        raise ValueError(f"{name} is read-only")


def check_dtype(array: Array, name: str, *accepted: str) -> None:
    if array.dtype.name not in accepted:
        raise TypeError(f"{name} must be {' or '.join(accepted)}, not {array.dtype}")


def check_floats(array: Array, name: str, *, written: bool = False) -> None:
    check_array(array, name, written=written)
    check_dtype(array, name, "float32")


def check_like(array: Array, name: str, first: Array, first_name: str) -> None:
    if array.size != first.size:
        raise ValueError(f"{name} has {array.size} elements, {first_name} has {first.size}")


def check_apart(
    first: Array, first_name: str, second: Array, second_name: str, *, may_be_same: bool = False
) -> None:
    if not np.may_share_memory(first, second):
        return
    if may_be_same and first.ctypes.data == second.ctypes.data and first.nbytes == second.nbytes:
        return
    raise ValueError(f"{first_name} and {second_name} overlap")


def check_pair(out: Array, out_name: str, out_dtype: str, x: Array, x_dtype: str) -> None:
    check_array(out, out_name, written=True)
    check_array(x, "x")
    check_dtype(out, out_name, out_dtype)
    check_dtype(x, "x", x_dtype)
    check_like(x, "x", out, out_name)
    check_apart(out, out_name, x, "x")


def check_step(out: Array, w: Array, g: Array, *accepted: str) -> None:
    check_array(out, "out", written=True)
    check_array(w, "w")
    check_array(g, "g")
    check_dtype(w, "w", *accepted)
    check_dtype(out, "out", w.dtype.name)
    check_dtype(g, "g", w.dtype.name)
    check_like(out, "out", w, "w")
    check_like(g, "g", w, "w")
    check_apart(out, "out", w, "w", may_be_same=True)
    check_apart(out, "out", g, "g", may_be_same=True)


def check_state(state: Array, name: str, out: Array, w: Array, g: Array) -> None:
    check_array(state, name, written=True)
    check_dtype(state, name, w.dtype.name)
    check_like(state, name, w, "w")
    check_apart(state, name, out, "out")
    check_apart(state, name, w, "w")
    check_apart(state, name, g, "g")
