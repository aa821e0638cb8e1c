"""Arrays of CuPy on a real device: what tests/distopt/test_arrays.py does with a model of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from asyncps import optim
from asyncps.communicator import Communicator
from asyncps.distopt import DistOpt
from asyncps.errors import TensorError
from tests.distopt.models import gradients, weights
from tests.distopt.test_arrays import every_verb
from tests.distopt.test_update import close, same
from tests.support.group import Group, group

pytestmark = pytest.mark.gpu
LARGE = 700_000  # elements that travel in shares


@pytest.fixture(scope="module")
def cupy() -> Any:
    """The module, with its context there: threads and files of CUDA's are no test's leak."""
    module = pytest.importorskip("cupy")
    module.zeros(1).sum().get()
    return module


@pytest.fixture(scope="module")
def two(cupy: Any) -> Iterator[Group]:
    with group(2) as opened:
        yield opened


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "int64", "uint8"])
@pytest.mark.parametrize("count", [0, 7, LARGE])
def test_a_sum_lies_in_the_array_of_the_device(
    two: Group, cupy: Any, dtype: str, count: int
) -> None:
    def work(comm: Communicator) -> None:
        values = (np.arange(2 * count) % 3).astype(dtype).reshape(count, 2)
        for x in (cupy.asarray(values), cupy.asarray(values).T, cupy.asarray(values)[:, 1]):
            wanted, place = cupy.asnumpy(x) * 2, x.data.ptr
            assert comm.all_reduce(x) is x
            assert (x.data.ptr, x.dtype.name) == (place, dtype)
            np.testing.assert_array_equal(cupy.asnumpy(x), wanted)

    two.run(work)


def test_other_verbs_over_arrays_of_the_device(two: Group, cupy: Any) -> None:
    def work(comm: Communicator) -> None:
        x = cupy.full((3, 2), comm.rank, "f4")
        assert comm.broadcast(x, root=1) is x
        assert (x == 1).all()
        rows = comm.all_gather(cupy.full((1 + comm.rank, 2), comm.rank, "f4"))
        assert isinstance(rows, np.ndarray)
        assert rows[:, 0].tolist() == [0, 1, 1]
        pair = [cupy.ones((3, 2), "f4").T, cupy.ones(7, "f4")]
        assert comm.grouped_all_reduce(pair)[0] is pair[0]
        assert all((each == 2).all() for each in pair)
        with pytest.raises(TensorError, match="several elements in one place"):
            comm.all_reduce(cupy.broadcast_to(cupy.ones(1, "f4"), 3))

    two.run(work)


def test_a_distopt_trains_on_the_device_as_on_the_host(two: Group, cupy: Any) -> None:
    def train(comm: Communicator, to: Any) -> list[Any]:
        params = [to(each) for each in weights()]
        grads = [to(each) for each in gradients(comm.rank, 0)]
        opt = DistOpt(optim.SGD(lr=0.1, momentum=0.9), communicator=comm)
        for _ in range(2):
            every_verb(opt, list(zip(params, grads, strict=True)))
        opt.fused_all_reduce(grads)
        opt.wait()
        return [*params, *grads]

    def work(comm: Communicator) -> None:
        wanted, got = train(comm, np.copy), train(comm, cupy.asarray)
        assert all(isinstance(each, cupy.ndarray) for each in got)
        host = [cupy.asnumpy(each) for each in got]
        same(host[: len(weights())], wanted[: len(weights())])
        close(host, wanted)

    two.run(work)
