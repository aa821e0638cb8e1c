"""Arrays of NumPy in any layout, of CuPy (a model of it on the host) and tensors of torch."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from asyncps import optim
from asyncps.distopt import DistOpt
from asyncps.tensor.arrays import from_host, host_memory, library_of, to_host
from tests.distopt.models import gradients, weights
from tests.distopt.test_update import close, same
from tests.support.threadgroup import ThreadComm, run


class DeviceArray:
    """As much of a CuPy array as adapters use."""

    def __init__(self, values: Any) -> None:
        self.values = np.asarray(values)
        self.data = SimpleNamespace(ptr=self.values.__array_interface__["data"][0])

    shape = property(lambda self: self.values.shape)
    strides = property(lambda self: self.values.strides)
    dtype = property(lambda self: self.values.dtype)

    def __setitem__(self, where: Any, value: Any) -> None:
        self.values[where] = value.values


DeviceArray.__module__ = "cupy._core.core"


@pytest.fixture
def _cupy(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("cupy")
    module.asnumpy = lambda x, order="K": np.array(x.values, order=order)  # type: ignore[attr-defined]
    module.asarray = DeviceArray  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "cupy", module)


class Holder:
    """A parameter of the user's own kind."""

    def __init__(self, data: Any) -> None:
        self.data = data
        self.name = "weight"


def every_verb(opt: DistOpt, loss: Any) -> None:
    """One call of each update."""
    opt.backward_and_update(loss, 10)
    opt.backward_and_update_half(loss, 10)
    opt.backward_and_sparse_update(loss, 10, 0.5, True)
    opt.backward_and_partial_update(loss, 10)
    opt.backward_and_local_update(loss, 1)
    opt.backward_and_diloco_update(loss, 1)
    opt.accumulate(loss)
    opt.flush()


def reference(comm: ThreadComm, grads: list[Any]) -> list[Any]:
    """What all that makes of plain NumPy arrays."""
    params, opt = weights(), DistOpt(optim.SGD(lr=0.1, momentum=0.9), communicator=comm)
    for _ in range(2):
        every_verb(opt, list(zip(params, grads, strict=True)))
    return params


def test_any_layout_of_numpy() -> None:
    def work(comm: ThreadComm) -> None:
        grads, wanted = gradients(comm.rank, 0), reference(comm, gradients(comm.rank, 0))
        params, odd = [], []
        for weight, grad in zip(weights(), grads, strict=True):
            room = np.zeros((2, *weight.shape, 2), "f4")
            room[0][..., 1] = weight
            params.append(room[0, ..., 1])  # neither contiguous nor the whole of its memory
            odd.append(grad.astype(">f4"))
        native = [each.astype("f4", order="F") for each in odd]
        opt = DistOpt(optim.SGD(lr=0.1, momentum=0.9), communicator=comm)
        for grads_now in (native, odd):
            every_verb(opt, [(Holder(p), g) for p, g in zip(params, grads_now, strict=True)])
        same(params, wanted)

    run(2, work)


@pytest.mark.usefixtures("_cupy")
def test_arrays_of_cupy_go_by_the_host() -> None:
    def work(comm: ThreadComm) -> None:
        grads = gradients(comm.rank, 0)
        wanted = reference(comm, grads)
        opt = DistOpt(optim.SGD(lr=0.1, momentum=0.9), communicator=comm)
        params = [DeviceArray(each) for each in weights()]
        device = [DeviceArray(each) for each in grads]
        for _ in range(2):
            every_verb(opt, list(zip(params, device, strict=True)))
        same([each.values for each in params], wanted)
        opt.fused_all_reduce(device)
        opt.wait()
        sums = [sum(each) for each in zip(*(gradients(r, 0) for r in range(2)), strict=True)]
        close([each.values for each in device], sums)

    run(2, work)


def test_a_parameter_is_its_memory() -> None:
    """A view made anew each step is the same parameter, with the same momentum."""
    def work(comm: ThreadComm) -> None:
        opt = DistOpt(optim.SGD(lr=1.0, momentum=0.5), communicator=comm)
        whole = np.zeros(6, "f4")
        for _ in range(3):
            opt([(Holder(whole[:4].reshape(2, 2)), np.ones((2, 2), "f4")),
                 (whole[4:], np.ones(2, "f4"))])
        assert whole.tolist() == [-(1 + 1.5 + 1.75)] * 6

    run(1, work)


