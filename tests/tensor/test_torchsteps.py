"""Steps with torch's meaning against what torch did: tests/golden/make_distopt.py."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from asyncps import optim
from asyncps.tensor import dtypes, updates
from asyncps.tensor.torchsteps import TORCH_STEPS

GOLDEN = Path(__file__).parent.parent / "golden" / "distopt.npz"
with np.load(GOLDEN, allow_pickle=False) as _file:
    ARRAYS = {name: _file[name] for name in _file.files}
CASES = list(enumerate(json.loads(ARRAYS["index"].tobytes())["cases"]))


def of_ours(case: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """The case in our words."""
    name, hyper = case["name"].lower(), dict(case["hyper"])
    if "betas" in hyper:
        hyper["beta1"], hyper["beta2"] = hyper.pop("betas")
    if name == "rmsprop":
        hyper["gamma1"] = hyper.pop("alpha", 0.99)
        if hyper.get("centered"):
            hyper["gamma2"] = hyper.pop("momentum", 0.0)
    if name == "adagrad":
        hyper.setdefault("eps", 1e-10)
    return name, hyper


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("number", "case"), CASES,
                         ids=[f"{number}-{case['name']}" for number, case in CASES])
def test_steps_are_those_of_torch(number: int, case: dict[str, Any], dtype: str) -> None:
    name, words = of_ours(case)
    made, kind = optim.by_name(name)(**words), dtypes.by_name(dtype)
    w = np.resize(ARRAYS[f"{number}.w0"], case["size"]).astype(dtype)
    state: dict[str, Any] = {}
    rounds = zip(case["rates"], ARRAYS[f"{number}.g"], ARRAYS[f"{number}.w"], strict=True)
    for t, (rate, gradient, wanted) in enumerate(rounds, 1):
        hyper = {**made.hyper, "learning_rate": rate}
        g = np.resize(gradient, case["size"]).astype(dtype)
        updates.run(name, kind, w, w, g, state, hyper, t, steps=TORCH_STEPS)
        np.testing.assert_allclose(w, np.resize(wanted, case["size"]), rtol=2e-5, atol=2e-6)


def test_momentum_of_a_piece_that_is_not_the_first_is_its_own() -> None:
    """Larger than a piece, and no two elements alike."""
    rng = np.random.default_rng(1)
    size = 3 * 32 * 1024 + 5
    w, m = rng.normal(size=size), np.zeros(size)
    wanted, state = w.copy(), {}
    kind, made = dtypes.by_name("float64"), optim.SGD(lr=0.1, momentum=0.9, wd=0.01)
    for t in (1, 2, 3):
        g = rng.normal(size=size)
        m = 0.9 * m + (g + 0.01 * wanted)
        wanted = wanted - 0.1 * m
        updates.run("sgd", kind, w, w, g.copy(), state, made.hyper, t, steps=TORCH_STEPS)
    np.testing.assert_allclose(w, wanted, rtol=1e-14)


@pytest.mark.parametrize("name", ["sgd", "adam", "adamw", "adagrad", "rmsprop"])
def test_bounds_of_gradients_and_of_weights(name: str) -> None:
    """torch has none of them: a bounded gradient is as if it had come so."""
    words = {"momentum": 0.5} if name == "sgd" else {}
    kind, made = dtypes.by_name("float64"), optim.by_name(name)
    g = np.array([5.0, -7.0, 0.25])
    got = []
    for gradient, hyper in (
        (g, made(lr=0.1, clip_gradient=1.0, rescale_grad=0.5, **words).hyper),
        (np.clip(g * 0.5, -1, 1), made(lr=0.1, **words).hyper),
    ):
        w = np.array([1.0, 2.0, 3.0])
        updates.run(name, kind, w, w, gradient.copy(), {}, hyper, 1, steps=TORCH_STEPS)
        got.append(w)
    np.testing.assert_array_equal(got[0], got[1])


def test_rmsprop_bounds_its_weights() -> None:
    made, w = optim.RMSProp(lr=0.5, clip_weights=0.3), np.array([1.0, -1.0, 0.1])
    updates.run("rmsprop", dtypes.by_name("float64"), w, w, np.zeros(3), {}, made.hyper, 1,
                steps=TORCH_STEPS)
    np.testing.assert_array_equal(w, [0.3, -0.3, 0.1])


@pytest.mark.parametrize(("name", "words"), [
    ("sgd", {"momentum": 0.9, "nesterov": True}), ("adagrad", {}), ("rmsprop", {}),
])
def test_what_is_not_finite_stays_in_its_own_element(name: str, words: dict[str, Any]) -> None:
    made, size = optim.by_name(name)(lr=0.1, **words), 3 * 32 * 1024
    w, g, state = np.ones(size, "f4"), np.ones(size, "f4"), {}
    g[5], g[32 * 1024 + 6] = np.nan, np.inf
    updates.run(name, dtypes.by_name("float32"), w, w, g, state, made.hyper, 1, steps=TORCH_STEPS)
    assert set(np.flatnonzero(~np.isfinite(w))) <= {5, 32 * 1024 + 6}
