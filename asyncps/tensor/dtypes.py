"""The dtypes of values: their names on the wire, their kernels, what they are summed in."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from asyncps.errors import ConfigError, DtypeMismatch
from asyncps_ext import reduce

Array = npt.NDArray[Any]

NAMES = ("float32", "float64", "float16", "bfloat16", "int8", "uint8", "int32", "int64")


@dataclass(frozen=True, slots=True)
class Dtype:
    """How values of one dtype are stored and summed.

    Attributes:
        name: The name on the wire.
        itemsize: Bytes of one element.
        bits: What the kernels take for stored values: uint16 for f16 and bf16, else the dtype.
        sum: The dtype of an accumulator: f32 for f16 and bf16, else the dtype itself.
        add: `add(accumulator, stored)`, in place.
        widen: `widen(accumulator, stored)`, or None where both are the same.
        narrow: `narrow(stored, accumulator)`, rounding to nearest even, or None likewise.
    """

    name: str
    itemsize: int
    bits: np.dtype[Any]
    sum: np.dtype[Any]
    add: Callable[[Array, Array], None]
    widen: Callable[[Array, Array], None] | None
    narrow: Callable[[Array, Array], None] | None

    @property
    def is_float(self) -> bool:
        """True for all but the integers."""
        return "float" in self.name

    def widened(self, stored: Array) -> Array:
        """Return a copy of flat stored values in the dtype that they are summed in."""
        stored = stored.view(self.bits)
        if self.widen is None:
            return stored.copy()
        wide: Array = np.empty(stored.size, self.sum)
        self.widen(wide, stored)
        return wide


def _plain(name: str) -> Dtype:
    dtype = np.dtype(name)
    return Dtype(name, dtype.itemsize, dtype, dtype, reduce.add, None, None)


_U16, _F32 = np.dtype("uint16"), np.dtype("float32")
_ALL = {name: _plain(name) for name in NAMES if name not in ("float16", "bfloat16")}
_ALL["float16"] = Dtype(
    "float16", 2, _U16, _F32, reduce.add_f16, reduce.widen_f16, reduce.narrow_f16
)
_ALL["bfloat16"] = Dtype(
    "bfloat16", 2, _U16, _F32, reduce.add_bf16, reduce.widen_bf16, reduce.narrow_bf16
)


def by_name(name: str) -> Dtype:
    """Return the dtype of a wire name.

    Raises:
        DtypeMismatch: There is none of that name.
    """
    try:
        return _ALL[name]
    except KeyError:
        raise DtypeMismatch("unknown dtype", expected=", ".join(NAMES), got=name) from None


@cache
def bfloat16() -> np.dtype[Any]:
    """Return ml_dtypes' bfloat16.

    Raises:
        ConfigError: ml_dtypes is not installed (extra `bf16`).
    """
    try:
        found: np.dtype[Any] = np.dtype(importlib.import_module("ml_dtypes").bfloat16)
    except ImportError:
        raise ConfigError("bfloat16 needs ml_dtypes: in a clone pip install -e '.[bf16]'") from None
    return found


def numpy_dtype(name: str) -> np.dtype[Any]:
    """Return the NumPy dtype that users see for a wire name."""
    return bfloat16() if name == "bfloat16" else np.dtype(name)


@lru_cache(maxsize=64)  # NumPy makes a dtype's name anew each time, in microseconds
def name_of(dtype: np.dtype[Any]) -> str:
    """Return the wire name of a NumPy dtype in native byte order.

    Raises:
        DtypeMismatch: Values of that dtype cannot be stored.
    """
    if not dtype.isnative or dtype.name not in _ALL:
        raise DtypeMismatch("values of this dtype cannot be stored",
                            expected=", ".join(NAMES), got=dtype.str if dtype.names is None
                            and dtype.name in _ALL else dtype)
    return dtype.name
