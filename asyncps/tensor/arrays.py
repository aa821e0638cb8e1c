"""Array adapters: the array library that computes, and the way from its memory to the host's."""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from asyncps.errors import ConfigError
from asyncps.tensor.dtypes import bfloat16

__all__ = ["array_module", "from_host", "host_memory", "library_of", "to_host"]

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


def library_of(x: object) -> str | None:
    """Name whose array this is: "numpy", "cupy" or "torch"; None of anything else."""
    if isinstance(x, np.ndarray):
        return "numpy"
    for kind in type(x).__mro__:  # a torch Parameter, or a class of the user's own, is a Tensor
        library = kind.__module__.partition(".")[0]
        if library in ("cupy", "torch"):
            return library
    return None


def host_memory(x: object) -> NDArray[Any] | None:
    """``x`` itself as a C-contiguous NumPy array of its own memory, to be read and written.

    Returns:
        None where that memory is no such thing: on a GPU, not contiguous, read-only, of foreign
        byte order, or of a library that is not known.
    """
    if isinstance(x, np.ndarray):
        fit = x.flags.c_contiguous and x.flags.writeable and x.dtype.isnative
        return x.view(np.ndarray) if fit else None
    tensor: Any = x
    if library_of(x) != "torch" or tensor.device.type != "cpu" or not _is_plain(tensor):
        return None
    try:
        return _of_torch(tensor.detach()) if tensor.is_contiguous() else None
    except TypeError:  # a dtype that NumPy does not have
        return None


def is_repeated(x: object) -> bool:
    """Tell whether several elements are one place in memory, as in `expand` and `broadcast_to`.

    Such an array cannot be written; NumPy's own say so by a flag.
    """
    array: Any = x
    library = library_of(x)
    if library == "torch" and _is_plain(array):
        steps = array.stride()
    elif library == "cupy":
        steps = array.strides
    else:
        return False
    repeated = any(step == 0 and size > 1 for size, step in zip(array.shape, steps, strict=True))
    return repeated and 0 not in array.shape


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
    library = library_of(x)
    host: Any
    if library == "cupy":
        host = importlib.import_module("cupy").asnumpy(x, order="C")
    elif library == "torch":
        try:
            host = _of_torch(x.detach().cpu())  # type: ignore[attr-defined]
        except (RuntimeError, TypeError) as error:  # no memory (meta), or no dtype of NumPy
            raise NotNumbers(f"to_host: {error}") from None
    else:
        host = x
    array = np.asarray(host, order="C")
    if array.dtype.hasobject:
        raise NotNumbers(f"to_host: expected an array of numbers, got {type(x).__name__}")
    return array


def from_host(target: object, host: NDArray[Any]) -> None:
    """Write a host array into ``target``, wherever that lives.

    Args:
        target: a writable array of NumPy or CuPy, or a tensor of torch.
        host: of the same dtype and shape.

    Raises:
        TypeError: ``target`` is none of these.
    """
    if isinstance(target, np.ndarray):
        np.copyto(target, host)
    elif library_of(target) == "cupy":
        target[...] = importlib.import_module("cupy").asarray(host)  # type: ignore[index]
    elif library_of(target) == "torch":
        target.detach().copy_(_to_torch(host))  # type: ignore[attr-defined]
    else:
        raise TypeError(f"from_host: expected an array of NumPy, CuPy or torch, got"
                        f" {type(target).__name__}")


def _is_plain(tensor: Any) -> bool:
    """Tell whether the memory of a tensor holds its elements: not where it is sparse, or lazy."""
    strided: Any = sys.modules["torch"].strided
    return tensor.layout == strided and not tensor.is_neg() and not tensor.is_conj()


def _of_torch(tensor: Any) -> NDArray[Any]:
    """The memory of a tensor on the CPU; NumPy knows no bfloat16 but ml_dtypes'."""
    torch: Any = sys.modules["torch"]
    if not _is_plain(tensor) and tensor.layout == torch.strided:
        tensor = tensor.resolve_conj().resolve_neg()
    if tensor.dtype == torch.bfloat16:
        bits: NDArray[Any] = tensor.contiguous().view(torch.int16).numpy()
        return bits.view(bfloat16())
    array: NDArray[Any] = tensor.numpy()
    return array


def _to_torch(host: NDArray[Any]) -> Any:
    torch: Any = sys.modules["torch"]
    if host.dtype.name == "bfloat16":
        return torch.from_numpy(host.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(host)


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
