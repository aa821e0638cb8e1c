from typing import Any

from numpy.typing import NDArray

def test(out: NDArray[Any], w: NDArray[Any], g: NDArray[Any], rescale: float) -> None: ...
def sgd(
    out: NDArray[Any],
    w: NDArray[Any],
    g: NDArray[Any],
    lr: float,
    wd: float,
    rescale: float,
    clip: float,
) -> None: ...
def sgd_momentum(
    out: NDArray[Any],
    w: NDArray[Any],
    g: NDArray[Any],
    m: NDArray[Any],
    lr: float,
    momentum: float,
    wd: float,
    rescale: float,
    clip: float,
    nesterov: bool,
) -> None: ...
def adam(
    out: NDArray[Any],
    w: NDArray[Any],
    g: NDArray[Any],
    m: NDArray[Any],
    v: NDArray[Any],
    lr_t: float,
    beta1: float,
    beta2: float,
    eps: float,
    wd: float,
    rescale: float,
    clip: float,
) -> None: ...
def _variants() -> tuple[str, ...]: ...
def _set_variant(name: str) -> str: ...
