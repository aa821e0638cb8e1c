"""How servers carry out optimizers, against NumPy models."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from asyncps import optim
from asyncps.errors import OptimizerError
from asyncps.tensor import dtypes, updates
from asyncps.tensor.steps import STEPS

Array = np.ndarray[Any, Any]


def run(
    name: str, dtype: str, w: Array, gradients: list[Array], in_place: bool = True, **hyper: Any
) -> tuple[Array, dict[str, Array]]:
    """Steps on stored values; returns the last value and the state."""
    kind, seen = dtypes.by_name(dtype), dtypes.numpy_dtype(dtype)
    words = optim.by_name(name)(**hyper).hyper
    state: dict[str, Array] = {}
    stored = w.astype(seen).view(kind.bits)
    for t, gradient in enumerate(gradients, 1):
        out = stored if in_place else np.empty_like(stored)
        before = stored.copy()
        updates.run(name, kind, out, stored, gradient.astype(kind.sum), state, words, t)
        assert in_place or np.array_equal(stored, before)
        stored = out
    return stored.view(seen), state


GRADIENTS = [np.random.default_rng(i).standard_normal(33) for i in range(4)]
START = np.random.default_rng(99).standard_normal(33)


def test_every_optimizer_that_users_name_has_an_update() -> None:
    assert set(STEPS) == {name for name, kind in optim.REGISTRY.items() if kind.builtin}


@pytest.mark.parametrize("dtype", dtypes.NAMES)
def test_the_test_optimizer_is_exact_in_every_dtype(dtype: str) -> None:
    got, state = run("test", dtype, np.ones(5), [np.full(5, 3.0)] * 2, rescale_grad=2)
    assert np.all(got == np.asarray(13).astype(got.dtype))
    assert not state


@pytest.mark.parametrize("in_place", [True, False])
@pytest.mark.parametrize(("dtype", "close"), [("float32", 1e-6), ("float64", 1e-13)])
def test_sgd_with_momentum(dtype: str, close: float, in_place: bool) -> None:
    got, state = run("sgd", dtype, START, GRADIENTS, in_place, lr=0.1, momentum=0.9, wd=0.01,
                     rescale_grad=0.5, clip_gradient=0.4)
    w, m = START.copy(), np.zeros(33)
    for gradient in GRADIENTS:
        m = 0.9 * m - 0.1 * (np.clip(0.5 * gradient, -0.4, 0.4) + 0.01 * w)
        w = w + m
    np.testing.assert_allclose(got, w, rtol=close * 10, atol=close)
    np.testing.assert_allclose(state["momentum"], m, rtol=close * 10, atol=close)
    assert state["momentum"].dtype == np.dtype(dtype)


@pytest.mark.parametrize(("dtype", "close"), [("float32", 1e-6), ("float64", 1e-13)])
def test_adam(dtype: str, close: float) -> None:
    got, state = run("adam", dtype, START, GRADIENTS, lr=0.1, wd=0.01, clip_gradient=1.0)
    w, m, v = START.copy(), np.zeros(33), np.zeros(33)
    for t, gradient in enumerate(GRADIENTS, 1):
        g = np.clip(gradient + 0.01 * w, -1, 1)
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
        w = w - 0.1 * np.sqrt(1 - 0.999**t) / (1 - 0.9**t) * m / (np.sqrt(v) + 1e-8)
    np.testing.assert_allclose(got, w, rtol=close * 100, atol=close * 10)
    assert set(state) == {"mean", "variance"}


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("name", ["sgd", "adam"])
def test_half_precision_keeps_f32_state_and_rounds_each_step_once(dtype: str, name: str) -> None:
    seen = dtypes.numpy_dtype(dtype)
    got, state = run(name, dtype, START, GRADIENTS[:1], lr=0.1, **(
        {"momentum": 0.9} if name == "sgd" else {}))
    exact, _ = run(name, "float32", START.astype(seen).astype("f4"), GRADIENTS[:1], lr=0.1, **(
        {"momentum": 0.9} if name == "sgd" else {}))
    assert np.array_equal(got, exact.astype(seen))
    assert all(array.dtype == np.dtype("f4") for array in state.values())


def test_momentum_has_state_only_when_it_is_used() -> None:
    assert not run("sgd", "float32", START, GRADIENTS, lr=0.1)[1]


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "int64"])
def test_integers_take_the_test_optimizer_with_a_whole_rate_alone(dtype: str) -> None:
    kind = dtypes.by_name(dtype)
    updates.check_usable("test", kind, {"rescale_grad": 2.0})
    for name, hyper in (("sgd", optim.SGD().hyper), ("adam", optim.Adam().hyper),
                        ("test", {"rescale_grad": 0.5})):
        with pytest.raises(OptimizerError, match=dtype):
            updates.check_usable(name, kind, hyper)
