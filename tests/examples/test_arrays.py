"""Which array library computes, and the way to host memory; CuPy is played by a stand-in."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest

from asyncps.errors import ConfigError
from asyncps.tensor.arrays import array_module, from_host, to_host


class DeviceArray:
    """An array that only CuPy can read."""

    def __init__(self, values: np.ndarray) -> None:
        self.values = values


DeviceArray.__module__ = "cupy._core.core"


@pytest.fixture
def cupy(monkeypatch):
    """A stand-in for CuPy that sees a GPU."""
    module = ModuleType("cupy")
    module.__version__ = "13.0"
    module.cuda = SimpleNamespace(is_available=lambda: True)
    module.asnumpy = lambda x, order: np.array(x.values, order=order)
    monkeypatch.setitem(sys.modules, "cupy", module)
    return module


@pytest.fixture
def no_cupy(monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy", None)


def test_a_gpu_is_taken_when_cupy_sees_one(cupy):
    assert array_module() is cupy
    assert array_module("gpu") is cupy


def test_the_cpu_can_be_forced(cupy):
    assert array_module("cpu") is np


def test_without_cupy_numpy_computes(no_cupy):
    assert array_module() is np


def test_a_gpu_without_cupy_is_an_error_that_tells_how_to_install_it(no_cupy):
    with pytest.raises(ConfigError, match=r"CuPy cannot be imported .*\.\[cuda12\]"):
        array_module("gpu")


def test_cupy_without_a_gpu_leaves_the_work_to_numpy(cupy):
    cupy.cuda.is_available = lambda: False

    assert array_module() is np
    with pytest.raises(ConfigError, match="sees no CUDA GPU"):
        array_module("gpu")


def test_a_driver_that_fails_leaves_the_work_to_numpy(cupy):
    def fail():
        raise RuntimeError("driver version is insufficient")

    cupy.cuda.is_available = fail

    assert array_module() is np
    with pytest.raises(ConfigError, match="driver version is insufficient"):
        array_module("gpu")


def test_an_unknown_device_is_an_error_that_lists_the_known_ones():
    with pytest.raises(ConfigError, match="'tpu'; known are auto, cpu, gpu"):
        array_module("tpu")


@pytest.mark.parametrize("shape", [(), (0,), (5,), (3, 4)])
def test_a_contiguous_array_is_handed_back_as_it_is(shape):
    x = np.ones(shape, "f4")

    assert to_host(x) is x


@pytest.mark.parametrize("cut", [np.s_[::2], np.s_[::-1], np.s_[:, 1:]])
def test_a_strided_array_is_copied_in_order(cut):
    x = np.arange(12.0).reshape(3, 4)[cut]

    host = to_host(x)

    assert host.flags.c_contiguous
    assert not np.shares_memory(host, x)
    np.testing.assert_array_equal(host, x)


def test_a_gpu_array_is_copied_to_the_host(cupy):
    x = DeviceArray(np.arange(6.0).reshape(2, 3).T)

    host = to_host(x)

    assert type(host) is np.ndarray
    assert host.flags.c_contiguous
    np.testing.assert_array_equal(host, x.values)


def test_something_that_is_no_array_is_an_error():
    with pytest.raises(TypeError, match="expected an array of numbers, got DeviceQueue"):
        to_host(type("DeviceQueue", (), {})())


def test_host_values_are_written_to_where_the_target_lives(cupy):
    class Target(DeviceArray):
        def __setitem__(self, where, value):
            self.values[where] = value.values

    Target.__module__ = "cupy._core.core"
    cupy.asarray = DeviceArray
    target, here = Target(np.zeros(3)), np.zeros((3, 2))
    from_host(target, np.arange(3.0))
    from_host(here[:, 1], np.arange(3.0))

    assert target.values.tolist() == here[:, 1].tolist() == [0, 1, 2]
    with pytest.raises(TypeError, match="NumPy, CuPy or torch, got list"):
        from_host([1, 2], np.arange(2.0))
