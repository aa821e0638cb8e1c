"""Update steps, every variant of them, against scalar models and the twins."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from asyncps_ext import optim, reference
from tests.asyncps_ext.arrays import (
    LARGE,
    SIZES,
    Array,
    assert_same,
    floats,
    integers,
    numbers,
    read_only,
)
from tests.asyncps_ext.steps import BODIES, FLOATS, clipped, layouts
from tests.asyncps_ext.steps import variant as variant

Rule = Callable[..., tuple[Any, ...]]
CLIPS = pytest.mark.parametrize("clip", [-1.0, float("nan"), 0.0, 0.75, float("inf")])



# ----------------------------------------------------------- models: one element, one NumPy scalar


def model_sgd(w: Any, g: Any, lr: Any, wd: Any, rescale: Any, clip: Any) -> tuple[Any, ...]:
    return (w - lr * (clipped(rescale * g, clip) + wd * w),)


def model_momentum(
    w: Any, g: Any, m: Any, lr: Any, momentum: Any, wd: Any, rescale: Any, clip: Any
) -> tuple[Any, ...]:
    m = momentum * m - lr * (clipped(rescale * g, clip) + wd * w)
    return w + m, m


def model_nesterov(
    w: Any, g: Any, m: Any, lr: Any, momentum: Any, wd: Any, rescale: Any, clip: Any
) -> tuple[Any, ...]:
    one = type(w)(1)
    kept = momentum * m
    g = clipped(rescale * g, clip)
    after = w - kept + (momentum + one) * (kept - lr * (g + wd * w))
    return after, kept - lr * (g + wd * after)


def model_adam(
    w: Any, g: Any, m: Any, v: Any, lr: Any, b1: Any, b2: Any, eps: Any, wd: Any, rescale: Any,
    clip: Any,
) -> tuple[Any, ...]:  # fmt: skip
    one = type(w)(1)
    g = clipped(rescale * g + wd * w, clip)
    m = b1 * m + (one - b1) * g
    v = b2 * v + (one - b2) * g * g
    return w - lr * m / (np.sqrt(v) + eps), m, v


def modelled(rule: Rule, arrays: tuple[Array, ...], hyper: tuple[float, ...]) -> list[Array]:
    """A rule applied to one element after another."""
    scalar = arrays[0].dtype.type
    with np.errstate(all="ignore"):
        rounded = [scalar(value) for value in hyper]
        rows = [rule(*elements, *rounded) for elements in zip(*arrays, strict=True)]
    assert all(type(value) is scalar for row in rows for value in row)
    columns = zip(*rows, strict=True) if rows else ([] for _ in arrays[1:])
    return [np.array(column, arrays[0].dtype) for column in columns]


def state(size: int, dtype: str) -> tuple[Array, Array, Array, Array]:
    w, g, m = (floats(size, dtype, seed) for seed in (1, 2, 3))
    return w, g, m, np.abs(floats(size, dtype, 4))


# ------------------------------------------------------------------------------------ right values


@layouts
@FLOATS
def test_test_step_adds_the_rescaled_gradient(dtype: str, layout: Callable[[Array], Array]) -> None:
    for size in SIZES:
        w, g, _, _ = state(size, dtype)
        out = layout(np.empty_like(w))
        optim.test(out, layout(w), layout(g), 0.1)
        (expected,) = modelled(lambda w, g, rescale: (w + rescale * g,), (w, g), (0.1,))
        assert_same(out, expected)


@layouts
@pytest.mark.parametrize("rescale", [1, -3, 2.0, 300, 2**63 + 1, -(10**25)])
@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "int64"])
def test_test_step_of_integers_wraps(
    dtype: str, rescale: float, layout: Callable[[Array], Array]
) -> None:
    for size in SIZES:
        w, g = integers(size, dtype, 1), integers(size, dtype, 2)
        out = layout(np.empty_like(w))
        optim.test(out, layout(w), layout(g), rescale)
        modulus = 1 << (8 * w.dtype.itemsize)
        sums = [(int(a) + int(rescale) * int(b)) % modulus for a, b in zip(w, g, strict=True)]
        assert_same(out, np.array(sums, f"u{w.dtype.itemsize}").view(dtype))


@BODIES
@pytest.mark.parametrize("rescale", [0.5, float("inf"), float("nan")])
def test_test_step_of_integers_wants_an_integral_rescale(body: ModuleType, rescale: float) -> None:
    w = np.ones(3, np.int32)
    with pytest.raises(ValueError, match="rescale must be integral for int32"):
        body.test(w, w, w.copy(), rescale)


@layouts
@CLIPS
@FLOATS
def test_sgd_step(dtype: str, clip: float, layout: Callable[[Array], Array]) -> None:
    for size in SIZES:
        w, g, _, _ = state(size, dtype)
        out, hyper = layout(np.empty_like(w)), (0.1, 0.01, 1 / 3, clip)
        optim.sgd(out, layout(w), layout(g), *hyper)
        assert_same(out, modelled(model_sgd, (w, g), hyper)[0])


@layouts
@CLIPS
@FLOATS
@pytest.mark.parametrize("nesterov", [False, True])
def test_sgd_momentum_step(
    dtype: str, clip: float, nesterov: bool, layout: Callable[[Array], Array]
) -> None:
    for size in SIZES:
        w, g, m, _ = state(size, dtype)
        out, moved, hyper = layout(np.empty_like(w)), layout(m), (0.1, 0.9, 0.01, 1 / 3, clip)
        optim.sgd_momentum(out, layout(w), layout(g), moved, *hyper, nesterov)
        rule = model_nesterov if nesterov else model_momentum
        expected = modelled(rule, (w, g, m), hyper)
        assert_same(out, expected[0])
        assert_same(moved, expected[1])


@layouts
@CLIPS
@FLOATS
def test_adam_step(dtype: str, clip: float, layout: Callable[[Array], Array]) -> None:
    for size in SIZES:
        w, g, m, v = state(size, dtype)
        out, mean, variance = layout(np.empty_like(w)), layout(m), layout(v)
        hyper = (0.001, 0.9, 0.999, 1e-8, 0.01, 1 / 3, clip)
        optim.adam(out, layout(w), layout(g), mean, variance, *hyper)
        expected = modelled(model_adam, (w, g, m, v), hyper)
        for actual, wanted in zip((out, mean, variance), expected, strict=True):
            assert_same(actual, wanted)


def test_two_nesterov_steps_worked_out_by_hand() -> None:
    w, m, g = np.array([1.0], np.float32), np.array([0.0], np.float32), np.ones(1, np.float32)
    optim.sgd_momentum(w, w, g, m, 0.5, 0.5, 0.0, 1.0, -1.0, True)
    assert (w[0], m[0]) == (0.25, -0.5)
    optim.sgd_momentum(w, w, g, m, 0.5, 0.5, 0.0, 1.0, -1.0, True)
    assert (w[0], m[0]) == (-0.625, -0.75)


def test_weight_decay_is_clipped_by_adam_and_not_by_sgd() -> None:
    w, g, out = np.full(9, 8.0), np.zeros(9), np.empty(9)
    optim.sgd(out, w, g, 1.0, 0.5, 1.0, 1.0)
    assert out.tolist() == [4.0] * 9
    m, v = np.zeros(9), np.zeros(9)
    optim.adam(out, w, g, m, v, 1.0, 0.5, 0.75, 0.0, 0.5, 1.0, 1.0)
    assert (m[0], v[0], out[0]) == (0.5, 0.25, 7.0)


def test_a_nan_gradient_is_not_clipped_away() -> None:
    w, g, out = np.ones(17), np.full(17, np.nan), np.ones(17)
    optim.sgd(out, w, g, 0.1, 0.0, 1.0, 1.0)
    assert np.isnan(out).all()


# ------------------------------------------------------------------------------------------- twins

STEPS: dict[str, tuple[int, tuple[Any, ...]]] = {
    "test": (0, (0.3,)),
    "sgd": (0, (0.1, 1e-4, 0.5, 2.0)),
    "sgd_momentum": (1, (0.1, 0.9, 1e-4, 0.5, 2.0, True)),
    "adam": (2, (0.01, 0.9, 0.999, 1e-8, 1e-4, 0.5, 2.0)),
    "adamw": (2, (0.01, 0.5, 0.9, 0.999, 1e-8, 1e-4, 0.5, 2.0)),
    "adagrad": (1, (0.1, 1e-7, 1e-4, 0.5, 2.0)),
    "rmsprop": (1, (0.1, 0.9, 1e-8, 1e-4, 0.5, 2.0, 1e6)),
    "rmsprop_centered": (3, (0.1, 0.9, 0.8, 1e-8, 1e-4, 0.5, 2.0, 1e6)),
    "ftrl": (2, (0.1, 0.01, 1.0, 1e-4, 0.5, 2.0)),
    "lamb_direction": (2, (0.9, 0.999, 1e-6, 1e-4, 0.1, 0.001, 0.5, 2.0)),
}
steps = pytest.mark.parametrize("name", STEPS)


@steps
@FLOATS
def test_many_steps_agree_with_the_twin_bit_for_bit(name: str, dtype: str) -> None:
    states, hyper = STEPS[name]
    ours = [floats(LARGE, dtype, 1), *(np.zeros(LARGE, dtype) for _ in range(states))]
    twins = [array.copy() for array in ours]
    for step in range(5):
        g = floats(LARGE, dtype, 20 + step, special=step == 4)
        getattr(optim, name)(ours[0], ours[0], g, *ours[1:], *hyper)
        getattr(reference, name)(twins[0], twins[0], g, *twins[1:], *hyper)
    for our, twin in zip(ours, twins, strict=True):
        assert_same(our, twin)


@steps
@pytest.mark.parametrize("target", ["w", "g"])
def test_the_step_may_be_written_over_the_weights_or_the_gradient(name: str, target: str) -> None:
    states, hyper = STEPS[name]
    w, g, out = floats(1001, "float32", 1), floats(1001, "float32", 2), np.empty(1001, np.float32)
    kernel = getattr(optim, name)
    kernel(out, w, g, *(np.ones(1001, np.float32) for _ in range(states)), *hyper)
    over = w if target == "w" else g
    kernel(over, w, g, *(np.ones(1001, np.float32) for _ in range(states)), *hyper)
    assert_same(over, out)


@steps
def test_a_twin_has_the_parameters_of_its_kernel(name: str) -> None:
    ours, twin = (inspect.signature(getattr(body, name)) for body in (optim, reference.optim))
    assert list(ours.parameters) == list(twin.parameters)


# ------------------------------------------------------------------------------------------ errors


@BODIES
@steps
def test_a_step_wants_one_dtype_and_one_length(body: ModuleType, name: str) -> None:
    states, hyper = STEPS[name]
    kernel = getattr(body, name)
    arrays = [np.zeros(4, np.float32) for _ in range(3 + states)]
    for i in range(3 + states):
        with pytest.raises(ValueError, match=r"has \d elements"):
            kernel(*(array[: 3 if i == j else 4] for j, array in enumerate(arrays)), *hyper)
        with pytest.raises(TypeError, match="not float"):
            kernel(
                *(a.astype(np.float64 if i == j else np.float32) for j, a in enumerate(arrays)),
                *hyper,
            )
        with pytest.raises(TypeError, match="NumPy array, not NoneType"):
            kernel(*(None if i == j else array for j, array in enumerate(arrays)), *hyper)


@BODIES
@pytest.mark.parametrize("name", [name for name in STEPS if name != "test"])
@pytest.mark.parametrize("dtype", ["int32", "uint8", "float16"])
def test_steps_by_real_numbers_want_floats(body: ModuleType, name: str, dtype: str) -> None:
    states, hyper = STEPS[name]
    arrays = [np.zeros(4, dtype) for _ in range(3 + states)]
    with pytest.raises(TypeError):
        getattr(body, name)(*arrays, *hyper)


@BODIES
@steps
def test_only_what_is_written_must_be_writable(body: ModuleType, name: str) -> None:
    states, hyper = STEPS[name]
    kernel = getattr(body, name)
    arrays = [np.ones(4, np.float32) for _ in range(3 + states)]
    for i in range(3 + states):
        given = [read_only(a) if i == j else a.copy() for j, a in enumerate(arrays)]
        if i in (1, 2):
            kernel(*given, *hyper)
            continue
        with pytest.raises(ValueError, match="read-only"):
            kernel(*given, *hyper)


@BODIES
def test_arrays_that_overlap_are_refused(body: ModuleType) -> None:
    base = np.zeros(17, np.float32)
    w, g, m = base[:16], np.zeros(16, np.float32), np.zeros(16, np.float32)
    with pytest.raises(ValueError, match="out and w overlap"):
        body.sgd(base[1:], w, g, 0.1, 0.0, 1.0, -1.0)
    with pytest.raises(ValueError, match="m and w overlap"):
        body.sgd_momentum(g, w, m, w, 0.1, 0.9, 0.0, 1.0, -1.0, False)
    with pytest.raises(ValueError, match="m and v overlap"):
        body.adam(w, w, g, m, m, 0.1, 0.9, 0.999, 1e-8, 0.0, 1.0, -1.0)
    for name in ("adamw", "ftrl", "lamb_direction", "rmsprop_centered"):
        states, hyper = STEPS[name]
        with pytest.raises(ValueError, match=r"\w+ and \w+ overlap"):
            getattr(body, name)(w, w, g, *[m] * states, *hyper)


@pytest.mark.parametrize("dtype", ["float32", "float64", "int8", "uint8", "int32", "int64"])
def test_the_twin_of_the_test_step_knows_every_dtype(dtype: str) -> None:
    w, g = numbers(999, dtype, 1), numbers(999, dtype, 2)
    out, twin = np.empty_like(w), np.empty_like(w)
    optim.test(out, w, g, 5)
    reference.test(twin, w, g, 5)
    assert_same(out, twin)


def test_only_variants_that_exist_can_be_chosen(variant: str) -> None:
    with pytest.raises(ValueError, match="no variant 'mmx' here"):
        optim._set_variant("mmx")
    assert optim._set_variant(variant) == variant
