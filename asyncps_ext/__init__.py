"""The hot path: frame headers, sums, conversions, update steps, sparse rows, quantizers, compiled.

`asyncps_ext.reference` holds the same functions in plain NumPy. It is the specification, and what
runs under ASYNCPS_PURE=1; this module is the only reader of that variable.
"""

from __future__ import annotations

import logging
import os
import sys

__all__ = [
    "COMPILED",
    "INSTRUCTION_SET",
    "optim",
    "quantize",
    "reduce",
    "select",
    "sparse",
    "sparse_fill",
    "sparse_index",
    "wire",
]

_PURE = os.environ.get("ASYNCPS_PURE", "") not in ("", "0")


def _install_reference() -> None:
    """Let the modules of kernels be the NumPy twins, whichever way they are imported."""
    from asyncps_ext import reference

    for name in ("wire", "reduce", "optim", "sparse", "sparse_index", "sparse_fill", "quantize",
                 "select"):
        sys.modules[f"{__name__}.{name}"] = getattr(reference, name)


if _PURE:
    logging.getLogger(__name__).warning("ASYNCPS_PURE is set: slow NumPy kernels are in use")
    _install_reference()

try:
    from asyncps_ext import (
        optim,
        quantize,
        reduce,
        select,
        sparse,
        sparse_fill,
        sparse_index,
        wire,
    )
except ImportError as error:
    raise ImportError(
        f"the compiled kernels of asyncps_ext cannot be loaded ({error}). Build them with "
        "`pip install -e .` or, in a clone, `python setup.py build_ext --inplace`. "
        "ASYNCPS_PURE=1 runs the slow NumPy kernels instead."
    ) from error

COMPILED: bool = not _PURE
INSTRUCTION_SET: str = reduce._variants()[0]