def test_what_memory_can_be_used_as_it_is() -> None:
    plain = np.zeros((2, 3))
    assert np.shares_memory(host_memory(plain), plain)
    for odd in (plain.T, plain[:, 1], np.zeros(3, ">f4"), np.broadcast_to(1.0, 3), [1.0], None):
        assert host_memory(odd) is None
    assert [library_of(each) for each in (plain, plain.T, [1.0], None, 5)] == [
        "numpy", "numpy", None, None, None]


# ------------------------------------------------------------------------------------------- torch


def test_tensors_of_torch_are_written_where_they_are(torch: Any) -> None:
    def work(comm: ThreadComm) -> None:
        grads = gradients(comm.rank, 0)
        wanted = reference(comm, grads)
        opt = DistOpt(optim.SGD(lr=0.1, momentum=0.9), communicator=comm)
        params = [torch.nn.Parameter(torch.from_numpy(each)) for each in weights()]
        tensors = [torch.from_numpy(each) for each in grads]
        before = [each.data_ptr() for each in params]
        for _ in range(2):
            every_verb(opt, list(zip(params, tensors, strict=True)))
        assert [each.data_ptr() for each in params] == before
        same([each.detach().numpy() for each in params], wanted)

    run(2, work)


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
def test_tensors_there_and_back(torch: Any, dtype: str) -> None:
    if dtype == "bfloat16":
        pytest.importorskip("ml_dtypes")
    x = torch.arange(6, dtype=getattr(torch, dtype)).reshape(2, 3)
    assert library_of(torch.nn.Parameter(x)) == "torch"
    for tensor in (x, x.T):
        host = to_host(tensor)
        assert host.dtype.name == dtype
        np.testing.assert_array_equal(host.astype("f4"), tensor.float().numpy())
        other = torch.zeros_like(tensor)
        from_host(other, host)
        assert torch.equal(other, tensor)
    memory = host_memory(x)
    assert memory is not None
    memory[0, 0] = 9
    assert x[0, 0] == 9
    assert host_memory(x.T) is None


def test_it_is_as_torch_s_own_optimizers(torch: Any) -> None:
    """A real backward pass: hooks hand gradients over as they are made."""
    kinds = [
        (torch.optim.SGD, {"lr": 0.05, "momentum": 0.9, "weight_decay": 1e-3},
         optim.SGD(lr=0.05, momentum=0.9, weight_decay=1e-3)),
        (torch.optim.SGD, {"lr": 0.05, "momentum": 0.9, "nesterov": True},
         optim.SGD(lr=0.05, momentum=0.9, nesterov=True)),
        (torch.optim.Adam, {"lr": 0.01, "weight_decay": 0.1}, optim.Adam(lr=0.01, wd=0.1)),
        (torch.optim.AdamW, {"lr": 0.01, "weight_decay": 0.1}, optim.AdamW(lr=0.01, wd=0.1)),
        (torch.optim.Adagrad, {"lr": 0.1, "eps": 1e-7}, optim.AdaGrad(lr=0.1)),
        (torch.optim.RMSprop, {"lr": 0.01, "alpha": 0.9}, optim.RMSProp(lr=0.01)),
    ]
    for kind, words, ours in kinds:
        torch.manual_seed(3)
        model = torch.nn.Sequential(torch.nn.Linear(5, 7), torch.nn.Tanh(), torch.nn.Linear(7, 3))
        twin = torch.nn.Sequential(torch.nn.Linear(5, 7), torch.nn.Tanh(), torch.nn.Linear(7, 3))
        twin.load_state_dict(model.state_dict())
        theirs = kind(twin.parameters(), **words)
        batches = [torch.randn(8, 5) for _ in range(5)]

        def work(comm: ThreadComm, model: Any = model, ours: Any = ours,
                 batches: Any = batches) -> None:
            opt = DistOpt(ours, communicator=comm)
            for batch in batches:
                model.zero_grad()
                model(batch).square().mean().backward()
                opt.backward_and_update((p, p.grad) for p in reversed(list(model.parameters())))

        run(1, work)
        for batch in batches:
            theirs.zero_grad()
            twin(batch).square().mean().backward()
            theirs.step()
        close([each.detach().numpy() for each in model.parameters()],
              [each.detach().numpy() for each in twin.parameters()])
