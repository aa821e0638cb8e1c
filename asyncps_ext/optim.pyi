from typing import Any

from numpy import dtype, int64
from numpy.typing import NDArray

class Rows:
    dtype: dtype[Any]
    def __init__(self, blocks: list[NDArray[Any]], width: int, slots: NDArray[int64]) -> None: ...
    @property
    def size(self) -> int: ...

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
def adamw(
    out: NDArray[Any],
    w: NDArray[Any],
    g: NDArray[Any],
    m: NDArray[Any],
    v: NDArray[Any],
    lr: float,
    eta: float,
    beta1: float,
    beta2: float,
    eps: float,
    wd: float,
    rescale: float,
    clip: float,
) -> None: ...
def adagrad(
    out: NDArray[Any],
    w: NDArray[Any],
    g: NDArray[Any],
    h: NDArray[Any],
    lr: float,
    eps: float,
    wd: float,
    rescale: float,
    clip: float,
) -> None: ...
def rmsprop(
    out: NDArray[Any],
    w: NDArray[Any],
    g: NDArray[Any],
    n: NDArray[Any],
    lr: float,
    gamma1: float,
    eps: float,
    wd: float,
    rescale: float,
    clip: float,
    clip_weights: float,
) -> None: ...
def rmsprop_centered(
    out: NDArray[Any],
    w: NDArray[Any],
    g: NDArray[Any],
    n: NDArray[Any],
    mean: NDArray[Any],
    delta: NDArray[Any],
    lr: float,
    gamma1: float,
    gamma2: float,
    eps: float,
    wd: float,
    rescale: float,
    clip: float,
    clip_weights: float,
) -> None: ...
def ftrl(
    out: NDArray[Any],
    w: NDArray[Any],
    g: NDArray[Any],
    z: NDArray[Any],
    n: NDArray[Any],
    lr: float,
    lamda1: float,
    beta: float,
    wd: float,
    rescale: float,
    clip: float,
) -> None: ...
def lamb_direction(
    out: NDArray[Any],
    w: NDArray[Any],
    g: NDArray[Any],
    m: NDArray[Any],
    v: NDArray[Any],
    beta1: float,
    beta2: float,
    eps: float,
    wd: float,
    fix1: float,
    fix2: float,
    rescale: float,
    clip: float,
) -> None: ...
def squares(x: NDArray[Any]) -> float: ...
def _variants() -> tuple[str, ...]: ...
def _set_variant(name: str) -> str: ...
