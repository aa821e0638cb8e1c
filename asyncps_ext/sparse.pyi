from typing import Any

from numpy import int64
from numpy.typing import NDArray

def check_ids(ids: NDArray[Any], limit: int) -> int: ...
def unique_rows(ids: NDArray[int64]) -> tuple[NDArray[int64], NDArray[int64]]: ...
def gather_rows_at(
    blocks: list[NDArray[Any]], width: int, slots: NDArray[int64], out: NDArray[Any]
) -> None: ...
def scatter_set_at(
    blocks: list[NDArray[Any]], width: int, slots: NDArray[int64], rows: NDArray[Any]
) -> None: ...
def scatter_add_at(
    blocks: list[NDArray[Any]], width: int, slots: NDArray[int64], rows: NDArray[Any]
) -> None: ...
def merge_rows(
    ids_a: NDArray[int64],
    a: NDArray[Any],
    ids_b: NDArray[int64],
    b: NDArray[Any],
    width: int,
    ids: NDArray[int64],
    out: NDArray[Any],
) -> int: ...
def sum_groups(
    groups: NDArray[int64], rows: NDArray[Any], width: int, out: NDArray[Any]
) -> None: ...
def sum_duplicates(
    ids: NDArray[int64], rows: NDArray[Any], width: int
) -> tuple[NDArray[int64], NDArray[Any]]: ...
