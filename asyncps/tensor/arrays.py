"""Array adapters: the array library that computes, and the way from its memory to the host's."""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from asyncps.errors import ConfigError

__all__ = ["array_module", "from_host", "to_host"]

_DEVICES = ("auto", "cpu", "gpu")


class NotNumbers(TypeError):
    """Something that is no array of numbers, nor can be made one."""


def array_module(device: str = "auto") -> ModuleType:
    """The module to compute with: ``cupy`` on a GPU, ``numpy`` on the CPU.

    Args:
        device: "auto" takes cupy when it is installed and sees a GPU, else numpy; "cpu" and
            "gpu" force one.

    Returns:
        The module; code written for it uses only what both have.

    Raises:
        ConfigError: the device is unknown, or "gpu" was asked for and there is none; the message
            says what is missing.
    """
    if device not in _DEVICES:
        raise ConfigError(f"unknown device {device!r}; known are {', '.join(_DEVICES)}")
    if device == "cpu":
        return np
    found = _find_cupy()
    if isinstance(found, ModuleType):
        return found
    if device == "gpu":
        raise ConfigError(f"device 'gpu' is not available: {found}")
    return np


def to_host(x: object) -> NDArray[Any]:
    """``x`` as a C-contiguous NumPy array in host memory.

    Args:
        x: an array of NumPy, CuPy or torch (detached from its graph), on the CPU or a GPU.

    Returns:
        ``x`` itself if it is a C-contiguous ndarray; a view of a contiguous torch tensor's host
        memory; a copy else.

    Raises:
        TypeError: ``x`` is no array of numbers.
    """
    if isinstance(x, np.ndarray):
        return x if x.flags.c_contiguous else x.copy(order="C")
    library = type(x).__module__.partition(".")[0]
    host: Any
    if library == "cupy":
        host = importlib.import_module("cupy").asnumpy(x, order="C")
    elif library == "torch":
        host = x.detach().cpu().numpy()  # type: ignore[attr-defined]
    else:
        host = x
    array = np.asarray(host, order="C")
    if array.dtype.hasobject:
        raise NotNumbers(f"to_host: expected an array of numbers, got {type(x).__name__}")
    return array


def from_host(target: object, host: NDArray[Any]) -> None:
    """Write a host array into ``target``, wherever that lives.

    Args:
        target: a writable array of NumPy or CuPy.
        host: of the same dtype and shape.

    Raises:
        TypeError: ``target`` is neither.
    """
    if isinstance(target, np.ndarray):
        np.copyto(target, host)
    elif type(target).__module__.partition(".")[0] == "cupy":
        target[...] = importlib.import_module("cupy").asarray(host)  # type: ignore[index]
    else:
        raise TypeError(f"from_host: expected an array of NumPy or CuPy, got"
                        f" {type(target).__name__}")


def _find_cupy() -> ModuleType | str:
    """CuPy if it can compute here, else the reason why it cannot."""
    try:
        cupy = importlib.import_module("cupy")
    except ImportError as error:
        return (f"CuPy cannot be imported ({error}); in a clone pip install -e '.[cuda12]' or "
                "'.[cuda13]'")
    try:
        available = cupy.cuda.is_available()
    except RuntimeError as error:  # CUDARuntimeError: a driver that is too old, or not loaded
        return f"CuPy {cupy.__version__} is installed, but CUDA answers: {error}"
    if not available:
        return f"CuPy {cupy.__version__} is installed, but it sees no CUDA GPU"
    return cupy
