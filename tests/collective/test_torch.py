"""Tensors of torch in the verbs of a communicator: written where they are, or refused in words."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from asyncps.communicator import Communicator
from asyncps.errors import AsyncPSError, DtypeMismatch, ShapeMismatch, TensorError
from tests.support.group import Group, group

LARGE = 300_000  # elements that travel in shares
DTYPES = ["float32", "float64", "float16", "bfloat16", "int64", "uint8"]


@pytest.fixture(scope="module")
def two() -> Iterator[Group]:
    with group(2) as opened:
        yield opened


def laid_out(torch: Any, how: str, count: int, dtype: str) -> Any:
    """A tensor of 0, 1, 2, 0, ... in memory of that layout."""
    values = (torch.arange(count * 2) % 3).to(getattr(torch, dtype)).reshape(count, 2)
    if how == "contiguous":
        return values
    if how == "transposed":
        return values.T.contiguous().T
    return torch.stack([values, values], dim=2)[:, :, 0]  # every other element


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("how", ["contiguous", "transposed", "strided"])
@pytest.mark.parametrize("count", [0, 5, LARGE])
def test_a_sum_lies_in_the_tensor(
    two: Group, torch: Any, how: str, dtype: str, count: int
) -> None:
    def work(comm: Communicator) -> None:
        x = laid_out(torch, how, count, dtype)
        twice, place = x * 2, x.data_ptr()
        assert comm.all_reduce(x) is x
        assert (x.data_ptr(), x.dtype) == (place, twice.dtype)
        assert torch.equal(x, twice)

    two.run(work)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("how", ["contiguous", "strided"])
def test_a_broadcast_leaves_the_roots_tensor(two: Group, torch: Any, how: str, dtype: str) -> None:
    def work(comm: Communicator) -> None:
        wanted = laid_out(torch, how, 50, dtype)
        x = wanted.clone() if comm.rank else laid_out(torch, how, 50, dtype)
        if comm.rank == 0:
            x.zero_()
        assert comm.broadcast(x, root=1) is x
        assert torch.equal(x, wanted)

    two.run(work)


@pytest.mark.parametrize("dtype", DTYPES)
def test_new_arrays_are_numpys(two: Group, torch: Any, dtype: str) -> None:
    def work(comm: Communicator) -> None:
        mine = laid_out(torch, "strided", 2 + comm.rank, dtype)
        found = comm.all_gather(mine)
        both = torch.cat([laid_out(torch, "strided", 2 + rank, dtype) for rank in range(2)])
        assert isinstance(found, np.ndarray)
        assert found.dtype.name == dtype
        assert found.astype("f8").tolist() == both.double().tolist()
        rows, counts = comm.all_to_all(laid_out(torch, "contiguous", 4, dtype))
        assert (rows.shape, counts) == ((4, 2), [2, 2])
        part = comm.reduce_scatter(laid_out(torch, "strided", 4, dtype))
        assert part.dtype.name == dtype
        assert part.shape == (2, 2)

    two.run(work)


def test_parameters_handles_and_lists_of_tensors(two: Group, torch: Any) -> None:
    def work(comm: Communicator) -> None:
        weight = torch.nn.Parameter(torch.full((3, 2), float(comm.rank)))
        handle = comm.all_reduce(weight, op="mean", name="w", async_op=True)
        assert handle.wait() is weight
        assert (weight.detach() == 0.5).all()
        assert weight.requires_grad
        pair = [torch.ones(3, 2).T, torch.ones(7)]
        assert comm.grouped_all_reduce(pair)[0] is pair[0]
        assert all((each == 2).all() for each in pair)
        half = torch.full((5,), 0.5)
        comm.synchHalf(half)
        comm.wait()
        assert (half == 1).all()
        rows = comm.sparse_all_reduce(torch.tensor([0, 2]), torch.ones(2, 3), 4)
        assert rows[:, 0].tolist() == [2, 0, 2, 0]
        with torch.inference_mode():
            seen = torch.ones(2)
        assert comm.all_reduce(seen).tolist() == [2, 2]
        scalar = torch.tensor(3.0)
        assert comm.all_reduce(scalar).item() == 6

    two.run(work)


def test_what_is_lazily_negative_is_what_it_looks_like(two: Group, torch: Any) -> None:
    def work(comm: Communicator) -> None:
        x = torch._neg_view(torch.ones(3))
        assert comm.all_reduce(x) is x
        assert x.tolist() == [-2, -2, -2]

    two.run(work)


REFUSED: dict[str, tuple[Callable[[Any], Any], type[AsyncPSError], str]] = {
    "bool": (lambda t: t.ones(3, dtype=t.bool), DtypeMismatch, "got bool"),
    "complex": (lambda t: t.ones(3, dtype=t.complex64), DtypeMismatch, "got complex64"),
    "conjugate": (lambda t: t.ones(3, dtype=t.complex64).conj(), DtypeMismatch, "got complex64"),
    "float8": (lambda t: t.ones(3).to(t.float8_e4m3fn), TensorError, "not an array of numbers"),
    "sparse": (lambda t: t.eye(3).to_sparse(), TensorError, "not an array of numbers"),
    "meta": (lambda t: t.ones(3, device="meta"), TensorError, "not an array of numbers"),
    "expanded": (lambda t: t.ones(1).expand(3), TensorError, "several elements in one place"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_other_tensors_are_refused_before_the_call(two: Group, torch: Any, what: str) -> None:
    make, error, words = REFUSED[what]

    def work(comm: Communicator) -> None:
        for verb in (comm.all_reduce, lambda x: comm.grouped_all_reduce([x])):
            with pytest.raises(error, match=words):
                verb(make(torch))
        assert comm.all_reduce(torch.ones(2)).tolist() == [2, 2]

    two.run(work)


def test_a_root_may_have_an_expanded_tensor_and_a_scalar_no_rows(two: Group, torch: Any) -> None:
    def work(comm: Communicator) -> None:
        x = torch.zeros(3) if comm.rank else torch.ones(1).expand(3)
        assert comm.broadcast(x).tolist() == [1, 1, 1]
        with pytest.raises(ShapeMismatch, match="a scalar has no rows"):
            comm.all_gather(torch.tensor(1.0))

    two.run(work)
