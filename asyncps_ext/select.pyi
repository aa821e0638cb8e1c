from numpy import float32, uint16, uint32
from numpy.typing import NDArray

from asyncps_ext.seeds import seed_of as seed_of

def topk(
    x: NDArray[float32], k: int, indices: NDArray[uint32], values: NDArray[float32]
) -> None: ...
def threshold(
    x: NDArray[float32], t: float, indices: NDArray[uint32], values: NDArray[float32]
) -> int: ...
def count_threshold(x: NDArray[float32], t: float) -> int: ...
def random_indices(seed: int, n: int, k: int, indices: NDArray[uint32]) -> None: ...
def take(
    x: NDArray[float32], indices: NDArray[uint32], values: NDArray[float32]
) -> None: ...
def take_f16(
    x: NDArray[float32], indices: NDArray[uint32], values: NDArray[uint16]
) -> None: ...
def dgc_accumulate(
    u: NDArray[float32], v: NDArray[float32], g: NDArray[float32], momentum: float
) -> None: ...
def dgc_mask(
    u: NDArray[float32],
    v: NDArray[float32],
    indices: NDArray[uint32],
    values: NDArray[float32],
) -> None: ...
def add_at(
    acc: NDArray[float32], indices: NDArray[uint32], values: NDArray[float32]
) -> None: ...
def add_at_f16(
    acc: NDArray[float32], indices: NDArray[uint32], values: NDArray[uint16]
) -> None: ...
def set_at(
    out: NDArray[float32], indices: NDArray[uint32], values: NDArray[float32]
) -> None: ...
def merge(
    ia: NDArray[uint32],
    va: NDArray[float32],
    ib: NDArray[uint32],
    vb: NDArray[float32],
    indices: NDArray[uint32],
    values: NDArray[float32],
) -> int: ...
def _variants() -> tuple[str, ...]: ...
def _set_variant(name: str) -> str: ...
